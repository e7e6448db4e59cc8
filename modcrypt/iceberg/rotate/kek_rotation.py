"""Replace a table's KEKs by new ones; with single wrapping, wrap the data keys again.

    encryption-keys   entries of manifest lists are encrypted again under their old ids, so that
                      nothing else of a snapshot changes
    manifests         rewritten, with the lists that name them, only if KEKs by partition or by
                      number of files, or the master key itself, encrypt key metadata in them; the
                      snapshots are otherwise unchanged
    KEKs              one new KEK replaces all old ones of a scope; old ones in the table's
                      metadata are dropped

A REST catalog does not change snapshots. There manifests are rewritten as `replace` snapshots of
the branches and tags (`rotated_snapshots`); older snapshots keep theirs, and the table the KEKs for
them, until `expire_history`.

All changes are one new version of the table. Old KEKs in a key store are kept, as are those in
older metadata.json files: older versions need them until `expire_history` drops both. No new key
is encrypted under them (`KEKS_SINCE`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from modcrypt.errors import FormatError, PlaintextError
from modcrypt.iceberg.format.ags1_files import write_ags1
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.manifests import FileEntry, ManifestFile
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import (
    FILES_SCOPE,
    KEKS_SINCE,
    KeyPolicy,
    make_keks,
    next_kek_time,
    writing_keys,
    writing_policy,
)
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.rotate.file_rekeying import Run, rewrite_files
from modcrypt.iceberg.rotate.manifest_rewrapping import Exchange, reseal_manifest, reseal_metadata
from modcrypt.iceberg.rotate.mek_rotation import MekRotation
from modcrypt.iceberg.rotate.ref_heads import Head, list_behind, list_heads
from modcrypt.iceberg.rotate.rotated_snapshots import (
    FileId,
    NewFile,
    RotatedSnapshots,
    file_id,
    tag_names,
    with_live_files,
)
from modcrypt.iceberg.rotate.rotation_report import (
    CountingClient,
    TableRotation,
    target_of,
)
from modcrypt.iceberg.rotate.wrapped_in_manifests import (
    THREADS,
    Opened,
    SealedManifests,
    check_store,
    list_keys,
    place_of,
    sealed_manifests,
    seals_files,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.manifest_writing import metadata_folder
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.io.places import Place
from modcrypt.io.threads import in_threads
from modcrypt.keys import Secret
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.calls import can_unwrap_many
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.proof import WrapProof
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

KEYS_TOGETHER = 200
"""Number of keys that a rotation moves together, as many as Vault wraps at once."""

_PATH, _LENGTH, _KEY_METADATA = 500, 501, 519
"""Ids of fields of a manifest list (spec, "Manifest Lists")."""


# --- what is to be done --------------------------------------------------------------------------


class _Slot(NamedTuple):
    """The key by which old KEKs are grouped: one new KEK replaces all KEKs of a slot."""

    scope: str
    """Scope of the KEKs."""

    in_table: bool
    """Whether the KEKs are stored in the table's metadata."""

    alone: str = ""
    """Id of a KEK for a number of files: it is replaced alone, so no key gets more files."""

    @classmethod
    def of_lists(cls, key: IcebergKey, in_table: bool) -> _Slot:
        """Return the slot of a KEK that encrypts keys of manifest lists.

        Iceberg's Java uses any KEK for these. They are moved away from KEKs that are for some
        files: otherwise shredding such a KEK would lose snapshots.
        """
        return cls("" if seals_files(key) else key.scope, in_table)

    @classmethod
    def of_files(cls, key: IcebergKey, in_table: bool) -> _Slot:
        """Return the slot of a KEK that encrypts keys of data and delete files."""
        return cls(key.scope, in_table, key.id if key.scope == FILES_SCOPE else "")


