"""Recipients: public keys, each on one line of text that may be published.

    modcrypt-recipient:x25519:BASE64URL-OF-THE-KEY:32-HEX-DIGITS-OF-ITS-ID

The id is a part of the SHA-256 of kind and key. It identifies the recipient in files, and is the
checksum of the line. A file of recipients has one in each line, and may have empty lines, comment
lines that begin with #, and comments after a recipient and white space.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from modcrypt.errors import KeyMaterialError, printable
from modcrypt.kms.recipients.kinds import encrypt_to, find_kind
from modcrypt.pkmt1.recipient_metadata import ID_SIZE, MAX_RECIPIENTS

PREFIX = "modcrypt-recipient"

MAX_LINE = 4096
"""Length limit of a line in a file of recipients, in bytes: a hybrid recipient has 1,690."""

MAX_RECIPIENTS_FILE = 8 << 20
"""Size limit of a file of recipients in bytes: enough for `MAX_RECIPIENTS` with comments."""

_ID_HASH = b"modcrypt-recipient-id\x00"
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Recipient:
    """The public key of someone who may open files; it is no secret.

    Args:
        kind: Kind of the key: `"mlkem768-x25519"` or `"x25519"`.
        public_key: The encoded public key.

    Raises:
        ValueError: The kind is unknown, or the key is invalid.
    """

    kind: str
    public_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        kind = find_kind(self.kind)
        if not isinstance(self.public_key, bytes) or len(self.public_key) != kind.public_size:
            raise ValueError(f"a public key of kind {kind.name} has {kind.public_size} bytes")
        # Some keys of the right length are invalid, and would fail when a file is finished.
        encrypt_to(kind, self.public_key, b"", b"")

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse a recipient's line, without a comment.

        Raises:
            KeyMaterialError: The line is malformed, or its checksum does not match. Messages do not
                repeat the line, which may be a secret by mistake.
        """
        parts = line.split(":")
        if len(parts) != 4 or parts[0] != PREFIX:
            raise KeyMaterialError(
                f"not a recipient: expected {PREFIX}:KIND:KEY:CHECKSUM, as "
                "`modcrypt recipients generate` writes to the .pub file"
            )
        _, kind, text, checksum = parts
        try:
            recipient = cls(kind, _decode_base64url(text))
        except ValueError as error:  # KeyMaterialError is one, too
            raise KeyMaterialError(f"not a recipient: {error}") from None
        if recipient.hex_id != checksum:
            raise KeyMaterialError(
                "the checksum of the recipient does not match: the line was altered or cut"
            )
        return recipient

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that has one recipient; raise as `read_recipients`."""
        found = read_recipients(path)
        if len(found) != 1:
            raise KeyMaterialError(f"{os.fspath(path)} has {len(found)} recipients, not one")
        return cls(found[0].kind, found[0].public_key)

    @property
    def id(self) -> bytes:
        """Id of the recipient in files, `ID_SIZE` bytes."""
        content = _ID_HASH + self.kind.encode() + b"\x00" + self.public_key
        return hashlib.sha256(content).digest()[:ID_SIZE]

    @property
    def hex_id(self) -> str:
        """Id of the recipient in hex, as lines and messages show it."""
        return self.id.hex()

    def __str__(self) -> str:
        """Return the line that `parse` reads."""
        text = base64.urlsafe_b64encode(self.public_key).rstrip(b"=").decode()
        return f"{PREFIX}:{self.kind}:{text}:{self.hex_id}"

    def __repr__(self) -> str:
        return f"Recipient({self.kind}, id {self.hex_id})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.public_key)


def _decode_base64url(text: str) -> bytes:
    """Decode unpadded base64url, in its only form."""
    data = b""
    if _BASE64URL.fullmatch(text):
        with suppress(binascii.Error):
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # The last character can hide bits, which would allow two texts for one key.
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise ValueError("the key is not base64url")
    return data


def read_recipients(path: str | os.PathLike[str]) -> tuple[Recipient, ...]:
    """Return the recipients in a file, each once.

    Raises:
        KeyMaterialError: The file has no recipient, a malformed one, or exceeds a limit.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(MAX_RECIPIENTS_FILE + 1)
    try:
        return parse_recipients(data)
    except KeyMaterialError as error:
        raise KeyMaterialError(f"{os.fspath(path)}: {error}") from None


def parse_recipients(data: bytes) -> tuple[Recipient, ...]:
    """Return the recipients in the content of a file; raise as `read_recipients`."""
    if len(data) > MAX_RECIPIENTS_FILE:
        raise KeyMaterialError(f"a file of recipients has at most {MAX_RECIPIENTS_FILE} bytes")
    found: dict[bytes, Recipient] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if len(line) > MAX_LINE:
            raise KeyMaterialError(f"line {number} is longer than {MAX_LINE} bytes")
        words = line.split(None, 1)
        if not words or words[0].startswith(b"#"):
            continue
        if len(found) >= MAX_RECIPIENTS:
            raise KeyMaterialError(f"there are more than {MAX_RECIPIENTS} recipients")
        try:
            recipient = Recipient.parse(words[0].decode("ascii", "replace"))
        except KeyMaterialError as error:
            raise KeyMaterialError(f"line {number}: {error}") from None
        found[recipient.id] = recipient
    if not found:
        raise KeyMaterialError("there are no recipients")
    return tuple(found.values())


def check_recipients(recipients: Iterable[Recipient]) -> tuple[Recipient, ...]:
    """Return the recipients of new files, each once.

    Raises:
        ValueError: There are none, or too many.
        TypeError: Something is not a Recipient.
    """
    given = (recipients,) if isinstance(recipients, Recipient) else tuple(recipients)
    for recipient in given:
        if not isinstance(recipient, Recipient):
            raise TypeError(
                f"recipients must be Recipient objects, as from Recipient.load, not "
                f"{type(recipient).__name__}"
            )
    found = {recipient.id: recipient for recipient in given}
    if not 0 < len(found) <= MAX_RECIPIENTS:
        raise ValueError(f"a file has 1 to {MAX_RECIPIENTS} recipients, not {len(found)}")
    return tuple(found.values())


def parse_ids(texts: Sequence[str]) -> tuple[bytes, ...]:
    """Return recipients' ids from hex digits; raise ValueError for other text."""
    ids = []
    for text in texts:
        if not re.fullmatch(rf"[0-9a-f]{{{2 * ID_SIZE}}}", text, re.ASCII):
            raise ValueError(
                f"{printable(text, 80)!r} is not the id of a recipient: {2 * ID_SIZE} hex digits"
            )
        ids.append(bytes.fromhex(text))
    return tuple(ids)
