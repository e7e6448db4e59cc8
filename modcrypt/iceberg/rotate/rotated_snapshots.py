"""Write the snapshots of rotated keys, one for each head of branches and tags.

    main      S ── A ── N_main               N_main has the rows of A under new keys
                    │      └── N_b           a branch that is ahead of main stays ahead of it
    branch b        └── B

Iceberg fast-forwards `main` to a branch if the head of `main` is an ancestor of the branch's. So
what takes the place of B follows what takes the place of A.

With new data keys, main gets a `replace` after its head: each new manifest adds the new files and
deletes the old ones. A head that is ahead of main follows the new snapshot of its
base, and repeats what the branch has changed since: its own files are added, those that it no
longer has are deleted. Other heads get a `replace` after themselves, whose manifests have the new
files as existing ones: where such a head expires, Java deletes files that its snapshot has added,
and main may have them.

With the same files, of which only key metadata is new, main is no exception: its new manifests have
the files as existing ones, with their own numbers, as Java's `rewrite_manifests` writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from modcrypt.iceberg.format.manifest_rows.file_entries import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    FileEntry,
)
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import WritingKeys
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.manifest_writing import (
    LiveEntry,
    live_entries,
    live_row,
    replace_manifest,
    write_manifest,
)
from modcrypt.iceberg.write.moved_deletes import Rename
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import (
    MAIN,
    add_snapshot,
    ancestors,
    count_file,
    new_snapshot_id,
    stored_size,
)
from modcrypt.keys import Secret

FileId: TypeAlias = tuple[str, int | None]
"""Normalised location of a file, and for a deletion vector its offset."""

Manifests: TypeAlias = Sequence[tuple[ManifestFile, Sequence[FileEntry]]]
"""The manifests of a snapshot that have live entries, with all of their entries."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A snapshot that branches or tags name."""

    snapshot: Snapshot
    refs: tuple[str, ...]
    # Id of the nearest other head that it descends from, where that is the one of main or descends
    # from it in turn; None otherwise.
    base: int | None = None
    # Operations of the snapshots after `base`.
    operations: frozenset[str | None] = frozenset()

    @property
    def is_main(self) -> bool:
        """True if the branch main names the snapshot."""
        return MAIN in self.refs


def list_heads(metadata: TableMetadata) -> list[Head]:
    """Return the heads of a table: those beside main, that of main, and those ahead of it.

    So the snapshot that takes the place of main's head is newer than all that it does not lead to.
    """
    by_id = {snapshot.id: snapshot for snapshot in metadata.snapshots}
    refs: dict[int, list[str]] = {}
    if (current := metadata.current) is not None:
        refs[current.id] = [MAIN]
    for name, ref in metadata.refs.items():
        if name != MAIN and ref.get("snapshot-id") in by_id:
            refs.setdefault(ref["snapshot-id"], []).append(name)
    others = (by_id[id_] for id_ in refs if current is None or id_ != current.id)
    ordered = sorted(others, key=lambda other: (other.sequence_number, other.timestamp_ms))
    heads = [] if current is None else [Head(snapshot=current, refs=tuple(refs[current.id]))]
    ahead = {head.snapshot.id for head in heads}
    for snapshot in ordered:
        base, operations = _find_base(snapshot, ahead, by_id)
        if base is not None:
            ahead.add(snapshot.id)
        names = tuple(refs[snapshot.id])
        heads.append(Head(snapshot=snapshot, refs=names, base=base, operations=operations))
    return sorted(heads, key=lambda head: 2 if head.base is not None else int(head.is_main))


