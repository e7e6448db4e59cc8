"""Read and write Avro object container files in memory: manifests, manifest lists and data files.

    "Obj" 1 | map of header values | sync marker (16)
    count | size | `size` bytes: `count` rows, compressed | sync marker      and so on

This module parses the container itself, so that it can check every length against the bytes that
exist; fastavro decodes the rows. Values keep their Avro form without logical types: a date is a
number of days, a decimal its bytes. That loses nothing, and values can be written back unchanged.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_schemas import AvroType, CheckedSchema, check_schema
from modcrypt.keys import Secret
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

MAX_AVRO = 2 << 30
"""Maximum size in bytes of an Avro file that is read into memory, and of its decompressed rows."""

_MAGIC = b"Obj\x01"
_SYNC = 16
_OWN = ("avro.schema", "avro.codec")
_LOT_BYTES = 4 << 20  # bytes of blocks after which decoded rows are passed on

MAX_RATIO, ALWAYS_EXPANDED = 64, 4 << 20
"""Maximum expansion of a block by decompression, and decompressed bytes that are always allowed.

Writers end blocks at about 64 KiB of rows. In memory a byte may become a dict of 200 bytes.
"""

LOT_VALUES = 1 << 18
"""Maximum number of values in rows that are decoded at once, without items of arrays and maps."""


@dataclass(frozen=True)
class AvroRows:
    """The content of an Avro file, whose rows are decoded on demand, once."""

    checked: CheckedSchema = field(repr=False)  # the writer's schema
    metadata: Mapping[str, str]  # key-value pairs of the header, except schema and codec
    # The number of rows and the decompressed bytes of each block, to be iterated once. Raises the
    # errors of `read_avro`.
    blocks: Iterator[tuple[int, bytes]] = field(repr=False)
    name: str  # name of the file for errors

    @property
    def schema(self) -> Mapping[str, Any]:
        """The writer's schema as parsed JSON."""
        return self.checked.parsed

    @property
    def row(self) -> AvroType:
        """The type of the rows."""
        return self.checked.row

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows one by one. Iterating raises the errors of `read_avro`."""
        for count, data in self.blocks:
            yield from _decode_rows(count, data, self.row.schema, self.name)

    @property
    def lots(self) -> Iterator[list[dict[str, Any]]]:
        """The rows, some thousands at a time. Iterating raises the errors of `read_avro`."""
        at_once = max(1, LOT_VALUES // self.row.values)
        lot: list[dict[str, Any]] = []
        size = 0
        for count, data in self.blocks:
            for row in _decode_rows(count, data, self.row.schema, self.name):
                lot.append(row)
                if len(lot) >= at_once:
                    yield lot
                    lot, size = [], 0
            size += len(data)
            if size >= _LOT_BYTES:
                yield lot
                lot, size = [], 0
        if lot:
            yield lot

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """All rows. Raises the errors of `read_avro`."""
        return list(self.rows)


def read_avro(data: bytes, name: str) -> AvroRows:
    """Read an Avro file and decode its rows.

    Raises:
        FormatError: The data is not a valid Avro file. The message contains none of its values.
        LimitError: The file exceeds a size limit, or claims more rows than its bytes can hold.
        UnsupportedFormatError: The codec is not one that Iceberg uses.
    """
    avro = open_avro(data, name)
    _ = avro.records
    return avro


class Sliceable(Protocol):
    """Bytes of a file, in memory or read when they are asked for."""

    def __len__(self) -> int:
        """Return the number of bytes."""

    def __getitem__(self, where: slice, /) -> bytes:
        """Return the bytes of a slice."""


def open_avro(data: Sliceable, name: str, *, most: int = MAX_AVRO) -> AvroRows:
    """Read the header of an Avro file. Raises the errors of `read_avro`.

    Its rows may have `most` bytes in all after decompression.
    """
    if len(data) > MAX_AVRO:
        raise LimitError(f"{name}: the Avro file exceeds the limit of {MAX_AVRO} bytes")
    cursor = _Cursor(data, name)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"{name}: not an Avro file")
    header = cursor.read_pairs()
    sync = cursor.take(_SYNC)
    metadata = {
        key: value.decode(errors="replace") for key, value in header.items() if key not in _OWN
    }
    codec = header.get("avro.codec", b"null").decode(errors="replace")
    checked = check_schema(header.get("avro.schema", b""), name)
    return AvroRows(checked, metadata, _read_blocks(cursor, sync, codec, most), name)


@hide_frames
def write_avro(
    schema: Mapping[str, Any], records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]
) -> bytes:
    """Encode records as an Avro file, compressed with deflate, the default of Iceberg's Java.

    The value of a `Secret` in a record is written in plaintext. Raise FormatError if a record does
    not fit the schema.
    """
    import fastavro

    out = io.BytesIO()
    parsed = fastavro.parse_schema(dict(schema))
    # fastavro adds members of its own to a parsed schema; readers ignore them.
    try:
        rows = map(_reveal, map(dict, records))
        fastavro.writer(out, parsed, rows, codec="deflate", metadata=dict(metadata), strict=True)
    except (TypeError, ValueError, OverflowError):  # the text repeats the value, perhaps a key
        raise FormatError("a record does not fit the schema of its Avro file") from None
    return out.getvalue()


def _reveal(value: Any) -> Any:
    """Return a value with its secrets, and those of nested records, replaced by their values."""
    if isinstance(value, dict):
        return {name: _reveal(member) for name, member in value.items()}
    return value() if isinstance(value, Secret) else value


@dataclass(slots=True)
class _Cursor:
    data: Sliceable = field(repr=False)
    name: str
    at: int = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise FormatError(
                f"{self.name}: the Avro file is truncated, or a length in it is wrong"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def read_long(self) -> int:
        value = 0
        for number, byte in enumerate(self.data[self.at : self.at + 10]):
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                self.at += number + 1
                return value >> 1 ^ -(value & 1)
        self.take(10)  # raises if the file ends here
        raise FormatError(f"{self.name}: the Avro file has a number of more than 64 bits")

    def read_pairs(self) -> dict[str, bytes]:
        """Read a map of bytes: blocks of pairs, ended by an empty block."""
        values: dict[str, bytes] = {}
        while count := self.read_long():
            if count < 0:  # the block's size follows; readers may skip it
                count = -count
                self.read_long()
            for _ in range(count):  # each pair takes at least a byte, or take() raises
                key = self.take(self.read_long()).decode(errors="replace")
                values[key] = self.take(self.read_long())
        return values

    @property
    def is_done(self) -> bool:
        return self.at == len(self.data)


def _read_blocks(
    cursor: _Cursor, sync: bytes, codec: str, most: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the number of rows and the decompressed bytes of each block."""
    total = 0
    while not cursor.is_done:
        count, stored = cursor.read_long(), cursor.read_long()
        limit = min(most - total, max(ALWAYS_EXPANDED, MAX_RATIO * stored))
        rows = _decompress(cursor.take(stored), codec, cursor.name, limit)
        if cursor.take(_SYNC) != sync:
            raise FormatError(f"{cursor.name}: blocks of the Avro file are damaged")
        total += len(rows)
        if not 0 <= count <= len(rows) or total > most:  # every row takes at least a byte
            raise LimitError(
                f"{cursor.name}: the Avro file claims more rows than its bytes can hold"
            )
        yield count, rows


