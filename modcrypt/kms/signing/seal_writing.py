"""Sign the next statement of a ledger, after the one that its writer knows to be the newest."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from modcrypt.errors import IntegrityError
from modcrypt.io.sources import open_source
from modcrypt.kms.signing.ledger import SEAL_NAME, Ledger, Seen
from modcrypt.kms.signing.seal_memory import check_memory, recall, remember
from modcrypt.kms.signing.sealed_statements import (
    Draft,
    Statement,
    encode_statement,
    read_statement,
)
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import Trust, WriterChange, check_signing_keys, make_trust


@dataclass(frozen=True, slots=True)
class Former:
    """The base of the next statement."""

    statement: Statement | None  # the newest statement; None without one
    dataset: str | None  # id of the dataset; None if it has none yet
    sequence: int  # number of the statement before, 0 for none
    hash: str | None  # hash of the statement before; None for none
    writers: tuple[WriterChange, ...] = ()  # changes of the writers until now
    valid_for: int | None = None  # seconds for which statements are valid; None without limit


@dataclass(frozen=True, slots=True)
class SealWriter:
    """Who signs a statement, and what the statement before must be.

    `begin` looks at what the keys remember before it reads the newest statement, because others may
    sign meanwhile: a newer statement is followed, an older one is a rollback. `write` verifies the
    new statement as readers do, publishes it only if the newest one is still the same, and has the
    keys remember it only then: a number that was remembered, but not published, would be missed.
    """

    keys: tuple[SigningKey, ...]  # keys that sign
    trust: Trust  # keys that may have signed the statement before
    at_least: int = 0  # number that the statement before must have at least
    # Whether to go on if the newest statement is lost or was replaced by an older one
    accept_lost: bool = False

    def begin(self, ledger: Ledger, *, signs: bool = True, dataset: str | None = None) -> Former:
        """Return the base of the next statement.

        `signs` is False for a change of the writers, which new ones sign as well. `dataset` is the
        id of the dataset if the caller knows it without a statement.

        Raises:
            ValueError: These keys are too few, or may not sign.
            IntegrityError: The newest statement was removed, is older than the last one that these
                keys have signed, another one, or that of another dataset, or is not signed by
                writers who may sign.
        """
        for key in self.keys:
            check_memory(key)
        memories = [recall(key) for key in self.keys]  # first: others may sign meanwhile
        former = _follow(ledger.read_head(self.trust))
        if former.sequence < self.at_least and not self.accept_lost:
            raise _lost(ledger, former.statement, self.at_least)
        for memory in memories:
            for id_, last in memory.about(dataset or former.dataset, name_folder(ledger)):
                if self.accept_lost:
                    former = _continue_after(former, id_, last)
                else:
                    _check_follows(ledger, former.statement, self.trust, id_, last)
        if former.sequence < self.at_least:
            former = replace(former, sequence=self.at_least)
        if signs:
            self._check_may_sign(former)
        return former

    def _check_may_sign(self, former: Former) -> None:
        """Raise ValueError unless enough of these keys may sign the next statement."""
        trust = self.trust.follow(former.writers)
        own = [key.verifier.hex_id for key in self.keys]
        for key, sequence in trust.retired:
            if key.hex_id in own:
                raise ValueError(
                    f"the key {key.hex_id} has not been allowed to sign since seal number "
                    f"{sequence}"
                )
        if sum(id_ in trust.keys for id_ in own) < trust.needed:
            raise ValueError(
                f"{trust.needed} of the keys {', '.join(trust.keys)} must sign; these are "
                f"{', '.join(own)}"
            )

    def encode(self, ledger: Ledger, former: Former, draft: Draft) -> bytes:
        """Return a signed statement, which may need further signatures."""
        if draft.valid_for is not None and draft.valid_for < 0:
            raise ValueError("valid_for is a number of seconds, or 0 for no limit")
        if draft.valid_for is None:
            draft = replace(draft, valid_for=former.valid_for)
        after = former.sequence, former.hash
        return encode_statement(self.keys, ledger.form, draft, after, former.writers)

    def write(self, ledger: Ledger, former: Former, draft: Draft) -> Statement:
        """Sign a statement, publish it and remember it; return it as readers see it.

        Raise ValueError if these keys are too few, or may not sign; and as `publish` and
        `remember`.
        """
        data = self.encode(ledger, former, draft)
        try:
            with open_source(data) as source:
                statement = read_statement(source, self.trust, ledger.form)
        except IntegrityError as error:
            raise ValueError(f"these keys cannot sign the seal: {error}") from None
        ledger.publish(former.statement, data)
        for key in self.keys:
            remember(key, statement, name_folder(ledger))
        return statement


def make_seal_writer(
    keys: SigningKey | Sequence[SigningKey], signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0, *, accept_lost: bool = False,
) -> SealWriter:  # fmt: skip
    """Return a writer with these keys, who trusts them and those of other writers."""
    given = check_signing_keys(keys)
    own = {key.verifier.hex_id: key.verifier for key in given}
    others = [key for key in signed_by if key.hex_id not in own]
    return SealWriter(given, make_trust([*own.values(), *others]), at_least, accept_lost)


def sign_writers(
    writer: SealWriter, former: Former, dataset: str, new: Trust, signed_by: Iterable[VerifyingKey]
) -> WriterChange:
    """Sign that the keys of `new` may sign from the next statement on, and no others.

    `signed_by` are keys of writers who could sign until now, besides those of the statement before.
    Raise ValueError if too few of them all are among the keys of the writer.
    """
    assert former.statement is not None
    change = WriterChange(dataset, former.sequence + 1, tuple(new.keys.values()), new.needed)
    change = change.sign(writer.keys)
    until_now = {key.hex_id: key for key in (*signed_by, *former.statement.signers)}
    trust = make_trust(until_now.values()).follow(former.writers)
    if not change.is_signed_by(trust):
        raise ValueError(f"{trust.needed} of the keys {', '.join(trust.keys)} must sign a change")
    return change


def check_remembered(ledger: Ledger, statement: Statement, trust: Trust, key: SigningKey) -> None:
    """Raise IntegrityError unless a statement is, or follows, the last one that a key signed."""
    for dataset, last in recall(key).about(statement.dataset, name_folder(ledger)):
        _check_follows(ledger, statement, trust, dataset, last)


def name_folder(ledger: Ledger) -> str:
    """Return the name under which keys remember a folder, whichever links lead there."""
    return ledger.folder.resolve().full_name


def new_dataset_id() -> str:
    """Return a random id for the first statement about a dataset."""
    return secrets.token_hex(16)


def _advise(ledger: Ledger) -> str:
    accept = f"--accept {SEAL_NAME}" if ledger.what == "dataset" else "accept=True (--accept)"
    return f"find out who did it, then use {accept} to go on with the next number"


def _follow(statement: Statement | None) -> Former:
    if statement is None:
        return Former(None, None, 0, None)
    return Former(
        statement, statement.dataset, statement.sequence, statement.hash, statement.writers,
        statement.valid_for,
    )  # fmt: skip


def _continue_after(former: Former, dataset: str, last: Seen) -> Former:
    """Return the successor of the last signed one, unless a newer one was found."""
    # Who may sign, and for how long, is as it was then: what was lost revokes nothing.
    if former.dataset == dataset and former.sequence >= last.sequence:
        return former
    writers = last.writers or ()
    return Former(former.statement, dataset, last.sequence, last.hash, writers, last.valid_for)


def _check_follows(
    ledger: Ledger, statement: Statement | None, trust: Trust, dataset: str, last: Seen
) -> None:
    """Raise IntegrityError unless a statement is, or follows, the last one that was signed."""
    if statement is None or statement.dataset != dataset or statement.sequence < last.sequence:
        raise _lost(ledger, statement, last.sequence)
    try:
        ledger.check_follows(statement, trust, last)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; {_advise(ledger)}") from None


def _lost(ledger: Ledger, statement: Statement | None, last: int) -> IntegrityError:
    found = "there is no seal" if statement is None else f"the seal has number {statement.sequence}"
    other = f" of another {ledger.what}" * (statement is not None and statement.sequence >= last)
    return IntegrityError(
        f"{ledger.place.address}: {found}{other}, but number {last} was signed before: it was "
        f"removed, replaced or rolled back; {_advise(ledger)}"
    )
