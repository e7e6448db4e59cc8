"""The base class of modcrypt's fsspec file systems, which decrypt the files of another one.

Only opening a file or querying its size needs keys. Keys exist only in the memory of the file
system, and two instances never compare equal: fsspec would compare the repr of their arguments,
where keys are redacted.

Requires fsspec 2025.12: earlier releases support no protocol that works both alone and in a chain.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from modcrypt.io.destinations import open_sink


class StackedFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A file system with the names, folders and times of its target file system.

    Sizes are known only for files that are opened. Subclasses define `protocol`, and an `_open`
    whose files have a `size`. `fo`, the path of a chained URL, is ignored: every call passes its
    path.
    """

    cachable = False  # fsspec compares the repr of the arguments, where all keys look the same

    def __init__(
        self, *, fs: Any = None, target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None, fo: str | None = None, **storage_options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**storage_options)
        if fs is None:
            fs = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self.fs = fs
        self._token = secrets.token_hex(16)
        # All methods of fsspec call it first.
        self._strip_protocol = self._target_path  # type: ignore[method-assign]  # by instance

    @property
    def _fs_token(self) -> str:
        """A random token by which fsspec and Dask distinguish file systems."""
        return self._token

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Remove only the protocol: the target file system interprets its own paths."""
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        path = stringify_path(path)
        for prefix in (f"{cls.protocol}://", f"{cls.protocol}::"):
            path = path.removeprefix(prefix)
        return path

    def _target_path(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._target_path(item) for item in path]
        return self.fs._strip_protocol(type(self)._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder; sizes are None."""
        found = self.fs.ls(self._target_path(path), detail=detail, **kwargs)
        return [_without_size(entry) for entry in found] if detail else found

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        """List the files below a folder; sizes are None."""
        found = self.fs.find(self._target_path(path), *args, detail=detail, **kwargs)
        return {name: _without_size(entry) for name, entry in found.items()} if detail else found

    def glob(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """List the files that match a pattern; sizes are None."""
        found = self.fs.glob(self._target_path(path), *args, **kwargs)
        if isinstance(found, dict):
            return {name: _without_size(entry) for name, entry in found.items()}
        return found

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether a file or folder exists, readable or not."""
        return bool(self.fs.exists(self._target_path(path), **kwargs))

    def isdir(self, path: str) -> bool:
        """Return whether a folder exists."""
        return bool(self.fs.isdir(self._target_path(path)))

    def isfile(self, path: str) -> bool:
        """Return whether a file exists, readable or not."""
        return bool(self.fs.isfile(self._target_path(path)))

    def checksum(self, path: str) -> Any:
        """Return a value that changes with the encrypted file."""
        return self.fs.checksum(self._target_path(path))

    def ukey(self, path: str) -> Any:
        """Return a value that changes with the encrypted file."""
        return self.fs.ukey(self._target_path(path))

    def created(self, path: str) -> Any:
        """Return the time when the encrypted file was created."""
        return self.fs.created(self._target_path(path))

    def modified(self, path: str) -> Any:
        """Return the time when the encrypted file was last changed."""
        return self.fs.modified(self._target_path(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget cached listings."""
        self.fs.invalidate_cache(None if path is None else self._target_path(path))

    def _check_writing(self) -> None:
        """Raise ValueError if this file system is read-only."""

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder."""
        self._check_writing()
        self.fs.mkdir(type(self)._strip_protocol(path), *args, **kwargs)

    def makedirs(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder and those above it."""
        self._check_writing()
        self.fs.makedirs(type(self)._strip_protocol(path), *args, **kwargs)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self._check_writing()
        self.fs.rmdir(type(self)._strip_protocol(path))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or folder. The size is that of the plaintext, so a file is opened."""
        path = self._target_path(path)
        entry = _without_size(self.fs.info(path, **kwargs))
        if entry["type"] == "file":
            with self._open(path) as file:
                entry["size"] = file.size
        return entry

    def open_many(self, files: Any) -> list[Any]:
        """Open all files of an `OpenFiles`; fsspec would bypass this file system for a cache."""
        return [file.open() for file in files]

    def commit_many(self, files: Any) -> None:
        """Do nothing: files that `open_many` opened for writing are complete when closed."""

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None,
        **_: Any,
    ) -> None:  # fmt: skip
        """Copy a file's plaintext to a local path, complete or not at all, or to a file object."""
        out = lpath if outfile is None else outfile
        if not hasattr(out, "write"):
            out = Path(out)
            is_folder = self.isdir(rpath)
            (out if is_folder else out.parent).mkdir(parents=True, exist_ok=True)
            if is_folder:
                return
        with self.open(rpath) as file, open_sink(out, overwrite=True) as sink:
            callback.set_size(file.size)
            while data := file.read(self.blocksize):
                sink.append(data)
                callback.relative_update(len(data))


def _without_size(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a listing's entry without the size: that of the plaintext is not known yet."""
    return {**entry, "size": None} if entry.get("type") == "file" else dict(entry)
