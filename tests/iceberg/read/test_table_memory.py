"""Tables of small files that declare much: what scans cost, measured in a process for each.

Nothing authenticates the files of a plaintext table, which is read with `require_encrypted=False`.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from modcrypt.errors import LimitError
from modcrypt.iceberg.format.avro_files import read_avro
from modcrypt.iceberg.format.avro_schemas import MAX_DEPTH
from modcrypt.parquet.format.idl import decode, encode
from tests.support.iceberg.builder import Builder, arrow, field, optional, struct, varint

SCHEMA = struct(field(1, "id", "long"), field(2, "name", "string"))
ARROW = arrow([(1, "id", pa.int64()), (2, "name", pa.string())])
DELETES = arrow([(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())])
AVRO = {
    "type": "record", "name": "row", "fields": [
        {"name": "id", **optional("long"), "field-id": 1},
        {"name": "name", **optional("string"), "field-id": 2}]}  # fmt: skip

CHILD = """
import os
import sys
from modcrypt import ModcryptError
from modcrypt.iceberg import open_table
from tests.support.iceberg.sample_kms import SampleKms

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10

def count(folder):
    table = open_table(folder, SampleKms(), require_encrypted=False)
    return sum(batch.num_rows for batch in table.scan_batches())

count(sys.argv[1])  # what any scan loads
for folder in sys.argv[2:]:
    child = os.fork()
    if not child:
        before = peak()
        try:
            found = count(folder)
        except ModcryptError as error:
            found = error.word
        print(os.path.basename(folder), found, peak() - before, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def few_rows() -> pa.Table:
    return pa.table([[1, 2, 3], ["a", "b", "c"]], schema=ARROW)


def equal(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    indices = pa.repeat(pa.scalar(0, pa.int8()), rows)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], kind)).cast(kind)


def new_builder(folder: Path, version: int = 3) -> Builder:
    return Builder(folder, SCHEMA, encrypted=False, version=version)


def finish(
    builder: Builder, data: Mapping[str, Any], deletes: list[dict[str, Any]] | None = None
) -> None:
    manifests = [builder.manifest([dict(data)])]
    builder.snapshot(manifests)
    if deletes:
        builder.snapshot([*manifests, builder.manifest(deletes, content=1)])
    builder.write()


def put(builder: Builder, name: str, data: bytes, rows: int, form: str, **more: Any) -> Any:
    found = builder.put(f"data/{name}", data)
    return builder.file(found, rows, form, **more)


def one_page(builder: Builder, name: str, table: pa.Table, **more: Any) -> Any:
    """Write all rows of a table into one page of a column."""
    rows, out = table.num_rows, io.BytesIO()
    pq.write_table(
        table, out, row_group_size=rows, data_page_size=1 << 30, write_batch_size=rows,
        compression=more.pop("compression", "zstd"), store_schema=False,
        column_encoding=more.pop("column_encoding", None),
        use_dictionary=more.pop("use_dictionary", True),
    )  # fmt: skip
    return put(builder, name, out.getvalue(), rows, "PARQUET", **more)