@dataclass(frozen=True)
class _RotationPlan:
    """A plan for the rotation of the KEKs of one version of a table."""

    place: Place
    # KEKs in the table's metadata, and those in the key store that are in use, by id.
    keks: Mapping[str, IcebergKey]
    stored: Mapping[str, IcebergKey]  # all KEKs of the table in the key store, by id
    sealed: tuple[EncryptedKey, ...]
    within: SealedManifests
    # Those of a catalog that does not change snapshots; older snapshots keep them as they are.
    older: SealedManifests | None
    older_snapshots: tuple[int, ...]
    behind_refs: tuple[str, ...]
    # Number of new manifest lists, in new snapshots, whose keys the master key wraps.
    new_singles: int
    proof: WrapProof

    @classmethod
    def of(cls, table: IcebergTable, opened: Opened | None = None) -> _RotationPlan:
        """Plan the rotation for a version of the table."""
        check_store(table)
        keys = table.metadata.keys
        known = table.resolver.keks(table.metadata)
        metadata, within, older = table.metadata, sealed_manifests(table, opened), None
        heads = list_heads(metadata) if table.versions.merges and within.lists else []
        if heads:
            older, within = within, within.of(head.snapshot for head in heads)
        sealed = tuple(entry for id_, entry in keys.items() if id_ not in known)
        used = keys.keys() | {entry.encrypted_by for entry in sealed} | (older or within).keks
        keks = {id_: kek for id_, kek in known.items() if id_ in used}
        stored = {id_: kek for id_, kek in known.items() if id_ not in keys}
        is_single = bool(heads) and KeyPolicy.of(metadata).wrapping == "single"
        of_older = [old for old in metadata.snapshots if older and old.manifest_list in older.lists]
        return cls(
            table.place, keks, stored, sealed, within, older,
            older_snapshots=tuple(sorted(old.id for old in of_older)),
            behind_refs=list_behind(metadata) if metadata.current in of_older else (),
            new_singles=_count_new(heads, within) if is_single else 0,
            proof=table.resolver.masters.proof,
        )  # fmt: skip

    @property
    def kept(self) -> frozenset[str]:
        """Ids of the KEKs that manifests of older snapshots still need after the rotation."""
        return frozenset() if self.older is None else self.older.keks

    @property
    def changed_lists(self) -> Collection[str]:
        """Locations of the manifest lists that the same snapshots name under other locations."""
        return self.within.lists if self.older is None else ()

    @cached_property
    def lists(self) -> dict[str, _Slot]:
        """The slots of the KEKs that encrypt keys of manifest lists, by the KEKs' ids."""
        sealing, keks = {entry.encrypted_by for entry in self.sealed}, self.keks.items()
        return {id_: _Slot.of_lists(k, id_ not in self.stored) for id_, k in keks if id_ in sealing}

    @cached_property
    def files(self) -> dict[str, _Slot]:
        """The slots of the KEKs that encrypt keys of data and delete files, by the KEKs' ids."""
        sealing, keks = self.within.keks, self.keks.items()
        return {id_: _Slot.of_files(k, id_ not in self.stored) for id_, k in keks if id_ in sealing}

    @property
    def slots(self) -> Collection[_Slot]:
        """All slots, each once."""
        return dict.fromkeys((*self.lists.values(), *self.files.values())).keys()

    def kept_under_others(self, table: IcebergTable, target: str) -> list[IcebergKey]:
        """Return the KEKs in the table that stay, and move to the master key `target`."""
        keys = table.metadata.keys
        ids = sorted(self.kept & self.keks.keys() & keys.keys())
        return [self.keks[id_] for id_ in ids if keys[id_].encrypted_by != target]

    def report(self, table: IcebergTable, client: KmsClient, target: str) -> TableRotation:
        single = sum(entry.is_single for entry in self.sealed)
        singles = [single, *(manifest.single for manifest in self.within.manifests.values())]
        batch = max(1, capabilities_of(client).batch)
        wraps = [sum(slot.in_table is where for slot in self.slots) for where in (True, False)]
        wraps += [len(moved := self.kept_under_others(table, target)), *[1] * self.new_singles]
        calls = sum(-(-count // batch) for count in (*wraps, *singles))
        unwraps = len(self.lists.keys() | self.files.keys()) + sum(singles) + len(moved)
        if can_unwrap_many(client):
            calls, unwraps = (
                sum(-(-n // batch) for n in (*wraps, sum(singles))),
                -(-unwraps // batch),
            )
        calls += self.proof.expected_calls(sum(wraps) + sum(singles))
        return TableRotation(
            what="kek", table=table, new_keks=len(self.slots),
            keks=len(self.keks.keys() - (self.kept - self.lists.keys() - self.files.keys())),
            entries=len(self.sealed) - len(self.changed_lists),
            manifest_lists=len(self.within.lists), manifests=len(self.within.manifests),
            left=tuple(sorted((self.older or self.within).keks - self.keks.keys())),
            kms_calls=unwraps + calls, older_snapshots=self.older_snapshots,
            behind_refs=self.behind_refs,
        )  # fmt: skip


# --- doing it ------------------------------------------------------------------------------------


@dataclass
class KekRotation:
    """The making of the next version; a retry of the commit reuses what is already made."""

    seen: TableMetadata = field(repr=False)
    resolver: KeyResolver
    new_id: str | None
    # New files of the job; new KEKs in a key store stay, as other writers may use them.
    files: NewFiles
    run: Run | None = None
    target: str = ""  # id of the master key under which the following attributes are made
    made: dict[_Slot, OpenKey] = field(default_factory=dict)  # new KEKs by slot
    # KEKs that stay, see `MekRotation.moved`.
    stay: dict[tuple[str, bytes | None], IcebergKey] = field(default_factory=dict, repr=False)
    # Entries encrypted again, by the old entries.
    sealed: dict[tuple[str, bytes], EncryptedKey] = field(default_factory=dict, repr=False)
    # Rows for the manifest list of rewritten manifests, by the old locations.
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    # Key metadata of the files in manifests, for new snapshots, by the manifests' locations.
    resealed: dict[str, list[Secret[bytes] | None]] = field(default_factory=dict, repr=False)
    # Locations and key metadata of rewritten manifest lists, by the old locations.
    lists: dict[str, tuple[str, StandardKeyMetadata]] = field(default_factory=dict, repr=False)
    # Key metadata of the manifest lists that had to be read.
    opened: Opened = field(default_factory=dict, repr=False)
    planned: _RotationPlan = field(init=False)
    # See `MekRotation`.
    has_work: bool = True
    in_table: bool = True

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return what would be done."""
        there = table.metadata.keys or table.resolver.keks(table.metadata)
        # A table that never had rows has no keys.
        self.has_work = bool(there) or target != table.metadata.master_key_id
        self.planned = _RotationPlan.of(table, self.opened)
        return self.planned.report(table, client, target)

    @property
    def replaced(self) -> set[str]:
        """Ids of the KEKs that the rotation has replaced, and the table no longer has."""
        made = {made.key.id for made in self.made.values()}
        return self.planned.keks.keys() - made - self.planned.kept

    def finish(self, table: IcebergTable) -> TableRotation:
        """Return what was done."""
        return self.planned.report(table, self.resolver.masters.client, self.target)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Create missing KEKs and files, and return the metadata that has them."""
        metadata, target = table.metadata, target_of(table, self.new_id)
        # Another writer may have rotated the MEK, or already use the new KEKs in the store.
        if target != self.target or not all(slot.in_table for slot in self.made):
            self.target = target
            caches = self.made, self.stay, self.sealed, self.manifests, self.resealed, self.lists
            for cache in caches:
                cache.clear()
        if table.place != self.planned.place:
            self.planned = _RotationPlan.of(table, self.opened)
        planned = self.planned
        kept = [planned.keks[id_] for id_ in planned.kept & planned.keks.keys()]
        since = next_kek_time([*planned.stored.values(), *kept])
        self._make_keks(metadata, since)
        self._rewrite(table)
        new = [self.made[slot].key.entry() for slot in planned.slots if slot.in_table]
        properties = {**metadata.properties, KEY_ID: target}
        staged = metadata.with_keys(
            [*new, *self._keep_keks(table), *self._encrypt_entries(metadata)],
            properties={**properties, KEKS_SINCE: str(since)} if planned.stored else properties,
            snapshots=[self._snapshot_document(snapshot) for snapshot in metadata.snapshots],
        )
        adds = planned.older is not None and planned.within.manifests
        return self._add_snapshots(table, staged) if adds else staged

    def _rewrite(self, table: IcebergTable) -> None:
        """Rewrite what the same snapshots will name."""
        within, self.files.used = self.planned.within, ()
        if self.planned.older is None:
            self._write_manifests(table)
            self._write_lists(table)
            manifests = [self.manifests[location]["manifest_path"] for location in within.manifests]
            self.files.used = [*manifests, *(self.lists[location][0] for location in within.lists)]

    def _add_snapshots(self, table: IcebergTable, staged: TableMetadata) -> TableMetadata:
        """Add snapshots with rewritten manifests to a version that has the new keys."""
        policy, heads = writing_policy(table.metadata, self.seen), list_heads(table.metadata)
        after, exchange = table.with_metadata(staged), self._exchange(table)
        listed = {
            old.id: table.walk.manifests_by(list_keys(table, old, self.opened), old)
            for old in (head.snapshot for head in heads)
        }
        unique = {each.location: each for found in listed.values() for each in found}
        read = in_threads(table.walk.entries, unique.values(), THREADS)
        entries = dict(zip(unique, read, strict=True))
        new = RotatedSnapshots(
            after, self._reseal(table, entries, exchange), lambda location: location,
            writing_keys(after, policy, ()), self.files, tag_names(staged), same_files=True,
        )  # fmt: skip
        for head in heads:
            pairs = [(each, entries[each.location]) for each in listed[head.snapshot.id]]
            new.add(head, with_live_files(pairs))
        return new.table.metadata

    # --- keys -----------------------------------------------------------------------------------

    def _make_keks(self, metadata: TableMetadata, since: int) -> None:
        """Create the KEKs of slots that have none yet."""
        for in_table in (True, False):
            slots = [
                slot
                for slot in self.planned.slots
                if slot.in_table is in_table and slot not in self.made
            ]
            new = make_keks(
                self.resolver, metadata, self.target, [slot.scope for slot in slots],
                in_store=not in_table, now_ms=since,
            )  # fmt: skip
            self.made.update(zip(slots, new, strict=True))

    def _keep_keks(self, table: IcebergTable) -> list[EncryptedKey]:
        """Return the entries of KEKs that stay in the table, under its master key."""
        keys, others = table.metadata.keys, self.planned.kept_under_others(table, self.target)
        moving, moved = MekRotation(self.resolver, self.target, moved=self.stay), {}
        if others:
            moving.fetch_keks(others, self.target)
            moved = moving.move_keks(table, [kek.id for kek in others], self.target)
        return [moved.get(id_, keys[id_]) for id_ in sorted(self.planned.kept & keys.keys())]

    def _encrypt_entries(self, metadata: TableMetadata) -> list[EncryptedKey]:
        """Encrypt the entries of manifest lists again, grouped by key."""
        fresh = {
            snapshot.key_id: self.lists[snapshot.manifest_list][1]
            for snapshot in metadata.snapshots
            if snapshot.manifest_list in self.planned.changed_lists
        }
        by: dict[tuple[str, bool], list[EncryptedKey]] = {}
        for entry in self.planned.sealed:
            if place_of(entry) not in self.sealed:
                by.setdefault((entry.encrypted_by, entry.is_single), []).append(entry)
        self.resolver.fetch_entries(
            (
                entry
                for entry in self.planned.sealed
                if place_of(entry) not in self.sealed
                and entry.id not in fresh
                and place_of(entry) not in self.opened
            ),
            metadata,
        )
        for (id_, single), entries in by.items():
            decrypt = self._decryption(id_, single, metadata)
            plain = [
                fresh.get(entry.id) or self.opened.get(place_of(entry)) or decrypt(entry)
                for entry in entries
            ]
            key = self._single() if single else self.made[self.planned.lists[id_]]
            # The master key wraps each key in its own call, unless the key service has batches.
            each = single and capabilities_of(self.resolver.masters.client).batch < 2
            sealed = in_threads(key.seal, plain, THREADS) if each else key.seal_many(plain)
            self._store_entries(entries, key, sealed)
        return [self.sealed[place_of(entry)] for entry in self.planned.sealed]

    def _single(self) -> OpenKey:
        """Return the master key itself."""
        return self.resolver.open_key(IcebergKey.single(self.target))

    def _decryption(
        self, id_: str, single: bool, metadata: TableMetadata
    ) -> Callable[[EncryptedKey], StandardKeyMetadata]:
        """Return a function that decrypts all entries under one key; it finds a KEK only once."""
        if single:
            return lambda entry: self.resolver.open_entry(entry, metadata)
        kek = self.resolver.open_key(self.resolver.find(id_, metadata))
        return lambda entry: kek.open(entry.encrypted)

    def _store_entries(
        self, before: Sequence[EncryptedKey], key: OpenKey, sealed: Iterable[bytes]
    ) -> None:
        for entry, encrypted in zip(before, sealed, strict=True):
            self.sealed[place_of(entry)] = replace(
                entry, encrypted=encrypted, encrypted_by=key.key.id
            )

    # --- files ----------------------------------------------------------------------------------

    def _write_manifests(self, table: IcebergTable) -> None:
        left = [
            sealed.manifest
            for location, sealed in self.planned.within.manifests.items()
            if location not in self.manifests
        ]
        exchange = self._exchange(table)
        if left:
            self.files.note_folder(exchange.folder)
        write = self._run_in_threads if self.run is None or not left else self._run_elsewhere
        for manifest, (location, keys) in zip(left, write(table, left, exchange), strict=True):
            self.manifests[manifest.location] = {
                **manifest.row, "manifest_path": location, "manifest_length": keys.file_length,
                "key_metadata": Secret(keys.encode()),
            }  # fmt: skip

    def _exchange(self, table: IcebergTable) -> Exchange:
        """Return the exchange of keys in manifests, whose KEKs are unwrapped together."""
        exchange = Exchange(
            old={id_: self.resolver.find(id_, table.metadata) for id_ in self.planned.files},
            new={id_: self.made[slot].key for id_, slot in self.planned.files.items()},
            single=self._single().key,
            folder=metadata_folder(table.metadata),
            name=self.files.name,
            key_length=table.metadata.key_length,
        )
        self.resolver.fetch_keys((*exchange.old.values(), *exchange.new.values()))
        return exchange

    @hide_frames  # key metadata in plaintext contains data keys
    def _reseal(
        self, table: IcebergTable, entries: Mapping[str, Sequence[FileEntry]], exchange: Exchange
    ) -> dict[FileId, NewFile]:
        """Return the files of manifests with their key metadata under the new keys."""
        within = self.planned.within

        def work(manifest: ManifestFile) -> list[Secret[bytes] | None]:
            before = [entry.key_metadata for entry in entries[manifest.location]]
            after = reseal_metadata(before, exchange, self.resolver)
            return [None if data is None else Secret(data) for data in after]

        left = [sealed.manifest for sealed in within.manifests.values()]
        left = [manifest for manifest in left if manifest.location not in self.resealed]
        for group in _group_by_keys(within, left):
            self._fetch_singles(group, exchange.single.master_key_id)
            done = in_threads(work, group, THREADS)
            self.resealed.update(zip((each.location for each in group), done, strict=True))
        return {
            file_id(table, entry): NewFile({}, new)
            for location in within.manifests
            for entry, new in zip(entries[location], self.resealed[location], strict=True)
            if entry.is_live and new is not None and new() != entry.key_metadata
        }

    def _run_in_threads(
        self, table: IcebergTable, manifests: Sequence[ManifestFile], exchange: Exchange
    ) -> Iterator[tuple[str, StandardKeyMetadata]]:
        def work(manifest: ManifestFile) -> tuple[str, StandardKeyMetadata]:
            walk = table.walk
            keys, locations = _keys_of(walk, manifest), walk.locations
            return reseal_manifest(locations, manifest.location, keys, exchange, self.resolver)

        for group in _group_by_keys(self.planned.within, manifests):
            self._fetch_singles(group, exchange.single.master_key_id)
            yield from in_threads(work, group, THREADS)

    def _fetch_singles(self, manifests: Iterable[ManifestFile], target: str) -> None:
        """Have the data keys moved together that the master key wraps in manifests."""
        by_master: dict[str, list[bytes]] = {}
        for manifest in manifests:
            for old_id, wrapped in self.planned.within.manifests[manifest.location].singles:
                by_master.setdefault(old_id, []).append(wrapped)
        for old_id, group in by_master.items():
            self.resolver.masters.fetch_moves(group, old_id, target)

    def _run_elsewhere(
        self, table: IcebergTable, manifests: Sequence[ManifestFile], exchange: Exchange
    ) -> list[tuple[str, StandardKeyMetadata]]:
        assert self.run is not None
        job = self.resolver.masters.new_kek(self.target, exchange.key_length)
        files = [
            (manifest.location, "AVRO", manifest.length, _keys_of(table.walk, manifest))
            for manifest in manifests
        ]
        return rewrite_files(self.run, table, job, exchange, files)

    def _write_lists(self, table: IcebergTable) -> None:
        left = [
            snapshot
            for snapshot in {old.manifest_list: old for old in table.metadata.snapshots}.values()
            if snapshot.manifest_list in self.planned.within.lists
            and snapshot.manifest_list not in self.lists
        ]
        for _ in in_threads(lambda old: self._write_list(table, old), left, THREADS):
            pass

    @hide_frames
    def _write_list(self, table: IcebergTable, snapshot: Snapshot) -> None:
        """Rewrite a manifest list with the new locations, lengths and keys of its manifests."""
        walk, before = table.walk, snapshot.manifest_list
        keys = list_keys(table, snapshot, self.opened)
        if keys is None:
            raise FormatError(
                f"{before}: the manifest list is in plaintext, but its manifests are encrypted"
            )
        avro = read_avro(walk.read(before, keys), before)
        names = {field.get("field-id"): field["name"] for field in avro.schema["fields"]}
        rows = []
        for row in avro.records:
            new = self.manifests.get(row[names[_PATH]])
            rows.append(row if new is None else {
                **row, names[_PATH]: new["manifest_path"],
                names[_LENGTH]: new["manifest_length"],
                names[_KEY_METADATA]: new["key_metadata"],
            })  # fmt: skip
        folder = metadata_folder(table.metadata)
        location = f"{folder}/snap-{snapshot.id}-1-{uuid.uuid4()}.avro"
        data = write_avro(avro.schema, rows, avro.metadata)
        length = table.metadata.key_length
        self.files.note(location, once=True)
        self.lists[before] = location, write_ags1(walk.locations, location, data, length)

    def _snapshot_document(self, snapshot: Snapshot) -> Mapping[str, Any]:
        if snapshot.manifest_list not in self.planned.changed_lists:
            return snapshot.document
        return {**snapshot.document, "manifest-list": self.lists[snapshot.manifest_list][0]}


def _count_new(heads: Iterable[Head], within: SealedManifests) -> int:
    """Return how many heads get new snapshots: those with wrapped keys, or ahead of such ones."""
    new = set[int]()
    for head in heads:
        if head.snapshot.manifest_list in within.lists or head.base in new:
            new.add(head.snapshot.id)
    return len(new)


def _group_by_keys(
    within: SealedManifests, manifests: Iterable[ManifestFile]
) -> Iterator[list[ManifestFile]]:
    """Yield groups of manifests with at least `KEYS_TOGETHER` keys that a master key wraps."""
    group, count = list[ManifestFile](), 0
    for manifest in manifests:
        group.append(manifest)
        count += within.manifests[manifest.location].single
        if count >= KEYS_TOGETHER:
            yield group
            group, count = [], 0
    if group:
        yield group


def _keys_of(walk: Walk, manifest: ManifestFile) -> StandardKeyMetadata:
    """Return the key metadata of a manifest whose entries have encrypted key metadata."""
    keys = walk.manifest_keys(manifest)
    if keys is None:
        raise PlaintextError(
            f"{manifest.location}: the manifest is in plaintext, but keys in it are encrypted"
        )
    return keys
