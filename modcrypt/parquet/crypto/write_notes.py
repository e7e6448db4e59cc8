"""Notes about writes in progress: which files of a folder do not count, for readers and writers.

    people/_modcrypt_writes/4f1d....json    {"host": ..., "time": ..., "hidden": ["part-...", ...]}

A folder has no transaction: a job's files get their names one after the other. So a write puts a
note there first, which names its own files: they do not count until the note is gone. To replace
what was there before, the note is then replaced by one that names the old files, in one step; these
are removed, and the note after them. Whatever was to be published is so by that one step, for
readers that heed notes; others see files come and go.

What a note hides may be removed by anyone who finds that its writer is gone: the new files if the
write did not reach the step, and the old ones if it did. A note is not authenticated. Whoever can
write one into the folder could remove its files as well, so it hides and removes nothing else.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass

from modcrypt.io.storage import Place

__all__ = ["NOTES", "WriteNote", "check_inside", "note_place", "read_note"]

NOTES = "_modcrypt_writes"

MAX_NOTE = 64 << 20
"""Largest note, in bytes: some 500,000 files."""


@dataclass(frozen=True, slots=True)
class WriteNote:
    """A note.

    Attributes:
        hidden: Paths in the folder of the files that do not count.
        host: Machine that the writer runs on.
        time: When the note was written, in seconds since 1970.
    """

    hidden: tuple[str, ...]
    host: str
    time: float

    def put(self, place: Place) -> None:
        """Write the note, in one step, in the place of an earlier one."""
        fields = {"host": self.host, "time": self.time, "hidden": self.hidden}
        with place.create() as sink:
            sink.append(json.dumps(fields).encode())


def note_place(folder: Place, job: str) -> Place:
    """Return the place of a job's note."""
    return folder.below(f"{NOTES}/{job}.json")


def read_note(place: Place) -> WriteNote | None:
    """Read a note, or return None if it is gone by now.

    Raises:
        ValueError: It is damaged, or names something outside of the folder.
    """
    try:
        with place.open() as source:
            if source.size > MAX_NOTE:
                raise ValueError(f"{place.path}: a note of a write has at most {MAX_NOTE} bytes")
            data = source.read_at(0, source.size)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        note = WriteNote(tuple(found["hidden"]), str(found["host"]), float(found["time"]))
        for name in note.hidden:
            check_inside(name)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f"{place.path} is no note of a write; remove it, after a look at which files of the "
            "folder belong together"
        ) from None
    return note


def check_inside(name: str) -> None:
    """Raise a ValueError unless a path names a file below the folder that it is relative to."""
    if not isinstance(name, str) or posixpath.normpath(name) != name or name[:1] in ("", ".", "/"):
        raise ValueError("a path that leads out of the folder")
