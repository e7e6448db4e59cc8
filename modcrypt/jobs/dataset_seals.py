"""Seals of datasets: `seal_dataset` signs what files a folder has, `verify_seal` compares.

Anyone who can read a file of Parquet Modular Encryption can forge it, by its symmetric keys. A seal
lists the SHA-256 of each whole file, signed by the writer, so that readers detect files that are
missing, foreign, altered or moved, whatever keys the attacker has. The number of the seal detects
that a whole folder was rolled back, if the reader knows the last number.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from modcrypt.errors import CommitConflictError, FormatError, IntegrityError, LimitError, list_names
from modcrypt.io.addresses import is_url
from modcrypt.io.places import Place, Root
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.stores import locate
from modcrypt.jobs.engine import Job, run_job
from modcrypt.kms.signing.ledger import SEAL_NAME, Ledger
from modcrypt.kms.signing.proposals import read_proposal, write_proposal
from modcrypt.kms.signing.required_seal import RequiredSeal, load_seal
from modcrypt.kms.signing.seal_format import (
    Changes,
    Seal,
    SealedFile,
    apply_changes,
    dataset_ledger,
    encode_files,
    list_since,
    load_newest,
)
from modcrypt.kms.signing.seal_writing import Former, SealWriter, make_seal_writer, new_dataset_id
from modcrypt.kms.signing.sealed_statements import Draft, Statement
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, check_verifying_keys
from modcrypt.kms.signing.trusted_writers import WriterChange
from modcrypt.parquet.datasets.discovery import find_hidden, list_files, list_sized_files
from modcrypt.parquet.format.framing import close_tail, read_tail
from modcrypt.parquet.signatures.signers import hash_footer
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class SealFinding(JsonFields):
    """A difference between a dataset and its seal.

    Attributes:
        path: Path inside the dataset.
        problem: `"missing"`, `"foreign"` (not in the seal, or a link that makes readers read files
            twice), `"changed"`, or `"hidden"` from readers
            by a note about a write, which anyone can put into the folder.
    """

    path: str
    problem: Literal["missing", "foreign", "changed", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealVerification(JsonFields):
    """The result of the comparison of a dataset with its seal.

    Attributes:
        sequence: Number of the seal; store it, and pass it as `at_least` next time.
        signer: Ids of the keys that signed, with commas between them.
        dataset: Id of the dataset; None for seals of version 1.
        name: `NUMBER:HASH` of the seal; store it, and pass it as `after` next time.
        files: Number of files in the seal.
        findings: Differences; none if the dataset is what the writer signed.
    """

    sequence: int
    signer: str
    dataset: str | None
    name: str
    files: int
    findings: tuple[SealFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the dataset is what the writer signed."""
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class SealUpdate(JsonFields):
    """A new seal that states changes.

    Attributes:
        sequence: Number of the seal.
        signer: Ids of the keys that signed, with commas between them.
        dataset: Id of the dataset.
        name: `NUMBER:HASH` of the seal.
        added: Paths of files that were added or replaced.
        removed: Paths of files that were removed.
    """

    sequence: int
    signer: str
    dataset: str
    name: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@accept_former_names(where="source", threads="jobs")
