"""Seals of tables: a writer's signature of a metadata.json, which a reader compares.

    {"format":"modcrypt-table-seal",...,"dataset":UUID,...,"content":null,
     "table_uuid":UUID,"location":"...","metadata":"v3.metadata.json","last_sequence_number":3,
     "current_snapshot_id":47,"sha256":HEX}
    {"writers":[...],"signatures":{...}}

A statement as in `kms.signing.sealed_statements`, without content, in the folder of the
metadata.json. The hash is over the whole metadata as JSON with sorted names and without white
space: a REST catalog sends the same metadata in another form. So a reader detects every change of
schemas, specs, properties, keys and snapshots. What hangs below is bound to the metadata by keys,
which readers have, too.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.io.places import Place
from modcrypt.kms.signing.ledger import Ledger
from modcrypt.kms.signing.sealed_statements import SealFormat, Statement, is_hash
from modcrypt.kms.signing.signing_keys import VerifyingKey
from modcrypt.kms.signing.trusted_writers import Trust
from modcrypt.report.json_fields import JsonFields

_NAMES = (
    "table_uuid", "location", "metadata", "last_sequence_number", "current_snapshot_id", "sha256",
)  # fmt: skip

TABLE = SealFormat("modcrypt-table-seal", _NAMES, _NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeal(JsonFields):
    """A writer's signed statement about a version of a table.

    Attributes:
        sequence: Number of the seal; store it, and pass it as `seal_at_least` next time.
        signer: Ids of the keys that signed, with commas between them.
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


def table_ledger(place: Place) -> Ledger:
    """Return the ledger of the table whose metadata.json is at a place."""
    folder = posixpath.dirname(place.path) or ("." if place.filesystem is None else "")
    return Ledger(Place(place.filesystem, folder, place.root), TABLE, "table")


def check_table_seal(
    place: Place, table: TableMetadata, signed_by: Mapping[str, VerifyingKey], at_least: int,
    needed: int = 1,
) -> TableSeal:  # fmt: skip
    """Return the seal of a version of a table.

    Raises:
        IntegrityError: There is no seal, fewer than `needed` of the keys signed it, it is an older
            one, has expired, or is the seal of another table or of other metadata.
        FormatError: The seal is signed, but malformed.
        OSError: The file system failed.
    """
    ledger = table_ledger(place)
    if (statement := ledger.read_head(Trust(signed_by, needed))) is None:
        raise IntegrityError(f"{ledger.place.address} does not exist: the table is not sealed")
    with ledger.name_errors():
        statement.check(at_least, "table", None if statement.dataset is None else table.uuid)
        seal = parse_table_seal(statement)
    if (seal.table_uuid, seal.sha256) != (table.uuid, hash_metadata(table)):
        raise IntegrityError(
            f"{table.name} is not the version that was sealed, {seal.metadata}: it was altered or "
            "rolled back, or a writer has committed and not sealed it yet"
        )
    return seal


def describe_version(place: Place, table: TableMetadata) -> dict[str, Any]:
    """Return the members of a seal that states a version of a table."""
    current = table.current
    return {
        "table_uuid": table.uuid,
        "location": table.location,
        "metadata": place.name,
        "last_sequence_number": table.last_sequence_number,
        "current_snapshot_id": None if current is None else current.id,
        "sha256": hash_metadata(table),
    }


def hash_metadata(table: TableMetadata) -> str:
    """Return the SHA-256 in hex of metadata, in whatever form a catalog sends it."""
    text = json.dumps(table.document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_table_seal(statement: Statement) -> TableSeal:
    """Return the seal in a verified statement; raise FormatError if it is malformed."""
    members = statement.members
    texts = all(isinstance(members[name], str) for name in ("table_uuid", "location", "metadata"))
    number, current = members["last_sequence_number"], members["current_snapshot_id"]
    if not texts or type(number) is not int or not (current is None or type(current) is int):
        raise FormatError("the seal of the table has members of other types")
    if not is_hash(members["sha256"]):
        raise FormatError("the seal of the table has no SHA-256 in hex")
    if statement.dataset not in (None, members["table_uuid"]):
        raise FormatError("the seal of the table has the id of another one")
    return TableSeal(sequence=statement.sequence, signer=statement.signer_ids, **members)
