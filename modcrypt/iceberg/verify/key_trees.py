"""Find which keys decrypt which files of a table, from the master key (MEK) down: `key_tree`.

    MEK -> KEKs -> manifest lists (snapshots) -> manifests -> data and delete files

With single wrapping there is no KEK. A file whose key metadata is encrypted in its manifest needs
two keys: that of a manifest list that leads to it, and its own. The tree contains no keys. Keys and
files that are not available have an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.iceberg.keys.wrapping_keys import wrapped_part
from modcrypt.iceberg.read.inventory import (
    Keys,
    ReachedFile,
    ReachedList,
    ReachedManifest,
    encrypted_part,
    take_inventory,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.key_checks import KeyChecks, master_key_version
from modcrypt.iceberg.verify.key_tree_nodes import (
    KeyTreeNodes,
    TreeFile,
    TreeKek,
    TreeList,
    TreeManifest,
)
from modcrypt.iceberg.verify.table_findings import add_up, choose_jobs
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import JsonFields


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFile(JsonFields):
    """A file that a key protects: the key and the table's files suffice to decrypt it.

    Attributes:
        kind, location, size: Kind, location and size of the file.
        only: Whether no other key leads to the file: without this key it is lost.
        certain: Whether the version of the master key is known; an unknown version counts as the
            requested one.
    """

    kind: str
    location: str
    size: int
    only: bool
    certain: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class KeyTree(FactSheet, KeyTreeNodes):
    """The keys of a table, and the files that they decrypt; see `KeyTreeNodes` for attributes."""

    def protected_by(self, key_id: str, version: str | int | None = None) -> list[ProtectedFile]:
        """List the encrypted files that a master key or KEK still protects.

        Older metadata.json files, which may contain the same keys under other master keys, are not
        considered: `verify_table` reports them.

        Args:
            key_id: Id of a master key or KEK; an unused key protects nothing.
            version: Version of the master key. Keys of unknown version count as under it.

        Returns:
            Manifest lists, manifests, data and delete files. Unreadable lists and manifests may
            lead to further files, see `whole`.
        """
        return list(_find_protected(self, key_id, None if version is None else str(version)))

    def fields(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the table, its keys and its files."""
        return [
            ("Table", self.location),
            ("Master keys", ", ".join(self.master_key_ids) or "none"),
            ("KEKs", f"{len(self.keks):,}"),
            ("Manifest lists", f"{len(self.lists):,}"),
            ("Manifests", f"{len(self.manifests):,}"),
            ("Files", f"{len(self.files):,}"),
            ("Complete", "yes" if self.whole else "no"),
        ]

    def to_text(self, *, limit: int = 6) -> str:
        """Draw the tree for a terminal, with at most `limit` branches of one kind per node."""
        from modcrypt.iceberg.verify.key_tree_drawing import draw_text

        return draw_text(self, limit)

    def to_html(self) -> str:
        """Return the page that draws the tree; see `modcrypt.report.render_html`."""
        from modcrypt.iceberg.verify.key_tree_drawing import draw_page

        return draw_page(self)


def key_tree(
    table: IcebergTable, *, jobs: int | None = None, progress: Callable[[int], None] | None = None
) -> KeyTree:
    """Find which keys decrypt which files of a table, in all snapshots; data files are not read.

    Args:
        table: The version of the table to examine.
        jobs: Number of manifest lists and manifests read concurrently; None selects a default.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            read so far.

    Returns:
        The tree; unavailable keys and files in it have an error.

    Raises:
        ValueError: `jobs` is below 1.
        ModcryptError, OSError: The key store failed.
    """
    jobs, metadata = choose_jobs(jobs), table.metadata
    checks = KeyChecks(metadata, table.resolver, TableReport())
    checks.check_keks(jobs)
    inventory = take_inventory(
        Keys(table.walk, checks.failed), metadata.snapshots, jobs, add_up(progress)
    )
    checks.count_uses(inventory, whole=inventory.is_whole)
    current = metadata.document.get("current-snapshot-id")
    lists = [_tree_list(manifest_list, current) for manifest_list in inventory.lists]
    lists.sort(key=lambda manifest_list: manifest_list.sequence_number, reverse=True)
    return KeyTree(
        location=metadata.location,
        uuid=metadata.uuid,
        master_key_id=metadata.master_key_id,
        keks=tuple(
            TreeKek(
                **facts,
                lists=checks.lists[key.id],
                version=None if key.wrapped is None else master_key_version(key.wrapped),
                error=str(checks.failed[key.id]) if key.id in checks.failed else None,
            )
            for key, facts in checks.describe_keks()
        ),
        lists=tuple(lists),
        manifests=tuple(map(_tree_manifest, inventory.manifests)),
        files=tuple(map(_tree_file, inventory.files)),
        unused=checks.unused,
        whole=inventory.is_whole,
        kms_unavailable=inventory.kms_unavailable,
    )


