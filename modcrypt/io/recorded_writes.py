"""Record which files of a folder this process writes, moves and removes, as it does so.

A file that is hashed afterwards may be another one already: anyone who can write to its folder can
replace it. So the bytes are hashed on their way.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from modcrypt.runtime.fork_safety import fork_safe

KEPT_END = 1 << 20  # bytes at the end of a file that are kept at least, beside its last appends
KEPT_MOST = 128 << 20
"""Bytes of the last appends that are kept at most: the largest footer that readers open is less."""
_KEPT_APPENDS = 8
"""Number of last appends that are kept whole: writers append a footer at once, however large."""

T = TypeVar("T")


# Places and sinks are in modules above this one.


class _Located(Protocol):
    def inside(self, root: Any) -> str | None: ...


class _Grows(Protocol):
    def append(self, data: memoryview | bytes) -> None: ...


class HashingSink:
    """Appends to a sink, and keeps hash, size, beginning and end of what was appended."""

    def __init__(self, sink: _Grows) -> None:
        self._sink, self._digest = sink, hashlib.sha256()
        self._last: deque[bytes] = deque()
        self._kept = 0
        self.size, self.start = 0, b""

    def append(self, data: memoryview | bytes) -> None:
        """Write all of `data` at the end."""
        self._sink.append(data)
        self._digest.update(data)
        part = bytes(data)
        self.size += len(part)
        self.start = (self.start + part[:4])[:4]
        self._last.append(part)
        self._kept += len(part)
        while self._kept - len(self._last[0]) >= KEPT_END and (
            len(self._last) > _KEPT_APPENDS or self._kept > KEPT_MOST
        ):
            self._kept -= len(self._last.popleft())

    @property
    def sha256(self) -> str:
        """SHA-256 of all bytes, in hex."""
        return self._digest.hexdigest()

    def read_end(self) -> bytes:
        """Return the last bytes: `KEPT_END` of them or more, or all."""
        return b"".join(self._last)


class WriteRecord(Generic[T]):
    """The files below a folder that were written or removed, by their paths inside it.

    `changes` has what `describe` returned of a written file, and None for one that was removed.
    `check` is called with the path and the source of each file that is opened, and may raise.
    """

    def __init__(
        self,
        folder: Any,
        describe: Callable[[HashingSink], T],
        check: Callable[[str, Any, T | None], object] | None = None,
    ) -> None:
        self.folder, self._describe, self.check = folder, describe, check
        self._lock = fork_safe(threading.Lock())
        self.changes: dict[str, T | None] = {}

    def covers(self, place: _Located) -> bool:
        """Return whether a place is below the folder."""
        return place.inside(self.folder) is not None

    def check_source(self, place: _Located, source: object) -> None:
        """Check a file that is opened, which may be one that was written here."""
        path = place.inside(self.folder)
        if path is not None and self.check is not None:
            self.check(path, source, self.changes.get(path))

    def take(self) -> dict[str, T | None]:
        """Return the changes since the last call."""
        with self._lock:
            taken, self.changes = self.changes, {}
        return taken

    def note_written(self, place: _Located, sink: HashingSink) -> None:
        """Note a file that has appeared."""
        self.note(place, self._describe(sink))

    def note_moved(self, old: _Located, new: _Located) -> None:
        """Note a file that was moved; what it has is known only if it was written before."""
        path = old.inside(self.folder)
        with self._lock:
            known = None if path is None else self.changes.get(path)
        self.note(old, None)
        if known is not None:
            self.note(new, known)

    def note(self, place: _Located, change: T | None) -> None:
        """Note the description of a file that was written, or None for one that was removed."""
        if (path := place.inside(self.folder)) is not None:
            with self._lock:
                self.changes[path] = change


_RECORDS: list[WriteRecord[object]] = []


@contextlib.contextmanager
def record_writes(
    folder: Any,
    describe: Callable[[HashingSink], T],
    check: Callable[[str, Any, T | None], object] | None = None,
) -> Iterator[WriteRecord[T]]:
    """Record what this process, in all its threads, writes below a folder while the block runs."""
    record = WriteRecord(folder, describe, check)
    _RECORDS.append(record)  # type: ignore[arg-type]  # it only calls its own describe
    try:
        yield record
    finally:
        _RECORDS.remove(record)  # type: ignore[arg-type]


def find_records(place: _Located) -> list[WriteRecord[object]]:
    """Return the records of folders above a place."""
    return [record for record in _RECORDS if record.covers(place)] if _RECORDS else []


def check_source(place: _Located, source: object) -> None:
    """Let the records of folders above a place check its file, which is opened."""
    for record in find_records(place):
        record.check_source(place, source)


def list_recorded() -> list[WriteRecord[object]]:
    """Return the records of this process."""
    return list(_RECORDS)


def note_removed(place: _Located) -> None:
    """Note in the records of folders above a place that its file was removed."""
    note_described(place, None)


def note_described(place: _Located, change: object | None) -> None:
    """Note in the records of folders above a place what another process recorded of its file."""
    for record in find_records(place):
        record.note(place, change)


def note_moved(old: _Located, new: _Located) -> None:
    """Note in the records of folders above a place that a file was moved there."""
    for record in {*find_records(old), *find_records(new)}:
        record.note_moved(old, new)
