"""Read and write Avro object container files in memory: manifests, manifest lists and data files.

    "Obj" 1 | map of header values | sync marker (16)
    count | size | `size` bytes: `count` rows, compressed | sync marker      and so on

This module parses the container itself, so that it can check every length against the bytes that
exist; fastavro decodes the rows. Values keep their Avro form without logical types: a date is a
number of days, a decimal its bytes. That loses nothing, and values can be written back unchanged.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.fork_safety import cached_property
from modcrypt.key_metadata import encode_long
from modcrypt.keys import Secret
from modcrypt.tracebacks import hide_frames

MAX_AVRO = 2 << 30
"""Maximum size in bytes of an Avro file that is read into memory, and of its decompressed rows."""

MAX_DEPTH = 64
"""Maximum nesting of types in a schema, and of the JSON that describes it."""

_MAGIC = b"Obj\x01"
_SYNC = 16
_OWN = ("avro.schema", "avro.codec")
_LOT_BYTES = 4 << 20  # bytes of rows that fastavro decodes per call

MAX_RATIO, ALWAYS_EXPANDED = 64, 4 << 20
"""Maximum expansion of a block by decompression, and decompressed bytes that are always allowed.

Writers end blocks at about 64 KiB of rows. In memory a byte may become a dict of 200 bytes.
"""

LOT_VALUES = 1 << 18
"""Maximum number of values in rows that are decoded at once, without items of arrays and maps."""

MAX_EMPTY, MAX_PER_BYTE = 256, 16
"""Maximum number of values that a record may have in addition to, and per, its minimum bytes.

Without these limits, records that contain others twice could turn one byte into 2^64 values.
Items of arrays and maps may not have any values without bytes.
"""


@dataclass(frozen=True)
class AvroRows:
    """The content of an Avro file, whose rows are decoded on demand, once."""

    schema: dict[str, Any] = field(repr=False)  # the writer's schema as parsed JSON
    row: AvroType = field(repr=False)  # the type of the rows
    metadata: Mapping[str, str]  # key-value pairs of the header, except schema and codec
    # The rows, some thousands at a time. Iterating raises the errors of `read_avro`.
    lots: Iterator[list[dict[str, Any]]] = field(repr=False)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """All rows. Raises the errors of `read_avro`."""
        return [row for lot in self.lots for row in lot]


def read_avro(data: bytes, name: str, *, most: int = MAX_AVRO) -> AvroRows:
    """Read an Avro file and decode its rows: at most `most` bytes in all after decompression.

    Raises:
        FormatError: The data is not a valid Avro file. The message contains none of its values.
        LimitError: The file exceeds a size limit, or claims more rows than its bytes can hold.
        UnsupportedFormatError: The codec is not one that Iceberg uses.
    """
    avro = open_avro(data, name, most=most)
    _ = avro.records
    return avro


def open_avro(data: bytes, name: str, *, most: int = MAX_AVRO) -> AvroRows:
    """Read the header of an Avro file. Arguments and errors are those of `read_avro`."""
    if len(data) > MAX_AVRO:
        raise LimitError(f"{name}: the Avro file exceeds the limit of {MAX_AVRO} bytes")
    cursor = _Cursor(data, name)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"{name}: not an Avro file")
    header = cursor.read_pairs()
    sync = cursor.take(_SYNC)
    schema = _parse_schema(header.get("avro.schema", b""), name)
    row = _Types(name).check_record(schema)
    metadata = {
        key: value.decode(errors="replace") for key, value in header.items() if key not in _OWN
    }
    codec = header.get("avro.codec", b"null").decode(errors="replace")
    rows = max(1, LOT_VALUES // row.values)
    return AvroRows(schema, row, metadata, _read_lots(cursor, sync, codec, row.schema, most, rows))


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
        rows = map(_reveal, records)
        fastavro.writer(out, parsed, rows, codec="deflate", metadata=dict(metadata), strict=True)
    except (TypeError, ValueError, OverflowError):  # the text repeats the value, perhaps a key
        raise FormatError("a record does not fit the schema of its Avro file") from None
    return out.getvalue()


def _reveal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its secrets, and those of nested records, replaced by their values."""
    return {name: _reveal_value(value) for name, value in record.items()}


def _reveal_value(value: Any) -> Any:
    if isinstance(value, Secret):
        return value()
    return _reveal(value) if isinstance(value, dict) else value


# --- the container -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """A cursor that parses the elements of a container one after the other."""

    data: bytes = field(repr=False)
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
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
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


def _read_lots(
    cursor: _Cursor, sync: bytes, codec: str, schema: dict[str, Any], most: int, at_once: int
) -> Iterator[list[dict[str, Any]]]:
    """Decode the blocks, several small ones at once; yield at most `at_once` rows each time."""
    head = _encode_head(schema, sync)
    parts, size, total = [head], 0, 0
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
        parts += (encode_long(count), encode_long(len(rows)), rows, sync)
        size += len(rows)
        if size >= _LOT_BYTES:
            yield from _decode_rows(parts, cursor.name, at_once)
            parts, size = [head], 0
    if size:
        yield from _decode_rows(parts, cursor.name, at_once)


def _encode_head(schema: dict[str, Any], sync: bytes) -> bytes:
    """Return the header of a container of uncompressed blocks."""
    text = json.dumps(schema).encode()
    name = b"avro.schema"
    pair = encode_long(len(name)) + name + encode_long(len(text)) + text
    return _MAGIC + encode_long(1) + pair + encode_long(0) + sync


