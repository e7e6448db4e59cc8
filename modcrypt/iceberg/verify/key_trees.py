"""Which key opens what of a table, from the master key (MEK) down to its files: `key_tree`.

    MEK -> KEKs -> manifest lists (snapshots) -> manifests -> data and delete files

In single wrapping the KEK's place is empty. A file whose key metadata is sealed in its manifest
needs two keys: that of a manifest list that leads to it, and its own. The tree holds no key, and
what could not be opened says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.fork_safety import cached_property
from modcrypt.iceberg.keys.wrapping_keys import wrapped_part
from modcrypt.iceberg.read.inventory import (
    Inventory,
    Keys,
    ReachedFile,
    ReachedList,
    ReachedManifest,
    sealed_part,
    take_inventory,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.key_checks import (
    check_keks,
    master_key_version,
    newest_version,
    uses_of,
)
from modcrypt.iceberg.verify.table_findings import TableReport
from modcrypt.io.buffers import check_threads, usable_cores

__all__ = [
    "KeyTree",
    "ProtectedFile",
    "TreeFile",
    "TreeKek",
    "TreeList",
    "TreeManifest",
    "key_tree",
]

MAX_JOBS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeKek:
    """A KEK.

    Attributes:
        id: its own.
        master_key_id: of the master key that wraps it.
        version: of that, where the wrapped key tells it.
        current: whether that is the newest version; None for unknown.
        created_ms, age_days: when it was made.
        scope: which files it is for; empty for the whole table.
        store: `table` or `key store`.
        lists, files: of how many manifest lists, and data and delete files, it seals the keys.
        error: why the key service did not unwrap it.
    """

    id: str
    master_key_id: str
    version: str | None
    current: bool | None
    created_ms: int
    age_days: int
    scope: str
    store: str
    lists: int
    files: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeList:
    """A manifest list.

    Attributes:
        location, size: of the file; the size is None where it could not be opened.
        snapshots: ids of those that have it.
        sequence_number, timestamp_ms: of the first of them.
        current: whether the current snapshot is among them.
        key_id: of its entry in `encryption-keys`; None in plaintext.
        sealed_by: id of the KEK that seals its key metadata; of the master key where `single`.
        single: whether a master key by itself wraps its key.
        version: of that master key, where it is told.
        manifests: their numbers in the tree.
        error: why it could not be read.
    """

    location: str
    size: int | None
    snapshots: tuple[int, ...]
    sequence_number: int
    timestamp_ms: int
    current: bool
    key_id: str | None
    sealed_by: str | None
    single: bool
    version: str | None
    manifests: tuple[int, ...] = field(repr=False)
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeManifest:
    """A manifest.

    Attributes:
        kind: `manifest` or `delete manifest`.
        location, size: of the file.
        encrypted: whether it is.
        files: their numbers in the tree.
        error: why it could not be read.
    """

    kind: str
    location: str
    size: int
    encrypted: bool
    files: tuple[int, ...] = field(repr=False)
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """A data or delete file.

    Attributes:
        kind: as of `ReachedFile`.
        location, size, records: of the file.
        encrypted: whether it has key metadata.
        sealed_by: id of the KEK, or master key, that seals its key metadata in the manifest; None
            where that lies in the clear there.
        single: whether that is a master key.
        version: of that master key, where it is told.
    """

    kind: str
    location: str
    size: int
    records: int
    encrypted: bool
    sealed_by: str | None
    single: bool
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFile:
    """A file that a key protects: with the key, and the table's files, it can be opened.

    Attributes:
        kind, location, size: of the file.
        only: no other key leads to it: without this one it is lost.
        certain: whether the master key's version is told; what may be under one is under it.
    """

    kind: str
    location: str
    size: int
    only: bool
    certain: bool

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class KeyTree:
    """The keys of a table, and what they open.

    Attributes:
        location, uuid: of the table.
        master_key_id: that new keys are under.
        keks, lists, manifests, files: what there is; manifest lists name manifests by number, and
            manifests files.
        unused: ids of `encryption-keys` that nothing uses.
        whole: whether every manifest list and manifest could be read.
        kms_unavailable: Whether one could not because the key service was unavailable.
    """

    location: str
    uuid: str
    master_key_id: str | None
    keks: tuple[TreeKek, ...] = field(repr=False)
    lists: tuple[TreeList, ...] = field(repr=False)
    manifests: tuple[TreeManifest, ...] = field(repr=False)
    files: tuple[TreeFile, ...] = field(repr=False)
    unused: tuple[str, ...] = field(repr=False)
    whole: bool
    kms_unavailable: bool = False

    @cached_property
    def master_key_ids(self) -> tuple[str, ...]:
        """The master keys that anything is under, the table's own first."""
        found = dict.fromkeys([self.master_key_id] if self.master_key_id else [])
        found |= dict.fromkeys(one.master_key_id for one in self.keks)
        single: list[TreeList | TreeFile] = [*self.lists, *self.files]
        found |= dict.fromkeys(
            one.sealed_by for one in single if one.single and one.sealed_by is not None
        )
        return tuple(found)

    def protected_by(self, key_id: str, version: str | int | None = None) -> list[ProtectedFile]:
        """List the encrypted files that a master key or KEK still protects.

        Older metadata.json files, which may keep the same keys under other master keys, are not
        looked at: `verify_table` tells of them.

        Args:
            key_id: of a master key or KEK; one that nothing is under protects nothing.
            version: of the master key. What does not tell its version counts as under it.

        Returns:
            Manifest lists, manifests, data and delete files. Beneath those that could not be read
            there may be more, see `whole`.
        """
        return _Protection(self, key_id, None if version is None else str(version)).files()

    def beneath(self, lists: Iterable[TreeList]) -> tuple[list[int], list[int]]:
        """Give the numbers of the manifests and files that manifest lists lead to, each once."""
        manifests = dict.fromkeys(number for one in lists for number in one.manifests)
        files = dict.fromkeys(
            number for manifest in manifests for number in self.manifests[manifest].files
        )
        return list(manifests), list(files)

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "location": self.location,
            "uuid": self.uuid,
            "master_key_id": self.master_key_id,
            "keks": [asdict(one) for one in self.keks],
            "lists": [asdict(one) for one in self.lists],
            "manifests": [asdict(one) for one in self.manifests],
            "files": [asdict(one) for one in self.files],
            "unused": list(self.unused),
            "whole": self.whole,
            "kms_unavailable": self.kms_unavailable,
        }

    def to_text(self, *, limit: int = 6) -> str:
        """Draw it for a terminal; of many branches of one kind, the first `limit` are drawn."""
        from modcrypt.iceberg.verify.key_tree_drawing import draw_text

        return draw_text(self, limit)

    def to_html(self) -> str:
        """Draw it as one self-contained page, without any script."""
        from modcrypt.iceberg.verify.key_tree_drawing import draw_page

        return draw_page(self)


