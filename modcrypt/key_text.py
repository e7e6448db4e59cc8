"""AES keys as text: hex, or base64 with either alphabet, padded or not."""

from __future__ import annotations

from modcrypt.key_encoding import decode_base64, decode_hex
from modcrypt.keys import Key


def key_from_hex(text: bytes) -> Key | None:
    """Return the key that 32, 48 or 64 hex digits encode; None for any other text."""
    value = decode_hex(text)
    return None if value is None else Key(value)


def key_from_base64(text: bytes) -> Key | None:
    """Return the key of 16, 24 or 32 bytes that base64 encodes; None for any other text."""
    value = decode_base64(text)
    return None if value is None else Key(value)
