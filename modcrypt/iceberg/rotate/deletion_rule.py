"""The rule by which files of a table are deleted; whatever deletes them does it here.

Nobody signs a metadata.json, and anyone who may write in the table's folder can add one. So a file
goes only if all of these hold:

1. A version that is vouched for names it: the current one, or an older one that the log of a
   vouched-for version names. That version lies beside the current one, has a lower number, and is
   of the same table and time as the log says. Any other metadata.json stays and names nothing.
2. A data or delete file, manifest or manifest list is named by a manifest, manifest list or
   snapshot that opened with the table's keys (or is in plaintext, where the caller of `open_table`
   accepts that). What only an older version leads to lies in the table's own folder. No file lies
   in another table's folder within that: tables under one master key open each other's files.
3. A file of statistics lies in the table's own folder, begins as Puffin files do, and has another
   name than those that stay.
4. A metadata.json goes only as an older version, by 1. A version hint never goes, nor does the
   table's key store.
5. No kept snapshot needs it, under any spelling of its location; and these snapshots' manifests
   fit the current version, which they were written for.
6. It lies in a folder that locations are mapped to, and no symbolic link below that leads to it.

A job may also remove what it has just written itself under names of its own, by 6: files by
`remove_written`, and a metadata.json that came to nothing by what knows the table's versions.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modcrypt.errors import FormatError, KmsUnavailableError, ModcryptError
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import (
    HINT,
    file_names,
    has_versions,
    is_later,
    log_of,
    read_metadata,
)
from modcrypt.iceberg.read.inventory import Failure, Keys, in_threads, take_inventory
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.verify.manifest_checks import check_list, check_manifest
from modcrypt.iceberg.verify.table_findings import TableReport
from modcrypt.io.storage import Place
from modcrypt.parquet.verify.findings import raise_first

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = [
    "JOBS",
    "METADATA",
    "DeletionRule",
    "check_lasting",
    "metadata_files",
    "remove_files",
    "remove_written",
    "vouched_versions",
]

JOBS = 4
"""How many files are read, or deleted, at the same time."""

METADATA = re.compile(r".*\.metadata\.json(\.gz)?")
"""Names of metadata.json files, compressed or not."""

_PUFFIN = b"PFA1"

_LASTING = frozenset({
    errno.EACCES, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM,
})  # fmt: skip
"""Errors of the file system that a location in a forged file has, too."""


def check_lasting(error: Failure | None) -> None:
    """Raise an error that may be over soon: what can't be read now would stay for ever."""
    passing = isinstance(error, OSError) and error.errno not in _LASTING
    if error is not None and (passing or isinstance(error, KmsUnavailableError)):
        raise error


# --- versions ------------------------------------------------------------------------------------


def vouched_versions(table: IcebergTable) -> Iterator[tuple[Place, TableMetadata]]:
    """Yield the version of a table, and the older ones that logs vouch for, the newest first.

    A log gives names and times, which do not prove what is in these files: so what only an older
    version names is deleted in the table's own folder alone.

    Raises:
        OSError: from the file system.
    """
    yield table.place, table.metadata
    own, there = table.place.name, set(metadata_files(table))
    times: dict[str, int | None] = {own: None}  # of files that were read: a log may repeat names
    waiting = _older(table.metadata, there, own)
    while waiting:
        before, name = heapq.heappop(waiting)
        if times.get(name, -before) != -before:
            continue
        metadata = _read(table, name)
        times[name] = None if metadata is None else _updated(metadata)
        if metadata is not None and times[name] == -before:
            times[name] = None
            yield table.place.beside(name), metadata
            for one in _older(metadata, there, own):
                heapq.heappush(waiting, one)


def _older(metadata: TableMetadata, there: set[str], own: str) -> list[tuple[int, str]]:
    """Return the versions in a log that are there and may be older, as a heap: the newest first."""
    log = log_of(metadata)
    found = [(-ms, name) for ms, name in log if name in there and not is_later(name, own)]
    heapq.heapify(found)
    return found


def metadata_files(table: IcebergTable) -> list[str]:
    """List the names of the metadata.json files beside the table's own, and of that."""
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path))
    return sorted(name for name in file_names(folder) if METADATA.fullmatch(name))


def _read(table: IcebergTable, name: str) -> TableMetadata | None:
    """Read an older version; None if it is gone, or not one of this table."""
    try:
        found = read_metadata(table.place.beside(name))
    except FileNotFoundError:
        return None
    except (ModcryptError, OSError) as error:
        check_lasting(error)
        return None
    return found if found.uuid == table.metadata.uuid else None


def _updated(metadata: TableMetadata) -> int | None:
    when = metadata.document.get("last-updated-ms")
    return when if type(when) is int else None


# --- which files may go --------------------------------------------------------------------------


