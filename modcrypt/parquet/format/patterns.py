"""Regular expressions for usual structs in Thrift's compact protocol.

Without compilation, one call of `match` replaces dozens of steps in Python. The patterns match only
structs that a field-by-field parser accepts, and end where it ends; they leave everything unusual
to that parser: field ids in the long form, long binaries and lists, maps, deep nesting. All repeats
are possessive, so that hostile bytes cannot cause backtracking.
"""

from __future__ import annotations

import re
from functools import cache

_MAX_BINARY = 64
"""Longest usual binary in bytes: its length takes one byte, and each length is an alternative."""


def _heads(*wires: int) -> bytes:
    """Return a class of field heads: wire type in the low half, distance of ids in the high."""
    bytes_ = (b"\\x%x%x" % (delta, wire) for delta in range(1, 16) for wire in wires)
    return b"[%s]" % b"".join(bytes_)


def _varint(most: int) -> bytes:
    return b"[\\x80-\\xff]{0,%d}+[\\x00-\\x7f]" % (most - 1)


_BINARY = b"(?:%s)" % b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(_MAX_BINARY + 1))
_FLAGS = _heads(1, 2)

_FEW = range(1, 4)
_BINARIES = b"|".join(b"\\x%x8%s{%d}+" % (n, _BINARY, n) for n in _FEW)
"""One to three usual binaries with the head of their list, as for the path of a column."""


@cache
def usual_page_header() -> re.Pattern[bytes]:
    """Compile a pattern for headers with ordered fields, two struct levels, short binaries.

    Groups: type, uncompressed size, compressed size, CRC.
    """
    i32, i64 = _varint(5), _varint(9)
    flat = b"(?:%s%s|%s%s|%s%s|%s)" % (_heads(6), i64, _heads(5), i32, _heads(8), _BINARY, _FLAGS)
    inner = b"%s%s*+\\x00" % (_heads(12), flat)
    sizes = rb"\x15([\x00-\x7f])\x15(%s)\x15(%s)" % (i32, i32)
    # The struct of the page's kind: data page (id 5), dictionary page (7) or data page V2 (8),
    # each with its required numbers, so that every header that matches here also decodes.
    number = rb"\x15" + _varint(4)
    v1, dictionary, v2 = (b"(?:%s){%d}+" % (number, count) for count in (4, 2, 6))
    with_crc = rb"\x15(%s)(?:\x1c%s|\x3c%s|\x4c%s)" % (i32, v1, dictionary, v2)
    without = rb"(?:\x2c%s|\x4c%s|\x5c%s)" % (v1, dictionary, v2)
    body = b"(?:%s|%s)*+\\x00" % (flat, inner)
    filling = rb"(?:\xf8%s)?+" % _BINARY  # written by views, fifteen ids after the struct
    return re.compile(
        sizes + rb"(?:%s|%s)" % (with_crc, without) + body + filling + rb"\x00", re.DOTALL
    )


@cache
def usual_struct() -> re.Pattern[bytes]:
    """Compile a pattern for a struct as deep as a ColumnChunk with inline metadata."""
    # It takes about 30 ms to compile, which pays off for thousands of structs.
    number = _varint(10)  # skipping does not check the range
    flat = b"%s%s|%s%s|%s" % (_heads(4, 5, 6), number, _heads(8), _BINARY, _FLAGS)
    numbers = b"|".join(
        b"[\\x%x4\\x%x5\\x%x6](?:%s){%d}+" % (n, n, n, number, n) for n in range(15)
    )
    structs = b"|".join(b"\\x%xc(?:(?:%s)*+\\x00){%d}+" % (n, flat, n) for n in _FEW)
    inner = b"%s(?:%s|%s(?:%s))*+\\x00" % (_heads(12), flat, _heads(9), numbers)
    lists = b"%s(?:%s|%s|%s)" % (_heads(9), numbers, _BINARIES, structs)
    middle = b"%s(?:%s|%s|%s)*+\\x00" % (_heads(12), flat, inner, lists)
    ordered = b"(?:%s)?+" % _ordered_chunk()
    return re.compile(b"%s(?:%s|%s)*+\\x00" % (ordered, flat, middle), re.DOTALL)


def _ordered_chunk() -> bytes:
    """Return a pattern for a ColumnChunk up to the end of its metadata, as most writers write it.

    Naming the fields in their order takes half the time of finding out what comes next.
    """
    number = _varint(10)
    i32, i64, more = rb"\x15" + number, rb"\x16" + number, rb"(?:[\x16\x26\x36]%s)*+" % number
    i32s, i64s = (
        b"|".join(b"\\x%x%x%s" % (n, wire, number * n) for n in range(6)) for wire in (5, 6)
    )
    bounds = rb"(?:[\x18\x28]%s\x18%s)?+" % (_BINARY, _BINARY)
    flags = rb"[\x11\x12]{0,2}+"
    statistics = rb"[\x1c\x2c\x3c]%s%s%s%s%s\x00" % (bounds, more, bounds, flags, more)
    pages = b"|".join(b"\\x%xc%s" % (n, (i32 * 3 + rb"\x00") * n) for n in _FEW)
    bloom_filter = rb"(?:[\x16\x26]%s(?:%s)?+)?+" % (number, i32)
    sizes = rb"[\x1c\x2c\x3c](?:%s)?+(?:[\x19\x29](?:%s))*+\x00" % (i64, i64s)
    return b"".join([
        rb"\x26", number, rb"\x1c", i32, rb"\x19(?:", i32s, rb")\x19(?:", _BINARIES, b")", i32,
        i64 * 3, rb"\x26", number, more, b"(?:%s)?+" % statistics,
        rb"(?:[\x19\x29](?:%s))?+" % pages, bloom_filter, b"(?:%s)?+" % sizes, rb"\x00",
    ])  # fmt: skip


@cache
def _encrypted_chunk_head() -> re.Pattern[bytes]:
    """Compile a pattern for a ColumnChunk with a column key, up to the length of key metadata."""
    numbers = b"(?:%s%s)*+" % (_heads(4, 5, 6), _varint(10))
    return re.compile(rb"%s%s\x2c\x19(?:%s)\x18" % (numbers, _heads(12), _BINARIES), re.DOTALL)


def append_usual_ends(data: bytes, starts: list[int], count: int) -> None:
    """Append to `starts` the ends of usual structs, until there are `count` or one is unusual."""
    match, at = usual_struct().match, starts[-1]
    while len(starts) <= count and (found := match(data, at)) is not None:
        at = found.end()
        starts.append(at)


def append_chunk_ends(data: bytes, starts: list[int], count: int) -> None:
    """Append to `starts` the ends of ColumnChunks with a column key, like `append_usual_ends`.

    Their key metadata and encrypted metadata are too long for a pattern.
    """
    match, at = _encrypted_chunk_head().match, starts[-1]
    while len(starts) <= count and (head := match(data, at)) is not None:
        at = head.end()
        if (size := data[at]) > 127:
            size = size & 127 | data[at + 1] << 7
            at += 1
        at += size + 4
        if size > 16383 or data[at - 3 : at] != b"\0\0\x18":  # its length has more bytes
            return
        if (size := data[at]) > 127:
            size = size & 127 | data[at + 1] << 7
            at += 1
        at += size + 2
        if size > 16383 or data[at - 1]:
            return
        starts.append(at)
