"""Print who changed what when, as the seals of a dataset state it: `seal_log`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import IntegrityError
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.kms.signing.ledger import MAX_STEPS, Ledger
from modcrypt.kms.signing.seal_format import (
    Changes,
    SealedFile,
    apply_changes,
    dataset_ledger,
    parse_archived,
)
from modcrypt.kms.signing.sealed_statements import find_statement_signers
from modcrypt.kms.signing.signing_keys import VerifyingKey
from modcrypt.kms.signing.trusted_writers import Trust, WriterChange, make_trust
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names


@dataclass(frozen=True, slots=True, kw_only=True)
class SealEntry(JsonFields):
    """What one seal of a dataset states.

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
    """Return what the seals of a dataset state, from the oldest one that is there.

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
    ledger = dataset_ledger(Place(*locate(source, filesystem)))
    known = tuple(signed_by)
    found = ledger.read(make_trust(known, needed))
    if found is None:
        raise IntegrityError(f"{ledger.place.path} does not exist: the dataset is not sealed")
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
