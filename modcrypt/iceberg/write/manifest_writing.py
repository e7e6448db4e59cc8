"""Write encrypted manifests and manifest lists of format version 3, each under its own data key.

    rows of data files -> manifest (AGS1) -> a row with its key metadata
      -> manifest list (AGS1) -> its key metadata, encrypted under the table's key: an entry of
         `encryption-keys`

Fields, ids and headers are those of Iceberg's Java implementation (V3Metadata, ManifestWriter and
ManifestListWriter). Each file exists under its final name before another file names it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.manifest import construct_partition_summaries
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType, UUIDType
from pyiceberg.utils.decimal import decimal_required_bytes, decimal_to_bytes, unscaled_to_decimal

from modcrypt.ags1.reader import Ags1Reader
from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.encrypted_files import write_ags1
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    FileEntry,
)
from modcrypt.iceberg.format.manifest_schemas import (
    ENTRY_NAMES,
    FILE_NAMES,
    LIST_NAMES,
    LIST_SCHEMA,
    as_json,
    encode_schema,
    entry_schema,
)
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.pyiceberg_schemas import spec_of
from modcrypt.iceberg.format.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.keys import Secret
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.wrapping_keys import OpenKey
    from modcrypt.iceberg.read.table_version import TableVersion

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotFields:
    """The fields of a snapshot that its manifest list contains."""

    id: int
    parent: int | None
    sequence_number: int
    first_row_id: int

    def header(self) -> dict[str, str]:
        """Return the fields as members of the Avro file's header."""
        return {
            "snapshot-id": str(self.id),
            "parent-snapshot-id": "null" if self.parent is None else str(self.parent),
            "sequence-number": str(self.sequence_number),
            "first-row-id": str(self.first_row_id),
            "format-version": "3",
        }


