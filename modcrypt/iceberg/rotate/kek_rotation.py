"""Replace a table's KEKs by new ones; with single wrapping, wrap the data keys again.

    encryption-keys   entries of manifest lists are encrypted again under their old ids, so that
                      nothing else of a snapshot changes
    manifests         rewritten, with the lists that name them, only if KEKs by partition or by
                      number of files, or the master key itself, encrypt key metadata in them; the
                      snapshots are otherwise unchanged (`manifest_rewrapping`)
    KEKs              one new KEK replaces all old ones of a scope; old ones in the table's
                      metadata are dropped

A REST catalog does not change snapshots. There manifests are rewritten as `replace` snapshots of
the branches and tags (`rotated_snapshots`); older snapshots keep theirs, and the table the KEKs for
them, until `expire_history`.

All changes are one new version of the table. `KekRotation.next_version` makes it in this order,
since each step needs what the one before has made:

    1. new KEKs         those of a key store are stored at once: the first that others can see, and
                        useless to them. After a crash they stay, and nothing is encrypted under
                        them. Those of the table exist only in the metadata that is being made.
    2. files            new manifests, then the lists that name them; after a crash, orphans
    3. entries          encrypted under the new KEKs, those of new lists with the lists' new keys
    4. new snapshots    in a REST catalog, instead of 2

Old KEKs in a key store are kept, as are those in older metadata.json files: older versions need
them until `expire_history` drops both. No new key is encrypted under them (`KEKS_SINCE`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.manifests.manifest_rewrapping import Exchange, Rewrapping
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import (
    THREADS,
    KeyManifests,
    Opened,
    check_store,
    encrypts_files,
    find_key_manifests,
    list_keys,
    place_of,
)
from modcrypt.iceberg.rotate.mek_rotation import MekRotation
from modcrypt.iceberg.rotate.rotated_snapshots import (
    Head,
    RotatedSnapshots,
    list_behind,
    list_heads,
    tag_names,
    with_live_files,
)
from modcrypt.iceberg.rotate.rotation_report import CountingClient, TableRotation, target_of
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.manifest_writing import metadata_folder
from modcrypt.io.places import Place
from modcrypt.io.threads import in_threads
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.calls import can_unwrap_many
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.proof import WrapProof
from modcrypt.runtime.fork_safety import cached_property


class _Slot(NamedTuple):
    """The key by which old KEKs are grouped: one new KEK replaces all KEKs of a slot."""

    scope: str
    """Scope of the KEKs."""

    in_table: bool
    """True if the KEKs are stored in the table's metadata."""

    alone: str = ""
    """Id of a KEK for a number of files: it is replaced alone, so no key gets more files."""

    @classmethod
    def of_lists(cls, key: IcebergKey, in_table: bool) -> _Slot:
        """Return the slot of a KEK that encrypts keys of manifest lists."""
        # Iceberg's Java uses any KEK for these. They are moved away from KEKs that are for some
        # files: otherwise shredding such a KEK would lose snapshots.
        return cls("" if encrypts_files(key) else key.scope, in_table)

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
    entries: tuple[EncryptedKey, ...]  # those of manifest lists in encryption-keys
    within: KeyManifests  # whose key metadata is encrypted again
    # Those of a catalog that does not change snapshots; older snapshots keep them as they are.
    older: KeyManifests | None
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
        metadata, within, older = table.metadata, find_key_manifests(table, opened), None
        heads = list_heads(metadata) if table.versions.merges and within.lists else []
        if heads:
            older, within = within, within.of(head.snapshot for head in heads)
        entries = tuple(entry for id_, entry in keys.items() if id_ not in known)
        used = keys.keys() | {entry.encrypted_by for entry in entries} | (older or within).keks
        keks = {id_: kek for id_, kek in known.items() if id_ in used}
        stored = {id_: kek for id_, kek in known.items() if id_ not in keys}
        is_single = bool(heads) and KeyPolicy.of(metadata).wrapping == "single"
        of_older = [old for old in metadata.snapshots if older and old.manifest_list in older.lists]
        return cls(
            table.place, keks, stored, entries, within, older,
            older_snapshots=tuple(sorted(old.id for old in of_older)),
            behind_refs=list_behind(metadata) if metadata.current in of_older else (),
            new_singles=_count_new(heads, within) if is_single else 0,
            proof=table.resolver.masters.proof,
        )  # fmt: skip

    def kek_time(self) -> int:
        """Return a time for the new KEKs that is later than that of all KEKs that stay."""
        staying = [self.keks[id_] for id_ in self.kept & self.keks.keys()]
        return next_kek_time([*self.stored.values(), *staying])

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
        used, keks = {entry.encrypted_by for entry in self.entries}, self.keks.items()
        return {id_: _Slot.of_lists(k, id_ not in self.stored) for id_, k in keks if id_ in used}

    @cached_property
    def files(self) -> dict[str, _Slot]:
        """The slots of the KEKs that encrypt keys of data and delete files, by the KEKs' ids."""
        used, keks = self.within.keks, self.keks.items()
        return {id_: _Slot.of_files(k, id_ not in self.stored) for id_, k in keks if id_ in used}

    @property
    def slots(self) -> Collection[_Slot]:
        return dict.fromkeys((*self.lists.values(), *self.files.values())).keys()

    def kept_under_others(self, table: IcebergTable, target: str) -> list[IcebergKey]:
        """Return the KEKs in the table that stay, and move to the master key `target`."""
        keys = table.metadata.keys
        ids = sorted(self.kept & self.keks.keys() & keys.keys())
        return [self.keks[id_] for id_ in ids if keys[id_].encrypted_by != target]

    def report(self, table: IcebergTable, client: KmsClient, target: str) -> TableRotation:
        """Return the keys to rotate, and the number of calls of the key service."""
        single = sum(entry.is_single for entry in self.entries)
        singles = [single, *(len(manifest.singles) for manifest in self.within.manifests.values())]
        batch = max(1, capabilities_of(client).batch)
        wraps = [sum(slot.in_table is where for slot in self.slots) for where in (True, False)]
        wraps += [len(moved := self.kept_under_others(table, target)), *[1] * self.new_singles]
        unwraps = len(self.lists.keys() | self.files.keys()) + sum(singles) + len(moved)
        counts = [*wraps, *singles]
        if can_unwrap_many(client):
            counts, unwraps = [*wraps, sum(singles)], -(-unwraps // batch)
        calls = sum(-(-count // batch) for count in counts)
        calls += self.proof.expected_calls(sum(wraps) + sum(singles))
        return TableRotation(
            what="kek", table=table, new_keks=len(self.slots),
            keks=len(self.keks.keys() - (self.kept - self.lists.keys() - self.files.keys())),
            entries=len(self.entries) - len(self.changed_lists),
            manifest_lists=len(self.within.lists), manifests=len(self.within.manifests),
            left=tuple(sorted((self.older or self.within).keks - self.keks.keys())),
            kms_calls=unwraps + calls, older_snapshots=self.older_snapshots,
            behind_refs=self.behind_refs,
        )  # fmt: skip


@dataclass
class KekRotation:
    """The making of the next version; a retry of the commit reuses what is already made.

    What is made depends on the master key, and KEKs in a key store on their time: other writers may
    have changed either. Then all is made again (`_plan_again`). Nothing is made before the plan for
    the same version of the table, so a new KEK always has all that is encrypted under an old one.
    """

    seen: TableMetadata = field(repr=False)
    new_id: str | None  # id of the requested master key; None for the table's own
    # Manifests and lists with new keys; new KEKs in a key store stay, as other writers may use
    # them.
    rewrapping: Rewrapping
    target: str = ""  # id of the master key under which all of the following is made
    made: dict[_Slot, OpenKey] = field(default_factory=dict)  # new KEKs by slot
    # KEKs that stay, see `MekRotation.moved`.
    stay: dict[tuple[str, bytes | None], IcebergKey] = field(default_factory=dict, repr=False)
    # Entries encrypted again, by the old entries.
    encrypted: dict[tuple[str, bytes], EncryptedKey] = field(default_factory=dict, repr=False)
    # Key metadata of the manifest lists that had to be read.
    opened: Opened = field(default_factory=dict, repr=False)
    planned: _RotationPlan = field(init=False)
    # See `Rotation`.
    has_work: bool = True
    in_table: bool = True

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return the report of a dry run."""
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
        """Return the report of the rotation."""
        return self.planned.report(table, table.resolver.masters.client, self.target)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Create missing KEKs and files, and return the metadata that has them."""
        planned, metadata = self._plan_again(table), table.metadata
        since = planned.kek_time()
        self._make_keks(table, since)
        self.rewrapping.files.used = ()
        if planned.older is None:
            exchange = self._exchange(table)
            self.rewrapping.rewrite(table, planned.within, exchange, self.opened)
        new = [self.made[slot].key.entry() for slot in planned.slots if slot.in_table]
        properties = {**metadata.properties, KEY_ID: self.target}
        staged = metadata.with_keys(
            [*new, *self._keep_keks(table), *self._encrypt_entries(table)],
            properties={**properties, KEKS_SINCE: str(since)} if planned.stored else properties,
            snapshots=[self._snapshot_document(snapshot) for snapshot in metadata.snapshots],
        )
        adds = planned.older is not None and planned.within.manifests
        return self._add_snapshots(table, staged) if adds else staged

    def _plan_again(self, table: IcebergTable) -> _RotationPlan:
        """Return the plan for a version; forget what was made if it does not fit that any more."""
        target = target_of(table, self.new_id)
        # Another writer may have rotated the MEK, or already use the new KEKs in the store.
        if target != self.target or not all(slot.in_table for slot in self.made):
            self.target = target
            for cache in (self.made, self.stay, self.encrypted):
                cache.clear()
            self.rewrapping.clear()
        if table.place != self.planned.place:
            self.planned = _RotationPlan.of(table, self.opened)
        return self.planned

    def _make_keks(self, table: IcebergTable, since: int) -> None:
        left = [slot for slot in self.planned.slots if slot not in self.made]
        for in_table in (True, False):
            slots = [slot for slot in left if slot.in_table is in_table]
            new = make_keks(
                table.resolver, table.metadata, self.target, [slot.scope for slot in slots],
                in_store=not in_table, now_ms=since,
            )  # fmt: skip
            self.made.update(zip(slots, new, strict=True))

    def _keep_keks(self, table: IcebergTable) -> list[EncryptedKey]:
        """Return the entries of KEKs that stay in the table, under its master key."""
        keys, others = table.metadata.keys, self.planned.kept_under_others(table, self.target)
        moving, moved = MekRotation(self.target, moved=self.stay), {}
        if others:
            moving.fetch_keks(table.resolver, others, self.target)
            moved = moving.move_keks(table, [kek.id for kek in others], self.target)
        return [moved.get(id_, keys[id_]) for id_ in sorted(self.planned.kept & keys.keys())]

    def _encrypt_entries(self, table: IcebergTable) -> list[EncryptedKey]:
        """Encrypt the entries of manifest lists again, grouped by key."""
        # The entry of a rewritten list gets the key metadata of the new list.
        metadata, resolver = table.metadata, table.resolver
        fresh = {
            snapshot.key_id: self.rewrapping.lists[snapshot.manifest_list][1]
            for snapshot in metadata.snapshots
            if snapshot.manifest_list in self.planned.changed_lists
        }
        left = [entry for entry in self.planned.entries if place_of(entry) not in self.encrypted]
        by: dict[tuple[str, bool], list[EncryptedKey]] = {}
        for entry in left:
            by.setdefault((entry.encrypted_by, entry.is_single), []).append(entry)
        resolver.fetch_entries(
            (e for e in left if e.id not in fresh and place_of(e) not in self.opened), metadata
        )
        for (id_, single), entries in by.items():
            decrypt = _decryption(table, id_, single)
            plain = [
                fresh.get(entry.id) or self.opened.get(place_of(entry)) or decrypt(entry)
                for entry in entries
            ]
            key = self._single(table) if single else self.made[self.planned.lists[id_]]
            # The master key wraps each key in its own call, unless the key service has batches.
            each = single and capabilities_of(resolver.masters.client).batch < 2
            encrypted = in_threads(key.encrypt, plain, THREADS) if each else key.encrypt_many(plain)
            for entry, data in zip(entries, encrypted, strict=True):
                new = replace(entry, encrypted=data, encrypted_by=key.key.id)
                self.encrypted[place_of(entry)] = new
        return [self.encrypted[place_of(entry)] for entry in self.planned.entries]

    def _single(self, table: IcebergTable) -> OpenKey:
        """Return the master key itself."""
        return table.resolver.open_key(IcebergKey.single(self.target))

    def _exchange(self, table: IcebergTable) -> Exchange:
        """Return the exchange of keys in manifests, whose KEKs are unwrapped together."""
        resolver = table.resolver
        exchange = Exchange(
            old={id_: resolver.find(id_, table.metadata) for id_ in self.planned.files},
            new={id_: self.made[slot].key for id_, slot in self.planned.files.items()},
            single=self._single(table).key,
            folder=metadata_folder(table.metadata),
            name=self.rewrapping.files.name,
            key_length=table.metadata.key_length,
        )
        resolver.fetch_keys((*exchange.old.values(), *exchange.new.values()))
        return exchange

    def _snapshot_document(self, snapshot: Snapshot) -> Mapping[str, Any]:
        if snapshot.manifest_list not in self.planned.changed_lists:
            return snapshot.document
        location, _ = self.rewrapping.lists[snapshot.manifest_list]
        return {**snapshot.document, "manifest-list": location}

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
            after, self.rewrapping.rewrap(table, self.planned.within, entries, exchange),
            lambda location: location, writing_keys(after, policy, ()), self.rewrapping.files,
            tag_names(staged), same_files=True,
        )  # fmt: skip
        for head in heads:
            pairs = [(each, entries[each.location]) for each in listed[head.snapshot.id]]
            new.add(head, with_live_files(pairs))
        return new.table.metadata


def _decryption(
    table: IcebergTable, id_: str, single: bool
) -> Callable[[EncryptedKey], StandardKeyMetadata]:
    """Return a function that decrypts all entries under one key; it finds a KEK only once."""
    resolver, metadata = table.resolver, table.metadata
    if single:
        return lambda entry: resolver.decrypt_entry(entry, metadata)
    kek = resolver.open_key(resolver.find(id_, metadata))
    return lambda entry: kek.decrypt(entry.encrypted)


def _count_new(heads: Iterable[Head], within: KeyManifests) -> int:
    """Return how many heads get new snapshots: those with wrapped keys, or ahead of such ones."""
    new = set[int]()
    for head in heads:
        if head.snapshot.manifest_list in within.lists or head.base in new:
            new.add(head.snapshot.id)
    return len(new)
