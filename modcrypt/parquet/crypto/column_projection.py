"""Removing columns from a plaintext footer, or changing their type.

This affects the schema, column chunks, column orders, and the key-value pairs in which engines
repeat the schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from functools import lru_cache
from typing import Any, TypeAlias

from modcrypt.parquet.format.idl import ThriftStruct, copy, new
from modcrypt.parquet.format.mask_note import PAIR as MASKED
from modcrypt.parquet.format.mask_note import drop_missing_columns
from modcrypt.parquet.format.schema import keep_leaves, leaf_elements, leaf_fields, leaf_paths

_ARROW_SCHEMA = b"ARROW:schema"
_PANDAS = b"pandas"
_GEO = b"geo"
_BYTE_ARRAY, _UTF8 = 6, 0  # Type and ConvertedType of the IDL
# Engines' own copies of the schema. Spark, for example, fills a column that its copy names and the
# file lacks with nulls. Without the copy, readers use the Parquet schema.
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
"""The change to a leaf: False removes it, True keeps it, `STRING` turns it into text.

`NULLS` keeps it, but removes metadata about its values.
"""

STRING, NULLS = "string", "nulls"


def drop_columns(
    metadata: ThriftStruct, keep: list[bool], *, keep_pairs: bool = False
) -> ThriftStruct:
    """Return the footer without the leaf columns whose flag in `keep` is False.

    `keep_pairs` leaves the pairs about removed columns, and the metadata of reduced groups, as they
    are: for a reader who may see all of the footer.
    """
    kept = copy(metadata)
    kept.schema = keep_leaves(metadata.schema, keep)
    kept.row_groups = [_project_row_group(row_group, keep) for row_group in metadata.row_groups]
    if metadata.column_orders is not None:
        kept.column_orders = _select_values(metadata.column_orders, keep)
    if metadata.key_value_metadata is not None:
        kept.key_value_metadata = (
            _project_pairs(metadata, keep) if keep_pairs else _adapt_pairs(metadata, keep)
        )
    return kept


def mask_columns(metadata: ThriftStruct, strings: Collection[int], nulls: Collection[int]) -> None:
    """Turn some leaves into text, in the schema elements and in the key-value pairs that repeat it.

    For these leaves and for leaves that become null, metadata about values is removed from the
    pairs of known engines.
    """
    leaves = leaf_elements(metadata.schema)
    if metadata.key_value_metadata is not None:
        fates: list[Fate] = [
            STRING if c in strings else NULLS if c in nulls else True for c in range(len(leaves))
        ]
        metadata.key_value_metadata = _adapt_pairs(metadata, fates)
    for c in strings:
        old = metadata.schema[leaves[c].element]
        # Length, scale and precision do not apply to text.
        element = copy(old, keep=("name", "repetition_type", "field_id"))
        element.type, element.converted_type = _BYTE_ARRAY, _UTF8
        element.logicalType = new("LogicalType", STRING=new("StringType"))
        metadata.schema[leaves[c].element] = element
    if metadata.column_orders is not None:  # floats and INT96 may have other orders than text
        text = new("ColumnOrder", TYPE_ORDER=new("TypeDefinedOrder"))
        orders = enumerate(metadata.column_orders)
        metadata.column_orders = [text if c in strings else order for c, order in orders]


def drop_foreign_pairs(metadata: ThriftStruct) -> None:
    """Remove all key-value pairs except the parts that are known to describe existing columns."""
    present = set(leaf_paths(metadata.schema))
    names = {path[0] for path in present}
    known: dict[bytes, Callable[[bytes], bytes | None]] = {
        _ARROW_SCHEMA: _strip_arrow_metadata,
        _PANDAS: lambda value: _edit_json(value, lambda about: _strip_pandas(about, names)),
        _GEO: lambda value: _edit_json(value, lambda about: _strip_geo(about, names)),
        MASKED: lambda value: drop_missing_columns(value, present),
    }
    out = []
    for pair in metadata.key_value_metadata or ():
        if pair.key in known and pair.value is not None:
            reduced = copy(pair)
            reduced.value = known[pair.key](pair.value)
            out += [reduced] if reduced.value is not None else []
    metadata.key_value_metadata = out or None


def _strip_pandas(about: Any, names: set[str]) -> Any:
    """Keep only known fields of pandas metadata, and only names of columns."""
    # User attributes go, and so do names of index levels, which may be arbitrary text.
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
        "columns": [column for column in about["columns"] if _field_of(column) in names],
        "creator": about.get("creator"),
        "pandas_version": about.get("pandas_version"),
    }


_GEO_FIELDS = ("encoding", "geometry_types", "crs", "edges", "orientation", "epoch", "bbox")


def _strip_geo(about: Any, names: set[str]) -> Any:
    """Keep only known fields of GeoParquet metadata; coverings go because they name columns."""
    if about["primary_column"] not in names:
        return None
    return {name: about[name] for name in ("version", "primary_column") if name in about} | {
        "columns": {
            name: {k: v for k, v in column.items() if k in _GEO_FIELDS}
            for name, column in about["columns"].items()
            if name in names
        }
    }


def _edit_json(value: bytes, edit: Callable[[Any], Any]) -> bytes | None:
    """Edit a pair's JSON; return None if the pair must go, or if it is not valid for its reader."""
    try:
        about = edit(json.loads(value))
        return None if about is None else json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _select_values(values: list[ThriftStruct], keep: list[bool]) -> list[ThriftStruct]:
    # By their indexes: a list of lazy structs decodes only these.
    return [values[index] for index, flag in enumerate(keep[: len(values)]) if flag]


