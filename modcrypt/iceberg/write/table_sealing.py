"""Seal a table: sign its metadata.json, so that readers detect what others have changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modcrypt.errors import CommitConflictError, IntegrityError, ModcryptError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.table_seals import (
    TableSeal,
    check_sealed_version,
    encode_table_seal,
    open_table_seal,
    seal_place,
)
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.io.places import Place
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
    old, _ = _read_former(table, known, seal_at_least)
    data = encode_table_seal(key, old, table.place, table.metadata)
    current = table.versions.read(table.metadata)
    same = current.metadata.document == table.metadata.document
    if current.place.path != table.place.path or not same:
        raise CommitConflictError(
            f"{table.place.path} is not the current version of the table any more: open the table "
            "again, check what has changed, and seal it"
        )
    replace_seal(seal_place(table.place), old, data)
    return open_table_seal(data, known)


def check_sealable(table: TableVersion) -> None:
    """Raise as `seal_table` if commits seal the table, but none may follow its seal.

    A commit seals all that the table has, so the version before must be the one that was sealed.
    """
    if table.signing_key is not None:
        writers, at_least = _accepted_seals(table)
        known = check_verifying_keys((table.signing_key.verifier, *writers))
        _, former = _read_former(table, known, at_least)
        if former is not None:
            check_sealed_version(former, table.metadata)


def check_alone(done: TableMetadata, base: Place) -> None:
    """Raise IntegrityError if a server has applied a commit to another version than `base`.

    The seal would be over the changes of another writer, which nobody has sealed. A server creates
    no version for a change of the log alone.
    """
    *_, last = "", *done.texts_of("metadata-log", "metadata-file")
    if done.name != base.path and last.rpartition("/")[2] != base.name:
        raise IntegrityError(
            f"{done.name}: another writer has committed at the same time; {_NOT_SEALED}"
        )


def seal_commit(table: TableVersion) -> None:
    """Seal a version that was just committed, if commits seal the table.

    Raises:
        IntegrityError: It could not be sealed. No other class: callers repeat what conflicts, was
            unavailable or found no space, and the table has already been changed.
    """
    if table.signing_key is None:
        return
    writers, at_least = _accepted_seals(table)
    try:
        seal_table(table, table.signing_key, signed_by=writers, seal_at_least=at_least)
    except (ModcryptError, OSError) as error:
        raise IntegrityError(f"{error}; {_NOT_SEALED}") from error


_NOT_SEALED = (
    "the table has been changed, and readers refuse it until it is sealed: check it, and seal it "
    "with seal_table (modcrypt iceberg seal)"
)


def _accepted_seals(table: TableVersion) -> tuple[Iterable[VerifyingKey], int]:
    """Return the writers of seals that a table's reader accepts, and the least number."""
    expected = table.expected
    return expected.signed_by.values(), expected.seal_at_least if expected.signed_by else 0


def _read_former(
    table: TableVersion, known: Mapping[str, VerifyingKey], at_least: int
) -> tuple[bytes | None, TableSeal | None]:
    """Return the old seal, which a version of its table may follow; raise as `seal_table`."""
    place = seal_place(table.place)
    old = read_seal(place)
    with name_seal(place):
        former = None if old is None else open_table_seal(old, known)
    _check_follows(table, former, at_least)
    return old, former


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
