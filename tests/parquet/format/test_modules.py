"""The spans of modules and the shape of footers, with limits on both sides."""

from __future__ import annotations

from typing import Any

import pytest

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.io.sources import MemorySource
from modcrypt.parquet.format.idl import ThriftStruct, encode, new
from modcrypt.parquet.format.modules import (
    MAX_BLOOM_HEADER,
    Part,
    Span,
    check_column_metadata,
    check_file_path,
    check_shape,
    chunk_spans,
    chunk_start,
    sort_for_writing,
)
from modcrypt.parquet.format.schema import Leaf
from tests.support.forging import bloom_header

BODY_END = 200
METADATA: dict[str, Any] = {
    "path_in_schema": [b"a"], "num_values": 5, "total_uncompressed_size": 40,
    "total_compressed_size": 40, "data_page_offset": 4,
}  # fmt: skip


def chunk(metadata: dict[str, Any] | None = None, **fields: Any) -> ThriftStruct:
    """Return a column chunk whose pages fill bytes 4 to 44, but for the given fields."""
    md = new("ColumnMetaData", **(METADATA | (metadata or {})))
    return new("ColumnChunk", file_offset=0, meta_data=md, **fields)


def spans(found: ThriftStruct, content: bytes = b"") -> list[tuple[int, int, Part]]:
    """Return the spans of a chunk in a file whose modules end at byte 200."""
    source = MemorySource(content.ljust(BODY_END, b"\0"))
    return [(s.start, s.end, s.part) for s in chunk_spans({(0, 0): found}, BODY_END, source)]


# --- spans ----------------------------------------------------------------------------------------


def test_pages_lie_between_magic_and_footer() -> None:
    assert spans(chunk({"total_compressed_size": 196})) == [(4, 200, Part.PAGES)]
    for wrong in ({"total_compressed_size": 197}, {"data_page_offset": 3}):
        with pytest.raises(FormatError, match="do not lie between the magic and the footer"):
            spans(chunk(wrong))


def test_spans_may_touch_but_not_overlap() -> None:
    assert spans(chunk(column_index_offset=44, column_index_length=10)) == [
        (4, 44, Part.PAGES),
        (44, 54, Part.COLUMN_INDEX),
    ]
    with pytest.raises(FormatError, match="starts at byte 43, inside pages"):
        spans(chunk(column_index_offset=43, column_index_length=10))


def test_data_pages_begin_within_the_chunk() -> None:
    inside = {"dictionary_page_offset": 4, "data_page_offset": 44}
    assert spans(chunk(inside)) == [(4, 44, Part.PAGES)]
    with pytest.raises(FormatError, match="data_page_offset 45 lies outside the chunk"):
        spans(chunk(inside | {"data_page_offset": 45}))


@pytest.mark.parametrize("part", ["column_index", "offset_index"])
@pytest.mark.parametrize(("offset", "length"), [(44, None), (None, 1), (44, 0), (44, -1)])
def test_an_index_has_offset_and_length(part: str, offset: int | None, length: int | None) -> None:
    with pytest.raises(FormatError, match=f"{part} at"):
        spans(chunk(None, **{f"{part}_offset": offset, f"{part}_length": length}))
    assert len(spans(chunk(None, **{f"{part}_offset": 44, f"{part}_length": 1}))) == 2


def test_chunks_without_bytes_have_no_pages() -> None:
    assert spans(chunk({"total_compressed_size": 0})) == []


@pytest.mark.parametrize(
    ("dictionary", "data", "start"),
    [(None, 9, 9), (0, 9, 9), (4, 9, 4), (9, 9, 9), (12, 9, 9), (12, 0, 12), (12, -1, 12)],
)
def test_a_chunk_starts_with_its_dictionary_page(
    dictionary: int | None, data: int, start: int
) -> None:
    md = chunk({"dictionary_page_offset": dictionary, "data_page_offset": data}).meta_data
    assert chunk_start(md) == start