def _project_row_group(row_group: ThriftStruct, keep: list[bool]) -> ThriftStruct:
    kept = copy(row_group)
    kept.columns = _select_values(row_group.columns, keep)
    kept.total_byte_size = sum(chunk.meta_data.total_uncompressed_size for chunk in kept.columns)
    if row_group.sorting_columns is not None:
        kept.sorting_columns = _renumber_sorting(row_group.sorting_columns, keep)
    return kept


def _renumber_sorting(columns: list[ThriftStruct], keep: list[bool]) -> list[ThriftStruct] | None:
    """Renumber the sort columns; rows stay sorted by those before the first removed column."""
    out = []
    for column in columns:
        if not 0 <= column.column_idx < len(keep) or not keep[column.column_idx]:
            break
        moved = copy(column)
        moved.column_idx = sum(keep[: column.column_idx])
        out.append(moved)
    return out or None


def _adapt_pairs(metadata: ThriftStruct, fates: Sequence[Fate]) -> list[ThriftStruct]:
    fields = list(zip(leaf_fields(metadata.schema), fates, strict=True))
    touched = {name for name, fate in fields if fate is not True}
    # Metadata about a column that became text is as wrong as about a column that was removed.
    gone = touched.difference(name for name, fate in fields if fate not in (False, STRING))
    out = []
    for pair in metadata.key_value_metadata:
        adapted = copy(pair)
        if pair.key == _ARROW_SCHEMA:
            adapted.value = _adapt_arrow_schema(pair.value, (gone, touched), fates)
        elif pair.key == MASKED:
            leaves = zip(leaf_paths(metadata.schema), fates, strict=True)
            present = {path for path, fate in leaves if fate}
            adapted.value = drop_missing_columns(pair.value or b"", present)
        else:
            adapted.value = _adapt_value(pair.key, pair.value, gone, touched)
        if adapted.value is not None or pair.value is None:
            out.append(adapted)
    return out


def _project_pairs(metadata: ThriftStruct, keep: list[bool]) -> list[ThriftStruct]:
    """Return the pairs, with the columns of the Arrow schema that remain."""
    out = []
    for pair in metadata.key_value_metadata:
        kept = copy(pair)
        if pair.key == _ARROW_SCHEMA:
            kept.value = _adapt_arrow_schema(pair.value, None, keep)
        if pair.key != _ARROW_SCHEMA or kept.value is not None:
            out.append(kept)
    return out


def _adapt_value(
    key: bytes, value: bytes | None, gone: Set[str], touched: Set[str]
) -> bytes | None:
    """Return a pair's value without removed columns; None if the pair must go.

    For columns that are masked or kept only in part, the value reveals nothing about their values.
    """
    if value is None or key not in {_PANDAS, _GEO, *_FOREIGN_SCHEMAS}:
        return value
    if key in _FOREIGN_SCHEMAS:  # Spark's schema may contain the labels of a column's categories
        return None
    if key == _PANDAS:
        return _edit_json(value, lambda about: _adapt_pandas(about, gone, touched))
    return _edit_json(value, lambda about: _adapt_geo(about, touched))