def seal_dataset(
    source: Any,
    key: SigningKey | Sequence[SigningKey],
    *,
    signed_by: Iterable[VerifyingKey] = (),
    accept: Iterable[str] = (),
    at_least: int = 0,
    valid_for: int | None = None,
    filesystem: Any = None,
    jobs: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SealVerification:
    """Sign what files a dataset has, in a new seal beside them that replaces the old one.

    Every file that readers of the folder read is hashed; encrypted or not, no key is needed. If
    there is an old seal, the files must be those that it states: `update_seal` states changes.

    Args:
        source: Path or URL of a folder.
        key: Key that signs, or several of them.
        signed_by: Keys of other writers who may have signed the old seal.
        accept: Files that may differ from the old seal, by their paths inside the dataset; a folder
            stands for all files below it, and `"_modcrypt_seal.json"` for an old seal that was lost
            or replaced by an older one.
        at_least: Number that the old seal must have at least; the key's memory has a number, too.
        valid_for: Seconds after which readers refuse the seal; None for as long as the old one, 0
            for no limit.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        jobs: Number of files read concurrently, 4 by default.
        progress: Function called with the number of files hashed, and of all files.

    Raises:
        IntegrityError: Files differ from the old seal and are not accepted; or the old seal is
            signed by none of these keys, is older than the last one that this key signed, or lost.
        CommitConflictError: Another writer replaced the seal at the same time; nothing changed.
        ValueError: A symbolic link leads to a folder whose files the dataset has anyway.
        OSError, FileNotFoundError: The file system reports an error.
    """
    ledger, allowed = ledger_at(source, filesystem), [*accept]
    writer = make_seal_writer(key, signed_by, at_least, accept_lost=SEAL_NAME in allowed)
    former = writer.begin(ledger)
    old = None if former.statement is None else _load_all(ledger, writer, former)
    found = _hash_files(source, filesystem, jobs, progress)
    if found.links:
        raise ValueError(
            f"{found.links[0]} leads to a folder of the dataset, so that readers may read its rows "
            "twice; remove the link"
        )
    if old is not None:
        accepted = {_path_of(name, source, ledger.folder) for name in allowed}
        _check_accepted(ledger, _compare(old, found), accepted)
    files = {path: file for path, file in found.files.items() if path not in found.hidden}
    draft = Draft(former.dataset or new_dataset_id(), {"since": []}, encode_files(files), valid_for)
    return _make_result(Seal(writer.write(ledger, former, draft), files), ())


@accept_former_names(where="source", threads="jobs")
def update_seal(
    source: Any,
    key: SigningKey | Sequence[SigningKey],
    *,
    added: Iterable[str] = (),
    removed: Iterable[str] = (),
    signed_by: Iterable[VerifyingKey] = (),
    at_least: int = 0,
    valid_for: int | None = None,
    propose: bool = False,
    filesystem: Any = None,
    jobs: int | None = None,
) -> SealUpdate:
    """Sign that files of a dataset were added, replaced or removed since its seal.

    Only these files are hashed, as they are now; the new seal states of all others what the old one
    did.

    Args:
        source, key, signed_by, at_least, valid_for, filesystem, jobs: As for `seal_dataset`.
        added: Files that were added or replaced, by their paths inside the dataset or as they are;
            a folder stands for all files below it.
        removed: Files that were removed, by their paths inside the dataset.
        propose: Whether other writers must sign as well, with `cosign_seal`: the seal is written
            beside the newest one, and becomes it once enough have signed.

    Raises:
        IntegrityError: There is no seal, or as `seal_dataset`.
        ValueError: Readers of the dataset do not read a file that was added, or the seal has none
            of a path that was removed.
        CommitConflictError, OSError: As `seal_dataset`.
    """
    ledger = ledger_at(source, filesystem)
    writer = make_seal_writer(key, signed_by, at_least)
    former = begin_change(ledger, writer, signs=not propose)
    gone = [_path_of(name, source, ledger.folder) for name in removed]
    known = _load_all(ledger, writer, former).files if gone else {}
    if unknown := [path for path in gone if path not in known]:
        raise ValueError(f"the seal has no {list_names(unknown)}")
    places = [place for name in added for place in _list_added(name, source, ledger.folder)]
    changes: dict[str, SealedFile | None] = dict.fromkeys(gone)
    for place, file in zip(places, run_job(Job(hash_file), places, jobs=jobs), strict=True):
        changes[_path_inside(place, ledger.folder)] = file
    if still := [path for path in gone if ledger.folder.below(path).exists()]:
        raise ValueError(f"{list_names(still)} must be removed before the seal says so")
    if propose:
        return propose_changes(ledger, writer, former, changes, valid_for)
    return sign_changes(ledger, writer, former, changes, valid_for)


def sign_changes(
    ledger: Ledger, writer: SealWriter, former: Former, changes: Changes,
    valid_for: int | None = None, writers: WriterChange | None = None, dataset: str | None = None,
) -> SealUpdate:  # fmt: skip
    """Sign changes of files, or of writers; raise as `SealWriter.write`.

    `dataset` is the id of a dataset that has none yet.
    """
    draft = _draft(ledger, writer, former, changes, valid_for)
    draft = replace(draft, writers=writers, dataset=former.dataset or dataset or draft.dataset)
    return describe_update(writer.write(ledger, former, draft), changes)


def _draft(
    ledger: Ledger, writer: SealWriter, former: Former, changes: Changes, valid_for: int | None
) -> Draft:
    since, content = list_since(former.statement), encode_files(changes)
    if not since:  # enough changes to add up: list all files again
        files = dict(_load_all(ledger, writer, former).files)
        apply_changes(files, changes)
        content = encode_files(files)
    return Draft(former.dataset or new_dataset_id(), {"since": since}, content, valid_for)


def describe_update(statement: Statement, changes: Changes) -> SealUpdate:
    """Return a seal, and the changes that it states, as a result."""
    assert statement.dataset is not None
    kept = tuple(path for path, file in changes.items() if file is not None)
    return SealUpdate(
        sequence=statement.sequence, signer=statement.signer_ids, dataset=statement.dataset,
        name=statement.name, added=kept, removed=tuple(sorted(changes.keys() - set(kept))),
    )  # fmt: skip


def propose_changes(
    ledger: Ledger, writer: SealWriter, former: Former, changes: Changes, valid_for: int | None
) -> SealUpdate:
    """Write a proposal that states changes; raise as `read_proposal`."""
    if not list_since(former.statement):
        raise ValueError(
            "the next seal must list all files, which no proposal may; make it with all signatures"
        )
    draft = _draft(ledger, writer, former, changes, valid_for)
    write_proposal(ledger, writer.encode(ledger, former, draft))
    return describe_update(read_proposal(ledger, writer).statement, changes)


@accept_former_names(where="source", threads="jobs")
def verify_seal(
    source: Any,
    signed_by: Iterable[VerifyingKey],
    *,
    at_least: int = 1,
    needed: int = 1,
    dataset: str | None = None,
    witnessed_by: Iterable[VerifyingKey] = (),
    witness_store: Root | None = None,
    after: str | None = None,
    filesystem: Any = None,
    jobs: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SealVerification:
    """Compare the files of a dataset with its seal.

    A file that changes afterwards is not noticed: copy the dataset to a place of your own first, if
    others can write to its folder while you read it.

    Args:
        source, filesystem, jobs, progress: As for `seal_dataset`.
        signed_by: Keys whose signatures are accepted.
        at_least: Number that the seal must have at least: the last one that you have seen.
        needed: Number of these keys that must have signed.
        dataset: Id that the dataset must have; None accepts another dataset of the same writers.
        witnessed_by: Keys of witnesses, each of whom must have countersigned the seal.
        witness_store: Folder of their statements, which the store of the dataset cannot change.
        after: Name of a seal that you have seen, as `SealVerification.name` has it: the newest one
            must be it, or follow it.

    Raises:
        IntegrityError: There is no seal, too few of the keys signed it, or it is an older one, has
            expired or is that of another dataset.
        FormatError: The seal is signed, but malformed.
        OSError, FileNotFoundError: The file system reports an error.
    """
    required = RequiredSeal(
        tuple(check_verifying_keys(signed_by).values()), at_least, needed=needed, dataset=dataset,
        witnessed_by=tuple(witnessed_by), witness_store=witness_store,
        after=after,
    )  # fmt: skip
    seal = load_seal(Place(*locate(source, filesystem)), required)
    found = _hash_files(source, filesystem, jobs, progress)
    return _make_result(seal, _compare(seal, found))


def begin_change(ledger: Ledger, writer: SealWriter, *, signs: bool = True) -> Former:
    """Return the statement that a seal with changes follows; raise as `update_seal`."""
    former = writer.begin(ledger, signs=signs)
    if former.statement is None:
        raise IntegrityError(
            f"{ledger.place.address} does not exist: sign all files first, with seal_dataset "
            "(modcrypt seals create)"
        )
    return former


def _load_all(ledger: Ledger, writer: SealWriter, former: Former) -> Seal:
    """Return the files that the statement to be followed states."""
    seal = load_newest(ledger, writer.trust)
    if seal is None or former.statement is None or seal.statement.hash != former.statement.hash:
        raise CommitConflictError(f"{ledger.place.address} was replaced just now; try again")
    return seal


def _check_accepted(ledger: Ledger, findings: Iterable[SealFinding], accepted: set[str]) -> None:
    left = [
        finding for finding in findings
        if not any(f"{finding.path}/".startswith(f"{path}/") for path in accepted)
    ]  # fmt: skip
    if left:
        names = list_names(f"{finding.path} ({finding.problem})" for finding in left)
        raise IntegrityError(
            f"{ledger.folder.address} is not what its seal states: {names}; find out who changed "
            "them, then name them with accept= (--accept), or sign your own changes with "
            "update_seal (modcrypt seals add, remove)"
        )


def _path_of(name: str, where: Any, folder: Place) -> str:
    """Return the path inside a dataset that a caller names: as it is there, or whole."""
    # A relative name is that of a file inside the dataset first: what else it could mean depends on
    # the working directory.
    text = os.fspath(name).rstrip("/")
    start = "" if isinstance(where, Place) else f"{os.fspath(where).rstrip('/')}/"
    if start and text.startswith(start):
        return text[len(start) :]
    local = folder.filesystem is None
    if not is_url(text) and (not local or os.path.lexists(folder.below(text).path)):
        return text
    filesystem = None if is_url(text) else folder.filesystem
    return Place(*locate(text, filesystem)).inside(folder) or text


def _list_added(name: str, where: Any, folder: Place) -> list[Place]:
    """Return the places of a file, or of the files below a folder, which readers read."""
    path = _path_of(name, where, folder)
    place = folder.below(path)
    if any(part.startswith((".", "_")) for part in path.split("/")):
        raise ValueError(f"{path}: readers of datasets skip names that begin with . or _")
    return list_files(place, None, every_link=True)


def _make_result(seal: Seal, findings: Iterable[SealFinding]) -> SealVerification:
    statement = seal.statement
    return SealVerification(
        sequence=statement.sequence, signer=statement.signer_ids, dataset=statement.dataset,
        name=statement.name, files=len(seal.files), findings=tuple(findings),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _FoundFiles:
    """The files of a dataset, by their paths inside it."""

    files: dict[str, SealedFile]
    hidden: set[str]  # files that notes about writes hide from readers
    links: list[str]  # links to folders whose files are among these


def _compare(seal: Seal, found: _FoundFiles) -> list[SealFinding]:
    findings = [SealFinding(path, "foreign") for path in found.links]
    for path in seal.files.keys() | found.files.keys():
        if path not in found.files:
            findings.append(SealFinding(path, "missing"))
        elif path not in seal.files:
            findings.append(SealFinding(path, "foreign"))
        elif path in found.hidden:
            findings.append(SealFinding(path, "hidden"))
        elif found.files[path] != seal.files[path]:
            findings.append(SealFinding(path, "changed"))
    return sorted(findings, key=lambda finding: finding.path)


def ledger_at(where: Any, filesystem: Any) -> Ledger:
    """Return the ledger of the seals of a dataset in a folder."""
    return dataset_ledger(Place(*locate(where, filesystem)))


def _hash_files(
    where: Any, filesystem: Any, jobs: int | None, progress: Callable[[int, int], object] | None
) -> _FoundFiles:
    folder, links = Place(*locate(where, filesystem)), list[Place]()
    listed = list_sized_files(where, filesystem, every_link=True, folder_links=links)
    places = [place for place, _ in listed]
    paths = [_path_inside(place, folder) for place in places]
    hashed: dict[str, SealedFile] = {}
    for path, file in zip(paths, run_job(Job(hash_file), places, jobs=jobs), strict=True):
        hashed[path] = file
        if progress is not None:
            progress(len(hashed), len(places))
    hidden = {_path_inside(place, folder) for place in find_hidden(places)}
    return _FoundFiles(hashed, hidden, sorted(_path_inside(place, folder) for place in links))


def _path_inside(place: Place, folder: Place) -> str:
    if (path := place.inside(folder)) is None:
        raise ValueError("a seal is for a folder, not for a file")
    return path


def hash_file(place: Place) -> SealedFile:
    """Return the size and hashes that a seal states about a file; raise OSError if unreadable."""
    with open_source_at(place) as source:
        size, sha256 = hash_source(source)
        return SealedFile(size, sha256, hash_end(source))


def hash_source(source: Source) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    digest = hashlib.sha256()
    for start in range(0, source.size, _BLOCK):
        digest.update(source.read_at(start, min(_BLOCK, source.size - start)))
    return source.size, digest.hexdigest()


def hash_end(source: Source) -> str | None:
    """Return the hash of the end of a Parquet file; None for other files."""
    try:
        tail = read_tail(source)
    except (FormatError, LimitError):
        return None
    return hash_footer(close_tail(tail.data, tail.magic))
