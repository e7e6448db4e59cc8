"""Schemas of manifests and manifest lists of format version 3, as Avro and as Iceberg's JSON.

Names, ids, order and texts are those of Iceberg's Java (V3Metadata); tests compare the output.
"""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


def encode_schema(schema: Schema, name: str) -> tuple[dict[str, Any], str]:
    """Return a schema in Avro's form, and as Iceberg's JSON."""
    avro = AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name)
    document = schema.model_dump(by_alias=True, exclude={"identifier_field_ids"}, mode="json")
    return _define_once(avro, set()), as_json(document)


def _define_once(schema: Any, seen: set[str]) -> Any:
    """Replace repeated definitions of a named type by its name, as Avro demands."""
    if isinstance(schema, list):
        return [_define_once(member, seen) for member in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("fixed", "record"):
        if schema["name"] in seen:
            return schema["name"]
        seen.add(schema["name"])
    return {
        name: _define_once(value, seen) if name in ("type", "items", "fields") else value
        for name, value in schema.items()
    }


def as_json(document: Any) -> str:
    """Return a document as JSON in the form that headers of manifests use."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _require(id_: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    return NestedField(id_, name, kind, required=True, doc=doc)


def _allow(id_: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    return NestedField(id_, name, kind, required=False, doc=doc)


_INT, _LONG, _STRING, _BINARY = IntegerType(), LongType(), StringType(), BinaryType()

_SUMMARY = StructType(
    _require(509, "contains_null", BooleanType(), "True if any file has a null partition value"),
    _allow(518, "contains_nan", BooleanType(), "True if any file has a nan partition value"),
    _allow(510, "lower_bound", _BINARY, "Partition lower bound for all files"),
    _allow(511, "upper_bound", _BINARY, "Partition upper bound for all files"),
)

LIST_SCHEMA = Schema(
    _require(500, "manifest_path", _STRING, "Location URI with FS scheme"),
    _require(501, "manifest_length", _LONG, "Total file size in bytes"),
    _require(502, "partition_spec_id", _INT, "Spec ID used to write"),
    _require(517, "content", _INT, "Contents of the manifest: 0=data, 1=deletes"),
    _require(515, "sequence_number", _LONG, "Sequence number when the manifest was added"),
    _require(516, "min_sequence_number", _LONG, "Lowest sequence number in the manifest"),
    _require(503, "added_snapshot_id", _LONG, "Snapshot ID that added the manifest"),
    _require(504, "added_files_count", _INT, "Added entry count"),
    _require(505, "existing_files_count", _INT, "Existing entry count"),
    _require(506, "deleted_files_count", _INT, "Deleted entry count"),
    _require(512, "added_rows_count", _LONG, "Added rows count"),
    _require(513, "existing_rows_count", _LONG, "Existing rows count"),
    _require(514, "deleted_rows_count", _LONG, "Deleted rows count"),
    _allow(507, "partitions", ListType(508, _SUMMARY, True), "Summary for each partition"),
    _allow(519, "key_metadata", _BINARY, "Encryption key metadata blob"),
    _allow(520, "first_row_id", _LONG, "Starting row ID to assign to new rows in ADDED data files"),
    schema_id=0,
)
LIST_NAMES = tuple(field.name for field in LIST_SCHEMA.fields)


def _counts_by_column(key: int, value: int, kind: IcebergType) -> MapType:
    return MapType(key, _INT, value, kind, True)


_CONTENT = "Contents of the file: 0=data, 1=position deletes, 2=equality deletes"
_NULLS = "Map of column id to null value count"
_NANS = "Map of column id to number of NaN values in the column"
_PARTITION = "Partition data tuple, schema based on the partition spec"
_REFERENCED = (
    "Fully qualified location (URI with FS scheme) of a data file that all deletes reference"
)
_ROW_ID = "The first row ID assigned to the first row in the data file"

_FILE_FIELDS = (
    _require(134, "content", _INT, _CONTENT),
    _require(100, "file_path", _STRING, "Location URI with FS scheme"),
    _require(101, "file_format", _STRING, "File format name: avro, orc, or parquet"),
    _require(102, "partition", StructType(), _PARTITION),
    _require(103, "record_count", _LONG, "Number of records in the file"),
    _require(104, "file_size_in_bytes", _LONG, "Total file size in bytes"),
    _allow(108, "column_sizes", _counts_by_column(117, 118, _LONG),
         "Map of column id to total size on disk"),
    _allow(109, "value_counts", _counts_by_column(119, 120, _LONG),
         "Map of column id to total count, including null and NaN"),
    _allow(110, "null_value_counts", _counts_by_column(121, 122, _LONG), _NULLS),
    _allow(137, "nan_value_counts", _counts_by_column(138, 139, _LONG), _NANS),
    _allow(125, "lower_bounds", _counts_by_column(126, 127, _BINARY),
         "Map of column id to lower bound"),
    _allow(128, "upper_bounds", _counts_by_column(129, 130, _BINARY),
         "Map of column id to upper bound"),
    _allow(131, "key_metadata", _BINARY, "Encryption key metadata blob"),
    _allow(132, "split_offsets", ListType(133, _LONG, True), "Splittable offsets"),
    _allow(135, "equality_ids", ListType(136, _INT, True), "Equality comparison field IDs"),
    _allow(140, "sort_order_id", _INT, "Sort order ID"),
    _allow(142, "first_row_id", _LONG, _ROW_ID),
    _allow(143, "referenced_data_file", _STRING, _REFERENCED),
    _allow(144, "content_offset", _LONG, "The offset in the file where the content starts"),
    _allow(145, "content_size_in_bytes", _LONG,
         "The length of referenced content stored in the file"),
)  # fmt: skip
FILE_NAMES = tuple(field.name for field in _FILE_FIELDS)
ENTRY_NAMES = ("status", "snapshot_id", "sequence_number", "file_sequence_number")


def entry_schema(partition: StructType) -> Schema:
    """Return the schema of a manifest's entries; all partition values are optional."""
    values = StructType(
        *(_allow(field.field_id, field.name, field.field_type) for field in partition.fields)
    )
    file = StructType(
        *(_require(102, "partition", values, _PARTITION) if field.field_id == 102 else field
          for field in _FILE_FIELDS)
    )  # fmt: skip
    return Schema(
        _require(0, "status", _INT),
        _allow(1, "snapshot_id", _LONG),
        _allow(3, "sequence_number", _LONG),
        _allow(4, "file_sequence_number", _LONG),
        _require(2, "data_file", file),
        schema_id=0,
    )
