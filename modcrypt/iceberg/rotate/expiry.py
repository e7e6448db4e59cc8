"""A table's history dropped, with what holds its old keys: snapshots, files, older metadata.json.

A rotation leaves older metadata.json files behind, which hold the keys as they were; who has one of
them and the old keys reads what it leads to. First a version of the table is committed that has
the kept snapshots alone. Then goes what these don't need, in an order in which a later run can take
it up again, whenever this one stops:

    data and delete files, statistics -> manifests -> manifest lists -> older metadata.json files
    -> KEKs of the key store

Which of them may go, the rule in `deletion` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import ModcryptError
from modcrypt.iceberg.format.table_metadata import STATISTICS, Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import HINT, is_later, version_number, write_hint
from modcrypt.iceberg.read.inventory import Failure, Inventory, Keys, take_inventory
from modcrypt.iceberg.rotate.deletion_rule import (
    JOBS,
    DeletionRule,
    check_lasting,
    metadata_files,
    remove_files,
    vouched_versions,
)
from modcrypt.iceberg.rotate.key_pruning import retired_keks, used_keys
from modcrypt.iceberg.rotate.rotation_report import latest, logged_versions
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit
from modcrypt.io.storage import Place

__all__ = ["Expired", "expire_history"]


@dataclass(frozen=True, kw_only=True)
class Expired:
    """What `expire_history` has dropped; in a dry run, what it would drop.

    Attributes:
        table: at its new version; in a dry run, and where nothing was to be changed, as it was.
        dry_run: whether nothing was changed.
        kept: ids of the snapshots that stay, and why each does.
        snapshots: that nobody can go back to any more, the oldest first; also those that only
            older metadata.json files still had.
        refs: branches and tags that go with them.
        keys: ids of entries of `encryption-keys` that go, and of the table's own KEKs in the key
            store that neither a kept snapshot needs nor a next commit would take.
        data_files, delete_files, statistics, manifests, manifest_lists, metadata_files: locations
            of files that go.
        unreadable: locations of manifest lists and manifests that can't be opened, or not be
            looked for; of metadata.json files that no log vouches for; and of other files that
            the rule for deletions does not free. They stay, and so does what they name and nobody
            else does.
        left: locations of files that could not be deleted, of those that stay because they lead to
            these, and ids of KEKs that are still in the key store; the next run tries again.
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
    left: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes, without the table."""
        lists = (
            "refs", "keys", "data_files", "delete_files", "statistics", "manifests",
            "manifest_lists", "metadata_files", "unreadable", "left",
        )  # fmt: skip
        return {
            "dry_run": self.dry_run,
            "kept": [{"snapshot-id": id_, "why": why} for id_, why in self.kept.items()],
            "snapshots": [
                {"snapshot-id": s.id, "timestamp-ms": s.timestamp_ms, "operation": s.operation}
                for s in self.snapshots
            ],
            **{name: list(getattr(self, name)) for name in lists},
        }


def expire_history(
    table: IcebergTable,
    *,
    keep: Sequence[int] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Expired:
    """Drop the history of a table: for good, with its files and its older metadata.json files.

    Only files that the current version or a logged older one vouches for are deleted; see
    `deletion`.

    Args:
        table: the current version is changed, also if `table` is an older one.
        keep: ids of the snapshots that stay besides the current one; by default none.
        force: branches and tags don't keep their snapshots: those that name others go, too.
        dry_run: change nothing, and say what would go.

    Raises:
        ValueError: there is no such snapshot; or the table's gc.enabled is false, which says that
            other tables may share its files.
        CommitConflictError: somebody else was faster again and again.
        ModcryptError, OSError: what the kept snapshots need can't be told, the key service or file
            system fails for the moment, or the commit does: nothing was dropped.
    """
    expiry = _Expiry(tuple(keep or ()), force)
    before = latest(table)
    if before.metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise ValueError(
            "the table property gc.enabled is false: others may need the files of this table"
        )
    expiry.next_version(before)
    if dry_run:
        return expiry.report(table, dry_run=True)
    if not expiry.changes:
        return replace(expiry.report(before), left=_delete(before, expiry.losses))
    after = commit(before, expiry.next_version)
    left = _delete(after, expiry.losses)
    left += _dropped(after, expiry.retired, keep=bool(left))
    return replace(expiry.report(after), left=left)


# --- which snapshots stay ------------------------------------------------------------------------


def _kept(metadata: TableMetadata, keep: Sequence[int], force: bool) -> dict[int, str]:
    """Give the ids of the snapshots that stay, each with the reason."""
    there = {one.id for one in metadata.snapshots}
    if missing := sorted(set(keep) - there):
        raise ValueError(f"there is no snapshot {missing[0]}")
    found: dict[int, str] = {}
    if metadata.current is not None:
        found[metadata.current.id] = "current"
    for name, ref in metadata.refs.items():
        if not force and ref.get("snapshot-id") in there:
            found.setdefault(ref["snapshot-id"], f"{ref.get('type')} {name}")
    return {**dict.fromkeys(keep, "named"), **found}


def _without(table: IcebergTable, kept: Mapping[int, str]) -> TableMetadata:
    """Give the metadata of the version that has the kept snapshots alone, and their keys."""
    metadata, document = table.metadata, table.metadata.document
    log: list[Any] = []
    for one in document.get("snapshot-log") or ():
        # As Java has it: what was before a gap in the history is not told any more.
        log = [*log, one] if one.get("snapshot-id") in kept else []
    members: dict[str, Any] = {
        "snapshots": [one.document for one in metadata.snapshots if one.id in kept],
        "snapshot_log": log,
        "metadata_log": [],  # the commit adds the version before
        "refs": {name: one for name, one in metadata.refs.items() if _stays(one, kept)},
    }
    for name in STATISTICS:
        if name in document:
            stay = [one for one in document[name] or () if _stays(one, kept)]
            members[name.replace("-", "_")] = stay
    new = metadata.edited(**members)
    return new.with_keys(used_keys(_at(table, new))) if metadata.keys else new


def _stays(named: Any, kept: Mapping[int, str]) -> bool:
    return isinstance(named, dict) and named.get("snapshot-id") in kept


def _at(table: IcebergTable, metadata: TableMetadata) -> IcebergTable:
    return replace(table, metadata=metadata, walk=table.walk.through(metadata))


# --- what goes -----------------------------------------------------------------------------------


@dataclass
class _Losses:
    """What goes, as locations by path.

    Attributes:
        snapshots: by id.
        data, deletes, statistics, manifests, lists: of files.
        metadata: of older metadata.json files, in the order in which they go.
        unreadable: of what stays though it is named, or lies there.
    """

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    deletes: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, tuple[str, Place]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass
class _Expiry:
    """Makes the next version, and finds what goes with it.

    Attributes:
        keep, force: as of `expire_history`.
        place: of the version that the rest is of.
        base, new: that version, and the next one.
        kept: ids of the snapshots that stay, and why.
        losses: what goes.
        retired: ids of KEKs that the key store drops after the commit. Whoever had one in hand
            before has to make his commit anew, and looks for a KEK again.
    """

    keep: tuple[int, ...]
    force: bool
    place: Place | None = None
    base: TableMetadata = field(init=False)
    new: TableMetadata = field(init=False)
    kept: dict[int, str] = field(init=False)
    losses: _Losses = field(init=False)
    retired: tuple[str, ...] = field(init=False)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Give the metadata of the next version; what goes with it is known before the commit."""
        if table.place != self.place:
            self.base, self.kept = table.metadata, _kept(table.metadata, self.keep, self.force)
            self.new = _without(table, self.kept)
            self.retired = retired_keks(_at(table, self.new))
            self.losses = _losses(table, self.new, self.changes)
            self.place = table.place
        return self.new

    @property
    def changes(self) -> bool:
        """Whether the table needs a new version: nothing but files may be left to be deleted."""
        old, new = self.base, self.new
        return (
            len(new.snapshots) < len(old.snapshots)
            or len(new.keys) < len(old.keys)
            or len(new.refs) < len(old.refs)
            or bool(self.retired)
            or len(logged_versions(old)) > 1  # one of them is told of the newest version, too
        )

    def report(self, table: IcebergTable, *, dry_run: bool = False) -> Expired:
        """Give what goes."""
        gone = self.losses
        return Expired(
            table=table,
            dry_run=dry_run,
            kept=self.kept,
            snapshots=tuple(
                sorted(gone.snapshots.values(), key=lambda one: (one.sequence_number, one.id))
            ),
            refs=tuple(name for name in self.base.refs if name not in self.new.refs),
            keys=(*(id_ for id_ in self.base.keys if id_ not in self.new.keys), *self.retired),
            data_files=tuple(gone.data.values()),
            delete_files=tuple(gone.deletes.values()),
            statistics=tuple(gone.statistics.values()),
            manifests=tuple(gone.manifests.values()),
            manifest_lists=tuple(gone.lists.values()),
            metadata_files=tuple(location for location, _ in gone.metadata.values()),
            unreadable=tuple(gone.unreadable.values()),
        )


