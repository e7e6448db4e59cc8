"""Open destinations: paths, URLs, places and the caller's file objects."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, TypeAlias

from modcrypt.io.places import Place
from modcrypt.io.publication import open_local_sink
from modcrypt.io.recorded_writes import HashingSink, WriteRecord, find_records
from modcrypt.io.sinks import ObjectSink, Sink
from modcrypt.io.stores import locate
from modcrypt.io.uploads import open_upload

Destination: TypeAlias = "str | os.PathLike[str] | IO[bytes] | Place"
"""A path, an fsspec URL, or a writable binary file object; within modcrypt also a `Place`."""


@contextlib.contextmanager
def open_sink(
    destination: Destination, *, overwrite: bool, filesystem: Any = None
) -> Iterator[Sink]:
    """Open a sink; a path or URL is published when the block ends without an error.

    Raise as `open_sink_at`, and TypeError and ValueError as `locate`.
    """
    if isinstance(destination, Place):
        with open_sink_at(destination, overwrite=overwrite) as sink:
            yield sink
    elif filesystem is not None or isinstance(destination, str | os.PathLike):
        place = Place(*locate(destination, filesystem))
        name = os.fspath(destination)  # type: ignore[arg-type]  # locate accepts only paths
        with _open_stored(place, name, overwrite, None) as sink:
            yield sink
    elif hasattr(destination, "write"):
        yield ObjectSink(destination)
    else:
        raise TypeError(
            "a destination is a path, a URL or a writable binary file object, not "
            f"{type(destination).__name__}"
        )


def open_sink_at(
    place: Place, *, overwrite: bool = True, check: Callable[[], object] | None = None
) -> AbstractContextManager[Sink]:
    """Open a sink whose file appears when the block ends without an error.

    `check` is called last before publication, and may raise.

    Raises:
        FileExistsError: The path exists and `overwrite` is False.
        OSError: The file system or store refuses; ELOOP for a symbolic link below the root.
    """
    return _open_stored(place, place.path, overwrite, check)


def _open_stored(
    place: Place, name: str, overwrite: bool, check: Callable[[], object] | None
) -> AbstractContextManager[Sink]:
    opened: AbstractContextManager[Sink]
    if place.filesystem is None:
        opened = open_local_sink(place, overwrite=overwrite, check=check)
    else:
        opened = open_upload(place.filesystem, place.path, name, overwrite=overwrite)
        opened = opened if check is None else _check_at_end(opened, check)
    records = find_records(place)
    return _record(opened, place, records) if records else opened


@contextlib.contextmanager
def _record(
    opened: AbstractContextManager[Sink], place: Place, records: list[WriteRecord[object]]
) -> Iterator[Sink]:
    """Hash what is appended, and note it once the file has appeared."""
    with opened as sink:
        hashing = HashingSink(sink)
        yield hashing
    for record in records:
        record.note_written(place, hashing)


@contextlib.contextmanager
def _check_at_end(
    opened: AbstractContextManager[Sink], check: Callable[[], object]
) -> Iterator[Sink]:
    with opened as sink:
        yield sink
        check()
