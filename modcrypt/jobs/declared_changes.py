"""Signing of the changes that a process makes to a dataset: `sealing`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MethodType
from typing import Any

from modcrypt.errors import CommitConflictError, IntegrityError, list_names
from modcrypt.io.places import Place
from modcrypt.io.recorded_writes import (
    HashingSink,
    WriteRecord,
    list_recorded,
    note_described,
    record_writes,
)
from modcrypt.io.sources import Source, open_source
from modcrypt.io.stores import locate
from modcrypt.jobs.dataset_seals import (
    SealUpdate,
    describe_update,
    hash_end,
    hash_source,
    sign_changes,
)
from modcrypt.kms.signing.ledger import Ledger, Seen
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.seal_format import (
    Changes,
    SealedFile,
    dataset_ledger,
    encode_files,
    load_newest,
    load_seen,
    parse_content,
)
from modcrypt.kms.signing.seal_writing import Former, SealWriter, make_seal_writer, new_dataset_id
from modcrypt.kms.signing.sealed_statements import Draft
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.former_names import accept_former_names

ATTEMPTS = 20  # number of times that changes are signed again after the statement of another writer


class DeclaredChanges:
    """The result of `sealing`: `update` is None until the block ends, and without changes."""

    def __init__(self) -> None:
        self.update: SealUpdate | None = None


@accept_former_names(where="source")
@contextlib.contextmanager
def sealing(
    source: Any,
    key: SigningKey | Sequence[SigningKey],
    *,
    signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0,
    valid_for: int | None = None,
    accept_new: bool = False,
    replace_all: bool = False,
    filesystem: Any = None,
) -> Iterator[DeclaredChanges]:
    """Sign what this process writes to a dataset and removes from it while the block runs.

    The new seal is the old one and these changes: it states of all other files what the old one
    did, whatever lies in the folder. Files are hashed as they are written. Those that are read are
    compared with the old seal, so that nothing is made of a forged one. If the block raises, the
    files that were published until then are signed. A dataset without files and without a seal gets
    its first one.

    Args:
        source: Path or URL of the dataset's folder.
        key, signed_by, at_least, valid_for, filesystem: As for `seal_dataset`.
        accept_new: Whether the block may read files that the old seal does not state.
        replace_all: Whether the new seal states only files that the block writes.

    Raises:
        IntegrityError: The old seal is not the last one that this key signed, or there is none and
            the folder has files; then nothing is written. Within the block, a file that is opened
            is not the one that was sealed.
        CommitConflictError: Other writers were faster each time, or changed the same files.
        OSError: As `seal_dataset`.

    Example:
        >>> with mc.jobs.sealing("lake", writer):
        ...     mc.write_dataset(people, "lake", properties)
    """
    ledger = _ledger_at(source, filesystem)
    writer, done = make_seal_writer(key, signed_by, at_least), DeclaredChanges()
    before = SealedInputs(ledger, _begin(ledger, writer), accept_new)
    with record_writes(ledger.folder, _describe, before.check) as record:
        process = os.getpid()
        try:
            yield done
            if replace_all:  # a block that failed may have left the old files in place
                record.changes = {**dict.fromkeys(before.files), **record.changes}
        finally:
            changes = select_visible(record.changes)
            if changes and os.getpid() == process:
                done.update = _declare_again(ledger, writer, before, changes, valid_for)


@contextlib.contextmanager
def hand_over(
    where: Any, key: SigningKey | None, seal: RequiredSeal | None, **how: bool
) -> Iterator[None]:
    """Sign what is changed while the block runs, if readers require a seal and there is one.

    Args:
        how: `accept_new` and `replace_all`, as for `sealing`.

    Raises:
        IntegrityError, CommitConflictError, OSError: As `sealing`; or there is no seal, although
            readers require a later one than the first.
    """
    if seal is None or key is None:
        yield
        return
    # A new dataset is written before its first seal can be made.
    at_least = seal.at_least if seal.at_least > 1 else 0
    ledger, writer = _ledger_at(where, None), make_seal_writer(key, seal.signed_by, at_least)
    former = writer.begin(ledger)
    if former.statement is None:
        yield
        return
    with ledger.name_errors():
        former.statement.check(at_least, "dataset", seal.dataset)
    with sealing(where, key, signed_by=seal.signed_by, at_least=at_least, **how):
        yield


@dataclass
class SealedInputs:
    """The files that a block may read: as the seal states them, or as the block wrote them."""

    ledger: Ledger
    seen: Seen | None  # the newest statement when the block began; None without one
    accept_new: bool  # whether files may be read that the seal does not state

    def __post_init__(self) -> None:
        self._checked: dict[str, object] = {}

    @cached_property
    def files(self) -> dict[str, SealedFile]:
        """Files of the seal, by their paths inside the dataset."""
        return {} if self.seen is None else load_seen(self.ledger, self.seen)

    def check(self, path: str, source: Source, written: SealedFile | None) -> None:
        """Raise IntegrityError if a file that is opened is not what it must be."""
        if not _is_visible(path):
            return
        known = written or self.files.get(path)
        if known is None and self.accept_new:
            return
        if known is None:
            raise IntegrityError(
                f"{source.name}: the seal of the dataset does not name it, so nothing that is made "
                "of it can be sealed; look at it, and sign it first (modcrypt seals add)"
            )
        mark = source.size, source.stamp, known
        if self._checked.get(path) == mark:
            return
        if hash_source(source) != (known.size, known.sha256):
            raise IntegrityError(f"{source.name}: it is not the file that was sealed")
        self._checked[path] = mark


def _declare_again(
    ledger: Ledger, writer: SealWriter, before: SealedInputs, changes: Changes,
    valid_for: int | None,
) -> SealUpdate:  # fmt: skip
    """Sign changes, again after the statements of other writers; raise as `sealing`."""
    for left in reversed(range(ATTEMPTS)):
        former = writer.begin(ledger)
        _check_others(ledger, writer, former, before, changes)
        try:
            return _declare(ledger, writer, former, changes, valid_for)
        except CommitConflictError:
            if not left:
                raise
    raise AssertionError  # the last attempt returns or raises


def _check_others(
    ledger: Ledger, writer: SealWriter, former: Former, before: SealedInputs, changes: Changes
) -> None:
    """Raise CommitConflictError if another writer has sealed a file that the block changed."""
    if before.seen is None or former.hash == before.seen.hash:
        return
    newest = load_newest(ledger, writer.trust)
    files = {} if newest is None else newest.files
    both = [
        path
        for path, change in changes.items()
        if files.get(path) not in (before.files.get(path), change)
    ]
    if both:
        raise CommitConflictError(
            f"{ledger.place.address}: another writer has sealed {list_names(both)} meanwhile; "
            "check whose files are there, and seal them (modcrypt seals add)"
        )


def select_visible(changes: Changes) -> dict[str, SealedFile | None]:
    """Return the changes of files that readers of datasets read."""
    return {path: file for path, file in changes.items() if _is_visible(path)}


def _is_visible(path: str) -> bool:
    return not any(part.startswith((".", "_")) for part in path.split("/"))


def _ledger_at(where: Any, filesystem: Any) -> Ledger:
    place = where if isinstance(where, Place) else Place(*locate(where, filesystem))
    if place.filesystem is None:  # the working directory may change
        place = Place(None, os.path.abspath(place.path))
    return dataset_ledger(place)


def _begin(ledger: Ledger, writer: SealWriter) -> Seen | None:
    former = writer.begin(ledger)
    if former.statement is not None:
        return Seen.of(former.statement)
    if _has_files(ledger.folder):
        raise IntegrityError(
            f"{ledger.place.address} does not exist, but the folder has files: check and sign them "
            "first, with seal_dataset (modcrypt seals create)"
        )
    return None


def _has_files(folder: Place) -> bool:
    try:
        return bool(list_files(folder, None, every_link=True))
    except FileNotFoundError:
        return False


def _declare(
    ledger: Ledger, writer: SealWriter, former: Former, changes: Changes, valid_for: int | None
) -> SealUpdate:
    if former.statement is not None:
        return sign_changes(ledger, writer, former, changes, valid_for)
    files = {path: file for path, file in changes.items() if file is not None}
    draft = Draft(new_dataset_id(), {"since": []}, encode_files(files), valid_for)
    return describe_update(writer.write(ledger, former, draft), files)


def list_sealed() -> list[tuple[str, Seen | None, bool]]:
    """Return the folders that `sealing` records in this process, as arguments of `record_here`."""
    checks = [record.check for record in list_recorded()]
    inputs = [check.__self__ for check in checks if isinstance(check, MethodType)]
    return [
        (each.ledger.folder.full_name, each.seen, each.accept_new)
        for each in inputs
        if isinstance(each, SealedInputs)
    ]


def record_here(
    folder: str, seen: Seen | None = None, accept_new: bool = True
) -> AbstractContextManager[WriteRecord[SealedFile]]:
    """Record what this process writes to a dataset, for `note_changes` in the one that signs.

    Args:
        seen: Its newest statement, which the other process has verified.
        accept_new: Whether files may be read that it does not state.
    """
    ledger = _ledger_at(folder, None)
    return record_writes(ledger.folder, _describe, SealedInputs(ledger, seen, accept_new).check)


def take_changes(record: WriteRecord[SealedFile]) -> str:
    """Return the changes recorded since the last call as text that `note_changes` reads."""
    return encode_files(select_visible(record.take())).decode()


def note_changes(folder: Place, text: str) -> None:
    """Hand over to `sealing` in this process what another one recorded."""
    for path, file in parse_content(text.encode()).items():
        note_described(folder.below(path), file)


def _describe(sink: HashingSink) -> SealedFile:
    return SealedFile(sink.size, sink.sha256, _hash_kept_end(sink))


def _hash_kept_end(sink: HashingSink) -> str | None:
    """Return the hash of the end of a Parquet file; None for other files."""
    end = sink.read_end()
    padding = min(sink.size, len(end) + 4) - len(end)
    with open_source(sink.start[:padding] + end) as source:
        return hash_end(source)
