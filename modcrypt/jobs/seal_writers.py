"""The writers of a dataset's seals: change them, countersign, and list who signed what when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import IntegrityError
from modcrypt.io.places import Place, Root
from modcrypt.io.stores import locate
from modcrypt.jobs.dataset_seals import (
    SealUpdate,
    begin_change,
    describe_update,
    ledger_at,
    sign_changes,
)
from modcrypt.kms.signing.ledger import MAX_STEPS, Ledger
from modcrypt.kms.signing.proposals import cosign, read_proposal
from modcrypt.kms.signing.seal_format import (
    Changes,
    SealedFile,
    apply_changes,
    parse_archived,
    parse_content,
)
from modcrypt.kms.signing.seal_writing import make_seal_writer, new_dataset_id, sign_writers
from modcrypt.kms.signing.sealed_statements import find_statement_signers
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import Trust, WriterChange, make_trust
from modcrypt.kms.signing.witnesses import countersign
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names


@accept_former_names(where="source")
def change_seal_writers(
    source: Any,
    key: SigningKey | Sequence[SigningKey],
    writers: Iterable[VerifyingKey],
    *,
    needed: int = 1,
    signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0,
    filesystem: Any = None,
) -> SealUpdate:
    """Sign who may sign the seals of a dataset from now on; all others may no longer.

    As many keys as were needed until now sign the change, and as many of the new ones as are needed
    from now on sign the seal that has it. Readers who trust the old keys follow the change.

    Args:
        source: Path or URL of the dataset's folder.
        key: Keys that sign: of old and of new writers.
        writers: Keys that may sign from now on.
        needed: Number of them that must sign.
        signed_by, at_least, filesystem: As for `update_seal`.

    Raises:
        ValueError: The keys are too few for the change or for the new seal.
        IntegrityError, CommitConflictError, OSError: As `update_seal`.
    """
    new, signed_by = make_trust(writers, needed), tuple(signed_by)
    ledger = ledger_at(source, filesystem)
    writer = make_seal_writer(key, [*signed_by, *new.keys.values()], at_least)
    former = begin_change(ledger, writer, signs=False)
    dataset = former.dataset or new_dataset_id()
    change = sign_writers(writer, former, dataset, new, signed_by)
    return sign_changes(ledger, writer, former, {}, None, change, dataset=dataset)


@accept_former_names(where="source")
def witness_seal(
    source: Any,
    key: SigningKey,
    signed_by: Iterable[VerifyingKey],
    store: Root,
    *,
    needed: int = 1,
    at_least: int = 1,
    filesystem: Any = None,
) -> int:
    """Countersign the newest seal of a dataset, and return its number.

    The witness remembers what it has countersigned, and refuses a seal that does not follow it.

    Args:
        source: Path or URL of the dataset's folder.
        key: Key of the witness.
        signed_by: Keys of writers whose seals are accepted.
        store: Folder that keeps the witness's statement. Who can write to the dataset must not be
            able to change it: otherwise both can be rolled back together.
        needed: Number of writers that must have signed.
        at_least: Number that the seal must have at least.
        filesystem: The pyarrow or fsspec filesystem of `source`.

    Raises:
        IntegrityError: There is no seal, too few writers signed it, it has expired, or it does not
            follow the last one that the witness countersigned.
        FormatError: It is signed, but malformed.
        OSError: The file system reports an error.
    """
    ledger = ledger_at(source, filesystem)
    trust = make_trust(signed_by, needed)
    if (statement := ledger.read_head(trust)) is None:
        raise IntegrityError(f"{ledger.place.address} does not exist: the dataset is not sealed")
    with ledger.name_errors():
        statement.check(at_least, "dataset")
    place = store if isinstance(store, Place) else Place(*locate(store, None))
    countersign(ledger, statement, trust, key, place)
    return statement.sequence


@accept_former_names(where="source")
def cosign_seal(
    source: Any,
    key: SigningKey | Sequence[SigningKey],
    *,
    proposal: str | None,
    signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0,
    filesystem: Any = None,
) -> tuple[SealUpdate, bool]:
    """Sign the seal that another writer has proposed; return it, and whether it is the newest now.

    Args:
        source: Path or URL of the dataset's folder.
        key: Key that signs, or several of them.
        proposal: Name of the proposal that you have looked at, as `SealUpdate.name` has it; None
            only to return what is proposed.
        signed_by: Keys of the other writers.
        at_least, filesystem: As for `update_seal`.

    Raises:
        IntegrityError: No seal is proposed, another one than `proposal`, none of these writers has
            signed it, or it states something else than changes of files.
        CommitConflictError: The proposal does not follow the newest seal.
        FormatError, OSError: As `update_seal`.
    """
    ledger = ledger_at(source, filesystem)
    writer = make_seal_writer(key, signed_by, at_least)
    found = read_proposal(ledger, writer)
    proposed = describe_update(found.statement, parse_content(found.content))
    if proposal is None:
        return proposed, False
    if proposal != proposed.name:
        where = ledger.folder.address
        raise IntegrityError(f"{where}: the proposal is {proposed.name}, another one")
    if (signed := cosign(ledger, writer, found)) is None:
        return proposed, False
    return describe_update(signed, parse_content(found.content)), True


@dataclass(frozen=True, slots=True, kw_only=True)
class SealEntry(JsonFields):
    """The statement of one seal of a dataset.

    Attributes:
        sequence: Number of the seal.
        time: Seconds since 1970 at which it was signed; None in version 1.
        signers: Ids of the keys that signed, of those that are known.
        added, replaced, removed: Paths of files that differ from the seal before.
        writers: Ids of the keys that may sign from this seal on; None if they did not change.
    """

    sequence: int
    time: int | None
    signers: tuple[str, ...]
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    removed: tuple[str, ...]
    writers: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealLog(JsonFields):
    """The seals of a dataset.

    Attributes:
        dataset: Id of the dataset; None for seals of version 1.
        entries: Seals, the newest one last.
        complete: Whether the first one is the first seal of the dataset; older ones are missing
            otherwise.
    """

    dataset: str | None
    entries: tuple[SealEntry, ...]
    complete: bool


@accept_former_names(where="source")
def seal_log(
    source: Any, signed_by: Iterable[VerifyingKey], *, needed: int = 1, filesystem: Any = None
) -> SealLog:
    """Return the statements of the seals of a dataset, from the oldest available one.

    Args:
        source: Path or URL of the dataset's folder.
        signed_by: Keys whose signatures of the newest seal are accepted, as for `verify_seal`.
        needed: Number of these keys that must have signed.
        filesystem: The pyarrow or fsspec filesystem of `source`.

    Raises:
        IntegrityError: There is no seal, or too few of these keys signed the newest one.
        FormatError: It is signed, but malformed.
        OSError: The file system reports an error.
    """
    ledger = ledger_at(source, filesystem)
    known = tuple(signed_by)
    if (found := ledger.read(make_trust(known, needed))) is None:
        raise IntegrityError(f"{ledger.place.address} does not exist: the dataset is not sealed")
    statement, content = found
    writers = _list_effective(statement.writers, make_trust(known, needed))
    keys = {key.hex_id: key for change in writers for key in change.keys}
    keys |= {key.hex_id: key for key in known}
    newest = _Step(
        statement.sequence, statement.time, statement.signers, not statement.members.get("since"),
        parse_archived(statement.members, content or b""), statement.previous,
    )  # fmt: skip
    steps = [newest, *_walk_back(ledger, newest, keys)][::-1]
    entries = tuple(_compare_steps(steps, writers))
    return SealLog(dataset=statement.dataset, entries=entries, complete=steps[0].previous is None)


def _list_effective(changes: Iterable[WriterChange], trust: Trust) -> list[WriterChange]:
    """Return the changes of writers that those have signed who could sign."""
    effective = []
    for change in changes:
        if change.is_signed_by(trust):
            effective.append(change)
            trust = trust.follow([change])
    return effective


@dataclass(frozen=True, slots=True)
class _Step:
    sequence: int
    time: int | None
    signers: tuple[VerifyingKey, ...]
    whole: bool  # it lists all files
    changes: Changes
    previous: str | None


def _walk_back(ledger: Ledger, newest: _Step, keys: dict[str, VerifyingKey]) -> Iterator[_Step]:
    """Yield the statements before, until one is missing."""
    step = newest
    for _ in range(MAX_STEPS):
        if step.previous is None:
            return
        try:
            step = _read_step(ledger, step.sequence - 1, step.previous, keys)
        except IntegrityError:
            return
        yield step


def _read_step(ledger: Ledger, sequence: int, hash_: str, keys: dict[str, VerifyingKey]) -> _Step:
    members, content = ledger.read_archived(sequence, hash_)
    with ledger.open_archived(sequence, hash_) as source:
        signers = find_statement_signers(source, keys)
    return _Step(
        sequence, members.get("time"), signers, not members.get("since"),
        parse_archived(members, content), members.get("previous"),
    )  # fmt: skip


def _compare_steps(steps: Iterable[_Step], writers: Iterable[WriterChange]) -> Iterator[SealEntry]:
    changed = {change.sequence: tuple(key.hex_id for key in change.keys) for change in writers}
    before: dict[str, SealedFile] = {}
    for number, step in enumerate(steps):
        after = {} if step.whole else dict(before)
        apply_changes(after, step.changes)
        known = number > 0 or step.whole
        yield SealEntry(
            sequence=step.sequence, time=step.time,
            signers=tuple(key.hex_id for key in step.signers),
            added=tuple(sorted(after.keys() - before.keys())) if known else (),
            replaced=tuple(sorted(
                path for path in after.keys() & before.keys() if after[path] != before[path]
            )),
            removed=tuple(sorted(before.keys() - after.keys())),
            writers=changed.get(step.sequence),
        )  # fmt: skip
        before = after
