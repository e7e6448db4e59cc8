"""Open an encrypted Iceberg table and read its rows, files, keys and snapshots."""

from __future__ import annotations

import datetime
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from modcrypt.errors import IntegrityError
from modcrypt.iceberg.format.library_errors import require_extra
from modcrypt.iceberg.format.locations import Locations, find_place
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.format.table_versions import (
    CurrentVersion,
    FolderVersions,
    Versions,
    read_current,
)
from modcrypt.iceberg.keys.key_resolver import KeyResolver, KeyStore
from modcrypt.iceberg.read.table_version import Expectation, TableVersion
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.io.places import Place
from modcrypt.kms.client import KmsClient
from modcrypt.kms.expected_keys import expect_keys
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.references import open_kms
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, check_verifying_keys
from modcrypt.parquet.crypto.properties import SubjectKeys
from modcrypt.report.fact_sheet import FactSheet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression

    from modcrypt.iceberg.read.restricted_scan import RestrictedScan
    from modcrypt.iceberg.read.table_scan import TableScan
    from modcrypt.iceberg.tables.data_scan import DataScan
    from modcrypt.iceberg.write.upsert import Upserted
    from modcrypt.parquet.arrow.arrow_streams import ArrowStream


Read: TypeAlias = Callable[[], CurrentVersion]  # function that reads a version of a table


