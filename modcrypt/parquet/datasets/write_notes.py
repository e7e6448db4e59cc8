"""Notes about writes in progress: the files of a folder that readers and writers must ignore.

    people/_modcrypt_writes/4f1d....json    {"host": ..., "time": ..., "hidden": ["part-...", ...]}

A folder has no transactions: a job's files appear one after the other. So a write first puts a note
into the folder that lists its new files, which are ignored until the note is removed. To replace
older files, the write then replaces the note, in one atomic step, by one that lists the old files;
it removes these, and finally the note. For readers that respect notes, this step publishes the
whole write; other readers see files appear and disappear.

Anyone who finds that a note's writer is gone may remove the files that the note hides: the new ones
if the write did not reach the atomic step, the old ones if it did. A note is not authenticated.
Anyone who can write a note into the folder can also remove the folder's files, so a note hides and
removes only files of its own folder.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from modcrypt.errors import FormatError, LimitError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at

NOTES = "_modcrypt_writes"

MAX_RECORD = 64 << 20
"""Largest record, in bytes: some 500,000 files of a write."""

T = TypeVar("T")


class WriteNote(NamedTuple):
    """A note about a write in progress."""

    hidden: tuple[str, ...]  # paths, relative to the folder, of the files to ignore
    host: str  # name of the machine on which the writer runs
    time: float  # time at which the note was written, in seconds since 1970

    def put(self, place: Place) -> None:
        """Write the note in one atomic step, replacing an earlier one."""
        fields = {"host": self.host, "time": self.time, "hidden": self.hidden}
        with open_sink_at(place) as sink:
            sink.append(json.dumps(fields).encode())


def note_place(folder: Place, job: str) -> Place:
    """Return the place of a job's note."""
    return folder.below(f"{NOTES}/{job}.json")


def read_note(place: Place) -> WriteNote | None:
    """Return the note at a place, or None if it no longer exists.

    Raise FormatError if it is damaged or names a file outside the folder, LimitError if too long.
    """
    advice = "; check which files of the folder belong together, then remove it"
    return read_record(place, _parse_write_note, f"note of a write{advice}")


def _parse_write_note(fields: Any) -> WriteNote:
    if not isinstance(fields["hidden"], list):  # a string would be split into letters
        raise TypeError
    note = WriteNote(tuple(fields["hidden"]), str(fields["host"]), float(fields["time"]))
    for name in note.hidden:
        inside = isinstance(name, str) and posixpath.normpath(name) == name
        if not inside or name[:1] in ("", ".", "/"):
            raise ValueError("path leads out of the folder")
    return note


def read_record(place: Place, decode: Callable[[Any], T], what: str) -> T | None:
    """Return the decoded JSON of a small file, None if it does not exist; errors call it `what`."""
    try:
        with open_source_at(place) as source:
            if source.size > MAX_RECORD:
                size = f"more than {MAX_RECORD} bytes"
                raise LimitError(f"{place.address} has {size} and is not a {what}")
            data = source.read_at(0, source.size)
    except FileNotFoundError:
        return None
    try:
        return decode(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise FormatError(f"{place.address} is not a {what}") from None
