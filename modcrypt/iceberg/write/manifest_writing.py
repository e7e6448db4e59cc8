"""New manifests and manifest lists of format version 3, sealed: each under a data key of its own.

    rows of data files -> manifest (AGS1) -> a row with its key metadata
      -> manifest list (AGS1) -> its key metadata, sealed under the table's key: an entry of
         `encryption-keys`

Fields, ids, and what the headers say are those of Iceberg's Java (V3Metadata, ManifestWriter and
ManifestListWriter). A file is there, under its final name, before anything names it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from struct import Struct
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import construct_partition_summaries
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    UUIDType,
)
from pyiceberg.utils.decimal import (
    decimal_required_bytes,
    decimal_to_bytes,
    unscaled_to_decimal,
)

from modcrypt.ags1.reader import Ags1Reader
from modcrypt.errors import FormatError
from modcrypt.iceberg.format.ags1_files import write_sealed
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifest_schemas import (
    ENTRY_NAMES,
    FILE_NAMES,
    LIST_NAMES,
    LIST_SCHEMA,
    as_json,
    entry_schema,
    spelt,
)
from modcrypt.iceberg.format.manifests import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    FileEntry,
    ManifestFile,
)
from modcrypt.iceberg.format.pyiceberg_schemas import spec_of
from modcrypt.iceberg.format.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.tracebacks import hide_frames

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.wrapping_keys import OpenKey
    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = [
    "PartitionPaths",
    "SnapshotFields",
    "entry_row",
    "first_row_ids",
    "metadata_folder",
    "partition_spec",
    "rewrite_manifest",
    "schema_of_spec",
    "write_manifest",
    "write_manifest_list",
]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotFields:
    """What a manifest list says of its snapshot.

    Attributes:
        id, parent: of the snapshot, and of the one before it.
        sequence_number: of the commit.
        first_row_id: from which on the snapshot's new rows are counted.
    """

    id: int
    parent: int | None
    sequence_number: int
    first_row_id: int

    def header(self) -> dict[str, str]:
        """Give it as the header of the Avro file has it."""
        return {
            "snapshot-id": str(self.id),
            "parent-snapshot-id": "null" if self.parent is None else str(self.parent),
            "sequence-number": str(self.sequence_number),
            "first-row-id": str(self.first_row_id),
            "format-version": "3",
        }


# --- manifests -----------------------------------------------------------------------------------


def write_manifest(
    table: IcebergTable,
    spec_id: int,
    rows: Iterable[Row],
    *,
    content: int,
    snapshot_id: int,
    sequence_number: int | None = None,
) -> dict[str, Any]:
    """Write a manifest of a table.

    Args:
        table: whose location, schemas, specs and key length are used.
        spec_id: of the partition spec of its files.
        rows: its entries under the spec's names, as `entry_row` gives them; what one lacks is
            null. Sequence numbers of added files may be null: they are inherited. Partitions'
            values are raw, as `read_manifest` gives them, or as pyiceberg has them.
        content: 0 for data files, 1 for delete files.
        snapshot_id: of the snapshot that adds it.
        sequence_number: of the manifest; None: that of the manifest list which first has it.

    Returns:
        Its row for a manifest list, under the spec's names.

    Raises:
        FormatError: the table has no such partition spec.
        ValueError: a row does not fit the schema.
        FormatError: the table's location is mapped to no folder.
        OSError: from the file system.
    """
    spec = partition_spec(table.metadata, spec_id)
    document = schema_of_spec(table.metadata, spec)
    schema = _schema(document, table.metadata)
    struct = spec.partition_type(schema)
    types = {make_compatible_name(one.name): one.field_type for one in struct.fields}
    full = [_full_entry(row, types) for row in rows]
    header = {
        "schema": as_json(document),
        "partition-spec": as_json([_spec_field(one) for one in spec.fields]),
        "partition-spec-id": str(spec_id),
        "format-version": "3",
        "content": "data" if content == DATA else "deletes",
    }
    avro, header["iceberg.schema"] = spelt(entry_schema(struct), "manifest_entry")
    path, length, key_metadata = _write(table, avro, full, header)
    partitions = [
        Record(*(_comparable(row["data_file"]["partition"][name], types[name]) for name in types))
        for row in full
    ]
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": spec_id,
        "content": content,
        "sequence_number": sequence_number,
        "min_sequence_number": _least_sequence_number(full, sequence_number),
        "added_snapshot_id": snapshot_id,
        **_counts(full),
        "partitions": _summaries(spec, schema, partitions),
        "key_metadata": key_metadata,
        "first_row_id": None,
    }


@hide_frames
def rewrite_manifest(
    locations: Locations,
    location: str,
    keys: StandardKeyMetadata,
    change: Callable[[list[dict[str, Any]]], Sequence[Row]],
    target: str,
    key_length: int,
) -> StandardKeyMetadata:
    """Write a manifest again, under a fresh data key, with its entries changed.

    Its Avro schema and header stay as they are.

    Args:
        locations: say where files are.
        location: of the manifest.
        keys: its key metadata, with its trusted length.
        change: gives its entries as they are to be; no status or partition changes.
        target: location of the new one.
        key_length: bytes of its key.

    Returns:
        The key metadata of the new one.

    Raises:
        ModcryptError: the manifest is not what was written; or what `change` raises.
        OSError: from the file system.
    """
    place = locations.place(location)
    with Ags1Reader(place.path, keys, filesystem=place.filesystem) as reader:
        avro = read_avro(reader.read(), location)
    data = write_avro(avro.schema, change(avro.records), avro.metadata)
    return write_sealed(locations, target, data, key_length)


def entry_row(
    entry: FileEntry,
    *,
    status: int,
    snapshot_id: int | None = None,
    first_row_id: int | None = None,
    **file: Any,
) -> dict[str, Any]:
    """Give an entry as a row of another manifest.

    Args:
        entry: as it was read, with what it inherits.
        status: that it is to have.
        snapshot_id: of the snapshot that adds or deletes it; None keeps the one that it has.
        first_row_id: of a data file, as `first_row_ids` gives it: it must not be lost.
        file: members of its data file that are to be others, under the spec's names.
    """
    return {
        "status": status,
        "snapshot_id": entry.snapshot_id if snapshot_id is None else snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
        "data_file": {
            **entry.file,
            "content": entry.content,
            "first_row_id": first_row_id,
            **file,
        },
    }


def first_row_ids(manifest: ManifestFile, entries: Sequence[FileEntry]) -> list[int | None]:
    """Give the id of the first row of each file of a manifest (spec, "First Row ID Inheritance").

    Args:
        manifest: that the entries are of.
        entries: all of them, in order.
    """
    following = manifest.row.get("first_row_id")
    found: list[int | None] = []
    for entry in entries:
        own = entry.file.get("first_row_id")
        if own is None and following is not None and entry.is_live:
            own = following
            following += entry.record_count
        found.append(own)
    return found


def _full_entry(row: Row, partition: Mapping[str, IcebergType]) -> dict[str, Any]:
    """Give a row all members that the schema has, and no others."""
    file: Row = row["data_file"]
    values: Row = file.get("partition") or {}
    full: dict[str, Any] = {name: file.get(name) for name in FILE_NAMES}
    full["partition"] = {name: _raw(values.get(name), kind) for name, kind in partition.items()}
    full["content"] = full["content"] or DATA
    return {**{name: row.get(name) for name in ENTRY_NAMES}, "data_file": full}


def _summaries(
    spec: PartitionSpec, schema: Schema, partitions: list[Record]
) -> list[dict[str, Any]] | None:
    """Give what a manifest list says of the partitions in a manifest.

    Nothing, if they have uuids whose bounds are others to Java, which takes a uuid for two signed
    numbers: either side would leave out what it should read.
    """
    for at, one in enumerate(spec.partition_type(schema).fields):
        if isinstance(one.field_type, UUIDType):
            values = {row[at] for row in partitions} - {None}
            ordered, signed = sorted(values), sorted(values, key=Struct(">qq").unpack)
            if ordered[:1] != signed[:1] or ordered[-1:] != signed[-1:]:
                return None
    return [
        {
            "contains_null": one.contains_null,
            "contains_nan": one.contains_nan,
            "lower_bound": one.lower_bound,
            "upper_bound": one.upper_bound,
        }
        for one in construct_partition_summaries(spec, schema, partitions)
    ]


def _raw(value: Any, kind: IcebergType) -> Any:
    """Give a partition's value as Avro has it without logical types; so it may be already."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(kind, DecimalType) and value is not None:
        size = decimal_required_bytes(kind.precision)
        if isinstance(value, Decimal):
            return decimal_to_bytes(value, size)
        # It may be of a time when the column had less digits.
        return int.from_bytes(value, "big", signed=True).to_bytes(size, "big", signed=True)
    return value


