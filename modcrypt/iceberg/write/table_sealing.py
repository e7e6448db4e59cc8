"""Seal a table: sign its metadata.json, so that readers detect what others have changed.

A new seal follows the former one: a writer seals the version that the former seal states, or what
it has itself committed on top of that, and whatever else only if its caller accepts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import CommitConflictError, IntegrityError, ModcryptError, list_names
from modcrypt.iceberg.format.deletion import METADATA
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.read.table_seals import (
    TableSeal,
    describe_version,
    hash_metadata,
    parse_table_seal,
    table_ledger,
)
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.io.places import Place
from modcrypt.kms.signing.ledger import Ledger
from modcrypt.kms.signing.seal_writing import Former, SealWriter, make_seal_writer, sign_writers
from modcrypt.kms.signing.sealed_statements import Draft
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import WriterChange, make_trust

_ACCEPT = "seal_table with accept=True (modcrypt iceberg seal --accept)"


@dataclass(frozen=True, slots=True)
class Sealing:
    """A seal that is to be made: who signs it, and what it follows."""

    ledger: Ledger
    writer: SealWriter
    former: Former


def seal_table(
    table: TableVersion,
    key: SigningKey | Sequence[SigningKey],
    *,
    signed_by: Iterable[VerifyingKey] = (),
    seal_at_least: int = 0,
    accept: bool = False,
    valid_for: int | None = None,
) -> TableSeal:
    """Sign the metadata.json of a version of a table, in a new seal that replaces the old one.

    The version must be the one that the old seal states, or one that this process has committed on
    top of it: a table that is opened anew may have what others have put into its folder.

    Args:
        table: The current version of the table, as a commit or `open_table` returned it.
        key: Key that signs, or several of them.
        signed_by: Keys of other writers who may have signed the old seal, besides those that the
            table was opened with.
        seal_at_least: Number that the old seal must have at least; the key's memory, and
            `seal_at_least` of `open_table`, have a number, too.
        accept: Whether to seal the version whatever the old seal states, also if that was lost,
            rolled back, or of another table; look first at what has changed.
        valid_for: Seconds after which readers refuse the seal; None for as long as the old one, 0
            for no limit.

    Raises:
        IntegrityError: Others have changed the table since it was sealed; or the old seal is signed
            by none of these keys, is older than the last one that this key signed, or lost.
        CommitConflictError: Another writer has committed or sealed meanwhile; nothing changed.
        ValueError: These keys are too few, or may not sign.
        ModcryptError, OSError: The catalog or the file system failed.
    """
    sealing = _begin(table, key, signed_by, seal_at_least, accept=accept)
    return _sign(table, sealing, valid_for)


def change_seal_writers(
    table: TableVersion,
    key: SigningKey | Sequence[SigningKey],
    writers: Iterable[VerifyingKey],
    *,
    needed: int = 1,
    signed_by: Iterable[VerifyingKey] = (),
    seal_at_least: int = 0,
) -> TableSeal:
    """Sign who may seal a table from now on; all others may no longer.

    As many keys as were needed until now sign the change, and as many of the new ones as are needed
    from now on sign the seal that has it. Readers who trust the old keys follow the change.

    Args:
        table, signed_by, seal_at_least: As for `seal_table`.
        key: Keys that sign: of old and of new writers.
        writers: Keys that may sign from now on.
        needed: Number of them that must sign.

    Raises:
        ValueError: The keys are too few for the change or for the new seal.
        IntegrityError: The table has no seal; or as `seal_table`.
        ModcryptError, OSError: As `seal_table`.
    """
    new, known = make_trust(writers, needed), (*table.expected.signed_by.values(), *signed_by)
    accepted = (*known, *new.keys.values())
    sealing = _begin(table, key, accepted, seal_at_least, signs=False)
    if sealing.former.statement is None:
        path = sealing.ledger.place.path
        raise IntegrityError(f"{path} does not exist: seal the table first, with seal_table")
    change = sign_writers(sealing.writer, sealing.former, table.metadata.uuid, new, known)
    return _sign(table, sealing, writers=change)


def begin_sealing(table: TableVersion) -> Sealing | None:
    """Return the base of the seal of a table's next commit; None if commits seal nothing.

    A commit seals all that the table has, so this raises as `seal_table` if that may not be sealed.
    """
    return None if table.signing_key is None else _begin(table, table.signing_key)


def find_foreign(done: TableMetadata, sent: TableMetadata, base: Place) -> str | None:
    """Return the changes of a server besides the commit to version `base`; None for no changes."""
    # A seal would be over the changes of another writer, or of the server, which nobody has sealed.
    *_, last = "", *done.texts_of("metadata-log", "metadata-file")
    # A server creates no version for a change of the log alone; some keep no log.
    if last and done.name != base.path and last.rpartition("/")[2] != base.name:
        return "another writer has committed at the same time"
    changed = _find_differences(done, sent)
    return f"the server has put other {list_names(changed)} there" if changed else None


def check_alone(done: TableMetadata, foreign: str | None) -> None:
    """Raise IntegrityError if a committed version has foreign changes, as `find_foreign`."""
    if foreign is not None:
        raise IntegrityError(f"{done.name}: {foreign}; {_NOT_SEALED}")


def seal_commit(table: TableVersion, sealing: Sealing | None) -> None:
    """Seal a version that was just committed, if commits seal the table.

    Raises:
        IntegrityError: It could not be sealed. No other class: callers repeat what conflicts, was
            unavailable or found no space, and the table has already been changed.
    """
    if sealing is None:
        return
    try:
        _sign(table, sealing)
    except (ModcryptError, OSError, ValueError) as error:
        raise IntegrityError(f"{error}; {_NOT_SEALED}") from error


_NOT_SEALED = (
    "the table has been changed, and readers refuse it until it is sealed: check it, and use "
    + _ACCEPT
)

_OF_COMMITS = {"last-updated-ms", "metadata-log", "snapshot-log"}
"""Members that each commit changes."""


def _begin(
    table: TableVersion, key: SigningKey | Sequence[SigningKey],
    signed_by: Iterable[VerifyingKey] = (), at_least: int = 0, *, accept: bool = False,
    signs: bool = True,
) -> Sealing:  # fmt: skip
    """Return the base of a seal of a version; raise as `seal_table`."""
    expected = table.expected
    if expected.signed_by:
        signed_by = dict.fromkeys((*expected.signed_by.values(), *signed_by))
        at_least = max(at_least, expected.seal_at_least)
    ledger = table_ledger(table.place)
    writer = make_seal_writer(key, signed_by, at_least, accept_lost=accept)
    if expected.seal_needed > 1:
        writer = replace(writer, trust=replace(writer.trust, needed=expected.seal_needed))
    former = writer.begin(ledger, signs=signs, dataset=table.metadata.uuid)
    if former.statement is not None and not accept:
        with ledger.name_errors():
            seal = parse_table_seal(former.statement)
        _check_follows(table, ledger, seal)
    return Sealing(ledger, writer, former)


def _check_follows(table: TableVersion, ledger: Ledger, seal: TableSeal) -> None:
    """Raise IntegrityError unless a version is the sealed one, or follows it by own commits."""
    metadata, name = table.metadata, table.place.path
    if metadata.uuid != seal.table_uuid:
        raise IntegrityError(
            f"{name}: the old seal is that of another table, {seal.table_uuid}; if it was replaced "
            f"on purpose, use {_ACCEPT}"
        )
    if seal.sha256 in (hash_metadata(metadata), *table.own_commits):
        return
    raise IntegrityError(
        f"{name} is not the version that was sealed, {seal.metadata} (seal number {seal.sequence})"
        f"{_describe_change(table, ledger, seal)}: it was altered or rolled back, or a writer has "
        f"committed and not sealed it yet; check what has changed, then use {_ACCEPT}"
    )


def _describe_change(table: TableVersion, ledger: Ledger, seal: TableSeal) -> str:
    """Return how a version differs from the one that was sealed, as far as that is known."""
    metadata, found = table.metadata, ""
    if metadata.last_sequence_number < seal.last_sequence_number:
        found = (
            f", but an older state, at sequence number {metadata.last_sequence_number} instead of "
            f"{seal.last_sequence_number}"
        )
    place = ledger.folder.below(seal.metadata)
    try:
        sealed = read_metadata(place) if METADATA.fullmatch(seal.metadata) else None
    except (ModcryptError, OSError):
        sealed = None
    if sealed is None or hash_metadata(sealed) != seal.sha256:
        return found
    names = _find_differences(metadata, sealed)
    return f"{found}, and differs from it in {list_names(names)}" if names else found


def _find_differences(one: TableMetadata, other: TableMetadata) -> list[str]:
    """Return the names of the top-level members in which two versions differ but for their logs."""
    names = (one.document.keys() | other.document.keys()) - _OF_COMMITS
    pairs = {name: (one.document.get(name), other.document.get(name)) for name in names}
    return sorted(name for name, (a, b) in pairs.items() if a != b and _in_order(a) != _in_order(b))


def _in_order(value: Any) -> Any:
    """Return a member without the order of its elements, empty as if it was missing."""
    if isinstance(value, list):
        return sorted(json.dumps(element, sort_keys=True) for element in value) or None
    return value or None


def _sign(
    table: TableVersion, sealing: Sealing, valid_for: int | None = None,
    writers: WriterChange | None = None,
) -> TableSeal:  # fmt: skip
    current = table.versions.read(table.metadata)
    same = current.metadata.document == table.metadata.document
    if current.place.path != table.place.path or not same:
        raise CommitConflictError(
            f"{table.place.address} is no longer the current version of the table: open the "
            "table again, check what has changed, and seal it"
        )
    members = describe_version(table.place, table.metadata)
    draft = Draft(table.metadata.uuid, members, valid_for=valid_for, writers=writers)
    return parse_table_seal(sealing.writer.write(sealing.ledger, sealing.former, draft))
