"""The format of a seal, which states the files of a dataset and is signed by their writer.

    {"format":"modcrypt-seal","version":1,"signer":"modcrypt-verifier:...","sequence":7,
     "previous":HEX,"files":[["day=1/part-0.parquet",4711,HEX],...]}
    {"signature":"..."}

Two lines of JSON. `previous` is the SHA-256 of the seal before, null for the first one; each file
has its path, its size and the SHA-256 of all its bytes. The signature, in base64, is over
`"modcrypt-seal" | 0x00 | 0x01` and the SHA-256 of the first line: key services sign short messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError, IntegrityError, KeyMaterialError
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json

FORMAT = "modcrypt-seal"
VERSION = 1

MAX_SEAL = 1 << 30
"""Size limit of a seal in bytes: enough for some million files."""
MAX_PATH = 4096
"""Length limit of a path in characters."""
MAX_NUMBER = 2**63 - 1
"""Limit of sizes and sequence numbers: an int64, for other readers of JSON."""

_CONTEXT = b"modcrypt-seal\x00\x01"
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """What a seal states about a file.

    Attributes:
        size: Size in bytes.
        sha256: SHA-256 of the file in hex.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The statement of a writer about a dataset.

    Attributes:
        signer: Key that verifies the signature.
        sequence: Number of the seal, from 1 on.
        previous: SHA-256 of the previous seal in hex; None for the first one.
        files: Files by their paths inside the dataset.
    """

    signer: VerifyingKey
    sequence: int
    previous: str | None
    files: Mapping[str, SealedFile]


def encode_seal(key: SigningKey, old: bytes | None, files: Mapping[str, SealedFile]) -> bytes:
    """Return a signed seal that follows the seal `old`, which the caller has verified."""
    before = None if old is None else _parse_statement(_split(old)[0])
    document = {
        "format": FORMAT,
        "version": VERSION,
        "signer": str(key.verifier),
        "sequence": 1 if before is None else before.sequence + 1,
        "previous": None if old is None else hashlib.sha256(old).hexdigest(),
        "files": [[path, files[path].size, files[path].sha256] for path in sorted(files)],
    }
    statement = json.dumps(document, separators=(",", ":")).encode()
    signature = base64.b64encode(key.sign(_message(statement))).decode()
    return statement + b"\n" + json.dumps({"signature": signature}).encode() + b"\n"


def open_seal(data: bytes, signed_by: Mapping[str, VerifyingKey]) -> Seal:
    """Verify and parse a seal.

    Raises:
        IntegrityError: None of the keys signed the seal, or it was altered.
        FormatError: It is signed, but malformed.
    """
    statement, rest = _split(data)
    try:
        members = require_members(strict_json(rest), "signature")
        signature = decode_base64(members["signature"], "the signature")
    except KeyMaterialError:
        raise IntegrityError("the seal has no signature, or a malformed one") from None
    message = _message(statement)
    signers = [key for key in signed_by.values() if key.verify(signature, message)]
    if not signers:
        raise IntegrityError(
            f"the seal is not signed by {', '.join(signed_by)}: it was altered, or others signed it"
        )
    seal = _parse_statement(statement)
    if seal.signer not in signers:
        raise IntegrityError("the seal names another signer than the one whose signature it has")
    return seal


def _message(statement: bytes) -> bytes:
    return _CONTEXT + hashlib.sha256(statement).digest()


def _split(data: bytes) -> tuple[bytes, bytes]:
    statement, _, rest = data.partition(b"\n")
    return statement, rest


def _parse_statement(statement: bytes) -> Seal:
    try:
        value = strict_json(statement)
        names = ("format", "version", "signer", "sequence", "previous", "files")
        members = require_members(value, *names)
        version, previous = members["version"], members["previous"]
        if members["format"] != FORMAT or type(version) is not int or version != VERSION:
            raise FormatError(f"the format is not {FORMAT}, version {VERSION}")
        if previous is not None and not _is_hash(previous):
            raise FormatError("the hash of the previous seal is not SHA-256 in hex")
        if not _is_number(members["sequence"]) or members["sequence"] == 0:
            raise FormatError("the sequence number of the seal is not a number from 1 on")
        signer = VerifyingKey.parse(str(members["signer"]))
        return Seal(signer, members["sequence"], previous, _parse_files(members["files"]))
    except KeyMaterialError as error:
        raise FormatError(f"the seal is malformed: {error}") from None


def _parse_files(entries: Any) -> dict[str, SealedFile]:
    if not isinstance(entries, list):
        raise FormatError("the files of the seal are not a list")
    files: dict[str, SealedFile] = {}
    last = ""
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3:
            raise FormatError("a file of the seal is not a list of path, size and hash")
        path, size, sha256 = entry
        if not _is_path(path) or path <= last:
            raise FormatError("the paths of the seal are invalid, or not in order")
        if not _is_number(size) or not _is_hash(sha256):
            raise FormatError("a file of the seal has no valid size or hash")
        files[path], last = SealedFile(size, sha256), path
    return files


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _is_path(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH:
        return False
    return not any(part in ("", ".", "..") for part in value.split("/"))
