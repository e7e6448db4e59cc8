"""Avro object container files, in memory: what manifests and manifest lists are, and data may be.

fastavro reads and writes them; what it raises for bytes that are none becomes a FormatError.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from modcrypt.errors import FormatError, LimitError

__all__ = ["AvroFile", "read_avro", "write_avro"]

MAX_AVRO = 2 << 30
"""Bytes of the longest Avro file that is read into memory."""

_OWN = ("avro.schema", "avro.codec")


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


def read_avro(data: bytes, name: str) -> AvroFile:
    """Read an Avro file.

    Raises:
        FormatError: it is none; no message has any of its values.
        LimitError: it is larger than any that is read.
    """
    if len(data) > MAX_AVRO:
        raise LimitError(f"{name}: an Avro file of more than {MAX_AVRO} bytes")
    try:
        reader = fastavro.reader(io.BytesIO(data))
        records = list(reader)
        schema = json.loads(reader.metadata["avro.schema"])
    except Exception as error:  # fastavro lets through what its decoding runs into, and codecs
        raise FormatError(
            f"{name}: no Avro file, or a damaged one ({type(error).__name__})"
        ) from None
    if not all(isinstance(one, dict) for one in records) or not isinstance(schema, dict):
        raise FormatError(f"{name}: an Avro file whose rows are no records")
    told = {key: str(value) for key, value in reader.metadata.items() if key not in _OWN}
    return AvroFile(schema, told, records)  # type: ignore[arg-type]  # they are dicts


def write_avro(
    schema: Mapping[str, Any], records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]
) -> bytes:
    """Write an Avro file, compressed by deflate, as Iceberg's Java does by default.

    Raises:
        ValueError: a record does not fit the schema.
    """
    out = io.BytesIO()
    parsed = fastavro.parse_schema(dict(schema))
    # fastavro adds members of its own to a schema that it has parsed, which readers pass over.
    fastavro.writer(out, parsed, records, codec="deflate", metadata=dict(metadata), strict=True)
    return out.getvalue()
