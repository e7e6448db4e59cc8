"""Thrift structs from bytes and back: judged by thriftpy2's own codec and by real writers' bytes.

The invariant of everything below: any bytes either give a struct or raise FormatError.
"""

from __future__ import annotations

import io
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.parquet.format.compact import MAX_NESTING, StructList, read_int
from modcrypt.parquet.format.idl import (
    CHUNKS,
    OWN_CLASSES,
    STATISTICS,
    copy,
    decode,
    decode_some,
    encode,
    extension,
    is_known,
    known_bytes,
    new,
    restore_field,
    set_extension,
    set_fields,
    struct_end,
    unknown_fields,
    varint,
    without_unknown,
    zigzag,
)
from tests.support.cases import each_case, one_in
from tests.support.randomness import examples
from tests.support.shared_vectors import shared_vectors
from tests.support.thrift_judge import (
    IDL,
    STOP,
    STRUCTS,
    T_BOOL,
    T_BYTE,
    T_DOUBLE,
    T_LIST,
    T_STRUCT,
    UNIONS,
    WRITERS,
    as_plain,
    calls_of,
    field,
    footer_of,
    judge_decodes,
    judge_encodes,
    of_rich_types,
    structs_of,
    values,
)

# --- files of real writers -----------------------------------------------------------------------


@pytest.mark.parametrize("writer", list(WRITERS))
def test_every_struct_of_a_real_file_survives_and_reads_as_thriftpy2_reads_it(
    writer: str, tmp_path: Path
) -> None:
    met = check_structs(WRITERS[writer](tmp_path))
    assert met >= {"FileMetaData", "PageHeader"}
    if writer == "pyarrow pages":
        assert met >= {"ColumnIndex", "OffsetIndex", "BloomFilterHeader"}


def check_structs(file: bytes) -> set[str]:
    """Take every struct of a file apart and put it together; name the kinds of structs."""
    met = set()
    for name, data in structs_of(file):
        value, end = decode(name, data + b"\xff after the struct")
        assert end == len(data)
        assert encode(value) == data
        assert as_plain(value) == judge_decodes(name, data)[0]
        met.add(name)
    return met


def test_structs_of_parquet_java_and_other_published_files_survive() -> None:
    """Twins are plaintext; encrypted files have signed footers and key metadata in the clear."""
    checked = dict.fromkeys(("plain", "signed", "encrypted"), 0)
    for path in sorted(shared_vectors().rglob("*.parquet*")):
        if not path.is_file() or path.suffix == ".json" or "tampered" in path.parts:
            continue
        file = path.read_bytes()
        if file[-4:] == b"PARE":
            name, kind = "FileCryptoMetaData", "encrypted"
        elif "twins" in path.parts:
            check_structs(file)
            checked["plain"] += 1
            continue
        else:
            name, kind = "FileMetaData", "signed"
        data = footer_of(file)
        value, end = decode(name, data)
        assert (as_plain(value), end) == judge_decodes(name, data), path.name
        assert encode(value) == data[:end], path.name
        checked[kind] += 1
    assert all(checked.values()), checked


@cache
def rich_footer() -> bytes:
    return footer_of(of_rich_types())


# --- fields that the IDL doesn't know ------------------------------------------------------------

# Name, wire type, payload.
UNKNOWN = [
    ("true", 1, b""),
    ("false", 2, b""),
    ("byte", 3, b"\xff"),
    ("i16", 4, b"\xff\xff\x03"),
    ("i32", 5, b"\xff\xff\xff\xff\x0f"),
    ("i64", 6, b"\xff" * 9 + b"\x01"),
    ("double", 7, b"\x01\x00\x00\x00\x00\x00\xf8\x7f"),
    ("binary", 8, b"\x05\x00\xff\x00\x0c\x18"),
    ("long binary", 8, b"\xc8\x01" + bytes(200)),
    ("list of i32", 9, b"\x35\x02\x04\x80\x01"),
    ("list of 16 booleans", 9, b"\xf1\x10" + b"\x01\x02" * 8),
    ("list of structs", 9, b"\x2c" + b"\x15\x02\x00" + b"\x00"),
    ("list of lists", 9, b"\x29" + b"\x13\x01" + b"\x03"),
    ("empty list", 9, b"\x05"),
    ("set of binaries", 10, b"\x28\x01a\x00"),
    ("map", 11, b"\x02\x85" + b"\x01k\x02" + b"\x00\x04"),
    ("map to booleans", 11, b"\x01\x31" + b"\x07\x02"),
    ("empty map", 11, b"\x00"),
    ("struct", 12, b"\x15\x02\x2c\x11\x00\x18\x01x\x00"),
    ("empty struct", 12, b"\x00"),
]
# thriftpy2 does not know this type of newer Thrift versions.
UUID = ("uuid", 13, bytes(range(16)))

