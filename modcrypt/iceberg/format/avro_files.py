"""Avro object container files, in memory: what manifests and manifest lists are, and data may be.

    "Obj" 1 | map of header values | sync marker (16)
    count | size | `size` bytes: `count` rows, compressed | sync marker      and so on

The container is taken apart here, so that every length is held against the bytes that there are;
fastavro decodes the rows. Values come as Avro has them, without its logical types: a date is a
number of days, a decimal its bytes. That loses nothing, and is written back as it is.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.keys import Secret
from modcrypt.tracebacks import hide_frames

__all__ = ["AvroFile", "AvroRows", "open_avro", "read_avro", "write_avro"]

MAX_AVRO = 2 << 30
"""Bytes of the longest Avro file that is read into memory, and of what its blocks decompress to."""

MAX_DEPTH = 64
"""Types within types, and schemas of it."""

_MAGIC = b"Obj\x01"
_SYNC = 16
_OWN = ("avro.schema", "avro.codec")
_LOT = 4 << 20  # bytes of rows that are decoded at once


@dataclass(frozen=True)
class AvroFile:
    """What an Avro file holds.

    Attributes:
        schema: the writer's, as JSON has it.
        metadata: key-value pairs of the header, but for schema and codec.
        records: the rows.
    """

    schema: dict[str, Any] = field(repr=False)
    metadata: Mapping[str, str]
    records: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class AvroRows:
    """An Avro file whose rows are yet to be decoded.

    Attributes:
        schema, metadata: as of `AvroFile`.
        lots: the rows, some thousands at a time; raises as `read_avro`.
    """

    schema: dict[str, Any] = field(repr=False)
    metadata: Mapping[str, str]
    lots: Iterator[list[dict[str, Any]]] = field(repr=False)


def read_avro(data: bytes, name: str, *, most: int = MAX_AVRO) -> AvroFile:
    """Read an Avro file.

    Args:
        data: it.
        name: of the file, for messages.
        most: bytes that all of its rows may take, decompressed.

    Raises:
        FormatError: it is none; no message has any of its values.
        LimitError: it is larger, or says that it has more, than is read.
        UnsupportedFormatError: a codec that Iceberg does not have.
    """
    opened = open_avro(data, name, most=most)
    return AvroFile(opened.schema, opened.metadata, [row for lot in opened.lots for row in lot])


def open_avro(data: bytes, name: str, *, most: int = MAX_AVRO) -> AvroRows:
    """Read the header of an Avro file; arguments and errors as of `read_avro`."""
    if len(data) > MAX_AVRO:
        raise LimitError(f"{name}: an Avro file of more than {MAX_AVRO} bytes")
    cursor = _Cursor(data, name)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"{name}: no Avro file")
    header = cursor.pairs()
    sync = cursor.take(_SYNC)
    schema = _schema(header.get("avro.schema", b""), name)
    plain = _Types(name).plain_record(schema)
    told = {key: value.decode(errors="replace") for key, value in header.items() if key not in _OWN}
    codec = header.get("avro.codec", b"null").decode(errors="replace")
    return AvroRows(schema, told, _lots(cursor, sync, codec, plain, most))


@hide_frames
def write_avro(
    schema: Mapping[str, Any], records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]
) -> bytes:
    """Write an Avro file, compressed by deflate, as Iceberg's Java does by default.

    A `Secret` in a record is written as what it holds.

    Raises:
        FormatError: a record does not fit the schema.
    """
    import fastavro

    out = io.BytesIO()
    parsed = fastavro.parse_schema(dict(schema))
    # fastavro adds members of its own to a schema that it has parsed, which readers pass over.
    try:
        rows = map(_revealed, records)
        fastavro.writer(out, parsed, rows, codec="deflate", metadata=dict(metadata), strict=True)
    except (TypeError, ValueError, OverflowError):  # whose text repeats the value: perhaps a key
        raise FormatError("a record does not fit the schema of its Avro file") from None
    return out.getvalue()


def _revealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its secrets, and those of records inside it, as they are written."""
    return {name: _revealed_value(value) for name, value in record.items()}