def _losses(table: IcebergTable, new: TableMetadata, changes: bool) -> _Losses:
    """Find what goes once a new version of a table is there.

    Args:
        table: the version before.
        new: that has the kept snapshots.
        changes: whether it is another version, so that the one before goes, too.
    """
    rule, found = DeletionRule.of(table, new), _Losses()
    # The newest first: keys that were rotated since open by it.
    for place, metadata in vouched_versions(table):
        current = place == table.place
        if changes or not current:
            found.metadata[place.path] = _location(table, place), place
        walk = table.walk.through(metadata)
        snapshots = []
        for one in metadata.snapshots:
            path = rule.path(one.manifest_list)
            if path is None:
                found.unreadable[one.manifest_list] = one.manifest_list
            elif path not in rule.needed and path not in found.lists:
                snapshots.append(one)
        reached = take_inventory(Keys(walk, {}), snapshots, JOBS)
        _add(found, reached, rule, new, current=current)
        _add_statistics(found, metadata, rule)
    _add_unvouched(found, table)
    # What was not opened by the keys of one version, and then by those of another.
    for path in (*found.lists, *found.manifests, *found.data, *found.deletes, *found.statistics):
        found.unreadable.pop(path, None)
    found.metadata = dict(reversed(found.metadata.items()))
    return found