def write_manifest(
    table: TableVersion, spec_id: int, rows: Iterable[Row], files: NewFiles, *, content: int,
    snapshot_id: int, sequence_number: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write a manifest of a table; return its row for a manifest list, under the spec's names.

    The row's key metadata is a `Secret`.

    Args:
        rows: Entries under the spec's names, as `entry_row` returns them; missing members are
            written as null. Key metadata is a `Secret`, or encrypted bytes. Sequence numbers of
            added files may be null: they are inherited. Partition values are raw, as
            `read_manifest` returns them, or pyiceberg's.
        content: 0 for data files, 1 for delete files.
        sequence_number: Sequence number of the manifest; None for that of the first manifest list
            that contains it.

    Raises:
        FormatError: The table has no such partition spec, or its location is mapped to no folder.
        ValueError: A row does not fit the schema.
    """
    spec = partition_spec(table.metadata, spec_id)
    document = schema_of_spec(table.metadata, spec)
    schema = _parse_schema(document, table.metadata)
    struct = spec.partition_type(schema)
    types = {make_compatible_name(field.name): field.field_type for field in struct.fields}
    full = [_full_entry(row, types) for row in rows]
    header = {
        "schema": as_json(document),
        "partition-spec": as_json([_spec_field_json(field) for field in spec.fields]),
        "partition-spec-id": str(spec_id),
        "format-version": "3",
        "content": "data" if content == DATA else "deletes",
    }
    avro, header["iceberg.schema"] = encode_schema(entry_schema(struct), "manifest_entry")
    path = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m0.avro"
    files.note(path)
    keys = write_ags1(
        table.walk.locations, path, write_avro(avro, full, header), table.metadata.key_length
    )
    partitions = [
        Record(*(_comparable(row["data_file"]["partition"][name], types[name]) for name in types))
        for row in full
    ]
    return {
        "manifest_path": path,
        "manifest_length": keys.file_length,
        "partition_spec_id": spec_id,
        "content": content,
        "sequence_number": sequence_number,
        "min_sequence_number": _least_sequence_number(full, sequence_number),
        "added_snapshot_id": snapshot_id,
        **_count_files(full),
        "partitions": _summaries(spec, schema, partitions),
        "key_metadata": Secret(keys.encode()),
        "first_row_id": None,
    }


@hide_frames
def rewrite_manifest(
    locations: Locations, location: str, keys: StandardKeyMetadata,
    change: Callable[[list[dict[str, Any]]], Sequence[Row]], target: str, key_length: int,
) -> StandardKeyMetadata:  # fmt: skip
    """Write a manifest again with changed entries, under a fresh data key; return its key metadata.

    Its Avro schema and header are unchanged. `keys` must have the trusted length of the manifest,
    `key_length` is in bytes. `change` returns the changed entries; their statuses and partitions
    stay the same. Raise ModcryptError if the manifest is not authentic or malformed, or `change`
    failed.
    """
    place = locations.place(location)
    with Ags1Reader(place.path, keys, filesystem=place.filesystem) as reader:
        avro = read_avro(reader.read(), location)
    data = write_avro(avro.schema, change(avro.records), avro.metadata)
    return write_ags1(locations, target, data, key_length)


def entry_row(
    entry: FileEntry, *, status: int, snapshot_id: int | None = None,
    first_row_id: int | None = None, **file: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return an entry, as read with its inherited values, as a row for another manifest.

    Args:
        snapshot_id: Id of the snapshot that adds or deletes the file; None keeps the entry's.
        first_row_id: First row id of a data file, as `first_row_ids` returns it: it must be kept.
        file: Members of the data file to replace, under the spec's names.
    """
    return {
        "status": status,
        "snapshot_id": entry.snapshot_id if snapshot_id is None else snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
        "data_file": {**entry.file, "content": entry.content, "first_row_id": first_row_id, **file},
    }


def first_row_ids(manifest: ManifestFile, entries: Sequence[FileEntry]) -> list[int | None]:
    """Return the first row id of each file of a manifest (spec, "First Row ID Inheritance").

    `entries` must be all entries of the manifest, in order.
    """
    following = manifest.row.get("first_row_id")
    first_ids: list[int | None] = []
    for entry in entries:
        own = entry.file.get("first_row_id")
        if own is None and following is not None and entry.is_live:
            own = following
            following += entry.record_count
        first_ids.append(own)
    return first_ids


class LiveEntry(NamedTuple):
    """A live entry of a manifest, and its first row id, which another manifest must keep."""

    entry: FileEntry
    first_row_id: int | None


def live_entries(manifest: ManifestFile, entries: Sequence[FileEntry]) -> list[LiveEntry]:
    """Return the live entries of a manifest; `entries` are all of its entries, in order."""
    numbered = zip(entries, first_row_ids(manifest, entries), strict=True)
    return [LiveEntry(entry, first) for entry, first in numbered if entry.is_live]


def live_row(
    metadata: TableMetadata, live: LiveEntry, *, status: int, snapshot_id: int | None = None,
    **file: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a live entry as a row for another manifest of the table; see `entry_row`."""
    return entry_row(
        live.entry, status=status, snapshot_id=snapshot_id, first_row_id=live.first_row_id,
        partition=partition_values(metadata, live.entry), **file,
    )  # fmt: skip


def replace_manifest(
    table: TableVersion, old: ManifestFile, rows: Iterable[Row], files: NewFiles, snapshot_id: int
) -> dict[str, Any]:
    """Write the files of a manifest as another one; return and raise as `write_manifest`.

    Its files have explicit row ids, except where the old manifest assigned none.
    """
    row = write_manifest(
        table, old.spec_id, rows, files, content=old.content, snapshot_id=snapshot_id
    )
    return {**row, "first_row_id": old.row.get("first_row_id")}


def _full_entry(row: Row, partition: Mapping[str, IcebergType]) -> dict[str, Any]:
    """Return a row with exactly the members of the schema."""
    file: Row = row["data_file"]
    values: Row = file.get("partition") or {}
    full: dict[str, Any] = {name: file.get(name) for name in FILE_NAMES}
    full["partition"] = {name: _raw(values.get(name), kind) for name, kind in partition.items()}
    full["content"] = full["content"] or DATA
    return {**{name: row.get(name) for name in ENTRY_NAMES}, "data_file": full}


def _summaries(
    spec: PartitionSpec, schema: Schema, partitions: list[Record]
) -> list[dict[str, Any]] | None:
    """Return the partition summaries of a manifest for its manifest list.

    Return None if the partitions have uuids for which Java computes other bounds: it compares a
    uuid as two signed numbers. With such bounds one of the two readers would skip matching files.
    """
    for at, field in enumerate(spec.partition_type(schema).fields):
        if isinstance(field.field_type, UUIDType):
            values = {row[at] for row in partitions} - {None}
            ordered, signed = sorted(values), sorted(values, key=Struct(">qq").unpack)
            if ordered[:1] != signed[:1] or ordered[-1:] != signed[-1:]:
                return None
    return [
        {
            "contains_null": summary.contains_null,
            "contains_nan": summary.contains_nan,
            "lower_bound": summary.lower_bound,
            "upper_bound": summary.upper_bound,
        }
        for summary in construct_partition_summaries(spec, schema, partitions)
    ]


def _raw(value: Any, kind: IcebergType) -> Any:
    """Return a partition's value as Avro stores it without logical types; raw values stay."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(kind, DecimalType) and value is not None:
        size = decimal_required_bytes(kind.precision)
        if isinstance(value, Decimal):
            return decimal_to_bytes(value, size)
        # The value may have been written when the column had fewer digits.
        return int.from_bytes(value, "big", signed=True).to_bytes(size, "big", signed=True)
    return value


def _comparable(value: Any, kind: IcebergType) -> Any:
    """Convert a raw value to the type in which pyiceberg compares it."""
    if value is not None and isinstance(kind, DecimalType):
        return unscaled_to_decimal(int.from_bytes(value, "big", signed=True), kind.scale)
    return value


def _least_sequence_number(rows: Sequence[Row], otherwise: int | None) -> int | None:
    live = (row["sequence_number"] for row in rows if row["status"] != DELETED)
    return min((number for number in live if number is not None), default=otherwise)


def _count_files(rows: Sequence[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        records = [row["data_file"]["record_count"] for row in rows if row["status"] == status]
        counts[f"{name}_files_count"], counts[f"{name}_rows_count"] = len(records), sum(records)
    return counts


def write_manifest_list(
    table: TableVersion, snapshot: SnapshotFields, rows: Iterable[Row], opened: OpenKey,
    files: NewFiles,
) -> tuple[str, EncryptedKey, int]:  # fmt: skip
    """Write the manifest list of a new snapshot.

    Manifests that this commit adds get its sequence number. Data manifests without a first row id
    get one that follows the rows of the manifests before them (spec, "First Row ID Assignment").
    The rows have the spec's names; `opened` encrypts the key metadata of the list.

    Returns:
        The list's location, the entry of `encryption-keys` that decrypts it, and the table's next
        row id.

    Raises:
        ValueError: A row does not fit the schema.
        KeyRetrievalError: The key service does not wrap the list's key (single wrapping).
        FormatError: The table's location is mapped to no folder.
    """
    next_row_id = snapshot.first_row_id
    full: list[Row] = []
    for row in rows:
        full_row: dict[str, Any] = {name: row.get(name) for name in LIST_NAMES}
        full_row["content"] = full_row["content"] or DATA
        if None in [full_row[name] for name in LIST_NAMES if name.endswith("_count")]:
            why = "its manifest list does not count its files and rows, as in format version 1"
            raise FormatError(f"{row['manifest_path']}: {why}: rewrite the manifests of the table")
        for name in ("sequence_number", "min_sequence_number"):
            full_row[name] = snapshot.sequence_number if full_row[name] is None else full_row[name]
        if full_row["content"] != DATA:
            full_row["first_row_id"] = None
        elif full_row["first_row_id"] is None:
            full_row["first_row_id"] = next_row_id
            # Existing files count too: files of older format versions have no row ids yet.
            next_row_id += int(full_row["existing_rows_count"]) + int(full_row["added_rows_count"])
        full.append(full_row)
    location = f"{metadata_folder(table.metadata)}/snap-{snapshot.id}-1-{uuid.uuid4()}.avro"
    avro, schema = encode_schema(LIST_SCHEMA, "manifest_file")
    header = {**snapshot.header(), "iceberg.schema": schema}
    files.note(location)
    keys = write_ags1(
        table.walk.locations, location, write_avro(avro, full, header), table.metadata.key_length
    )
    return location, table.resolver.encrypt_entry(keys, opened), next_row_id


def metadata_folder(metadata: TableMetadata) -> str:
    """Return the location of a table's metadata files."""
    location = metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata")
    return location.rstrip("/")


def partition_spec(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Return a partition spec of a table; its fields have the names that a manifest needs."""
    spec = spec_of(metadata, spec_id)
    if not all(field.name for field in spec.fields):
        raise FormatError(f"{metadata.name}: a field of partition spec {spec_id} has no name")
    by_name = {make_compatible_name(field.name): field.name for field in spec.fields}
    for field in spec.fields:
        if (other := by_name[name := make_compatible_name(field.name)]) != field.name:
            raise UnsupportedFormatError(
                f"{metadata.name}: the partition fields {field.name!r} and {other!r} have the same "
                f"name {name} in manifests; rename one of them"
            )
    return spec


def partition_values(metadata: TableMetadata, entry: FileEntry) -> dict[str, Any]:
    """Return the partition of a file with the names and in the order of its spec."""
    values = entry.partition_by_id
    spec = partition_spec(metadata, entry.spec_id)
    return {make_compatible_name(field.name): values.get(field.field_id) for field in spec.fields}


def schema_of_spec(metadata: TableMetadata, spec: PartitionSpec) -> dict[str, Any]:
    """Return the newest schema, as JSON, that has all columns by which a spec partitions.

    That is the current schema, unless such a column was dropped. Only the columns of `void` fields
    may be in no schema; raise FormatError if others are.
    """
    current = metadata.document.get("current-schema-id")
    schemas = list(reversed(metadata.document.get("schemas") or ()))
    schemas.sort(key=lambda schema: schema.get("schema-id") != current)
    needed = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    for fields in (spec.fields, needed):
        for schema in schemas:
            known = _parse_schema(schema, metadata)._lazy_id_to_field
            if all(field.source_id in known for field in fields):
                return dict(schema)
    raise FormatError(f"{metadata.name}: no schema has the columns of spec {spec.spec_id}")


def _parse_schema(document: Row, metadata: TableMetadata) -> Schema:
    with as_format_errors(metadata.name):
        return Schema.model_validate(_without_variants(document))


def _without_variants(node: Any) -> Any:
    """Return a schema with binaries for variants: pyiceberg has none, and no spec names them."""
    if isinstance(node, list):
        return [_without_variants(each) for each in node]
    if not isinstance(node, dict):
        return "binary" if node == "variant" else node
    names = ("type", "fields", "element", "key", "value")
    return {**node, **{name: _without_variants(node[name]) for name in names if name in node}}


class PartitionPaths:
    """A formatter of partitions as the paths of their files contain them.

    Raise FormatError if the table has no such spec.
    """

    def __init__(self, metadata: TableMetadata, spec_id: int) -> None:
        self._spec = partition_spec(metadata, spec_id)
        self._schema = _parse_schema(schema_of_spec(metadata, self._spec), metadata)
        self._types = [field.field_type for field in self._spec.partition_type(self._schema).fields]

    def path(self, partition: Row) -> str:
        """Return a partition's path such as `day=2026-11-21/b=3`; empty without partitioning.

        The values are as `write_manifest` takes them, in the order of the spec. Raise FormatError
        if the partition has other fields than the spec.
        """
        if len(self._types) != len(partition):
            raise FormatError(f"a partition has other fields than spec {self._spec.spec_id}")
        values = (
            _path_value(_raw(value, kind), kind)
            for value, kind in zip(partition.values(), self._types, strict=True)
        )
        return self._spec.partition_to_path(Record(*values), self._schema)


def _path_value(value: Any, kind: IcebergType) -> Any:
    if isinstance(value, bytes) and isinstance(kind, UUIDType):
        return uuid.UUID(bytes=value)
    return _comparable(value, kind)


def _spec_field_json(field: PartitionField) -> dict[str, Any]:
    return {
        "name": field.name,
        "transform": str(field.transform),
        "source-id": field.source_id,
        "field-id": field.field_id,
    }
