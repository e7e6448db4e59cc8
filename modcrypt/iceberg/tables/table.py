"""An encrypted Iceberg table, opened: its rows, files, keys and snapshots."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from modcrypt.errors import FormatError, IntegrityError, PlaintextError
from modcrypt.iceberg.format.library_errors import require_extra
from modcrypt.iceberg.format.locations import Locations, find_place
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import (
    FolderVersions,
    Versions,
    read_current,
    read_metadata,
)
from modcrypt.iceberg.keys.key_resolver import KeyResolver, KeyStore
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.io.storage import Place
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.references import open_kms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression

    from modcrypt.iceberg.read.table_scan import ScanOf

__all__ = [
    "Expectation", "IcebergTable", "expected_master_keys", "open_table", "opened", "read_metadata",
    "resolver_of",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a reader knows of a table from elsewhere; nobody signs its metadata.json.

    Attributes:
        require_encrypted: whatever is in plaintext is refused.
        table_uuid: that the table has.
        at_least: the least sequence number that its current snapshot may have.
        master_key_ids: those that it may be under.
    """

    require_encrypted: bool = True
    table_uuid: str | None = None
    at_least: int | None = None
    master_key_ids: Collection[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.master_key_ids, str):  # of which every letter would be expected
            raise ValueError("master_key_ids takes several ids, not one string")

    def check(self, metadata: TableMetadata) -> None:
        """Hold it against a table's metadata; raises as `open_table`."""
        name = metadata.name
        if self.require_encrypted and not metadata.master_key_id:
            raise PlaintextError(
                f"{name}: the table has no encryption.key-id: it is not encrypted, or somebody "
                "had it forgotten"
            )
        if self.table_uuid is not None and metadata.uuid != self.table_uuid:
            raise IntegrityError(f"{name}: this is table {metadata.uuid}, not {self.table_uuid}")
        if self.at_least is not None and (found := _state(metadata)) < self.at_least:
            raise IntegrityError(
                f"{name}: the table's current snapshot has the sequence number {found}, and it "
                f"was at {self.at_least} before: this is an older state of it"
            )
        allowed = None if self.master_key_ids is None else set(self.master_key_ids)
        if allowed is not None and metadata.master_key_id not in allowed:
            raise IntegrityError(
                f"{name}: the table is under the master key {metadata.master_key_id!r}, which is "
                "none of those expected"
            )


def _state(metadata: TableMetadata) -> int:
    """Give the sequence number of the current snapshot, which a later one is said to exceed.

    `last-sequence-number` alone tells nothing: metadata.json could have it as it was, and name an
    older snapshot, or none.
    """
    current = metadata.current
    return 0 if current is None else min(current.sequence_number, metadata.last_sequence_number)


def _check_follows(new: TableMetadata, old: TableMetadata, expected: Expectation) -> None:
    """Check a version that others committed against the one that this process has seen.

    Nothing signs metadata.json: anyone who can write it could choose the master key for new files,
    or restore an older state.

    Raises:
        IntegrityError: the version is under another master key, or older.
    """
    if new.master_key_id != old.master_key_id and expected.master_key_ids is None:
        raise IntegrityError(
            f"{new.name}: the table was under the master key {old.master_key_id!r}, and is now "
            f"under {new.master_key_id!r}. If that key was rotated, open the table again with "
            f"master_key_ids=[{new.master_key_id!r}]; otherwise metadata.json was altered"
        )
    if (
        _state(new) < _state(old)
        or new.last_sequence_number < old.last_sequence_number
        or (new.current is None and old.current is not None)
    ):
        raise IntegrityError(
            f"{new.name}: the table is at sequence number {_state(new)}, and was at {_state(old)}: "
            "this is an older state of it. If it was rolled back on purpose, open the table again"
        )


