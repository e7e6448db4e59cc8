"""What lies in a table's folder besides what its snapshots reach: orphans, and older metadata.

Orphans are what interrupted writes and expired snapshots left, or what somebody would like to be
forgotten. Older metadata.json files keep the keys that they had, wrapped as they were then: whoever
has that master key, or that version of it, still opens what those keys seal.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow.fs as pafs

from modcrypt.ags1.layout import MAGIC
from modcrypt.errors import FormatError, ModcryptError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import HINT, log_of
from modcrypt.iceberg.read.inventory import Inventory, in_threads
from modcrypt.iceberg.rotate.deletion_rule import METADATA, vouched_versions
from modcrypt.iceberg.tables.table import IcebergTable, read_metadata
from modcrypt.iceberg.verify.key_checks import listed
from modcrypt.iceberg.verify.table_findings import (
    ORPHAN,
    ORPHANS,
    STATISTICS,
    StrayFile,
    TableReport,
)
from modcrypt.io.storage import Place
from modcrypt.parquet.datasets.discovery import as_arrow

__all__ = ["check_strays"]

DAY = 24 * 60 * 60

SETTLED_DAYS = 3
"""Days after which nobody still writes a file; the default of Iceberg's remove_orphan_files."""

_TEMPORARY = re.compile(r"\.modcrypt-[0-9a-f]{16}\.tmp")

_SEALED = (MAGIC, b"PARE")
_PLAIN = (b"PAR1", b"Obj\x01", b"PFA1", b"ORC", b"PK\x03\x04")
_MAGIC_SIZE = 4


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file of the table's folder; its path is without links in the folders above it."""

    path: str
    size: int
    changed: float | None  # seconds since 1970


def check_strays(
    table: IcebergTable, inventory: Inventory, report: TableReport, jobs: int
) -> tuple[StrayFile, ...] | None:
    """Look at what else is in a table's folder.

    Args:
        table: the version that was verified.
        inventory: everything that all its snapshots reach.
        report: takes the findings.
        jobs: files read at the same time.

    Returns:
        The files that nothing reaches; None where that can't be told.
    """
    _check_statistics(table.metadata, report)
    folder = _folder(table)
    if folder is None:
        report.note(ORPHANS, None, "the table's location is mapped to no folder")
        return None
    try:
        stored = list(_listed(folder))
    except OSError as error:
        report.failed(error, table.metadata.location)
        return None
    older = [one for one in stored if METADATA.fullmatch(posixpath.basename(one.path))]
    _check_older(table, folder, older, report, jobs)
    _check_log(table, report)
    if not inventory.is_whole:
        why = "a manifest list or manifest could not be read, which may name any file"
        report.note(ORPHANS, None, why)
        return None
    reached = _reached(table, inventory)
    base = os.path.realpath(folder.path) if folder.filesystem is None else folder.path
    if any(not one.startswith(base.rstrip("/") + "/") for one in reached):
        why = "some of its files are kept elsewhere, where none were looked for"
        report.note(ORPHANS, None, why)
    strays = [one for one in stored if not _belongs(one.path, reached)]
    now = time.time()
    states = in_threads(lambda one: _state(Place(folder.filesystem, one.path)), strays, jobs)
    found = tuple(_stray(one, state, now) for one, state in zip(strays, states, strict=True))
    _tell(found, report)
    return found


# --- the folder ----------------------------------------------------------------------------------


def _folder(table: IcebergTable) -> Place | None:
    return table.walk.locations.folders.get(table.metadata.location)


def _listed(folder: Place) -> Iterator[_Stored]:
    """List all files below a folder, hidden ones too.

    Raises:
        OSError: a folder can't be listed.
    """
    if folder.filesystem is not None:
        if hasattr(folder.filesystem, "invalidate_cache"):  # fsspec: what it listed may be old
            folder.filesystem.invalidate_cache()
        selector = pafs.FileSelector(folder.path, recursive=True)
        for info in as_arrow(folder.filesystem).get_file_info(selector):
            if info.is_file and not info.path.endswith("/"):
                changed = None if info.mtime_ns is None else info.mtime_ns / 1e9
                yield _Stored(info.path, info.size, changed)
        return
    for base, _, names in os.walk(os.path.realpath(folder.path), onerror=_raised):
        for name in names:
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):  # it was there a moment ago
                status = os.lstat(path)
                yield _Stored(path, status.st_size, status.st_mtime)


