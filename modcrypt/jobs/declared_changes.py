"""Hand over what a process writes to a dataset to its seal, as `sealing` does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from modcrypt.errors import CommitConflictError, IntegrityError
from modcrypt.io.places import Place
from modcrypt.io.recorded_writes import (
    HashingSink,
    WriteRecord,
    note_described,
    record_writes,
)
from modcrypt.io.sources import open_source
from modcrypt.io.stores import locate
from modcrypt.jobs.dataset_seals import SealUpdate, describe_update, hash_end, sign_changes
from modcrypt.kms.signing.ledger import Ledger
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.seal_format import (
    Changes,
    SealedFile,
    dataset_ledger,
    encode_files,
    parse_content,
)
from modcrypt.kms.signing.seal_writing import SealWriter, make_seal_writer, new_dataset_id
from modcrypt.kms.signing.sealed_statements import Draft
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.parquet.datasets.discovery import list_files

ATTEMPTS = 20
"""Number of times that changes are signed again after the statement of another writer."""


class DeclaredChanges:
    """What `sealing` has signed: `update` is None until the block ends, and without changes."""

    def __init__(self) -> None:
        self.update: SealUpdate | None = None


@contextlib.contextmanager
def sealing(
    where: Any,
    key: SigningKey | Sequence[SigningKey],
    *,
    signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0,
    valid_for: int | None = None,
    filesystem: Any = None,
) -> Iterator[DeclaredChanges]:
    """Sign what this process writes to a dataset and removes from it while the block runs.

    The new seal is the old one and these changes: it states of all other files what the old one
    did, whatever lies in the folder. Files are hashed as they are written. If the block raises, the
    files that were published until then are signed. A dataset without files and without a seal gets
    its first one.

    Args:
        where: Path or URL of the dataset's folder.
        key, signed_by, at_least, valid_for, filesystem: As for `seal_dataset`.

    Raises:
        IntegrityError: The old seal is not the last one that this key signed, or there is none and
            the folder has files; then nothing is written.
        CommitConflictError: Other writers were faster each time.
        OSError: As `seal_dataset`.

    Example:
        >>> with mc.sealing("lake", writer):
        ...     mc.write_dataset(people, "lake", properties)
    """
    ledger = _ledger_at(where, filesystem)
    writer, done = make_seal_writer(key, signed_by, at_least), DeclaredChanges()
    _check_ready(ledger, writer)
    with record_writes(ledger.folder, _describe) as record:
        try:
            yield done
        finally:
            changes = select_visible(record.changes)
            done.update = declare_changes(ledger, writer, changes, valid_for) if changes else None


@contextlib.contextmanager
def hand_over(where: Any, key: SigningKey | None, seal: RequiredSeal | None) -> Iterator[None]:
    """Sign what is changed while the block runs, if readers require a seal and there is one.

    Args:
        where: Folder of the dataset.
        key: Key that signs; None for none.
        seal: The seal that readers require; None if they require none.

    Raises:
        IntegrityError, CommitConflictError, OSError: As `sealing`.
    """
    if seal is None or key is None or not has_seal(where, key, seal.signed_by):
        yield
        return
    with sealing(where, key, signed_by=seal.signed_by, at_least=seal.at_least):
        yield


def has_seal(where: Any, key: SigningKey, signed_by: Iterable[VerifyingKey]) -> bool:
    """Return whether a dataset has a seal; raise IntegrityError if it lost one."""
    writer = make_seal_writer(key, signed_by)
    return writer.begin(_ledger_at(where, None)).statement is not None


def declare_changes(
    ledger: Ledger, writer: SealWriter, changes: Changes, valid_for: int | None = None
) -> SealUpdate:
    """Sign changes, again after the statements of other writers; raise as `sealing`."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return _declare(ledger, writer, changes, valid_for)
        except CommitConflictError:
            if not left:
                raise
    raise AssertionError  # the last attempt returns or raises


def select_visible(changes: Changes) -> dict[str, SealedFile | None]:
    """Return the changes of files that readers of datasets read."""
    return {
        path: file
        for path, file in changes.items()
        if not any(part.startswith((".", "_")) for part in path.split("/"))
    }


def _ledger_at(where: Any, filesystem: Any) -> Ledger:
    place = where if isinstance(where, Place) else Place(*locate(where, filesystem))
    return dataset_ledger(place)


def _check_ready(ledger: Ledger, writer: SealWriter) -> None:
    if writer.begin(ledger).statement is None and _has_files(ledger.folder):
        raise IntegrityError(
            f"{ledger.place.path} does not exist, but the folder has files: check and sign them "
            "first, with seal_dataset (modcrypt seals create)"
        )


def _has_files(folder: Place) -> bool:
    try:
        return bool(list_files(folder, None, every_link=True))
    except FileNotFoundError:
        return False


def _declare(
    ledger: Ledger, writer: SealWriter, changes: Changes, valid_for: int | None
) -> SealUpdate:
    former = writer.begin(ledger)
    if former.statement is not None:
        return sign_changes(ledger, writer, former, changes, valid_for)
    files = {path: file for path, file in changes.items() if file is not None}
    draft = Draft(new_dataset_id(), {"since": []}, encode_files(files), valid_for)
    statement = writer.write(ledger, former, draft)
    return describe_update(statement, files)


def record_here(folder: Place) -> AbstractContextManager[WriteRecord[SealedFile]]:
    """Record what this process writes to a dataset, for `note_changes` in the one that signs."""
    return record_writes(folder, _describe)


def format_changes(record: WriteRecord[SealedFile]) -> str:
    """Return what a process recorded as text that `note_changes` reads."""
    return encode_files(select_visible(record.changes)).decode()


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
