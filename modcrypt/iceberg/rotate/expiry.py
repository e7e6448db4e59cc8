"""Drop a table's history and everything that holds its old keys.

A rotation leaves older metadata.json files with the old wrapped keys; anyone who has such a file
and the old keys can read the files that it names. First a version of the table is committed that
has only the kept snapshots. Then the files that these do not need are deleted, in an order that
lets a later run continue wherever this one stops:

    data and delete files, statistics -> manifests -> manifest lists -> older metadata.json files
    -> KEKs of the key store

The rule in `deletion_rule` decides which of them may be deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Any

from modcrypt.errors import ModcryptError
from modcrypt.iceberg.format.deletion import JOBS, Rule, check_gc, remove_files
from modcrypt.iceberg.format.table_metadata import PURGED, STATISTICS, Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import is_later
from modcrypt.iceberg.keys.wrapping_keys import TABLE
from modcrypt.iceberg.read.inventory import Inventory, Keys, take_inventory
from modcrypt.iceberg.read.table_version import check_lasting, metadata_files, vouched_versions
from modcrypt.iceberg.rotate.deletion_rule import DeletionRule, check_newest_stay
from modcrypt.iceberg.rotate.key_pruning import own_keks, retired_keks, used_keys
from modcrypt.iceberg.rotate.retention import Kept, Retention
from modcrypt.iceberg.rotate.rotation_report import logged_versions
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.iceberg.write.removed_versions import update_hint
from modcrypt.iceberg.write.snapshot_writing import names_any
from modcrypt.io.places import Place
from modcrypt.report.json_fields import json_fields


@dataclass(frozen=True, kw_only=True)
class Expired:
    """The result of `expire_history`: what was dropped, or in a dry run would be dropped.

    Attributes:
        table: The table at its new version; unchanged in a dry run or without changes.
        dry_run: Whether it was a dry run, which changes nothing.
        kept: Ids of the kept snapshots, each with the reason.
        snapshots: Dropped snapshots, the oldest first, including those that only older
            metadata.json files named.
        refs: Dropped branches and tags.
        keys: Ids of dropped entries of `encryption-keys`, and of the table's own KEKs in the key
            store that no kept snapshot needs and no later commit would use.
        data_files, delete_files, statistics, manifests, manifest_lists, metadata_files: Locations
            of deleted files.
        unreadable: Locations of manifest lists and manifests that cannot be decrypted or located,
            of metadata.json files that no log vouches for, and of other files that the deletion
            rule protects. They are kept, and so are the files that only they name.
        rules: Name of the rule that keeps each of these files, by location.
        left: Locations of files that could not be deleted, of files kept because they lead to
            these or because a REST catalog has merged the commit with another one, which may need
            them, and ids of KEKs that are still in the key store; the next run tries again.
    """

    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    kept: Mapping[int, str] = field(default_factory=dict)
    snapshots: tuple[Snapshot, ...] = ()
    refs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    delete_files: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    manifest_lists: tuple[str, ...] = ()
    metadata_files: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the result as values for JSON, without the table."""
        return {
            **json_fields(self, without=("table",)),
            "kept": [{"snapshot-id": id_, "why": why} for id_, why in self.kept.items()],
            "snapshots": [
                {"snapshot-id": s.id, "timestamp-ms": s.timestamp_ms, "operation": s.operation}
                for s in self.snapshots
            ],
        }


