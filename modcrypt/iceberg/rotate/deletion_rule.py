"""The rule that decides which files of a table may be deleted; all deletions apply it.

A metadata.json is not signed, and anyone who can write to the table's folder can add one. So a
file is deleted only if all of these conditions hold:

1. A vouched-for version names it: the current one, or an older one that the log of a vouched-for
   version names. The older version is in the same folder as the current one, has a lower number,
   belongs to the same table at the same location, and has the time in the log. Any other
   metadata.json is kept, and what it names is ignored.
2. A data or delete file, manifest or manifest list is named by a manifest, manifest list or
   snapshot that was decrypted with the table's keys (or is in plaintext, where the caller of
   `open_table` accepts that). If only an older version leads to the file, it is in the table's own
   folder. No file is in another table's folder: tables under the same master key can decrypt each
   other's files.
3. A file of statistics is in the table's own folder, starts with the Puffin magic, and has another
   name than the statistics files that are kept.
4. A metadata.json is deleted only as an older version, see 1, only if all its manifest lists are in
   folders that locations are mapped to, and only if the next version has the KEKs of all files that
   kept snapshots need. A version hint and the table's key store are never deleted.
5. No kept snapshot needs it, under any spelling of its location; and the manifests of the kept
   snapshots match the current version, for which they were written.
6. It is in a folder that locations are mapped to, and no symbolic link below that folder leads to
   it.
7. No snapshot is dropped that is newer than all kept ones, and none if the newest kept one is
   outside of the table's own folder, unless the caller names that one: a metadata.json can claim
   that the table was rolled back, is empty, or has the snapshots of another table.

A job may also remove files that it has just written under its own names, subject to 6: files with
`NewFiles`, and a metadata.json of a failed commit through the object for the table's
versions. Nothing is deleted from a table whose property `gc.enabled` is not true, see `check_gc`.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.deletion import JOBS, Rule, check_gc, is_protected
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import has_versions
from modcrypt.iceberg.keys.key_resolver import ENCRYPTED
from modcrypt.iceberg.read.inventory import (
    Inventory,
    Keys,
    ReachedList,
    ReachedTable,
    known_encrypting_key,
    read_manifests,
)
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.rotate.retention import is_staged
from modcrypt.iceberg.verify.manifest_checks import check_table
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.io.folders import symbolic_link_error
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.parquet.format.findings import raise_first

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion

_PUFFIN = b"PFA1"

_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True)
class DeletionRule:
    """A rule that decides which files may be deleted once a new version of a table is committed."""

    locations: Locations
    own: Place  # the table's own folder, which contains the current version's `metadata/`
    store: str | None  # path of the table's key store; None if it is not a file
    needed: Set[str]  # paths of the files that the kept snapshots need
    kept_statistics: frozenset[str]  # case-folded names of the statistics files to keep
    _are_tables: dict[tuple[int, str], bool] = field(default_factory=dict)  # known folders
    # Whether locations are the table's own; each older version asks for the same one.
    _owned: dict[str, bool] = field(default_factory=dict, repr=False)
    # Paths by location: each older version names nearly all manifest lists again.
    _paths: dict[str, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, table: TableVersion, new: TableMetadata) -> DeletionRule:
        """Return the rule for a commit of `new`, whose snapshots need the files that must stay.

        Raise ValueError as `check_gc`, and ModcryptError or OSError if the needed files cannot be
        determined.
        """
        check_gc(new)
        walk = table.walk.through(new)
        names = frozenset(posixpath.basename(file).casefold() for file in new.statistics())
        store = getattr(walk.resolver.store, "path", None)
        store = Place(None, store).resolve().path if isinstance(store, str) else None
        return cls(walk.locations, _own_folder(table), store, _find_needed(walk), names)

    def path(self, location: str) -> str | None:
        """Return the normalised path of a location; None outside of the mapped folders."""
        if location not in self._paths:
            self._paths[location] = None
            with contextlib.suppress(FormatError):
                self._paths[location] = self.locations.key(location)
        return self._paths[location]

    def keeps(self, location: str, *, current: bool) -> Rule | None:
        """Return the rule that keeps a data or delete file, a manifest or manifest list, or None.

        The location must come from a decrypted manifest, manifest list or snapshot. `current` is
        true if the current version leads to the file, not only an older one.
        """
        path = self.path(location)
        if path is None or not (current or self._is_own(path)):
            return Rule.OUTSIDE
        return self._keeps(location, path)

    def keeps_statistics(self, location: str) -> Rule | None:
        """Return the rule that keeps a statistics file that a vouched-for version names, or None.

        Raise OSError if the file does not exist or cannot be read.
        """
        if (path := self.path(location)) is None or not self._is_own(path):
            return Rule.OUTSIDE
        if (rule := self._keeps(location, path)) is not None:
            return rule
        place = self.locations.place(location)
        if place.name.casefold() in self.kept_statistics:
            return Rule.NEEDED
        if place.is_linked:
            return Rule.LINKED
        with open_source_at(place) as source:
            is_puffin = source.read_at(0, min(len(_PUFFIN), source.size)) == _PUFFIN
        return None if is_puffin else Rule.FOREIGN

    def owns(self, location: str) -> bool:
        """Return whether a location is in the table's own folder, and not in another table's.

        Raise OSError if a symbolic link leads to the location, or the file system failed.
        """
        if location not in self._owned:
            self._owned[location] = self._find_owned(location)
        return self._owned[location]

    def _find_owned(self, location: str) -> bool:
        if (path := self.path(location)) is None:
            return False
        place = self.locations.place(location)
        if place.is_linked:
            raise symbolic_link_error(place.path, place.root)
        return self._is_own(path) and not self._is_of_other_table(place)

    def _keeps(self, location: str, path: str) -> Rule | None:
        """Return the rule that keeps a file that is needed or of a kind that may not be deleted."""
        if path in self.needed:
            return Rule.NEEDED
        store = self.store is not None and path.startswith(self.store)  # with SQLite's journals
        if store or is_protected(path):
            return Rule.PROTECTED
        is_foreign = self._is_of_other_table(self.locations.place(location))
        return Rule.OTHER_TABLE if is_foreign else None

    def _is_own(self, path: str) -> bool:
        return path.startswith(posixpath.join(self.own.path, ""))

    def _is_of_other_table(self, place: Place) -> bool:
        """Return whether a folder above a file has a metadata.json in `metadata/`."""
        # The search ends at the table's own folder, which may have one, or at the mapped folder.
        folder = replace(place, path=posixpath.dirname(place.path))
        is_above = len(folder.path) < len(place.root or "") or folder.path == place.path
        if is_above or folder == self.own:
            return False
        key = id(folder.filesystem), folder.path
        if key not in self._are_tables:
            nested = has_versions(folder)
            self._are_tables[key] = nested or self._is_of_other_table(folder)
        return self._are_tables[key]


def _own_folder(table: TableVersion) -> Place:
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path) or ".").resolve()
    if folder.name == "metadata":
        folder = Place(folder.filesystem, posixpath.dirname(folder.path))
    return folder


def _find_needed(walk: Walk) -> Set[str]:
    """Find the paths of the files that snapshots need.

    Raises:
        IntegrityError: The encrypted manifests were written for another version: the metadata.json
            may be forged, and an older version the true remainder of the table.
        ModcryptError, OSError: A file cannot be read.
    """
    keys, report, paths = Keys(walk, {}), TableReport(), set[str]()
    inventory = Inventory(walk, walk.metadata.snapshots)
    # Only the paths of files are kept: a table may have a million of them.
    for manifest, entries in read_manifests(keys, inventory, JOBS):
        _raise_first_error((manifest,))
        paths.update(walk.locations.keys(entries.live_locations()))
        for entry in entries.live_with_keys(ENCRYPTED):
            if not walk.is_left_out(entry):
                _check_kek(entry, keys)
    _raise_first_error(inventory.tables)
    for table in inventory.tables:
        check_table(table, walk.metadata, report)
    raise_first(report.findings)
    paths |= inventory.paths()
    return paths


def _raise_first_error(tables: Iterable[ReachedTable]) -> None:
    for table in tables:
        if table.error is not None:
            raise table.error


def _check_kek(entry: FileEntry, keys: Keys) -> None:
    """Raise if the KEK of a file is missing or wrong: an older version may have the right one."""
    key = known_encrypting_key(entry.key_metadata)
    if key is not None and not key[1]:  # a master key itself is in no metadata.json
        keys.of_file(entry)


def check_newest_stay(
    rule: DeletionRule, lists: Iterable[ReachedList], kept: Sequence[Snapshot],
    named: Collection[int], where: str,
) -> None:  # fmt: skip
    """Check that no snapshot is dropped that is newer than all kept ones of this table.

    `lists` are the manifest lists of the snapshots to drop, each with an authenticated sequence
    number. `named` has the ids of snapshots that the caller wants to keep: if the newest kept one
    is among them, the caller knows that it is the newest, and the check passes. Raise
    IntegrityError if a dropped snapshot is newer, or the newest kept one is in the folder of
    another table.
    """
    states = [snapshot for snapshot in kept if not is_staged(snapshot)] or kept
    newest = max(states, key=lambda snapshot: snapshot.sequence_number, default=None)
    if newest is not None and newest.id in named:
        return
    own = newest is None or rule.owns(newest.manifest_list)
    limit = newest.sequence_number if newest is not None and own else -1
    for manifest_list in lists:
        signed = manifest_list.header.get("sequence-number", "")
        for snapshot in manifest_list.snapshots:
            number = max(snapshot.sequence_number, int(signed) if _NUMBER.fullmatch(signed) else 0)
            if number > limit:
                raise _newer_error(snapshot, number, newest, own, where)


def _newer_error(
    snapshot: Snapshot, number: int, newest: Snapshot | None, own: bool, where: str
) -> IntegrityError:
    what = f"{where}: snapshot {snapshot.id} with sequence number {number} would be dropped, "
    if newest is None:
        return IntegrityError(f"{what}and none kept: metadata.json was altered; restore it")
    why, unless = (
        ("but is newer than all kept ones", "was rolled back")
        if own
        else ("but the newest kept one is in the folder of another table", "was moved")
    )
    if is_staged(snapshot):
        return IntegrityError(
            f"{what}and nothing can restore its staged rows: publish them, or pass "
            f"keep=[{newest.id}], the newest kept snapshot, to lose them (rule {Rule.NEWEST})"
        )
    return IntegrityError(
        f"{what}{why}: metadata.json was replaced or altered. If the table {unless} on purpose, "
        f"pass keep=[{newest.id}], the newest kept snapshot (rule {Rule.NEWEST})"
    )
