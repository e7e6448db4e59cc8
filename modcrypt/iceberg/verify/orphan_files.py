"""Find orphan files and older metadata.json files in a table's folder.

Orphans are left by interrupted writes and expired snapshots, or are files that were removed from
the table to hide them. Older metadata.json files contain KEKs as they were wrapped then: anyone who
has the master key of that time, or that version of it, can still use these keys.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow.fs as pafs

from modcrypt.ags1.layout import MAGIC
from modcrypt.errors import ModcryptError, list_names
from modcrypt.iceberg.format.deletion import METADATA, is_marker, is_protected
from modcrypt.iceberg.format.repeated_json import RepeatedLists
from modcrypt.iceberg.format.table_metadata import TableMetadata, history_lists
from modcrypt.iceberg.format.table_versions import read_metadata, version_number
from modcrypt.iceberg.read.inventory import Inventory
from modcrypt.iceberg.read.table_version import vouched_versions
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.table_findings import ORPHAN, ORPHANS, STATISTICS, UNREACHED, StrayFile
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads
from modcrypt.parquet.datasets.discovery import as_arrow

DAY = 24 * 60 * 60

SETTLED_DAYS = 3
"""Days after which a file is no longer being written; default of remove_orphan_files."""

_TEMPORARY = re.compile(r"\.modcrypt-[0-9a-f]{16}\.tmp")

_ENCRYPTED = (MAGIC, b"PARE")
_PLAIN = (b"PAR1", b"Obj\x01", b"PFA1", b"ORC", b"PK\x03\x04")
_MAGIC_SIZE = 4


def check_orphans(
    table: IcebergTable, inventory: Inventory, report: TableReport, jobs: int,
    stored: Sequence[StrayFile] | None = None,
) -> tuple[StrayFile, ...] | None:  # fmt: skip
    """Find and report orphan files and older metadata.json files in a table's folder.

    The inventory must have all files that the snapshots of `table`, the verified version, reach.
    `stored` has the files of the folder from an earlier listing; by default they are listed now.
    Return the orphan files; None if they cannot be determined.
    """
    for location in table.metadata.statistics():
        report.add_note(STATISTICS, location, "Iceberg does not encrypt statistics files")
    if (folder := table.walk.locations.folders.get(table.metadata.location)) is None:
        report.add_note(ORPHANS, None, "the table's location is mapped to no folder")
        return None
    try:
        stored = list_stored(folder) if stored is None else stored
    except OSError as error:
        report.add_failure(error, table.metadata.location)
        return None
    return _FolderCheck(table, folder, stored, report, jobs).find_orphans(inventory)


def list_stored(folder: Place) -> list[StrayFile]:
    """Return all files below a folder, including hidden ones; raise if it cannot be listed."""
    found: list[StrayFile] = []
    if folder.filesystem is not None:
        selector = pafs.FileSelector(folder.path, recursive=True)
        for info in as_arrow(folder.filesystem).get_file_info(selector):
            if info.is_file and not info.path.endswith("/"):
                changed = None if info.mtime_ns is None else info.mtime_ns / 1e9
                found.append(_stray(info.path, info.size, changed))
        return found
    for base, _, names in os.walk(os.path.realpath(folder.path), onerror=_raise):
        for name in names:
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):  # it was deleted after the listing
                status = os.lstat(path)
                found.append(_stray(path, status.st_size, status.st_mtime))
    return found


def _raise(error: OSError) -> None:
    raise error


def _belongs(path: str, reached: set[str]) -> bool:
    """Return whether a file belongs to the table, or is a companion such as a checksum."""
    name = posixpath.basename(path)
    if path in reached or is_protected(path):
        return True
    if name.startswith(".") and name.endswith(".crc"):  # Hadoop's checksums
        return _belongs(posixpath.join(posixpath.dirname(path), name[1:-4]), reached)
    return False


def _stray(path: str, size: int, changed: float | None) -> StrayFile:
    """Return a file that may be an orphan; symbolic links in its path are resolved."""
    age = None if changed is None else round((time.time() - changed) / DAY, 2)
    temporary = _TEMPORARY.fullmatch(posixpath.basename(path)) is not None
    return StrayFile(path=path, size=size, age_days=age, state="unknown", temporary=temporary)


def judge_strays(
    folder: Place, stored: Sequence[StrayFile], reached: set[str]
) -> Iterator[StrayFile]:
    """Yield the files of a folder that a table does not reach, with their states."""
    for file in stored:
        if not _belongs(file.path, reached):
            yield _judge(folder, file)


def _judge(folder: Place, file: StrayFile) -> StrayFile:
    """Return a file with its state: whether it is encrypted, judged by its first bytes."""
    try:
        with open_source_at(Place(folder.filesystem, file.path)) as source:
            head = source.read_at(0, min(_MAGIC_SIZE, source.size))
    except (ModcryptError, OSError):
        return file
    if head in _ENCRYPTED:
        return replace(file, state="encrypted")
    return replace(file, state="plaintext") if head.startswith(_PLAIN) else file


_KINDS = {
    "plain": ("plaintext", "in plaintext are in the folder of an encrypted table"),
    "left": (ORPHAN, "are temporary files of interrupted or running modcrypt writes"),
    "old": (UNREACHED, "in the table's folder are not reached by any snapshot"),
    "young": (ORPHAN, f"younger than {SETTLED_DAYS} days belong to no snapshot, or not yet"),
    "marker": (
        ORPHAN,
        "are markers of interrupted purges: purge the table again, or remove them with "
        "remove_orphan_files if it is to stay",
    ),
}


def _kind(orphan: StrayFile) -> str:
    if is_marker(orphan.path):
        return "marker"
    if orphan.state == "plaintext":
        return "plain"
    if orphan.temporary:
        return "left"
    return "old" if orphan.age_days is None or orphan.age_days >= SETTLED_DAYS else "young"


@dataclass
class _FolderCheck:
    table: IcebergTable
    folder: Place
    stored: Sequence[StrayFile]
    report: TableReport
    jobs: int
    # What logs say of the versions that were read, by path: reading each again takes long.
    known: dict[str, TableMetadata] = field(default_factory=dict)
    lists: RepeatedLists = field(default_factory=history_lists)
    real: Callable[[str], str] = field(default_factory=lambda: cache(os.path.realpath))

    def find_orphans(self, inventory: Inventory) -> tuple[StrayFile, ...] | None:
        """Report findings; return the orphan files, or None if they cannot be determined."""
        self._check_older()
        self._check_log()
        if not inventory.is_whole:
            why = "a manifest list or manifest could not be read, and it may name any file"
            self.report.add_note(ORPHANS, None, why)
            return None
        folder, reached = self.folder, set(map(self._without_links, inventory.paths()))
        base = os.path.realpath(folder.path) if folder.filesystem is None else folder.path
        if any(not path.startswith(base.rstrip("/") + "/") for path in reached):
            why = "some files are in other folders, which were not searched"
            self.report.add_note(ORPHANS, None, why)
        strays = [file for file in self.stored if not _belongs(file.path, reached)]
        if strays and folder.filesystem is None:  # the target of a link is read by its name
            reached = {os.path.realpath(path) for path in reached if os.path.islink(path)}
            strays = [file for file in strays if file.path not in reached]
        orphans = tuple(in_threads(lambda file: _judge(folder, file), strays, self.jobs))
        self._report_orphans(orphans)
        return orphans

    def _report_orphans(self, strays: Iterable[StrayFile]) -> None:
        """Report orphans by kind; recent files, which may soon be committed, separately."""
        by_kind: dict[str, list[StrayFile]] = {kind: [] for kind in _KINDS}
        for stray in strays:
            by_kind[_kind(stray)].append(stray)
        for kind, group in by_kind.items():
            word, what = _KINDS[kind]
            size = sum(file.size for file in group)
            leaks = kind == "plain" and self.table.walk.encrypted
            self._warn(
                word, [file.path for file in group], f"files ({size:,} bytes) {what}",
                warning=not leaks,
            )  # fmt: skip

    def _warn(self, word: str, paths: Sequence[str], what: str, *, warning: bool = True) -> None:
        """Report how many files there are of some sort, unless none, and the names of the first."""
        if paths:
            message = f"{len(paths):,} {what}: {list_names(paths)}"
            self.report.note(word, message, warning=warning)

    def _without_links(self, path: str) -> str:
        """Return the path of a file of the table with links in its folders resolved."""
        if self.table.place.filesystem is not None:
            return path
        return posixpath.join(self.real(posixpath.dirname(path)), posixpath.basename(path))

    def _check_log(self) -> None:
        missing = []
        logged = list(self.table.metadata.texts_of("metadata-log", "metadata-file"))
        for location in logged:
            try:
                with open_source_at(self.table.walk.place(location)):
                    pass
            except (ModcryptError, OSError):
                missing.append(location)
        # The last entry may be missing: an expiry deletes its predecessor after writing the log.
        if missing != logged[-1:]:
            what = "of the files that metadata-log names are missing or cannot be read"
            self._warn("file", missing, what)

    def _check_older(self) -> None:
        """Check the other metadata.json files for newer states, old keys and planted files."""
        verified, own = self.table.metadata, self._without_links(self.table.place.path)
        there = [file.path for file in self.stored if file.path != own]
        others = [path for path in there if METADATA.fullmatch(posixpath.basename(path))]
        # From the newest to the oldest: versions that follow each other are parsed faster.
        others.sort(key=lambda path: (-(version_number(posixpath.basename(path)) or 0), path))
        now = _wrapped_keks(verified)
        odd, keeping, newer = set[str](), set[str](), self.report.newer_versions
        for path, metadata in in_threads(self._read, others, self.jobs):
            if not isinstance(metadata, TableMetadata):
                odd.add(path)
                message = f"metadata.json cannot be read: {metadata}"
                self.report.note("format", message, path, warning=True)
            elif metadata.uuid != verified.uuid:
                odd.add(path)
                self.report.other_tables[path] = metadata.uuid
                message = f"it belongs to another table, {metadata.uuid}"
                self.report.note("integrity", message, path, warning=True)
            else:
                self.known[path] = metadata.without_history()
                if metadata.last_sequence_number > verified.last_sequence_number:
                    newer.add(path)
                if _wrapped_keks(metadata) - now:
                    keeping.add(path)
        self._warn(
            "integrity", sorted(newer), "metadata.json files have a newer state of the table than "
            "the verified one, which may be a replaced old state",
        )  # fmt: skip
        self._warn(
            "key", sorted(keeping), "older metadata.json files contain KEKs that the table has "
            "dropped or wrapped again: anyone who has the old master key can use these KEKs until "
            "the files are removed (expire_history removes those that the log names)",
        )  # fmt: skip
        self._check_vouched(others, known={*odd, *newer, *keeping})

    def _read(self, path: str) -> tuple[str, TableMetadata | Exception]:
        try:
            return path, read_metadata(Place(self.folder.filesystem, path), lists=self.lists)
        except (ModcryptError, OSError) as error:
            return path, error

    def _read_known(self, place: Place) -> TableMetadata:
        return self.known.get(self._without_links(place.path)) or read_metadata(
            place, lists=self.lists
        )

    def _check_vouched(self, others: Iterable[str], known: set[str]) -> None:
        """Report other files that no log names, or with another time; known ones may be named."""
        vouched, named = set[str](), set[str]()
        try:
            for place, metadata in vouched_versions(self.table, self._read_known):
                vouched.add(self._without_links(place.path))
                named |= {name for _, name in metadata.log}
        except OSError as error:
            self.report.add_failure(error, self.table.metadata.location)
            return
        unvouched = [
            path
            for path in others
            if path not in vouched and (path not in known or posixpath.basename(path) not in named)
        ]
        self._warn(
            "integrity", sorted(unvouched), "metadata.json files are not in the log of this "
            "version, or have another time there: planted, or from a failed, running or later "
            "commit; expire_history neither uses nor deletes them",
        )  # fmt: skip


def _wrapped_keks(metadata: TableMetadata) -> set[tuple[str, bytes]]:
    return {(id_, metadata.keys[id_].encrypted) for id_ in metadata.kek_ids()}
