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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pyarrow.fs as pafs

from modcrypt.ags1.layout import MAGIC
from modcrypt.errors import FormatError, ModcryptError, list_names
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import HINT, METADATA, log_of, read_metadata
from modcrypt.iceberg.read.inventory import Inventory
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.tables.vouched_versions import vouched_versions
from modcrypt.iceberg.verify.table_findings import (
    ORPHAN,
    ORPHANS,
    STATISTICS,
    StrayFile,
    TableReport,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import in_threads
from modcrypt.parquet.datasets.discovery import as_arrow

DAY = 24 * 60 * 60

SETTLED_DAYS = 3
"""Days after which a file is no longer being written; default of remove_orphan_files."""

_TEMPORARY = re.compile(r"\.modcrypt-[0-9a-f]{16}\.tmp")

_SEALED = (MAGIC, b"PARE")
_PLAIN = (b"PAR1", b"Obj\x01", b"PFA1", b"ORC", b"PK\x03\x04")
_MAGIC_SIZE = 4


def check_orphans(
    table: IcebergTable, inventory: Inventory, report: TableReport, jobs: int
) -> tuple[StrayFile, ...] | None:
    """Find and report orphan files and older metadata.json files in a table's folder.

    Args:
        table: The verified version.
        inventory: All files that its snapshots reach.
        report: Report that gets the findings.
        jobs: Number of files read concurrently.

    Returns:
        The orphan files; None if they cannot be determined.
    """
    _check_statistics(table.metadata, report)
    folder = _folder(table)
    if folder is None:
        report.add_note(ORPHANS, None, "the table's location is mapped to no folder")
        return None
    try:
        stored = list(_list_files(folder))
    except OSError as error:
        report.add_failure(error, table.metadata.location)
        return None
    older = [file for file in stored if METADATA.fullmatch(posixpath.basename(file.path))]
    _check_older(table, folder, older, report, jobs)
    _check_log(table, report)
    if not inventory.is_whole:
        why = "a manifest list or manifest could not be read, and it may name any file"
        report.add_note(ORPHANS, None, why)
        return None
    reached = _reached_paths(table, inventory)
    base = os.path.realpath(folder.path) if folder.filesystem is None else folder.path
    if any(not path.startswith(base.rstrip("/") + "/") for path in reached):
        why = "some files are in other folders, which were not searched"
        report.add_note(ORPHANS, None, why)
    strays = [file for file in stored if not _belongs(file.path, reached)]
    orphans = tuple(in_threads(lambda file: _judge(folder, file), strays, jobs))
    _report_orphans(orphans, report)
    return orphans


# --- the folder ----------------------------------------------------------------------------------


def _folder(table: IcebergTable) -> Place | None:
    return table.walk.locations.folders.get(table.metadata.location)


def _list_files(folder: Place) -> Iterator[StrayFile]:
    """Yield all files below a folder, including hidden ones.

    Raises:
        OSError: A folder cannot be listed.
    """
    if folder.filesystem is not None:
        if hasattr(folder.filesystem, "invalidate_cache"):  # fsspec caches listings
            folder.filesystem.invalidate_cache()
        selector = pafs.FileSelector(folder.path, recursive=True)
        for info in as_arrow(folder.filesystem).get_file_info(selector):
            if info.is_file and not info.path.endswith("/"):
                changed = None if info.mtime_ns is None else info.mtime_ns / 1e9
                yield _stray(info.path, info.size, changed)
        return
    for base, _, names in os.walk(os.path.realpath(folder.path), onerror=_raise):
        for name in names:
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):  # it was deleted after the listing
                status = os.lstat(path)
                yield _stray(path, status.st_size, status.st_mtime)


def _raise(error: OSError) -> None:
    raise error


def _reached_paths(table: IcebergTable, inventory: Inventory) -> set[str]:
    """Return the paths of all files of the table, with links in their folders resolved."""
    real = cache(os.path.realpath)

    def resolve(path: str) -> str:
        return posixpath.join(real(posixpath.dirname(path)), posixpath.basename(path))

    paths = [reached.path for reached in inventory.every]
    for location in table.metadata.statistics():
        with contextlib.suppress(FormatError):
            paths.append(table.walk.locations.key(location))
    local = table.place.filesystem is None
    return {resolve(path) for path in paths} if local else set(paths)


def _belongs(path: str, reached: set[str]) -> bool:
    """Return whether a file belongs to the table, or is a companion such as a checksum."""
    name = posixpath.basename(path)
    if path in reached or METADATA.fullmatch(name) or name == HINT:
        return True
    if name.startswith(".") and name.endswith(".crc"):  # Hadoop's checksums
        return _belongs(posixpath.join(posixpath.dirname(path), name[1:-4]), reached)
    return False


def _stray(path: str, size: int, changed: float | None) -> StrayFile:
    """Return a file that may be an orphan; symbolic links in its path are resolved."""
    age = None if changed is None else round((time.time() - changed) / DAY, 2)
    temporary = _TEMPORARY.fullmatch(posixpath.basename(path)) is not None
    return StrayFile(path=path, size=size, age_days=age, state="unknown", temporary=temporary)


def _judge(folder: Place, file: StrayFile) -> StrayFile:
    """Return a file with its state: whether it is encrypted, judged by its first bytes."""
    try:
        with open_source_at(Place(folder.filesystem, file.path)) as source:
            head = source.read_at(0, min(_MAGIC_SIZE, source.size))
    except (ModcryptError, OSError):
        return file
    if head in _SEALED:
        return replace(file, state="encrypted")
    return replace(file, state="plaintext") if head.startswith(_PLAIN) else file


