"""AES keys as text: hex, or base64 with either alphabet, padded or not."""

from __future__ import annotations

import base64
import binascii
import re

from modcrypt.keys import Key

__all__ = ["key_from_base64", "key_from_hex"]


def key_from_hex(text: bytes) -> Key | None:
    """Return the key that 32, 48 or 64 hex digits encode; None for any other text."""
    if len(text) not in (32, 48, 64) or re.fullmatch(rb"[0-9A-Fa-f]+", text) is None:
        return None
    return Key(binascii.unhexlify(text))


def key_from_base64(text: bytes) -> Key | None:
    """Return the key of 16, 24 or 32 bytes that base64 encodes; None for any other text."""
    standard = text.replace(b"-", b"+").replace(b"_", b"/")
    if re.fullmatch(rb"[0-9A-Za-z+/]{22}(==)?|[0-9A-Za-z+/]{32}|[0-9A-Za-z+/]{43}=?", standard):
        return Key(base64.b64decode(standard + b"=" * (-len(standard) % 4)))
    return None