FIRST_UNKNOWN = 100  # no struct of the IDL has so many fields
NOT_POSITIVE = (-16_384, 0, -1, -32_768)  # the first is that of Databricks' Photon


def unknown_tail(fields: list[tuple[str, int, bytes]], last: int) -> bytes:
    out = b""
    for i, (_, wire, payload) in enumerate(fields):
        field_id = FIRST_UNKNOWN + 7 * i  # short and long headers
        out += field(last, field_id, wire, payload)
        last = field_id
    for field_id in NOT_POSITIVE:
        out += field(last, field_id, 8, b"\x02of")
        last = field_id
    return out + field(last, 32_767, 8, b"\x03end")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


class Insert:
    """Copies a struct's bytes and puts fields of a newer writer into every struct in it."""

    def __init__(self, data: bytes, fields: list[tuple[str, int, bytes]]) -> None:
        self.data, self.fields, self.at, self.structs = data, fields, 0, 0

    def take(self, end: int) -> bytes:
        start, self.at = self.at, end
        return self.data[start:end]

    def struct(self, cls: Any) -> bytes:
        out, last = b"", 0
        while (head := self.data[self.at]) != 0:
            assert head > 15  # the writers of these files spell deltas
            last += head >> 4
            out += self.take(self.at + 1) + self.value(head & 15, cls.thrift_spec[last])
        self.at += 1
        self.structs += 1
        # A union has one member, known or not.
        return out + (b"" if cls.__name__ in UNIONS else unknown_tail(self.fields, last)) + STOP

    def value(self, wire: int, spec: tuple[Any, ...]) -> bytes:
        if wire in (1, 2):
            return b""
        if wire in (3, 7):
            return self.take(self.at + (1 if wire == 3 else 8))
        if wire == 8:
            size, after = read_varint(self.data, self.at)
            return self.take(after + size)
        if wire == 12:
            return self.struct(spec[2])
        if wire == 9:
            return self.list(spec[2])
        return self.take(read_varint(self.data, self.at)[1])

    def list(self, element: Any) -> bytes:
        head = self.data[self.at]
        count, after = head >> 4, self.at + 1
        if count == 15:
            count, after = read_varint(self.data, after)
        out = self.take(after)
        for _ in range(count):
            if head & 15 == 12:
                out += self.struct(element[1])
            elif head & 15 in (1, 2):
                out += self.take(self.at + 1)
            else:
                out += self.value(head & 15, ())
        return out


@each_case(
    "fields",
    [*([kind] for kind in (*UNKNOWN, UUID)), UNKNOWN],
    ids=lambda fields: fields[0][0] if len(fields) == 1 else "all",
)
def test_unknown_fields_at_every_level_of_a_footer_survive(
    fields: list[tuple[str, int, bytes]],
) -> None:
    footer = rich_footer()
    insert = Insert(footer, fields)
    newer = insert.struct(IDL.FileMetaData)
    assert insert.at == len(footer)
    assert insert.structs > 50
    value, end = decode("FileMetaData", newer)
    assert end == len(newer)
    assert encode(value) == newer
    # What is known reads as if nothing else were there, for us and for thriftpy2.
    assert as_plain(value) == judge_decodes("FileMetaData", footer)[0]
    if UUID not in fields:
        assert judge_decodes("FileMetaData", newer) == (as_plain(value), len(newer))


@each_case("name", sorted(set(STRUCTS) - UNIONS))
def test_unknown_fields_survive_in_each_struct_of_the_idl(name: str) -> None:
    data = judge_encodes(least(name))
    newer = Insert(data, [*UNKNOWN, UUID]).struct(getattr(IDL, name))
    assert len(newer) > len(data)
    assert encode(decode(name, newer)[0]) == newer


def least(name: str) -> Any:
    """Make a struct with its required fields alone."""
    cls = getattr(IDL, name)
    zero = {T_BOOL: False, T_BYTE: 0, T_DOUBLE: 0.0, 6: 0, 8: 0, 10: 0, 11: "", 18: b"", T_LIST: []}
    fields = {}
    for ttype, field_name, *rest in cls.thrift_spec.values():
        if rest[-1]:
            fields[field_name] = least(rest[0].__name__) if ttype == T_STRUCT else zero[ttype]
    if name in UNIONS:
        _, field_name, member, _ = next(iter(cls.thrift_spec.values()))
        fields[field_name] = least(member.__name__)
    return cls(**fields)


@each_case(("label", "wire", "payload"), [*UNKNOWN, UUID])
def test_a_newer_member_of_a_union_survives(label: str, wire: int, payload: bytes) -> None:
    union = field(0, 99, wire, payload) + STOP
    data = b"\x48\x01c" + b"\x6c" + union + STOP  # SchemaElement: 4 name, 10 logicalType
    value, end = decode("SchemaElement", data)
    assert (encode(value), end) == (data, len(data))
    assert value.name == b"c"


