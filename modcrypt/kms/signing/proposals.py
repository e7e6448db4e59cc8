"""Proposals: seals that need further signatures, of writers who work on other machines.

The proposal is in `_modcrypt_seals/proposed.json`, in the form of a seal. It becomes the newest
seal once enough writers have signed it, if it still follows the newest one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from modcrypt.errors import CommitConflictError, IntegrityError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source, open_source_at
from modcrypt.kms.signing.ledger import ARCHIVE, Ledger
from modcrypt.kms.signing.seal_format import list_since
from modcrypt.kms.signing.seal_memory import remember
from modcrypt.kms.signing.seal_writing import Former, SealWriter, name_folder
from modcrypt.kms.signing.sealed_statements import Statement, add_signatures, read_statement


def write_proposal(ledger: Ledger, data: bytes) -> None:
    """Write a proposal in place of an older one."""
    place = _place_of(ledger)
    place.make_folder()
    with open_sink_at(place) as sink:
        sink.append(data)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A seal that further writers are to sign."""

    former: Former  # what it follows
    statement: Statement
    content: bytes
    data: bytes


def read_proposal(ledger: Ledger, writer: SealWriter) -> Proposal:
    """Return the proposal of a ledger.

    Raises:
        IntegrityError: There is none, it was altered, no writer has signed it, or it states
            something else than changes of files since the newest seal, which must be the last one
            that the writer's keys signed.
        CommitConflictError: It does not follow the newest seal.
        FormatError: It is signed, but malformed.
    """
    former, place = writer.begin(ledger, signs=False), _place_of(ledger)
    try:
        with open_source_at(place) as source:
            _verify(source, ledger, writer)  # before all of it is read
            data = source.read_at(0, source.size)
    except (FileNotFoundError, NotADirectoryError):
        raise IntegrityError(f"{place.address} does not exist: no seal is proposed") from None
    with open_source(data) as source:
        statement, content = _verify(source, ledger, writer)
    if (statement.previous, statement.sequence) != (former.hash, former.sequence + 1):
        raise CommitConflictError(
            f"{place.address}: the proposal does not follow the newest seal, number "
            f"{former.sequence}; propose it again"
        )
    _check_states_changes(statement, former, place)
    return Proposal(former, statement, content, data)


def _check_states_changes(statement: Statement, former: Former, place: Place) -> None:
    """Check that nothing is signed that those who look at a proposal are not shown."""
    same = (statement.dataset, statement.writers, statement.valid_for) == (
        former.dataset, former.writers, former.valid_for
    )  # fmt: skip
    if not same or list_since(former.statement) != statement.members["since"]:
        raise IntegrityError(
            f"{place.address}: the proposal changes more than files: the writers, the dataset, how "
            "long seals are valid or which ones add up"
        )


def _verify(source: Source, ledger: Ledger, writer: SealWriter) -> tuple[Statement, bytes]:
    trust = replace(writer.trust, proposal=True)
    statement = read_statement(source, trust, ledger.form)
    return statement, statement.read_content(source) or b""


def cosign(ledger: Ledger, writer: SealWriter, proposal: Proposal) -> Statement | None:
    """Add signatures to a proposal that was looked at; return the seal if these are enough.

    Raise CommitConflictError if another writer has made a seal meanwhile.
    """
    data = add_signatures(proposal.data, writer.keys)
    try:
        with open_source(data) as source:
            statement = read_statement(source, writer.trust, ledger.form)
    except IntegrityError:  # more signatures are needed
        write_proposal(ledger, data)
        return None
    ledger.publish(proposal.former.statement, data)
    _place_of(ledger).remove()
    for key in writer.keys:
        remember(key, statement, name_folder(ledger))
    return statement


def _place_of(ledger: Ledger) -> Place:
    return ledger.folder.below(f"{ARCHIVE}/proposed.json")
