"""Open destinations: paths, URLs, places and the caller's file objects."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, TypeAlias

from modcrypt.io.places import Place, Stamp
from modcrypt.io.publication import open_local_sink
from modcrypt.io.recorded_writes import HashingSink, WriteRecord, find_records
from modcrypt.io.sinks import ObjectSink, Sink
from modcrypt.io.stores import locate

Destination: TypeAlias = "str | os.PathLike[str] | IO[bytes] | Place"
"""A path, an fsspec URL, or a writable binary file object; within modcrypt also a `Place`."""


def open_sink(
    destination: Destination, *, overwrite: bool, filesystem: Any = None
) -> AbstractContextManager[Sink]:
    """Open a sink; a path or URL is published when the block ends without an error.

    Raise as `open_sink_at`, and TypeError and ValueError as `locate`.
    """
    if isinstance(destination, Place):
        return open_sink_at(destination, overwrite=overwrite)
    if filesystem is not None or isinstance(destination, str | os.PathLike):
        place = Place(*locate(destination, filesystem))
        name = os.fspath(destination)  # type: ignore[arg-type]  # locate accepts only paths
        return open_sink_at(place, name, overwrite=overwrite)
    if hasattr(destination, "write") and not isinstance(destination, io.TextIOBase):
        return contextlib.nullcontext(ObjectSink(destination))
    raise TypeError(
        "a destination is a path, a URL or a writable binary file object, not "
        f"{type(destination).__name__}"
    )


def open_sink_at(
    place: Place, name: str | None = None, *, overwrite: bool = True,
    check: Callable[[], object] | None = None,
) -> AbstractContextManager[Sink]:  # fmt: skip
    """Open a sink whose file appears when the block ends without an error.

    Messages call the file `name`, or by its path. `check` is called last before publication, and
    may raise. If a folder above the file is recorded, the appended bytes are hashed on their way
    and noted once the file has appeared. Raise FileExistsError if the path exists and `overwrite`
    is False, and OSError (ELOOP) for a symbolic link below the root.
    """
    opened: AbstractContextManager[Sink]
    if place.filesystem is None:
        opened, check = open_local_sink(place, overwrite=overwrite, check=check), None
    else:
        from modcrypt.io.uploads import open_upload

        name = name or place.address
        opened = open_upload(place.filesystem, place.path, name, overwrite=overwrite)
    records = find_records(place)
    return _check_and_record(opened, place, records, check) if records or check else opened


@contextlib.contextmanager
def open_replacement(place: Place, stamp: Stamp | None) -> Iterator[Sink]:
    """Open a sink whose file replaces the one with this stamp; raise OSError if it has changed."""
    # A lock keeps other replacements out from the last look at the file until it is replaced:
    # otherwise a rotation could bring back keys that were shredded at the same time.
    with contextlib.ExitStack() as locks:
        lock_once = functools.cache(lambda: locks.enter_context(place.resolve().lock()))

        def check() -> None:
            with contextlib.suppress(PermissionError):  # of a folder that may be written, not read
                lock_once()
            place.check_unchanged(stamp)

        with open_sink_at(place, check=check) as sink:
            yield sink


@contextlib.contextmanager
def _check_and_record(
    opened: AbstractContextManager[Sink],
    place: Place,
    records: Sequence[WriteRecord[Any]],
    check: Callable[[], object] | None,
) -> Iterator[Sink]:
    with opened as sink:
        hashing = HashingSink(sink) if records else None
        yield hashing or sink
        if check is not None:
            check()
    for record in records:
        assert hashing is not None  # there are records
        record.note_written(place, hashing)
