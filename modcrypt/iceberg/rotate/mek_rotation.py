"""Wrap every KEK of a table again with a master key (MEK); requires double wrapping.

    KEKs in metadata.json   same ids, same KEY_TIMESTAMP: keys encrypted under them do not change
    KEKs in a key store     the same, without a new version of the table
    encryption.key-id       changes with them: Java unwraps every KEK with this key, so all KEKs
                            move at once

A key store changes before the table. Its KEKs name their own master key, so every version of the
table stays readable, and a reader of the table under the new master key does not need the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyRetrievalError, ModcryptError
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.key_pruning import retired_keks
from modcrypt.iceberg.rotate.rotation_report import (
    CountingClient,
    TableRotation,
    move_calls,
    target_of,
)
from modcrypt.iceberg.rotate.wrapped_in_manifests import check_store, has_singles
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.kms.client import capabilities_of


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

    resolver: KeyResolver  # key resolver of the table; its KMS calls are counted
    new_id: str | None  # id of the requested master key; None for the table's own
    # Moved KEKs, by the id and the wrapped key before the move.
    moved: dict[tuple[str, bytes | None], IcebergKey] = field(default_factory=dict, repr=False)
    # Ids of KEKs in the store that only older versions need and that cannot be moved.
    stuck: set[str] = field(default_factory=set)
    has_work: bool = True  # whether there is anything to rotate; known after `plan`
    # Whether the table changes, and not only its key store; known after `plan`.
    in_table: bool = True

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return what would be done; only the key store changes if the table has no KEKs."""
        keks = self.resolver.keks(table.metadata).values()
        _check_double(table)
        check_store(table)
        self.in_table = target != table.metadata.master_key_id or bool(table.metadata.kek_ids())
        return TableRotation(
            what="mek", table=table, keks=len(keks),
            kms_calls=sum(move_calls(client, kek.master_key_id, target) for kek in keks),
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
        sealed = _sample_entries(metadata)
        self._fetch(self.resolver.keks(metadata).values(), target)
        keks = {id_: self.resolver.find(id_, metadata) for id_ in metadata.kek_ids()}
        moved = {id_: self._move_kek(kek, target, sealed).entry() for id_, kek in keks.items()}
        self._move_store(table, target)
        keys = [moved.get(id_, entry) for id_, entry in metadata.keys.items()]
        return metadata.with_keys(keys, properties={**metadata.properties, KEY_ID: target})

    def _move_late(self, table: IcebergTable) -> tuple[str, ...]:
        """Move KEKs that other writers put into the store for the version before.

        Return the ids of those that could not be moved; the table is already rotated.
        """
        metadata, target = table.metadata, table.metadata.master_key_id or ""
        if self.resolver.store is None:
            return ()
        late: list[str] = []
        with contextlib.suppress(ModcryptError, OSError):
            keks = self.resolver.keks(metadata)
            under = {id_ for id_, kek in keks.items() if kek.master_key_id != target}
            late += sorted(under - metadata.keys.keys() - self.stuck)
            self._move_store(table, target, but=target)
            return ()
        return tuple(late)

    def _move_store(self, table: IcebergTable, target: str, but: str | None = None) -> None:
        """Move the KEKs of the store that are not moved yet, except those under one master key.

        A KEK that only older versions need does not block the move if it cannot be unwrapped: its
        master key may be deleted, as may those of older metadata.json files.
        """
        metadata, store = table.metadata, self.resolver.store
        sealed, done = _sample_entries(metadata), list(self.moved.values())
        moved: list[IcebergKey] = []
        for id_, kek in self.resolver.keks(metadata).items():
            known = kek in done or kek.master_key_id == but or id_ in self.stuck
            if id_ in metadata.keys or known:
                continue
            try:
                moved.append(self._move_kek(self.resolver.find(id_, metadata), target, sealed))
            except KeyRetrievalError:
                if id_ not in retired_keks(table):
                    raise
                self.stuck.add(id_)
        if store is not None and moved:
            store.replace(moved)

    def _fetch(self, keks: Iterable[IcebergKey], target: str) -> None:
        """Have KEKs moved together that `_wrap_again` will move one by one."""
        by_master: dict[str, dict[bytes, str]] = {}
        for kek in keks:
            if kek.wrapped is not None and (kek.id, kek.wrapped) not in self.moved:
                by_master.setdefault(kek.master_key_id, {})[kek.wrapped] = kek.id
        for old_id, group in by_master.items():
            self.resolver.masters.fetch_moves(group, old_id, target, list(group.values()))

    def _move_kek(
        self, key: IcebergKey, target: str, sealed: Mapping[str, EncryptedKey]
    ) -> IcebergKey:
        place = key.id, key.wrapped
        if place not in self.moved:
            wrapped = self._wrap_again(key, target, sealed.get(key.id))
            self.moved[place] = replace(key, master_key_id=target, wrapped=wrapped)
        return self.moved[place]

    def _wrap_again(self, key: IcebergKey, target: str, sealed: EncryptedKey | None) -> bytes:
        masters = self.resolver.masters
        assert key.wrapped is not None  # it is a KEK
        same = key.master_key_id == target
        if same and capabilities_of(masters.client).rewrap:  # the key does not leave the service
            return masters.move(key.wrapped, target, target, key.id)
        kek = masters.unwrap(key.wrapped, key.master_key_id, key.id)
        if sealed is not None:
            # Check the unwrapped key: a wrong one would make all its data unreadable.
            OpenKey(key, masters, kek).open(sealed.encrypted)
        return masters.wrap(kek, target, key.id)


def _sample_entries(metadata: TableMetadata) -> dict[str, EncryptedKey]:
    """Return one entry encrypted by each KEK, by the KEK's id."""
    return {entry.encrypted_by: entry for entry in metadata.keys.values()}
