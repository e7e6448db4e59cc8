"""Metadata of fields, which Arrow stores in the footer beside the Parquet schema."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import FormatError
from modcrypt.io.sources import open_source
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaf_paths

FieldMetadata: TypeAlias = Mapping[tuple[str, ...], Mapping[str, str]]
"""The metadata of fields, by their paths in the Parquet schema."""

ARROW_SCHEMA = b"ARROW:schema"


def get_arrow_schema(metadata: ThriftStruct) -> bytes | None:
    """Return the Arrow schema that a footer stores, in base64; None if it stores none."""
    pairs = metadata.key_value_metadata or ()
    return next((pair.value for pair in pairs if pair.key == ARROW_SCHEMA), None)


def parse_field_metadata(stored: bytes | None) -> FieldMetadata:
    """Return the metadata of the fields that have any; empty if no Arrow schema is stored."""
    if stored is None:
        return {}
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
    except (pa.ArrowException, OSError, binascii.Error):
        raise FormatError("the Arrow schema in the footer cannot be read") from None
    return {path: values for field in schema for path, values in walk_field(field) if values}


def plan_footer(schema: pa.Schema, *, without: Collection[str]) -> Footer:
    """Return the footer of a plaintext file of this schema, without rows and some columns."""
    fields = [field for field in schema if field.name not in without]
    out = io.BytesIO()
    pq.ParquetWriter(out, pa.schema(fields, schema.metadata)).close()
    with open_source(out.getvalue()) as source:
        return read_plain(source)


def leave_out_statistics(
    options: Mapping[str, Any], schema: pa.Schema, cells: Collection[tuple[str, ...]]
) -> dict[str, Any]:
    """Return PyArrow's options for a file without statistics, dictionaries and filters of cells.

    `schema` is that of the file, and `cells` has the paths of the leaves that are random bytes.
    """
    adapted, names = dict(options), set(map(".".join, cells))
    every = leaf_paths(plan_footer(schema, without=()).metadata.schema)
    for name in ("use_dictionary", "write_statistics"):
        wanted = adapted.get(name, True)
        leaves = map(".".join, every) if wanted is True else wanted or ()
        adapted[name] = [leaf for leaf in leaves if leaf not in names] or False
    if filters := adapted.get("bloom_filter_options"):
        kept = {leaf: value for leaf, value in filters.items() if leaf not in names}
        adapted["bloom_filter_options"] = kept
    return adapted


def walk_field(
    field: pa.Field, above: tuple[str, ...] = (), name: str | None = None
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """Yield the path in Parquet and the metadata of a field, and of those inside it."""
    path = (*above, field.name if name is None else name)
    values = field.metadata or {}
    yield path, {_to_text(key): _to_text(value) for key, value in values.items()}
    kind = field.type
    if pa.types.is_map(kind):
        yield from walk_field(kind.key_field, (*path, "key_value"), "key")
        yield from walk_field(kind.item_field, (*path, "key_value"), "value")
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from walk_field(kind.field(number), path)
    elif pa.types.is_nested(kind) and kind.num_fields == 1:  # the kinds of lists
        yield from walk_field(kind.field(0), (*path, "list"), "element")


def _to_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