def avro(schema: Any, rows: bytes, count: int) -> bytes:
    """Return an Avro file of one block."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(rows) + packer.flush()
    head = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": b"deflate"}
    pairs = (varint(len(part)) + part for pair in head.items() for part in pair)
    start = b"Obj\x01" + varint(len(head)) + b"".join(pairs) + varint(0) + bytes(16)
    return start + varint(count) + varint(len(packed)) + packed + bytes(16)


def long_values(folder: Path) -> None:
    builder, rows = new_builder(folder), 10_000
    table = pa.table([range(rows), equal("x" * 60_000, rows, pa.string())], schema=ARROW)
    finish(builder, one_page(builder, "a.parquet", table))


def many_rows(folder: Path) -> None:
    builder, rows = new_builder(folder), 5_000_000
    table = pa.table([equal(7, rows, pa.int64()), pa.nulls(rows, pa.string())], schema=ARROW)
    finish(builder, one_page(builder, "a.parquet", table))


def oversized_page(folder: Path) -> None:
    """A page that declares more bytes than Snappy can make of it."""
    builder = new_builder(folder)
    table = pa.table([[0] * 300, ["x" * 3000] * 300], schema=ARROW)
    entry = one_page(builder, "a.parquet", table, use_dictionary=False, compression="snappy")
    path = folder / "data" / "a.parquet"
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    header, end = decode("PageHeader", bytes(data), start)
    header.uncompressed_page_size = 1_040_000  # a varint of as many bytes as the true size
    data[start:end] = encode(header)
    path.write_bytes(data)
    finish(builder, entry)


def long_equality_keys(folder: Path) -> None:
    builder, rows = new_builder(folder, 2), 10_000
    table = pa.table([range(rows), equal("x" * 60_000, rows, pa.string())], schema=ARROW)
    deletes = one_page(builder, "d.parquet", table, content=2, equality_ids=[2])
    finish(builder, builder.parquet("a.parquet", few_rows()), [deletes])


def long_paths(folder: Path) -> None:
    builder, rows = new_builder(folder, 2), 10_000
    table = pa.table(
        [equal("x" * 60_000, rows, pa.string()), equal(7, rows, pa.int64())], schema=DELETES
    )
    deletes = one_page(builder, "d.parquet", table, content=1)
    finish(builder, builder.parquet("a.parquet", few_rows()), [deletes])


def many_equal_deletes(folder: Path) -> None:
    builder, rows = new_builder(folder, 2), 5_000_000
    entry = builder.parquet("a.parquet", few_rows())
    paths = equal(entry["file_path"], rows, pa.string())
    table = pa.table([paths, equal(1, rows, pa.int64())], schema=DELETES)
    finish(builder, entry, [one_page(builder, "d.parquet", table, content=1)])


def deletes_far_apart(folder: Path) -> None:
    """Positions at equal distances, which take no bytes each in a page."""
    builder, rows = new_builder(folder, 2), 1_500_000
    entry = builder.parquet("a.parquet", few_rows())
    positions = pa.array(range(0, rows << 16, 1 << 16), pa.int64())
    table = pa.table([equal(entry["file_path"], rows, pa.string()), positions], schema=DELETES)
    how = {"use_dictionary": ["file_path"], "column_encoding": {"pos": "DELTA_BINARY_PACKED"}}
    finish(builder, entry, [one_page(builder, "d.parquet", table, content=1, **how)])


def long_vector(folder: Path) -> None:
    builder, rows = new_builder(folder), 1 << 28
    entry = {**builder.parquet("a.parquet", few_rows()), "record_count": rows}
    bitmap = b"\xd1\xd3\x39\x64" + BitMap64(range(1, rows + 1)).serialize()
    blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
    place = {"content_offset": 4, "content_size_in_bytes": len(blob)}
    target = {"content": 1, "referenced_data_file": entry["file_path"]}
    data = b"PFA1" + blob + b"PFA1{}" + bytes(8) + b"PFA1"
    finish(builder, entry, [put(builder, "d.puffin", data, rows, "PUFFIN", **place, **target)])


def short_avro_rows(folder: Path) -> None:
    builder, rows = new_builder(folder), 200_000
    finish(builder, put(builder, "a.avro", avro(AVRO, bytes(2 * rows), rows), rows, "AVRO"))


def long_avro_block(folder: Path) -> None:
    builder, rows = new_builder(folder), 10_000_000
    finish(builder, put(builder, "a.avro", avro(AVRO, bytes(2 * rows), rows), rows, "AVRO"))


def many_json_values(folder: Path) -> None:
    builder = new_builder(folder)
    finish(builder, builder.parquet("a.parquet", few_rows()))
    path = folder / "metadata" / "v1.metadata.json"
    text = path.read_text()[:-1] + ',"x":[' + "{}," * 4_000_000 + "0]}"
    path.unlink()
    path.with_name("v1.gz.metadata.json").write_bytes(gzip.compress(text.encode()))


BOMBS: list[tuple[Callable[[Path], None], int, str, int]] = [
    # the table, at most so many bytes of it, what a scan gives, and MiB at most
    (long_values, 50_000, "10000", 600),
    (many_rows, 100_000, "5000000", 64),
    (oversized_page, 80_000, "limit", 32),
    (long_equality_keys, 60_000, "3", 600),
    (long_paths, 20_000, "format", 48),
    (many_equal_deletes, 150_000, "2", 160),
    (deletes_far_apart, 400_000, "limit", 256),
    (long_vector, 90_000, "1", 32),
    (short_avro_rows, 20_000, "200000", 96),
    (long_avro_block, 50_000, "limit", 48),
    (many_json_values, 50_000, "limit", 64),
]


SLOW = ("long_values", "long_equality_keys")
"""Those that cost most. Of what they show, files alone show the first (tests/test_memory.py)."""


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_peak_memory(slow: bool, tmp_path: Path, subtests: pytest.Subtests) -> None:
    bombs = [bomb for bomb in BOMBS if (bomb[0].__name__ in SLOW) == slow]
    small = tmp_path / "small"
    builder = new_builder(small)
    finish(builder, builder.parquet("a.parquet", few_rows()))
    folders = [tmp_path / make.__name__ for make, *_ in bombs]
    for (make, size, *_), folder in zip(bombs, folders, strict=True):
        make(folder)
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= size
    command = [sys.executable, "-c", CHILD, str(small), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    measured = {
        name: (found, int(peak)) for name, found, peak in map(str.split, done.stdout.splitlines())
    }
    for make, _, said, most in bombs:
        with subtests.test(make.__name__):
            found, peak = measured[make.__name__]
            assert (found, peak <= most) == (said, True), f"{peak} MiB"


# --- Avro schemas --------------------------------------------------------------------------------


def record(name: str, *fields: Any) -> dict[str, Any]:
    members = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": members}


def doubling_record(depth: int) -> dict[str, Any]:
    """Return a record that holds another twice, and so on: 2^depth nulls of no bytes."""
    found = record("r0", "null")
    for number in range(1, depth):
        found = record(f"r{number}", found, f"r{number - 1}")
    return found


@pytest.mark.parametrize(
    "schema",
    [
        record("row", doubling_record(MAX_DEPTH // 2 - 1), "int"),
        record("row", ["null", doubling_record(10)], "int"),
        record("row", {"type": "array", "items": record("item", "int", *["null"] * 100)}),
        record("row", {"type": "map", "values": record("item", *["null"] * 100)}),
        record("row", "int", *["null"] * 1000),
    ],
    ids=["doubled", "in a union", "items", "values", "nulls"],
)
def test_a_byte_does_not_become_many_values(schema: Any) -> None:
    with pytest.raises(LimitError, match="may stand for"):
        read_avro(avro(schema, b"\0", 1), "here")


def test_null_columns_are_read() -> None:
    schema = record("row", "int", *["null"] * 200)
    assert len(read_avro(avro(schema, b"\0" * 5000, 5000), "here").records) == 5000


def test_long_blocks_that_hold_enough_bytes_are_read() -> None:
    chance = random.Random(17)
    rows = [chance.randbytes(64) * 16 for _ in range(6000)]
    body = b"".join(varint(len(row)) + row for row in rows)
    found = read_avro(avro(record("row", "bytes"), body, len(rows)), "here").records
    assert [row["f0"] for row in found] == rows
