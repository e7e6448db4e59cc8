"""thriftpy2's own codec as the judge of ours, real files for both, and values from the IDL."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import thriftpy2
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol

from tests.support.paths import ROOT
from tests.support.tables import small_table

# --- the judge: thriftpy2 with the same IDL, loaded apart ----------------------------------------

IDL = thriftpy2.load(str(ROOT / "thrift" / "parquet.thrift"), module_name="judge_thrift")
STRUCTS = sorted(name for name in dir(IDL) if hasattr(getattr(IDL, name), "thrift_spec"))
UNIONS = {cls.__name__ for cls in IDL.__thrift_meta__["unions"]}
T_BOOL, T_BYTE, T_DOUBLE, T_STRUCT, T_LIST = 2, 3, 4, 12, 15
INT_BITS = {T_BYTE: 8, 6: 16, 8: 32, 10: 64}

Plain: TypeAlias = Any
"""Structs as dicts of the fields that are set, so that values of both codecs compare."""


def as_plain(value: Any) -> Plain:
    if isinstance(value, list):
        return [as_plain(item) for item in value]
    if isinstance(value, float):
        return struct.pack("<d", value)  # NaNs compare by their bits
    if type(value).__name__ not in STRUCTS:
        return value
    cls = getattr(IDL, type(value).__name__)
    defaults = dict(cls.default_spec)
    fields = {}
    for _, name, *_ in cls.thrift_spec.values():
        item = getattr(value, name)
        if item is None:
            item = defaults.get(name)
        if item is not None:
            fields[name] = as_plain(item)
    return fields


def judge_decodes(name: str, data: bytes) -> tuple[Plain, int]:
    """Decode with thriftpy2; return the value and the bytes that it took."""
    transport = io.BytesIO(data)
    value = getattr(IDL, name)()
    value.read(TCompactProtocol(transport, decode_response=False))  # type: ignore[no-untyped-call]  # thriftpy2 has no types
    return as_plain(value), transport.tell()


def judge_encodes(value: Any) -> bytes:
    transport = io.BytesIO()
    value.write(TCompactProtocol(transport))  # type: ignore[no-untyped-call]  # thriftpy2 has no types
    return transport.getvalue()


def judge_rewrites(name: str, data: bytes) -> bytes:
    """Decode a struct and encode it again, as readers do that drop the fields they do not know."""
    value = getattr(IDL, name)()
    value.read(TCompactProtocol(io.BytesIO(data), decode_response=False))  # type: ignore[no-untyped-call]  # thriftpy2 has no types
    return judge_encodes(value)


# The compact protocol as its specification has it, in a form that is easy to check by eye.
STOP = b"\x00"


def field(last: int, field_id: int, wire: int, payload: bytes) -> bytes:
    """Spell one field: short header for a delta of 1 to 15, else a zigzag id of its own."""
    if 0 < field_id - last < 16:
        return bytes(((field_id - last) << 4 | wire,)) + payload
    number, out = 2 * field_id if field_id >= 0 else -2 * field_id - 1, b""
    while number > 127:
        number, out = number >> 7, out + bytes((number & 127 | 128,))
    return bytes((wire,)) + out + bytes((number,)) + payload


# --- files of real writers -----------------------------------------------------------------------


def footer_of(file: bytes) -> bytes:
    return file[-8 - int.from_bytes(file[-8:-4], "little") : -8]


def structs_of(file: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield every Thrift struct of a plaintext file, found with thriftpy2 alone."""

    def one(name: str, at: int) -> tuple[Plain, bytes]:
        value, size = judge_decodes(name, file[at : at + (1 << 20)])
        return value, file[at : at + size]

    footer = footer_of(file)
    yield "FileMetaData", footer
    for row_group in judge_decodes("FileMetaData", footer)[0]["row_groups"]:
        for chunk in row_group["columns"]:
            md = chunk["meta_data"]
            # PyArrow gives an empty chunk's data pages the offset 0, others give it to "no
            # dictionary".
            at = min(filter(None, (md.get("dictionary_page_offset"), md["data_page_offset"])))
            end = at + md["total_compressed_size"]
            while at < end:
                header, data = one("PageHeader", at)
                yield "PageHeader", data
                at += len(data) + header["compressed_page_size"]
            for name, offset in (
                ("ColumnIndex", chunk.get("column_index_offset")),
                ("OffsetIndex", chunk.get("offset_index_offset")),
                ("BloomFilterHeader", md.get("bloom_filter_offset")),
            ):
                if offset is not None:
                    yield name, one(name, offset)[1]