@dataclass(frozen=True)
class IcebergTable:
    """One version of a table, as `open_table` gives it.

    Attributes:
        metadata: what its metadata.json says.
        place: where that is.
        walk: the way to its files.
        versions: knows which version is the current one, and commits the next.
        expected: what every version of it must be.
    """

    metadata: TableMetadata
    place: Place
    walk: Walk = field(repr=False)
    versions: Versions = field(repr=False)
    expected: Expectation = field(repr=False)

    def refreshed(self) -> IcebergTable:
        """Return the current version of the table, which others may have committed since.

        Raises:
            IntegrityError: it is an older state than this one, under another master key, or this
                one altered: open the table again if that is intended.
            ModcryptError, OSError: as `open_table`.
        """
        return self._at(*read_current(self.versions.current))

    def at(self, place: Place) -> IcebergTable:
        """Give the version of the table that a metadata.json is; raises as `open_table`."""
        return self._at(place, read_metadata(place))

    def _at(self, place: Place, metadata: TableMetadata) -> IcebergTable:
        if metadata.uuid != self.metadata.uuid:
            raise IntegrityError(f"{place.path}: another table has taken the place of this one")
        self.expected.check(metadata)
        _check_follows(metadata, self.metadata, self.expected)
        if place == self.place and metadata.document != self.metadata.document:
            raise IntegrityError(
                f"{place.path}: metadata.json was altered after the table was opened; commits "
                "write new ones. If it was restored on purpose, open the table again"
            )
        return replace(self, metadata=metadata, place=place, walk=self.walk.through(metadata))

    def append(self, data: pa.Table | pa.RecordBatchReader) -> IcebergTable:
        """Append rows, as a new snapshot; arguments and errors as of `appending.append`."""
        from modcrypt.iceberg.write.append import append

        return append(self, data)

    def scan(
        self,
        snapshot: int | str | None = None,
        columns: Sequence[str] | None = None,
        filters: str | BooleanExpression | None = None,
    ) -> pa.Table:
        """Read rows.

        Args:
            snapshot: id of a snapshot, or name of a branch or tag; None for the current one. The
                rows of a snapshot or tag have the schema that was the table's then, those of a
                branch the current one.
            columns: names, dotted for fields of structs; None for all.
            filters: which rows, as `"id > 5 and name is not null"`, or an expression of
                pyiceberg; manifests, files and row groups without any are not opened.

        Raises:
            ValueError: no such snapshot or column, or no filter.
            ModcryptError: a file can't be had, is in plaintext, or is not what was written.
            OSError: from the file system.
        """
        return self._scan(snapshot, columns, filters).to_table()

    def scan_batches(
        self,
        snapshot: int | str | None = None,
        columns: Sequence[str] | None = None,
        filters: str | BooleanExpression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read rows batch by batch; as `scan`."""
        return self._scan(snapshot, columns, filters).to_batches()

    def _scan(self, snapshot: Any, columns: Any, filters: Any) -> ScanOf:
        from modcrypt.iceberg.read.table_scan import ScanOf

        if isinstance(columns, str):  # or each of its letters would be one
            raise ValueError(f"columns are a list of names: [{columns!r}]")
        found = self.snapshot(snapshot)
        schema_id = None if found is None else self._schema_id(found, snapshot)
        return ScanOf(self.walk, found, schema_id, columns, filters)

    def _schema_id(self, snapshot: Snapshot, which: int | str | None) -> int | None:
        """Give the schema that rows are to have, as Java chooses it; None for the current one."""
        if which is None or (isinstance(which, str) and self._ref(which).get("type") != "tag"):
            return None
        return snapshot.schema_id

    def snapshot(self, which: int | str | None = None) -> Snapshot | None:
        """Give a snapshot: by its id, by a branch or tag, or the current one, if there is one.

        Raises:
            ValueError: there is none.
        """
        if which is None:
            return self.metadata.current
        wanted: int = self._ref(which)["snapshot-id"] if isinstance(which, str) else which
        try:
            return self.metadata.snapshot(wanted)
        except FormatError:
            raise ValueError(f"there is no snapshot {wanted}") from None

    def _ref(self, name: str) -> dict[str, Any]:
        found = self.metadata.refs.get(name, {})
        if type(found.get("snapshot-id")) is not int:
            raise ValueError(f"there is no branch or tag {name!r}")
        return found

    def snapshots(self) -> pa.Table:
        """List the snapshots: a row for each, the oldest first."""
        from modcrypt.iceberg.read.listings import list_snapshots

        return list_snapshots(self.metadata)

    def keys(self) -> pa.Table:
        """List the table's keys: KEKs and those of manifest lists; no key itself is shown."""
        from modcrypt.iceberg.read.listings import list_keys

        return list_keys(self.metadata, self.walk.resolver)

    def files(self, snapshot: int | str | None = None) -> pa.Table:
        """List the files of a snapshot: manifests, data and delete files.

        Raises:
            ValueError, ModcryptError, OSError: as `scan`.
        """
        from modcrypt.iceberg.read.listings import list_files

        return list_files(self.walk, self.snapshot(snapshot))


def open_table(
    metadata_json: Any,
    kms: KmsClient | KeyTools | str,
    *,
    location_map: Mapping[str, Any] | None = None,
    key_store: KeyStore | None = None,
    filesystem: Any = None,
    require_encrypted: bool = True,
    table_uuid: str | None = None,
    at_least: int | None = None,
    master_key_ids: Collection[str] | None = None,
) -> IcebergTable:
    """Open a table by its metadata.json.

    Nothing vouches for that file: whoever can write it can name an older state of the table, or
    have plaintext read. What the reader knows from elsewhere is held against it.

    Args:
        metadata_json: path or URL of the file, or of the table's folder: then of its newest one.
        kms: client of the key service, or its URI, as for `open_kms`; or key tools, whose `audit`
            is called with each use of it.
        location_map: beginnings of locations, as the table's files name them, to the folders
            that they stand for. Nothing outside of these folders is read. The table's `location`
            stands for the folder that `metadata/` is in, unless it is mapped otherwise.
        key_store: where KEKs are kept besides the table's metadata.
        filesystem: of pyarrow or fsspec, in which `metadata_json` and the folders are paths.
        require_encrypted: refuse whatever is in plaintext. False takes it for what it is.
        table_uuid: that the table must have.
        at_least: the least sequence number that its current snapshot may have: no older state is
            taken, nor one that was rolled back.
        master_key_ids: Ids of the master keys that the table may be under. By default, the one that
            the URI of the key service names, if it names one.

    Raises:
        ModuleNotFoundError: the extra `modcrypt[iceberg]` is not installed.
        FormatError: the file is no table metadata.
        PlaintextError: the table is not encrypted.
        IntegrityError: it is another table, an older state of it, or under another master key.
        KeyRetrievalError, ValueError: as `open_kms`.
        OSError: from the file system.
    """
    place = find_place(metadata_json, filesystem)
    named = place.path.endswith((".json", ".json.gz"))
    beside = Place(place.filesystem, posixpath.dirname(place.path))
    versions = FolderVersions(beside if named else place.below("metadata"))
    kms = open_kms(kms) if isinstance(kms, str) else kms
    master_key_ids = expected_master_keys(kms, master_key_ids)
    expected = Expectation(
        require_encrypted=require_encrypted,
        table_uuid=table_uuid,
        at_least=at_least,
        master_key_ids=master_key_ids,
    )
    resolver = resolver_of(kms, key_store, master_key_ids)
    find = (lambda: place) if named else versions.current
    return opened(find, versions, resolver, expected, location_map, filesystem)


def opened(
    find: Callable[[], Place],
    versions: Versions,
    resolver: KeyResolver,
    expected: Expectation,
    location_map: Mapping[str, Any] | None,
    filesystem: Any = None,
) -> IcebergTable:
    """Open a table by what gives the place of its metadata.json; else as `open_table`."""
    require_extra()
    place, metadata = read_current(find)
    expected.check(metadata)
    if metadata.lost_its_history and expected.master_key_ids is None:
        raise IntegrityError(
            f"{metadata.name}: the table had snapshots, and its metadata.json names none, so that "
            "nothing but an unsigned property says which master key it is under; if "
            f"{metadata.master_key_id!r} is right, pass master_key_ids=[{metadata.master_key_id!r}]"
        )
    path = os.path.abspath(place.path) if place.filesystem is None else place.path
    folder = Place(place.filesystem, posixpath.dirname(posixpath.dirname(path)))
    locations = Locations.of(location_map, metadata.location, folder, filesystem)
    walk = Walk(metadata, locations, resolver, expected.require_encrypted)
    return IcebergTable(metadata, place, walk, versions, expected)


def expected_master_keys(
    kms: KmsClient | KeyTools, master_key_ids: Collection[str] | None
) -> Collection[str] | None:
    """Return the ids of the master keys that a table may be under; None if nobody knows.

    Args:
        kms: The key service, whose URI may have named a master key.
        master_key_ids: What the caller knows.
    """
    if master_key_ids is not None:
        return master_key_ids
    client = kms.client if isinstance(kms, KeyTools) else kms
    declared = getattr(kms, "master_key_ids", None)
    named = getattr(client, "default_key", None)
    if not isinstance(named, str) or not named:
        return declared
    return {named, *(declared or ())}


def resolver_of(
    kms: KmsClient | KeyTools | str,
    key_store: KeyStore | None,
    master_key_ids: Collection[str] | None = None,
) -> KeyResolver:
    """Give what opens a table's keys; arguments as of `open_table`.

    Raises:
        ValueError: key tools that bind keys to an AAD: Iceberg's tables have none.
        KeyRetrievalError, ValueError: as `open_kms`.
    """
    if not isinstance(kms, KeyTools):
        client = open_kms(kms) if isinstance(kms, str) else kms
        return KeyResolver(client, key_store, master_key_ids=master_key_ids)
    if kms.wrapper.aad:
        raise ValueError("keys of Iceberg's tables are bound to no AAD: leave kms_aad out")
    audit = kms.wrapper.audit
    return KeyResolver(kms.client, key_store, master_key_ids=master_key_ids, audit=audit)