def _adapt_pandas(about: Any, gone: Set[str], touched: Set[str]) -> Any:
    about["columns"] = [c for c in about["columns"] if _field_of(c) not in gone]
    for column in about["columns"]:
        if _field_of(column) in touched:
            column["metadata"] = None  # the number of categories
    if "partition_columns" in about:
        about["partition_columns"] = [p for p in about["partition_columns"] if p not in gone]
    about.pop("attributes", None)  # user-defined, may describe any column
    indexes = about["index_columns"]
    about["index_columns"] = [i for i in indexes if isinstance(i, dict) or i not in gone]
    return about


def _field_of(column: Any) -> Any:
    """Return the name in the file of a column that pandas metadata describes."""
    # Old metadata has it in `name`. An index level may have another name, or none.
    return column.get("field_name", column.get("name"))


def _adapt_geo(about: Any, touched: Set[str]) -> Any:
    about["columns"] = {n: c for n, c in about["columns"].items() if n not in touched}
    return None if about["primary_column"] in touched else about


_REMEMBERED = 1 << 20
"""Longest serialised Arrow schema in bytes of which the last projections are remembered."""


_Changed: TypeAlias = "tuple[Set[str], Set[str]] | None"
"""Names of removed fields, and of those and changed ones; None to keep all metadata."""


def _adapt_arrow_schema(
    value: bytes | None, changed: _Changed, fates: Sequence[Fate]
) -> bytes | None:
    """Call `_project_arrow_schema`, and remember its last results."""
    # A read needs the same projection twice, and files of a dataset have the same schema.
    project = _remember if len(value or b"") <= _REMEMBERED else _project_arrow_schema
    if changed is not None:
        changed = frozenset(changed[0]), frozenset(changed[1])
    return project(value, changed, tuple(fates))


def _project_arrow_schema(
    value: bytes | None, changed: _Changed, fates: Sequence[Fate]
) -> bytes | None:
    """Remove leaves from a serialised Arrow schema, or change their types, by position.

    Return None if it cannot be decoded, or has other leaves than the Parquet schema: readers then
    use the Parquet schema alone.
    """
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
        remaining = iter(fates)
        fields = [_project_field(field, remaining, changed is None) for field in schema]
        if next(remaining, None) is not None:
            return None
    except (pa.ArrowException, ValueError, OSError, StopIteration):
        return None
    about = schema.metadata or {}
    if changed is not None:
        about = {k: _adapt_value(k, v, *changed) for k, v in about.items()}
        about.pop(MASKED, None)  # PyArrow repeats pairs here; this copy would be out of date
    kept = pa.schema(
        [field for field in fields if field is not None],
        {k: v for k, v in about.items() if v is not None} or None,
    )
    return base64.b64encode(kept.serialize().to_pybytes())


_remember = lru_cache(maxsize=4)(_project_arrow_schema)


def _strip_arrow_metadata(value: bytes | None) -> bytes | None:
    """Remove the metadata, which repeats key-value pairs, from a serialised Arrow schema."""
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
    except (pa.ArrowException, ValueError, OSError):
        return None
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def _project_field(field: Any, fates: Iterator[Fate], keep_metadata: bool) -> Any:
    """Return an Arrow field after the changes to its leaves; None if no leaf remains.

    `keep_metadata` keeps the metadata of a group without some of its children, which it may
    describe. Raise StopIteration if the field has more leaves than there are fates.
    """
    import pyarrow as pa

    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if not (pa.types.is_nested(kind) and kind.num_fields):
        if (fate := next(fates)) == STRING:
            return field.with_type(pa.string()).remove_metadata()  # it contains an extension's name
        return field if fate else None
    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    kept = [_project_field(child, fates, keep_metadata) for child in inner]
    if all(new is old for new, old in zip(kept, inner, strict=True)):
        return field
    remaining = [child for child in kept if child is not None]
    if not remaining:
        return None
    if len(remaining) < len(inner) and not keep_metadata:
        field = field.remove_metadata()
    return field.with_type(_make_nested(kind, remaining))


def _make_nested(kind: Any, children: list[Any]) -> Any:
    """Return a nested Arrow type with other children; half a map is the groups that store it."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct(children)
    if pa.types.is_map(kind):
        if len(children) == 2:
            return pa.map_(*children, keys_sorted=kind.keys_sorted)
        entry = pa.field("key_value", pa.struct(children), nullable=False)
        return pa.struct([entry.with_type(pa.list_(entry))])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(children[0], kind.list_size)
    make = {
        pa.lib.Type_LARGE_LIST: pa.large_list,
        pa.lib.Type_LIST_VIEW: pa.list_view,
        pa.lib.Type_LARGE_LIST_VIEW: pa.large_list_view,
    }.get(kind.id, pa.list_)
    return make(children[0])
