"""Shred a partition of a table: remove every KEK that is for it alone, and every copy of them.

The keys of its files stay in the manifests of all snapshots, encrypted under KEKs that are gone:

    KEKs in metadata.json -> a version without them -> older metadata.json files are deleted
    KEKs in a key store   -> dropped last

No step but the last is needed for a key store. A run that is killed is completed by another one.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote_plus

from modcrypt.errors import KeyMaterialError, ModcryptError, list_names
from modcrypt.iceberg.format.deletion import check_gc
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.table_metadata import SCOPE, TableMetadata
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.keys.key_policies import partition_scope
from modcrypt.iceberg.keys.key_resolver import encrypting_key
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.read.table_version import metadata_files
from modcrypt.iceberg.rotate.expiry import expire_history, uses_store
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.iceberg.write.manifest_writing import PartitionPaths, partition_values
from modcrypt.report.json_fields import JsonFields

_REMEDY = (
    "give each partition KEKs of its own (modcrypt iceberg admin policy --kek-per partition), then "
    "run modcrypt iceberg rotate dek and expire; or delete the rows, and expire the history"
)


@dataclass(frozen=True, kw_only=True)
class ShreddedPartition(JsonFields):
    """The result of `shred_partition`: what was removed, or in a dry run would be.

    Attributes:
        table: The table at its new version; unchanged in a dry run, or with KEKs in a key store.
        partition: The partition, by the names and values in the paths of its files.
        files: Number of its data and delete files in all snapshots.
        keks: Ids of the KEKs of the partition.
        left: Older metadata.json files, and ids of KEKs in the key store, that could not be
            removed: while they exist, nothing is erased.
        dry_run: Whether nothing was changed.
    """

    table: IcebergTable = field(repr=False)
    partition: Mapping[str, str]
    files: int
    keks: tuple[str, ...]
    left: tuple[str, ...] = ()
    dry_run: bool = False

    _without = ("table",)


def shred_partition(
    table: IcebergTable, partition: Mapping[str, str], *, dry_run: bool = False
) -> ShreddedPartition:
    """Make the files of a partition unreadable for good, in all snapshots of a table.

    The KEKs of the partition must be for it alone, as the policy `kek_per="partition"` makes them.
    What manifests state about the partition stays readable, such as its bounds.

    Args:
        table: Any version of the table; the current version is changed.
        partition: Names and values of the partition, as in the paths of its files; those of some
            partition fields select all partitions that have these values.
        dry_run: Whether to change nothing and only return what would be removed.

    Raises:
        ValueError: The table has no such partition, its keys do not depend on the partition, or its
            gc.enabled is not true.
        CommitConflictError: Another writer committed first at every attempt.
        ModcryptError, OSError: Manifests cannot be read, or the commit failed.
    """
    before = latest(table)
    plan = _Plan.make(before, partition)
    result = ShreddedPartition(
        table=table, partition=dict(partition), files=plan.files, keks=plan.keks, dry_run=dry_run
    )
    if dry_run or not plan.keks:
        return result
    after = _drop_from_metadata(before, plan) if plan.in_metadata else before
    left = _drop_from_store(after, plan)
    left += tuple(name for name, metadata in _list_metadata(after) if plan.has_any(metadata))
    return replace(result, table=after, left=left)


@dataclass(frozen=True)
class _Plan:
    """The number of files of a partition, and the KEKs that are for it alone."""

    partition: Mapping[str, str]
    files: int
    keks: tuple[str, ...]
    in_metadata: bool

    @classmethod
    def make(cls, table: IcebergTable, partition: Mapping[str, str]) -> _Plan:
        if not partition:
            raise ValueError(
                "name a partition; to erase a whole table, destroy its master key with modcrypt "
                "keys destroy, and declare it with whole = true"
            )
        check_gc(table.metadata)
        plan = cls(partition, 0, (), False)
        versions = [metadata for _, metadata in _list_metadata(table)]
        stored = table.resolver.keks(table.metadata).values()
        found = {kek.id for kek in stored if plan.is_for(kek)}
        if not (found <= table.metadata.keys.keys() or uses_store(table)):
            raise KeyMaterialError(
                f"{table.metadata.name}: only its UUID, which nothing signs, says that KEKs in the "
                "key store are the table's; if it is right, open the table with table_uuid"
            )
        older = {kek.id for metadata in versions for kek in plan.list_keks(metadata)}
        count = plan._count_files(table, frozenset(found | older))
        if not (count or found or older):
            raise ValueError(f"the table has no partition {_describe(partition)}")
        return cls(partition, count, tuple(sorted(found | older)), bool(older))

    def is_for(self, kek: IcebergKey) -> bool:
        """Return whether a KEK is for the partition alone."""
        start = partition_scope("")
        return kek.scope.startswith(start) and self.has(kek.scope.removeprefix(start))

    def has(self, path: str) -> bool:
        """Return whether a path of partitions is in the partition."""
        folders = (folder.partition("=") for folder in path.split("/"))
        values = {unquote_plus(name): unquote_plus(value) for name, mark, value in folders if mark}
        return self.partition.items() <= values.items()

    def is_shredded(self, entry: FileEntry) -> bool:
        """Return whether the key of a file is under a KEK of the partition."""
        key = encrypting_key(entry.key_metadata)
        return key is not None and not key[1] and key[0] in self.keks

    def list_keks(self, metadata: TableMetadata) -> Iterator[IcebergKey]:
        """Yield the KEKs of the partition in a metadata.json."""
        for id_ in metadata.kek_ids():
            if SCOPE in metadata.keys[id_].properties:
                kek = IcebergKey.of(metadata.keys[id_])
                if self.is_for(kek):
                    yield kek

    def has_any(self, metadata: TableMetadata) -> bool:
        """Return whether a metadata.json has a KEK of the partition."""
        return any(True for _ in self.list_keks(metadata))

    def _count_files(self, table: IcebergTable, keks: frozenset[str]) -> int:
        """Return the number of the partition's files in all snapshots.

        Raise ValueError if a key of one does not depend on the partition, and KeyMaterialError if a
        KEK of the partition has the key of another partition's file.
        """
        known = table.resolver.keks(table.metadata)
        files: set[str] = set()
        values: dict[str, str] = {}
        for entry, path in _list_entries(table):
            key = encrypting_key(entry.key_metadata)
            if not self.has(path):
                if key is not None and key[0] in keks:
                    raise KeyMaterialError(
                        f"{entry.location}: its key is under a KEK of {_describe(self.partition)}, "
                        "which it is not in; run modcrypt iceberg rotate dek and expire first"
                    )
                continue
            files.add(entry.location)
            if key is None or key[1] or (key[0] in known and key[0] not in keks):
                raise ValueError(
                    f"{entry.location}: its key does not depend on the partition {path}: {_REMEDY}"
                )
            stated = repr(sorted(entry.partition_by_id.items()))
            if values.setdefault(path, stated) != stated:
                raise ValueError(f"{path} stands for two partitions, which share KEKs: {_REMEDY}")
            if not self.has(posixpath.dirname(entry.location)):
                raise ValueError(
                    f"{entry.location} does not name its partition {path}, so nobody could tell "
                    "that it is erased; run modcrypt iceberg rotate dek and expire first"
                )
        return len(files)


def _describe(partition: Mapping[str, str]) -> str:
    return list_names(f"{name}={value}" for name, value in partition.items())


def _list_entries(table: IcebergTable) -> Iterator[tuple[FileEntry, str]]:
    """Yield the files of all snapshots, each with the path of its partition."""
    paths: dict[int, PartitionPaths] = {}
    for entry in table.walk.all_entries():
        if entry.spec_id not in paths:
            paths[entry.spec_id] = PartitionPaths(table.metadata, entry.spec_id)
        yield entry, paths[entry.spec_id].path(partition_values(table.metadata, entry))


def _list_metadata(table: IcebergTable) -> Iterator[tuple[str, TableMetadata]]:
    """Yield the metadata.json files in the folder of the table's own, with their locations."""
    for name in metadata_files(table):
        place = table.place.beside(name)
        yield place.path, read_metadata(place)


def _drop_from_metadata(table: IcebergTable, plan: _Plan) -> IcebergTable:
    """Return the version of a table without KEKs of a partition; remove all older versions."""
    gone = frozenset(plan.keks)

    def next_version(current: IcebergTable) -> TableMetadata:
        keys = current.metadata.keys.values()
        return current.metadata.with_keys(key for key in keys if key.id not in gone)

    if gone & table.metadata.keys.keys():
        table = commit(table, next_version)
    kept = [snapshot.id for snapshot in table.metadata.snapshots]
    walk = replace(table.walk, leaves_out=plan.is_shredded)  # their KEKs are missing on purpose
    after = expire_history(replace(table, walk=walk), keep=kept).table
    return replace(after, walk=replace(after.walk, leaves_out=table.walk.leaves_out))


def _drop_from_store(table: IcebergTable, plan: _Plan) -> tuple[str, ...]:
    """Drop the KEKs of a partition from the key store; return those that are still there."""
    store = table.resolver.store
    if store is None or not (stored := tuple(sorted(set(store.keys()) & set(plan.keks)))):
        return ()
    try:
        store.replace([], stored)
    except (ModcryptError, OSError):
        return stored
    return ()
