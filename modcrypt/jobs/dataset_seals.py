"""Seals of datasets: `seal_dataset` signs what files a folder has, `verify_seal` compares.

Whoever can read a file of Parquet Modular Encryption can forge it, with its symmetric keys. A seal
lists the SHA-256 of each whole file, signed by the writer, so that readers detect files that are
missing, foreign, altered or moved, whatever keys the attacker has. The number of the seal detects
that a whole folder was rolled back, if the reader knows the last number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from modcrypt.errors import FormatError, LimitError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.io.stores import locate
from modcrypt.jobs.engine import Job, run_job
from modcrypt.kms.signing.required_seal import load_seal
from modcrypt.kms.signing.seal_format import Seal, SealedFile, encode_seal, open_seal
from modcrypt.kms.signing.sealed_statements import SEAL_NAME, name_seal, read_seal, replace_seal
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, check_verifying_keys
from modcrypt.parquet.datasets.discovery import list_files, split_hidden
from modcrypt.parquet.format.framing import close_tail, read_tail
from modcrypt.parquet.signatures.signers import hash_footer
from modcrypt.report.json_fields import JsonFields

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
        signer: Id of the key that signed.
        files: Number of files in the seal.
        findings: Differences; none if the dataset is what the writer signed.
    """

    sequence: int
    signer: str
    files: int
    findings: tuple[SealFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the dataset is what the writer signed."""
        return not self.findings


def seal_dataset(
    where: Any,
    key: SigningKey,
    *,
    signed_by: Iterable[VerifyingKey] = (),
    filesystem: Any = None,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SealVerification:
    """Sign what files a dataset has, in a new seal beside them that replaces the old one.

    Every file that readers of the folder read is hashed; encrypted or not, no key is needed.

    Args:
        where: Path or URL of a folder.
        key: Key that signs.
        signed_by: Keys of other writers who may have signed the old seal.
        filesystem: The pyarrow or fsspec filesystem of `where`.
        threads: Number of files read concurrently, 4 by default.
        progress: Function called with the number of files hashed, and of all files.

    Raises:
        IntegrityError: The old seal is signed by none of these keys.
        CommitConflictError: Another writer replaced the seal at the same time; nothing changed.
        ValueError: A symbolic link leads to a folder whose files the dataset has anyway.
        OSError, FileNotFoundError: The file system reports an error.
    """
    known = check_verifying_keys((key.verifier, *signed_by))
    place = _seal_place(where, filesystem)
    old = read_seal(place)
    if old is not None:
        with name_seal(place):
            open_seal(old, known)
    found = _hash_files(where, filesystem, threads, progress)
    if found.links:
        raise ValueError(
            f"{found.links[0]} leads to a folder of the dataset, so that readers may read its rows "
            "twice; remove the link"
        )
    files = {path: file for path, file in found.files.items() if path not in found.hidden}
    data = encode_seal(key, old, files)
    replace_seal(place, old, data)
    return _make_result(open_seal(data, known), ())


def verify_seal(
    where: Any,
    signed_by: Iterable[VerifyingKey],
    *,
    at_least: int = 1,
    filesystem: Any = None,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SealVerification:
    """Compare the files of a dataset with its seal.

    A file that changes afterwards is not noticed: copy the dataset to a place of your own first, if
    others can write to its folder while you read it.

    Args:
        where, filesystem, threads, progress: As for `seal_dataset`.
        signed_by: Keys whose signatures are accepted.
        at_least: Number that the seal must have at least: the last one that you have seen.

    Raises:
        IntegrityError: There is no seal, none of the keys signed it, or it is an older one.
        FormatError: The seal is signed, but malformed.
        OSError, FileNotFoundError: The file system reports an error.
    """
    seal = load_seal(_folder_at(where, filesystem), signed_by, at_least)
    found = _hash_files(where, filesystem, threads, progress)
    return _make_result(seal, _compare(seal, found))


def _make_result(seal: Seal, findings: Iterable[SealFinding]) -> SealVerification:
    statement = seal.statement
    return SealVerification(
        sequence=statement.sequence, signer=statement.signer.hex_id, files=len(seal.files),
        findings=tuple(findings),
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


def _folder_at(where: Any, filesystem: Any) -> Place:
    return Place(*locate(where, filesystem))


def _seal_place(where: Any, filesystem: Any) -> Place:
    return _folder_at(where, filesystem).below(SEAL_NAME)


def _hash_files(
    where: Any, filesystem: Any, threads: int | None, progress: Callable[[int, int], object] | None
) -> _FoundFiles:
    """Hash all files of a dataset."""
    folder, links = _folder_at(where, filesystem), list[Place]()
    places = list_files(where, filesystem, every_link=True, folder_links=links)
    paths = [_path_inside(place, folder) for place in places]
    hashed: dict[str, SealedFile] = {}
    for path, file in zip(paths, run_job(Job(_hash_file), places, threads=threads), strict=True):
        hashed[path] = file
        if progress is not None:
            progress(len(hashed), len(places))
    hidden = {_path_inside(place, folder) for place in split_hidden(places)[1]}
    return _FoundFiles(hashed, hidden, sorted(_path_inside(place, folder) for place in links))


def _path_inside(place: Place, folder: Place) -> str:
    path = place.inside(folder)
    if path is None:
        raise ValueError("a seal is for a folder, not for a file")
    return path


def _hash_file(place: Place) -> SealedFile:
    digest = hashlib.sha256()
    with open_source_at(place) as source:
        for start in range(0, source.size, _BLOCK):
            digest.update(source.read_at(start, min(_BLOCK, source.size - start)))
        return SealedFile(source.size, digest.hexdigest(), _hash_end(source))


def _hash_end(source: Source) -> str | None:
    try:
        tail = read_tail(source)
    except (FormatError, LimitError):
        return None
    return hash_footer(close_tail(tail.data, tail.magic))
