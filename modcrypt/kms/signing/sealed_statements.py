"""Signed statements that follow each other: the form of all seals.

    {"format":"...","version":2,"dataset":ID,"sequence":7,"previous":HEX,"time":1764362628,
     "expires":null,"writers":null,"content":HEX,...}
    {"writers":[...],"signatures":{ID:BASE64,...}}
    CONTENT

Lines of JSON. `previous` is the hash of the statement before, null for the first one; `content` is
the SHA-256 of the third line, and `writers` that of the changes in the second one, each null
without; the members that follow depend on the format. Each signature is over
`"modcrypt-seal" | 0x00 | 0x02` and the SHA-256 of the first line, which is the hash of the
statement: key services sign short messages. Readers check the signatures before they parse the
statement, and read the content only then.

Version 1 has one signer, `"signer":LINE`, a second line `{"signature":BASE64}`, and its content
among its members; its hash is over the whole file. A statement of version 2 may follow it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from modcrypt.errors import FormatError, IntegrityError, KeyMaterialError
from modcrypt.io.sources import Source
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import (
    Trust,
    WriterChange,
    find_signers,
    parse_changes,
    parse_signatures,
)
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members, strict_json

VERSION = 2

MAX_SEAL = 1 << 30
"""Size limit of a statement in bytes: enough for some million files."""
MAX_HEAD = 1 << 20
"""Size limit of the first line of version 2 in bytes: it has no content but for short lists."""
MAX_SIGNATURES = 256 << 10
"""Size limit of the second line in bytes, which is parsed before anything is verified."""
MAX_FIRST_SIGNATURE = 8192
"""Size limit of the second line of version 1 in bytes."""
MAX_NUMBER = 2**63 - 1
"""Limit of sizes, times and sequence numbers: an int64, for other readers of JSON."""

_BLOCK = 1 << 20
_CONTEXT = b"modcrypt-seal\x00"
_NO_SIGNATURE = "the seal has no signature, or one that is malformed or too long"
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_FIRST = ("format", "version", "signer", "sequence", "previous")
_SECOND = (
    "format", "version", "dataset", "sequence", "previous", "time", "expires", "writers", "content",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SealFormat:
    """A kind of seal."""

    name: str  # value of `format`
    first: tuple[str, ...]  # names of its own members in version 1; none if it came with version 2
    members: tuple[str, ...]  # names of its own members in version 2


@dataclass(frozen=True)
class Statement:
    """A signed statement, without its content."""

    dataset: str | None  # id of the dataset, the same in all its statements; None in version 1
    signers: tuple[VerifyingKey, ...]  # trusted keys that signed
    sequence: int  # number of the statement, from 1 on
    previous: str | None  # hash of the statement before, in hex; None for the first one
    hash: str  # hash of this statement, in hex
    time: int | None  # seconds since 1970 at which it was signed; None in version 1
    expires: int | None  # seconds since 1970 from which on readers refuse it; None for never
    # Changes of the keys that may sign, since the first statement
    writers: tuple[WriterChange, ...]
    content: str | None  # SHA-256 of the content in hex; None without content
    members: Mapping[str, Any]  # the other members, which the format of the seal defines
    start: int  # offset at which the content begins in the file

    @property
    def name(self) -> str:
        """`NUMBER:HASH`, by which readers remember the statement."""
        return f"{self.sequence}:{self.hash}"

    @property
    def valid_for(self) -> int | None:
        """Seconds for which the statement is valid; None without limit."""
        return self.expires and self.expires - (self.time or 0)

    def read_content(self, source: Source) -> bytes | None:
        """Return the content in the file of the statement, None without; raise as the function."""
        if self.content is None:
            return None
        return read_content(source, self.start, self.content, self.sequence)

    @property
    def signer_ids(self) -> str:
        """Ids of the keys that signed, as messages and results show them."""
        return ", ".join(key.hex_id for key in self.signers)

    def check(self, at_least: int, what: str, dataset: str | None = None) -> None:
        """Raise IntegrityError if a reader must refuse the statement about `what`.

        It is older than one seen before, has expired, or is about another dataset.
        """
        if self.sequence < at_least:
            raise IntegrityError(
                f"the seal has number {self.sequence}, but {at_least} was seen before: the {what} "
                "was rolled back"
            )
        if self.expires is not None and time.time() >= self.expires:
            raise IntegrityError(
                f"seal number {self.sequence} expired at {format_time(self.expires)}: its writer "
                "has not renewed it, or someone withholds a newer one"
            )
        if dataset is not None and self.dataset != dataset:
            raise IntegrityError(
                f"seal number {self.sequence} is that of another {what}, with the id "
                f"{self.dataset or 'none'}, not {dataset}"
            )


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a new statement; the rest follows from the statement before."""

    dataset: str  # id of the dataset
    members: Mapping[str, Any]  # members that the format defines
    content: bytes | None = None  # content, JSON in one line; None without
    # Seconds until readers refuse the statement; 0 for no limit, None for as long as the statement
    # before
    valid_for: int | None = None
    writers: WriterChange | None = None  # A change of the keys that may sign


