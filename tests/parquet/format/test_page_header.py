"""The page header's hot path: held against thriftpy2, and against itself walked field by field."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.arrow.padded_pages import pad_struct
from modcrypt.parquet.format import page_header_scan
from modcrypt.parquet.format.idl import varint, zigzag
from modcrypt.parquet.format.page_header import PageHeader, splice, v2_layout
from modcrypt.parquet.format.page_header_scan import scan
from tests.support.cases import each_case
from tests.support.randomness import examples
from tests.support.shared_vectors import shared_vectors
from tests.support.thrift_judge import (
    IDL,
    STOP,
    WRITERS,
    as_plain,
    calls_of,
    field,
    judge_decodes,
    judge_encodes,
    structs_of,
    values,
)

walk = page_header_scan._scan_unusual
FIELDS = (
    "raw", "type", "uncompressed_size", "compressed_size", "size_start", "size_end", "crc",
    "crc_start", "crc_end",
)  # fmt: skip


def facts(header: PageHeader) -> tuple[Any, ...]:
    """Return the fields of a header, for comparison."""
    return tuple(getattr(header, name) for name in FIELDS)


def sizes(header: PageHeader) -> tuple[int, int, int]:
    return header.type, header.uncompressed_size, header.compressed_size


def check_scan(data: bytes) -> PageHeader:
    """Hold a scan against thriftpy2, wherever the header stands; return what was found."""
    judge, size = judge_decodes("PageHeader", data)
    found = scan(data, 0, len(data))
    assert facts(found) == facts(walk(data, 0, len(data)))
    assert found.raw == data[:size]
    assert (found.type, found.uncompressed_size, found.compressed_size) == (
        judge["type"],
        judge["uncompressed_page_size"],
        judge["compressed_page_size"],
    )
    assert found.crc == (judge["crc"] & 0xFFFFFFFF if "crc" in judge else None)
    # In the midst of other bytes, and in a buffer whose filled part ends with the header.
    around = bytearray(b"\x15\x00\x1c" + data + b"\x00\x15\x02")
    moved = scan(around, 3, 3 + size)
    twins = moved, walk(around, 3, 3 + size), scan(around, 3, len(around))
    assert [facts(twin) for twin in twins] == 3 * [facts(found)]
    return found


def check_splice(data: bytes, size: int, crc: int | None) -> None:
    """Hold a splice against thriftpy2: the size and the crc have changed and nothing else."""
    judge, end = judge_decodes("PageHeader", data)
    found = scan(data, 0, len(data))
    new = splice(found, size, crc)
    expected = judge | {"compressed_page_size": size}
    if "crc" in judge and crc is not None:
        expected["crc"] = crc - (1 << 32) if crc >= 1 << 31 else crc
    assert judge_decodes("PageHeader", new) == (expected, len(new))
    # And back again: what is not a size or a crc has not moved by a bit.
    old_crc = judge["crc"] & 0xFFFFFFFF if "crc" in judge else None
    again = splice(scan(new, 0, len(new)), judge["compressed_page_size"], old_crc)
    assert again == data[:end]


# --- real headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", list(WRITERS))
def test_headers_of_real_writers(writer: str, tmp_path: Path) -> None:
    headers = {data for name, data in structs_of(WRITERS[writer](tmp_path)) if name == "PageHeader"}
    assert headers
    for data in headers:
        found = check_scan(data)
        for size in (0, found.compressed_size + 32, 1 << 20):
            check_splice(data, size, 0xDEADBEEF)


def test_headers_of_parquet_java() -> None:
    headers = {
        data
        for path in sorted((shared_vectors() / "parquet-java" / "twins").glob("*.parquet"))
        for name, data in structs_of(path.read_bytes())
        if name == "PageHeader"
    }
    assert len(headers) > 20
    for data in headers:
        check_scan(data)
        check_splice(data, 12_345, 1)


@pytest.mark.parametrize("writer", ["pyarrow", "pyarrow pages", "polars"])
def test_the_usual_headers_take_the_short_way(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for its result, which is the same, but because the long way is many times slower."""
    file = WRITERS[writer](tmp_path)
    monkeypatch.setattr(page_header_scan, "_scan_unusual", lambda *_: pytest.fail("walked"))
    for name, data in structs_of(file):
        if name == "PageHeader":
            scan(data, 0, len(data))


