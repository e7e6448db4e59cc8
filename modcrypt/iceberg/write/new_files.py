"""The files that a change of a table writes, and that are removed unless a version names them."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

from modcrypt.iceberg.format.deletion import is_protected, remove_new
from modcrypt.iceberg.format.encrypted_files import write_ags1, write_parquet
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.table_versions import file_names
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.keys.metadata import StandardKeyMetadata


class NewFiles(AbstractContextManager["NewFiles"]):
    """The new files of a job; an exception that leaves the context removes them.

    Each is noted before it is written, so that no interruption leaves one behind. They stay if a
    version that names them was offered, unless that has certainly failed. Files that cannot be
    removed are orphans, which `verify_table` reports.
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations
        self._once: list[str] = []  # for all attempts to commit
        self._attempt: list[str] = []  # for the current attempt
        self._folders: set[str] = set()
        self.name = uuid.uuid4().hex
        """Name of the job: prefix of the names of files that its tasks write."""
        self.used: Collection[str] | None = None
        """Locations of the files that the next version names; None for all."""
        self.offered: Place | None = None
        """Place of the version that another one, which names the files, may have followed."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and self.offered is None:
            with contextlib.suppress(Exception):  # the first error is reported
                self._remove([*self._attempt, *self._once, *self._written_by_tasks()])

    def note(self, location: str, *, once: bool = False) -> None:
        """Note a file that is about to be written.

        With `once`, all attempts to commit use the file, and not only the current one.
        """
        (self._once if once else self._attempt).append(location)

    def note_folder(self, location: str) -> None:
        """Note a folder in which tasks write files with the job's name as prefix."""
        self._folders.add(location)

    def write(
        self, location: str, file_format: str, source: Source, key_length: int
    ) -> tuple[StandardKeyMetadata, dict[str, Any]]:
        """Write a data or delete file for all attempts; return its keys and members of its entry.

        `source` is the file in plaintext. Every format but `PARQUET` becomes an AGS1 file. Raise as
        `write_parquet` and `write_ags1` do.
        """
        self.note(location, once=True)
        if file_format == "PARQUET":
            encrypted = write_parquet(self._locations, location, source, key_length)
            return encrypted.keys, {"split_offsets": encrypted.split_offsets}
        data = source.read_at(0, source.size)
        return write_ags1(self._locations, location, data, key_length), {}

    def begin_attempt(self) -> None:
        """Remove the files of the attempt before, which has failed."""
        self.offered = None
        self._remove(self._attempt)
        self._attempt.clear()

    def finish(self) -> None:
        """Remove the files that the committed version does not name."""
        if self.used is not None:
            used = set(map(self._locations.key, self.used))
            others = [*self._once, *self._written_by_tasks()]
            self._remove([other for other in others if self._locations.key(other) not in used])

    def _written_by_tasks(self) -> Iterator[str]:
        """Yield the files of tasks, including failed and repeated ones."""
        for folder in self._folders:
            with contextlib.suppress(OSError, ValueError):
                inside = self._locations.place(f"{folder}/{self.name}")
                names = file_names(Place(inside.filesystem, posixpath.dirname(inside.path)))
                yield from (f"{folder}/{name}" for name in names if name.startswith(self.name))

    def _remove(self, locations: Collection[str]) -> None:
        for location in locations:
            with contextlib.suppress(OSError, ValueError):
                place = self._locations.place(location)
                if not is_protected(place.path):
                    remove_new(place)