def _revealed_value(value: Any) -> Any:
    if isinstance(value, Secret):
        return value()
    return _revealed(value) if isinstance(value, dict) else value


# --- the container -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """Takes a container apart."""

    data: bytes = field(repr=False)
    name: str
    at: int = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise FormatError(f"{self.name}: an Avro file that was cut short, or a length is wrong")
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
        raise FormatError(f"{self.name}: an Avro file with a number of more than 64 bits")

    def pairs(self) -> dict[str, bytes]:
        """Read a map of bytes: blocks of pairs, up to an empty one."""
        found: dict[str, bytes] = {}
        while count := self.long():
            if count < 0:  # followed by the size of the block, which readers may skip
                count = -count
                self.long()
            for _ in range(count):  # each takes a byte at least, or it ends here
                key = self.take(self.long()).decode(errors="replace")
                found[key] = self.take(self.long())
        return found

    @property
    def is_done(self) -> bool:
        return self.at == len(self.data)


def _lots(
    cursor: _Cursor, sync: bytes, codec: str, schema: dict[str, Any], most: int
) -> Iterator[list[dict[str, Any]]]:
    """Decode the blocks, several of them at once where they are small."""
    head = _head(schema, sync)
    parts, size, total = [head], 0, 0
    while not cursor.is_done:
        count, stored = cursor.long(), cursor.long()
        rows = _decompressed(cursor.take(stored), codec, cursor.name, most - total)
        if cursor.take(_SYNC) != sync:
            raise FormatError(f"{cursor.name}: an Avro file whose blocks are damaged")
        total += len(rows)
        if not 0 <= count <= len(rows) or total > most:  # no row takes less than a byte
            raise LimitError(f"{cursor.name}: an Avro file that says it has more than it can")
        parts += (_spelt(count), _spelt(len(rows)), rows, sync)
        size += len(rows)
        if size >= _LOT:
            yield _decoded(parts, cursor.name)
            parts, size = [head], 0
    if size:
        yield _decoded(parts, cursor.name)


def _head(schema: dict[str, Any], sync: bytes) -> bytes:
    """Give the header of a container of uncompressed blocks."""
    text = json.dumps(schema).encode()
    name = b"avro.schema"
    pair = _spelt(len(name)) + name + _spelt(len(text)) + text
    return _MAGIC + _spelt(1) + pair + _spelt(0) + sync