def list_behind(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the branches whose heads are older snapshots of main, which could follow it."""
    if (current := metadata.current) is None:
        return ()
    by_id = {snapshot.id: snapshot for snapshot in metadata.snapshots}
    older = {snapshot.id for snapshot in ancestors(current.id, by_id)} - {current.id}
    return tuple(
        name for name, ref in metadata.refs.items()
        if ref.get("type") == "branch" and ref.get("snapshot-id") in older
    )  # fmt: skip


def _find_base(
    snapshot: Snapshot, ahead: set[int], by_id: Mapping[int, Snapshot]
) -> tuple[int | None, frozenset[str | None]]:
    operations = set[str | None]()
    for ancestor in ancestors(snapshot.id, by_id):
        if ancestor.id in ahead:
            return ancestor.id, frozenset(operations)
        operations.add(ancestor.operation)
    return None, frozenset()


class NewFile(NamedTuple):
    """A file with new key metadata, as manifests store it."""

    members: Mapping[str, Any]  # other changed members of its entry
    key_metadata: Secret[bytes]


class _Added(NamedTuple):
    """The snapshot that added a file, and its sequence number."""

    snapshot_id: int | None
    sequence_number: int | None


class _Commit(NamedTuple):
    snapshot_id: int
    sequence_number: int


class _Row(NamedTuple):
    """The row of a new manifest for manifest lists, and what added the files in it."""

    row: Mapping[str, Any]
    added: Mapping[FileId, _Added]


@dataclass(frozen=True)
class _Written:
    """A head that is rewritten, or that has no files."""

    snapshot: Snapshot  # the new one, or the head itself
    live: Mapping[FileId, LiveEntry] = field(default_factory=dict)
    # Rows of its new manifests, by the locations of the old ones.
    rows: Mapping[str, _Row] = field(default_factory=dict)

    @property
    def added(self) -> dict[FileId, _Added]:
        """The snapshot that added each file in the new lineage."""
        return {file: by for row in self.rows.values() for file, by in row.added.items()}


@dataclass
class RotatedSnapshots:
    """The new snapshots of one attempt to commit, each added to the table's metadata."""

    table: IcebergTable
    moved: Mapping[FileId, NewFile] = field(repr=False)
    rename: Rename
    keys: WritingKeys = field(repr=False)
    files: NewFiles
    tags: frozenset[str]  # names of tags, which keep the schema of their time
    same_files: bool = False  # whether the files stay, and only their key metadata is new
    heads: dict[int, _Written] = field(default_factory=dict, repr=False)
    # Manifests with files as existing ones, by the locations of the old ones: tags share them.
    existing: dict[str, _Row] = field(default_factory=dict, repr=False)

    def add(self, head: Head, manifests: Manifests) -> None:
        """Write the new snapshot of a head and add it to the table's metadata."""
        live = self._live_files(manifests)
        base = None if head.base is None else self.heads.get(head.base)
        if self.moved.keys().isdisjoint(live) and (base is None or not base.live):
            if not self.same_files:
                self.heads[head.snapshot.id] = _Written(head.snapshot)
            return
        metadata = self.table.metadata
        number = metadata.last_sequence_number + 1
        by = _Commit(new_snapshot_id(metadata), number)
        replaces = head.is_main and not self.same_files
        is_beside = base is None and not replaces
        known = base.rows if base is not None else self.existing if is_beside else {}
        before = self._existing(live, by, stays=replaces) if base is None else base.added
        rows = {
            manifest.location: known.get(manifest.location)
            or self._keep_manifest(manifest, entries, before, is_own=base is not None)
            or self._write_manifest(manifest, entries, by, before, replaces=replaces)
            for manifest, entries in manifests
        }
        if is_beside:  # row ids that a list assigns are not shared
            numbered = (manifest.location for manifest, _ in manifests if _has_row_ids(manifest))
            self.existing |= {location: rows[location] for location in numbered}
        gone = [] if base is None else self._write_removed(live, base, by)
        new = {} if self.same_files else {id_: live[id_] for id_ in live if id_ in self.moved}
        change = _Change(new, new) if base is None else _Change.of(live, base.live)
        listed = [*(row.row for row in rows.values()), *gone]
        replaced = sum(rows[manifest.location].row is not manifest.row for manifest, _ in manifests)
        parent = head.snapshot if base is None else base.snapshot
        keeps_schema = head.snapshot.schema_id is not None and not self.tags.isdisjoint(head.refs)
        version = add_snapshot(
            self.table, by.snapshot_id, listed, self.keys.of_list, self.files,
            operation="replace" if base is None else change.operation(head.operations),
            summary=self._summary(change, is_new=base is None), replaced=replaced, parent=parent,
            refs=head.refs,
            new_keys=() if self.has_new_keys else self.keys.entries,
            schema_id=head.snapshot.schema_id if keeps_schema else None,
        )  # fmt: skip
        self.table = self.table.with_metadata(version)
        self.heads[head.snapshot.id] = _Written(version.snapshot(by.snapshot_id), live, rows)

    @property
    def has_new_keys(self) -> bool:
        """True if a snapshot, and with it the new KEKs, was added already."""
        return any(written.rows for written in self.heads.values())

    def _live_files(self, manifests: Manifests) -> dict[FileId, LiveEntry]:
        return {
            self._id(live.entry): live
            for manifest, entries in manifests
            for live in live_entries(manifest, entries)
        }

    def _id(self, entry: FileEntry) -> FileId:
        return file_id(self.table, entry)

    def _existing(
        self, live: Mapping[FileId, LiveEntry], by: _Commit, *, stays: bool
    ) -> dict[FileId, _Added]:
        """Return the snapshots that added the files which a head has from its old one.

        With `stays`, return those of files that stay as they are, because they are erased.
        """
        is_new = set[FileId]() if self.same_files else self.moved.keys()
        return {
            id_: _Added(*by) if id_ in is_new
            else _Added(old.entry.snapshot_id, old.entry.file_sequence_number)
            for id_, old in live.items() if not (stays and id_ in is_new)
        }  # fmt: skip

    def _keep_manifest(
        self, manifest: ManifestFile, entries: Sequence[FileEntry], before: Mapping[FileId, _Added],
        *, is_own: bool,
    ) -> _Row | None:  # fmt: skip
        """Return the row of a manifest that needs no change; None for others.

        With `is_own` it is the branch's own: snapshots that are no longer its ancestors added it.
        """
        live = [self._id(entry) for entry in entries if entry.is_live]
        if is_own or not self.same_files or not self.moved.keys().isdisjoint(live):
            return None
        return _Row(manifest.row, {id_: before[id_] for id_ in live})

    def _write_manifest(
        self, manifest: ManifestFile, entries: Sequence[FileEntry], by: _Commit,
        before: Mapping[FileId, _Added], *, replaces: bool,
    ) -> _Row:  # fmt: skip
        """Write a manifest with the new files; those in `before` exist already.

        With `replaces` it also deletes the old files.
        """
        added: dict[FileId, _Added] = {}
        rows: list[dict[str, Any]] = []
        for live in live_entries(manifest, entries):
            id_ = self._id(live.entry)
            added[id_] = before.get(id_) or _Added(*by)
            status = EXISTING if id_ in before else ADDED
            rows.append(self._new_row(live, status, added[id_], by))
            # Without the old key: only the older snapshots keep it.
            if replaces and id_ in self.moved:
                rows.append(self._row(live, DELETED, by, key_metadata=None))
        row = replace_manifest(self.table, manifest, rows, self.files, by.snapshot_id)
        # Other lists may name it: its numbers are those of this snapshot.
        numbers = {
            name: by.sequence_number if row[name] is None else row[name]
            for name in ("sequence_number", "min_sequence_number")
        }
        return _Row({**row, **numbers}, added)

    def _write_removed(
        self, live: Mapping[FileId, LiveEntry], base: _Written, by: _Commit
    ) -> list[Mapping[str, Any]]:
        """Write manifests that delete the files of a base which a branch no longer has."""
        groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
        before = base.added
        for id_, old in base.live.items():
            if id_ not in live:
                rows = groups.setdefault((old.entry.spec_id, old.entry.content == DATA), [])
                rows.append(self._new_row(old, DELETED, before[id_], by))
        return [
            write_manifest(
                self.table, spec_id, rows, self.files, content=0 if is_data else 1,
                snapshot_id=by.snapshot_id,
            )
            for (spec_id, is_data), rows in groups.items()
        ]  # fmt: skip

    def _new_row(self, live: LiveEntry, status: int, added: _Added, by: _Commit) -> dict[str, Any]:
        new, changes = self.moved.get(self._id(live.entry)), dict[str, Any]()
        if new is not None:
            changes = {**new.members, "key_metadata": new.key_metadata}
        if (target := live.entry.file.get("referenced_data_file")) is not None:
            changes["referenced_data_file"] = self.rename(target)
        acting = added if status == EXISTING else by
        row = self._row(live, status, acting, **changes)
        # None is inherited from the commit.
        row["file_sequence_number"] = None if status == ADDED else added.sequence_number
        return row

    def _row(
        self, live: LiveEntry, status: int, acting: _Added | _Commit, **file: Any
    ) -> dict[str, Any]:
        metadata, snapshot_id = self.table.metadata, acting.snapshot_id
        return live_row(metadata, live, status=status, snapshot_id=snapshot_id, **file)

    def _summary(self, change: _Change, *, is_new: bool) -> dict[str, str]:
        """Count what a snapshot adds and removes, as Java does."""
        counts = Counter[str]()
        for id_, live in change.added.items():
            count_file(counts, live.entry, "added", "added", self._new_size(id_, live.entry))
        for id_, live in change.removed.items():
            size = stored_size(live.entry) if is_new else self._new_size(id_, live.entry)
            count_file(counts, live.entry, "deleted", "removed", size)
        partitions = {
            (live.entry.spec_id, repr(sorted(live.entry.partition_by_id.items())))
            for live in (*change.added.values(), *change.removed.values())
        }
        summary = {name: str(count) for name, count in sorted(counts.items()) if count}
        return {**summary, "changed-partition-count": str(len(partitions))}

    def _new_size(self, id_: FileId, entry: FileEntry) -> int:
        new = self.moved.get(id_)
        return stored_size(entry, None if new is None else new.members.get("file_size_in_bytes"))


@dataclass(frozen=True)
class _Change:
    """The files that a new snapshot adds and removes."""

    added: Mapping[FileId, LiveEntry]
    removed: Mapping[FileId, LiveEntry]

    @classmethod
    def of(cls, live: Mapping[FileId, LiveEntry], base: Mapping[FileId, LiveEntry]) -> _Change:
        """Return the change from a base."""
        return cls(
            {id_: live[id_] for id_ in live if id_ not in base},
            {id_: base[id_] for id_ in base if id_ not in live},
        )

    def operation(self, operations: Iterable[str | None]) -> str:
        """Return the operation of a snapshot that stands for several ones."""
        contents = {live.entry.content for live in self.added.values()}
        if set(operations) <= {"replace"}:
            return "replace"
        if not self.removed and contents <= {DATA}:
            return "append"
        return "overwrite" if DATA in contents else "delete"


def _has_row_ids(manifest: ManifestFile) -> bool:
    return manifest.content != DATA or manifest.row.get("first_row_id") is not None


def with_live_files(manifests: Manifests) -> Manifests:
    """Return the manifests that have live entries: a new snapshot needs no others."""
    return [pair for pair in manifests if any(entry.is_live for entry in pair[1])]


def file_id(table: IcebergTable, entry: FileEntry) -> FileId:
    """Return the identity of the file or deletion vector of an entry."""
    return table.walk.locations.key(entry.location), entry.file.get("content_offset")


def tag_names(metadata: TableMetadata) -> frozenset[str]:
    """Return the names of a table's tags."""
    return frozenset(name for name, ref in metadata.refs.items() if ref.get("type") == "tag")
