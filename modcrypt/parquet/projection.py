"""Leaving columns out of a plaintext footer: schema, chunks, orders and the Arrow schema."""

from __future__ import annotations

import base64

from modcrypt.parquet.idl import ThriftStruct, copy
from modcrypt.parquet.schema import keep_leaves, leaf_paths

__all__ = ["drop_columns"]

_ARROW_SCHEMA = b"ARROW:schema"


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
    """Adapt the Arrow schema, which Arrow readers match with the columns by position."""
    out = []
    for pair in metadata.key_value_metadata:
        if pair.key != _ARROW_SCHEMA:
            out.append(pair)
            continue
        adapted = copy(pair)
        adapted.value = _arrow_schema(pair.value, metadata, keep)
        if adapted.value is not None:
            out.append(adapted)
    return out


def _arrow_schema(value: bytes | None, metadata: ThriftStruct, keep: list[bool]) -> bytes | None:
    """Remove top-level fields from a serialised Arrow schema.

    None where a nested field lost leaves, or the value is unreadable: readers then go by the
    Parquet schema alone.
    """
    import pyarrow as pa

    fields: dict[str, set[bool]] = {}
    for path, flag in zip(leaf_paths(metadata.schema), keep, strict=True):
        fields.setdefault(path[0], set()).add(flag)
    if any(len(flags) > 1 for flags in fields.values()):
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value or b"")))
    except (pa.ArrowException, ValueError, OSError):
        return None
    kept = [field for field in schema if fields.get(field.name) == {True}]
    return base64.b64encode(pa.schema(kept, schema.metadata).serialize().to_pybytes())
