"""An fsspec file system that reads AGS1 streams as plaintext files, and writes such streams.

It wraps another file system, which contains the files, and is found by its protocol:

    stored = {}                                           # key metadata, with the trusted length
    new = {"key": lambda path: StandardKeyMetadata.generate(), "on_written": stored.__setitem__}
    frame.to_csv("ags1::s3://bucket/people.csv", storage_options={**new, "s3": {"profile": …}})

    old = {"key": stored.__getitem__}
    pandas.read_csv("ags1::s3://bucket/people.csv", storage_options={**old, "s3": {"profile": …}})

    ags1::s3://bucket/key     file of any fsspec file system, whose options go under its name
    ags1::file:///abs/path    local file
    ags1:///abs/path          short for it; or a path in the wrapped file system, as DuckDB
                              spells it after `register_filesystem`
    ags1::/abs/path           the same for fsspec; pandas takes it for a file name

pandas does not infer compression from chained URLs: pass `compression="gzip"`.

Reading fetches only the blocks that are needed. A file is written from start to end and appears
complete or not at all: an exception before `close` leaves no file. The wrapped file system lists,
removes, moves and copies files; that needs no key, and leaves their encrypted bytes unchanged.
Listings contain no sizes, because a stream and its plaintext differ in size.

Put a cache behind this file system (`ags1::simplecache::s3://…`): in front of it, the cache would
store plaintext on disk. If another protocol is in front, fsspec stores, shows and pickles the
options of this one: pass a `Key`, which can be neither shown nor pickled, instead of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from modcrypt.ags1.layout import DEFAULT_BLOCK_LENGTH
from modcrypt.ags1.lengths import Ags1Key, TrustedLength
from modcrypt.ags1.reader import Ags1Reader
from modcrypt.ags1.writer import Ags1Writer
from modcrypt.io.stacked_filesystem import StackedFileSystem
from modcrypt.keys import as_given_key
from modcrypt.keys.metadata import StandardKeyMetadata

OnWritten: TypeAlias = "Callable[[str, StandardKeyMetadata], object]"


class Ags1FileSystem(StackedFileSystem):
    """The AGS1 streams of another file system, read and written as plaintext files.

    DuckDB closes the output of a failed COPY as if it were complete, and removes it before or after
    that. Nothing remains once the COPY has raised its error, but `on_written` may have been called.

    Args:
        key: Key as for `Ags1Reader` and `Ags1Writer`; or a function from a path in the wrapped file
            system to a fresh key (`StandardKeyMetadata.generate()`) for writing, or to the stored
            one for reading.
        aad_prefix: Beginning of the block AADs of all files, if the key metadata has none.
        length: Trusted length in bytes of the only stream to read; or `UNVERIFIED` to accept
            streams that may have lost their last blocks. Not needed if the key metadata contains
            it, or for writing.
        block_length: Bytes of plaintext in each block of written streams.
        on_written: Function called with the path in the wrapped file system and the key metadata of
            each complete file. Store the key metadata: it contains the trusted length. `close`
            raises the errors of this function; the file exists nevertheless.
        fs: Wrapped file system, of fsspec; by default, one made from the next two arguments.
        target_protocol: Protocol of the wrapped file system, by default that of local files.
        target_options: Options of the wrapped file system.
        fo: Path of a chained URL; ignored, because every call passes its path.
        anon: Ignored. pandas adds it to the options and tries again when access is denied.

    Raises:
        TypeError: `key` is missing or has the wrong type, or an option is unknown.
        ValueError: The key has no length of AES.
    """

    protocol = "ags1"
    writes_whole_files = True  # so modcrypt's own sinks need no temporary file
    _strip_tokenize_options = ("key",)  # fsspec neither hashes nor stores these options

    def __init__(
        self, *, key: Ags1Key | Callable[[str], Ags1Key] | None = None,
        aad_prefix: bytes | None = None, length: TrustedLength | None = None,
        block_length: int = DEFAULT_BLOCK_LENGTH, on_written: OnWritten | None = None,
        fs: Any = None, target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None, fo: str | None = None, anon: bool = False,
    ) -> None:  # fmt: skip
        if key is None:
            raise TypeError(
                "ags1 needs a key: pass key=…, with URLs storage_options={'key': …}; or pass a "
                "function that returns the key for a path"
            )
        # Reject misspelt options instead of passing them on: only `on_written` may store the key.
        super().__init__(fs=fs, target_protocol=target_protocol, target_options=target_options)
        self._key = (
            key if callable(key) or isinstance(key, StandardKeyMetadata) else as_given_key(key)
        )
        self._aad_prefix, self._length = aad_prefix, length
        self._block_length, self._on_written = block_length, on_written
        self._writers: WeakValueDictionary[str, Ags1Writer] = WeakValueDictionary()

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        return make, (cls, args, {**options, "key": self._key})

    def _open(
        self, path: str, mode: str = "rb", *, autocommit: bool = True, **_: Any
    ) -> Ags1Reader | Ags1Writer:
        """Open a file for `open` of fsspec. Options of caches and blocks are ignored."""
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
            path, key, aad_prefix=self._aad_prefix, block_length=self._block_length,
            overwrite=mode == "wb", filesystem=self.fs, on_written=self._on_written,
        )  # fmt: skip
        self._writers[path] = writer
        return writer

    def open(
        self, path: str, mode: str = "rb", block_size: int | None = None,
        cache_options: dict[str, Any] | None = None, compression: str | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Open a file; raise ValueError for `compression` in writing."""
        # fsspec would close only the compressor, so the file below would be abandoned;
        # `fsspec.open` and pandas close both.
        if "r" not in mode and compression is not None:
            raise ValueError("to write with compression, use fsspec.open(…, compression=…)")
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    def isfile(self, path: str) -> bool:
        """Return whether the path is a file or is being written by this file system."""
        # DuckDB removes the output of a failed COPY only if it is a file, and does so before
        # another of its threads closes it.
        return self._is_being_written(self._target_path(path)) or super().isfile(path)

    def _is_being_written(self, path: str) -> bool:
        writer = self._writers.get(path)
        return writer is not None and not writer.closed

    def _abandon(self, path: Any) -> bool:
        """Abandon the writers of one path or several; return whether nothing remains to be removed.

        A writer that another thread is completing has published its file when this returns.
        """
        paths = self._target_path(path if isinstance(path, list) else [path])
        unfinished = [target for target in paths if self._is_being_written(target)]
        for target in unfinished:
            if (writer := self._writers.get(target)) is not None:
                writer.abandon()
        return bool(unfinished) and not any(self.fs.exists(target) for target in paths)

    def rm(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove files and folders; abandon files that are being written."""
        if not self._abandon(path):
            self.fs.rm(type(self)._strip_protocol(path), *args, **kwargs)

    def rm_file(self, path: str) -> None:
        """Remove a file; abandon it if it is being written."""
        if not self._abandon(path):
            self.fs.rm_file(type(self)._strip_protocol(path))

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        """Move the encrypted files; nothing is read if the wrapped file system can rename."""
        old, new = map(type(self)._strip_protocol, (path1, path2))
        self.fs.mv(old, new, *args, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy an encrypted file for `copy` of fsspec."""
        self.fs.cp_file(*map(type(self)._strip_protocol, (path1, path2)), **kwargs)


class _ReportingWriter(Ags1Writer):
    """A writer that passes on the key metadata once the stream is complete."""

    def __init__(
        self, path: str, key: Ags1Key, *, on_written: OnWritten | None, **options: Any
    ) -> None:
        super().__init__(path, key, **options)
        self._path, self._on_written = path, on_written

    def _complete(self) -> None:
        super()._complete()
        if self._on_written is not None:
            self._on_written(self._path, self.key_metadata)
