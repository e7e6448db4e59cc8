"""Seals of tables: a writer's signature of a metadata.json, which a reader compares.

    {"format":"modcrypt-table-seal","version":1,"signer":...,"sequence":7,"previous":HEX,
     "table_uuid":"...","location":"...","metadata":"v3.metadata.json","last_sequence_number":3,
     "current_snapshot_id":47,"sha256":HEX}
    {"signature":"..."}

A statement as in `kms.signing.sealed_statements`, in the folder of the metadata.json. The hash is
over the whole metadata as JSON with sorted names and without white space: a REST catalog sends the
same metadata in another form. So a reader detects every change of schemas, specs, properties, keys
and snapshots. What hangs below is bound to the metadata by keys, which readers have, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.io.places import Place
from modcrypt.kms.signing.sealed_statements import (
    SEAL_NAME,
    Statement,
    check_sequence,
    encode_statement,
    is_hash,
    name_seal,
    open_statement,
    read_seal,
)
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.report.json_fields import JsonFields

FORMAT = "modcrypt-table-seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeal(JsonFields):
    """A writer's signed statement about a version of a table.

    Attributes:
        sequence: Number of the seal; store it, and pass it as `seal_at_least` next time.
        signer: Id of the key that signed.
        table_uuid, location: UUID and location of the table.
        metadata: Name of the metadata.json.
        last_sequence_number: Sequence number of the newest snapshot.
        current_snapshot_id: Id of the current snapshot; None without one.
        sha256: SHA-256 of the metadata in hex.
    """

    sequence: int
    signer: str
    table_uuid: str
    location: str
    metadata: str
    last_sequence_number: int
    current_snapshot_id: int | None
    sha256: str


def encode_table_seal(
    key: SigningKey, old: bytes | None, place: Place, table: TableMetadata
) -> bytes:
    """Return a signed seal of a metadata.json, which follows the seal `old` that was verified."""
    return encode_statement(key, FORMAT, old, _describe(place, table))


def open_table_seal(data: bytes, signed_by: Mapping[str, VerifyingKey]) -> TableSeal:
    """Verify and parse a seal; raise as `open_statement`."""
    return _parse(open_statement(data, signed_by, FORMAT, _NAMES))


def seal_place(place: Place) -> Place:
    """Return the place of the seal of the table whose metadata.json is at a place."""
    return place.beside(SEAL_NAME)


def check_table_seal(
    place: Place, table: TableMetadata, signed_by: Mapping[str, VerifyingKey], at_least: int
) -> TableSeal:
    """Return the seal of a version of a table.

    Raises:
        IntegrityError: There is no seal, none of the keys signed it, it is an older one, or it is
            the seal of other metadata.
        FormatError: The seal is signed, but malformed.
        OSError: The file system failed.
    """
    data = read_seal(seal_place(place))
    if data is None:
        raise IntegrityError(f"{seal_place(place).path} does not exist: the table is not sealed")
    with name_seal(seal_place(place)):
        statement = open_statement(data, signed_by, FORMAT, _NAMES)
        check_sequence(statement, at_least, "table")
        seal = _parse(statement)
    check_sealed_version(seal, table)
    return seal


def check_sealed_version(seal: TableSeal, table: TableMetadata) -> None:
    """Raise IntegrityError if a seal is that of other metadata."""
    if (seal.table_uuid, seal.sha256) != (table.uuid, _hash_metadata(table)):
        raise IntegrityError(
            f"{table.name} is not the version that was sealed, {seal.metadata}: it was altered or "
            "rolled back, or a writer has committed and not sealed it yet"
        )


def _describe(place: Place, table: TableMetadata) -> dict[str, Any]:
    current = table.current
    return {
        "table_uuid": table.uuid,
        "location": table.location,
        "metadata": place.name,
        "last_sequence_number": table.last_sequence_number,
        "current_snapshot_id": None if current is None else current.id,
        "sha256": _hash_metadata(table),
    }


_NAMES = [
    "table_uuid", "location", "metadata", "last_sequence_number", "current_snapshot_id", "sha256"
]  # fmt: skip


def _hash_metadata(table: TableMetadata) -> str:
    text = json.dumps(table.document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(statement: Statement) -> TableSeal:
    members = statement.members
    texts = all(isinstance(members[name], str) for name in ("table_uuid", "location", "metadata"))
    number, current = members["last_sequence_number"], members["current_snapshot_id"]
    if not texts or type(number) is not int or not (current is None or type(current) is int):
        raise FormatError("the seal of the table has members of other types")
    if not is_hash(members["sha256"]):
        raise FormatError("the seal of the table has no SHA-256 in hex")
    return TableSeal(
        sequence=statement.sequence, signer=statement.signer.hex_id, **statement.members
    )
