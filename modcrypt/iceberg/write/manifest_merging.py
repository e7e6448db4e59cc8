"""Merge the small manifests of a table when an append adds one (Java's ManifestMergeManager).

Without merging, a table has a manifest for each append, and every scan reads all of them. From the
oldest on, manifests are put together up to `commit.manifest.target-size-bytes`. The group that gets
the new manifest is merged once it has `commit.manifest.min-count-to-merge` manifests, so that most
appends read no manifest. Manifests of delete files and of other partition specs stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import make_compatible_name

from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, EXISTING
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.write.manifest_writing import (
    LiveEntry,
    entry_row,
    live_entries,
    partition_spec,
)
from modcrypt.io.threads import in_threads

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion

ENABLED = "commit.manifest-merge.enabled"
TARGET_SIZE = "commit.manifest.target-size-bytes"
MIN_COUNT = "commit.manifest.min-count-to-merge"  # table properties, as Iceberg's Java names them

MAX_TARGET_SIZE = 64 << 20
"""Limit of the target size, which anyone who can write metadata.json can set: in memory, a byte of
a manifest becomes about 20."""

_THREADS = 8


@dataclass(frozen=True)
class Merges:
    """The merges of one append."""

    with_new: Sequence[ManifestFile] = ()  # manifests whose files the new manifest takes over
    others: Sequence[Sequence[ManifestFile]] = ()  # groups that become one manifest each
    kept: Sequence[ManifestFile] = ()

    @property
    def replaced(self) -> int:
        """Number of manifests that are merged into others."""
        return len(self.with_new) + sum(map(len, self.others))


def plan_merges(metadata: TableMetadata, spec_id: int, manifests: Sequence[ManifestFile]) -> Merges:
    """Return the manifests that an append of files of a partition spec merges.

    The newest manifests come first, as in a manifest list. Raise FormatError if a property is not a
    whole number.
    """
    if metadata.properties.get(ENABLED, "true").lower() != "true":
        return Merges(kept=manifests)
    size = min(metadata.number(TARGET_SIZE, 8 << 20), MAX_TARGET_SIZE)
    mergeable = [m for m in manifests if m.content == DATA and m.spec_id == spec_id]
    newest, *older = _pack(mergeable, size)
    with_new = newest if len(newest) + 1 >= metadata.number(MIN_COUNT, 100) else []
    others = [group for group in older if len(group) > 1]
    merged = {id(manifest) for group in (with_new, *others) for manifest in group}
    return Merges(with_new, others, [m for m in manifests if id(m) not in merged])


def existing_rows(
    table: TableVersion, spec_id: int, manifests: Sequence[ManifestFile]
) -> Iterator[dict[str, Any]]:
    """Yield the live files of data manifests as rows of another manifest.

    Raise ModcryptError or OSError if a manifest cannot be read.
    """
    fields = partition_spec(table.metadata, spec_id).fields
    names = {field.field_id: make_compatible_name(field.name) for field in fields}

    def read(manifest: ManifestFile) -> list[LiveEntry]:
        return live_entries(manifest, table.walk.entries(manifest))

    for live in in_threads(read, manifests, _THREADS):
        for entry, first in live:
            values = entry.partition_by_id
            partition = {name: values.get(id_) for id_, name in names.items()}
            yield entry_row(entry, status=EXISTING, first_row_id=first, partition=partition)


def _pack(manifests: Sequence[ManifestFile], size: int) -> list[list[ManifestFile]]:
    """Group manifests from the oldest on up to a size; the newest group, which may be empty, first.

    Manifests keep their order.
    """
    groups: list[list[ManifestFile]] = [[]]
    total = 0
    for manifest in reversed(manifests):
        total += manifest.length
        if groups[0] and total > size:
            groups.insert(0, [])
            total = manifest.length
        groups[0].insert(0, manifest)
    return groups
