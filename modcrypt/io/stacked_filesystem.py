"""What modcrypt's fsspec file systems share: they stand before another one, which has the names.

Only what opens a file, or asks for its size, needs keys. Keys live in the file system's memory
alone: neither two of these nor their copies are ever taken for the same (fsspec would, going by
the repr of their arguments, in which keys are redacted).

Needs fsspec 2025.12: earlier ones know no protocol of ours that stands in a chain or by itself.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from modcrypt.io.storage import open_sink

__all__ = ["NamesBehind"]


class NamesBehind(ChainedFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Names, folders and times of the file system behind; sizes only of files that are opened.

    A class of it has a `protocol`, and an `_open` whose files know their `size`.

    Args:
        fs: the file system behind, of fsspec; without it `target_protocol` and `target_options`
            say how to make one, by default the local one.
        fo: the path that a chained URL was for; not needed, as paths come with every call.
        storage_options: fsspec's own.
    """

    cachable = False  # fsspec goes by the repr of the arguments, in which keys look the same

    def __init__(
        self,
        *,
        fs: Any = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if fs is None:
            fs = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self.fs = fs
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
        for prefix in (f"{cls.protocol}://", f"{cls.protocol}::"):
            path = path.removeprefix(prefix)
        return path

    def _target_path(self, path: Any) -> Any:
        """Give the path, or list of paths, in the file system behind."""
        if isinstance(path, list):
            return [self._target_path(one) for one in path]
        return self.fs._strip_protocol(type(self)._strip_protocol(path))

    # --- what is there: asked of the file system behind, nothing is opened ---------------------

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
        """Describe a file or folder. The size is that of the plaintext: the file is opened.

        Raises as opening it does.
        """
        path = self._target_path(path)
        entry = _unsized(self.fs.info(path, **kwargs))
        if entry["type"] == "file":
            with self._open(path) as file:
                entry["size"] = file.size
        return entry

    def open_many(self, files: Any) -> list[Any]:
        """Open all of an `OpenFiles`: fsspec would go past this file system to a cache behind."""
        return [file.open() for file in files]

    def commit_many(self, files: Any) -> None:
        """Do nothing: what `open_many` opened for writing is complete when it is closed."""

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
            ModcryptError: as opening it, for all of the file.
        """
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


def _unsized(entry: dict[str, Any]) -> dict[str, Any]:
    """Describe what is listed; the plaintext's size is not known before the file is opened."""
    return {**entry, "size": None} if entry["type"] == "file" else dict(entry)