def key_tree(
    table: IcebergTable,
    *,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> KeyTree:
    """Find which key opens what of a table, in all of its snapshots; data files are not opened.

    Args:
        table: the version to be looked at.
        jobs: manifest lists and manifests read at the same time; None chooses.
        progress: called now and then, in the calling thread, with the bytes read so far.

    Returns:
        The tree; what could not be opened is in it, and says why.

    Raises:
        ValueError: `jobs` is below 1.
        ModcryptError, OSError: from the key store.
    """
    check_threads(jobs)
    jobs = min(usable_cores(), MAX_JOBS) if jobs is None else jobs
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done)

    metadata, resolver = table.metadata, table.walk.resolver
    checks = check_keks(metadata, resolver, TableReport(), jobs)
    inventory = take_inventory(Keys(table.walk, checks.failed), metadata.snapshots, jobs, passed)
    uses = uses_of(metadata, inventory, whole=inventory.is_whole)
    newest = newest_version(resolver, checks.keks.values())
    now = int(time.time() * 1000)
    keks = [
        TreeKek(
            id=key.id,
            master_key_id=key.master_key_id,
            version=None if key.wrapped is None else master_key_version(key.wrapped),
            current=newest[key.id],
            created_ms=key.timestamp_ms,
            age_days=(now - key.timestamp_ms) // (24 * 60 * 60 * 1000),
            scope=key.scope,
            store="table" if key.id in metadata.keys else "key store",
            lists=uses.lists[key.id],
            files=uses.files[key.id],
            error=str(checks.failed[key.id]) if key.id in checks.failed else None,
        )
        for key in checks.keks.values()
    ]
    return _built(table, inventory, tuple(keks), uses.unused)


def _built(
    table: IcebergTable, inventory: Inventory, keks: tuple[TreeKek, ...], unused: tuple[str, ...]
) -> KeyTree:
    metadata = table.metadata
    manifest_numbers = {id(one): number for number, one in enumerate(inventory.manifests)}
    file_numbers = {id(one): number for number, one in enumerate(inventory.files)}
    current = metadata.document.get("current-snapshot-id")
    lists = [
        _list(one, current, tuple(manifest_numbers[id(each)] for each in one.manifests))
        for one in inventory.lists
    ]
    manifests = [
        _manifest(one, tuple(file_numbers[id(each)] for each in one.files))
        for one in inventory.manifests
    ]
    return KeyTree(
        location=metadata.location,
        uuid=metadata.uuid,
        master_key_id=metadata.master_key_id,
        keks=keks,
        lists=tuple(sorted(lists, key=lambda one: one.sequence_number, reverse=True)),
        manifests=tuple(manifests),
        files=tuple(_file(one) for one in inventory.files),
        unused=unused,
        whole=inventory.is_whole,
        kms_unavailable=inventory.kms_unavailable,
    )


