"""Seal a table: sign its metadata.json, so that readers detect what others have changed."""

from __future__ import annotations

from collections.abc import Iterable

from modcrypt.errors import CommitConflictError, IntegrityError
from modcrypt.iceberg.read.table_seals import (
    TableSeal,
    encode_table_seal,
    open_table_seal,
    seal_place,
)
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.kms.signing.sealed_statements import name_seal, read_seal, replace_seal
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, check_verifying_keys


def seal_table(
    table: TableVersion,
    key: SigningKey,
    *,
    signed_by: Iterable[VerifyingKey] = (),
    seal_at_least: int = 0,
) -> TableSeal:
    """Sign the metadata.json of a version of a table, in a new seal that replaces the old one.

    The seal is over the version that `table` is, as a commit returned it, or `open_table` with
    `signed_by`: not over what others may have put in its place.

    Args:
        table: The current version of the table.
        key: Key that signs.
        signed_by: Keys of other writers who may have signed the old seal.
        seal_at_least: Number that the old seal must have at least; 0 accepts tables without one.

    Raises:
        IntegrityError: The old seal is signed by none of these keys, is missing or too old, or is
            that of another table or a newer version.
        CommitConflictError: Another writer has committed or sealed meanwhile; nothing changed.
        ModcryptError, OSError: The catalog or the file system failed.
    """
    known = check_verifying_keys((key.verifier, *signed_by))
    place = seal_place(table.place)
    old = read_seal(place)
    with name_seal(place):
        former = None if old is None else open_table_seal(old, known)
    _check_follows(table, former, seal_at_least)
    data = encode_table_seal(key, old, table.place, table.metadata)
    current = table.versions.read(table.metadata)
    same = current.metadata.document == table.metadata.document
    if current.place.path != table.place.path or not same:
        raise CommitConflictError(
            f"{table.place.path} is not the current version of the table any more: open the table "
            "again, check what has changed, and seal it"
        )
    replace_seal(place, old, data)
    return open_table_seal(data, known)


def _check_follows(table: TableVersion, old: TableSeal | None, at_least: int) -> None:
    """Raise IntegrityError unless the version may follow the one that was sealed before."""
    metadata, name = table.metadata, table.place.path
    if (0 if old is None else old.sequence) < at_least:
        raise IntegrityError(
            f"{name}: the old seal is missing, or older than number {at_least}, which was seen "
            "before: the table was rolled back"
        )
    if old is None:
        return
    if metadata.uuid != old.table_uuid:
        raise IntegrityError(f"{name}: the old seal is that of another table, {old.table_uuid}")
    if metadata.last_sequence_number < old.last_sequence_number:
        raise IntegrityError(
            f"{name}: the table is at sequence number {metadata.last_sequence_number}, and was "
            f"sealed at {old.last_sequence_number}: this is an older state of it"
        )