def test_offset_indexes_before_their_chunk_are_written_last() -> None:
    early, pages = Span(4, 8, Part.OFFSET_INDEX, 0, 0), Span(8, 20, Part.PAGES, 0, 0)
    other = Span(20, 30, Part.PAGES, 0, 1)
    late = Span(30, 34, Part.OFFSET_INDEX, 0, 1)
    assert sort_for_writing([early, pages, other, late]) == [pages, other, late, early]
    assert sort_for_writing([pages, other, late]) == [pages, other, late]


# --- bloom filters without a length ---------------------------------------------------------------


def test_a_stored_length_of_a_bloom_filter_is_positive() -> None:
    stored = {"bloom_filter_offset": 44, "bloom_filter_length": 1}
    assert spans(chunk(stored))[1] == (44, 45, Part.BLOOM_FILTER)
    with pytest.raises(FormatError, match="bloom filter with length 0"):
        spans(chunk(stored | {"bloom_filter_length": 0}))


@pytest.mark.parametrize("size", [32, 64])
def test_a_plaintext_bloom_filter_is_measured_by_its_header(size: int) -> None:
    header = encode(bloom_header(size))
    content = bytes(44) + header + bytes(size)
    end = 44 + len(header) + size
    assert spans(chunk({"bloom_filter_offset": 44}), content)[1] == (44, end, Part.BLOOM_FILTER)


def encrypted_chunk(offset: int) -> ThriftStruct:
    """Return an encrypted chunk with a bloom filter whose length is not stored."""
    crypto = new("ColumnCryptoMetaData", ENCRYPTION_WITH_FOOTER_KEY=new("EncryptionWithFooterKey"))
    return chunk({"bloom_filter_offset": offset}, crypto_metadata=crypto)


def test_an_encrypted_bloom_filter_is_measured_by_the_lengths_of_its_two_modules() -> None:
    content = bytes(44) + (30).to_bytes(4, "little") + bytes(30) + (60).to_bytes(4, "little")
    assert spans(encrypted_chunk(44), content)[1] == (44, 44 + 4 + 30 + 4 + 60, Part.BLOOM_FILTER)


def test_the_header_of_a_bloom_filter_leaves_room_for_the_length_of_its_bitset() -> None:
    """156 bytes are there: two length fields and a header module of up to 148 bytes."""
    fits = bytes(44) + (148).to_bytes(4, "little")
    assert spans(encrypted_chunk(44), fits)[1] == (44, 200, Part.BLOOM_FILTER)
    with pytest.raises(LimitError, match="declares 153 bytes"):
        spans(encrypted_chunk(44), bytes(44) + (149).to_bytes(4, "little"))


@pytest.mark.parametrize("offset", [-1, 3, 200, 201])
def test_a_bloom_filter_is_not_measured_outside_the_modules(offset: int) -> None:
    with pytest.raises(FormatError, match="lies outside the file's modules"):
        spans(encrypted_chunk(offset))


def test_a_bloom_filter_at_either_end_of_the_modules_is_measured() -> None:
    """The first one overlaps the pages; the last one has no room for its lengths."""
    with pytest.raises(FormatError, match="inside bloom filter"):
        spans(encrypted_chunk(4), bytes(4) + (30).to_bytes(4, "little"))
    with pytest.raises(LimitError, match="at byte 199 declares"):
        spans(encrypted_chunk(199))


def test_no_more_of_a_bloom_filter_is_read_than_its_header_may_have() -> None:
    source = MemorySource(bytes(44) + encode(bloom_header(32)) + bytes(5000))
    sizes = []

    class Watched(MemorySource):
        def read_at(self, offset: int, size: int) -> bytes:
            sizes.append(size)
            return source.read_at(offset, size)

    chunk_spans({(0, 0): chunk({"bloom_filter_offset": 44})}, 4000, Watched(b""))
    assert sizes == [MAX_BLOOM_HEADER] == [1024]


