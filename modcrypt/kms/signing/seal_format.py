"""The format of a dataset's seal, which states its files and is signed by their writer.

    {"format":"modcrypt-seal",...,"content":HEX,"since":[[6,HEX]]}
    {"signatures":...}
    [["day=1/part-0.parquet",4711,HEX,HEX],["day=1/part-1.parquet"],...]

A statement as in `sealed_statements`. Its content lists files: path, size, SHA-256 of all bytes,
and for Parquet that of the end, which is footer, length of the footer and magic, else null. If
`since` is empty, these are all files. Otherwise they are the ones that were added or replaced since
the statement before, and, as a path alone, those that were removed; `since` has number and hash of
the statements that lead there, beginning with one that lists all files.

Version 1 lists all files, in `files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError, KeyMaterialError
from modcrypt.io.places import Place
from modcrypt.io.threads import in_threads
from modcrypt.kms.signing.ledger import Ledger, Seen
from modcrypt.kms.signing.sealed_statements import SealFormat, Statement, is_hash, is_number
from modcrypt.kms.signing.trusted_writers import Trust
from modcrypt.pkmt1.strict_json import strict_json

DATASET = SealFormat("modcrypt-seal", ("files",), ("since",))

MAX_PATH = 4096
"""Length limit of a path in characters."""

THREADS = 8  # number of older statements read concurrently

MAX_SINCE = 64
"""Largest number of statements that a reader adds up; then a statement lists all files again."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """The statement of a seal about a file."""

    size: int  # size in bytes
    sha256: str  # SHA-256 of the file in hex
    footer: str | None  # SHA-256 of its end, the footer and what follows; None if it is not Parquet


Changes = Mapping[str, SealedFile | None]
"""Files that were added or replaced, by their paths; None for those that were removed."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The statement of a writer about a dataset."""

    statement: Statement  # what all seals state
    files: Mapping[str, SealedFile]  # files by their paths inside the dataset


def encode_files(changes: Changes) -> bytes:
    """Return the content of a statement about these files."""
    if wrong := [path for path in changes if not _is_path(path)]:
        raise ValueError(f"{wrong[0]!r} is not a path that a seal can state")
    listed = [
        [path] if file is None else [path, file.size, file.sha256, file.footer]
        for path, file in sorted(changes.items())
    ]
    return json.dumps(listed, separators=(",", ":")).encode()


def list_since(former: Statement | None) -> list[list[Any]]:
    """Return `since` for changes after a statement; empty if all files must be listed."""
    if former is None:
        return []
    since = [*_parse_since(former), (former.sequence, former.hash)]
    return [] if len(since) > MAX_SINCE else [list(entry) for entry in since]


def dataset_ledger(folder: Place) -> Ledger:
    """Return the ledger of the dataset in a folder."""
    return Ledger(folder, DATASET, "dataset")


def load_newest(ledger: Ledger, trust: Trust) -> Seal | None:
    """Return the newest seal of a dataset; None if there is none. Raise as `Ledger.read`."""
    if (found := ledger.read(trust)) is None:
        return None
    with ledger.name_errors():
        return load_files(ledger, *found)


def load_files(ledger: Ledger, statement: Statement, content: bytes | None) -> Seal:
    """Return the files of a verified statement of a dataset.

    Raise IntegrityError if an older statement that it refers to is missing, or another one.
    """
    if statement.dataset is None:
        return Seal(statement, dict(_complete(_parse_files(statement.members["files"]))))
    return Seal(statement, _add_up(ledger, _parse_since(statement), content or b""))


def load_seen(ledger: Ledger, seen: Seen) -> dict[str, SealedFile]:
    """Return the files of a statement that was verified before; raise as `load_files`."""
    with ledger.name_errors():
        members, content = ledger.read_seen(seen)
        if not content:
            return dict(_complete(_parse_files(members["files"])))
        return _add_up(ledger, members["since"], content)


def _add_up(
    ledger: Ledger, since: Iterable[Sequence[Any]], content: bytes
) -> dict[str, SealedFile]:
    older = in_threads(
        lambda entry: parse_archived(*ledger.read_archived(*entry)), list(since), THREADS
    )
    files: dict[str, SealedFile] = {}
    for number, changes in enumerate([*older, parse_content(content)]):
        apply_changes(files, changes, first=number == 0)
    return files


def parse_archived(members: Mapping[str, Any], content: bytes) -> Changes:
    """Return the files that a statement of any version lists, given its members and content."""
    return parse_content(content) if content else _parse_files(members.get("files"))


def parse_content(content: bytes) -> dict[str, SealedFile | None]:
    """Parse the content of a statement; raise FormatError if it is malformed."""
    try:
        return _parse_files(strict_json(content))
    except KeyMaterialError as error:
        raise FormatError(f"the content of the seal is malformed: {error}") from None


def apply_changes(files: dict[str, SealedFile], changes: Changes, *, first: bool = False) -> None:
    """Add, replace and remove files; the first changes list all of them, and remove none."""
    if first:
        files.update(_complete(changes))
        return
    for path, file in changes.items():
        if file is None:
            files.pop(path, None)
        else:
            files[path] = file


def _complete(changes: Changes) -> Iterable[tuple[str, SealedFile]]:
    for path, file in changes.items():
        if file is None:
            raise FormatError("a seal that lists all files names one that was removed")
        yield path, file


def _parse_since(statement: Statement) -> list[tuple[int, str]]:
    if statement.dataset is None:
        return []
    since = statement.members["since"]
    if not isinstance(since, list) or len(since) > MAX_SINCE:
        raise FormatError(f"the seal refers to no list of at most {MAX_SINCE} older ones")
    pairs = [entry for entry in since if isinstance(entry, list) and len(entry) == 2]
    if len(pairs) < len(since) or not all(is_number(n) and is_hash(h) for n, h in pairs):
        raise FormatError("the seal refers to an older one without a valid number or hash")
    if pairs and pairs[-1] != [statement.sequence - 1, statement.previous]:
        raise FormatError("the seal does not follow the last one that it refers to")
    return [(number, hash_) for number, hash_ in pairs]


def _parse_files(entries: Any) -> dict[str, SealedFile | None]:
    if not isinstance(entries, list):
        raise FormatError("the files of the seal are not a list")
    files: dict[str, SealedFile | None] = {}
    last = ""
    for entry in entries:
        if not isinstance(entry, list) or len(entry) not in (1, 4):
            raise FormatError("a file of the seal is not a list of path, size and two hashes")
        path = entry[0]
        if not _is_path(path) or path <= last:
            raise FormatError("the paths of the seal are invalid, or not in order")
        files[path], last = None if len(entry) == 1 else _parse_file(*entry), path
    return files


def _parse_file(path: str, size: Any, sha256: Any, footer: Any) -> SealedFile:
    if not is_number(size) or not is_hash(sha256) or not (footer is None or is_hash(footer)):
        raise FormatError("a file of the seal has no valid size or hash")
    return SealedFile(size, sha256, footer)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH:
        return False
    return not any(part in ("", ".", "..") for part in value.split("/"))
