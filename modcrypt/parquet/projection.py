"""Leaving columns out of a plaintext footer: schema, chunks, orders and the Arrow schema."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from modcrypt.parquet.idl import ThriftStruct, copy
from modcrypt.parquet.schema import keep_leaves, leaf_paths

__all__ = ["drop_columns"]

_ARROW_SCHEMA = b"ARROW:schema"
_PANDAS = b"pandas"
_GEO = b"geo"
# Other engines' own schemas of the file: Spark, for one, fills a column that its schema names and
# the file lacks with nulls. Without them, readers go by the Parquet schema.
_FOREIGN_SCHEMAS = frozenset(
    {
        b"org.apache.spark.sql.parquet.row.metadata",
        b"parquet.avro.schema",
        b"avro.schema",
        b"parquet.proto.descriptor",
        b"iceberg.schema",
    }
)


def drop_columns(metadata: ThriftStruct, keep: list[bool]) -> ThriftStruct:
    """Give the footer without the leaf columns whose flag in `keep` is False."""
    new = copy(metadata)
    new.schema = keep_leaves(metadata.schema, keep)
    new.row_groups = [_row_group(row_group, keep) for row_group in metadata.row_groups]
    if metadata.column_orders is not None:
        new.column_orders = _kept(metadata.column_orders, keep)
    if metadata.key_value_metadata is not None:
        new.key_value_metadata = _key_values(metadata, keep)
    return new


def _kept(values: list[ThriftStruct], keep: list[bool]) -> list[ThriftStruct]:
    return [value for value, flag in zip(values, keep, strict=False) if flag]


def _row_group(row_group: ThriftStruct, keep: list[bool]) -> ThriftStruct:
    new = copy(row_group)
    new.columns = _kept(row_group.columns, keep)
    new.total_byte_size = sum(chunk.meta_data.total_uncompressed_size for chunk in new.columns)
    if row_group.sorting_columns is not None:
        new.sorting_columns = _sorting(row_group.sorting_columns, keep)
    return new


def _sorting(columns: list[ThriftStruct], keep: list[bool]) -> list[ThriftStruct] | None:
    """Renumber the sort columns; rows stay sorted by those before the first that is gone."""
    out = []
    for column in columns:
        if not 0 <= column.column_idx < len(keep) or not keep[column.column_idx]:
            break
        moved = copy(column)
        moved.column_idx = sum(keep[: column.column_idx])
        out.append(moved)
    return out or None


def _key_values(metadata: ThriftStruct, keep: list[bool]) -> list[ThriftStruct]:
    """Adapt or remove the pairs in which engines repeat the schema."""
    fields: dict[str, set[bool]] = {}
    for path, flag in zip(leaf_paths(metadata.schema), keep, strict=True):
        fields.setdefault(path[0], set()).add(flag)
    gone = {name for name, flags in fields.items() if flags == {False}}
    out = []
    for pair in metadata.key_value_metadata:
        adapted = copy(pair)
        if pair.key != _ARROW_SCHEMA:
            adapted.value = _adapted(pair.key, pair.value, gone)
        else:
            adapted.value = _arrow_schema(pair.value, gone, keep)
        if adapted.value is not None or pair.value is None:
            out.append(adapted)
    return out


def _adapted(key: bytes, value: bytes | None, gone: set[str]) -> bytes | None:
    """Give a pair's value without the columns that are gone; None where the pair must go."""
    if value is None or key not in {_PANDAS, _GEO, *_FOREIGN_SCHEMAS}:
        return value
    if key in _FOREIGN_SCHEMAS:
        return None
    try:
        about = json.loads(value)
        if key == _PANDAS:
            about["columns"] = [c for c in about["columns"] if c.get("field_name") not in gone]
            indexes = about["index_columns"]
            about["index_columns"] = [i for i in indexes if isinstance(i, dict) or i not in gone]
        else:
            about["columns"] = {n: c for n, c in about["columns"].items() if n not in gone}
            if about["primary_column"] in gone:
                return None
        return json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # unreadable to its reader as well


def _arrow_schema(value: bytes | None, gone: set[str], keep: list[bool]) -> bytes | None:
    """Remove leaves from a serialised Arrow schema, which is matched by position.

    None where it is unreadable, or has other leaves than the Parquet schema, or a map that loses a
    part: readers then go by the Parquet schema alone.
    """
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
        flags = iter(keep)
        fields = [_pruned(field, flags) for field in schema]
        if next(flags, None) is not None:
            return None
    except (pa.ArrowException, ValueError, OSError, StopIteration):
        return None
    about = {k: _adapted(k, v, gone) for k, v in (schema.metadata or {}).items()}
    kept = pa.schema(
        [field for field in fields if field is not None],
        {k: v for k, v in about.items() if v is not None},
    )
    return base64.b64encode(kept.serialize().to_pybytes())


def _pruned(field: Any, flags: Iterator[bool]) -> Any:
    """Give an Arrow field without the leaves whose flags are False; None where that is all of it.

    Raises:
        StopIteration: there are more leaves than flags.
        ValueError: half a map.
    """
    import pyarrow as pa

    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if not (pa.types.is_nested(kind) and kind.num_fields):
        return field if next(flags) else None
    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    kept = [_pruned(one, flags) for one in inner]
    if all(new is old for new, old in zip(kept, inner, strict=True)):
        return field
    there = [one for one in kept if one is not None]
    if not there:
        return None
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(there))
    if pa.types.is_map(kind):
        if len(there) < 2:
            raise ValueError("half a map has no Arrow type")
        return field.with_type(pa.map_(*there))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(there[0], kind.list_size))
    make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
    return field.with_type(make(there[0]))
