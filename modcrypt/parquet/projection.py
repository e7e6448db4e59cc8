"""Leaving columns out of a plaintext footer, or giving them another type.

Schema, chunks, orders, and the pairs in which engines repeat the schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from modcrypt.parquet.idl import ThriftStruct, copy, new
from modcrypt.parquet.schema import keep_leaves, leaf_elements, leaf_paths

__all__ = ["drop_columns", "drop_foreign_pairs", "make_strings"]

_ARROW_SCHEMA = b"ARROW:schema"
_PANDAS = b"pandas"
_GEO = b"geo"
_BYTE_ARRAY, _UTF8 = 6, 0  # Type and ConvertedType of the IDL
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


Fate: TypeAlias = "bool | str"
"""What becomes of a leaf: False leaves it out, True keeps it, `STRING` makes text of it."""

STRING = "string"


def drop_columns(metadata: ThriftStruct, keep: list[bool]) -> ThriftStruct:
    """Give the footer without the leaf columns whose flag in `keep` is False."""
    kept = copy(metadata)
    kept.schema = keep_leaves(metadata.schema, keep)
    kept.row_groups = [_row_group(row_group, keep) for row_group in metadata.row_groups]
    if metadata.column_orders is not None:
        kept.column_orders = _kept(metadata.column_orders, keep)
    if metadata.key_value_metadata is not None:
        kept.key_value_metadata = _key_values(metadata, keep)
    return kept


def make_strings(metadata: ThriftStruct, columns: list[int]) -> None:
    """Make some leaves text: in the list of schema elements, and in the pairs that repeat it."""
    if not columns:
        return
    leaves = leaf_elements(metadata.schema)
    fates: list[Fate] = [STRING if c in columns else True for c in range(len(leaves))]
    if metadata.key_value_metadata is not None:
        metadata.key_value_metadata = _key_values(metadata, fates)
    for c in columns:
        old = metadata.schema[leaves[c].element]
        # Not its length, scale and precision.
        element = copy(old, keep=("name", "repetition_type", "field_id"))
        element.type, element.converted_type = _BYTE_ARRAY, _UTF8
        element.logicalType = new("LogicalType", STRING=new("StringType"))
        metadata.schema[leaves[c].element] = element


def drop_foreign_pairs(metadata: ThriftStruct) -> None:
    """Leave out key-value pairs that may tell of columns in ways modcrypt doesn't know."""
    pairs = metadata.key_value_metadata or ()
    metadata.key_value_metadata = [
        pair for pair in pairs if pair.key in (_ARROW_SCHEMA, _PANDAS, _GEO)
    ] or None
    for pair in metadata.key_value_metadata or ():
        if pair.key == _ARROW_SCHEMA:
            pair.value = _without_metadata(pair.value)


def _kept(values: list[ThriftStruct], keep: list[bool]) -> list[ThriftStruct]:
    return [value for value, flag in zip(values, keep, strict=False) if flag]


def _row_group(row_group: ThriftStruct, keep: list[bool]) -> ThriftStruct:
    kept = copy(row_group)
    kept.columns = _kept(row_group.columns, keep)
    kept.total_byte_size = sum(chunk.meta_data.total_uncompressed_size for chunk in kept.columns)
    if row_group.sorting_columns is not None:
        kept.sorting_columns = _sorting(row_group.sorting_columns, keep)
    return kept


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


def _key_values(metadata: ThriftStruct, fates: Sequence[Fate]) -> list[ThriftStruct]:
    """Adapt or remove the pairs in which engines repeat the schema."""
    fields: dict[str, set[Fate]] = {}
    for path, fate in zip(leaf_paths(metadata.schema), fates, strict=True):
        fields.setdefault(path[0], set()).add(fate)
    # What they say of a column that is text by now is as wrong as of one that is not there.
    gone = {name for name, found in fields.items() if found <= {False, STRING}}
    out = []
    for pair in metadata.key_value_metadata:
        adapted = copy(pair)
        if pair.key != _ARROW_SCHEMA:
            adapted.value = _adapted(pair.key, pair.value, gone)
        else:
            adapted.value = _arrow_schema(pair.value, gone, fates)
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


def _arrow_schema(value: bytes | None, gone: set[str], fates: Sequence[Fate]) -> bytes | None:
    """Remove leaves from a serialised Arrow schema, or change their types, by position.

    None where it is unreadable, or has other leaves than the Parquet schema, or a map that loses a
    part: readers then go by the Parquet schema alone.
    """
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
        remaining = iter(fates)
        fields = [_pruned(field, remaining) for field in schema]
        if next(remaining, None) is not None:
            return None
    except (pa.ArrowException, ValueError, OSError, StopIteration):
        return None
    about = {k: _adapted(k, v, gone) for k, v in (schema.metadata or {}).items()}
    kept = pa.schema(
        [field for field in fields if field is not None],
        {k: v for k, v in about.items() if v is not None},
    )
    return base64.b64encode(kept.serialize().to_pybytes())


def _without_metadata(value: bytes | None) -> bytes | None:
    """Take its own metadata, which repeats pairs, out of a serialised Arrow schema."""
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
    except (pa.ArrowException, ValueError, OSError):
        return None
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def _pruned(field: Any, fates: Iterator[Fate]) -> Any:
    """Give an Arrow field as its leaves' fates make it; None where nothing is left of it.

    Raises:
        StopIteration: there are more leaves than fates.
        ValueError: half a map.
    """
    import pyarrow as pa

    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if not (pa.types.is_nested(kind) and kind.num_fields):
        fate = next(fates)
        if fate == STRING:
            return field.with_type(pa.string()).remove_metadata()  # an extension's name is in it
        return field if fate else None
    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    kept = [_pruned(one, fates) for one in inner]
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
