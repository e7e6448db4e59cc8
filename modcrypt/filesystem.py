"""An fsspec file system that reads and writes encrypted Parquet files as plaintext ones.

It wraps another file system, which contains the files, and is found by its protocol:

    fsspec.filesystem("modcrypt", decryption=…)            # local files
    fsspec.filesystem("modcrypt", decryption=…, fs=s3)     # files of another file system
    pandas.read_parquet("modcrypt::s3://bucket/people.parquet",
                        storage_options={"decryption": …, "s3": {"anon": True}})
    frame.to_parquet("modcrypt::s3://bucket/people.parquet",
                     storage_options={"modcrypt": {"encryption": …}})

    modcrypt::s3://bucket/key     file of any fsspec file system, whose options go under its name
    modcrypt::file:///abs/path    local file
    modcrypt:///abs/path          short form; or a path in the wrapped file system, as DuckDB
                                  writes it after `register_filesystem`
    modcrypt::/abs/path           the same for fsspec and Dask; pandas treats it as a file name,
                                  like everything without "://"

Files and folders have the same names as in the wrapped file system, which lists them. Only opening
a file, or asking for its size, reads its footer. Files that are not encrypted Parquet files, such
as `_SUCCESS`, are listed, but opening them is an error.

A file that is written is held in memory, encrypted when it is closed, and appears complete or not
at all. Files are not appended to, moved, copied or removed; the wrapped file system does that.

A file system with explicit keys can't be pickled: have Dask use threads, or pass an importable
function that retrieves the keys where it runs. Put a cache behind this file system
(`modcrypt::simplecache::s3://…`): in front of it, the cache would store plaintext on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from modcrypt.io.places import Place
from modcrypt.io.stacked_filesystem import StackedFileSystem
from modcrypt.io.stores import locate
from modcrypt.parquet.arrow.encrypted_output import EncryptedOutput
from modcrypt.parquet.arrow.view import PlaintextView, open_parquet
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    AnyEncryption,
    KeySettings,
    as_encryption,
)

if TYPE_CHECKING:
    from modcrypt.parquet.datasets.dataset_reader import Decryption
    from modcrypt.parquet.datasets.dataset_writer import EncryptionOf


class ModcryptFileSystem(StackedFileSystem):
    """The encrypted Parquet files of another file system, read and written as plaintext files.

    PyArrow, pandas, Dask and fastparquet raise modcrypt's errors unchanged. DuckDB raises an error
    of its own with their text, and Polars a PanicException (except with `scan_pyarrow_dataset`).

    Args:
        decryption: Keys, and the caller's requirements, as for `open_parquet`; or a function that
            returns them for a path in the wrapped file system, so that each file can have its own
            keys or AAD prefix. Unless `on_missing_key` is "null" or "drop", opening a file raises
            an error if any of its columns lacks a key, whichever columns are read.
        encryption: Keys, footer mode, algorithm and AAD prefix of the files that are written, as
            for `encrypt_parquet`; or a function that returns them for a path.
        behind: The wrapped file system, as `fs` or as `target_protocol` and `target_options`; by
            default, the local one. Also fsspec's own options.

    Raises:
        TypeError: `decryption` and `encryption` are missing, or have the wrong type.
    """

    protocol = "modcrypt"

    def __init__(
        self,
        decryption: Decryption | None = None,
        encryption: EncryptionOf | None = None,
        **behind: Any,
    ) -> None:
        if encryption is not None and not callable(encryption):
            _check_encryption(encryption)
        if decryption is None and encryption is not None:
            decryption = _raise_missing_decryption
        if not isinstance(decryption, AnyDecryption) and not callable(decryption):
            raise TypeError(
                "modcrypt needs keys: pass decryption=FileDecryptionProperties(…) or Settings(…), "
                'with URLs storage_options={"decryption": …}; or pass a function that returns them '
                f"for a path, not {type(decryption).__name__}"
            )
        super().__init__(**behind)
        self._decryption, self._encryption = decryption, encryption

    def _open(
        self, path: str, mode: str = "rb", *, autocommit: bool = True, **_: Any
    ) -> PlaintextView | EncryptedOutput:
        """Open a file for `open` of fsspec; ignore options of caches and blocks."""
        if mode != "rb":
            return self._open_output(path, mode, autocommit)
        decryption = self._decryption
        properties = decryption(path) if callable(decryption) else decryption
        return open_parquet(path, properties, filesystem=self.fs)

    def _open_output(self, path: str, mode: str, autocommit: bool) -> EncryptedOutput:
        if self._encryption is None:
            self._raise_read_only()
        if mode not in ("wb", "xb"):
            raise ValueError(
                f"encrypted Parquet files are read ('rb') or written ('wb', 'xb'), not {mode!r}"
            )
        if not autocommit:
            raise ValueError("a file appears when it is closed, not with a transaction")
        given = self._encryption
        encryption = given(path) if callable(given) else given
        place = Place(*locate(path, self.fs))
        return EncryptedOutput(place, encryption, overwrite=mode == "wb")

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder, if files may be written."""
        self._check_writing()
        self.fs.mkdir(self._target_path(path), *args, **kwargs)

    def makedirs(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder and those above it, if files may be written."""
        self._check_writing()
        self.fs.makedirs(self._target_path(path), *args, **kwargs)

    def _check_writing(self) -> None:
        if self._encryption is None:
            self._raise_read_only()

    def _raise_read_only(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ValueError for an operation that this file system does not have."""
        raise ValueError(
            "the modcrypt file system writes files only if it is given encryption=, and never "
            "moves or removes any; write_table also writes encrypted files"
        )

    rmdir = cp_file = rm_file = _rm = _raise_read_only


def _check_encryption(encryption: AnyEncryption) -> None:
    """Raise TypeError for a wrong type; Settings are resolved where a file is written."""
    if not isinstance(encryption, KeySettings):
        as_encryption(encryption)


def _raise_missing_decryption(path: str) -> NoReturn:
    raise TypeError(f"{path}: reading needs keys; pass decryption= as well as encryption=")