@pytest.mark.parametrize("overhead", [32 + 16, 32 + 32])
def test_headers_of_views_take_the_short_way(
    overhead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WRITERS["pyarrow"](tmp_path)
    headers = [data for name, data in structs_of(file) if name == "PageHeader"]
    filled = [pad_struct(data, len(data) + overhead) for data in headers]
    for data in filled:
        check_scan(data)
    monkeypatch.setattr(page_header_scan, "_scan_unusual", lambda *_: pytest.fail("walked"))
    for data in filled:
        scan(data, 0, len(data))


# --- headers of any writer -----------------------------------------------------------------------

SIZES = st.integers(0, 300) | st.integers(0, 2**31 - 1)
CRCS = st.none() | st.integers(0, 2**32 - 1)
KINDS = {
    0: "data_page_header",
    1: "index_page_header",
    2: "dictionary_page_header",
    3: "data_page_header_v2",
}


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 3))
    fields: dict[str, Any] = {
        "type": kind,
        "uncompressed_page_size": draw(SIZES),
        "compressed_page_size": draw(SIZES),
        "crc": draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
    }
    struct = {0: "DataPageHeader", 1: "IndexPageHeader", 2: "DictionaryPageHeader"}
    fields[KINDS[kind]] = draw(values(struct.get(kind, "DataPageHeaderV2")))
    return judge_encodes(IDL.PageHeader(**fields))


@settings(max_examples=examples(400))
@given(headers(), SIZES, CRCS)
def test_any_header_is_found_and_spliced(data: bytes, size: int, crc: int | None) -> None:
    check_scan(data)
    check_splice(data, size, crc)


@settings(max_examples=examples(100))
@given(values("PageHeader"), st.lists(SIZES, min_size=3, max_size=3), CRCS)
def test_headers_with_several_structs_or_none_are_found_and_spliced(
    header: Any, sizes: list[int], crc: int | None
) -> None:
    header.type &= 0xFFFF
    header.uncompressed_page_size, header.compressed_page_size, size = sizes
    data = judge_encodes(header)
    check_scan(data)
    check_splice(data, size, crc)


EDGES = sorted(
    {edge + by for edge in (1, 1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 31) for by in (-1, 0, 1)}
    - {2**31, 2**31 + 1}
)
SMALL = {"type": 0, "uncompressed_page_size": 100}
PAGE = IDL.DataPageHeader(
    num_values=3, encoding=0, definition_level_encoding=3, repetition_level_encoding=3
)


def header_bytes(**fields: Any) -> bytes:
    return judge_encodes(IDL.PageHeader(**SMALL, data_page_header=PAGE, **fields))


@each_case("new", EDGES)
def test_sizes_at_the_edges_of_varints(new: int) -> None:
    for old in EDGES:
        for crc in (None, 5):
            data = header_bytes(compressed_page_size=old, crc=crc)
            assert check_scan(data).compressed_size == old
            check_splice(data, new, crc)


@pytest.mark.parametrize("size", [2**31, 2**31 + 1, 2**32, 2**40])
def test_a_size_that_the_format_has_no_number_for_is_refused(size: int) -> None:
    data = header_bytes(compressed_page_size=1)
    with pytest.raises(LimitError):
        splice(scan(data, 0, len(data)), size)


