"""A table's history dropped, with what holds its old keys: snapshots, files, older metadata.json.

A rotation leaves older metadata.json files behind, which hold the keys as they were; who has one of
them and the old keys reads what it leads to. First a version of the table is committed that has
the kept snapshots alone. Then goes what these don't need, in an order in which a later run can take
it up again, whenever this one stops:

    data and delete files, statistics -> manifests -> manifest lists -> older metadata.json files
    -> KEKs of the key store

Nobody signs a metadata.json. A file goes only if a manifest or manifest list names it that opens
with the table's keys; statistics only where they lie in the table's own folder; a metadata.json
only if it is this table's. Nothing goes that a kept snapshot needs, under whatever spelling of its
location, and nothing outside of the folders that locations are mapped to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import FormatError, KmsUnavailableError, ModcryptError
from modcrypt.iceberg.committing import commit
from modcrypt.iceberg.inventory import Failure, Inventory, Keys, in_threads, take_inventory
from modcrypt.iceberg.pruning import retired_keks, used_keys
from modcrypt.iceberg.rotation_report import latest, logged_versions
from modcrypt.iceberg.table import IcebergTable, read_metadata
from modcrypt.iceberg.table_metadata import STATISTICS, Snapshot, TableMetadata
from modcrypt.iceberg.versions import HINT, file_names, version_number, write_hint
from modcrypt.iceberg.walk import Walk
from modcrypt.storage import Place

__all__ = ["Expired", "expire_history"]

JOBS = 4
"""How many files are read, or deleted, at the same time."""


SETTLED = 60 * 60
"""Seconds after which nobody waits any more for the answer to a commit."""


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
            looked for, of metadata.json files that are damaged, and of recent ones of which no
            version knows, so that somebody may be about to commit them: they stay, and so does
            what they name and nobody else does.
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
        unreadable: of manifests and manifest lists.
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
    needed = _Needed.by(table.walk.through(new))
    found = _Losses()
    own = _folder_of(table)
    # The newest first: keys that were rotated since open by it.
    for place, metadata in _versions(table):
        location = table.walk.locations.location(place) or place.path
        if metadata is None:
            found.unreadable[place.path] = location
            continue
        if place != table.place or changes:
            found.metadata[place.path] = location, place
        walk = table.walk.through(metadata)
        snapshots = []
        for one in metadata.snapshots:
            path = _path(walk, one.manifest_list)
            if path is None:
                found.unreadable[one.manifest_list] = one.manifest_list
            elif path not in needed.paths and path not in found.lists:
                snapshots.append(one)
        reached = take_inventory(Keys(walk, {}), snapshots, JOBS)
        _add(found, reached, needed, new)
        for location in metadata.statistics():
            path = _path(walk, location)
            inside = path is not None and path.startswith(own)
            if path is not None and inside and path not in needed.paths:
                found.statistics[path] = location
    # What was not opened by the keys of one version, and then by those of another.
    for path in (*found.lists, *found.manifests):
        found.unreadable.pop(path, None)
    found.metadata = dict(reversed(found.metadata.items()))
    return found


def _add(found: _Losses, reached: Inventory, needed: _Needed, new: TableMetadata) -> None:
    kept = {one.id for one in new.snapshots}
    for one in reached.lists:
        if one.error is None:
            found.lists[one.path] = one.location
            lost = {s.id: s for s in one.snapshots if s.id not in kept}
            found.snapshots = {**lost, **found.snapshots}
        elif not isinstance(one.error, FileNotFoundError):
            _check_lasting(one.error)
            found.unreadable[one.path] = one.location
    for manifest in reached.manifests:
        if manifest.path in needed.paths:
            continue
        if manifest.error is None:
            found.manifests[manifest.path] = manifest.manifest.location
        elif not isinstance(manifest.error, FileNotFoundError):
            _check_lasting(manifest.error)
            found.unreadable[manifest.path] = manifest.manifest.location
    for file in reached.files:
        if file.error is not None:
            found.unreadable[file.path] = file.entry.location
        elif file.path not in needed.paths:
            kind = found.data if file.kind == "data" else found.deletes
            kind[file.path] = file.entry.location


_LASTING = frozenset({
    errno.EACCES, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM,
})  # fmt: skip
"""Errors of the file system that a location in a forged file has, too."""


def _check_lasting(error: Failure) -> None:
    """Raise what may be over soon: what can't be read now would stay for ever."""
    passing = isinstance(error, OSError) and error.errno not in _LASTING
    if passing or isinstance(error, KmsUnavailableError):
        raise error


