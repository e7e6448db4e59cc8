"""Encrypt the plaintext manifests that Iceberg 1.11 on Spark left behind (apache/iceberg#17991)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import IntegrityError, ModcryptError
from modcrypt.iceberg.format.manifest_rows.file_entries import EXISTING
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import require_encrypted, writing_keys, writing_policy
from modcrypt.iceberg.read.data_files import count_parquet_rows
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.rotate.manifests.plaintext_manifests import (
    NotVouchedError,
    Vouching,
    is_plaintext,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.iceberg.write.manifest_writing import LiveEntry, live_row, replace_manifest
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id
from modcrypt.report.json_fields import JsonFields


@dataclass(frozen=True, kw_only=True)
class RepairedManifests(JsonFields):
    """The result of `repair_manifests`: what was encrypted, or in a dry run would be.

    Attributes:
        table: The table at its new version; unchanged in a dry run or without changes.
        dry_run: Whether it was a dry run, which changes nothing.
        manifests: Locations of the plaintext manifests of the current snapshot.
        files: Number of data and delete files that these manifests name.
        untrusted: Locations of those for whose entries no encrypted manifest vouches. Without
            `trust_plaintext`, the table stays unchanged if there are any.
        reasons: Reason for each of `untrusted`.
        replaced: Whether encrypted manifests replace the plaintext ones.
        older_snapshots: Ids of other snapshots that name plaintext manifests. They stay as they
            are until `expire_history` drops them.
    """

    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    manifests: tuple[str, ...] = ()
    files: int = 0
    untrusted: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    replaced: bool = False
    older_snapshots: tuple[int, ...] = ()

    _without = ("table",)


def repair_manifests(
    table: IcebergTable, *, trust_plaintext: bool = False, dry_run: bool = False
) -> RepairedManifests:
    """Encrypt the plaintext manifests of the current snapshot, in a new snapshot (`replace`).

    Nothing authenticates the content of a plaintext manifest. Its entries are taken from the
    encrypted manifests of the snapshot before it was written, which must have the same files.

    The keys of data files were readable in the plaintext manifests: afterwards, rotate them
    (`rotate_table(table, "dek")`), and expire the older snapshots.

    Args:
        table: Any version of the table; the current version is repaired.
        trust_plaintext: Whether to take the entries from a plaintext manifest if the snapshot
            before it is gone. modcrypt then only checks that the keys in the manifest decrypt the
            files and that the numbers of files and rows are those of the manifest list. Anyone who
            could write to the table's folder may have chosen these files.
        dry_run: Whether to change nothing and only return what would be done.

    Raises:
        PlaintextError: The table, its manifest list or a data file is not encrypted.
        IntegrityError: A plaintext manifest was altered.
        CommitConflictError: Another writer committed first at every attempt.
        ModcryptError, OSError: The table cannot be read, or the commit failed.
    """
    before = latest(table)
    require_encrypted(before.metadata)
    plan = _Plan.of(before)
    result = replace(plan.report(before), dry_run=dry_run)
    if not plan.is_applicable(trust_plaintext):
        return replace(result, table=table)
    if dry_run:
        return replace(result, table=table, replaced=True)
    with NewFiles(before.walk.locations) as files:

        def next_version(current: IcebergTable) -> TableMetadata:
            nonlocal result
            changed = _Plan.of(current)
            result = changed.report(current)
            if not changed.is_applicable(trust_plaintext):
                return current.metadata
            result = replace(result, replaced=True)
            return _write(current, changed, table.metadata, files)

        repaired = commit(before, next_version, files=files)
        return replace(result, table=repaired)


@dataclass(frozen=True)
class _Plan:
    """The manifests of the current snapshot, and the entries of those in plaintext."""

    manifests: Sequence[ManifestFile]
    entries: dict[str, list[LiveEntry]]  # by the location of a plaintext manifest
    reasons: dict[str, str]  # why nothing vouches for the entries of one
    older: tuple[int, ...]
    walk: Walk

    @classmethod
    def of(cls, table: IcebergTable) -> _Plan:
        """Read the current snapshot, and what vouches for its plaintext manifests."""
        vouching, current = Vouching(table.walk), table.metadata.current
        manifests = [] if current is None else vouching.manifests(current)
        entries: dict[str, list[LiveEntry]] = {}
        reasons: dict[str, str] = {}
        for manifest in filter(is_plaintext, manifests):
            try:
                entries[manifest.location] = vouching.find_entries(manifest, manifests)
            except NotVouchedError as error:
                entries[manifest.location] = vouching.read_claims(manifest)
                reasons[manifest.location] = str(error)
        if reasons and current is not None:
            vouching.check_unique(current)
        older = _older_snapshots(table, vouching) if entries else ()
        return cls(manifests, entries, reasons, older, vouching.walk)

    def is_applicable(self, trust_plaintext: bool) -> bool:
        """Return whether the manifests can be replaced; check the files that are only trusted.

        Raise IntegrityError if a file is not what its entry says, PlaintextError if it has no key.
        """
        if not self.entries or (self.reasons and not trust_plaintext):
            return False
        for location in self.reasons:
            for entry, _ in self.entries[location]:
                _check_file(self.walk, entry)
        return True

    def report(self, table: IcebergTable) -> RepairedManifests:
        """Return the result without any change."""
        return RepairedManifests(
            table=table,
            manifests=tuple(self.entries),
            files=sum(map(len, self.entries.values())),
            untrusted=tuple(self.reasons),
            reasons=tuple(self.reasons.values()),
            older_snapshots=self.older,
        )


def _older_snapshots(table: IcebergTable, vouching: Vouching) -> tuple[int, ...]:
    """Return the other snapshots with plaintext manifests; skip those that cannot be read."""
    found = []
    for snapshot in table.metadata.snapshots:
        try:
            plain = any(map(is_plaintext, vouching.manifests(snapshot)))
        except (ModcryptError, FileNotFoundError):
            continue
        if plain:
            found.append(snapshot.id)
    return tuple(found)


def _check_file(walk: Walk, entry: Any) -> None:
    """Check that the key in a plaintext manifest decrypts a file with as many rows as stated."""
    if entry.file_format != "PARQUET":
        walk.read(entry.location, walk.file_keys(entry), entry.size, size=4)
        return
    if (rows := count_parquet_rows(walk, entry)) != entry.record_count:
        raise IntegrityError(f"{entry.location}: the file has {rows} rows, its manifest says other")


def _write(table: IcebergTable, plan: _Plan, seen: TableMetadata, files: NewFiles) -> TableMetadata:
    """Write encrypted manifests and their list; return the metadata that names them."""
    metadata, snapshot_id = table.metadata, new_snapshot_id(table.metadata)
    keys = writing_keys(table, writing_policy(metadata, seen), [])
    new, kept = [], []
    for manifest in plan.manifests:
        if manifest.location in plan.entries:
            live = plan.entries[manifest.location]
            rows = [live_row(metadata, each, status=EXISTING) for each in live]
            new.append(replace_manifest(table, manifest, rows, files, snapshot_id))
        else:
            kept.append(manifest.row)
    summary = {"entries-processed": str(sum(map(len, plan.entries.values())))}
    return add_snapshot(
        table, snapshot_id, [*new, *kept], keys.of_list, files,
        operation="replace", summary=summary, replaced=len(new), new_keys=keys.entries,
    )  # fmt: skip