@each_case("crc", [0, 1, 63, 64, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
def test_crcs_are_signed_in_thrift_and_unsigned_here(crc: int) -> None:
    signed = int.from_bytes(crc.to_bytes(4, "big"), "big", signed=True)
    data = header_bytes(compressed_page_size=7, crc=signed)
    assert check_scan(data).crc == crc
    for old in (0, -1, 2**31 - 1, -(2**31)):
        check_splice(header_bytes(compressed_page_size=7, crc=old), 7, crc)


def test_a_crc_stays_where_none_is_given_and_none_is_added() -> None:
    with_crc = header_bytes(compressed_page_size=7, crc=-5)
    check_splice(with_crc, 9, None)
    assert judge_decodes("PageHeader", splice(check_scan(with_crc), 9))[0]["crc"] == -5
    without = header_bytes(compressed_page_size=7)
    check_splice(without, 9, 123)
    assert facts(check_scan(without))[-3:] == (None, -1, -1)


@each_case("size", [0, 40, 41, 64, 65, 127, 128, 16_383, 16_384, 300_000])
def test_statistics_of_any_length(size: int) -> None:
    long = IDL.Statistics(max_value=b"\xff" * size, min_value=bytes(size), null_count=3)
    page = IDL.DataPageHeader(
        num_values=3,
        encoding=0,
        definition_level_encoding=3,
        repetition_level_encoding=3,
        statistics=long,
    )
    data = judge_encodes(IDL.PageHeader(**SMALL, compressed_page_size=5, data_page_header=page))
    check_scan(data)
    check_splice(data, 37, None)


def fields_in_order(order: tuple[int, ...], crc: int = -77) -> bytes:
    """Spell a data page's header with its fields in an order of their own."""
    payloads = {
        1: (5, varint(zigzag(0))),
        2: (5, varint(zigzag(1000))),
        3: (5, varint(zigzag(300))),
        4: (5, varint(zigzag(crc))),
        5: (12, judge_encodes(PAGE)),
        **dict.fromkeys((99, 0, -4, -16_384), (8, b"\x04\x00\x15\x06\x00")),
    }
    out, last = b"", 0
    for field_id in order:
        out += field(last, field_id, *payloads[field_id])
        last = field_id
    return out + STOP


@each_case("order", list(itertools.permutations((1, 2, 3, 4, 5))))
def test_fields_may_come_in_any_order(order: tuple[int, ...]) -> None:
    data = fields_in_order(order)
    found = check_scan(data)
    assert sizes(found) == (0, 1000, 300)
    for size in (0, 300, 1 << 30):
        for crc in (None, 0, 2**32 - 1):
            check_splice(data, size, crc)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("field_id", [99, 0, -4, -16_384])
def test_fields_of_a_newer_writer_may_stand_anywhere(place: int, field_id: int) -> None:
    order = [1, 2, 3, 4, 5]
    order.insert(place, field_id)
    data = fields_in_order(tuple(order))
    check_scan(data)
    check_splice(data, 5, 6)


def test_overlong_varints_are_read_as_thrift_reads_them() -> None:
    """Legal though no writer makes them: 7 in four bytes."""
    long = b"\x15\x8e\x80\x80\x00" + b"\x15\x8e\x80\x80\x80\x00"
    data = b"\x15\x00" + long + b"\x2c" + 4 * b"\x15\x00" + STOP + STOP
    assert sizes(check_scan(data))[1:] == (7, 7)


def test_what_a_scan_takes_decodes_too() -> None:
    """Copies without unknown fields decode headers, and verify only scans them."""
    head = b"\x15\x00\x15\x0e\x15\x0e\x2c"
    assert sizes(check_scan(head + 4 * b"\x15\x00" + STOP + STOP))[1:] == (7, 7)
    for broken in (
        3 * b"\x15\x00" + STOP,  # one number is missing
        3 * b"\x15\x00" + b"\x16\x00" + STOP,  # one is of another type
        4 * b"\x15\x00" + b"\x08\xfe\xff\x03\x00\x18\x00" + STOP,  # a field with id 32768
        4 * b"\x15\x00" + b"\x05\x02\x00" + STOP,  # a field that is there already
    ):
        with pytest.raises(FormatError):
            scan(head + broken + STOP, 0, len(head) + len(broken) + 1)


# --- what is no header ---------------------------------------------------------------------------


@each_case(
    ("data", "why"),
    [
        (b"", "end inside"),
        (STOP, "missing"),
        (b"\x15\x00\x15\x02\x1c\x00\x00", "not a single i32"),  # field 3 is a struct
        (b"\x15\x00\x15\x02\x00", "missing"),
        (b"\x15\x01\x15\x02\x15\x02\x2c\x00\x00", "negative"),
        (b"\x15\x00\x15\x01\x15\x02\x2c\x00\x00", "negative"),
        (b"\x15\x00\x15\x02\x15\x03\x2c\x00\x00", "negative"),
        (b"\x15\x00\x15\x02\x15\xff\xff\xff\xff\x0f\x2c\x00\x00", "negative"),
        (b"\x15\x00\x15\x02\x15\xff\xff\xff\xff\x1f\x2c\x00\x00", "32 bits"),
        (b"\x15\x00\x15\x02\x15\xff\xff\xff\xff\xff\x01\x2c\x00\x00", "32 bits"),
        (b"\x15\x00\x15\x02\x15\x02\x15\xff\xff\xff\xff\x1f\x1c\x00\x00", "32 bits"),
        (b"\x15\x00\x15\x02\x15\x02\x1c\x00\x00", "not a single i32"),  # the crc is a struct
        (b"\x15\x00\x15\x02\x16\x02\x2c\x00\x00", "not a single i32"),
        (b"\x15\x00\x15\x02\x15\x02\x05\x06\x04\x2c\x00\x00", "not a single i32"),  # twice
        (b"\x15\x00\x15\x02\x15\x02\x20\x00", "wire type 0"),
        (b"\x15\x00\x15\x02\x15\x02\x2f\x00", "wire type 15"),
        (b"\x15\x00\x15\x02\x15\x02\x2c\x10\x00\x00", "wire type 0"),
        (b"\x15\x00\x15\x02\x15\x02\x28\xff\xff\xff\xff\x07", "end inside"),
    ],
)
def test_what_is_no_header_is_a_format_error_either_way(data: bytes, why: str) -> None:
    for way in (scan, walk):
        with pytest.raises(FormatError, match=why):
            way(data, 0, len(data))


def outcome(way: Any, data: bytes, start: int, stop: int) -> object:
    """Return the facts of the header that is found, or the error's type."""
    try:
        return facts(way(data, start, stop))
    except FormatError:
        return FormatError


# What headers are made of, and what looks like it.
PARTS = [
    *(b"\x15\x00", b"\x15\x02", b"\x15\x80\x01", b"\x15\x81\x01", b"\x15\xff\xff\xff\xff\x0f"),
    *(b"\x25\x04", b"\x05\x06", b"\x08\x0a", b"\x16\xff\xff\x01"),
    *(b"\x2c", b"\x1c", b"\x3c", b"\x00", b"\x10", b"\x11", b"\x12"),
    *(b"\x18\x02ab", b"\x18\x29", b"\x19\x15\x02", b"\x1b\x00"),
    *(b"\x13\x00", b"\x17" + bytes(8), b"\x1d" + bytes(16)),
]


@settings(max_examples=examples(1500))
@given(
    st.lists(st.sampled_from(PARTS), max_size=14).map(b"".join)
    | st.lists(st.sampled_from(PARTS), max_size=10).map(
        lambda parts: b"\x15\x00\x15\x02\x15\x02" + b"".join(parts) + b"\x00\x00"
    )
    | st.binary(max_size=40),
    st.integers(0, 3),
)
def test_any_bytes_give_a_header_or_a_format_error_and_both_ways_agree(
    data: bytes, start: int
) -> None:
    found = outcome(scan, data, start, len(data))
    assert found == outcome(walk, data, start, len(data))
    if found is not FormatError:
        header = scan(data, start, len(data))
        assert data[start:].startswith(header.raw)
        assert min(sizes(header)) >= 0
        # Nothing that an encryptor would then write is misread by its own reader.
        again = splice(header, 12_345, 6789)
        assert scan(again, 0, len(again)).compressed_size == 12_345


@settings(max_examples=examples(300))
@given(headers(), st.data())
def test_a_damaged_header_is_found_or_refused_both_ways_alike(
    data: bytes, drawn: st.DataObject
) -> None:
    broken = bytearray(data)
    at = drawn.draw(st.integers(0, len(data) - 1))
    broken[at : at + drawn.draw(st.integers(0, 2))] = drawn.draw(st.binary(max_size=2))
    whole = bytes(broken)
    assert outcome(scan, whole, 0, len(whole)) == outcome(walk, whole, 0, len(whole))


@given(headers())
def test_no_part_of_a_header_is_a_header_whatever_stands_behind_it(data: bytes) -> None:
    """A window may hold stale bytes behind its filled part: they are never looked at."""
    for stop in range(len(data)):
        for way in (scan, walk):
            with pytest.raises(FormatError):
                way(data + b"\x00" * 50, 0, stop)
            with pytest.raises(FormatError):
                way(data[:stop], 0, stop)


@each_case(
    "unit",
    [
        *(b"\x11", b"\x15\x02", b"\x18\x00", b"\x18\x28" + b"\x11" * 40),
        *(b"\x1c", b"\x1c\x00", b"\x1c\x11\x00", b"\x1c\x15", b"\x19\x0c"),
        b"\x16" + b"\xff" * 9 + b"\x00",
    ],
)
def test_hostile_repetition_ends_soon(unit: bytes) -> None:
    """An expression that backtracks would not come back from these."""

    def calls(times: int) -> int:
        data = b"\x15\x00\x15\x02\x15\x02\x2c" + unit * times
        return calls_of(lambda: outcome(scan, data, 0, len(data)))

    assert calls(20_000) <= 8 * 20_000 * len(unit)


# --- levels of data pages V2 ---------------------------------------------------------------------


@given(values("DataPageHeaderV2"))
def test_level_lengths_are_thriftpy2s(page: Any) -> None:
    data = judge_encodes(IDL.PageHeader(**SMALL, compressed_page_size=1, data_page_header_v2=page))
    judge = as_plain(page)
    definition = judge["definition_levels_byte_length"]
    repetition = judge["repetition_levels_byte_length"]
    if definition < 0 or repetition < 0:
        with pytest.raises(FormatError, match="negative"):
            v2_layout(data)
        return
    # "If missing it is considered compressed": the judge knows the default from the IDL.
    assert v2_layout(data) == (definition + repetition, judge["is_compressed"])


def test_a_v2_page_without_its_struct_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="without data_page_header_v2"):
        v2_layout(header_bytes(compressed_page_size=1))


@given(st.binary(max_size=60))
def test_any_bytes_give_levels_or_a_format_error(data: bytes) -> None:
    try:
        levels, compressed = v2_layout(data)
    except FormatError:
        return
    assert levels >= 0
    assert compressed in (True, False)