def _list(one: ReachedList, current: Any, manifests: tuple[int, ...]) -> TreeList:
    ids = tuple(snapshot.id for snapshot in one.snapshots)
    return TreeList(
        location=one.location,
        size=one.size,
        snapshots=ids,
        sequence_number=one.snapshots[0].sequence_number,
        timestamp_ms=one.snapshots[0].timestamp_ms,
        current=current in ids,
        key_id=one.snapshots[0].key_id,
        sealed_by=None if one.key is None else one.key.encrypted_by,
        single=one.is_single,
        version=_single_version(one.key.encrypted) if one.key and one.is_single else None,
        manifests=manifests,
        error=None if one.error is None else str(one.error),
    )


def _manifest(one: ReachedManifest, files: tuple[int, ...]) -> TreeManifest:
    return TreeManifest(
        kind=one.kind,
        location=one.manifest.location,
        size=one.manifest.length,
        encrypted=one.manifest.key_metadata is not None,
        files=files,
        error=None if one.error is None else str(one.error),
    )


def _file(one: ReachedFile) -> TreeFile:
    entry, by = one.entry, one.sealed_by
    single = by is not None and by[1]
    sealed = sealed_part(entry.key_metadata) if single and entry.key_metadata else None
    return TreeFile(
        kind=one.kind,
        location=entry.location,
        size=entry.size,
        records=sum(each.record_count for each in one.entries),
        encrypted=entry.key_metadata is not None,
        sealed_by=None if by is None else by[0],
        single=single,
        version=None if sealed is None else _single_version(sealed),
    )


def _single_version(sealed: bytes) -> str | None:
    """Give the version of the master key that wraps a data key by itself, where it is told."""
    try:
        return master_key_version(wrapped_part(sealed))
    except KeyMaterialError:
        return None


# --- what a key protects -------------------------------------------------------------------------


class _Protection:
    """Finds what is lost without a key, and what else has another way to it."""

    def __init__(self, tree: KeyTree, key_id: str, version: str | None) -> None:
        self._tree, self._key_id, self._version = tree, key_id, version
        self._keks = {one.id: one for one in tree.keks}

    def files(self) -> list[ProtectedFile]:
        """Give what the key protects, from manifest lists down."""
        tree = self._tree
        needs = [(one, self._needs(one)) for one in tree.lists]
        manifests, files = _sets(tree, (one for one, need in needs if need is not None))
        other_manifests, other_files = _sets(tree, (one for one, need in needs if need is None))
        sure_manifests, sure_files = _sets(tree, (one for one, need in needs if need))
        found = [
            self._found("manifest list", one, only=True, certain=need)
            for one, need in needs
            if need is not None
        ]
        found += [
            self._found(
                one.kind, one, only=number not in other_manifests, certain=number in sure_manifests
            )
            for number, one in enumerate(tree.manifests)
            if number in manifests and one.encrypted
        ]
        for number, file in enumerate(tree.files):
            own = self._needs(file)
            if file.encrypted and (number in files or own is not None):
                only = own is not None or number not in other_files
                certain = bool(own) or number in sure_files
                found.append(self._found(file.kind, file, only=only, certain=certain))
        return found

    @staticmethod
    def _found(
        kind: str, one: TreeList | TreeManifest | TreeFile, *, only: bool, certain: bool
    ) -> ProtectedFile:
        return ProtectedFile(
            kind=kind, location=one.location, size=one.size or 0, only=only, certain=certain
        )

    def _needs(self, one: TreeList | TreeFile) -> bool | None:
        """Whether the key seals what leads to a file: None for no, False for perhaps."""
        if one.sealed_by is None:
            return None
        if one.single:
            return self._fits(one.version) if one.sealed_by == self._key_id else None
        if one.sealed_by == self._key_id:
            return True
        kek = self._keks.get(one.sealed_by)
        if kek is None or kek.master_key_id != self._key_id:
            return None
        return self._fits(kek.version)

    def _fits(self, version: str | None) -> bool | None:
        if self._version is None:
            return True
        if version is None:
            return False
        return True if version == self._version else None


def _sets(tree: KeyTree, lists: Iterable[TreeList]) -> tuple[set[int], set[int]]:
    """Give the numbers of the manifests and files that manifest lists lead to."""
    manifests, files = tree.beneath(lists)
    return set(manifests), set(files)