def _raised(error: OSError) -> None:
    raise error


def _reached(table: IcebergTable, inventory: Inventory) -> set[str]:
    """Give the paths of all files that belong to the table, without links in folders above them."""
    real = cache(os.path.realpath)

    def path(found: str) -> str:
        return posixpath.join(real(posixpath.dirname(found)), posixpath.basename(found))

    paths: list[str] = [one.path for one in inventory.lists]
    paths += [one.path for one in inventory.manifests]
    paths += [one.path for one in inventory.files]
    for location in table.metadata.statistics():
        with contextlib.suppress(FormatError):
            paths.append(table.walk.locations.key(location))
    local = table.place.filesystem is None
    return {path(one) for one in paths} if local else set(paths)


def _belongs(path: str, reached: set[str]) -> bool:
    """Whether a file is the table's, or what is kept beside such a one."""
    name = posixpath.basename(path)
    if path in reached or METADATA.fullmatch(name) or name == HINT:
        return True
    if name.startswith(".") and name.endswith(".crc"):  # Hadoop's checksums
        return _belongs(posixpath.join(posixpath.dirname(path), name[1:-4]), reached)
    return False


def _stray(one: _Stored, state: str, now: float) -> StrayFile:
    age = None if one.changed is None else round((now - one.changed) / DAY, 2)
    temporary = _TEMPORARY.fullmatch(posixpath.basename(one.path)) is not None
    return StrayFile(path=one.path, size=one.size, age_days=age, state=state, temporary=temporary)


def _state(place: Place) -> str:
    """Tell by its first bytes whether a file is encrypted."""
    try:
        with place.open() as source:
            head = source.read_at(0, min(_MAGIC_SIZE, source.size))
    except (ModcryptError, OSError):
        return "unknown"
    if head in _SEALED:
        return "encrypted"
    return "plaintext" if head.startswith(_PLAIN) else "unknown"


_KINDS = {
    "plain": ("plaintext", "in plaintext lie in the folder of an encrypted table"),
    "left": (ORPHAN, "are left from writes of modcrypt that were interrupted, or go on"),
    "old": (ORPHAN, "in the table's folder are reached by no snapshot"),
    "young": (ORPHAN, f"younger than {SETTLED_DAYS} days are of no snapshot, or not yet"),
}


def _kind(one: StrayFile) -> str:
    if one.state == "plaintext":
        return "plain"
    if one.temporary:
        return "left"
    return "old" if one.age_days is None or one.age_days >= SETTLED_DAYS else "young"


def _tell(strays: tuple[StrayFile, ...], report: TableReport) -> None:
    """Tell of strays by kind; those that somebody may be about to commit apart."""
    by_kind: dict[str, list[StrayFile]] = {kind: [] for kind in _KINDS}
    for one in strays:
        by_kind[_kind(one)].append(one)
    for kind, some in by_kind.items():
        if some:
            word, what = _KINDS[kind]
            size = sum(one.size for one in some)
            names = listed(one.path for one in some)
            message = f"{len(some):,} files ({size:,} bytes) {what}: {names}"
            report.tell(word, message, warning=True)


# --- metadata ------------------------------------------------------------------------------------


def _check_statistics(metadata: TableMetadata, report: TableReport) -> None:
    for location in metadata.statistics():
        report.note(STATISTICS, location, "Iceberg keeps statistics files in plaintext")