def _tree_list(reached: ReachedList, current: Any) -> TreeList:
    ids, first = tuple(snapshot.id for snapshot in reached.snapshots), reached.snapshots[0]
    return TreeList(
        location=reached.location, size=reached.size, snapshots=ids,
        sequence_number=first.sequence_number, timestamp_ms=first.timestamp_ms,
        current=current in ids, key_id=first.key_id,
        **_key_facts(reached.encrypted_by, None if reached.key is None else reached.key.encrypted),
        manifests=tuple(manifest.number for manifest in reached.manifests),
        error=None if reached.error is None else str(reached.error),
    )  # fmt: skip


def _tree_manifest(reached: ReachedManifest) -> TreeManifest:
    return TreeManifest(
        kind=reached.kind,
        location=reached.location,
        size=reached.manifest.length,
        encrypted=reached.encrypted,
        files=tuple(file.number for file in reached.files),
        error=None if reached.error is None else str(reached.error),
    )


def _tree_file(reached: ReachedFile) -> TreeFile:
    by = reached.encrypted_by
    encrypted = None if by is None else encrypted_part(reached.entry.key_metadata or b"")
    return TreeFile(
        kind=reached.kind, location=reached.location, size=reached.entry.size,
        records=reached.records, encrypted=reached.encrypted, **_key_facts(by, encrypted),
    )  # fmt: skip


def _key_facts(by: tuple[str, bool] | None, encrypted: bytes | None) -> dict[str, Any]:
    """Return the attributes of a node about the key that encrypts its key metadata."""
    id_, single = by or (None, False)
    version = None
    if single and encrypted is not None:
        with contextlib.suppress(KeyMaterialError):  # the version is unknown
            version = master_key_version(wrapped_part(encrypted))
    return {"sealed_by": id_, "single": single, "version": version}


def _find_protected(tree: KeyTree, key_id: str, version: str | None) -> Iterator[ProtectedFile]:
    """Yield the files that a key protects; some may also be reached with another key."""
    keks = {kek.id: kek for kek in tree.keks}
    needs = [(each, _needs(each, keks, key_id, version)) for each in tree.lists]
    manifests, files = tree.beneath(each for each, need in needs if need is not None)
    other_manifests, other_files = tree.beneath(each for each, need in needs if need is None)
    sure_manifests, sure_files = tree.beneath(each for each, need in needs if need)
    for manifest_list, need in needs:
        if need is not None:
            yield _protected_file("manifest list", manifest_list, only=True, certain=need)
    for number, manifest in enumerate(tree.manifests):
        if number in manifests and manifest.encrypted:
            only, certain = number not in other_manifests, number in sure_manifests
            yield _protected_file(manifest.kind, manifest, only=only, certain=certain)
    for number, file in enumerate(tree.files):
        own = _needs(file, keks, key_id, version)
        if file.encrypted and (number in files or own is not None):
            only = own is not None or number not in other_files
            certain = bool(own) or number in sure_files
            yield _protected_file(file.kind, file, only=only, certain=certain)


def _protected_file(
    kind: str, item: TreeList | TreeManifest | TreeFile, *, only: bool, certain: bool
) -> ProtectedFile:
    size = item.size or 0
    return ProtectedFile(kind=kind, location=item.location, size=size, only=only, certain=certain)


def _needs(
    item: TreeList | TreeFile, keks: Mapping[str, TreeKek], key_id: str, version: str | None
) -> bool | None:
    """Return whether a list or file needs a key: None for no, False for perhaps."""
    kek = None if item.single else keks.get(item.sealed_by or "")
    if item.sealed_by == key_id and not item.single:
        return True
    if key_id != (item.sealed_by if item.single else kek and kek.master_key_id):
        return None
    own = item.version if kek is None else kek.version
    if version is None or own is None:
        return version is None
    return True if own == version else None