def _spelt(number: int) -> bytes:
    """Spell a count as Avro does: zigzag, seven bits a byte, the lowest first."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _decoded(parts: list[bytes], name: str) -> list[dict[str, Any]]:
    import fastavro

    try:
        return list(fastavro.reader(io.BytesIO(b"".join(parts))))  # type: ignore[arg-type]
    except Exception as error:  # fastavro lets through what its decoding runs into
        raise FormatError(
            f"{name}: an Avro file whose rows are damaged ({type(error).__name__})"
        ) from None


def _decompressed(data: bytes, codec: str, name: str, most: int) -> bytes:
    """Decompress a block; the codecs are those of Iceberg (`write.avro.compression-codec`)."""
    try:
        if codec == "null":
            return data
        if codec == "deflate":
            return _inflated(data, most)
        if codec == "zstandard":
            return _unzstd(data, most)
        if codec == "snappy":
            return _unsnapped(data, most)
    except Exception as error:
        if isinstance(error, LimitError):
            raise LimitError(f"{name}: {error}") from None
        raise FormatError(f"{name}: an Avro file whose blocks don't decompress") from None
    raise UnsupportedFormatError(f"{name}: an Avro file compressed by {codec[:20]!r}")


def _inflated(data: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(-15)
    found = inflater.decompress(data, most + 1)
    if len(found) > most:
        raise LimitError("a block of an Avro file that is too large")
    if not inflater.eof:
        raise ValueError("cut short")
    return found


def _unzstd(data: bytes, most: int) -> bytes:
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        found: bytes = stream.read(most)
        if stream.read(1):
            raise LimitError("a block of an Avro file that is too large")
    return found


def _unsnapped(data: bytes, most: int) -> bytes:
    """Undo Snappy: its length comes first, and Avro puts the CRC-32 of the plaintext last."""
    import pyarrow as pa

    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > min(most, 64 * len(data)):  # which no Snappy reaches
        raise LimitError("a block of an Avro file that is too large")
    found: bytes = pa.decompress(data[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
        raise ValueError("checksum")
    return found


# --- schemas -------------------------------------------------------------------------------------

_LEAST = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1
}  # fmt: skip


def _schema(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("type") != "record":
        raise FormatError(f"{name}: an Avro file whose rows are no records")
    return found


class _Types:
    """Checks a schema, and gives it without logical types and without the names of its types.

    A type that contains itself would let a few bytes nest as deep as they like, and items of no
    bytes would let a few bytes stand for any number of them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, tuple[str, int]] = {}  # what is defined, to its name here and bytes

    def plain_record(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Give the schema of a whole file."""
        found, least = self._plain(schema, "", 0)
        if not least:
            raise LimitError(f"{self._name}: an Avro file whose rows take no bytes")
        assert isinstance(found, dict)
        return found

    def _plain(self, schema: Any, space: str, depth: int) -> tuple[Any, int]:
        """Give a plain type, and the least bytes that a value of it takes."""
        if depth > MAX_DEPTH:
            raise LimitError(f"{self._name}: an Avro schema nested deeper than {MAX_DEPTH}")
        if isinstance(schema, str):
            return self._named(schema, space)
        if isinstance(schema, list):
            return [self._plain(one, space, depth + 1)[0] for one in schema], 1
        kind = schema.get("type") if isinstance(schema, dict) else None
        match kind:
            case "record":
                return self._record(schema, space, depth)
            case "array":
                items, least = self._plain(schema.get("items"), space, depth + 1)
                if not least:
                    raise LimitError(f"{self._name}: an Avro file with items that take no bytes")
                return {"type": "array", "items": items}, 1
            case "map":
                values, _ = self._plain(schema.get("values"), space, depth + 1)
                return {"type": "map", "values": values}, 1
            case "fixed":
                return self._fixed(schema, space)
            case "enum":
                name = self._defined(schema, space, 1)
                return {"type": "enum", "name": name, "symbols": schema.get("symbols")}, 1
            case None:
                raise self._malformed()
        return self._plain(kind, space, depth + 1)  # a type with members, such as a logical one

    def _record(self, schema: dict[str, Any], space: str, depth: int) -> tuple[Any, int]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise self._malformed()
        inner, found, total = _space(schema, space), [], 0
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise self._malformed()
            plain, least = self._plain(one.get("type"), inner, depth + 1)
            found.append({"name": one["name"], "type": plain})
            total += least
        # Known only now that it is complete, so that none contains itself.
        name = self._defined(schema, space, total)
        return {"type": "record", "name": name, "fields": found}, total

    def _fixed(self, schema: dict[str, Any], space: str) -> tuple[Any, int]:
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise self._malformed()
        return {"type": "fixed", "name": self._defined(schema, space, size), "size": size}, size

    def _defined(self, schema: dict[str, Any], space: str, least: int) -> str:
        name = str(schema.get("name")).rpartition(".")[2]
        known = f"t{len(self._known)}"
        self._known[f"{_space(schema, space)}.{name}"] = known, least
        return known

    def _named(self, name: str, space: str) -> tuple[str, int]:
        if name in _LEAST:
            return name, _LEAST[name]
        known = self._known.get(name if "." in name else f"{space}.{name}")
        if known is None:
            raise self._malformed()
        return known

    def _malformed(self) -> FormatError:
        return FormatError(f"{self._name}: an Avro file with a schema that is none")


def _space(schema: Mapping[str, Any], around: str) -> str:
    """Give the namespace of a named type, which types within it inherit."""
    before = str(schema.get("name")).rpartition(".")[0]
    return before or str(schema.get("namespace", around))
