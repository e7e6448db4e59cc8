"""Remove orphan files: files in a table's folder that no snapshot reaches.

Interrupted writes leave them behind. Nothing vouches for an orphan, so its kind and age decide. The
writers of an encrypted table leave encrypted files, and anything in the folder of metadata; another
file may belong to a program or a table of another format that uses the same folder. A younger file
may belong to a commit under way. The table is read after its folder was listed, so that the files
of a commit that has ended meanwhile stay. A metadata.json is never removed, nor is anything in a
folder of another table. The marker of a purge is removed only if a catalog has the table: otherwise
it leads to what an interrupted purge left.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.deletion import JOBS, Rule, is_marker, remove_files
from modcrypt.iceberg.read.inventory import Keys, take_inventory
from modcrypt.iceberg.rotate.deletion_rule import DeletionRule
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.orphan_files import DAY, SETTLED_DAYS, check_orphans, list_stored
from modcrypt.iceberg.verify.table_findings import StrayFile
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.iceberg.write.commit import latest
from modcrypt.io.places import Place
from modcrypt.report.json_fields import json_fields


@dataclass(frozen=True, kw_only=True)
class RemovedOrphans:
    """The result of `remove_orphan_files`: what was removed, or in a dry run would be.

    Attributes:
        dry_run: Whether it was a dry run, which changes nothing.
        files: The orphan files, sorted by path.
        young: Number of orphan files that are younger than the minimum age, or of unknown age.
        kept: Paths of older orphan files that the rule for deletions protects.
        rules: Name of the rule that keeps each of these files, by path.
        left: Locations of files that could not be removed.
    """

    dry_run: bool = False
    files: tuple[StrayFile, ...] = ()
    young: int = 0
    kept: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.size for file in self.files)

    def fields(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        return {**json_fields(self), "size": self.size}


def remove_orphan_files(
    table: IcebergTable,
    *,
    older_than_days: float = SETTLED_DAYS,
    foreign: bool = False,
    dry_run: bool = False,
) -> RemovedOrphans:
    """Remove files in the table's folder that no snapshot of its current version reaches.

    Older metadata.json files may lead to such files; `expire_history` removes both. Do not choose
    an age that is less than the longest commit takes: its files look like orphans until it ends.

    Args:
        table: Any version of the table; files that the current version needs are kept.
        older_than_days: Minimum age of a file, by its time of modification.
        foreign: Whether to remove files that the table's writers would not have written, too:
            outside of the folder of metadata, those in plaintext or of an unknown kind. Another
            program may use the folder; look at a dry run first.
        dry_run: Whether to remove nothing and only return what would be removed.

    Raises:
        ValueError: The age is negative; or the table's gc.enabled is not true, which means that
            other tables may need files in its folder.
        FormatError: The table's folder cannot be listed, is not mapped, or has a metadata.json of
            another table, whose files would look like orphans.
        IntegrityError: The folder has an old metadata.json with a newer state of the table, whose
            files would look like orphans.
        ModcryptError, OSError: The files that the table needs cannot be determined; nothing was
            removed.
    """
    if older_than_days < 0:
        raise ValueError("older_than_days must not be negative")
    before = latest(table)
    listed = _list_stored(before)
    current = latest(before)  # names what was committed since the listing
    _check_same_folder(before, current)
    rule = DeletionRule.of(current, current.metadata)
    orphans = _find_orphans(current, listed, older_than_days)
    old = [
        file for file in orphans if file.age_days is not None and file.age_days >= older_than_days
    ]
    is_in_catalog = isinstance(current.versions, CatalogVersions)
    kept = dict[str, str]()
    freed = dict[str, StrayFile]()
    stored = {file.path: file for file in orphans}
    for file in old:
        location = _location(current, file)
        keeping = Rule.OUTSIDE if location is None else rule.keeps(location, current=False)
        if keeping is None and is_marker(file.path) and not is_in_catalog:
            keeping = Rule.PURGE
        if keeping is None and not (foreign or _is_of_writers(current, file, stored)):
            keeping = Rule.FOREIGN
        if keeping is not None:
            kept[file.path] = keeping
        elif location is not None:
            freed[location] = file
    result = RemovedOrphans(
        dry_run=dry_run, files=tuple(freed.values()), young=len(orphans) - len(old),
        kept=tuple(kept), rules=kept,
    )  # fmt: skip
    if dry_run:
        return result
    left = remove_files((location, current.walk.place(location)) for location in freed)
    return replace(result, left=tuple(left))


def _is_of_writers(table: IcebergTable, file: StrayFile, stored: Mapping[str, StrayFile]) -> bool:
    """Return whether a file is such as the table's writers leave behind.

    `stored` has the orphan files by path: a checksum goes with its file.
    """
    kinds = {"encrypted"} if table.metadata.is_encrypted else {"encrypted", "plaintext"}
    own = posixpath.join(posixpath.dirname(table.place.resolve().path), "")
    folder, name = posixpath.split(file.path)
    if name.startswith(".") and name.endswith(".crc"):
        checked = stored.get(posixpath.join(folder, name[1:-4]))
        return checked is None or _is_of_writers(table, checked, stored)
    return file.temporary or file.state in kinds or file.path.startswith(own)


def _list_stored(table: IcebergTable) -> list[StrayFile]:
    """List the files in the table's folder; raise FormatError if that is impossible."""
    folder, name = table.walk.locations.folders.get(table.metadata.location), table.metadata.name
    if folder is None:
        raise FormatError(
            f"{name}: the table's folder cannot be listed: its location is not mapped"
        )
    try:
        return list_stored(folder)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise FormatError(f"{name}: the table's folder cannot be listed: {why}") from error