@dataclass(frozen=True)
class _Needed:
    """Paths of what the kept snapshots need."""

    paths: frozenset[str]

    @classmethod
    def by(cls, walk: Walk) -> _Needed:
        """Find it; raises what keeps any of it from being read."""
        reached = take_inventory(Keys(walk, {}), walk.metadata.snapshots, JOBS)
        paths = set[str]()
        for some in (reached.lists, reached.manifests, reached.files):
            for one in some:
                if one.error is not None:
                    raise one.error
                paths.add(one.path)
        told = (_path(walk, location) for location in walk.metadata.statistics())
        return cls(frozenset(paths | {path for path in told if path is not None}))


def _path(walk: Walk, location: str) -> str | None:
    """Give what tells spellings of one location for the same; None of one outside of the table."""
    try:
        return walk.locations.key(location)
    except FormatError:
        return None


def _folder_of(table: IcebergTable) -> str:
    """Give the path of the table's own folder, with a slash at its end."""
    inside = table.walk.locations.key(f"{table.metadata.location}/metadata")
    return posixpath.dirname(inside).rstrip("/") + "/"


# --- older versions ------------------------------------------------------------------------------


def _versions(table: IcebergTable) -> Iterator[tuple[Place, TableMetadata | None]]:
    """Give the version of a table, and those before it that are still there, the newest first.

    None stands for a file that is no table metadata, so that nobody knows whose it is; and for a
    recent one that no version has in its log. Whoever wrote it may be waiting for a catalog; or was
    late, took a number that an expiry had freed, and is about to find that out: then he commits the
    files that it names on top of a newer version.
    """
    yield table.place, table.metadata
    seen, committed = {_real(table.place)}, _told(table.metadata)
    settled = (time.time() - SETTLED) * 1000
    for place in (*_logged(table), *_lying_about(table)):
        if _real(place) in seen:
            continue
        seen.add(_real(place))
        with contextlib.suppress(FileNotFoundError):
            metadata = _read(place)
            if metadata is None:
                yield place, None
            elif metadata.uuid == table.metadata.uuid:
                updated = _updated(metadata.document.get("last-updated-ms"))
                if (place.name, updated) in committed:
                    committed |= _told(metadata)
                elif updated > settled:
                    metadata = None
                yield place, metadata


def _real(place: Place) -> str:
    """Give what two spellings of one path have in common: a table may be opened by a relative one.

    A link to a metadata.json is another file than that.
    """
    folder, name = posixpath.split(place.path)
    return place.path if place.filesystem is not None else f"{os.path.realpath(folder)}/{name}"


def _told(metadata: TableMetadata) -> set[tuple[str, int]]:
    """Give the names and times of the versions that one has in its log: these were committed."""
    log = metadata.document.get("metadata-log") or []
    return {
        (posixpath.basename(one["metadata-file"]), _updated(one.get("timestamp-ms")))
        for one in log
        if isinstance(one, dict) and isinstance(one.get("metadata-file"), str)
    }


def _updated(when: Any) -> int:
    return when if type(when) is int else 0


def _read(place: Place) -> TableMetadata | None:
    try:
        return read_metadata(place)
    except FormatError:
        return None


def _logged(table: IcebergTable) -> Iterator[Place]:
    for location in reversed(logged_versions(table.metadata)):
        if _path(table.walk, location) is not None and location.endswith((".json", ".json.gz")):
            yield table.walk.place(location)


def _lying_about(table: IcebergTable) -> Iterator[Place]:
    """Give metadata.json files of lower numbers beside the table's own.

    Those of its number and of higher ones may be about to be committed by others.
    """
    number = version_number(table.place.name)
    if number is None:
        return
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path))
    there = {name: version_number(name) for name in file_names(folder)}
    older = {name: n for name, n in there.items() if n is not None and n < number}
    for name in sorted(older, key=lambda one: (older[one], one), reverse=True):
        yield table.place.beside(name)


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
        left += _removed(stage) if not left else (location for location, _ in stage)
    stays = bool(left) or not _hint_is_right(table)
    for one in losses.metadata.values():  # the newest last: each is known by the log of the next
        gone = _removed([one]) if not stays else [one[0]]
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


def _removed(files: Iterable[tuple[str, Place]]) -> list[str]:
    """Delete files; give the locations of those that are still there."""

    def remove(file: tuple[str, Place]) -> str | None:
        try:
            file[1].remove()
        except OSError:
            return file[0]
        return None

    return [one for one in in_threads(remove, files, JOBS) if one is not None]


def _hint_is_right(table: IcebergTable) -> bool:
    """See to it that `version-hint.text` names no version that goes.

    Iceberg's Java looks for the current version from there on, and finds no table if it isn't
    there. A commit that could not write the hint is none the worse for it, until now.
    """
    number = version_number(table.place.name)
    hint = table.place.beside(HINT)
    try:
        with hint.open() as source:
            told = source.read_at(0, source.size)
        if number is None or not told.strip().isdigit() or int(told) >= number:
            return True
        write_hint(hint, number)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