def _check_log(table: IcebergTable, report: TableReport) -> None:
    """Say which entries of `metadata-log` name files that are gone."""
    missing = []
    logged = list(table.metadata.named("metadata-log", "metadata-file"))
    for location in logged:
        try:
            with table.walk.place(location).open():
                pass
        except (ModcryptError, OSError):
            missing.append(location)
    # An expiry deletes the version before its own last, when the log has been written.
    if missing and missing != logged[-1:]:
        report.tell(
            "file",
            f"{len(missing):,} of the files that metadata-log names are gone, or can't be read: "
            + listed(missing),
            warning=True,
        )


def _check_older(
    table: IcebergTable, folder: Place, stored: Iterable[_Stored], report: TableReport, jobs: int
) -> None:
    """Look at the other metadata.json files: for newer states, old keys, and for planted ones."""
    own = _without_links(table.place)
    others = [one.path for one in stored if one.path != own]
    now = _wrapped(table.metadata)
    odd: set[str] = set()
    keeping: dict[str, int] = {}
    newer: list[str] = []
    for path, found in in_threads(lambda one: _read(folder, one), others, jobs):
        if not isinstance(found, TableMetadata):
            odd.add(path)
            report.tell("format", f"metadata.json can't be read: {found}", path, warning=True)
        elif found.uuid != table.metadata.uuid:
            odd.add(path)
            report.tell("integrity", f"it is of another table, {found.uuid}", path, warning=True)
        else:
            if found.last_sequence_number > table.metadata.last_sequence_number:
                newer.append(path)
            if old := _wrapped(found) - now:
                keeping[path] = len(old)
    _tell_newer(newer, report)
    _tell_keeping(keeping, report)
    _check_vouched(table, others, {*odd, *newer, *keeping}, report)


def _check_vouched(
    table: IcebergTable, others: Iterable[str], known: set[str], report: TableReport
) -> None:
    """Report the other metadata.json files that no log names, or names otherwise.

    Args:
        table: The version that is verified.
        others: Paths of the other files.
        known: Paths of those that something is reported of already.
        report: Takes the finding.
    """
    vouched, named = set[str](), set[str]()
    try:
        for place, metadata in vouched_versions(table):
            vouched.add(_without_links(place))
            named |= {name for _, name in log_of(metadata)}
    except OSError as error:
        report.failed(error, table.metadata.location)
        return
    found = [
        path
        for path in others
        if path not in vouched and (path not in known or posixpath.basename(path) not in named)
    ]
    if found:
        report.tell(
            "integrity",
            f"{len(found):,} metadata.json files are versions that no log of this one names, or "
            "names with another time: planted, or of a commit that failed, is under way or came "
            f"later; expire_history neither uses nor deletes them: {listed(sorted(found))}",
            warning=True,
        )


def _without_links(place: Place) -> str:
    """Return the path of a file without links in the folders above it."""
    if place.filesystem is not None:
        return place.path
    return posixpath.join(os.path.realpath(posixpath.dirname(place.path)), place.name)


def _read(folder: Place, path: str) -> tuple[str, TableMetadata | Exception]:
    try:
        return path, read_metadata(Place(folder.filesystem, path))
    except (ModcryptError, OSError) as error:
        return path, error


def _wrapped(metadata: TableMetadata) -> set[tuple[str, bytes]]:
    """Give all KEKs of a version, as they are wrapped in it."""
    return {(id_, metadata.keys[id_].encrypted) for id_ in metadata.kek_ids()}


def _tell_newer(newer: list[str], report: TableReport) -> None:
    if newer:
        report.tell(
            "integrity",
            f"{len(newer):,} metadata.json files are of a newer state of the table than the one "
            f"verified, which may have been put back: {listed(sorted(newer))}",
            warning=True,
        )


def _tell_keeping(keeping: dict[str, int], report: TableReport) -> None:
    if keeping:
        report.tell(
            "key",
            f"{len(keeping):,} older metadata.json files keep wrapped KEKs that the table has no "
            "more, or wraps otherwise: who has the master key of then still opens what they seal, "
            "until these files are removed (expire_history removes those that the log names): "
            f"{listed(sorted(keeping))}",
            warning=True,
        )
