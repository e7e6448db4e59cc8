"""An fsspec file system that shows AGS1 streams as the plaintext in them, and writes such streams.

It stands before another file system, in which the files are, and is found by its protocol:

    stored = {}                                           # key metadata, with the trusted length
    new = {"key": lambda path: StandardKeyMetadata.generate(), "on_written": stored.__setitem__}
    frame.to_csv("ags1::s3://bucket/people.csv", storage_options={**new, "s3": {"profile": …}})

    old = {"key": stored.__getitem__}
    pandas.read_csv("ags1::s3://bucket/people.csv", storage_options={**old, "s3": {"profile": …}})

    ags1::s3://bucket/key     chained to any file system of fsspec, named with its options
    ags1::file:///abs/path    the same for local files
    ags1:///abs/path          short for it; or a path in the file system it was made with, as
                              DuckDB spells it after `register_filesystem`
    ags1::/abs/path           the same for fsspec; pandas takes it for a file name

pandas infers compression from no chained URL: say `compression="gzip"`.

A file is read by blocks as it is needed, written from start to end, and appears complete or not at
all: an exception on the way to `close` leaves nothing. Names, folders, removing, moving and copying
are those of the file system behind; they need no key, and what is moved or copied stays as it is
encrypted. Listings have no sizes, as that of a stream is not that of what it holds.

Put a cache behind it (`ags1::simplecache::s3://…`): in front, it would keep plaintext on the disk.
If another protocol is in front, fsspec keeps, shows and pickles the options of this one as they
are: pass a `Key`, which refuses both, instead of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from modcrypt.ags1.layout import DEFAULT_BLOCK_LENGTH
from modcrypt.ags1.lengths import Ags1Key, TrustedLength
from modcrypt.ags1.reader import Ags1Reader
from modcrypt.ags1.writer import Ags1Writer
from modcrypt.io.stacked_filesystem import NamesBehind
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import as_key

__all__ = ["Ags1FileSystem"]

OnWritten: TypeAlias = "Callable[[str, StandardKeyMetadata], object]"


class Ags1FileSystem(NamesBehind):
    """AGS1 streams of another file system, read and written as the files that they hold.

    DuckDB closes what a failed COPY wrote as if it were complete, and removes it before or after
    that: nothing is left when the COPY has raised, but `on_written` may have been called for it.

    Args:
        key: as for `Ags1Reader` and `Ags1Writer`; or a function that gives it for a path in the
            file system behind: to be written, a fresh one (`StandardKeyMetadata.generate()`), and
            to be read, what is stored for it.
        aad_prefix: what the block AADs of all the files begin with, if the key metadata has none.
        length: the trusted length in bytes of the one stream that is to be read, or `UNVERIFIED`,
            and any that lost its last blocks is taken for whole. Not needed with key metadata that
            has it, or for writing.
        block_length: bytes of plaintext in a block of what is written.
        on_written: called with the path in the file system behind and the key metadata of each
            file, once it is complete: it has the trusted length, which is to be stored. What it
            raises comes out of `close`; the file is there all the same.
        fs: the file system behind, of fsspec; without it `target_protocol` and `target_options`
            say how to make one, by default the local one.
        fo: the path that a chained URL was for; not needed, as paths come with every call.
        anon: not heeded. pandas adds it to the options and tries again when access is denied.

    Raises:
        TypeError: `key` is not given or of another kind, or there is no such option.
        ValueError: a key of another size than AES has.
    """

    protocol = "ags1"
    writes_whole_files = True  # for modcrypt's own sinks, which need no temporary file then
    _strip_tokenize_options = ("key",)  # fsspec neither hashes nor keeps what is named here

    def __init__(
        self,
        *,
        key: Ags1Key | Callable[[str], Ags1Key] | None = None,
        aad_prefix: bytes | None = None,
        length: TrustedLength | None = None,
        block_length: int = DEFAULT_BLOCK_LENGTH,
        on_written: OnWritten | None = None,
        fs: Any = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        anon: bool = False,
    ) -> None:
        if key is None:
            raise TypeError(
                "ags1 needs the key: key=…, in URLs by storage_options={'key': …}; or a function "
                "that gives it for a path"
            )
        # A misspelt option is an error, not fsspec's: `on_written` may be all that keeps a key.
        super().__init__(fs=fs, target_protocol=target_protocol, target_options=target_options)
        self._key = key if callable(key) or isinstance(key, StandardKeyMetadata) else as_key(key)
        self._aad_prefix, self._length = aad_prefix, length
        self._block_length, self._on_written = block_length, on_written
        self._writers: WeakValueDictionary[str, Ags1Writer] = WeakValueDictionary()

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        return make, (cls, args, {**options, "key": self._key})

    # --- files ---------------------------------------------------------------------------------

    def _open(
        self, path: str, mode: str = "rb", *, autocommit: bool = True, **_: Any
    ) -> Ags1Reader | Ags1Writer:
        """Open a file; `open` of fsspec comes here. Options of caches and blocks mean nothing.

        Raises:
            ValueError: `mode` is none of "rb", "wb" and "xb", or this is in a transaction.
            FileExistsError: the mode is "xb", and it exists.
            ModcryptError: as `Ags1Reader`.
        """
        if mode not in ("rb", "wb", "xb"):
            raise ValueError(
                f"AGS1 streams are read ('rb') or written from start to end ('wb', 'xb'), not "
                f"{mode!r}"
            )
        if mode != "rb" and not autocommit:
            raise ValueError("an AGS1 stream appears when it is closed, not with a transaction")
        key = self._key(path) if callable(self._key) else self._key
        if mode == "rb":
            return Ags1Reader(
                path, key, aad_prefix=self._aad_prefix, length=self._length, filesystem=self.fs
            )
        writer = _ReportingWriter(
            path,
            key,
            aad_prefix=self._aad_prefix,
            block_length=self._block_length,
            overwrite=mode == "wb",
            filesystem=self.fs,
            on_written=self._on_written,
        )
        self._writers[path] = writer
        return writer

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file: as fsspec does, but for compressing what is written.

        Raises as `_open`, and:
            ValueError: what is written is to be compressed. fsspec closes the compressor alone,
                and the file below would be given up; `fsspec.open` and pandas close both.
        """
        if "r" not in mode and compression is not None:
            raise ValueError("to compress what is written, use fsspec.open(…, compression=…)")
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    # --- files that are being written ----------------------------------------------------------

    def isfile(self, path: str) -> bool:
        """Return whether a file exists there, or is being written by this file system.

        DuckDB removes what a failed COPY wrote only if it is a file, while another of its threads
        is still to close it.
        """
        return self._is_being_written(self._target_path(path)) or super().isfile(path)

    def _is_being_written(self, path: str) -> bool:
        writer = self._writers.get(path)
        return writer is not None and not writer.closed

    def _abandon(self, path: Any) -> bool:
        """Abandon the writers of one path or several, and return whether nothing is left to remove.

        A writer that is just being completed has published its file when this returns.
        """
        paths = self._target_path(path if isinstance(path, list) else [path])
        writing = [one for one in paths if self._is_being_written(one)]
        for one in writing:
            if (writer := self._writers.get(one)) is not None:
                writer.abandon()
        return bool(writing) and not any(self.fs.exists(one) for one in paths)

    # --- what needs no key: done by the file system behind, with the bytes as they are ---------

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder."""
        self.fs.mkdir(self._own(path), *args, **kwargs)

    def makedirs(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Make a folder and those above it."""
        self.fs.makedirs(self._own(path), *args, **kwargs)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self.fs.rmdir(self._own(path))

    def rm(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove files and folders. A file that is being written is abandoned."""
        if not self._abandon(path):
            self.fs.rm(self._own(path), *args, **kwargs)

    def rm_file(self, path: str) -> None:
        """Remove a file. One that is being written is abandoned."""
        if not self._abandon(path):
            self.fs.rm_file(self._own(path))

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        """Move files, encrypted as they are: where that is renaming, nothing is read."""
        self.fs.mv(self._own(path1), self._own(path2), *args, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file, encrypted as it is; `copy` of fsspec comes here."""
        self.fs.cp_file(self._own(path1), self._own(path2), **kwargs)

    def _own(self, path: Any) -> Any:
        """Give the path as the one behind is given it: a slash at its end has a meaning there."""
        return type(self)._strip_protocol(path)


class _ReportingWriter(Ags1Writer):
    """Says what must be stored, once the stream is complete."""

    def __init__(
        self, path: str, key: Ags1Key, *, on_written: OnWritten | None, **options: Any
    ) -> None:
        super().__init__(path, key, **options)
        self._path, self._on_written = path, on_written

    def _complete(self) -> None:
        super()._complete()
        if self._on_written is not None:
            self._on_written(self._path, self.key_metadata)