def test_an_unknown_field_that_comes_twice_stays_twice() -> None:
    again = b"\x08\xc8\x01\x01b"  # id 100 once more, which only the long header can say
    data = b"\x18\x01k" + b"\x08\xc8\x01\x01a" + again + STOP
    assert encode(decode("KeyValue", data)[0]) == data


def test_unknown_fields_in_another_order_are_put_into_ascending_order() -> None:
    first, second = b"\x08\xc8\x01\x01a", b"\x08\x90\x03\x01b"  # ids 100 and 200
    value, _ = decode("KeyValue", second + b"\x08\x02\x01k" + first + STOP)
    assert encode(value) == b"\x18\x01k" + first + second + STOP


@each_case("field_id", [0, -1, -16, -16_384, -32_768])
def test_ids_that_are_not_positive_precede_only_the_extension(field_id: int) -> None:
    odd, extension = field(1, field_id, 8, b"\x01x"), field(field_id, 32_767, 8, b"\x01e")
    data = b"\x18\x01k" + odd + extension + STOP
    value, end = decode("KeyValue", data)
    assert end == len(data)
    assert value.key == b"k"
    assert value._unknown == [(field_id, 8, b"\x01x"), (32_767, 8, b"\x01e")]
    assert encode(value) == data
    assert known_bytes("KeyValue", data) == b"\x18\x01k" + STOP


@each_case("field_id", [0, -1, -13, -14, -15, -32_768])
def test_the_short_form_counts_from_a_negative_id(field_id: int) -> None:
    """The key's id, 1, follows in the short form if at most 15 above."""
    data = field(0, field_id, 1, b"") + field(field_id, 1, 8, b"\x01k") + STOP
    value, end = decode("KeyValue", data)
    assert (value.key, end) == (b"k", len(data))
    assert as_plain(value) == judge_decodes("KeyValue", data)[0]
    some, end = decode_some("KeyValue", data, frozenset({"key"}))
    assert (some.key, end) == (b"k", len(data))
    assert struct_end(data) == len(data)


def test_some_fields_after_an_id_beyond_an_int16_are_refused() -> None:
    with pytest.raises(FormatError, match="id 32768 is out of range"):
        decode_some("KeyValue", field(0, 32_767, 1, b"") + b"\x11" + STOP, frozenset({"key"}))


def test_fields_in_another_order_keep_their_values() -> None:
    backwards = b"\x28\x01v" + b"\x08\x02\x01k" + STOP  # 2 value, then 1 key
    value, end = decode("KeyValue", backwards)
    assert end == len(backwards)
    assert (
        as_plain(value) == {"key": b"k", "value": b"v"} == judge_decodes("KeyValue", backwards)[0]
    )
    assert encode(value) == b"\x18\x01k\x18\x01v" + STOP


# --- any value, any bytes ------------------------------------------------------------------------


@each_case("name", STRUCTS)
@settings(max_examples=examples(15))
@given(data=st.data())
def test_any_value_that_thriftpy2_encodes_is_read_and_spelt_alike(
    name: str, data: st.DataObject
) -> None:
    value = data.draw(values(name))
    spelt = judge_encodes(value)
    read, end = decode(name, b"\x00\xff" + spelt + b"\x0c", 2)
    assert end == 2 + len(spelt)
    assert as_plain(read) == as_plain(value)
    assert encode(read) == spelt


def gives_struct_or_format_error(name: str, data: bytes) -> None:
    try:
        value, end = decode(name, data)
    except FormatError:
        return
    assert 0 < end <= len(data)
    # What was read can be written, and is then read as the same.
    again = encode(value)
    assert as_plain(decode(name, again)[0]) == as_plain(value)
    assert encode(decode(name, again)[0]) == again


@settings(max_examples=examples(1000))
@given(st.sampled_from(STRUCTS), st.binary(max_size=80))
def test_any_bytes_give_a_struct_or_a_format_error(name: str, data: bytes) -> None:
    gives_struct_or_format_error(name, data)


# Bytes that mean something to the protocol come more often than others.
REVEALING = st.sampled_from(
    bytes.fromhex("00 01 02 0c 10 15 16 18 19 1a 1b 1c 1d 2c 7f 80 f9 fc ff")
)


@settings(max_examples=examples(1000))
@given(st.sampled_from(STRUCTS), st.lists(REVEALING, max_size=60).map(bytes))
def test_any_protocol_bytes_give_a_struct_or_a_format_error(name: str, data: bytes) -> None:
    gives_struct_or_format_error(name, data)


