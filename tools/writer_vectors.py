"""Make the files of `spec-vectors/writers` that no writer at hand makes.

`python -m tools.writer_vectors` writes them, from files of PyArrow, each with the change that makes
it like the writer's; `spec-vectors/README.md` says where the others are from. `writers.json` beside
them states for each file who made it, and which rows of the table of writers' bugs it shows.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from modcrypt.parquet.format.compact import BINARY, I32, UNKNOWN
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, encode, new
from tests.support import forging

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "spec-vectors/writers"
MANIFEST = FOLDER / "writers.json"

NAMES = pa.table({"name": ["a", "b", "a", "b"]})
MANY = pa.table({"n": pa.array(range(300), pa.int64())})
COLOURS = pa.array(["red", "blue"]).dictionary_encode()
PAINTS = pa.StructArray.from_arrays([COLOURS], ["colour"], mask=pa.array([False, True]))
DICTIONARIES = pa.table({"paint": PAINTS})
NUMBERS = pa.table({"n": pa.array([1, 2, 3], pa.int32())})
FLOATS = pa.table({"f": [1.0, 2.0]})
OPTIONS: dict[str, Any] = {"compression": "none", "store_schema": False}
PARQUET_MR = b"parquet-mr version 1.%d.0 (build 0)"


def plain(table: pa.Table, **options: Any) -> bytes:
    return forging.plain_file(table, **(OPTIONS | options))


def edit(change: Callable[[ThriftStruct], object], table: pa.Table = NUMBERS, **more: Any) -> bytes:
    return forging.edit_plain(plain(table, **more), change)


def edit_chunk(change: Callable[[ThriftStruct], object], *table: pa.Table, **more: Any) -> bytes:
    return edit(lambda metadata: change(metadata.row_groups[0].columns[0]), *table, **more)


def edit_statistics(table: pa.Table = NUMBERS, writer: bytes = b"", **fields: Any) -> bytes:
    def change(metadata: ThriftStruct) -> None:
        metadata.created_by = writer or metadata.created_by
        md = metadata.row_groups[0].columns[0].meta_data
        md.statistics = copy(md.statistics)
        for name, value in fields.items():
            setattr(md.statistics, name, value)

    return edit(change, table)


def edit_index(**fields: Any) -> bytes:
    """Change the column index, which moves to the end, in a file of a snapshot of parquet-mr."""
    body, tail, magic = forging.split_tail(plain(NUMBERS, write_page_index=True))
    metadata, _ = decode("FileMetaData", tail)
    chunk = metadata.row_groups[0].columns[0]
    index, _ = decode("ColumnIndex", body, chunk.column_index_offset)
    for name, value in fields.items():
        setattr(index, name, value)
    spelt = encode(index)
    chunk.column_index_offset, chunk.column_index_length = len(body), len(spelt)
    metadata.created_by = b"parquet-mr version 1.13.0-SNAPSHOT (build 0)"
    return forging.join_tail(body + spelt, encode(metadata), magic)


def forget_header_sizes() -> bytes:
    """Leave out the headers of pages in an offset index, which moves to the end."""
    body, tail, magic = forging.split_tail(plain(NUMBERS, write_page_index=True))
    metadata, _ = decode("FileMetaData", tail)
    chunk = metadata.row_groups[0].columns[0]
    index, _ = decode("OffsetIndex", body, chunk.offset_index_offset)
    for location in index.page_locations:
        header, _ = decode("PageHeader", body, location.offset)
        location.compressed_page_size = header.compressed_page_size
    spelt = encode(index)
    chunk.offset_index_offset, chunk.offset_index_length = len(body), len(spelt)
    metadata.created_by = b"parquet-go version latest"
    return forging.join_tail(body + spelt, encode(metadata), magic)


def edit_schema(table: pa.Table, change: Callable[[list[Any]], object]) -> bytes:
    def edit_all(metadata: ThriftStruct) -> None:
        schema = [copy(element) for element in metadata.schema]
        change(schema)
        metadata.schema = schema

    return edit(edit_all, table)


def set_field(struct: ThriftStruct, name: str, value: object) -> None:
    setattr(struct, name, value)


def set_fields(**fields: Any) -> Callable[[ThriftStruct], None]:
    def change(struct: ThriftStruct) -> None:
        for name, value in fields.items():
            setattr(struct, name, value)

    return change


def set_metadata(**fields: Any) -> Callable[[ThriftStruct], None]:
    return lambda chunk: set_fields(**fields)(chunk.meta_data)


# --- footers -------------------------------------------------------------------------------------


def point_into_chunk(chunk: ThriftStruct) -> None:
    chunk.file_offset = chunk.meta_data.data_page_offset


def forget_header() -> bytes:
    """Leave out the header of the dictionary page in the sizes of a chunk."""

    def change(metadata: ThriftStruct) -> None:
        metadata.created_by = b"another writer"
        md = metadata.row_groups[0].columns[0].meta_data
        size = decode("PageHeader", file, md.dictionary_page_offset)[1]
        missing = size - md.dictionary_page_offset
        md.total_compressed_size -= missing
        md.total_uncompressed_size -= missing

    file = plain(MANY, compression="snappy")
    return forging.edit_plain(file, change)


def claim_dictionary(metadata: ThriftStruct) -> None:
    metadata.created_by = b"impala version 1.3.0-INTERNAL (build 0)"
    md = metadata.row_groups[0].columns[0].meta_data
    md.encodings, md.encoding_stats = [0, 2, 3], None


def misplace_filter(chunk: ThriftStruct) -> None:
    chunk.meta_data.bloom_filter_offset, chunk.meta_data.bloom_filter_length = 1 << 20, 64


def filtered(change: Callable[[ThriftStruct], object]) -> bytes:
    options = {"bloom_filter_options": {"name": {"ndv": 10}}}
    return edit_chunk(change, NAMES, **options)


def forget_algorithm() -> bytes:
    """Replace the algorithm of a bloom filter by a field of another number."""
    data = bytearray(filtered(lambda chunk: None))
    md = forging.read_plain_footer(bytes(data)).row_groups[0].columns[0].meta_data
    header, _ = decode("BloomFilterHeader", bytes(data), md.bloom_filter_offset)
    at = bytes(data).index(encode(header), md.bloom_filter_offset)
    size = len(encode(header))
    first = data.index(b"\x1c\x1c\0\0", at, at + size)
    data[first : first + 4] = b"\x1c\0\0\0"
    return bytes(data)


# --- pages ---------------------------------------------------------------------------------------


def replace_body(
    data: bytes, make: Callable[[bytes], bytes], codec: int, writer: bytes = b"", inner: int = 0
) -> bytes:
    """Replace the body of the last page of the only chunk, and the codec of the chunk."""
    body, tail, magic = forging.split_tail(data)
    metadata, _ = decode("FileMetaData", tail)
    chunk = metadata.row_groups[0].columns[0]
    md = chunk.meta_data
    header, at = decode("PageHeader", body, md.data_page_offset)
    new_body = make(body[at : at + header.compressed_page_size])
    header.compressed_page_size, header.uncompressed_page_size = (
        len(new_body), inner or header.uncompressed_page_size
    )  # fmt: skip
    out = body[: md.data_page_offset] + encode(header) + new_body
    md.codec, md.total_compressed_size = codec, len(out) - 4
    metadata.row_groups[0].total_compressed_size = len(out) - 4
    metadata.created_by = writer or metadata.created_by
    return forging.join_tail(out, encode(metadata), magic)


def split_gzip(body: bytes) -> bytes:
    return gzip.compress(body[:4], mtime=0) + gzip.compress(body[4:], mtime=0)


def lz4_block(body: bytes) -> bytes:
    """Return an LZ4 block of one run of literals."""
    assert len(body) < 15 + 255
    rest = bytes((len(body) - 15,)) if len(body) >= 15 else b""
    return bytes((min(len(body), 15) << 4,)) + rest + body


def lz4_hadoop(body: bytes) -> bytes:
    block = lz4_block(body)
    return len(body).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block


def pack_levels() -> bytes:
    """Write the levels of 8 values, all of them present, as bits without a length."""
    data = plain(pa.table({"n": pa.array(range(8), pa.int32())}), use_dictionary=False)

    def change(header: ThriftStruct) -> None:
        header.data_page_header.definition_level_encoding = 4

    packed = forging.edit_page_headers(data, change)
    return replace_body(packed, lambda body: b"\xff" + body[4 + body[0] :], 0, inner=33)


def drop_values() -> bytes:
    """Let a compressed page of nulls have no values behind its levels."""
    table = pa.table({"n": pa.array([None, None], pa.int32())})
    data = plain(table, data_page_version="2.0", use_dictionary=False)

    def change(header: ThriftStruct) -> None:
        header.data_page_header_v2.is_compressed = True

    writer = PARQUET_MR % 13
    return replace_body(forging.edit_page_headers(data, change), bytes, 1, writer)


# --- types ---------------------------------------------------------------------------------------


def drop_level(schema: list[Any]) -> None:
    """Name the repeated group as old lists do, whose group is the element."""
    schema[2].name = b"array"


LISTS = pa.table({"list": pa.array([[1]], pa.list_(pa.int32()))})
MAPS = pa.table({"map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))})


def rename_paths(data: bytes, path: list[bytes]) -> bytes:
    return forging.edit_plain(
        data, lambda m: set_field(m.row_groups[0].columns[0].meta_data, "path_in_schema", path)
    )


def add_empty_group(schema: list[Any]) -> None:
    schema[0].num_children = 2
    group = new("SchemaElement", name=b"inner", repetition_type=0, num_children=0)
    schema.append(group)


def mark_entries(schema: list[Any]) -> None:
    schema[1].converted_type, schema[1].logicalType = 2, None


def be_interval(schema: list[Any]) -> None:
    schema[1].converted_type, schema[1].logicalType = 21, None


def be_bare(metadata: ThriftStruct) -> None:
    metadata.created_by = b"impala version 1.3.0-INTERNAL (build 0)"
    schema = [copy(element) for element in metadata.schema]
    schema[1].converted_type = schema[1].logicalType = None
    metadata.schema = schema


def be_old_spark(metadata: ThriftStruct) -> None:
    metadata.created_by = PARQUET_MR % 10
    pair = new("KeyValue", key=b"org.apache.spark.version", value=b"2.4.8")
    metadata.key_value_metadata = [pair]


def make_keys_optional() -> bytes:
    """Let keys have one more definition level, which still takes two bits."""
    data = edit_schema(MAPS, lambda schema: set_field(schema[3], "repetition_type", 1))
    levels = b"\x02\0\0\0\x02\x02"  # their length, and a run of one level
    assert levels in data
    data = data.replace(levels, levels[:-1] + b"\x03", 1)
    return forging.edit_plain(
        data, lambda m: set_field(m.row_groups[0].columns[0].meta_data, "size_statistics", None)
    )


INTERVALS = pa.table({"span": pa.array([b"a" * 12, b"b" * 12], pa.binary(12))})
DAYS = pa.table({"day": pa.array([1, 2], pa.date32())})
NAN = b"\0\0\0\0\0\0\xf8\x7f"

FILES: dict[str, Callable[[], bytes]] = {
    "file-offset": lambda: edit_chunk(point_into_chunk, NAMES),
    "zero-dictionary-offset": lambda: edit_chunk(
        set_metadata(dictionary_page_offset=0), use_dictionary=False
    ),
    "short-chunks": forget_header,
    "row-group-offset": lambda: edit(lambda m: set_field(m.row_groups[0], "file_offset", 9)),
    "row-group-ordinals": lambda: edit(lambda m: set_field(m.row_groups[0], "ordinal", 1)),
    "no-rows-counted": lambda: edit(lambda m: set_field(m, "num_rows", 0)),
    "other-field-type": lambda: edit_chunk(
        lambda chunk: setattr(chunk.meta_data, UNKNOWN, [(15, BINARY, b"\x01a")])
    ),
    "negative-field-ids": lambda: edit(lambda m: setattr(m, UNKNOWN, [(-1, I32, b"\x02")])),
    "claimed-dictionary": lambda: edit(claim_dictionary, use_dictionary=False),
    "no-bloom-length": lambda: filtered(set_metadata(bloom_filter_length=None)),
    "no-bloom-algorithm": forget_algorithm,
    "parts-beyond-the-file": lambda: edit_chunk(misplace_filter),
    "null-pages-java": lambda: edit_index(null_pages=[True], min_values=[b""], max_values=[b""]),
    "negative-null-counts": lambda: edit_index(null_counts=[-1]),
    "index-page-sizes": forget_header_sizes,
    "nan-statistics": lambda: edit_statistics(FLOATS, min_value=NAN, max_value=NAN),
    "bounds-of-another-size": lambda: edit_statistics(min_value=b"", max_value=b""),
    "too-many-nulls": lambda: edit_statistics(null_count=9),
    "zero-distinct-count": lambda: edit_statistics(distinct_count=0),
    "binary-bounds-of-mr": lambda: edit_statistics(NAMES, PARQUET_MR % 7),
    "interval-bounds": lambda: edit_schema(INTERVALS, be_interval),
    "dictionary-null-counts": lambda: edit_statistics(
        pa.table({"name": ["a", None]}), b"parquet-cpp-arrow version 4.0.1", null_count=0
    ),
    "struct-null-counts": lambda: plain(
        DICTIONARIES, data_page_version="2.0", write_page_index=True
    ),
    "single-list-rows": lambda: plain(
        pa.table({"c": [[{"n": 1}]]}),
        data_page_size=1, write_batch_size=1,
    ),
    "two-level-lists": lambda: rename_paths(
        edit_schema(LISTS, drop_level), [b"list", b"array", b"element"]
    ),
    "optional-map-keys": make_keys_optional,
    "map-key-value": lambda: edit_schema(MAPS, mark_entries),
    "empty-groups": lambda: edit_schema(NUMBERS, add_empty_group),
    "unmarked-strings": lambda: edit(be_bare, NAMES),
    "julian-dates": lambda: edit(be_old_spark, DAYS),
    "delta-byte-arrays": lambda: edit(
        lambda m: set_field(m, "created_by", PARQUET_MR % 7), NAMES,
        use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY",
    ),
    "v2-not-compressed": lambda: forging.edit_page_headers(
        edit(
            lambda m: set_field(m, "created_by", b"parquet-cpp version 1.5.1-SNAPSHOT"),
            pa.table({"n": pa.array([7] * 99, pa.int32())}),
            data_page_version="2.0", compression="snappy", use_dictionary=False,
        ),
        lambda header: set_field(header.data_page_header_v2, "is_compressed", False),
    ),
    "empty-compressed-values": drop_values,
    "bit-packed-levels": pack_levels,
    "gzip-members": lambda: replace_body(plain(NUMBERS, use_dictionary=False), split_gzip, 2),
    "lz4-hadoop": lambda: replace_body(
        plain(NUMBERS, use_dictionary=False), lz4_hadoop, 5, PARQUET_MR % 10
    ),
    "lz4-bare": lambda: replace_body(
        plain(NUMBERS, use_dictionary=False), lz4_block, 5, b"parquet-cpp version 1.5.1-SNAPSHOT"
    ),
}  # fmt: skip
"""The files that are made here, by the row of the table that they show."""


def read_manifest() -> dict[str, dict[str, Any]]:
    """Return who made which file, and its rows, by the name of the file."""
    entries: dict[str, dict[str, Any]] = json.loads(MANIFEST.read_text())
    return entries


def list_files() -> dict[str, list[str]]:
    """Return the rows of all files by their names."""
    return {name: entry["rows"] for name, entry in read_manifest().items()}


def load_file(name: str) -> bytes:
    """Return a file."""
    return (FOLDER / name).read_bytes()


if __name__ == "__main__":
    manifest = read_manifest()
    written = [entry for entry in manifest.values() if entry["made_by"] != "patch"]
    real = {row for entry in written for row in entry["rows"]}
    for row, make in FILES.items():
        if row not in real:
            (FOLDER / f"{row}.parquet").write_bytes(make())
            manifest.setdefault(f"{row}.parquet", {"made_by": "patch", "rows": [row]})
    MANIFEST.write_text(json.dumps(dict(sorted(manifest.items())), indent=2) + "\n")