# --- shape of the footer --------------------------------------------------------------------------


def footer(
    *rows: int, declared: int | None = None, columns: list[ThriftStruct] | None = None
) -> ThriftStruct:
    """Return the metadata of a file of one column, with these numbers of rows per row group."""
    groups = [
        new("RowGroup", columns=[chunk()] if columns is None else columns, num_rows=n) for n in rows
    ]
    total = sum(rows) if declared is None else declared
    return new("FileMetaData", version=2, schema=[], num_rows=total, row_groups=groups)


def test_rows_and_chunks_match_the_schema() -> None:
    check_shape(footer(0, 5), 1)
    check_shape(footer(2**31 - 1), 1)
    check_shape(footer(5, declared=0), 1, plain=True)
    check_shape(footer(5, columns=[]), 0)


@pytest.mark.parametrize(
    ("metadata", "plain", "error", "message"),
    [
        (footer(2**31), False, LimitError, "at most 2147483647 are read"),
        (footer(-1), False, FormatError, "declares -1 rows"),
        (footer(5, declared=4), True, FormatError, "but its row groups have 5"),
        (footer(5, declared=0), False, FormatError, "but its row groups have 5"),
        (footer(5, columns=[]), False, FormatError, "has 0 column chunks, but the schema has 1"),
        (footer(5, columns=[chunk()] * 2), False, FormatError, "has 2 column chunks"),
    ],
    ids=["rows", "negative", "sum", "unstated", "missing", "superfluous"],
)
def test_other_shapes_are_refused(
    metadata: ThriftStruct, plain: bool, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_shape(metadata, 1, plain=plain)


def test_ordinals_limit_row_groups_and_columns() -> None:
    group = new("RowGroup", columns=[], num_rows=0)
    most = new("FileMetaData", version=2, schema=[], num_rows=0, row_groups=[group] * 32_768)
    check_shape(most, 0)
    most.row_groups.append(group)
    with pytest.raises(LimitError, match="at most 32768 row groups"):
        check_shape(most, 0)
    check_shape(footer(), 32_768)
    with pytest.raises(LimitError, match="32768 columns"):
        check_shape(footer(), 32_769)


def test_a_chunk_in_another_file_is_refused() -> None:
    check_file_path(chunk(), 0, 0)
    with pytest.raises(UnsupportedFormatError, match="row group 1, column 2 lies in another file"):
        check_file_path(chunk(file_path=b"x"), 1, 2)


# --- column metadata ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["total_uncompressed_size", "total_compressed_size"])
def test_sizes_of_column_metadata_are_not_negative(name: str) -> None:
    leaf = Leaf(("a",), [b"a"], (1,), 0, 0, None)
    check_column_metadata(chunk({name: 0}).meta_data, leaf, 0, 5)
    with pytest.raises(FormatError, match="a size, count or offset is negative"):
        check_column_metadata(chunk({name: -1}).meta_data, leaf, 0, 5)


def test_only_a_repeated_column_has_more_values_than_rows() -> None:
    flat, repeated = (Leaf(("a",), [b"a"], (1,), 0, level, None) for level in (0, 1))
    md = chunk().meta_data
    check_column_metadata(md, flat, 0, 5)
    check_column_metadata(md, repeated, 0, 4)
    for leaf, rows in ((flat, 4), (flat, 6), (repeated, 6)):
        with pytest.raises(FormatError, match=f"5 values in {rows} rows"):
            check_column_metadata(md, leaf, 0, rows)


def test_column_metadata_belongs_to_its_column() -> None:
    with pytest.raises(FormatError, match="column b: its column metadata names another column"):
        check_column_metadata(chunk().meta_data, Leaf(("b",), [b"b"], (1,), 0, 0, None), 0, 5)
    with pytest.raises(FormatError, match="the column metadata is missing"):
        check_column_metadata(None, Leaf(("a",), [b"a"], (1,), 0, 0, None), 0, 5)