_KINDS = {
    "plain": ("plaintext", "in plaintext are in the folder of an encrypted table"),
    "left": (ORPHAN, "are temporary files of interrupted or running modcrypt writes"),
    "old": (ORPHAN, "in the table's folder are not reached by any snapshot"),
    "young": (ORPHAN, f"younger than {SETTLED_DAYS} days belong to no snapshot, or not yet"),
}


def _kind(orphan: StrayFile) -> str:
    if orphan.state == "plaintext":
        return "plain"
    if orphan.temporary:
        return "left"
    return "old" if orphan.age_days is None or orphan.age_days >= SETTLED_DAYS else "young"


def _report_orphans(strays: tuple[StrayFile, ...], report: TableReport) -> None:
    """Report orphans by kind; recent files, which may soon be committed, separately."""
    by_kind: dict[str, list[StrayFile]] = {kind: [] for kind in _KINDS}
    for stray in strays:
        by_kind[_kind(stray)].append(stray)
    for kind, group in by_kind.items():
        word, what = _KINDS[kind]
        size = sum(file.size for file in group)
        _warn(report, word, [file.path for file in group], f"files ({size:,} bytes) {what}")


def _warn(report: TableReport, word: str, paths: Sequence[str], what: str) -> None:
    """Report how many files there are of some sort, unless none, and the names of the first."""
    if paths:
        report.tell(word, f"{len(paths):,} {what}: {list_names(paths)}", warning=True)


# --- metadata ------------------------------------------------------------------------------------


def _check_statistics(metadata: TableMetadata, report: TableReport) -> None:
    for location in metadata.statistics():
        report.add_note(STATISTICS, location, "Iceberg does not encrypt statistics files")


def _check_log(table: IcebergTable, report: TableReport) -> None:
    """Report entries of `metadata-log` whose files are missing."""
    missing = []
    logged = list(table.metadata.texts_of("metadata-log", "metadata-file"))
    for location in logged:
        try:
            with open_source_at(table.walk.place(location)):
                pass
        except (ModcryptError, OSError):
            missing.append(location)
    # The last entry may be missing: an expiry deletes its predecessor after writing the log.
    if missing != logged[-1:]:
        what = "of the files that metadata-log names are missing or cannot be read"
        _warn(report, "file", missing, what)


def _check_older(
    table: IcebergTable, folder: Place, stored: Iterable[StrayFile], report: TableReport, jobs: int
) -> None:
    """Check the other metadata.json files for newer states, old keys and planted files."""
    own = _without_links(table.place)
    others = [file.path for file in stored if file.path != own]
    now = _wrapped_keks(table.metadata)
    odd: set[str] = set()
    keeping, newer = set[str](), set[str]()
    for path, metadata in in_threads(lambda other: _read(folder, other), others, jobs):
        if not isinstance(metadata, TableMetadata):
            odd.add(path)
            report.tell("format", f"metadata.json cannot be read: {metadata}", path, warning=True)
        elif metadata.uuid != table.metadata.uuid:
            odd.add(path)
            report.tell(
                "integrity", f"it belongs to another table, {metadata.uuid}", path, warning=True
            )
        else:
            if metadata.last_sequence_number > table.metadata.last_sequence_number:
                newer.add(path)
            if _wrapped_keks(metadata) - now:
                keeping.add(path)
    _warn(
        report, "integrity", sorted(newer), "metadata.json files have a newer state of the table "
        "than the verified one, which may be a replaced old state",
    )  # fmt: skip
    _warn(
        report, "key", sorted(keeping), "older metadata.json files contain KEKs that the table has "
        "dropped or wrapped again: anyone who has the old master key can use these KEKs until the "
        "files are removed (expire_history removes those that the log names)",
    )  # fmt: skip
    _check_vouched(table, others, {*odd, *newer, *keeping}, report)


def _check_vouched(
    table: IcebergTable, others: Iterable[str], known: set[str], report: TableReport
) -> None:
    """Report other metadata.json files that no log names, or that have another time than the log.

    Args:
        table: The verified version.
        others: Paths of the other files.
        known: Paths of files that are already reported.
        report: Report that gets the finding.
    """
    vouched, named = set[str](), set[str]()
    try:
        for place, metadata in vouched_versions(table):
            vouched.add(_without_links(place))
            named |= {name for _, name in log_of(metadata)}
    except OSError as error:
        report.add_failure(error, table.metadata.location)
        return
    unvouched = [
        path
        for path in others
        if path not in vouched and (path not in known or posixpath.basename(path) not in named)
    ]
    _warn(
        report, "integrity", sorted(unvouched), "metadata.json files are not in the log of this "
        "version, or have another time there: planted, or from a failed, running or later commit; "
        "expire_history neither uses nor deletes them",
    )  # fmt: skip


def _without_links(place: Place) -> str:
    """Return the path of a file with links in its folders resolved."""
    if place.filesystem is not None:
        return place.path
    return posixpath.join(os.path.realpath(posixpath.dirname(place.path)), place.name)


def _read(folder: Place, path: str) -> tuple[str, TableMetadata | Exception]:
    try:
        return path, read_metadata(Place(folder.filesystem, path))
    except (ModcryptError, OSError) as error:
        return path, error


def _wrapped_keks(metadata: TableMetadata) -> set[tuple[str, bytes]]:
    """Return the ids and wrapped keys of all KEKs of a version."""
    return {(id_, metadata.keys[id_].encrypted) for id_ in metadata.kek_ids()}
