"""Signed statements that follow each other: the form of all seals.

    {"format":"...","version":1,"signer":"modcrypt-verifier:...","sequence":7,"previous":HEX,...}
    {"signature":"..."}

Two lines of JSON. `previous` is the SHA-256 of the seal before, null for the first one; the members
that follow depend on the format. The signature, in base64, is over `"modcrypt-seal" | 0x00 | 0x01`
and the SHA-256 of the first line: key services sign short messages.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    KeyMaterialError,
    ModcryptError,
)
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json

SEAL_NAME = "_modcrypt_seal.json"
"""Name of a seal; readers of datasets and tables skip names that begin with an underscore."""

VERSION = 1

MAX_SEAL = 1 << 30
"""Size limit of a seal in bytes: enough for some million files."""
MAX_SIGNATURE_LINE = 8192
"""Size limit of the second line in bytes, which is parsed before anything is verified."""
MAX_NUMBER = 2**63 - 1
"""Limit of sizes and sequence numbers: an int64, for other readers of JSON."""

_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)
"""Errors of opening a folder, a pipe, a socket, and links in a circle."""

_CONTEXT = b"modcrypt-seal\x00\x01"
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_COMMON = ("format", "version", "signer", "sequence", "previous")


@dataclass(frozen=True, slots=True)
class Statement:
    """The content of a seal, which a writer has signed.

    Attributes:
        signer: Key that verifies the signature.
        sequence: Number of the seal, from 1 on.
        previous: SHA-256 of the previous seal in hex; None for the first one.
        members: The other members, which the format of the seal defines.
    """

    signer: VerifyingKey
    sequence: int
    previous: str | None
    members: Mapping[str, Any]


def encode_statement(
    key: SigningKey, format_name: str, old: bytes | None, members: Mapping[str, Any]
) -> bytes:
    """Return a signed seal that follows the seal `old`, which the caller has verified."""
    before = None if old is None else _parse_statement(_split(old)[0], format_name, [*members])
    document = {
        "format": format_name,
        "version": VERSION,
        "signer": str(key.verifier),
        "sequence": 1 if before is None else before.sequence + 1,
        "previous": None if old is None else hashlib.sha256(old).hexdigest(),
        **members,
    }
    statement = json.dumps(document, separators=(",", ":")).encode()
    signature = base64.b64encode(key.sign(_message(statement))).decode()
    return statement + b"\n" + json.dumps({"signature": signature}).encode() + b"\n"


def open_statement(
    data: bytes, signed_by: Mapping[str, VerifyingKey], format_name: str, names: list[str]
) -> Statement:
    """Verify and parse a seal of a format whose own members have these names.

    Raises:
        IntegrityError: None of the keys signed the seal, or it was altered.
        FormatError: It is signed, but malformed, or of another format.
    """
    statement, rest = _split(data)
    signature = _parse_signature(rest)
    message = _message(statement)
    signers = [key for key in signed_by.values() if key.verify(signature, message)]
    if not signers:
        raise IntegrityError(
            f"the seal is not signed by {', '.join(signed_by)}: it was altered, or others signed it"
        )
    seal = _parse_statement(statement, format_name, names)
    if seal.signer not in signers:
        raise IntegrityError("the seal names another signer than the one whose signature it has")
    return seal


def check_sequence(seal: Statement, at_least: int, what: str) -> None:
    """Raise IntegrityError if a seal of something (`what`) is older than one seen before."""
    if seal.sequence < at_least:
        raise IntegrityError(
            f"the seal has number {seal.sequence}, but {at_least} was seen before: the {what} was "
            "rolled back"
        )


@contextlib.contextmanager
def name_seal(place: Place) -> Iterator[None]:
    """Add the path of a seal to errors about it."""
    try:
        yield
    except ModcryptError as error:
        error.args = (f"{place.path}: {error}",)
        raise


def read_seal(place: Place) -> bytes | None:
    """Return the bytes of a seal; None if it does not exist.

    Raises:
        IntegrityError: It is too large, or something else than a file stands in its place.
        OSError: The file system reports an error.
    """
    try:
        with open_source_at(place) as source:
            if source.size > MAX_SEAL:
                raise IntegrityError(f"{place.path}: a seal has at most {MAX_SEAL} bytes")
            return bytes(source.read_at(0, source.size))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise IntegrityError(f"{place.path} is not a file, so the seal is missing") from None


def replace_seal(place: Place, old: bytes | None, new: bytes) -> None:
    """Write a seal in place of the old one.

    Raises:
        CommitConflictError: Another writer replaced it at the same time; nothing changed.
    """
    if len(new) > MAX_SEAL:
        raise ValueError(f"a seal has at most {MAX_SEAL} bytes; seal folders below this one")
    with place.lock():
        if read_seal(place) != old:
            raise CommitConflictError(
                f"{place.path}: another writer has made a seal meanwhile; check what it seals, and "
                "seal again"
            )
        with open_sink_at(place) as sink:
            sink.append(new)


def is_number(value: Any) -> bool:
    """Return whether a value is a whole number of a seal."""
    return type(value) is int and 0 <= value <= MAX_NUMBER


def is_hash(value: Any) -> bool:
    """Return whether a value is SHA-256 in hex."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _message(statement: bytes) -> bytes:
    return _CONTEXT + hashlib.sha256(statement).digest()


def _split(data: bytes) -> tuple[bytes, bytes]:
    statement, _, rest = data.partition(b"\n")
    return statement, rest


def _parse_signature(line: bytes) -> bytes:
    with contextlib.suppress(KeyMaterialError):
        if len(line) <= MAX_SIGNATURE_LINE:  # parsed lists take 40 times their size
            members = require_members(strict_json(line), "signature")
            return decode_base64(members["signature"], "the signature")
    raise IntegrityError("the seal has no signature, or one that is malformed or too long")


def _parse_statement(statement: bytes, format_name: str, names: list[str]) -> Statement:
    try:
        members = dict(require_members(strict_json(statement), *_COMMON, *names))
        found, version, signer, sequence, previous = (members.pop(name) for name in _COMMON)
        if found != format_name or type(version) is not int or version != VERSION:
            raise FormatError(f"the format of the seal is not {format_name}, version {VERSION}")
        if previous is not None and not is_hash(previous):
            raise FormatError("the hash of the previous seal is not SHA-256 in hex")
        if not is_number(sequence) or sequence == 0:
            raise FormatError("the sequence number of the seal is not a number from 1 on")
        return Statement(VerifyingKey.parse(str(signer)), sequence, previous, members)
    except KeyMaterialError as error:
        raise FormatError(f"the seal is malformed: {error}") from None