def _comparable(value: Any, kind: IcebergType) -> Any:
    """Give a raw value as pyiceberg compares it."""
    if value is not None and isinstance(kind, DecimalType):
        return unscaled_to_decimal(int.from_bytes(value, "big", signed=True), kind.scale)
    return value


def _least_sequence_number(rows: Sequence[Row], otherwise: int | None) -> int | None:
    """Give the least sequence number of the live files, as Java has it."""
    live = (row["sequence_number"] for row in rows if row["status"] != DELETED)
    return min((number for number in live if number is not None), default=otherwise)


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        records = [row["data_file"]["record_count"] for row in rows if row["status"] == status]
        found[f"{name}_files_count"], found[f"{name}_rows_count"] = len(records), sum(records)
    return found


# --- manifest lists ------------------------------------------------------------------------------


def write_manifest_list(
    table: IcebergTable, snapshot: SnapshotFields, rows: Iterable[Row], opened: OpenKey
) -> tuple[str, EncryptedKey, int]:
    """Write the manifest list of a new snapshot.

    Manifests that this commit adds get its sequence number; data manifests without a first row id
    get one, each by the rows of those before it (spec, "First Row ID Assignment").

    Args:
        table: that it is of.
        snapshot: that it is of.
        rows: of the manifests, under the spec's names.
        opened: the key under which its key metadata is sealed.

    Returns:
        Its location, the entry of `encryption-keys` that opens it, and the table's next row id.

    Raises:
        ValueError: a row does not fit the schema.
        KeyRetrievalError: the key service does not wrap its key (single wrapping).
        FormatError: the table's location is mapped to no folder.
        OSError: from the file system.
    """
    next_row_id = snapshot.first_row_id
    full: list[Row] = []
    for row in rows:
        one: dict[str, Any] = {name: row.get(name) for name in LIST_NAMES}
        one["content"] = one["content"] or DATA
        for name in ("sequence_number", "min_sequence_number"):
            one[name] = snapshot.sequence_number if one[name] is None else one[name]
        if one["content"] != DATA:
            one["first_row_id"] = None
        elif one["first_row_id"] is None:
            one["first_row_id"] = next_row_id
            # Also for existing files: those of older format versions have no row ids yet.
            next_row_id += int(one["existing_rows_count"]) + int(one["added_rows_count"])
        full.append(one)
    location = f"{metadata_folder(table.metadata)}/snap-{snapshot.id}-1-{uuid.uuid4()}.avro"
    avro, told = spelt(LIST_SCHEMA, "manifest_file")
    data = write_avro(avro, full, {**snapshot.header(), "iceberg.schema": told})
    keys = write_sealed(table.walk.locations, location, data, table.metadata.key_length)
    try:
        entry = table.walk.resolver.seal_entry(keys, opened)
    except BaseException:
        remove_written(table.walk.locations, [location])
        raise
    return location, entry, next_row_id