@settings(max_examples=examples(400))
@given(st.data())
def test_a_damaged_footer_gives_a_struct_or_a_format_error(data: st.DataObject) -> None:
    footer = bytearray(rich_footer())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(footer) - 1))
        end = at + data.draw(st.integers(0, 3))
        footer[at:end] = data.draw(
            st.binary(max_size=3) | st.lists(REVEALING, max_size=3).map(bytes)
        )
    gives_struct_or_format_error("FileMetaData", bytes(footer))


def use_all(value: Any) -> Any:
    """Decode all that was only located in a struct; return the struct."""
    for item in set_fields(value).values():
        for struct in item if isinstance(item, list | StructList) else (item,):
            if type(struct).__name__ in STRUCTS:
                use_all(struct)
    return value


@settings(max_examples=examples(200))
@given(st.data())
def test_a_damaged_footer_that_is_decoded_on_use_gives_the_same(data: st.DataObject) -> None:
    footer = bytearray(rich_footer())
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(footer) - 1))
        footer[at : at + 1] = data.draw(st.binary(max_size=2))
    for lazy in (STATISTICS, CHUNKS):
        try:
            whole: bytes | None = encode(decode("FileMetaData", bytes(footer))[0])
        except FormatError:
            whole = None
        try:
            used: bytes | None = encode(
                use_all(decode("FileMetaData", bytes(footer), lazy=lazy)[0])
            )
        except FormatError:
            used = None
        assert used == whole


@pytest.mark.parametrize("lazy", [STATISTICS, CHUNKS])
def test_what_is_never_used_is_written_back_unchanged(lazy: int) -> None:
    footer = rich_footer()
    metadata = decode("FileMetaData", footer, lazy=lazy)[0]
    assert encode(metadata) == footer
    metadata.row_groups[-1].columns[1].file_offset = 77
    changed = decode("FileMetaData", footer)[0]
    changed.row_groups[-1].columns[1].file_offset = 77
    assert encode(metadata) == encode(changed)


@given(order=st.permutations(range(100)), used=st.integers(0, 100), changed=st.integers(0, 100))
def test_chunks_are_used_and_changed_in_any_order(
    order: list[int], used: int, changed: int
) -> None:
    footer = wide_footer()
    metadata, expected = (decode("FileMetaData", footer, lazy=lazy)[0] for lazy in (CHUNKS, 0))
    for count, index in enumerate(order[:used]):
        chunk, judge = (m.row_groups[0].columns[index] for m in (metadata, expected))
        assert chunk.meta_data.path_in_schema == judge.meta_data.path_in_schema
        if count < changed:
            chunk.meta_data.total_compressed_size = judge.meta_data.total_compressed_size = 1 << 40
    assert encode(metadata) == encode(expected)


@cache
def wide_footer() -> bytes:
    """Return the footer of a file with 100 columns, whose chunks differ in size."""
    out = io.BytesIO()
    pq.write_table(pa.table({f"c{'x' * (n % 7)}{n}": [n] for n in range(100)}), out)
    return footer_of(out.getvalue())


def test_statistics_that_were_only_located_are_read_set_and_copied() -> None:
    metadata = decode("FileMetaData", rich_footer(), lazy=STATISTICS)[0]
    mds = [chunk.meta_data for chunk in metadata.row_groups[0].columns]
    md = next(md for md in mds if md.statistics is not None)
    again = decode("FileMetaData", rich_footer(), lazy=STATISTICS)[0]
    other = again.row_groups[0].columns[mds.index(md)].meta_data
    assert encode(copy(other)) == encode(other) == encode(md)
    twin = copy(other, keep=("statistics",))
    assert encode(twin.statistics) == encode(md.statistics)
    other.statistics = None
    assert decode("ColumnMetaData", encode(other))[0].statistics is None


@each_case("step", [3, 1], quick=one_in(2))
def test_no_prefix_of_a_footer_is_a_footer(step: int) -> None:
    footer = rich_footer()
    for size in range(0, len(footer), step):
        with pytest.raises(FormatError):
            decode("FileMetaData", footer[:size])
        if size % 4:  # both share the decoder of what is kept
            continue
        with pytest.raises(FormatError):
            decode_some("FileMetaData", footer[:size], frozenset({"num_rows"}))


@settings(max_examples=examples(500))
@given(st.binary(max_size=60) | st.lists(REVEALING, max_size=60).map(bytes))
def test_some_fields_of_any_bytes_give_a_struct_or_a_format_error(data: bytes) -> None:
    try:
        value, end = decode_some("FileMetaData", data, frozenset({"version", "key_value_metadata"}))
    except FormatError:
        return
    assert end <= len(data)
    assert as_plain(value).keys() <= {"version", "key_value_metadata"}