def _check_same_folder(before: IcebergTable, current: IcebergTable) -> None:
    if before.metadata.location != current.metadata.location:
        raise FormatError(
            f"{current.metadata.name}: another process has changed the table's location; repeat "
            "the removal"
        )


def _find_orphans(
    table: IcebergTable, stored: Sequence[StrayFile], older_than_days: float
) -> list[StrayFile]:
    keys, report = Keys(table.walk, {}), TableReport()
    inventory = take_inventory(keys, table.metadata.snapshots, JOBS)
    for reached in inventory.tables:
        if reached.error is not None:
            raise reached.error
    orphans = check_orphans(table, inventory, report, JOBS, stored)
    assert orphans is not None  # the folder is mapped and was listed
    _check_unshared(table, report)
    _check_newest(table, report, older_than_days)
    return sorted(orphans, key=lambda orphan: orphan.path)


def _check_unshared(table: IcebergTable, report: TableReport) -> None:
    """Raise FormatError if another table has its metadata.json beside this table's."""
    own = posixpath.dirname(table.place.resolve().path)
    for path, uuid in report.other_tables.items():
        if posixpath.dirname(path) == own:
            raise FormatError(
                f"{path}: belongs to another table, {uuid}, whose files would look like orphans: "
                "if that table no longer exists, remove this file; otherwise move one of the tables"
            )


def _check_newest(table: IcebergTable, report: TableReport, older_than_days: float) -> None:
    """Raise IntegrityError if an old metadata.json has a newer state of the table."""
    # A catalog whose database was restored from a backup names an older version: what was committed
    # since would be removed. A young metadata.json may belong to a commit under way.
    latest_change = time.time() - older_than_days * DAY
    for path in sorted(report.newer_versions):
        changed = Place(table.place.filesystem, path).modified()
        if changed is None or changed <= latest_change:
            raise IntegrityError(
                f"{path}: has a newer state of the table than the current version, whose files "
                "would look like orphans: have the catalog name it if the catalog was rolled back, "
                "or remove this file if it is from a commit that failed"
            )


def _location(table: IcebergTable, file: StrayFile) -> str | None:
    """Return the location of a file; None if the location map has no location for it."""
    locations = table.walk.locations
    location = locations.location(Place(table.place.filesystem, file.path))
    stands = location is not None and locations.key(location) == file.path
    return location if stands else None  # a longer prefix may lead to another folder
