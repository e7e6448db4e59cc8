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

Keys live in the file system's memory alone. Neither two of these nor their copies are ever taken
for the same (fsspec would, going by the repr of their arguments, in which keys are redacted). One
that holds explicit keys can't be pickled: have Dask use threads, or give a function that can be
imported and gets the keys where it runs. A cache goes behind it (`modcrypt::simplecache::s3://…`):
before it, it would keep plaintext on the disk.

Needs fsspec 2025.12: earlier ones know no `modcrypt` that stands in a chain or by itself.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.parquet.view import PlaintextView, open_parquet
from modcrypt.storage import open_sink

if TYPE_CHECKING:
    from modcrypt.parquet.dataset import Decryption

__all__ = ["ModcryptFileSystem"]


class ModcryptFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Encrypted Parquet files of another file system, read as plaintext ones.

    PyArrow, pandas, Dask and fastparquet let errors of modcrypt through. DuckDB puts their text in
    an error of its own, Polars in a PanicException (not so through `scan_pyarrow_dataset`).

    Args:
        decryption: keys, and what the caller insists on, as for `open_parquet`; or a function that
            gives them for a path in the file system behind, so that each file has its own keys or
            AAD prefix. Where columns lack a key, every file with them is refused, whichever
            columns are read, unless `on_missing_key` is "null" or "drop".
        fs: the file system behind, of fsspec; without it `target_protocol` and `target_options`
            say how to make one, by default the local one.
        fo: the path that a chained URL was for; not needed, as paths come with every call.
        storage_options: fsspec's own.

    Raises:
        TypeError: `decryption` is not given, or is neither of the two.
    """

    protocol = "modcrypt"
    cachable = False  # fsspec goes by the repr of the arguments, in which keys look the same

    def __init__(
        self,
        decryption: Decryption | None = None,
        *,
        fs: Any = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        **storage_options: Any,
    ) -> None:
        if not isinstance(decryption, FileDecryptionProperties) and not callable(decryption):
            raise TypeError(
                "modcrypt needs the keys: decryption=FileDecryptionProperties(…), in URLs by "
                'storage_options={"decryption": …}; or a function that gives them for a path, not '
                f"{type(decryption).__name__}"
            )
        super().__init__(**storage_options)
        if fs is None:
            fs = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self.fs = fs
        self._decryption = decryption
        self._token = secrets.token_hex(16)
        # All of fsspec's own methods begin with it.
        self._strip_protocol = self._target_path  # type: ignore[method-assign]  # by instance

    @property
    def _fs_token(self) -> str:
        """What fsspec and Dask tell file systems apart by: never that of another one."""
        return self._token

    # --- names ---------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Take off the protocol, and nothing else: the file system behind knows its own paths."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("modcrypt://", "modcrypt::"):
            path = path.removeprefix(prefix)
        return path

    def _target_path(self, path: Any) -> Any:
        """Give the path, or list of paths, in the file system behind."""
        if isinstance(path, list):
            return [self._target_path(one) for one in path]
        return self.fs._strip_protocol(type(self)._strip_protocol(path))

    # --- what is there: asked of the file system behind, no footer is read ---------------------

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder; sizes are None."""
        found = self.fs.ls(self._target_path(path), detail=detail, **kwargs)
        return [_unsized(entry) for entry in found] if detail else found

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        """List the files below a folder; sizes are None."""
        found = self.fs.find(self._target_path(path), *args, detail=detail, **kwargs)
        return {name: _unsized(entry) for name, entry in found.items()} if detail else found

    def glob(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """List what a pattern matches; sizes are None."""
        found = self.fs.glob(self._target_path(path), *args, **kwargs)
        if isinstance(found, dict):
            return {name: _unsized(entry) for name, entry in found.items()}
        return found

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Tell whether there is something, readable or not."""
        return bool(self.fs.exists(self._target_path(path), **kwargs))

    def isdir(self, path: str) -> bool:
        """Tell whether there is a folder."""
        return bool(self.fs.isdir(self._target_path(path)))

    def isfile(self, path: str) -> bool:
        """Tell whether there is a file, readable or not."""
        return bool(self.fs.isfile(self._target_path(path)))

    def checksum(self, path: str) -> Any:
        """Give what changes with the encrypted file."""
        return self.fs.checksum(self._target_path(path))

    def ukey(self, path: str) -> Any:
        """Give what changes with the encrypted file."""
        return self.fs.ukey(self._target_path(path))

    def created(self, path: str) -> Any:
        """Give the time at which the encrypted file was made."""
        return self.fs.created(self._target_path(path))

    def modified(self, path: str) -> Any:
        """Give the time of the encrypted file's last change."""
        return self.fs.modified(self._target_path(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget listings."""
        self.fs.invalidate_cache(None if path is None else self._target_path(path))

    # --- what is in it -------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or folder. The size is that of the plaintext file: the footer is read.

        Raises:
            ModcryptError: as `open_parquet`.
        """
        path = self._target_path(path)
        entry = _unsized(self.fs.info(path, **kwargs))
        if entry["type"] == "file":
            with self._view(path) as view:
                entry["size"] = view.size
        return entry

    def _open(self, path: str, mode: str = "rb", **_: Any) -> PlaintextView:
        """Open a file; `open` of fsspec comes here. Options of caches and blocks mean nothing.

        Raises:
            ValueError: `mode` is another than "rb".
            ModcryptError: as `open_parquet`.
        """
        if mode != "rb":
            self._refuse()
        return self._view(path)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to change anything.

        Raises:
            ValueError: always.
        """
        raise ValueError("the modcrypt file system only reads; write_table writes encrypted files")

    mkdir = makedirs = rmdir = cp_file = rm_file = _rm = _refuse

    def _view(self, path: str) -> PlaintextView:
        given = self._decryption
        found = given if isinstance(given, FileDecryptionProperties) else given(path)
        return open_parquet(path, found, filesystem=self.fs)

    def get_file(
        self,
        rpath: str,
        lpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **_: Any,
    ) -> None:
        """Copy a file's plaintext to a local path, complete or not at all, or into a file object.

        Raises:
            ModcryptError: as `open_parquet`, for all of the file.
        """
        out = lpath if outfile is None else outfile
        if not hasattr(out, "write"):
            out = Path(out)
            is_folder = self.isdir(rpath)
            (out if is_folder else out.parent).mkdir(parents=True, exist_ok=True)
            if is_folder:
                return
        with self.open(rpath) as view, open_sink(out, overwrite=True) as sink:
            callback.set_size(view.size)
            while data := view.read(self.blocksize):
                sink.append(data)
                callback.relative_update(len(data))


def _unsized(entry: dict[str, Any]) -> dict[str, Any]:
    """Describe what is listed; the plaintext file's size is not known without its footer."""
    return {**entry, "size": None} if entry["type"] == "file" else dict(entry)