def of_pyarrow(**options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(small_table(), out, **options)
    return out.getvalue()


def of_duckdb(folder: Path) -> bytes:
    path = folder / "duckdb.parquet"
    relation = duckdb.sql(
        "select i as id, (i % 7)::varchar as name, i / 3 as ratio, [i, i + 1] as tags,"
        " {'zip': i, 'city': 'Ulm'} as address, date '2026-01-01' + (i % 28)::integer as day,"
        " i::decimal(12, 2) as price, now() as at, uuid() as key, 'x'::blob as raw"
        " from range(3000) t(i)"
    )
    assert relation is not None
    relation.write_parquet(str(path), row_group_size=2048)
    return path.read_bytes()


def of_polars() -> bytes:
    out = io.BytesIO()
    frame = pl.from_arrow(small_table(500))
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(out, statistics="full", row_group_size=200, data_page_size=200)
    return out.getvalue()


def of_rich_types() -> bytes:
    """Write types whose logical type, converted type or order has fields of its own."""
    table = pa.table(
        {
            "ts_ns": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "ts_ms": pa.array([1, None], pa.timestamp("ms")),
            "time": pa.array([1, None], pa.time64("us")),
            "half": pa.array([1.5, None], pa.float16()),
            "nan": pa.array([float("nan"), float("-inf")]),
            "fixed": pa.array([b"abc", None], pa.binary(3)),
            "u8": pa.array([255, None], pa.uint8()),
            "i16": pa.array([-1, None], pa.int16()),
            "nothing": pa.array([None, None], pa.null()),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "wide": pa.array(["x" * 500, "y" * 90]),
        },
        metadata={"k\N{SNOWMAN}": "v" * 300},
    )
    out = io.BytesIO()
    order = [pq.SortingColumn(5, descending=True, nulls_first=True)]
    pq.write_table(table, out, sorting_columns=order, write_page_index=True)
    return out.getvalue()


WRITERS: dict[str, Callable[[Path], bytes]] = {
    "pyarrow": lambda _: of_pyarrow(),
    "pyarrow types": lambda _: of_rich_types(),
    "pyarrow pages": lambda _: of_pyarrow(
        data_page_version="2.0",
        write_page_index=True,
        write_page_checksum=True,
        row_group_size=20,
        max_rows_per_page=5,
        bloom_filter_options={"id": {"ndv": 50, "fpp": 0.1}, "name": {"ndv": 50, "fpp": 0.1}},
    ),
    "pyarrow 1.0": lambda _: of_pyarrow(
        version="1.0", store_schema=False, use_dictionary=False, write_statistics=False
    ),
    "pyarrow many row groups": lambda _: of_pyarrow(row_group_size=1),
    "duckdb": of_duckdb,
    "polars": lambda _: of_polars(),
}


@cache
def values(name: str) -> st.SearchStrategy[Any]:
    """Return a strategy for structs as thriftpy2 has them, from the IDL."""
    cls = getattr(IDL, name)

    def of(ttype: int, spec: Any) -> st.SearchStrategy[Any]:
        if ttype == T_BOOL:
            return st.booleans()
        if ttype in INT_BITS:
            top = 1 << INT_BITS[ttype] - 1
            return st.integers(-top, top - 1)
        if ttype == T_DOUBLE:
            return st.floats()
        if ttype == T_STRUCT:
            return values(spec.__name__)
        if ttype == T_LIST:
            element, sub = spec if isinstance(spec, tuple) else (spec, None)
            # One list of structs is inside the next: a footer would grow beyond use.
            return st.lists(of(element, sub), max_size=2 if element == T_STRUCT else 20)
        return st.binary(max_size=20) | st.binary(min_size=120, max_size=140)

    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for ttype, field_name, *rest in cls.thrift_spec.values():
        strategy = of(ttype, rest[0] if len(rest) == 2 else None)
        (required if rest[-1] else optional)[field_name] = strategy
    if name in UNIONS:
        members = [st.fixed_dictionaries({key: value}) for key, value in optional.items()]
        return st.one_of(members).map(lambda fields: cls(**fields))
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: cls(**fields))


def calls_of(work: Callable[[], object]) -> int:
    """Count the Python calls that some work takes: time that does not depend on the machine."""
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