def expire_history(
    table: IcebergTable,
    *,
    keep: Sequence[int] | None = None,
    older_than: timedelta | datetime | None = None,
    keep_last: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Expired:
    """Drop the history of a table irreversibly, with its files and older metadata.json files.

    Only files that the current version or a logged older one vouches for are deleted; see
    `deletion_rule`. Settings of branches and tags and the table properties `history.expire.*` apply
    as in Iceberg's Java; see `retention`.

    Args:
        table: Any version of the table; the current version is changed.
        keep: Ids of snapshots to keep besides the current one; by default none. After an
            intentional rollback, name the newest snapshot to keep: otherwise newer ones are not
            dropped.
        older_than: Age, or time, of the oldest snapshots to keep. By default the table property
            `history.expire.max-snapshot-age-ms`; without it 5 days with `keep_last`, else none.
        keep_last: Number of snapshots that each branch keeps at least. By default the table
            property `history.expire.min-snapshots-to-keep`, else 1.
        force: Whether to drop other branches than main, tags, and staged snapshots, which `wap.id`
            marks; by default they keep their snapshots.
        dry_run: Whether to change nothing and only return what would be dropped.

    Raises:
        IntegrityError: A snapshot would be dropped that is newer than all kept ones.
        ValueError: A snapshot does not exist, or an argument is invalid; or the table's gc.enabled
            is not true, which means that other tables may share its files.
        CommitConflictError: Another writer committed first at every attempt.
        ModcryptError, OSError: The files that the kept snapshots need cannot be determined, the
            key service or file system failed temporarily, or the commit failed; nothing was
            dropped.
    """
    retention = Retention(
        keep=tuple(keep or ()), older_than=older_than, keep_last=keep_last, force=force
    )
    expiry = Expiry(retention.kept, retention.keep)
    before = latest(table)
    expiry.next_version(before)
    if dry_run:
        return expiry.report(table, dry_run=True)
    if not expiry.changes:
        return replace(expiry.report(before), left=expiry.losses.delete(before))
    after = commit(before, expiry.next_version, keep_versions=True)
    left = expiry.delete(after)
    return replace(expiry.report(after), left=left)


def _drop_snapshots(table: IcebergTable, staying: Kept) -> TableMetadata:
    """Return the metadata of the version that has only the kept snapshots and their keys."""
    kept = staying.snapshots
    metadata, document = table.metadata, table.metadata.document
    log: list[Any] = []
    for entry in document.get("snapshot-log") or ():
        # As in Java, the log starts after the last gap in the history.
        log = [*log, entry] if entry.get("snapshot-id") in kept else []
    members: dict[str, Any] = {
        "snapshots": [snapshot.document for snapshot in metadata.snapshots if snapshot.id in kept],
        "snapshot_log": log,
        "metadata_log": [],  # the commit adds the version before
        "refs": {name: ref for name, ref in metadata.refs.items() if name in staying.refs},
    }
    if not kept:
        members["current_snapshot_id"] = None
    for name in STATISTICS:
        if name in document:
            stay = [entry for entry in document[name] or () if names_any(entry, kept)]
            members[name.replace("-", "_")] = stay
    new = metadata.with_members(**members)
    return new.with_keys(used_keys(table.with_metadata(new))) if metadata.keys else new


_manifest_list = attrgetter("manifest_list")

_STAGES = (("data_files", "delete_files", "statistics"), ("manifests",), ("manifest_lists",))
"""Attributes of `Expired` with files, in the order of deletion."""

_ATTRIBUTES = {
    "data": "data_files", "manifest": "manifests", "delete manifest": "manifests",
    "manifest list": "manifest_lists",
}  # fmt: skip
"""Attributes for kinds of files that snapshots reach; all others are delete files."""


class _Losses:
    """The snapshots and files that an expiry drops once a new version of a table is committed."""

    def __init__(self, table: IcebergTable, new: TableMetadata) -> None:
        self._table, self._new, self._rule = table, new, DeletionRule.of(table, new)
        own = table.walk.locations.location(table.place)
        # Location of the folder of the metadata.json files, with a slash; None if it is not mapped.
        self._folder = None if own is None else own.removesuffix(table.place.name)
        self.snapshots: dict[int, Snapshot] = {}
        # Locations of files to delete by path, by the attribute of `Expired`.
        self.files: dict[str, dict[str, str]] = {name: {} for stage in _STAGES for name in stage}
        # Older metadata.json files by path, in the order of deletion.
        self.metadata: dict[str, tuple[str, Place]] = {}
        # Locations by path of files that are named or exist, but must be kept.
        self.unreadable: dict[str, str] = {}
        # Rules that keep these, by their locations.
        self.rules: dict[str, Rule] = {}
        # Locations of manifest lists that are needed, or to be deleted: all versions name them.
        self._known_lists: set[str] = set()

    def find(self, keep: Sequence[int] | None, *, changes: bool) -> None:
        """Find what can be dropped; without changes, the version before is kept too.

        `keep` has the snapshots that the caller named; None if none is to stay.
        """
        # The newest first: its keys also decrypt files whose keys were rotated since.
        for place, metadata in vouched_versions(self._table):
            current = place == self._table.place
            snapshots, unplaced = self._lost_snapshots(metadata)
            keys = Keys(self._table.walk.through(metadata), {})
            # All files of a needed manifest are needed.
            reached = take_inventory(keys, snapshots, JOBS, known=self._rule.needed)
            if keep is not None:
                kept = self._new.snapshots
                check_newest_stay(self._rule, reached.lists, kept, keep, place.path)
            if not unplaced and (changes or not current):
                self.metadata[place.path] = self._location(place), place
            self._add_reached(reached, current=current)
            self._add_statistics(metadata)
        self._add_unvouched()
        # A file that the keys of one version cannot decrypt may be decrypted with those of another.
        for path in chain.from_iterable(self.files.values()):
            self.unreadable.pop(path, None)
        self.metadata = dict(reversed(self.metadata.items()))

    def _lost_snapshots(self, metadata: TableMetadata) -> tuple[list[Snapshot], bool]:
        """Return the snapshots to drop, and whether others are outside of the mapped folders."""
        snapshots, unplaced = list[Snapshot](), False
        if self._known_lists.issuperset(map(_manifest_list, metadata.snapshots)):
            return snapshots, unplaced
        # The newest first: its manifest list has nearly all rows of the older ones.
        for snapshot in reversed(metadata.snapshots):
            if snapshot.manifest_list in self._known_lists:
                continue
            if (path := self._rule.path(snapshot.manifest_list)) is None:
                self._keep(snapshot.manifest_list, snapshot.manifest_list, Rule.OUTSIDE)
                unplaced = True
            elif path in self._rule.needed or path in self.files["manifest_lists"]:
                self._known_lists.add(snapshot.manifest_list)
            else:
                snapshots.append(snapshot)
        return snapshots, unplaced

    def _location(self, place: Place) -> str:
        """Return the location of a metadata.json, all of which are in one folder."""
        if self._folder is None:
            return place.path
        return self._folder + place.name

    def _add(self, name: str, path: str, location: str, rule: Rule | None) -> None:
        """Add a file, which is deleted unless a rule keeps it."""
        if rule is None:
            self.files[name][path] = location
        else:
            self._keep(path, location, rule)

    def _keep(self, path: str, location: str, rule: Rule) -> None:
        self.unreadable[path] = location
        self.rules[location] = rule

    def _add_reached(self, reached: Inventory, *, current: bool) -> None:
        """Add files that snapshots of a version reach and that the rule allows to delete."""
        for file in reached.every:
            if not isinstance(file.error, FileNotFoundError) and file.path not in self._rule.needed:
                check_lasting(file.error)
                rule: Rule | None = Rule.UNREADABLE
                if file.error is None:
                    # A plaintext file elsewhere is one that was registered, as by `add_files`.
                    own = current and file.encrypted
                    rule = self._rule.keeps(file.location, current=own)
                name = _ATTRIBUTES.get(file.kind, "delete_files")
                self._add(name, file.path, file.location, rule)
        kept = {snapshot.id for snapshot in self._new.snapshots}
        for manifest_list in reached.lists:
            if manifest_list.path in self.files["manifest_lists"]:
                for snapshot in manifest_list.snapshots:
                    if snapshot.id not in kept:
                        self.snapshots.setdefault(snapshot.id, snapshot)

    def _add_statistics(self, metadata: TableMetadata) -> None:
        """Add statistics files that a version names and that the rule allows to delete."""
        for location in metadata.statistics():
            path, rule = self._rule.path(location), None
            if path is None or path in self._rule.needed:
                continue
            try:
                rule = self._rule.keeps_statistics(location)
            except FileNotFoundError:
                continue
            except OSError as error:
                check_lasting(error)
                rule = Rule.UNREADABLE
            self._add("statistics", path, location, rule)

    def _add_unvouched(self) -> None:
        """Add the metadata.json files that are kept because no log vouches for them."""
        own = self._table.place
        known = {place.name for _, place in self.metadata.values()} | {own.name}
        for name in metadata_files(self._table):
            if name not in known and not is_later(name, own.name):
                place = own.beside(name)
                self._keep(place.path, self._location(place), Rule.UNVOUCHED)

    def delete(self, table: IcebergTable, *, keep: bool = False) -> tuple[str, ...]:
        """Delete files after the commit; return the locations of those that could not be deleted.

        Files that lead to a remaining file are kept too, so that the next run finds it through
        them. If `keep` is true, all of them remain.
        """
        left: list[str] = []
        for stage in _STAGES:
            files = [location for name in stage for location in self.files[name].values()]
            placed = [(location, table.walk.place(location)) for location in files]
            left += files if left or keep else remove_files(placed)
        stays = keep or bool(left) or not update_hint(table)
        # A REST catalog writes no version for a change of the log alone, so that the version before
        # is still the current one.
        self.metadata.pop(table.place.path, None)
        for file in self.metadata.values():  # the newest last: its log vouches for the one before
            remaining = remove_files([file]) if not stays else [file[0]]
            left, stays = [*left, *remaining], stays or bool(remaining)
        return tuple(left)


@dataclass
class Expiry:
    """The making of the next version, and what is dropped with it."""

    choose: Callable[[TableMetadata], Kept]  # returns what stays
    keep: Sequence[int] | None  # snapshots that the caller named; None if none is to stay
    ends: bool = False  # whether no version of modcrypt may follow the next one
    place: Place | None = None  # place of the version on which the other attributes are based
    base: TableMetadata = field(init=False)
    new: TableMetadata = field(init=False)
    kept: Mapping[int, str] = field(init=False)
    losses: _Losses = field(init=False)
    # Ids of KEKs to drop from the key store after the commit. A concurrent writer that uses one of
    # them must repeat its commit, and then selects a KEK again.
    retired: tuple[str, ...] = field(init=False)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Return the metadata of the next version; determine the losses before the commit."""
        if table.place != self.place:
            self.base = table.metadata
            staying = self.choose(self.base)
            self.kept, self.new = staying.snapshots, _drop_snapshots(table, staying)
            if self.ends:
                properties = {**self.base.properties, PURGED: "true"}
                self.new = self.new.with_members(properties=properties)
            self.retired = ()
            if uses_store(table):
                new = table.with_metadata(self.new)
                self.retired = own_keks(table) if self.keep is None else retired_keks(new)
            self.losses = _Losses(table, self.new)
            self.losses.find(self.keep, changes=self.changes)
            self.place = table.place
        return self.new

    @property
    def changes(self) -> bool:
        """True if the table needs a new version; otherwise, files are only deleted."""
        old, new = self.base, self.new
        return (
            len(new.snapshots) < len(old.snapshots)
            or len(new.keys) < len(old.keys)
            or len(new.refs) < len(old.refs)
            or new.properties != old.properties
            or bool(self.retired)
            or len(logged_versions(old)) > 1  # the new version logs its predecessor anyway
        )

    def delete(self, table: IcebergTable) -> tuple[str, ...]:
        """Delete what is dropped after the commit of a version; return what is left.

        Raise ValueError as `check_gc`: a REST catalog merges the commit with a change of it.
        """
        check_gc(table.metadata)
        # A new branch or tag, which no requirement sees, may need what is dropped.
        merged = table.versions.merges and table.place != self.place and not table.own_commits
        left = self.losses.delete(table, keep=merged)
        return left + _drop_keks(table, self.retired, keep=merged or bool(left))

    def report(self, table: IcebergTable, *, dry_run: bool = False) -> Expired:
        """Return the report of what is dropped."""
        losses, dropped = self.losses, self.losses.snapshots.values()
        return Expired(
            table=table,
            dry_run=dry_run,
            kept=self.kept,
            snapshots=tuple(sorted(dropped, key=lambda old: (old.sequence_number, old.id))),
            refs=tuple(name for name in self.base.refs if name not in self.new.refs),
            keys=(*(id_ for id_ in self.base.keys if id_ not in self.new.keys), *self.retired),
            metadata_files=tuple(location for location, _ in losses.metadata.values()),
            unreadable=tuple(losses.unreadable.values()),
            rules={name: losses.rules[name] for name in losses.unreadable.values()},
            **{name: tuple(files.values()) for name, files in losses.files.items()},
        )


def uses_store(table: IcebergTable) -> bool:
    """Return whether the KEKs in the key store certainly belong to the table: it uses one of them.

    KEKs name the UUID of their table. The UUID in metadata.json is not signed, but the caller may
    know it.
    """
    store, uuid = table.walk.resolver.store, table.metadata.uuid
    held = {} if store is None else store.keys()
    used = [
        held[entry.encrypted_by]
        for entry in table.metadata.keys.values()
        if entry.encrypted_by in held
    ]
    return table.expected.table_uuid is not None or any(
        kek.properties.get(TABLE) == uuid for kek in used
    )


def _drop_keks(table: IcebergTable, keks: Sequence[str], *, keep: bool) -> tuple[str, ...]:
    """Drop KEKs from the key store unless `keep` is true; return those that are still there."""
    if (store := table.resolver.store) is None or not keks:
        return ()
    with contextlib.suppress(ModcryptError, OSError):
        if not keep:
            store.replace([], keks)
            return ()
    return tuple(keks)
