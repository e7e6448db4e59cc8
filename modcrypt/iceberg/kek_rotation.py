"""New KEKs in the places of a table's old ones; in single wrapping, a new wrapping of data keys.

    encryption-keys   entries of manifest lists are sealed anew under their old ids, so that
                      nothing else of a snapshot changes
    manifests         only where KEKs by partition or by number of files, or the master key itself,
                      seal key metadata in them: these are written anew, and the lists that name
                      them; the snapshots stay what they are otherwise
    KEKs              one new one for the old ones of each scope; the old ones are dropped, from a
                      key store after the commit

All of it is one new version of the table.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.iceberg.avro_files import read_avro, write_avro
from modcrypt.iceberg.committing import commit, surely_failed
from modcrypt.iceberg.manifest_writing import metadata_folder, rewrite_manifest
from modcrypt.iceberg.manifests import ManifestFile
from modcrypt.iceberg.policies import FILES_SCOPE
from modcrypt.iceberg.resolver import WRAPPING, KeyResolver, seal_for_manifest, sealed_by
from modcrypt.iceberg.rotation_report import (
    TableRotation,
    counting,
    older_versions,
    target_of,
    with_resolver,
)
from modcrypt.iceberg.sealed_files import write_sealed
from modcrypt.iceberg.sealed_in_manifests import (
    Opened,
    SealedManifests,
    list_keys,
    place_of,
    sealed_manifests,
    sealed_metadata,
    seals_files,
)
from modcrypt.iceberg.table import IcebergTable
from modcrypt.iceberg.table_metadata import KEY_ID, EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.wrapping_keys import IcebergKey, OpenKey
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.storage import Place

__all__ = ["rotate_kek"]

_PATH, _LENGTH, _KEY_METADATA = 500, 501, 519
"""Ids of fields of a manifest list (spec, "Manifest Lists")."""


def rotate_kek(table: IcebergTable, new_id: str | None, dry_run: bool) -> TableRotation:
    """Put new KEKs in the places of the old ones; as `rotate_table`."""
    counted, client = counting(table)
    target = target_of(counted, new_id)
    if dry_run:
        planned = _Planned.of(counted)
        return replace(
            planned.report(table, client), dry_run=True, master_key_id=target,
            older_versions=older_versions(counted),
        )  # fmt: skip
    renewal = _Renewal(counted.walk.resolver, new_id)
    try:
        new = commit(counted, renewal.next_version)
    except BaseException as error:
        renewal.give_up(error, counted)
        raise
    left = renewal.finish(new)
    result = with_resolver(new, table.walk.resolver)
    return replace(
        renewal.planned.report(result, client), committed=True,
        master_key_id=target_of(result, None), kms_calls=client.calls,
        left=left,
        older_versions=older_versions(result),
    )  # fmt: skip


# --- what is to be done --------------------------------------------------------------------------


class _Slot(NamedTuple):
    """Tells KEKs whose places one new KEK takes from others."""

    scope: str
    """That they have in common."""

    in_table: bool
    """Whether they are kept in the table's metadata."""

    alone: str = ""
    """Of a KEK for a number of files its id: no more files come under one key than before."""

    @classmethod
    def of_lists(cls, key: IcebergKey, in_table: bool) -> _Slot:
        """Give it for manifest lists.

        Iceberg's Java takes any KEK for these. They come away from those that are for some files:
        else whoever shreds such a one loses snapshots with it.
        """
        return cls("" if seals_files(key) else key.scope, in_table)

    @classmethod
    def of_files(cls, key: IcebergKey, in_table: bool) -> _Slot:
        """Give it for data and delete files."""
        return cls(key.scope, in_table, key.id if key.scope == FILES_SCOPE else "")


