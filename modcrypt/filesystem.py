"""A read-only fsspec file system that shows encrypted Parquet files as plaintext ones.

It stands before another file system, in which the files are, and is found by its protocol:

    fsspec.filesystem("modcrypt", decryption=…)            # local files
    fsspec.filesystem("modcrypt", decryption=…, fs=s3)     # those of another file system
    pandas.read_parquet("modcrypt::s3://bucket/people.parquet",
                        storage_options={"decryption": …, "s3": {"anon": True}})

    modcrypt::s3://bucket/key     chained to any file system of fsspec, named with its options
    modcrypt::file:///abs/path    the same for local files
    modcrypt:///abs/path          short for it; or a path in the file system it was made with,
                                  as DuckDB spells it after `register_filesystem`
    modcrypt::/abs/path           the same for fsspec and Dask; pandas takes it for a file name,
                                  as it does all that has no "://"

The names of files and folders are those of the file system behind it. That tells what is there;
only what opens a file, or asks for its size, reads its footer. A file that is not an encrypted
Parquet one (`_SUCCESS`) is listed, and opening it is an error.

One that holds explicit keys can't be pickled: have Dask use threads, or give a function that can
be imported and gets the keys where it runs. A cache goes behind it
(`modcrypt::simplecache::s3://…`): before it, it would keep plaintext on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from modcrypt.io.stacked_filesystem import NamesBehind
from modcrypt.parquet.arrow.view import PlaintextView, open_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties

if TYPE_CHECKING:
    from modcrypt.parquet.datasets.dataset_reader import Decryption

__all__ = ["ModcryptFileSystem"]


class ModcryptFileSystem(NamesBehind):
    """Encrypted Parquet files of another file system, read as plaintext ones.

    PyArrow, pandas, Dask and fastparquet let errors of modcrypt through. DuckDB puts their text in
    an error of its own, Polars in a PanicException (not so through `scan_pyarrow_dataset`).

    Args:
        decryption: keys, and what the caller insists on, as for `open_parquet`; or a function that
            gives them for a path in the file system behind, so that each file has its own keys or
            AAD prefix. Where columns lack a key, every file with them is refused, whichever
            columns are read, unless `on_missing_key` is "null" or "drop".
        behind: `fs`, or `target_protocol` and `target_options`, say which file system is behind,
            by default the local one; what else there is are fsspec's own options.

    Raises:
        TypeError: `decryption` is not given, or is neither of the two.
    """

    protocol = "modcrypt"

    def __init__(self, decryption: Decryption | None = None, **behind: Any) -> None:
        if not isinstance(decryption, FileDecryptionProperties) and not callable(decryption):
            raise TypeError(
                "modcrypt needs the keys: decryption=FileDecryptionProperties(…), in URLs by "
                'storage_options={"decryption": …}; or a function that gives them for a path, not '
                f"{type(decryption).__name__}"
            )
        super().__init__(**behind)
        self._decryption = decryption

    def _open(self, path: str, mode: str = "rb", **_: Any) -> PlaintextView:
        """Open a file; `open` of fsspec comes here. Options of caches and blocks mean nothing.

        Raises:
            ValueError: `mode` is another than "rb".
            ModcryptError: as `open_parquet`.
        """
        if mode != "rb":
            self._refuse()
        given = self._decryption
        found = given if isinstance(given, FileDecryptionProperties) else given(path)
        return open_parquet(path, found, filesystem=self.fs)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to change anything.

        Raises:
            ValueError: always.
        """
        raise ValueError("the modcrypt file system only reads; write_table writes encrypted files")

    mkdir = makedirs = rmdir = cp_file = rm_file = _rm = _refuse
