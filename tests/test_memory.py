"""Small files that declare much: what reading them costs, measured in a fresh process for each.

The bounds are nearly twice what reading takes: on a busy machine, two more batches of 64 MiB may be
alive for a moment. They separate memory in proportion to a batch from that in proportion to what a
file declares.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.parquet.arrow.decoding import _look_into_dictionaries
from modcrypt.parquet.arrow.page_sizes import MAX_EXPANDED_PAGE, Dictionary, Longest, check_pages
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new, varint, zigzag
from modcrypt.parquet.format.modules import chunk_start
from tests.support import forging
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY

WHOLE = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)

SERVER = """
import os, sys
import pyarrow as pa, pyarrow.dataset, pyarrow.parquet
import modcrypt as mc

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10

def measure(read, path):
    mc.read_table(sys.argv[1], mc.FileDecryptionProperties(footer_key=KEY))  # what any read loads
    before = peak()
    try:
        keys = mc.FileDecryptionProperties(footer_key=KEY, on_missing_key="null")
        found = eval(read, {"mc": mc, "path": path, "keys": keys})
    except mc.ModcryptError as error:
        found = error.word
    print(found, peak() - before, flush=True)

for line in sys.stdin:
    if not (child := os.fork()):
        measure(*line.strip().split("\\t"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
"""Reads in a fork for each line of input; no thread runs before, as nothing is read before."""

READ = {
    "table": "mc.read_table(path, keys).num_rows",
    "batches": "sum(batch.num_rows for batch in mc.iter_batches(path, keys))",
    "limit": "sum(batch.num_rows for batch in mc.iter_batches(path, keys, limit=1))",
    "other column": "mc.read_table(path, keys, columns=['other']).num_rows",
    "folder column": "mc.read_table(path, keys, columns=['p']).num_rows",
    "inspect": "len(mc.report.render_html(mc.inspect_parquet(path))) and 'ok'",
    "verify": "'ok' if mc.verify_parquet(path).ok else 'fault'",
}


Measure: TypeAlias = Callable[[str, Path], tuple[str, int]]


@pytest.fixture(scope="module")
def measure_read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Yield a function for the result of a read, and its peak above the baseline in MiB."""
    small = tmp_path_factory.mktemp("small") / "small.parquet"
    mc.write_table(pa.table({"a": [1]}), small, WHOLE)
    code = SERVER.replace("KEY", repr(FOOTER_KEY))
    arguments = [sys.executable, "-c", code, str(small)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as server:
        assert server.stdin
        assert server.stdout
        stdin, stdout = server.stdin, server.stdout

        def measure(read: str, path: Path) -> tuple[str, int]:
            stdin.write(f"{READ[read]}\t{path}\n")
            found, size = stdout.readline().split()
            return found, int(size)

        yield measure


def encrypt_table(
    table: pa.Table, how: mc.FileEncryptionProperties = WHOLE, **options: Any
) -> bytes:
    return forging.encrypt_bytes(forging.plain_file(table, **options), how)


def sealed_bytes(plain: bytes) -> bytes:
    return forging.encrypt_bytes(plain, WHOLE)


def one_page(rows: int) -> dict[str, Any]:
    """Return options that put all rows into one page."""
    return {
        "row_group_size": rows, "data_page_size": 1 << 30, "write_batch_size": rows,
        "compression": "zstd", "store_schema": False,  # or it would be read as a dictionary
    }  # fmt: skip


def equal(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows),
                                          pa.array([value], kind))  # fmt: skip


def long_values() -> bytes:
    return encrypt_table(
        pa.table({"a": equal("x" * 60_000, 10_000, pa.string())}), **one_page(10_000)
    )


def long_prefixes() -> bytes:
    table = pa.table({"a": ["x" * 30_000] * 5000})
    options = one_page(5000) | {"use_dictionary": False}
    return encrypt_table(table, column_encoding={"a": "DELTA_BYTE_ARRAY"}, **options)


def long_values_behind_a_plain_page() -> bytes:
    """A dictionary that the first page does not use: a look at the first rows does not see it."""
    table = pa.table({"a": equal("x" * 60_000, 10_000, pa.string())})
    plain = forging.plain_file(table, **one_page(10_000))
    footer = forging.read_plain_footer(plain)
    md = footer.row_groups[0].columns[0].meta_data
    header = new(
        "PageHeader", type=0, uncompressed_page_size=11, compressed_page_size=11,
        data_page_header=new(
            "DataPageHeader", num_values=1, encoding=0, definition_level_encoding=3,
            repetition_level_encoding=3,
        ),
    )  # fmt: skip
    body = b"\x02\0\0\0\x02\x01" + b"\x01\0\0\0y"
    packed = bytes(pa.Codec("zstd").compress(body))
    header.uncompressed_page_size, header.compressed_page_size = len(body), len(packed)
    page = encode(header) + packed
    at = md.data_page_offset

    def grow(footer: ThriftStruct) -> None:
        group = footer.row_groups[0]
        chunk = group.columns[0].meta_data
        chunk.num_values = group.num_rows = footer.num_rows = 10_001
        chunk.total_compressed_size += len(page)
        chunk.statistics = chunk.size_statistics = None
        group.columns[0].column_index_offset = group.columns[0].offset_index_offset = None

    edited = forging.edit_plain(plain, grow)
    return forging.encrypt_bytes(edited[:at] + page + edited[at:], WHOLE)


def long_values_in_structs() -> bytes:
    values = equal("x" * 60_000, 10_000, pa.string())
    table = pa.table({"a": pa.StructArray.from_arrays([values], ["b"])})
    return encrypt_table(table, **one_page(10_000))


def long_values_in_lists() -> bytes:
    return encrypt_table(pa.table({"a": [["x" * 60_000] * 10] * 1000}), **one_page(1000))


def one_row(values: pa.Array) -> bytes:
    """Put all values into one list."""
    column = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return encrypt_table(pa.table({"a": column}), **one_page(len(values)))


def one_row_of_strings() -> bytes:
    return one_row(equal("x" * 60_000, 10_000, pa.string()))


def one_row_of_integers() -> bytes:
    return one_row(equal(7, 20_000_000, pa.int64()))


def many_rows() -> bytes:
    return encrypt_table(pa.table({"a": equal(7, 20_000_000, pa.int64())}), **one_page(20_000_000))


def column_without_key() -> bytes:
    rows = 20_000_000
    columns = {"a": equal(7, rows, pa.int64()), "other": equal(7, rows, pa.int64())}
    how = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"other": b"another key 1234"}
    )
    return encrypt_table(pa.table(columns), how, **one_page(rows))


def page_of_zeros() -> bytes:
    """A plaintext column, one page of which somebody without a key has replaced: 1.2 GiB."""
    how = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["a"])
    table = pa.table({"a": range(40_000), "b": range(40_000)})
    options = one_page(40_000) | {"use_dictionary": False, "write_statistics": False}
    data = bytearray(encrypt_table(table, how, **options))
    md = forging.open_file(bytes(data), FOOTER_KEY).metadata.row_groups[0].columns[0].meta_data
    start, size = md.data_page_offset, md.total_compressed_size
    header, _ = decode("PageHeader", bytes(data[start : start + size]))
    blocks = 9600  # of 128 KiB of zeros: RFC 8878 3.1.1.2
    header.uncompressed_page_size = blocks << 17
    for _ in range(3):
        header.compressed_page_size = size - len(encode(header))
    room = header.compressed_page_size
    block = (1 << 1 | 1 << 17 << 3).to_bytes(3, "little") + b"\0"
    frame = b"\x28\xb5\x2f\xfd\x00\x38" + block * (blocks - 1)
    frame += (1 | 1 << 1 | 1 << 17 << 3).to_bytes(3, "little") + b"\0"
    rest = room - len(frame) - 8
    frame += b"\x50\x2a\x4d\x18" + rest.to_bytes(4, "little") + bytes(rest)
    data[start : start + size] = encode(header) + frame
    return bytes(data)


def footer_of(**fields: Any) -> bytes:
    leaf = new("SchemaElement", name=b"l", type=1, repetition_type=1)
    schema = [new("SchemaElement", name=b"r", num_children=1), leaf]
    usual = {"version": 1, "schema": schema, "num_rows": 0, "row_groups": []}
    footer = encode(new("FileMetaData", **{**usual, **fields}))
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def many_pairs() -> bytes:
    return footer_of(key_value_metadata=[new("KeyValue", key=b"")] * 100_000)


def many_row_groups() -> bytes:
    group = new("RowGroup", columns=[], total_byte_size=0, num_rows=0)
    schema = [new("SchemaElement", name=b"r", num_children=0)]
    return footer_of(row_groups=[group] * 30_000, schema=schema)


def many_columns() -> bytes:
    leaf = new("SchemaElement", name=b"", type=1, repetition_type=1)
    return footer_of(
        schema=[new("SchemaElement", name=b"r", num_children=30_000)] + [leaf] * 30_000
    )


def long_list() -> bytes:
    """A list that declares two thousand million elements."""
    data = bytearray(footer_of(key_value_metadata=[new("KeyValue", key=b"")] * 14))
    at = bytes(data).index(b"\x19\xec")
    data[at : at + 2] = b"\x19\xfc\xff\xff\xff\xff\x07"[:7]
    tail = len(data) - 8 - 4
    data[-8:-4] = tail.to_bytes(4, "little")
    return bytes(data)


BOMBS: list[tuple[Callable[[], bytes], int, str, str, int]] = [
    # the file, at most so many bytes of it, a read, what it gives, and MiB at most
    (long_values, 2000, "limit", "1", 48),
    (long_values, 2000, "batches", "10000", 600),
    (long_values, 2000, "table", "10000", 1100),
    (long_prefixes, 200_000, "limit", "1", 80),
    (long_prefixes, 200_000, "batches", "5000", 600),
    (long_values_behind_a_plain_page, 2000, "batches", "10001", 600),
    (long_values_in_structs, 2000, "batches", "10000", 600),
    (long_values_in_lists, 2000, "batches", "1000", 600),
    (one_row_of_strings, 2000, "limit", "1", 1900),
    (one_row_of_integers, 2000, "limit", "1", 1000),
    (many_rows, 300_000, "limit", "1", 48),
    (many_rows, 300_000, "batches", "20000000", 64),
    (column_without_key, 600_000, "other column", "20000000", 48),
    (many_rows, 300_000, "folder column", "20000000", 48),
    (page_of_zeros, 800_000, "table", "limit", 48),
    (many_pairs, 700_000, "inspect", "ok", 160),
    (many_row_groups, 300_000, "verify", "ok", 64),
    (many_columns, 300_000, "inspect", "ok", 96),
    (long_list, 200, "verify", "fault", 16),
]

SLOW = {
    (long_values, "table"), (long_prefixes, "batches"), (long_values_in_structs, "batches"),
    (long_values_in_lists, "batches"), (one_row_of_strings, "limit"),
    (one_row_of_integers, "limit"), (many_rows, "batches"), (many_rows, "folder column"),
}  # fmt: skip
"""Files of lists, and other reads of the files that a quick test reads."""

each_codec = each_case(
    ("codec", "version"),
    zip(["none", "snappy", "gzip", "brotli", "zstd", "lz4"], ["1.0", "2.0"] * 3, strict=True),
)


@each_codec
def test_what_compresses_very_well_is_read(codec: str, version: str) -> None:
    table = pa.table({"a": pa.repeat(0, 1 << 20), "b": pa.repeat("zero", 1 << 20)})
    options = {**one_page(1 << 20), "compression": codec, "data_page_version": version}
    data = encrypt_table(table, use_dictionary=["b"], **options)
    assert mc.read_table(data, KEYS) == table
    assert sum(batch.num_rows for batch in mc.iter_batches(data, KEYS)) == 1 << 20


@each_codec
def test_short_values_of_a_long_dictionary_come_many_at_once(codec: str, version: str) -> None:
    words = [f"word {n:06}" for n in range(30_000)]
    table = pa.table({"a": words, "s": [{"b": word} for word in words], "l": [[w] for w in words]})
    data = encrypt_table(table, compression=codec, data_page_version=version)
    batches = list(mc.iter_batches(data, KEYS))
    assert pa.Table.from_batches(batches).equals(table)
    assert len(batches) == 1


@pytest.mark.parametrize("batch_size", [7, 600, 1 << 17])
def test_rows_that_are_decoded_few_at_once_come_in_batches_of_the_usual_size(
    batch_size: int,
) -> None:
    words = [f"word {n:06}" for n in range(30_000)]
    table = pa.table({"a": words, "l": [[w, w] for w in words]})
    encoding = {"a": "DELTA_BYTE_ARRAY", "l.list.element": "DELTA_BYTE_ARRAY"}
    data = encrypt_table(table, use_dictionary=False, column_encoding=encoding)
    batches = list(mc.iter_batches(data, KEYS, batch_size=batch_size))
    assert pa.Table.from_batches(batches).equals(table)
    assert len(batches) <= 1 + 2 * len(words) / batch_size
    assert max(batch.num_rows for batch in batches) <= batch_size


@pytest.mark.parametrize("long_at", [0, 2, 39])
def test_small_dictionaries_are_measured_together(long_at: int, tmp_path: Path) -> None:
    words: list[str | None] = [f"word {n:03}" for n in range(400)]
    words[10:20] = [None] * 10  # a dictionary without values
    words[long_at * 10] = "x" * 60_000
    plain = memoryview(forging.plain_file(pa.table({"a": words}), row_group_size=10))
    pages: list[Dictionary] = []
    for row_group in forging.read_plain_footer(bytes(plain)).row_groups:
        md = row_group.columns[0].meta_data
        start = chunk_start(md)
        longest = check_pages(plain, start, start + md.total_compressed_size, md, "here")
        pages += longest.dictionaries
    assert len(pages) == 40
    found = _look_into_dictionaries(pa.py_buffer(plain), Longest(1 << 20, 0, pages))
    assert found.dictionary == 60_000


@each_case("order", [(1, 2, 3, 5), (5, 1, 2, 3), (3, 5, 2, 1), (1, 2, 3, 4, 5)])
@each_case("spelling", [b"\x0e", b"\x8e\x00", b"\x8e\x80\x00", b"\x10"])
def test_delta_byte_arrays_are_noticed_however_their_header_is_spelled(
    order: tuple[int, ...], spelling: bytes
) -> None:
    struct = b"\x15\x02\x15" + spelling + b"\x15\x06\x15\x06\x00"
    size = 5000
    content = {1: b"\x00", 2: varint(zigzag(size)), 3: varint(zigzag(size)), 4: b"\x02", 5: struct}
    header = b"".join(  # ids in the long form, which allows any order
        bytes((12 if field == 5 else 5, 2 * field)) + content[field] for field in order
    )
    page = memoryview(header + b"\x00" + bytes(size))
    md = new("ColumnMetaData", type=6, codec=0, num_values=1)
    assert check_pages(page, 0, len(page), md, "here").delta == (0 if spelling == b"\x10" else size)


@pytest.mark.parametrize("count", [-1, 1, (1 << 31) - 1])
def test_dictionaries_that_declare_another_number_of_values(
    count: int, measure_read: Measure, tmp_path: Path
) -> None:
    table = pa.table({"a": ["x" * 60_000, "y"] * 500})
    plain = forging.plain_file(table, **one_page(1000))
    md = forging.read_plain_footer(plain).row_groups[0].columns[0].meta_data
    at = md.dictionary_page_offset
    header, end = decode("PageHeader", plain, at)
    header.dictionary_page_header.num_values = count
    spelt = encode(header)
    growth = len(spelt) - (end - at)

    def grow(footer: ThriftStruct) -> None:
        chunk = footer.row_groups[0].columns[0].meta_data
        chunk.data_page_offset += growth
        chunk.total_compressed_size += growth

    edited = forging.edit_plain(plain, grow)
    path = tmp_path / "file.parquet"
    path.write_bytes(sealed_bytes(edited[:at] + spelt + edited[end:]))
    said, peak = measure_read("batches", path)
    assert said in ("1000", "format", "limit")
    assert peak < 200


@each_case(
    ("codec", "stored", "most"),
    [
        (0, 5000, 5000),
        (1, 5000, 22 * 5000),
        (2, 5000, 1032 * 5000),
        (2, 1 << 20, 1032 << 20),
        (4, 100, MAX_EXPANDED_PAGE),
        (4, 1 << 20, 1032 << 20),
        (5, 5000, 256 * 5000),
        (6, 3000, 32_768 * 3000),
        (6, 5000, MAX_EXPANDED_PAGE),
        (7, 5000, 256 * 5000),
    ],
)
def test_what_a_page_may_declare(codec: int, stored: int, most: int) -> None:
    for size, is_refused in ((most, False), (most + 1, True)):
        header = new(
            "PageHeader", type=0, uncompressed_page_size=size, compressed_page_size=stored,
            data_page_header=new(
                "DataPageHeader", num_values=1, encoding=0, definition_level_encoding=3,
                repetition_level_encoding=3,
            ),
        )  # fmt: skip
        page = memoryview(encode(header) + bytes(stored))
        md = new("ColumnMetaData", type=2, codec=codec, num_values=1)
        if is_refused:
            with pytest.raises(
                mc.errors.LimitError, match=f"of {stored} bytes declares {size} bytes"
            ):
                check_pages(page, 0, len(page), md, "here")
        else:
            check_pages(page, 0, len(page), md, "here")


@pytest.mark.parametrize(
    ("make", "size", "read", "said", "most"),
    [
        pytest.param(
            *bomb,
            id=f"{bomb[0].__name__}, {bomb[2]}",
            marks=pytest.mark.slow if (bomb[0], bomb[2]) in SLOW else (),
        )
        for bomb in BOMBS
    ],
)
def test_peak_memory(
    make: Callable[[], bytes],
    size: int,
    read: str,
    said: str,
    most: int,
    measure_read: Measure,
    tmp_path: Path,
) -> None:
    data = make()
    assert len(data) <= size
    path = tmp_path / "lake" / "p=1" / "bomb.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    found, peak = measure_read(read, tmp_path / "lake" if "folder" in read else path)
    assert (found, peak <= most) == (said, True), f"{peak} MiB"
