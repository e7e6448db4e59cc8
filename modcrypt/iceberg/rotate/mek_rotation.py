"""Wrap every KEK of a table again with a master key (MEK); requires double wrapping.

    KEKs in metadata.json   same ids, same KEY_TIMESTAMP: keys encrypted under them do not change
    KEKs in a key store     the same, without a new version of the table
    encryption.key-id       changes with them: Java unwraps every KEK with this key, so all KEKs
                            move at once

A key store changes before the table. Its KEKs name their own master key, so every version of the
table stays readable, and a reader of the table under the new master key does not need the old one.
A crash between the two leaves KEKs under both master keys; the next rotation moves the rest. KEKs
that other writers store for the version before, while this one is committed, move afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from modcrypt.errors import KeyRetrievalError, ModcryptError
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver, encrypting_key, open_from_manifest
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.key_pruning import retired_keks
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import (
    check_store,
    encrypts_files,
    has_singles,
)
from modcrypt.iceberg.rotate.rotation_report import (
    CountingClient,
    TableRotation,
    move_calls,
    target_of,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.io.places import Place


def _check_double(table: IcebergTable) -> None:
    """Raise if the master key wraps data keys directly, which would still need the old one."""
    if has_singles(table):
        raise ValueError(
            f"{table.metadata.name}: the master key wraps data keys of this table directly, "
            'without KEKs; rotate "kek" to wrap them again'
        )


@dataclass
class MekRotation:
    """A move of KEKs to a master key; a retry of the commit reuses the KEKs already moved."""

    new_id: str | None  # id of the requested master key; None for the table's own
    # Moved KEKs, by the id and the wrapped key before the move.
    moved: dict[tuple[str, bytes | None], IcebergKey] = field(default_factory=dict, repr=False)
    # Ids of KEKs in the store that only older versions need and that cannot be moved.
    stuck: set[str] = field(default_factory=set)
    samples: Samples | None = field(default=None, repr=False)  # of the version at `sampled`
    sampled: Place | None = None
    # See `Rotation`.
    has_work: bool = True
    in_table: bool = True
    replaced: frozenset[str] = frozenset()

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return the report of a dry run; only the key store changes if the table has no KEKs."""
        keks = table.resolver.keks(table.metadata).values()
        _check_double(table)
        check_store(table)
        self.in_table = target != table.metadata.master_key_id or bool(table.metadata.kek_ids())
        return TableRotation(
            what="mek", table=table, keks=len(keks),
            kms_calls=table.resolver.masters.proof.expected_calls(len(keks))
            + sum(move_calls(client, kek.master_key_id, target) for kek in keks),
        )  # fmt: skip

    def finish(self, table: IcebergTable) -> TableRotation:
        """Move the KEKs of the store that are left; return what was done."""
        late = tuple[str, ...]()
        if self.in_table:
            late = self._move_late(table)
        else:
            self._move_store(table, table.metadata.master_key_id or "")
        return TableRotation(
            what="mek", table=table, keks=len({kek.id for kek in self.moved.values()}),
            left=(*sorted(self.stuck), *late),
        )  # fmt: skip

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Return the metadata with all its KEKs moved; those of the key store move before."""
        metadata, target = table.metadata, target_of(table, self.new_id)
        _check_double(table)
        check_store(table)
        self.fetch_keks(table.resolver, table.resolver.keks(metadata).values(), target)
        moved = self.move_keks(table, metadata.kek_ids(), target)
        self._move_store(table, target)
        keys = [moved.get(id_, entry) for id_, entry in metadata.keys.items()]
        return metadata.with_keys(keys, properties={**metadata.properties, KEY_ID: target})

    def move_keks(
        self, table: IcebergTable, ids: Iterable[str], target: str
    ) -> dict[str, EncryptedKey]:
        """Return the entries of some of the table's KEKs, wrapped by the master key `target`."""
        samples = self._samples_of(table)
        keks = [table.resolver.find(id_, table.metadata) for id_ in ids]
        masters = table.resolver.masters
        return {kek.id: self._move_kek(masters, kek, target, samples).entry() for kek in keks}

    def _move_late(self, table: IcebergTable) -> tuple[str, ...]:
        """Move KEKs that other writers put into the store for the version before.

        Return the ids of those that could not be moved; the table is already rotated.
        """
        metadata, target = table.metadata, table.metadata.master_key_id or ""
        if table.resolver.store is None:
            return ()
        late: list[str] = []
        with contextlib.suppress(ModcryptError, OSError):
            keks = table.resolver.keks(metadata)
            under = {id_ for id_, kek in keks.items() if kek.master_key_id != target}
            late += sorted(under - metadata.keys.keys() - self.stuck)
            self._move_store(table, target, but=target)
            return ()
        return tuple(late)

    def _move_store(self, table: IcebergTable, target: str, but: str | None = None) -> None:
        """Move the KEKs of the store that are not moved yet, except those under one master key."""
        # A KEK that only older versions need does not block the move if it cannot be unwrapped: its
        # master key may be deleted, as may those of older metadata.json files.
        metadata, resolver = table.metadata, table.resolver
        samples, done = self._samples_of(table), list(self.moved.values())
        moved: list[IcebergKey] = []
        for id_, kek in resolver.keks(metadata).items():
            known = kek in done or kek.master_key_id == but or id_ in self.stuck
            if id_ in metadata.keys or known:
                continue
            try:
                found = resolver.find(id_, metadata)
                moved.append(self._move_kek(resolver.masters, found, target, samples))
            except KeyRetrievalError:
                if id_ not in retired_keks(table):
                    raise
                self.stuck.add(id_)
        if resolver.store is not None and moved:
            resolver.store.replace(moved)

    def fetch_keks(self, resolver: KeyResolver, keks: Iterable[IcebergKey], target: str) -> None:
        """Have KEKs moved together that `move_keks` will move one by one."""
        by_master: dict[str, dict[bytes, str]] = {}
        for kek in keks:
            if kek.wrapped is not None and (kek.id, kek.wrapped) not in self.moved:
                by_master.setdefault(kek.master_key_id, {})[kek.wrapped] = kek.id
        for old_id, group in by_master.items():
            resolver.masters.fetch_moves(group, old_id, target, list(group.values()))

    def _samples_of(self, table: IcebergTable) -> Samples:
        """Return the samples for a version of the table; a retry reads new versions again."""
        if self.samples is None or self.sampled != table.place:
            self.samples, self.sampled = _find_samples(table), table.place
        return self.samples

    def _move_kek(
        self, masters: MasterKeys, key: IcebergKey, target: str, samples: Samples
    ) -> IcebergKey:
        place = key.id, key.wrapped
        if place not in self.moved:
            assert key.wrapped is not None  # it is a KEK
            sample = samples.get(key.id)
            opens = None if sample is None else lambda kek: sample(OpenKey(key, masters, kek))
            wrapped = masters.move(key.wrapped, key.master_key_id, target, key.id, opens)
            self.moved[place] = replace(key, master_key_id=target, wrapped=wrapped)
        return self.moved[place]


Samples: TypeAlias = Mapping[str, Callable[[OpenKey], object]]
"""Functions that open something that a KEK encrypts, by the KEK's id; they raise if it cannot."""


def _find_samples(table: IcebergTable) -> Samples:
    """Return a sample of what each KEK encrypts: a wrong KEK would make all of that unreadable."""
    metadata = table.metadata
    samples: dict[str, Callable[[OpenKey], object]] = {
        entry.encrypted_by: lambda kek, entry=entry: kek.decrypt(entry.encrypted)  # type: ignore[misc]
        for entry in metadata.keys.values()
    }
    left = {id_ for id_, kek in table.resolver.keks(metadata).items() if encrypts_files(kek)}
    with contextlib.suppress(ModcryptError, OSError):  # without a sample, KEKs are unwrapped twice
        for snapshot in reversed(metadata.snapshots) if left else ():
            for manifest in table.walk.manifests(snapshot):
                for entry in table.walk.entries(manifest):
                    id_, single = encrypting_key(entry.key_metadata) or ("", True)
                    if id_ in left and not single:
                        samples[id_] = partial(open_from_manifest, entry.key_metadata or b"")
                        left.discard(id_)
                if not left:
                    return samples
    return samples