@dataclass(frozen=True, repr=False)
class IcebergTable(FactSheet, TableVersion):
    """One version of a table, as `open_table` returns it: its rows, files, keys and snapshots.

    Attributes:
        metadata: Content of the metadata.json.
        place: Place of the metadata.json.
        walk: Access to the table's files.
        versions: The table's versions: finds the current one and commits the next.
        expected: Expectations that every version of the table must meet.
        restrictions: Read restrictions of the catalog for this reader, as JSON, which scans apply;
            None without any.
        signing_key: Key that seals the table after each commit; None if commits do not seal it.
    """

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts that represent the table in a terminal or notebook."""
        return [
            ("Metadata", self.metadata.name),
            ("Snapshots", str(len(self.metadata.snapshots))),
            ("Master key", self.metadata.master_key_id or "none"),
        ]

    def append(
        self,
        data: pa.Table | ArrowStream,
        *,
        branch: str | None = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> IcebergTable:
        """Append rows as a new snapshot; takes and raises the same as `modcrypt.iceberg.append`."""
        from modcrypt.iceberg.write.append import append

        return append(self, data, branch=branch, snapshot_properties=snapshot_properties)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: Mapping[str, str] | None = None,
        case_sensitive: bool = True,
        branch: str | None = "main",
    ) -> IcebergTable:
        """Delete rows; takes and raises the same as `modcrypt.iceberg.delete`."""
        from modcrypt.iceberg.write.row_deletion import delete

        return delete(self, delete_filter, snapshot_properties, case_sensitive, branch)

    def overwrite(
        self,
        data: pa.Table | ArrowStream,
        overwrite_filter: str | BooleanExpression = "true",
        snapshot_properties: Mapping[str, str] | None = None,
        case_sensitive: bool = True,
        branch: str | None = "main",
    ) -> IcebergTable:
        """Replace rows; takes and raises the same as `modcrypt.iceberg.overwrite`."""
        from modcrypt.iceberg.write.row_deletion import overwrite

        return overwrite(self, data, overwrite_filter, snapshot_properties, case_sensitive, branch)

    def upsert(
        self,
        data: pa.Table | ArrowStream,
        join_cols: Sequence[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = "main",
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> Upserted[IcebergTable]:
        """Update and insert rows; takes and raises the same as `modcrypt.iceberg.upsert`."""
        from modcrypt.iceberg.write.upsert import upsert

        return upsert(
            self, data, join_cols, when_matched_update_all, when_not_matched_insert_all,
            case_sensitive, branch, snapshot_properties,
        )  # fmt: skip

    def scan(
        self,
        snapshot: int | str | None = None,
        columns: Sequence[str] | None = None,
        filters: str | BooleanExpression | None = None,
        *,
        row_filter: str | BooleanExpression | None = None,
        selected_fields: Sequence[str] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        as_of: datetime.datetime | int | None = None,
        limit: int | None = None,
    ) -> DataScan:
        """Choose rows, as far as read restrictions allow: filtered, and with masked columns.

        Rows are read when the scan is used, for example by `to_arrow()`, `to_pandas()` or
        `num_rows`.

        Args:
            snapshot: Id of a snapshot, or name of a branch or tag; None for the current snapshot.
                The rows of a snapshot or tag have the schema of that time, those of a branch the
                current schema.
            columns: Names of columns, dotted for fields of structs; None for all.
            filters: Condition on rows, for example `"id > 5 and name is not null"`, or an
                expression of pyiceberg; manifests, files and row groups without matching rows are
                not opened.
            row_filter, selected_fields, snapshot_id: pyiceberg's names of `filters`, `columns` and
                `snapshot`; pass only one of each two.
            case_sensitive: Whether names of columns must have the table's case.
            as_of: Time as a datetime with a time zone, or in milliseconds since 1970: the snapshot
                that was the current one then.
            limit: Maximum number of rows.

        Raises:
            ValueError: The snapshot or a column does not exist, or the filter is invalid.
            ModcryptError: When rows are read: a file is missing, is in plaintext, or is not
                authentic.
            OSError: The file system failed.
        """
        from modcrypt.iceberg.tables.data_scan import DataScan, select_rows

        selection = select_rows(
            self, snapshot, columns, filters, row_filter=row_filter,
            selected_fields=selected_fields, case_sensitive=case_sensitive,
            snapshot_id=snapshot_id, as_of=as_of, limit=limit,
        )  # fmt: skip
        return DataScan(self, selection)

    def scan_batches(
        self,
        snapshot: int | str | None = None,
        columns: Sequence[str] | None = None,
        filters: str | BooleanExpression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read rows batch by batch; see `scan`."""
        return self.make_scan(snapshot, columns, filters).to_batches()

    def make_scan(self, snapshot: Any, columns: Any, filters: Any) -> TableScan | RestrictedScan:
        """Return the reader of the rows of a scan; see `scan`."""
        from modcrypt.iceberg.read.table_scan import TableScan

        if isinstance(columns, str):  # a text would be taken for a list of its letters
            raise ValueError(f"columns must be a list of names; pass [{columns!r}]")
        columns = None if columns is None else tuple(columns)
        found_snapshot = self.snapshot(snapshot)
        schema_id = None if found_snapshot is None else self.schema_id(found_snapshot, snapshot)
        rows: Any = (self.walk, found_snapshot, schema_id, columns, filters)
        if documents := self.read_restrictions:
            from modcrypt.iceberg.read.restricted_scan import RestrictedScan

            return RestrictedScan(documents, *rows)
        return TableScan(*rows)

    def schema_id(self, snapshot: Snapshot, which: int | str | None) -> int | None:
        """Return the id of the schema for rows, as Java chooses it; None for the current one."""
        if which is None or (isinstance(which, str) and self._ref(which).get("type") != "tag"):
            return None
        return snapshot.schema_id

    def snapshot_as_of_timestamp(
        self, timestamp_ms: int, inclusive: bool = True
    ) -> Snapshot | None:
        """Return the snapshot that was the current one at a time; None before the first.

        Args:
            timestamp_ms: Milliseconds since 1970.
            inclusive: Whether a snapshot of exactly that time counts.

        Raises:
            ValueError: The snapshot has been expired.
        """
        latest = timestamp_ms if inclusive else timestamp_ms - 1
        for entry in reversed(self.metadata.history()):
            if entry["timestamp-ms"] <= latest:
                return self.snapshot(entry["snapshot-id"])
        return None

    def history(self) -> pa.Table:
        """List the current snapshots of the past, the oldest first, with the times of changes."""
        from modcrypt.iceberg.read.listings import list_history

        return list_history(self.metadata)

    def refs(self) -> pa.Table:
        """List the branches and tags, with their snapshots."""
        from modcrypt.iceberg.read.listings import list_refs

        return list_refs(self.metadata)

    def snapshots(self) -> pa.Table:
        """List the snapshots, one row each, the oldest first."""
        from modcrypt.iceberg.read.listings import list_snapshots

        return list_snapshots(self.metadata)

    def keys(self) -> pa.Table:
        """List the table's KEKs and the keys of manifest lists; key bytes are not included."""
        from modcrypt.iceberg.read.listings import list_keys

        return list_keys(self.metadata, self.resolver)

    def files(self, snapshot: int | str | None = None) -> pa.Table:
        """List the files of a snapshot: manifests, data and delete files.

        Raises:
            ValueError, ModcryptError, OSError: See `scan`.
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
    read_restrictions: Mapping[str, Any] | None = None,
    signed_by: Iterable[VerifyingKey] = (),
    seal_at_least: int = 1,
    seal_needed: int = 1,
    signing_key: SigningKey | Sequence[SigningKey] | None = None,
    subjects: SubjectKeys | None = None,
) -> IcebergTable:
    """Open a table by its metadata.json.

    The file is not authenticated: anyone who can write it can name an older state of the table,
    or plaintext files. The arguments state what the caller knows, and the file is checked against
    them.

    Args:
        metadata_json: Path or URL of the file, or of the table's folder, whose newest metadata.json
            is then opened.
        kms: Client of the key service, or its URI as for `open_kms`; or key tools, whose `audit`
            is called for each use of the key service.
        location_map: Mapping of prefixes of locations, as the table's files contain them, to
            folders. Nothing outside of these folders is read. By default, the table's `location`
            is mapped to the folder that contains `metadata/`.
        key_store: Store of KEKs outside of the table's metadata.
        filesystem: File system of pyarrow or fsspec for `metadata_json` and the folders.
        require_encrypted: Whether to reject plaintext; False accepts plaintext tables and files.
        table_uuid: UUID that the table must have.
        at_least: Minimum sequence number of the current snapshot; rejects older states and tables
            that were rolled back.
        master_key_ids: Ids of the master keys that the table may be under. By default, those that
            the key tools expect: their `master_key_ids`, and for `KeyTools.from_policy` the
            policy's master key for footers, otherwise the key that the URI of the key service
            names. Without any of these, every master key is accepted.
        read_restrictions: JSON of Iceberg's read restrictions, as a REST catalog sends them: a row
            filter, and actions on columns. Scans apply them besides those of the catalog.
        signed_by: Keys of writers, of whom `seal_needed` must have sealed this version of the
            table, as by `seal_table`; none to accept unsigned tables, unless the policy of the key
            tools (`KeyTools.from_policy`) names writers.
        seal_at_least: Number that the seal must have at least: the last one that you have seen.
        seal_needed: Number of these writers who must have signed the seal.
        signing_key: Key that seals each version that this table, or what is made from it, commits:
            appended rows, rotations, expiries and other changes; or several keys. None leaves that
            to `seal_table`.
        subjects: `modcrypt.subjects.Subjects`, to read and write values that are encrypted one by
            one; None for those of the policy of the key tools (`KeyTools.from_policy`), if any.

    Raises:
        ModuleNotFoundError: The extra `modcrypt[iceberg]` is not installed.
        FormatError: The file is not table metadata.
        PlaintextError: The table is not encrypted.
        IntegrityError: It is another table, an older state, or under another master key, or too few
            of the writers have sealed it.
        KeyRetrievalError, ValueError: See `open_kms`.
        OSError: The file system failed.
    """
    read, versions = find_versions(metadata_json, filesystem)
    resolver, expected = reader_of(
        kms, key_store, master_key_ids, require_encrypted=require_encrypted,
        table_uuid=table_uuid, at_least=at_least, read_restrictions=read_restrictions,
        signed_by=known_writers(signed_by), seal_at_least=seal_at_least, seal_needed=seal_needed,
        subjects=subjects,
    )  # fmt: skip
    table = open_located_table(read, versions, resolver, expected, location_map, filesystem)
    return replace(table, signing_key=signing_key)


def known_writers(signed_by: Iterable[VerifyingKey]) -> dict[str, VerifyingKey]:
    """Return the keys of writers by their ids; raise as `check_verifying_keys`, but accept none."""
    keys = tuple(signed_by)
    return check_verifying_keys(keys) if keys else {}


def find_versions(metadata_json: Any, filesystem: Any) -> tuple[Read, FolderVersions]:
    """Return a function that reads a metadata.json, and the versions of its table.

    `metadata_json` is a path or URL of the file, or of a table's folder, as for `open_table`.
    """
    place = find_place(metadata_json, filesystem)
    if place.path.endswith((".json", ".json.gz")):
        folder = Place(place.filesystem, posixpath.dirname(place.path))
        return partial(read_current, lambda: place), FolderVersions(folder)
    versions = FolderVersions(place.below("metadata"))
    return versions.read, versions


def reader_of(
    kms: KmsClient | KeyTools | str, key_store: KeyStore | None,
    master_key_ids: Collection[str] | None, subjects: SubjectKeys | None = None, **known: Any,
) -> tuple[KeyResolver, Expectation]:  # fmt: skip
    """Return a resolver of a table's keys, and what its reader expects; see `open_table`.

    `known` has the other attributes of the expectation.
    """
    kms = open_kms(kms) if isinstance(kms, str) else kms
    ids = _expected_master_keys(kms, master_key_ids)
    required = kms.required_seal if isinstance(kms, KeyTools) else None
    if required is not None:
        writers = known["signed_by"] or known_writers(required.signed_by)
        least = max(required.at_least, known["seal_at_least"])
        known |= {"signed_by": writers, "seal_at_least": least}
    return resolver_of(kms, key_store, ids, subjects), Expectation(master_key_ids=ids, **known)


def open_located_table(
    read: Read, versions: Versions, resolver: KeyResolver, expected: Expectation,
    location_map: Mapping[str, Any] | None, filesystem: Any = None,
) -> IcebergTable:  # fmt: skip
    """Open the version of a table that `read` returns; see `open_table`."""
    require_extra()
    place, metadata, restrictions = read()
    expected.check(metadata)
    expected.check_seal(place, metadata)
    if metadata.lost_its_history and expected.master_key_ids is None:
        raise IntegrityError(
            f"{metadata.name}: the table had snapshots, but its metadata.json names none, so only "
            "an unsigned property says which master key it is under; if "
            f"{metadata.master_key_id!r} is right, pass master_key_ids=[{metadata.master_key_id!r}]"
        )
    path = os.path.abspath(place.path) if place.filesystem is None else place.path
    folder = Place(place.filesystem, posixpath.dirname(posixpath.dirname(path)))
    locations = Locations.of(location_map, metadata.location, folder, filesystem)
    walk = Walk(metadata, locations, resolver, expected.require_encrypted)
    return IcebergTable(metadata, place, walk, versions, expected, restrictions)


def _expected_master_keys(
    kms: KmsClient | KeyTools, master_key_ids: Collection[str] | None
) -> Collection[str] | None:
    """Return the ids of the master keys that a table may be under; None if unknown."""
    if master_key_ids is not None:
        return master_key_ids
    expected = kms.keys_of_whole_files() if isinstance(kms, KeyTools) else expect_keys(kms)
    return expected.of_whole_files


def resolver_of(
    kms: KmsClient | KeyTools | str,
    key_store: KeyStore | None,
    master_key_ids: Collection[str] | None = None,
    subjects: SubjectKeys | None = None,
) -> KeyResolver:
    """Return a resolver of a table's keys; for the arguments see `open_table`.

    Raise ValueError if the key tools bind keys to an AAD, which Iceberg tables do not support.
    """
    if not isinstance(kms, KeyTools):
        client = open_kms(kms) if isinstance(kms, str) else kms
        return KeyResolver(client, key_store, master_key_ids=master_key_ids, subjects=subjects)
    if kms.wrapper.aad:
        raise ValueError("Iceberg tables do not support an AAD for wrapped keys; remove kms_aad")
    return KeyResolver(
        kms.client, key_store, master_key_ids=master_key_ids, audit=kms.wrapper.audit,
        subjects=subjects or kms.own_subjects,
    )  # fmt: skip
