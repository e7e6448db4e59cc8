"""Recipients: public keys, each on one line of text that may be published.

    modcrypt-recipient:x25519:BASE64URL-OF-THE-KEY:32-HEX-DIGITS-OF-ITS-ID

The id is a part of the SHA-256 of kind and key. It identifies the recipient in files, and is the
checksum of the line. A file of recipients has one in each line, and may have empty lines, comment
lines that begin with #, and comments after a recipient and white space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import printable
from modcrypt.kms.recipients.kinds import encrypt_to, find_kind
from modcrypt.kms.recipients.public_lines import PublicKey, read_lines
from modcrypt.parquet.crypto.properties import KeySource
from modcrypt.pkmt1.recipient_metadata import ID_SIZE, MAX_RECIPIENTS
from modcrypt.runtime.tracebacks import hide_frames

PREFIX = "modcrypt-recipient"


@dataclass(frozen=True, slots=True, repr=False)
class Recipient(PublicKey, KeySource):
    """The public key of someone who may open files; it is no secret.

    Args:
        kind: Kind of the key: `"mlkem768-x25519"` or `"x25519"`.
        public_key: The encoded public key.

    Raises:
        ValueError: The kind is unknown, or the key is invalid.
    """

    kind: str
    public_key: bytes

    _prefix = PREFIX
    _word = "recipient"

    def __post_init__(self) -> None:
        kind = find_kind(self.kind)
        if not isinstance(self.public_key, bytes) or len(self.public_key) != kind.public_size:
            raise ValueError(f"a public key of kind {kind.name} has {kind.public_size} bytes")
        # Some keys of the right length are invalid, and would fail when a file is finished.
        encrypt_to(kind, self.public_key, b"", b"")

    @property
    def id(self) -> bytes:
        """Id of the recipient in files, `ID_SIZE` bytes."""
        return self._hash(*self._parts())

    def _parts(self) -> tuple[str, bytes]:
        return self.kind, self.public_key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.public_key)


@hide_frames
def read_recipients(path: str | os.PathLike[str]) -> tuple[Recipient, ...]:
    """Return the recipients in a file, each once; raise as `read_lines`."""
    return tuple(read_lines(path, Recipient.parse, "recipients"))


def check_recipients(recipients: Iterable[Recipient]) -> tuple[Recipient, ...]:
    """Return the recipients of new files, each once; raise ValueError for none or too many."""
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
