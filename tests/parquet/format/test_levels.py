"""Levels in clear, as parquet-java writes them, are held against the encrypted header."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.parquet.format.idl import encode, new
from modcrypt.parquet.format.levels import Levels, find_contradiction


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def encode_levels(levels: list[int], highest: int, runs: random.Random) -> bytes:
    """Spell levels as runs of both kinds, value by value (Parquet "RLE/Bit-Packing Hybrid")."""
    width, out, at = highest.bit_length(), bytearray(), 0
    while at < len(levels):
        same = at
        while same < len(levels) and levels[same] == levels[at]:
            same += 1
        if same - at >= 8 or (runs.random() < 0.3):
            count = runs.randint(1, same - at)
            out += varint(count << 1) + levels[at].to_bytes((width + 7) // 8, "little")
            at += count
            continue
        groups = runs.randint(1, 3)
        part = levels[at : at + 8 * groups]
        if len(part) < 8 * groups:
            groups = -(-len(part) // 8)
        bits = 0
        for n, level in enumerate(part):
            for bit in range(width):
                bits |= (level >> bit & 1) << (n * width + bit)
        # What pads the last group is nobody's level, whatever it is.
        for n in range(len(part), 8 * groups):
            bits |= (highest * runs.randint(0, 1)) << (n * width)
        out += varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
        at += len(part)
    return bytes(out)


def header(values: int, nulls: int, rows: int, repetition: bytes, definition: bytes) -> bytes:
    v2 = new(
        "DataPageHeaderV2",
        num_values=values,
        num_nulls=nulls,
        num_rows=rows,
        encoding=0,
        definition_levels_byte_length=len(definition),
        repetition_levels_byte_length=len(repetition),
    )
    return encode(
        new(
            "PageHeader",
            type=3,
            uncompressed_page_size=0,
            compressed_page_size=0,
            data_page_header_v2=v2,
        )
    )


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 300), st.integers(0, 2**32), st.data())
def test_levels_are_counted(
    max_definition: int, max_repetition: int, count: int, seed: int, data: st.DataObject
) -> None:
    runs = random.Random(seed)
    definition = [runs.choice((0, max_definition)) for _ in range(count)]
    repetition = [0, *(runs.randint(0, max_repetition) for _ in range(count - 1))]
    nulls, rows = count - definition.count(max_definition), repetition.count(0)
    r = encode_levels(repetition, max_repetition, runs) if max_repetition else b""
    d = encode_levels(definition, max_definition, runs)
    levels = Levels(max_definition, max_repetition, counts_nulls=True)
    clear = memoryview(r + d)
    assert find_contradiction(levels, header(count, nulls, rows, r, d), clear) is None
    said = find_contradiction(levels, header(count, nulls + 1, rows, r, d), clear)
    assert said == f"its plaintext levels make {nulls} nulls, its header says {nulls + 1}"
    if max_repetition:
        said = find_contradiction(levels, header(count, nulls, rows + 1, r, d), clear)
        assert said == f"its plaintext levels make {rows} rows, its header says {rows + 1}"


def test_a_writer_that_counts_no_nulls_is_believed() -> None:
    """With statistics off, parquet-java writes 0."""
    definition = encode_levels([1, 0, 1, 0], 1, random.Random(0))
    said = header(4, 0, 4, b"", definition)
    assert (
        find_contradiction(Levels(1, 0, counts_nulls=False), said, memoryview(definition)) is None
    )
    assert (
        find_contradiction(Levels(1, 0, counts_nulls=True), said, memoryview(definition))
        is not None
    )


@pytest.mark.parametrize("definition", [b"", b"\x03", b"\x00\x00", b"\xff" * 9, b"\x02\x01"])
def test_bytes_that_are_no_levels_are_reported(definition: bytes) -> None:
    said = header(4, 0, 4, b"", definition)
    found = find_contradiction(Levels(1, 0, counts_nulls=True), said, memoryview(definition))
    assert found == "its plaintext levels cannot be decoded"


@given(st.binary(max_size=60), st.integers(1, 300), st.integers(1, 9), st.integers(0, 5))
def test_any_bytes_are_judged(clear: bytes, count: int, definition: int, repetition: int) -> None:
    border = len(clear) // 2
    said = header(count, 0, count, clear[:border], clear[border:])
    find_contradiction(Levels(definition, repetition, counts_nulls=True), said, memoryview(clear))