def encode_statement(
    keys: Sequence[SigningKey], form: SealFormat, draft: Draft, after: tuple[int, str | None],
    writers: tuple[WriterChange, ...] = (),
) -> bytes:  # fmt: skip
    """Return a signed statement, which follows the one with number and hash `after`.

    `writers` are the changes that the statement before has.
    """
    now = int(time.time())
    added = () if draft.writers is None else (draft.writers,)
    changes = [change.encode() for change in (*writers, *added)]
    document = {
        "format": form.name,
        "version": VERSION,
        "dataset": draft.dataset,
        "sequence": after[0] + 1,
        "previous": after[1],
        "time": now,
        "expires": now + draft.valid_for if draft.valid_for else None,
        "writers": _hash_changes(changes),
        "content": None if draft.content is None else hashlib.sha256(draft.content).hexdigest(),
        **draft.members,
    }
    head = _compact(document)
    message = _message(VERSION, hashlib.sha256(head).digest())
    lines = [head, _compact({"writers": changes, "signatures": _sign(keys, message)})]
    return b"\n".join([*lines, *([] if draft.content is None else [draft.content]), b""])


def read_statement(source: Source, trust: Trust, form: SealFormat) -> Statement:
    """Verify and parse a statement, without its content.

    Raise IntegrityError if too few of the trusted keys signed it, or it was altered; and
    FormatError if it is signed, but malformed, or of another format.
    """
    if source.size > MAX_SEAL:
        raise IntegrityError(f"a seal has at most {MAX_SEAL} bytes")
    head, line = _split(source)
    if line is None:
        return _read_first(source, trust, form)
    changes, signatures = _parse_signatures(line)
    hash_ = hashlib.sha256(head)
    try:
        signers = trust.follow(changes).check_signed(signatures, _message(2, hash_.digest()))
    except IntegrityError as error:
        raise IntegrityError(f"{error}{_state_number(head)}") from None
    return Statement(
        **_parse_head(head, form, changes), signers=signers, hash=hash_.hexdigest(),
        start=len(head) + len(line) + 2,
    )  # fmt: skip


def _split(source: Source) -> tuple[bytes, bytes | None]:
    """Return the first two lines of a statement, unverified; None for the second in version 1."""
    start = source.read_at(0, min(source.size, MAX_HEAD + MAX_SIGNATURES + 2))
    head, _, rest = start.partition(b"\n")
    line, ended, _ = rest.partition(b"\n")
    return head, line if ended and b'"signatures"' in line else None


def _parse_head(head: bytes, form: SealFormat, changes: tuple[WriterChange, ...]) -> dict[str, Any]:
    members = _parse_members(head, form.name, VERSION, (*_SECOND, *form.members))
    dataset, made, expires, content = (
        members.pop(name) for name in ("dataset", "time", "expires", "content")
    )
    if not isinstance(dataset, str) or not _ID.fullmatch(dataset):
        raise FormatError("the dataset of the seal has no valid id")
    if not is_number(made) or not (expires is None or is_number(expires)):
        raise FormatError("the times of the seal are not numbers of seconds")
    if not (content is None or is_hash(content)):
        raise FormatError("the hash of the content is not SHA-256 in hex")
    others = any(change.dataset != dataset for change in changes)
    if others or members.pop("writers") != _hash_changes([change.encode() for change in changes]):
        raise IntegrityError("the changes of the writers are not those that were signed")
    return {
        "dataset": dataset, "time": made, "expires": expires, "content": content,
        "writers": changes, "sequence": members.pop("sequence"),
        "previous": members.pop("previous"), "members": members,
    }  # fmt: skip


def _parse_signatures(line: bytes) -> tuple[tuple[WriterChange, ...], dict[str, bytes]]:
    with contextlib.suppress(KeyMaterialError):
        if len(line) <= MAX_SIGNATURES:  # parsed lists take 40 times their size
            members = require_members(strict_json(line), "writers", "signatures")
            return parse_changes(members["writers"]), parse_signatures(members["signatures"])
    raise IntegrityError(_NO_SIGNATURE)


def _state_number(head: bytes) -> str:
    """Return the number that an unverified head states, for a message."""
    found = re.search(rb'"sequence":([0-9]{1,19})[,}]', head[:4096])
    return "" if found is None else f" (it claims the number {int(found[1])})"


def _read_first(source: Source, trust: Trust, form: SealFormat) -> Statement:
    """Read a statement of version 1, whose signature is in its last line."""
    end, signature = _find_first_signature(source)
    digest = _hash_range(source, end)
    signers = trust.check_signed(dict.fromkeys(trust.keys, signature), _message(1, digest))
    data = source.read_at(0, source.size)
    if hashlib.sha256(data[:end]).digest() != digest:
        raise IntegrityError("the seal changed while it was being read")
    return _parse_first(data[:end], form, signers, hashlib.sha256(data).hexdigest())