def _decode_rows(count: int, data: bytes, schema: Any, name: str) -> Iterator[dict[str, Any]]:
    """Decode the rows of a block one by one; it must contain exactly `count` rows."""
    stream = io.BytesIO(data)
    with _as_format_errors(name):
        read = _make_reader(stream, schema)
        for _ in range(count):
            yield read()
    if stream.tell() != len(data):
        raise FormatError(f"{name}: a block of the Avro file is longer than its rows")


def block_decoder(avro: AvroRows, data: bytes) -> Callable[[int], tuple[dict[str, Any], int]]:
    """Return a function that decodes the row at an offset of a block.

    It returns the row and the offset of its end, and raises FormatError if the row is damaged.
    """
    stream = io.BytesIO(data)
    read = _make_reader(stream, avro.row.schema)

    def decode(at: int) -> tuple[dict[str, Any], int]:
        stream.seek(at)
        with _as_format_errors(avro.name):
            return read(), stream.tell()

    return decode


def _make_reader(stream: io.BytesIO, schema: Any) -> Callable[[], dict[str, Any]]:
    import fastavro

    read: Any = fastavro.schemaless_reader
    return partial(read, stream, schema, None)


@contextmanager
def _as_format_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # fastavro lets through what its decoding runs into
        kind = type(error).__name__
        raise FormatError(f"{name}: rows of the Avro file are damaged ({kind})") from None


_ONE_SHOT = 16 << 10
"""Most bytes of a block that zlib inflates in one call, which takes two thirds of the time. No
limit can end the call, but these bytes become 16 MiB at most."""


def _decompress(data: bytes, codec: str, name: str, most: int) -> bytes:
    """Decompress a block. The codecs are those of Iceberg (`write.avro.compression-codec`)."""
    try:
        if codec == "null":
            return data
        if codec == "deflate":
            return _inflate(data, most)
        if codec == "zstandard":
            return _decompress_zstd(data, most)
        if codec == "snappy":
            return _decompress_snappy(data, most)
    except Exception as error:
        if isinstance(error, LimitError):
            raise LimitError(f"{name}: {error}") from None
        raise FormatError(f"{name}: blocks of the Avro file cannot be decompressed") from None
    raise UnsupportedFormatError(
        f"{name}: unsupported compression codec {codec[:20]!r} of an Avro file"
    )


def _inflate(data: bytes, most: int) -> bytes:
    if len(data) <= _ONE_SHOT:
        plain = zlib.decompress(data, -15, 8 * len(data))
        if len(plain) > most:
            raise LimitError("a block of an Avro file that is too large")
        return plain
    inflater = zlib.decompressobj(-15)
    plain = inflater.decompress(data, most + 1)
    if len(plain) > most:
        raise LimitError("a block of an Avro file that is too large")
    if not inflater.eof:
        raise ValueError("cut short")
    return plain


def _decompress_zstd(data: bytes, most: int) -> bytes:
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        plain: bytes = stream.read(most)
        if stream.read(1):
            raise LimitError("a block of an Avro file that is too large")
    return plain


def _decompress_snappy(data: bytes, most: int) -> bytes:
    """Decompress Snappy: the length comes first, and Avro appends the CRC-32 of the plaintext."""
    import pyarrow as pa

    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > min(most, 64 * len(data)):  # Snappy never expands data that much
        raise LimitError("a block of an Avro file that is too large")
    plain: bytes = pa.decompress(data[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise ValueError("checksum")
    return plain
