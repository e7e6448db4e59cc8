"""A read-only fsspec file system that shows encrypted Parquet files as plaintext ones.

It wraps another file system, which contains the files, and is found by its protocol:

    fsspec.filesystem("modcrypt", decryption=…)            # local files
    fsspec.filesystem("modcrypt", decryption=…, fs=s3)     # files of another file system
    pandas.read_parquet("modcrypt::s3://bucket/people.parquet",
                        storage_options={"decryption": …, "s3": {"anon": True}})

    modcrypt::s3://bucket/key     file of any fsspec file system, whose options go under its name
    modcrypt::file:///abs/path    local file
    modcrypt:///abs/path          short form; or a path in the wrapped file system, as DuckDB
                                  writes it after `register_filesystem`
    modcrypt::/abs/path           the same for fsspec and Dask; pandas treats it as a file name,
                                  like everything without "://"

Files and folders have the same names as in the wrapped file system, which lists them. Only opening
a file, or asking for its size, reads its footer. Files that are not encrypted Parquet files, such
as `_SUCCESS`, are listed, but opening them is an error.

A file system with explicit keys can't be pickled: have Dask use threads, or pass an importable
function that retrieves the keys where it runs. Put a cache behind this file system
(`modcrypt::simplecache::s3://…`): in front of it, the cache would store plaintext on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from modcrypt.io.stacked_filesystem import StackedFileSystem
from modcrypt.parquet.arrow.view import PlaintextView, open_parquet
from modcrypt.parquet.crypto.properties import AnyDecryption

if TYPE_CHECKING:
    from modcrypt.parquet.datasets.dataset_reader import Decryption


class ModcryptFileSystem(StackedFileSystem):
    """The encrypted Parquet files of another file system, read as plaintext files.

    PyArrow, pandas, Dask and fastparquet raise modcrypt's errors unchanged. DuckDB raises an error
    of its own with their text, and Polars a PanicException (except with `scan_pyarrow_dataset`).

    Args:
        decryption: Keys, and the caller's requirements, as for `open_parquet`; or a function that
            returns them for a path in the wrapped file system, so that each file can have its own
            keys or AAD prefix. Unless `on_missing_key` is "null" or "drop", opening a file raises
            an error if any of its columns lacks a key, whichever columns are read.
        behind: The wrapped file system, as `fs` or as `target_protocol` and `target_options`; by
            default, the local one. Also fsspec's own options.

    Raises:
        TypeError: `decryption` is missing or has the wrong type.
    """

    protocol = "modcrypt"

    def __init__(self, decryption: Decryption | None = None, **behind: Any) -> None:
        if not isinstance(decryption, AnyDecryption) and not callable(decryption):
            raise TypeError(
                "modcrypt needs keys: pass decryption=FileDecryptionProperties(…) or Settings(…), "
                'with URLs storage_options={"decryption": …}; or pass a function that returns them '
                f"for a path, not {type(decryption).__name__}"
            )
        super().__init__(**behind)
        self._decryption = decryption

    def _open(self, path: str, mode: str = "rb", **_: Any) -> PlaintextView:
        """Open a file for `open` of fsspec; ignore options of caches and blocks."""
        if mode != "rb":
            self._raise_read_only()
        decryption = self._decryption
        properties = decryption(path) if callable(decryption) else decryption
        return open_parquet(path, properties, filesystem=self.fs)

    def _raise_read_only(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ValueError for an operation that writes."""
        raise ValueError(
            "the modcrypt file system is read-only; write_table writes encrypted files"
        )

    mkdir = makedirs = rmdir = cp_file = rm_file = _rm = _raise_read_only