def _find_first_signature(source: Source) -> tuple[int, bytes]:
    """Return the signature of version 1, and where the statement before it ends."""
    first = max(0, source.size - MAX_FIRST_SIGNATURE - 1)
    last = source.read_at(first, source.size - first).removesuffix(b"\n")
    before, ended, line = last.rpartition(b"\n")
    try:
        members = require_members(strict_json(line if ended else b""), "signature")
        return first + len(before), decode_base64(members["signature"], "the signature")
    except KeyMaterialError:
        raise IntegrityError(_NO_SIGNATURE) from None


def _parse_first(
    data: bytes, form: SealFormat, signers: tuple[VerifyingKey, ...], hash_: str
) -> Statement:
    if b"\n" in data:  # an archived one is read as its first line
        raise FormatError("the statement of the seal has more than one line")
    members = _parse_members(data, form.name, 1, (*_FIRST, *form.first))
    if members.pop("signer") not in [str(key) for key in signers]:
        raise IntegrityError("the seal names another signer than the one whose signature it has")
    return Statement(
        dataset=None, signers=signers, sequence=members.pop("sequence"),
        previous=members.pop("previous"), hash=hash_, time=None, expires=None, writers=(),
        content=None, members=members, start=len(data),
    )  # fmt: skip


def _parse_members(data: bytes, name: str, version: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the members of a statement but for its format, with a checked place in the chain."""
    try:
        members = dict(require_members(strict_json(data), *names))
    except KeyMaterialError as error:
        raise FormatError(f"the seal is malformed: {error}") from None
    found, number = members.pop("format"), members.pop("version")
    if found != name or type(number) is not int or number != version:
        raise FormatError(f"the format of the seal is not {name}, version {version}")
    if not (members["previous"] is None or is_hash(members["previous"])):
        raise FormatError("the hash of the previous seal is not SHA-256 in hex")
    if not is_number(members["sequence"]) or members["sequence"] == 0:
        raise FormatError("the sequence number of the seal is not a number from 1 on")
    return members


def add_signatures(data: bytes, keys: Iterable[SigningKey]) -> bytes:
    """Return a statement of version 2 with further signatures.

    The caller has verified it under trust in the keys that have signed already.
    """
    head, line, *content = data.split(b"\n", 2)
    members = strict_json(line)
    message = _message(VERSION, hashlib.sha256(head).digest())
    members["signatures"] |= _sign(keys, message)
    return b"\n".join([head, _compact(members), *content])


def _sign(keys: Iterable[SigningKey], message: bytes) -> dict[str, str]:
    return {key.verifier.hex_id: encode_base64(key.sign(message)) for key in keys}


def find_statement_signers(
    source: Source, keys: Mapping[str, VerifyingKey]
) -> tuple[VerifyingKey, ...]:
    """Return which of these keys have signed a statement, allowed to or not.

    Nothing else is verified: the caller knows the statement by its hash.
    """
    head, line = _split(source)
    if line is not None:
        message = _message(2, hashlib.sha256(head).digest())
        return find_signers(keys, _parse_signatures(line)[1], message)
    end, signature = _find_first_signature(source)
    return find_signers(keys, dict.fromkeys(keys, signature), _message(1, _hash_range(source, end)))


def read_content(source: Source, start: int, expected: str | None, sequence: int) -> bytes:
    """Return the content of a statement, whose verified head states its hash.

    Raise IntegrityError if it is not what was signed.
    """
    size = max(0, source.size - start)
    small = size <= _BLOCK or _hash_range(source, start + size - 1, start).hex() == expected
    content = source.read_at(start, size).removesuffix(b"\n") if small else b""
    if hashlib.sha256(content).hexdigest() != expected:
        raise IntegrityError(f"the content of seal number {sequence} is not what was signed")
    return content


def hash_statement(source: Source) -> tuple[str, bytes | None, int]:
    """Return the hash of an archived statement, its head in version 2, and where content begins.

    Nothing is verified: the caller compares the hash with that of a verified statement.
    """
    head, line = _split(source)
    if line is None:
        return _hash_range(source, source.size).hex(), None, 0
    return hashlib.sha256(head).hexdigest(), head, len(head) + len(line) + 2


def is_number(value: Any) -> bool:
    """Return whether a value is a whole number of a seal."""
    return type(value) is int and 0 <= value <= MAX_NUMBER


def is_hash(value: Any) -> bool:
    """Return whether a value is SHA-256 in hex."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def format_time(seconds: int) -> str:
    """Return seconds since 1970 as people read them, in UTC."""
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"second {seconds}"


def _hash_changes(changes: list[list[Any]]) -> str | None:
    return hashlib.sha256(_compact(changes)).hexdigest() if changes else None


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _message(version: int, digest: bytes) -> bytes:
    return _CONTEXT + bytes((version,)) + digest


def _hash_range(source: Source, end: int, first: int = 0) -> bytes:
    """Hash bytes of a file in blocks: there may be many, and nothing is verified yet."""
    digest = hashlib.sha256()
    for start in range(first, end, _BLOCK):
        digest.update(source.read_at(start, min(_BLOCK, end - start)))
    return digest.digest()