# --- files ---------------------------------------------------------------------------------------


def metadata_folder(metadata: TableMetadata) -> str:
    """Give the location of a table's metadata files."""
    found = metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata")
    return found.rstrip("/")


def _write(
    table: IcebergTable, schema: Mapping[str, Any], rows: Sequence[Row], header: Mapping[str, str]
) -> tuple[str, int, bytes]:
    """Write a manifest; give its location, its length as it is stored, and its key metadata."""
    location = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m0.avro"
    data = write_avro(schema, rows, header)
    keys = write_sealed(table.walk.locations, location, data, table.metadata.key_length)
    assert keys.file_length is not None
    return location, keys.file_length, keys.encode()


# --- specs and schemas of the table --------------------------------------------------------------


def partition_spec(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Give a partition spec of a table, whose fields have the names that a manifest needs.

    Raises:
        FormatError: it has none with this id.
    """
    found = spec_of(metadata, spec_id)
    if not all(field.name for field in found.fields):
        raise FormatError(f"{metadata.name}: a partition field without a name")
    return found


def schema_of_spec(metadata: TableMetadata, spec: PartitionSpec) -> dict[str, Any]:
    """Give the newest schema, as JSON, that has all columns which a spec partitions by.

    That is the current one, unless such a column was dropped.

    Raises:
        FormatError: there is none.
    """
    current = metadata.document.get("current-schema-id")
    schemas = list(reversed(metadata.document.get("schemas") or ()))
    sources = {field.source_id for field in spec.fields}
    for one in sorted(schemas, key=lambda found: found.get("schema-id") != current):
        if sources <= _schema(one, metadata)._lazy_id_to_field.keys():
            return dict(one)
    raise FormatError(f"{metadata.name}: no schema has the columns of spec {spec.spec_id}")


def _schema(document: Row, metadata: TableMetadata) -> Schema:
    with as_format_errors(metadata.name):
        return Schema.model_validate(document)


class PartitionPaths:
    """Spells partitions as the paths of their files have them.

    Args:
        metadata: of the table.
        spec_id: of the partition spec.

    Raises:
        FormatError: there is no such spec.
    """

    def __init__(self, metadata: TableMetadata, spec_id: int) -> None:
        self._spec = partition_spec(metadata, spec_id)
        self._schema = _schema(schema_of_spec(metadata, self._spec), metadata)
        self._types = [one.field_type for one in self._spec.partition_type(self._schema).fields]

    def path(self, partition: Row) -> str:
        """Give a partition, as `day=2026-11-21/b=3`; an empty text in a table without.

        Args:
            partition: its values, as `write_manifest` takes them, in the order of the spec.

        Raises:
            FormatError: it has other fields than the spec.
        """
        if len(self._types) != len(partition):
            raise FormatError(f"a partition has other fields than spec {self._spec.spec_id}")
        values = (
            _shown(_raw(value, kind), kind)
            for value, kind in zip(partition.values(), self._types, strict=True)
        )
        return self._spec.partition_to_path(Record(*values), self._schema)


def _shown(value: Any, kind: IcebergType) -> Any:
    if isinstance(value, bytes) and isinstance(kind, UUIDType):
        return uuid.UUID(bytes=value)
    return _comparable(value, kind)


def _spec_field(field: PartitionField) -> dict[str, Any]:
    return {
        "name": field.name,
        "transform": str(field.transform),
        "source-id": field.source_id,
        "field-id": field.field_id,
    }