@dataclass(frozen=True)
class DeletionRule:
    """Says of locations whether their files may go, once a new version of a table is there.

    Attributes:
        locations: where files are.
        own: the table's own folder: the one that the current version's `metadata/` is in.
        store: path of the table's key store; None if it is no file.
        needed: paths of what the kept snapshots need.
        kept_statistics: names of the files of statistics that stay, without regard to case.
    """

    locations: Locations
    own: Place
    store: str | None
    needed: frozenset[str]
    kept_statistics: frozenset[str]
    _are_tables: dict[str, bool] = field(default_factory=dict)  # folders that were looked at

    @classmethod
    def of(cls, table: IcebergTable, new: TableMetadata) -> DeletionRule:
        """Find what the kept snapshots need.

        Args:
            table: The current version.
            new: The next one, which has the kept snapshots.

        Raises:
            ModcryptError, OSError: it can't be told.
        """
        walk = table.walk.through(new)
        names = frozenset(posixpath.basename(one).casefold() for one in new.statistics())
        store = getattr(walk.resolver.store, "path", None)
        store = Place(None, store).real().path if isinstance(store, str) else None
        return cls(walk.locations, _own_folder(table), store, _needed_by(walk), names)

    def path(self, location: str) -> str | None:
        """Return one spelling of a location; None if it is outside of the mapped folders."""
        try:
            return self.locations.key(location)
        except FormatError:
            return None

    def frees(self, location: str, *, current: bool) -> bool:
        """Return whether a data or delete file, a manifest or manifest list may go.

        Args:
            location: As a manifest, manifest list or snapshot that opened names it.
            current: Whether the current version leads to it, and not only an older one.
        """
        path = self.path(location)
        return path is not None and self._may_go(path) and (current or self._is_own(path))

    def frees_statistics(self, location: str) -> bool:
        """Return whether a file of statistics may go that a vouched-for version names.

        Raises:
            OSError: it is not there, or can't be read.
        """
        path = self.path(location)
        if path is None or not self._may_go(path) or not self._is_own(path):
            return False
        place = self.locations.place(location)
        if place.name.casefold() in self.kept_statistics or place.is_linked:
            return False
        with place.open() as source:
            return source.read_at(0, min(len(_PUFFIN), source.size)) == _PUFFIN

    def _may_go(self, path: str) -> bool:
        """Return whether a file is not needed, and not of a kind that is never deleted."""
        store = self.store is not None and path.startswith(self.store)  # with SQLite's journals
        if path in self.needed or store or _is_protected(path):
            return False
        return not self._is_of_other_table(path)

    def _is_own(self, path: str) -> bool:
        return path.startswith(posixpath.join(self.own.path, ""))

    def _is_of_other_table(self, path: str) -> bool:
        """Whether a folder between the table's own and a file has a metadata.json in `metadata/`.

        Raises:
            OSError: from the file system.
        """
        folder = posixpath.dirname(path)
        if not self._is_own(folder):
            return False
        if folder not in self._are_tables:
            nested = has_versions(Place(self.own.filesystem, folder))
            self._are_tables[folder] = nested or self._is_of_other_table(folder)
        return self._are_tables[folder]


def _own_folder(table: IcebergTable) -> Place:
    """Return the table's own folder."""
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path) or ".").real()
    if folder.name == "metadata":
        folder = Place(folder.filesystem, posixpath.dirname(folder.path))
    return folder


def _needed_by(walk: Walk) -> frozenset[str]:
    """Find the paths of what snapshots need.

    Raises:
        IntegrityError: the version is another one than its sealed manifests were written for: an
            older one may be the table's, and all that is left of it.
        ModcryptError, OSError: something can't be read.
    """
    reached = take_inventory(Keys(walk, {}), walk.metadata.snapshots, JOBS)
    paths, report = set[str](), TableReport()
    for some in (reached.lists, reached.manifests, reached.files):
        for one in some:
            if one.error is not None:
                raise one.error
            paths.add(one.path)
    for found in reached.lists:
        check_list(found, report)
    for manifest in reached.manifests:
        check_manifest(manifest, walk.metadata, report)
    raise_first(report.findings)
    for location in walk.metadata.statistics():
        with contextlib.suppress(FormatError):  # outside of the folders, where nothing goes
            paths.add(walk.locations.key(location))
    return frozenset(paths)


def _is_protected(path: str) -> bool:
    """Return whether a path is that of a metadata.json or a version hint."""
    name = posixpath.basename(path)
    return METADATA.fullmatch(name) is not None or name == HINT


# --- deleting ------------------------------------------------------------------------------------


def remove_files(files: Iterable[tuple[str, Place]]) -> list[str]:
    """Delete files that the rule frees; return the locations of those that are still there."""

    def remove(file: tuple[str, Place]) -> str | None:
        try:
            file[1].remove()
        except OSError:
            return file[0]
        return None

    return [one for one in in_threads(remove, files, JOBS) if one is not None]


def remove_written(locations: Locations, written: Iterable[str]) -> None:
    """Remove files that this job has written, and that no version names; some may stay.

    Those that stay are orphans, which `verify_table` reports.
    """
    for location in written:
        with contextlib.suppress(OSError):
            place = locations.place(location)
            if not _is_protected(place.path):
                place.remove()
