"""New KEKs in the places of a table's old ones; in single wrapping, a new wrapping of data keys.

    encryption-keys   entries of manifest lists are sealed anew under their old ids, so that
                      nothing else of a snapshot changes
    manifests         only where KEKs by partition or by number of files, or the master key itself,
                      seal key metadata in them: these are written anew, and the lists that name
                      them; the snapshots stay what they are otherwise
    KEKs              one new one for the old ones of each scope; those in the table's metadata are
                      dropped

All of it is one new version of the table. In a key store the old KEKs stay, as those that older
metadata.json files hold do: older versions open by them until `expire_history` drops both. Nothing
new is sealed under them (`KEKS_SINCE`).
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from modcrypt.errors import FormatError, ModcryptError, PlaintextError
from modcrypt.iceberg.format.ags1_files import write_sealed
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import KEY_ID, EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import file_names
from modcrypt.iceberg.keys.key_policies import FILES_SCOPE, KEKS_SINCE, later_than
from modcrypt.iceberg.keys.key_resolver import (
    WRAPPING,
    KeyResolver,
    open_from_manifest,
    seal_for_manifest,
)
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.read.inventory import in_threads
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.rotate.dek_rotation import RekeyItem, in_their_order
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.iceberg.rotate.manifest_rewrapping import Exchange, Reseal, reseal_manifest
from modcrypt.iceberg.rotate.rotation_report import (
    TableRotation,
    counting,
    older_versions,
    target_of,
    with_resolver,
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
from modcrypt.iceberg.write.commit import commit, surely_failed
from modcrypt.iceberg.write.manifest_writing import metadata_folder
from modcrypt.io.storage import Place
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import Secret
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.tracebacks import hide_frames

__all__ = ["rotate_kek"]

_PATH, _LENGTH, _KEY_METADATA = 500, 501, 519
"""Ids of fields of a manifest list (spec, "Manifest Lists")."""


def rotate_kek(
    table: IcebergTable, new_id: str | None, dry_run: bool, reseal: Reseal | None = None
) -> TableRotation:
    """Put new KEKs in the places of the old ones; as `rotate_table`."""
    counted, client = counting(table)
    target = target_of(counted, new_id)
    if dry_run or not _changes(counted, target):
        return replace(
            _Planned.of(counted).report(table, client), dry_run=dry_run, master_key_id=target,
            older_versions=older_versions(counted),
        )  # fmt: skip
    renewal = _Renewal(counted.walk.resolver, new_id, reseal)
    try:
        new = commit(counted, renewal.next_version)
    except BaseException as error:
        renewal.give_up(error, counted)
        raise
    renewal.finish(new)
    result = with_resolver(new, table.walk.resolver)
    return replace(
        renewal.planned.report(result, client), committed=True,
        master_key_id=result.metadata.master_key_id or "", kms_calls=client.calls,
        older_versions=older_versions(result),
    )  # fmt: skip


# --- what is to be done --------------------------------------------------------------------------


def _changes(table: IcebergTable, target: str) -> bool:
    """Tell whether there is anything to rotate: in a table that never had rows there is not."""
    metadata = table.metadata
    there = metadata.keys or table.walk.resolver.keks(metadata)
    return bool(there) or target != metadata.master_key_id


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
        keks: by id, those in its metadata, and those in the key store that seal anything.
        stored: all that the key store has for it, by id.
        sealed: entries of manifest lists.
        within: what is sealed in manifests.
    """

    keks: Mapping[str, IcebergKey]
    stored: Mapping[str, IcebergKey]
    sealed: tuple[EncryptedKey, ...]
    within: SealedManifests

    @classmethod
    def of(cls, table: IcebergTable, opened: Opened | None = None) -> _Planned:
        """Look at a version of the table."""
        check_store(table)
        keys = table.metadata.keys
        found = table.walk.resolver.keks(table.metadata)
        within = sealed_manifests(table, opened)
        sealed = tuple(one for id_, one in keys.items() if id_ not in found)
        stay = keys.keys() | {one.encrypted_by for one in sealed} | within.keks
        keks = {id_: one for id_, one in found.items() if id_ in stay}
        stored = {id_: one for id_, one in found.items() if id_ not in keys}
        return cls(keks, stored, sealed, within)

    def since(self) -> int:
        """Give the time of new KEKs."""
        return later_than(self.stored.values())

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
            left=tuple(sorted(self.within.keks - self.keks.keys())),
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
        reseal: writes manifests; None: threads of this process do.
        name: of the job: what the names of new manifests begin with.
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
    reseal: Reseal | None = None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
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
        # Somebody else has rotated the MEK meanwhile; or may have taken on new KEKs in the store.
        if target != self.target or not all(one.in_table for one in self.made):
            self.target = target
            for kept in (self.made, self.sealed, self.manifests, self.lists):
                kept.clear()
        self.planned = planned = _Planned.of(table, self.opened)
        since = planned.since()
        new = self._new_keys(metadata, since)
        self._write_manifests(table, new)
        self._write_lists(table)
        properties = {**metadata.properties, KEY_ID: target}
        changed = metadata.with_keys(
            [*new.entries(planned), *self._entries(metadata, new)],
            properties={**properties, KEKS_SINCE: str(since)} if planned.stored else properties,
            snapshots=[self._snapshot(one) for one in metadata.snapshots],
        )
        self.offered = table.place
        return changed

    def finish(self, table: IcebergTable) -> None:
        """Remove files of attempts that came to nothing."""
        within = self.planned.within
        used = {self.manifests[location]["manifest_path"] for location in within.manifests}
        self._remove(table, used | {self.lists[location][0] for location in within.lists})

    def give_up(self, error: BaseException, table: IcebergTable) -> None:
        """Remove files made for nothing, unless the commit may have come to pass after all.

        New KEKs in a key store stay: others may have taken them on.
        """
        with contextlib.suppress(ModcryptError, OSError):  # what went wrong first is what matters
            if surely_failed(error, table, self.offered):
                self._remove(table, set())

    def _remove(self, table: IcebergTable, but: set[str]) -> None:
        remove_written(table.walk.locations, {*self.written, *self._named(table)} - but)

    def _named(self, table: IcebergTable) -> list[str]:
        """Give the manifests of the job, those too of tasks that failed or ran twice elsewhere."""
        names: list[str] = []
        folder = metadata_folder(table.metadata)
        if self.reseal is not None:
            with contextlib.suppress(OSError):  # the table is rotated by now, or another error told
                inside = table.walk.place(f"{folder}/{self.name}")
                names = file_names(Place(inside.filesystem, posixpath.dirname(inside.path)))
        return [f"{folder}/{name}" for name in names if name.startswith(self.name)]

    # --- keys -----------------------------------------------------------------------------------

    def _new_keys(self, metadata: TableMetadata, since: int) -> _NewKeys:
        lists, files = self.planned.slots()
        slots = dict.fromkeys((*lists.values(), *files.values()))
        for in_table in (True, False):
            missing = [one for one in slots if one.in_table is in_table and one not in self.made]
            self._make(metadata, missing, in_table, since)
        single = self.resolver.opened(IcebergKey.single(self.target))
        return _NewKeys(
            {id_: self.made[slot] for id_, slot in lists.items()},
            {id_: self.made[slot] for id_, slot in files.items()},
            single,
        )

    def _make(
        self, metadata: TableMetadata, slots: Sequence[_Slot], in_table: bool, since: int
    ) -> None:
        new = self.resolver.masters.new_keks(
            self.target, metadata.key_length, [one.scope for one in slots],
            table=None if in_table else metadata.uuid, now_ms=since,
        )  # fmt: skip
        self.made.update(zip(slots, map(self.resolver.made, new), strict=True))
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
            # The master key is asked for each, unless the key service takes many at once.
            each = single and capabilities_of(self.resolver.masters.client).batch < 2
            sealed = in_threads(key.seal, plain, THREADS) if each else key.seal_many(plain)
            self._keep(entries, key, sealed)
        return [self.sealed[place_of(one)] for one in self.planned.sealed]

    def _opening(
        self, id_: str, single: bool, metadata: TableMetadata
    ) -> Callable[[EncryptedKey], StandardKeyMetadata]:
        """Give what opens all entries under one key; of a KEK without looking for it each time."""
        if single:
            return lambda entry: self.resolver.open_entry(entry, metadata)
        kek = self.resolver.opened(self.resolver.find(id_, metadata))
        return lambda entry: kek.open(entry.encrypted)

    def _keep(self, before: Sequence[EncryptedKey], key: OpenKey, sealed: Iterable[bytes]) -> None:
        for one, encrypted in zip(before, sealed, strict=True):
            self.sealed[place_of(one)] = replace(one, encrypted=encrypted, encrypted_by=key.key.id)

    # --- files ----------------------------------------------------------------------------------

    def _write_manifests(self, table: IcebergTable, new: _NewKeys) -> None:
        left = [
            one.manifest
            for location, one in self.planned.within.manifests.items()
            if location not in self.manifests
        ]
        exchange = Exchange(
            old={id_: self.resolver.find(id_, table.metadata) for id_ in new.files},
            new={id_: one.key for id_, one in new.files.items()},
            single=new.single.key,
            folder=metadata_folder(table.metadata),
            name=self.name,
            key_length=table.metadata.key_length,
        )
        write = self._here if self.reseal is None or not left else self._there
        for manifest, (location, keys) in zip(left, write(table, left, exchange), strict=True):
            self.manifests[manifest.location] = {
                **manifest.row, "manifest_path": location, "manifest_length": keys.file_length,
                "key_metadata": Secret(keys.encode()),
            }  # fmt: skip

    def _here(
        self, table: IcebergTable, manifests: Sequence[ManifestFile], exchange: Exchange
    ) -> Iterator[tuple[str, StandardKeyMetadata]]:
        def work(manifest: ManifestFile) -> tuple[str, StandardKeyMetadata]:
            walk = table.walk
            keys, locations = _keys_of(walk, manifest), walk.locations
            made = reseal_manifest(locations, manifest.location, keys, exchange, self.resolver)
            self.written.append(made[0])
            return made

        return in_threads(work, manifests, THREADS)

    def _there(
        self, table: IcebergTable, manifests: Sequence[ManifestFile], exchange: Exchange
    ) -> list[tuple[str, StandardKeyMetadata]]:
        assert self.reseal is not None
        job = self.resolver.masters.new_kek(self.target, exchange.key_length)
        sealed = seal_for_manifest([_keys_of(table.walk, one) for one in manifests], job)
        items = [
            RekeyItem(one.location, "AVRO", one.length, of_one)
            for one, of_one in zip(manifests, sealed, strict=True)
        ]
        done = list(self.reseal(table, job.key, exchange, items))
        self.written += [one.location for one in done]
        return [
            (one.location, open_from_manifest(one.sealed, job).with_length(one.size))
            for one in in_their_order(items, done)
        ]

    def _write_lists(self, table: IcebergTable) -> None:
        left = [
            one
            for one in {one.manifest_list: one for one in table.metadata.snapshots}.values()
            if one.manifest_list in self.planned.within.lists
            and one.manifest_list not in self.lists
        ]
        for _ in in_threads(lambda one: self._write_list(table, one), left, THREADS):
            pass

    @hide_frames
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


def _keys_of(walk: Walk, manifest: ManifestFile) -> StandardKeyMetadata:
    """Give the key metadata of a manifest that was read, so that it has some."""
    keys = walk.manifest_keys(manifest)
    if keys is None:
        raise PlaintextError(f"{manifest.location}: in plaintext, though keys in it are sealed")
    return keys