def _location(table: IcebergTable, place: Place) -> str:
    return table.walk.locations.location(place) or place.path


def _add(
    found: _Losses, reached: Inventory, rule: DeletionRule, new: TableMetadata, *, current: bool
) -> None:
    """Add what snapshots of a version reach, and the rule frees."""
    kept = {one.id for one in new.snapshots}

    def add(kind: dict[str, str], path: str, location: str, error: Failure | None) -> None:
        if isinstance(error, FileNotFoundError) or path in rule.needed:
            return
        check_lasting(error)
        freed = error is None and rule.frees(location, current=current)
        (kind if freed else found.unreadable)[path] = location

    for one in reached.lists:
        add(found.lists, one.path, one.location, one.error)
        if one.path in found.lists:
            lost = {s.id: s for s in one.snapshots if s.id not in kept}
            found.snapshots = {**lost, **found.snapshots}
    for manifest in reached.manifests:
        add(found.manifests, manifest.path, manifest.manifest.location, manifest.error)
    for file in reached.files:
        kind = found.data if file.kind == "data" else found.deletes
        add(kind, file.path, file.entry.location, file.error)


def _add_statistics(found: _Losses, metadata: TableMetadata, rule: DeletionRule) -> None:
    """Add the files of statistics that a version names, and the rule frees."""
    for location in metadata.statistics():
        path, freed = rule.path(location), False
        if path is None or path in rule.needed:
            continue
        try:
            freed = rule.frees_statistics(location)
        except FileNotFoundError:
            continue
        except OSError as error:
            check_lasting(error)
        (found.statistics if freed else found.unreadable)[path] = location


def _add_unvouched(found: _Losses, table: IcebergTable) -> None:
    """Add the metadata.json files that stay because no log vouches for them."""
    known = {place.name for _, place in found.metadata.values()} | {table.place.name}
    for name in metadata_files(table):
        if name not in known and not is_later(name, table.place.name):
            place = table.place.beside(name)
            found.unreadable[place.path] = _location(table, place)


# --- deleting ------------------------------------------------------------------------------------


def _delete(table: IcebergTable, losses: _Losses) -> tuple[str, ...]:
    """Delete what goes, after the commit; give the locations of what could not be deleted.

    What leads to a file that is still there stays, too: the next run finds it by that.
    """
    walk = table.walk
    files = [*losses.data.values(), *losses.deletes.values(), *losses.statistics.values()]
    stages: list[list[tuple[str, Place]]] = [
        [(one, walk.place(one)) for one in some]
        for some in (files, losses.manifests.values(), losses.lists.values())
    ]
    left: list[str] = []
    for stage in stages:
        left += remove_files(stage) if not left else (location for location, _ in stage)
    stays = bool(left) or not _hint_is_right(table)
    for one in losses.metadata.values():  # the newest last: each is known by the log of the next
        gone = remove_files([one]) if not stays else [one[0]]
        left, stays = [*left, *gone], stays or bool(gone)
    return tuple(left)


def _dropped(table: IcebergTable, keks: Sequence[str], *, keep: bool) -> tuple[str, ...]:
    """Drop KEKs from the key store, unless they may be needed; give those that are still there."""
    store = table.walk.resolver.store
    if store is None or not keks:
        return ()
    with contextlib.suppress(ModcryptError, OSError):
        if not keep:
            store.replace([], keks)
            return ()
    return tuple(keks)


_HINT_SIZE = 100
"""Bytes of a version hint that are read: a number of at most 18 digits, and space around it."""


def _hint_is_right(table: IcebergTable) -> bool:
    """See to it that `version-hint.text` names no version that goes.

    Iceberg's Java looks for the current version from there on, and finds no table if it isn't
    there. A commit that could not write the hint is none the worse for it, until now.
    """
    number = version_number(table.place.name)
    hint = table.place.beside(HINT)
    try:
        with hint.open() as source:
            told = source.read_at(0, min(source.size, _HINT_SIZE)).strip()
        if number is None or not told.isdigit() or int(told) >= number:
            return True
        write_hint(hint, number)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
