"""Random nested tables and options to write them with, and pages without values."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new

_DAY = datetime.date(2026, 1, 1)
_TIME = datetime.datetime(2026, 1, 1)

LEAVES: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.int8(): lambda rng: rng.randrange(100),
    pa.uint16(): lambda rng: rng.randrange(100),
    pa.int64(): lambda rng: rng.randrange(100),
    pa.float32(): lambda rng: float(rng.randrange(100)),
    pa.float64(): lambda rng: float(rng.randrange(100)),
    pa.string(): lambda rng: rng.choice(("", "a", "bc", "x" * 20)),
    pa.large_string(): lambda rng: rng.choice(("", "a", "bc")),
    pa.binary(): lambda rng: rng.choice((b"", b"abc")),
    pa.binary(3): lambda rng: rng.choice((b"abc", b"xyz")),
    pa.decimal128(30, 2): lambda rng: decimal.Decimal(rng.randrange(1000)) / 4,
    pa.date32(): lambda rng: _DAY + datetime.timedelta(rng.randrange(100)),
    pa.timestamp("us"): lambda rng: _TIME + datetime.timedelta(seconds=rng.randrange(100)),
    pa.dictionary(pa.int32(), pa.string()): lambda rng: rng.choice("abc"),
    pa.uuid(): lambda rng: uuid.UUID(int=rng.getrandbits(128)).bytes,
}
"""Types that are not nested, and a random value of each."""


def random_type(rng: random.Random, depth: int) -> pa.DataType:
    """Return a type with at most `depth` levels of nesting."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(list(LEAVES))
    inner = random_type(rng, depth - 1)
    item = pa.field("item", inner, nullable=_is_nullable(rng, inner))
    kinds = [
        lambda: pa.list_(item),
        lambda: pa.large_list(item),
        lambda: pa.list_(item.with_nullable(True), rng.randrange(1, 4)),
        lambda: pa.map_(pa.string(), inner),
        lambda: pa.struct([_random_field(rng, f"f{n}", depth - 1) for n in range(1, 3)]),
    ]
    return rng.choice(kinds)()


def random_table(rng: random.Random) -> pa.Table:
    """Return a table of some random columns and few rows, in one chunk or two."""
    fields = [_random_field(rng, f"c{n}", rng.randrange(4)) for n in range(rng.randrange(1, 4))]
    rows = rng.choice((0, 1, 1, 2, 3, 5, 10, 40))
    columns = [
        _storage_array([random_value(rng, f.type, f.nullable) for _ in range(rows)], f.type)
        for f in fields
    ]
    table = pa.table(columns, schema=pa.schema(fields))
    cut = rng.randrange(2 * rows + 1)
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


def random_options(rng: random.Random) -> dict[str, Any]:
    """Return options of `write_table` that make many pages and row groups."""
    return {
        "compression": rng.choice(("none", "none", "snappy", "zstd", "gzip", "lz4", "brotli")),
        "data_page_size": rng.choice((1, 1, 10, 50, 1000, 1 << 20)),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "dictionary_pagesize_limit": rng.choice((1, 10, 100, 1 << 20)),
        "row_group_size": rng.choice((1, 2, 5, 1 << 20)),
        "use_dictionary": rng.random() < 0.5,
        "write_batch_size": rng.choice((1, 1, 2, 7, 100)),
        "write_page_checksum": rng.random() < 0.3,
        "write_page_index": rng.random() < 0.5,
    }


def random_value(rng: random.Random, kind: pa.DataType, nullable: bool = True) -> Any:
    """Return a value of a type, perhaps None."""
    if nullable and rng.random() < 0.15:
        return None
    if kind in LEAVES:
        return LEAVES[kind](rng)
    if pa.types.is_struct(kind):
        return {f.name: random_value(rng, f.type, f.nullable) for f in kind.fields}
    fixed = pa.types.is_fixed_size_list(kind)
    count = kind.list_size if fixed else rng.choice((0, 0, 1, 1, 2, 3, rng.randrange(30)))
    if pa.types.is_map(kind):
        return [(f"k{n}", random_value(rng, kind.item_type)) for n in range(count)]
    item = kind.value_field
    return [random_value(rng, item.type, item.nullable) for _ in range(count)]


def _random_field(rng: random.Random, name: str, depth: int) -> pa.Field:
    kind = random_type(rng, depth)
    return pa.field(name, kind, nullable=_is_nullable(rng, kind))


