"""Files of `modcrypt ags1`: fresh key metadata, and SOURCE and DESTINATION, which may be pipes."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.shared import end_if_unread
from modcrypt.errors import printable

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.io.places import Stamp

Encode = Callable[["modcrypt.ags1.StandardKeyMetadata"], bytes]


class MetadataFile:
    """The file for fresh key metadata, which appears complete or not at all.

    A published stream must never lack its key. Therefore the metadata is in place before the stream
    is published. If it replaces a file, whose key may open the stream that is being replaced, it
    waits beside it, as `PATH.new`, until the new stream is published.
    """

    def __init__(
        self, path: str, metadata: modcrypt.ags1.StandardKeyMetadata, source: str, destination: str,
        *, force: bool,
    ) -> None:  # fmt: skip
        self._metadata, self._destination = metadata, destination
        self.encode: Encode = modcrypt.ags1.StandardKeyMetadata.encode
        self._target = self._place = os.path.realpath(path)
        if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
            raise click.UsageError("--new-key-metadata takes the path of a file")
        if self._target in {_local_path(source), _local_path(destination)}:
            raise click.UsageError("--new-key-metadata must not be SOURCE or DESTINATION")
        if os.path.lexists(path):
            if not force:
                raise FileExistsError(errno.EEXIST, "", path)
            self._place += ".new"
        if self._place != self._target and os.path.lexists(self._place):
            raise click.UsageError(
                f"{self._place} remains from an interrupted run and may hold the only key of its "
                "DESTINATION; move it elsewhere first"
            )
        self._written = False

    def __enter__(self) -> MetadataFile:
        from modcrypt.io.destinations import open_sink

        self._before = _identity(self._destination)
        self._stack = ExitStack()
        mask = os.umask(0o077)
        try:  # fail before the work if the folder is not writable
            sink = open_sink(Path(self._place), overwrite=False)
            self._sink = self._stack.enter_context(sink)
        finally:
            os.umask(mask)
        return self

    def write(self, length: int) -> None:
        """Write the metadata of a stream of `length` bytes, which is about to be published."""
        self._sink.append(self.encode(self._metadata.with_length(length)))
        self._stack.close()
        self._written = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._written:
            self._stack.__exit__(kind, error, trace)
        elif error is None:
            if self._place != self._target:
                os.replace(self._place, self._target)
        elif self._before is not None and _identity(self._destination) == self._before:
            os.unlink(self._place)
        else:
            where = printable(self._place)
            click.echo(f"modcrypt: the key metadata is in {where}", err=True)


def _local_path(path: str) -> str | None:
    """Return the real local path; None for the URL of a store, or standard input or output."""
    from modcrypt.io.stores import locate

    filesystem, place = locate(path, None)
    return None if filesystem is not None or path == "-" else os.path.realpath(place)


def _identity(destination: str) -> Stamp | None:
    """Return the stamp that distinguishes a file from its replacement; None for pipes and URLs."""
    # A file that does not exist has an identity, too.
    from modcrypt.io.places import Place

    if (path := _local_path(destination)) is None or is_stream(destination):
        return None
    return Place(None, path).stamp() or ()


@contextmanager
def open_input(source: str) -> Iterator[Any]:
    """Yield what the library reads for a SOURCE."""
    if source != "-":
        yield source
        return
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; pass a path as SOURCE")
    buffer: Any = sys.stdin.buffer
    file = getattr(buffer, "raw", buffer)
    # If a file is partly read, encrypt only the rest.
    is_file = file.seekable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    yield file if is_file and file.tell() == 0 else _Pipe(file)


@contextmanager
def open_output(destination: str) -> Iterator[str | IO[bytes]]:
    """Yield what the library writes to for a DESTINATION; end quietly if its reader closes it.

    While the stream is on standard output, print_line writes to standard error.
    """
    with ExitStack() as stack:
        if destination == "-":
            file = sys.stdout.buffer
            sys.stdout = sys.stderr
            sink: IO[bytes] = getattr(file, "raw", file)
        elif is_stream(destination):
            sink = stack.enter_context(open(destination, "wb", buffering=0))
        else:
            yield destination
            return
        try:
            yield sink
        except BrokenPipeError:
            end_if_unread(sink)
            raise


class _Pipe(io.RawIOBase):
    """A file object that can only be read sequentially."""

    def __init__(self, file: Any) -> None:
        self._file, self.name = file, file.name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size: int | None = self._file.readinto(buffer)
        return size


def is_stream(path: str) -> bool:
    """Return whether a path is a pipe or device, which is written to and not replaced."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening it will raise a clear error
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