@dataclass(frozen=True)
class _Planned:
    """What a rotation of a version of the table comes to.

    Attributes:
        keks: all that the table has, by id.
        stored: ids of those in the key store.
        sealed: entries of manifest lists.
        within: what is sealed in manifests.
    """

    keks: Mapping[str, IcebergKey]
    stored: frozenset[str]
    sealed: tuple[EncryptedKey, ...]
    within: SealedManifests

    @classmethod
    def of(
        cls,
        table: IcebergTable,
        made: frozenset[str] = frozenset(),
        opened: Opened | None = None,
    ) -> _Planned:
        """Look at a version of the table, but for KEKs that were made meanwhile for the next."""
        keys = table.metadata.keys
        found = table.walk.resolver.keks(table.metadata)
        keks = {id_: one for id_, one in found.items() if id_ not in made}
        within = sealed_manifests(table, opened)
        sealed = tuple(one for id_, one in keys.items() if id_ not in keks)
        return cls(keks, frozenset(keks.keys() - keys.keys()), sealed, within)

    def slots(self) -> tuple[dict[str, _Slot], dict[str, _Slot]]:
        """Give by the id of each KEK that seals something the slot of what takes its place.

        First for manifest lists, then for files.
        """
        sealing = {one.encrypted_by for one in self.sealed}
        lists, files = {}, {}
        for id_, key in self.keks.items():
            if id_ in sealing:
                lists[id_] = _Slot.of_lists(key, id_ not in self.stored)
            if id_ in self.within.keks:
                files[id_] = _Slot.of_files(key, id_ not in self.stored)
        return lists, files

    def report(self, table: IcebergTable, client: KmsClient) -> TableRotation:
        lists, files = self.slots()
        slots = {*lists.values(), *files.values()}
        single = sum(_is_single(one) for one in self.sealed)
        singles = [single, *(one.single for one in self.within.manifests.values())]
        batch = max(1, capabilities_of(client).batch)
        wraps = [sum(one.in_table is where for one in slots) for where in (True, False)]
        calls = sum(-(-count // batch) for count in (*wraps, *singles))
        return TableRotation(
            what="kek", table=table, keks=len(self.keks), new_keks=len(slots),
            entries=len(self.sealed) - len(self.within.lists),
            manifest_lists=len(self.within.lists), manifests=len(self.within.manifests),
            kms_calls=len(lists.keys() | files.keys()) + sum(singles) + calls,
        )  # fmt: skip


def _is_single(entry: EncryptedKey) -> bool:
    return entry.properties.get(WRAPPING) == "single"


# --- doing it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NewKeys:
    """What takes the places of old keys: KEKs by the old ones' ids, and the master key itself."""

    lists: Mapping[str, OpenKey]
    files: Mapping[str, OpenKey]
    single: OpenKey

    def of_list(self, id_: str, single: bool) -> OpenKey:
        return self.single if single else self.lists[id_]

    def of_file(self, id_: str, single: bool) -> OpenKey:
        return self.single if single else self.files[id_]

    def entries(self, planned: _Planned) -> list[EncryptedKey]:
        """Give those KEKs that are kept in the table's metadata."""
        every = (*self.lists.items(), *self.files.items())
        own = {one.key.id: one.key for id_, one in every if id_ not in planned.stored}
        return [one.entry() for one in own.values()]


@dataclass
class _Renewal:
    """Makes the next version; what it has made once serves again when the commit is tried again.

    Attributes:
        resolver: of the table, counted.
        new_id: of the master key that is asked for.
        target: of the master key that all of the following is for.
        made: new KEKs by slot.
        sealed: entries sealed anew, by those before.
        manifests, lists: those written anew, by the locations of those before: a row of a manifest
            list; location and key metadata.
        opened: key metadata of the manifest lists that had to be read.
        written: locations of all files that were written.
        planned: of the newest attempt.
        offered: the version that it is to follow, once it is complete.
    """

    resolver: KeyResolver
    new_id: str | None
    target: str = ""
    made: dict[_Slot, OpenKey] = field(default_factory=dict)
    sealed: dict[tuple[str, bytes], EncryptedKey] = field(default_factory=dict, repr=False)
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    lists: dict[str, tuple[str, StandardKeyMetadata]] = field(default_factory=dict, repr=False)
    opened: Opened = field(default_factory=dict, repr=False)
    written: list[str] = field(default_factory=list)
    planned: _Planned = field(init=False)
    offered: Place | None = None

    def next_version(self, table: IcebergTable) -> TableMetadata:
        self.offered = None
        metadata, target = table.metadata, target_of(table, self.new_id)
        if target != self.target:  # somebody else has rotated the MEK meanwhile
            self.target = target
            for kept in (self.made, self.sealed, self.manifests, self.lists):
                kept.clear()
        made = frozenset(one.key.id for one in self.made.values())
        self.planned = planned = _Planned.of(table, made, self.opened)
        new = self._new_keys(metadata)
        for location, one in planned.within.manifests.items():
            if location not in self.manifests:
                self._write_manifest(table, one.manifest, new)
        for snapshot in metadata.snapshots:
            location = snapshot.manifest_list
            if location in planned.within.lists and location not in self.lists:
                self._write_list(table, snapshot)
        changed = metadata.with_keys(
            [*new.entries(planned), *self._entries(metadata, new)],
            properties={**metadata.properties, KEY_ID: target},
            snapshots=[self._snapshot(one) for one in metadata.snapshots],
        )
        self.offered = table.place
        return changed

    def finish(self, table: IcebergTable) -> tuple[str, ...]:
        """Drop old KEKs from the key store, and files of attempts that came to nothing.

        Gives the ids of KEKs that are still there.
        """
        within = self.planned.within
        used = {self.manifests[location]["manifest_path"] for location in within.manifests}
        self._remove(table, used | {self.lists[location][0] for location in within.lists})
        store, stored = self.resolver.store, self.planned.stored
        if store is None or not stored:
            return ()
        try:
            # Somebody who committed since may have gone on with an old one.
            current = table.refreshed().metadata.keys.values()
            still = stored & {one.encrypted_by for one in current}
            store.replace([], stored - still)
        except (ModcryptError, OSError):  # the table is rotated by now
            return tuple(sorted(stored))
        return tuple(sorted(still))

    def give_up(self, error: BaseException, table: IcebergTable) -> None:
        """Remove what was made for nothing, unless the commit may have come to pass after all."""
        with contextlib.suppress(ModcryptError, OSError):  # what went wrong first is what matters
            if not surely_failed(error, table, self.offered):
                return
            self._remove(table, set())
            stored = {one.key.id for slot, one in self.made.items() if not slot.in_table}
            if self.resolver.store is not None and stored:
                self.resolver.store.replace([], stored)

    def _remove(self, table: IcebergTable, but: set[str]) -> None:
        for location in self.written:
            if location not in but:
                with contextlib.suppress(OSError):  # verify_table finds it among the orphans
                    table.walk.place(location).remove()

    # --- keys -----------------------------------------------------------------------------------

    def _new_keys(self, metadata: TableMetadata) -> _NewKeys:
        lists, files = self.planned.slots()
        slots = dict.fromkeys((*lists.values(), *files.values()))
        for in_table in (True, False):
            missing = [one for one in slots if one.in_table is in_table and one not in self.made]
            self._make(metadata, missing, in_table)
        single = self.resolver.opened(IcebergKey.single(self.target))
        return _NewKeys(
            {id_: self.made[slot] for id_, slot in lists.items()},
            {id_: self.made[slot] for id_, slot in files.items()},
            single,
        )

    def _make(self, metadata: TableMetadata, slots: Sequence[_Slot], in_table: bool) -> None:
        new = self.resolver.masters.new_keks(
            self.target, metadata.key_length, [one.scope for one in slots],
            table=None if in_table else metadata.uuid,
        )  # fmt: skip
        self.made.update(zip(slots, new, strict=True))
        if not in_table and new and self.resolver.store is not None:
            # Before the commit: what that names must be there.
            self.resolver.store.replace([one.key for one in new])

    def _entries(self, metadata: TableMetadata, new: _NewKeys) -> list[EncryptedKey]:
        """Seal the entries of manifest lists anew, those of one key all at once."""
        fresh = {
            one.key_id: self.lists[one.manifest_list][1]
            for one in metadata.snapshots
            if one.manifest_list in self.planned.within.lists
        }
        by: dict[tuple[str, bool], list[EncryptedKey]] = {}
        for one in self.planned.sealed:
            if place_of(one) not in self.sealed:
                by.setdefault((one.encrypted_by, _is_single(one)), []).append(one)
        for (id_, single), entries in by.items():
            opened = self._opening(id_, single, metadata)
            plain = [
                fresh.get(one.id) or self.opened.get(place_of(one)) or opened(one)
                for one in entries
            ]
            key = new.of_list(id_, single)
            self._keep(entries, key, key.seal_many(plain))
        return [self.sealed[place_of(one)] for one in self.planned.sealed]

    def _opening(
        self, id_: str, single: bool, metadata: TableMetadata
    ) -> Callable[[EncryptedKey], StandardKeyMetadata]:
        """Give what opens all entries under one key; of a KEK without looking for it each time."""
        if single:
            return lambda entry: self.resolver.open_entry(entry, metadata)
        kek = self.resolver.opened(self.resolver.find(id_, metadata))
        return lambda entry: kek.open(entry.encrypted)

    def _keep(self, before: Sequence[EncryptedKey], key: OpenKey, sealed: Sequence[bytes]) -> None:
        for one, encrypted in zip(before, sealed, strict=True):
            self.sealed[place_of(one)] = replace(one, encrypted=encrypted, encrypted_by=key.key.id)

    # --- files ----------------------------------------------------------------------------------

    def _write_manifest(self, table: IcebergTable, manifest: ManifestFile, new: _NewKeys) -> None:
        sealed = sealed_metadata(table.walk.entries(manifest))
        by_key: dict[tuple[str, bool], list[bytes]] = {}
        for one in sealed:
            by_key.setdefault(sealed_by(one), []).append(one)
        changed: dict[bytes, bytes] = {}
        for by, before in by_key.items():
            opened = [self.resolver.open_metadata(one, table.metadata) for one in before]
            changed.update(zip(before, seal_for_manifest(opened, new.of_file(*by)), strict=True))

        def change(row: dict[str, Any]) -> dict[str, Any]:
            file = row["data_file"]
            metadata = file.get("key_metadata")
            return {**row, "data_file": {**file, "key_metadata": changed.get(metadata, metadata)}}

        row = rewrite_manifest(table, manifest, change)
        self.written.append(row["manifest_path"])
        self.manifests[manifest.location] = row

    def _write_list(self, table: IcebergTable, snapshot: Snapshot) -> None:
        """Write a manifest list anew: other places and keys of manifests, and all else as it is."""
        walk, before = table.walk, snapshot.manifest_list
        keys = list_keys(table, snapshot, self.opened)
        if keys is None:
            raise FormatError(f"{before}: in plaintext, though manifests that it names are not")
        avro = read_avro(walk.read(before, keys), before)
        names = {one.get("field-id"): one["name"] for one in avro.schema["fields"]}
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
        self.written.append(location)
        self.lists[before] = location, write_sealed(walk.locations, location, data, length)

    def _snapshot(self, snapshot: Snapshot) -> Mapping[str, Any]:
        if snapshot.manifest_list not in self.planned.within.lists:
            return snapshot.document
        return {**snapshot.document, "manifest-list": self.lists[snapshot.manifest_list][0]}
