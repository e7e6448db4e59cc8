"""Every KEK of a table wrapped anew by a master key (MEK), and nothing else: double wrapping.

    KEKs in metadata.json   same ids, same KEY_TIMESTAMP: what they seal stays as it is
    KEKs in a key store     the same, without a new version of the table
    encryption.key-id       follows: Java unwraps every KEK with it, so all of them move at once

A store changes before the table does. Its KEKs name their own master key, so that every version
stays readable, and who sees the table under the new master key can do without the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyRetrievalError, ModcryptError
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.key_pruning import retired_keks
from modcrypt.iceberg.rotate.rotation_report import (
    TableRotation,
    counting,
    move_calls,
    older_versions,
    target_of,
    with_resolver,
)
from modcrypt.iceberg.rotate.wrapped_in_manifests import check_store, has_singles
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit
from modcrypt.kms.client import capabilities_of

__all__ = ["rotate_mek"]


def rotate_mek(table: IcebergTable, new_id: str | None, dry_run: bool) -> TableRotation:
    """Wrap the KEKs of a table anew; as `rotate_table`."""
    counted, client = counting(table)
    resolver = counted.walk.resolver
    keks, target = resolver.keks(counted.metadata).values(), target_of(counted, new_id)
    _check_double(counted)
    check_store(counted)
    if dry_run:
        return TableRotation(
            what="mek", table=table, dry_run=True, master_key_id=target, keks=len(keks),
            kms_calls=sum(move_calls(client, one.master_key_id, target) for one in keks),
            older_versions=older_versions(counted),
        )  # fmt: skip
    moving = _Moving(resolver, new_id)
    in_table = target != counted.metadata.master_key_id or bool(counted.metadata.kek_ids())
    late: tuple[str, ...] = ()
    if in_table:
        counted = commit(counted, moving.next_version)
        late = moving.move_late(counted)
    else:
        moving.move_store(counted, target)
    result = with_resolver(counted, table.walk.resolver)
    return TableRotation(
        what="mek", table=result, committed=in_table, keks=moving.count,
        master_key_id=result.metadata.master_key_id or "", kms_calls=client.calls,
        left=(*sorted(moving.stuck), *late), older_versions=older_versions(result),
    )  # fmt: skip


def _check_double(table: IcebergTable) -> None:
    """Refuse what would need the old master key all the same."""
    if has_singles(table):
        raise ValueError(
            f"{table.metadata.name}: data keys of this table are wrapped by the master key itself, "
            'without KEKs between: rotate "kek" wraps them anew'
        )


@dataclass
class _Moving:
    """Moves KEKs; what it has moved once stays so when the commit is tried again.

    Attributes:
        resolver: of the table, counted.
        new_id: of the master key that is asked for.
        moved: KEKs by what they were before: id and wrapped.
        stuck: ids of those in the store that only older versions need, and that can't be moved.
    """

    resolver: KeyResolver
    new_id: str | None
    moved: dict[tuple[str, bytes | None], IcebergKey] = field(default_factory=dict, repr=False)
    stuck: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """How many different KEKs were moved."""
        return len({one.id for one in self.moved.values()})

    def next_version(self, table: IcebergTable) -> TableMetadata:
        metadata, target = table.metadata, target_of(table, self.new_id)
        _check_double(table)
        check_store(table)
        sealed = _one_for_each(metadata)
        keks = {id_: self.resolver.find(id_, metadata) for id_ in metadata.kek_ids()}
        moved = {id_: self._moved(one, target, sealed).entry() for id_, one in keks.items()}
        self.move_store(table, target)
        keys = [moved.get(id_, one) for id_, one in metadata.keys.items()]
        return metadata.with_keys(keys, properties={**metadata.properties, KEY_ID: target})

    def move_late(self, table: IcebergTable) -> tuple[str, ...]:
        """Move the KEKs that somebody put into the store, for the version before, meanwhile.

        Gives the ids of those that could not be moved: the table is rotated by now.
        """
        metadata, target = table.metadata, table.metadata.master_key_id or ""
        if self.resolver.store is None:
            return ()
        late: list[str] = []
        with contextlib.suppress(ModcryptError, OSError):
            keks = self.resolver.keks(metadata)
            under = {id_ for id_, one in keks.items() if one.master_key_id != target}
            late += sorted(under - metadata.keys.keys() - self.stuck)
            self.move_store(table, target, but=target)
            return ()
        return tuple(late)

    def move_store(self, table: IcebergTable, target: str, but: str | None = None) -> None:
        """Move the KEKs of the store that are not moved yet, but those under one master key.

        One that a KEK rotation left for older versions keeps nothing up: its master key may be
        gone, as those of older metadata.json files may.
        """
        metadata, store = table.metadata, self.resolver.store
        sealed, done = _one_for_each(metadata), list(self.moved.values())
        moved: list[IcebergKey] = []
        for id_, one in self.resolver.keks(metadata).items():
            known = one in done or one.master_key_id == but or id_ in self.stuck
            if id_ in metadata.keys or known:
                continue
            try:
                moved.append(self._moved(self.resolver.find(id_, metadata), target, sealed))
            except KeyRetrievalError:
                if id_ not in retired_keks(table):
                    raise
                self.stuck.add(id_)
        if store is not None and moved:
            store.replace(moved)

    def _moved(
        self, key: IcebergKey, target: str, sealed: Mapping[str, EncryptedKey]
    ) -> IcebergKey:
        place = key.id, key.wrapped
        if place not in self.moved:
            wrapped = self._wrapped(key, target, sealed.get(key.id))
            self.moved[place] = replace(key, master_key_id=target, wrapped=wrapped)
        return self.moved[place]

    def _wrapped(self, key: IcebergKey, target: str, sealed: EncryptedKey | None) -> bytes:
        masters = self.resolver.masters
        assert key.wrapped is not None  # it is a KEK
        same = key.master_key_id == target
        if same and capabilities_of(masters.client).rewrap:  # the service gives no key out
            return masters.move(key.wrapped, target, target, key.id)
        kek = masters.unwrap(key.wrapped, key.master_key_id, key.id)
        if sealed is not None:
            # Or a service that unwraps to something else would have all of it lost.
            OpenKey(key, masters, kek).open(sealed.encrypted)
        return masters.wrap(kek, target, key.id)


def _one_for_each(metadata: TableMetadata) -> dict[str, EncryptedKey]:
    """Give by each KEK's id one key metadata that it seals."""
    return {one.encrypted_by: one for one in metadata.keys.values()}
