"""Leaving columns out of a plaintext footer, or giving them another type.

Schema, chunks, orders, and the pairs in which engines repeat the schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from modcrypt.parquet.format.idl import ThriftStruct, copy, new
from modcrypt.parquet.format.mask_note import PAIR as MASKED
from modcrypt.parquet.format.mask_note import kept_note
from modcrypt.parquet.format.schema import keep_leaves, leaf_elements, leaf_paths

__all__ = ["drop_columns", "drop_foreign_pairs", "mask_columns"]

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
"""What becomes of a leaf: False leaves it out, True keeps it, `STRING` makes text of it.

`NULLS` keeps it, but not what is told of its values.
"""

STRING, NULLS = "string", "nulls"


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


def mask_columns(metadata: ThriftStruct, strings: Collection[int], nulls: Collection[int]) -> None:
    """Make some leaves text: in the list of schema elements, and in the pairs that repeat it.

    Of these and of leaves that are null, the pairs of known engines tell no values any more.
    """
    leaves = leaf_elements(metadata.schema)
    if metadata.key_value_metadata is not None:
        fates: list[Fate] = [
            STRING if c in strings else NULLS if c in nulls else True for c in range(len(leaves))
        ]
        metadata.key_value_metadata = _key_values(metadata, fates)
    for c in strings:
        old = metadata.schema[leaves[c].element]
        # Not its length, scale and precision.
        element = copy(old, keep=("name", "repetition_type", "field_id"))
        element.type, element.converted_type = _BYTE_ARRAY, _UTF8
        element.logicalType = new("LogicalType", STRING=new("StringType"))
        metadata.schema[leaves[c].element] = element
    if metadata.column_orders is not None:  # there are others for floats and INT96
        text = new("ColumnOrder", TYPE_ORDER=new("TypeDefinedOrder"))
        orders = enumerate(metadata.column_orders)
        metadata.column_orders = [text if c in strings else order for c, order in orders]


def drop_foreign_pairs(metadata: ThriftStruct) -> None:
    """Leave out all of the key-value pairs but what is known to tell of the columns there."""
    there = set(leaf_paths(metadata.schema))
    names = {path[0] for path in there}
    known: dict[bytes, Callable[[bytes], bytes | None]] = {
        _ARROW_SCHEMA: _without_metadata,
        _PANDAS: lambda value: _edited(value, lambda about: _pandas_alone(about, names)),
        _GEO: lambda value: _edited(value, lambda about: _geo_alone(about, names)),
        MASKED: lambda value: kept_note(value, there),
    }
    out = []
    for pair in metadata.key_value_metadata or ():
        if pair.key in known and pair.value is not None:
            alone = copy(pair)
            alone.value = known[pair.key](pair.value)
            out += [alone] if alone.value is not None else []
    metadata.key_value_metadata = out or None


def _pandas_alone(about: Any, names: set[str]) -> Any:
    """Not its attributes, and no names but those of columns: index levels may have others."""
    indexes = about["index_columns"]
    return {
        "index_columns": [
            i | {"name": None} if isinstance(i, dict) else i
            for i in indexes
            if isinstance(i, dict) or i in names
        ],
        "column_indexes": [
            level | {"name": None, "field_name": None} for level in about["column_indexes"]
        ],
        "columns": [column for column in about["columns"] if column.get("field_name") in names],
        "creator": about.get("creator"),
        "pandas_version": about.get("pandas_version"),
    }


_GEO_FIELDS = ("encoding", "geometry_types", "crs", "edges", "orientation", "epoch", "bbox")


def _geo_alone(about: Any, names: set[str]) -> Any:
    """Not its coverings, which name other columns."""
    if about["primary_column"] not in names:
        return None
    return {name: about[name] for name in ("version", "primary_column") if name in about} | {
        "columns": {
            name: {k: v for k, v in column.items() if k in _GEO_FIELDS}
            for name, column in about["columns"].items()
            if name in names
        }
    }


def _edited(value: bytes, edit: Callable[[Any], Any]) -> bytes | None:
    """Edit a pair's JSON; None where it must go, or is unreadable to its reader as well."""
    try:
        about = edit(json.loads(value))
        return None if about is None else json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


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
    leaves = leaf_paths(metadata.schema)
    for path, fate in zip(leaves, fates, strict=True):
        fields.setdefault(path[0], set()).add(fate)
    there = {path for path, fate in zip(leaves, fates, strict=True) if fate}
    # What they say of a column that is text by now is as wrong as of one that is not there.
    gone = {name for name, found in fields.items() if found <= {False, STRING}}
    touched = {name for name, found in fields.items() if found != {True}}
    out = []
    for pair in metadata.key_value_metadata:
        adapted = copy(pair)
        if pair.key == _ARROW_SCHEMA:
            adapted.value = _arrow_schema(pair.value, gone, touched, fates)
        elif pair.key == MASKED:
            adapted.value = kept_note(pair.value or b"", there)
        else:
            adapted.value = _adapted(pair.key, pair.value, gone, touched)
        if adapted.value is not None or pair.value is None:
            out.append(adapted)
    return out


def _adapted(key: bytes, value: bytes | None, gone: set[str], touched: set[str]) -> bytes | None:
    """Give a pair's value without the columns that are gone; None where the pair must go.

    Of columns that are there in part, or masked, nothing is told that comes from their values.
    """
    if value is None or key not in {_PANDAS, _GEO, *_FOREIGN_SCHEMAS}:
        return value
    if key in _FOREIGN_SCHEMAS:  # Spark's may have the labels of a column's categories
        return None
    if key == _PANDAS:
        return _edited(value, lambda about: _pandas_adapted(about, gone, touched))
    return _edited(value, lambda about: _geo_adapted(about, touched))


def _pandas_adapted(about: Any, gone: set[str], touched: set[str]) -> Any:
    about["columns"] = [c for c in about["columns"] if c.get("field_name") not in gone]
    for column in about["columns"]:
        if column.get("field_name") in touched:
            column["metadata"] = None  # the number of categories
    about.pop("attributes", None)  # a user's own, of any column
    indexes = about["index_columns"]
    about["index_columns"] = [i for i in indexes if isinstance(i, dict) or i not in gone]
    return about


def _geo_adapted(about: Any, touched: set[str]) -> Any:
    about["columns"] = {n: c for n, c in about["columns"].items() if n not in touched}
    return None if about["primary_column"] in touched else about


def _arrow_schema(
    value: bytes | None, gone: set[str], touched: set[str], fates: Sequence[Fate]
) -> bytes | None:
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
    about = {k: _adapted(k, v, gone, touched) for k, v in (schema.metadata or {}).items()}
    about.pop(MASKED, None)  # PyArrow repeats pairs here; this one would be out of date
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
    if len(there) < len(inner):
        field = field.remove_metadata()  # which may tell of what is gone
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