@pytest.mark.parametrize("names", [{"version"}, {"schema", "num_rows"}, {"created_by"}, set()])
def test_some_fields_are_those_of_the_whole(names: set[str]) -> None:
    footer = rich_footer()
    whole = as_plain(decode("FileMetaData", footer)[0])
    value, end = decode_some("FileMetaData", footer, frozenset(names))
    assert as_plain(value) == {name: whole[name] for name in names}
    assert end == len(footer)


# --- hostile bytes -------------------------------------------------------------------------------


def test_required_fields_are_required() -> None:
    for name in STRUCTS:
        if name in UNIONS or judge_encodes(least(name)) == STOP:
            continue
        with pytest.raises(FormatError, match="is missing"):
            decode(name, STOP)


@each_case(
    ("name", "data", "message"),
    [
        ("KeyValue", b"\x18\x01a\x08\x02\x01b\x00", "comes twice"),
        ("SortingColumn", b"\x15\x02\x11\x01\x04\x11\x00", "comes twice"),
        ("KeyValue", b"\x15\x02\x00", "required field key is missing"),
        ("KeyValue", b"\x10\x00", "wire type 0"),
        ("KeyValue", b"\x18\x01a\x20\x00", "wire type 0 does not exist"),
        ("KeyValue", b"\x18\x01a\x2e\x00", "wire type 14 does not exist"),
        ("KeyValue", b"\x18\x01a\x2c\x10\x00\x00", "wire type 0 does not exist"),
        ("KeyValue", b"\x18\x01a\x2c\x1f\x00\x00", "wire type 15 does not exist"),
        ("KeyValue", b"\x18\x01a\x29\x10\x00", "wire type 0 does not exist"),
        ("KeyValue", b"\x18\x01a\x2c\x16" + b"\x80" * 10 + b"\x00\x00\x00", "longer than 10"),
        ("KeyValue", b"\x18\x01a\x08\xfe\xff\x03\x00\x11\x00", "id 32768 is out of range"),
        ("KeyValue", b"\x18\x01a\x08\xe2\xff\x03\x00\xf1\x00", "id 32768 is out of range"),
        ("KeyValue", b"\x18\x01a\x08\x80\x80\x04\x00\x00", "does not fit 16 bits"),
        ("KeyValue", b"\x08\x80\x80\x04\x00\x00", "does not fit 16 bits"),
        ("SortingColumn", b"\x15\xff\xff\xff\xff\x1f\x11\x11\x00", "does not fit 32 bits"),
        ("PageLocation", b"\x16" + b"\xff" * 9 + b"\x03\x15\x02\x16\x02\x00", "does not fit 64"),
        ("PageLocation", b"\x16" + b"\xff" * 10 + b"\x01\x15\x02\x16\x02\x00", "longer than 10"),
        ("ColumnIndex", b"\x19\x11\x03\x00", "not a boolean"),
        ("ColumnIndex", b"\x19\x15\x02\x00", "lists wire type 5, not 1"),
        ("ColumnOrder", b"\x00", "has 0 members"),
        ("EncryptionAlgorithm", b"\x1c\x00\x1c\x00\x00", "has 2 members"),
    ],
)
def test_what_the_protocol_forbids_is_said(name: str, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(name, data)


def test_the_largest_and_smallest_integers_survive() -> None:
    for number in (2**63 - 1, -(2**63), 2**31, -(2**31), 0, -1):
        location = IDL.PageLocation(
            offset=number, compressed_page_size=0, first_row_index=-number // 2
        )
        data = judge_encodes(location)
        value, _ = decode("PageLocation", data)
        assert value.offset == number
        assert encode(value) == data


def test_numbers_that_do_not_fit_are_not_written() -> None:
    for number in (2**31, -(2**31) - 1, 2**40):
        with pytest.raises(FormatError, match="32 bits"):
            encode(new("PageLocation", offset=0, compressed_page_size=number, first_row_index=0))
    with pytest.raises(FormatError, match="64 bits"):
        encode(new("PageLocation", offset=2**63, compressed_page_size=0, first_row_index=0))


HUGE = [2**16, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**69]


def hostile_counts(number: int) -> list[tuple[str, bytes]]:
    n = varint(number)
    return [
        ("KeyValue", b"\x18" + n + b"abc"),  # a binary
        ("FileMetaData", b"\x15\x02\x19\xfc" + n + b"\x00" * 50),  # a list of structs
        ("ColumnIndex", b"\x19\xf1" + n + b"\x01" * 50),  # of booleans
        ("ColumnIndex", b"\x19\x01\x19\xf8" + n + b"\x00" * 50),  # of binaries
        ("SizeStatistics", b"\x29\xf6" + n + b"\x00" * 50),  # of i64
        ("KeyValue", b"\x18\x01a\x28" + n + b"abc"),  # and where the IDL knows nothing:
        ("KeyValue", b"\x18\x01a\x29\xfc" + n + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x29\xf1" + n + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x2a\xf5" + n + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x2b" + n + b"\x55" + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x2b" + n + b"\x11" + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x2c\x19\xfc" + n + b"\x00" * 50),
        ("KeyValue", b"\x18\x01a\x2c\x18" + n + b"\x00" * 50),
    ]


@each_case("number", HUGE)
@each_case("case", range(len(hostile_counts(0))))
def test_a_huge_declared_count_costs_nothing(case: int, number: int) -> None:
    name, data = hostile_counts(number)[case]
    data += b"\x00" * 3
    new(name)  # loads the IDL where no test has done so
    tracemalloc.start()
    try:
        check_refusal(name, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert calls_of(lambda: check_refusal(name, data)) < 1000


def check_refusal(name: str, data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(name, data)


@each_case(
    "unit",
    [
        b"\x11", b"\x1c\x00", b"\x19\x0c", b"\x19\x1c\x00", b"\x1b\x00", b"\x19\x11\x01",
        b"\x16\x80\x00", b"\x18\x00", b"\x19\x3c\x00\x00\x00", b"\x1b\x02\xcc\x00\x00\x00\x00",
    ],
)  # fmt: skip
def test_work_grows_with_the_bytes_and_not_faster(unit: bytes) -> None:
    """Inside an unknown struct: field 3 of KeyValue, many small values, nested where they can."""

    def calls(times: int) -> int:
        data = b"\x18\x01a\x2c" + unit * times + b"\x00\x00"
        return calls_of(lambda: decode("KeyValue", data))

    few, many = calls(100), calls(1600)
    assert many <= 17 * few
    assert many <= 8 * 1600 * len(unit)


def nest_containers(kind: str, depth: int) -> bytes:
    """Return the payload of field 3 of a KeyValue: `depth` containers in each other."""
    opened, closed = {
        "structs": (b"\x1c", b"\x00"),
        "lists": (b"\x19", b""),
        "sets": (b"\x1a", b""),
        "maps": (b"\x01\xbb", b"\x00"),  # the key is a map, the value an empty one
        "lists of structs": (b"\x1c\x19", b"\x00"),
    }[kind]
    return opened * depth + b"\x00" + closed * depth


@pytest.mark.parametrize(
    ("kind", "wire"),
    [("structs", 12), ("lists", 9), ("sets", 10), ("maps", 11), ("lists of structs", 9)],
)
def test_nesting_has_a_limit_far_from_the_interpreters(kind: str, wire: int) -> None:
    def with_field(depth: int) -> bytes:
        return b"\x18\x01a" + bytes((0x20 | wire,)) + nest_containers(kind, depth) + b"\x00"

    shallow = with_field(10)
    assert encode(decode("KeyValue", shallow)[0]) == shallow
    for depth in (MAX_NESTING + 1, 1000, 100_000):
        with pytest.raises(LimitError, match="nested deeper"):
            decode("KeyValue", with_field(depth))


def test_the_deepest_nesting_allowed_fits_a_small_stack() -> None:
    data = b"\x18\x01a\x2c" + b"\x1c" * (MAX_NESTING - 2) + b"\x00" * MAX_NESTING
    value, end = decode("KeyValue", data)
    assert (encode(value), end) == (data, len(data))


# --- small parts ---------------------------------------------------------------------------------


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_varints_are_thriftpy2s(number: int) -> None:
    expected = judge_encodes(
        IDL.PageLocation(offset=number, compressed_page_size=0, first_row_index=0)
    )
    spelt = varint(zigzag(number))
    assert expected[1:].startswith(spelt)
    assert read_int(spelt, 0, 64) == (number, len(spelt))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_integers_are_held_to_their_width(bits: int) -> None:
    for number in (-(1 << bits - 1), (1 << bits - 1) - 1):
        spelt = varint(zigzag(number))
        assert read_int(spelt, 0, bits) == (number, len(spelt))
    for number in (-(1 << bits - 1) - 1, 1 << bits - 1):
        with pytest.raises(FormatError):
            read_int(varint(zigzag(number)), 0, bits)


def test_an_extension_is_set_read_replaced_and_removed() -> None:
    footer = rich_footer()
    value, _ = decode("FileMetaData", footer)
    assert extension(value) is None
    set_extension(value, b"one")
    set_extension(value, b"another")
    spelt = encode(value)
    # Before STOP: wire type 8, the zigzag of 32767, length, bytes ("Binary Protocol Extensions").
    assert spelt == footer[:-1] + b"\x08\xfe\xff\x03\x07another\x00"
    again, _ = decode("FileMetaData", spelt)
    assert extension(again) == b"another"
    assert judge_decodes("FileMetaData", spelt)[0] == judge_decodes("FileMetaData", footer)[0]
    set_extension(again, None)
    assert extension(again) is None
    assert encode(again) == footer


def test_setting_an_extension_leaves_other_unknown_fields() -> None:
    data = b"\x18\x01k" + b"\x08\xc8\x01\x01z" + b"\x08\xfe\xff\x03\x01e" + STOP
    value, _ = decode("KeyValue", data)
    assert extension(value) == b"e"
    set_extension(value, None)
    assert encode(value) == b"\x18\x01k" + b"\x08\xc8\x01\x01z" + STOP


def test_a_copy_is_one_level_deep_and_can_keep_some_fields() -> None:
    data = b"\x18\x01k\x18\x01v" + b"\x08\xc8\x01\x01z" + STOP
    value, _ = decode("KeyValue", data)
    twin = copy(value)
    twin.key = b"other"
    assert encode(value) == data
    assert encode(copy(value)) == data
    assert encode(copy(value, keep=("key",))) == b"\x18\x01k" + STOP


def test_a_restored_field_is_written_as_it_was_read() -> None:
    # Its list states the count in the long form, which `encode` does not use.
    data = b"\x15\x02\x19\xfc\x01" + b"\x48\x01r" + STOP + b"\x16\x00" + b"\x19\x0c" + STOP
    value, _ = decode("FileMetaData", data, lazy=CHUNKS)
    twin = copy(value)
    twin.schema = []
    restore_field(twin, "schema")
    assert encode(twin) == data
    assert encode(value) != data
    eager, _ = decode("FileMetaData", data)
    restore_field(eager, "schema")
    assert [element.name for element in eager.schema] == [b"r"]


@pytest.mark.parametrize("cls", OWN_CLASSES.values())
def test_the_classes_of_many_structs_have_the_fields_of_the_idl(cls: type) -> None:
    spec = getattr(IDL, cls.__name__).thrift_spec
    names = {name for _, name, *_ in spec.values()}
    assert names == {name for name in dir(cls) if not name.startswith("_")}
    fields = {name: number for number, name in enumerate(sorted(names))}
    value = new(cls.__name__, **fields)
    assert value._list_fields() == [fields[name] for _, (_, name, *_) in sorted(spec.items())]
    assert type(value) is cls
    assert set_fields(value) == set_fields(copy(value)) == fields


def test_structs_of_many_parts_are_encoded_in_order() -> None:
    pairs = [new("KeyValue", key=b"%d" % n, value=b"v") for n in range(3000)]
    locations = [
        new("PageLocation", offset=n, compressed_page_size=n, first_row_index=n)
        for n in range(3000)
    ]
    index = new("OffsetIndex", page_locations=locations)
    md = new(
        "ColumnMetaData", type=1, encodings=[3] * 9000, path_in_schema=[b"a", b"b"] * 3000,
        codec=0, num_values=1, total_uncompressed_size=1, total_compressed_size=1,
        key_value_metadata=pairs, data_page_offset=4,
    )  # fmt: skip
    for name, value in (("OffsetIndex", index), ("ColumnMetaData", md)):
        assert judge_decodes(name, encode(value))[0] == as_plain(value)


def test_no_copy_shares_its_unknown_fields_with_the_original() -> None:
    value, _ = decode("KeyValue", b"\x18\x01k" + b"\x08\xc8\x01\x01z" + STOP)
    twin = copy(value)
    set_extension(twin, b"mine")
    assert extension(value) is None


# --- fields that the IDL doesn't know ------------------------------------------------------------

WRONG_TYPE = b"\x18\x01k\x19\x15\x02\x00"  # KeyValue: key "k", and a list where value has its id


def test_a_field_of_another_type_is_skipped_and_kept() -> None:
    value, end = decode("KeyValue", WRONG_TYPE)
    assert end == len(WRONG_TYPE)
    assert (value.key, value.value) == (b"k", None)
    assert encode(value) == WRONG_TYPE


def test_setting_a_field_replaces_one_of_another_type() -> None:
    value, _ = decode("KeyValue", WRONG_TYPE)
    value.value = b"v"
    assert encode(value) == b"\x18\x01k\x18\x01v\x00"


def test_a_struct_without_unknown_fields_is_given_as_it_is() -> None:
    value = new("KeyValue", key=b"k")
    assert without_unknown(value) is value
    assert known_bytes("KeyValue", encode(value) + b"after") == encode(value) + b"after"


def page_header(**fields: object) -> bytes:
    """Return a page header with statistics, and perhaps fields of other values."""
    statistics = new("Statistics", null_count=1, max_value=b"z" * 200, is_max_value_exact=False)
    data_page = new(
        "DataPageHeader", num_values=300, encoding=0, definition_level_encoding=3,
        repetition_level_encoding=3, statistics=statistics,
    )  # fmt: skip
    sizes = {"uncompressed_page_size": 1, "compressed_page_size": 1, "crc": -5}
    return encode(new("PageHeader", type=0, data_page_header=data_page, **sizes | fields))


def test_a_struct_of_known_fields_is_known() -> None:
    assert is_known("PageHeader", page_header())


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_struct_with_an_unknown_field_at_any_level_is_not_known(levels: int) -> None:
    header = page_header()
    assert header.endswith(bytes(3))
    assert not is_known("PageHeader", header[:-levels] + b"\xf8\x01u" + header[-levels:])
    assert not is_known("PageHeader", header + b"\x00"), "bytes after the struct"


@settings(max_examples=examples(300))
@given(st.data())
def test_a_struct_that_is_known_stays_without_unknown_fields(data: st.DataObject) -> None:
    header = bytearray(page_header(crc=data.draw(st.none() | st.integers(-5, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(header) - 1))
        header[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        decode("PageHeader", bytes(header))
    except FormatError:
        return
    if is_known("PageHeader", bytes(header)):
        assert known_bytes("PageHeader", bytes(header)) == header


def test_unknown_fields_are_left_out_at_every_level() -> None:
    key, unknown = b"\x18\x01k", b"\xf8\x01u"  # field 15 more than the last
    pair = key + unknown + b"\x00"
    metadata = new("ColumnMetaData", type=1, encodings=[0], path_in_schema=[b"a"], codec=0)
    metadata.num_values = metadata.total_uncompressed_size = metadata.total_compressed_size = 1
    metadata.data_page_offset = 4
    metadata.key_value_metadata = [decode("KeyValue", pair)[0]]
    known = without_unknown(metadata)
    assert known is not None
    assert [(type(v).__name__, i) for v, i in unknown_fields(metadata)] == [("KeyValue", 16)]
    assert list(unknown_fields(known)) == []
    assert encode(known.key_value_metadata[0]) == key + b"\x00"
    assert encode(metadata.key_value_metadata[0]) == pair, "the old one is not changed"


@pytest.mark.parametrize(
    ("struct", "data", "known"),
    [
        # An unknown member of a union: the field that holds it goes, or the whole list.
        ("SchemaElement", b"\x48\x01a\x6c\x0c\x32\x15\x02\x00\x00\x00", b"\x48\x01a\x00"),
        # A unit of time that is unknown: TimeType requires one, so the logical type goes.
        ("SchemaElement", b"\x48\x01a\x6c\x7c\x11\x1c\x9c\x15\x02" + bytes(5), b"\x48\x01a\x00"),
    ],
)
def test_what_needs_an_unknown_member_goes_with_it(struct: str, data: bytes, known: bytes) -> None:
    value, end = decode(struct, data)
    assert end == len(data)
    assert encode(without_unknown(value)) == known


def test_a_struct_that_requires_an_unknown_member_can_not_be_without_it() -> None:
    header = b"\x15\x40\x1c\x9c\x15\x02\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00"
    assert without_unknown(decode("BloomFilterHeader", header)[0]) is None
    with pytest.raises(UnsupportedFormatError, match="keep_unknown_fields"):
        known_bytes("BloomFilterHeader", header)


def test_chunks_under_the_footer_key_share_what_says_so() -> None:
    crypto = new("ColumnCryptoMetaData", ENCRYPTION_WITH_FOOTER_KEY=new("EncryptionWithFooterKey"))
    data = encode(new("ColumnChunk", file_offset=0, crypto_metadata=crypto))
    lazy = [decode("ColumnChunk", data, lazy=STATISTICS)[0] for _ in range(2)]
    assert lazy[0].crypto_metadata is lazy[1].crypto_metadata
    assert [encode(chunk) for chunk in lazy] == [data, data]
    own = [decode("ColumnChunk", data)[0] for _ in range(2)]
    assert own[0].crypto_metadata is not own[1].crypto_metadata


def test_column_orders_go_together_where_one_is_unknown() -> None:
    order = b"\x9c\x15\x02\x00\x00"
    known, unknown = decode("ColumnOrder", b"\x1c\x00\x00")[0], decode("ColumnOrder", order)[0]
    value = new("FileMetaData", version=1, schema=[], num_rows=0, row_groups=[])
    value.column_orders = [known, unknown]
    stripped = without_unknown(value)
    assert stripped is not None
    assert stripped.column_orders is None


@pytest.mark.parametrize("struct", ["LogicalType", "ColumnOrder", "BloomFilterAlgorithm"])
def test_an_unknown_member_that_holds_nothing_stays(struct: str) -> None:
    value, _ = decode(struct, b"\x0c\x32\x00\x00")
    assert without_unknown(value) is value
    assert list(unknown_fields(value)) == []