def _decode_rows(parts: list[bytes], name: str, at_once: int) -> Iterator[list[dict[str, Any]]]:
    import fastavro

    try:
        rows: Iterator[Any] = fastavro.reader(io.BytesIO(b"".join(parts)))
        while lot := list(islice(rows, at_once)):
            yield lot
    except Exception as error:  # fastavro lets through what its decoding runs into
        raise FormatError(
            f"{name}: rows of the Avro file are damaged ({type(error).__name__})"
        ) from None


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


# --- schemas -------------------------------------------------------------------------------------

_LEAST = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1
}  # fmt: skip


def _parse_schema(data: bytes, name: str) -> dict[str, Any]:
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise FormatError(f"{name}: rows of the Avro file are not records")
    return schema


class AvroType(NamedTuple):
    """A type of a schema that was checked."""

    source: Any  # its definition in the file; a text for a primitive type
    parts: tuple[AvroType, ...]  # types of its fields, items, values or branches, in order
    schema: Any  # the type without logical types and without the names in the file
    least: int  # minimum number of bytes of a value
    values: int = 1  # number of values in it, including those of its fields


class _Types:
    """A checker of schemas that also removes logical types and the names of types.

    A type that contains itself would let a few bytes nest arbitrarily deep, and items of zero bytes
    would let a few bytes stand for any number of values.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, AvroType] = {}  # types defined so far, by their names in the file

    def check_record(self, schema: dict[str, Any]) -> AvroType:
        """Return the type of the rows of a whole file."""
        plain = self._simplify(schema, "", 0)
        if not plain.least:
            raise LimitError(f"{self._name}: rows of the Avro file take no bytes")
        return plain

    def _simplify(self, schema: Any, space: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise LimitError(
                f"{self._name}: the Avro schema is nested deeper than {MAX_DEPTH} levels"
            )
        if isinstance(schema, str):
            return self._look_up(schema, space)
        if isinstance(schema, list):
            branches = tuple(self._simplify(branch, space, depth + 1) for branch in schema)
            most = max((branch.values for branch in branches), default=1)
            return AvroType(schema, branches, [branch.schema for branch in branches], 1, most)
        kind = schema.get("type") if isinstance(schema, dict) else None
        match kind:
            case "record":
                return self._simplify_record(schema, space, depth)
            case "array":
                items = self._simplify(schema.get("items"), space, depth + 1)
                self._check_values(items.values, items.least, 0)
                return AvroType(schema, (items,), {"type": "array", "items": items.schema}, 1)
            case "map":
                values = self._simplify(schema.get("values"), space, depth + 1)
                self._check_values(values.values, 1 + values.least, 0)  # a key takes a byte
                return AvroType(schema, (values,), {"type": "map", "values": values.schema}, 1)
            case "fixed":
                return self._simplify_fixed(schema, space)
            case "enum":
                symbols = schema.get("symbols")
                return self._define(schema, (), space, {"type": "enum", "symbols": symbols}, 1)
            case None:
                raise self._schema_error()
        plain = self._simplify(kind, space, depth + 1)  # with members, such as a logical type
        return plain._replace(source=schema) if isinstance(plain.source, str) else plain

    def _simplify_record(self, schema: dict[str, Any], space: str, depth: int) -> AvroType:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise self._schema_error()
        inner, members, least, values = _space(schema, space), [], 0, 1
        parts: list[AvroType] = []
        for field_ in fields:
            if not isinstance(field_, dict) or not isinstance(field_.get("name"), str):
                raise self._schema_error()
            plain = self._simplify(field_.get("type"), inner, depth + 1)
            parts.append(plain)
            members.append({"name": field_["name"], "type": plain.schema})
            least, values = least + plain.least, values + plain.values
        self._check_values(values, least, MAX_EMPTY)
        # Register the record only when it is complete, so that it cannot contain itself.
        record = {"type": "record", "fields": members}
        return self._define(schema, tuple(parts), space, record, least, values)

    def _check_values(self, values: int, least: int, empty: int) -> None:
        if values > empty + MAX_PER_BYTE * least:
            raise LimitError(
                f"{self._name}: {least} bytes of the Avro file may stand for {values} values"
            )

    def _simplify_fixed(self, schema: dict[str, Any], space: str) -> AvroType:
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise self._schema_error()
        return self._define(schema, (), space, {"type": "fixed", "size": size}, size)

    def _define(
        self, schema: dict[str, Any], parts: tuple[AvroType, ...], space: str,
        plain: dict[str, Any], least: int, values: int = 1,
    ) -> AvroType:  # fmt: skip
        """Register a named type under its name and return it."""
        name = str(schema.get("name")).rpartition(".")[2]
        known = f"t{len(self._known)}"
        defined = AvroType(schema, parts, {**plain, "name": known}, least, values)
        self._known[f"{_space(schema, space)}.{name}"] = defined._replace(schema=known)
        return defined

    def _look_up(self, name: str, space: str) -> AvroType:
        if name in _LEAST:
            return AvroType(name, (), name, _LEAST[name])
        known = self._known.get(name if "." in name else f"{space}.{name}")
        if known is None:
            raise self._schema_error()
        return known

    def _schema_error(self) -> FormatError:
        return FormatError(f"{self._name}: the schema of the Avro file is malformed")


def _space(schema: Mapping[str, Any], around: str) -> str:
    """Return the namespace of a named type, which nested types inherit."""
    before = str(schema.get("name")).rpartition(".")[0]
    return before or str(schema.get("namespace", around))
