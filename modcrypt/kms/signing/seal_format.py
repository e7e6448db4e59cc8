"""The format of a dataset's seal, which states its files and is signed by their writer.

    {"format":"modcrypt-seal",...,"files":[["day=1/part-0.parquet",4711,HEX,HEX],...]}

A statement as in `sealed_statements`; each file has its path, its size, the SHA-256 of all its
bytes, and for Parquet that of its end: footer, length of the footer and magic, else null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.kms.signing.sealed_statements import (
    Statement,
    encode_statement,
    is_hash,
    is_number,
    open_statement,
)
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey

FORMAT = "modcrypt-seal"

MAX_PATH = 4096
"""Length limit of a path in characters."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """The statement of a seal about a file.

    Attributes:
        size: Size in bytes.
        sha256: SHA-256 of the file in hex.
        footer: SHA-256 of its end, the footer and what follows; None if it is not Parquet.
    """

    size: int
    sha256: str
    footer: str | None


@dataclass(frozen=True, slots=True)
class Seal:
    """The statement of a writer about a dataset.

    Attributes:
        statement: What all seals state.
        files: Files by their paths inside the dataset.
    """

    statement: Statement
    files: Mapping[str, SealedFile]


def encode_seal(key: SigningKey, old: bytes | None, files: Mapping[str, SealedFile]) -> bytes:
    """Return a signed seal that follows the seal `old`, which the caller has verified."""
    listed = [[path, file.size, file.sha256, file.footer] for path, file in sorted(files.items())]
    return encode_statement(key, FORMAT, old, {"files": listed})


def open_seal(data: bytes, signed_by: Mapping[str, VerifyingKey]) -> Seal:
    """Verify and parse a seal; raise as `open_statement`."""
    statement = open_statement(data, signed_by, FORMAT, ["files"])
    return Seal(statement, _parse_files(statement.members["files"]))


def _parse_files(entries: Any) -> dict[str, SealedFile]:
    if not isinstance(entries, list):
        raise FormatError("the files of the seal are not a list")
    files: dict[str, SealedFile] = {}
    last = ""
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 4:
            raise FormatError("a file of the seal is not a list of path, size and two hashes")
        path, size, sha256, footer = entry
        if not _is_path(path) or path <= last:
            raise FormatError("the paths of the seal are invalid, or not in order")
        if not is_number(size) or not is_hash(sha256) or not (footer is None or is_hash(footer)):
            raise FormatError("a file of the seal has no valid size or hash")
        files[path], last = SealedFile(size, sha256, footer), path
    return files


def _is_path(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH:
        return False
    return not any(part in ("", ".", "..") for part in value.split("/"))