def _is_nullable(rng: random.Random, kind: pa.DataType) -> bool:
    # PyArrow 26.0.1 reads no required list of a fixed size inside a null struct.
    return pa.types.is_fixed_size_list(kind) or rng.random() < 0.8


def _storage_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an array; PyArrow makes none of values inside which an extension type is."""
    return rebuild(pa.array(values, _storage(kind)), kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_storage(f.type)) for f in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _storage(kind.item_type))
    if not pa.types.is_nested(kind):
        return kind
    item = kind.value_field.with_type(_storage(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def rebuild(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with another type of the same layout."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(rebuild(array, kind.storage_type))
    if pa.types.is_struct(kind):
        fields = [rebuild(array.field(n), f.type) for n, f in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(
            fields, fields=list(kind.fields), mask=array.is_null(), memory_pool=None
        )
    if pa.types.is_map(kind):
        items = rebuild(array.items, kind.item_type)
        return pa.MapArray.from_arrays(
            array.offsets, array.keys, items, type=kind, mask=array.is_null()
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(
            rebuild(array.values, kind.value_type), type=kind, mask=array.is_null()
        )
    inner = rebuild(array.values, kind.value_type)
    make = type(array).from_arrays
    return make(array.offsets, inner, type=kind, mask=array.is_null())


# --- pages without values ------------------------------------------------------------------------


def add_empty_pages(data: bytes, before: Callable[[int], int]) -> bytes:
    """Return an uncompressed plaintext file with as many empty pages as `before` says of a page.

    `before` gets the ordinal of a data page. Column indexes are left out; offset indexes, if the
    file has them, list the empty pages.
    """
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = decode("FileMetaData", data[-8 - size : -8])
    out = bytearray(MAGIC_PLAINTEXT)
    for row_group in footer.row_groups:
        for chunk in row_group.columns:
            index = _copy_chunk(data, chunk, out, before)
            if chunk.offset_index_offset:
                encoded = encode(index)
                chunk.offset_index_offset, chunk.offset_index_length = len(out), len(encoded)
                out += encoded
    return bytes(out) + close_tail(encode(footer), MAGIC_PLAINTEXT)


def _copy_chunk(
    data: bytes, chunk: ThriftStruct, out: bytearray, before: Callable[[int], int]
) -> ThriftStruct:
    """Copy the pages of a chunk with empty ones in between; return its new offset index."""
    md, start, locations = chunk.meta_data, len(out), []
    assert md.codec == 0
    old = chunk.offset_index_offset
    firsts = [] if old is None else decode("OffsetIndex", data[old:])[0].page_locations
    at = md.dictionary_page_offset or md.data_page_offset
    end = at + md.total_compressed_size
    md.dictionary_page_offset = md.dictionary_page_offset and start
    chunk.column_index_offset = chunk.column_index_length = None
    ordinal = 0
    while at < end:
        header, size = decode("PageHeader", data[at:end])
        pages = [data[at : at + size + header.compressed_page_size]]
        if header.dictionary_page_header is None:
            md.data_page_offset = len(out) if ordinal == 0 else md.data_page_offset
            pages[:0] = [_empty_page(header, len(md.path_in_schema) > 1)] * before(ordinal)
            first = firsts[ordinal].first_row_index if firsts else 0
            ordinal += 1
        for page in pages:
            if ordinal:
                place = new("PageLocation", offset=len(out), first_row_index=first)
                place.compressed_page_size = len(page)
                locations.append(place)
            out += page
        at += len(pages[-1])
    md.total_compressed_size = md.total_uncompressed_size = len(out) - start
    return new("OffsetIndex", page_locations=locations)


def _empty_page(like: ThriftStruct, repeated: bool) -> bytes:
    """Return a page of the same kind as another, for an optional column."""
    body = b"" if like.data_page_header_v2 else bytes(8 if repeated else 4)  # no levels
    page = new("PageHeader", type=like.type)
    page.uncompressed_page_size = page.compressed_page_size = len(body)
    if like.data_page_header:
        page.data_page_header = new(
            "DataPageHeader", num_values=0, encoding=0, definition_level_encoding=3,
            repetition_level_encoding=3,
        )  # fmt: skip
    else:
        page.data_page_header_v2 = new(
            "DataPageHeaderV2", num_values=0, num_nulls=0, num_rows=0, encoding=0,
            definition_levels_byte_length=0, repetition_levels_byte_length=0,
        )  # fmt: skip
    return encode(page) + body
