"""Keys as bytes or text: raw, hex, or base64 with either alphabet, padded or not.

Messages never repeat what they reject, because it may be a key.
"""

from __future__ import annotations

import base64
import binascii
import re

from modcrypt.errors import KeyMaterialError

KEY_LENGTHS = (16, 24, 32)  # AES key lengths in bytes (PME 4: 128, 192 and 256 bits)

MAX_KEY_TEXT = 4096
"""Length limit of a key file in bytes: enough for the longest key in hex, and white space."""


def decode_hex(text: bytes) -> bytes | None:
    """Return the key that 32, 48 or 64 hex digits encode; None for any other text."""
    if len(text) not in (32, 48, 64) or re.fullmatch(rb"[0-9A-Fa-f]+", text) is None:
        return None
    return binascii.unhexlify(text)


def decode_base64(text: bytes) -> bytes | None:
    """Return the key of 16, 24 or 32 bytes that base64 encodes; None for any other text."""
    standard = text.replace(b"-", b"+").replace(b"_", b"/")
    if re.fullmatch(rb"[0-9A-Za-z+/]{22}(==)?|[0-9A-Za-z+/]{32}|[0-9A-Za-z+/]{43}=?", standard):
        return base64.b64decode(standard + b"=" * (-len(standard) % 4))
    return None


def decode_key(data: bytes, where: str, *, raw: bool = True) -> bytes:
    """Return a key from hex, base64 or, if `raw`, raw bytes; messages call the place `where`.

    Raise KeyMaterialError if the data are not a key, or two different ones.
    """
    text = data.strip()
    if (key := decode_hex(text)) is not None:
        return key
    if (key := decode_base64(text)) is not None:
        # An AES-192 key in base64 is as long as a raw AES-256 key: a guess could weaken a key.
        if raw and len(data) == 32:
            raise KeyMaterialError(
                f"{where} holds 32 characters, a raw 256-bit key or a 192-bit key as base64; "
                "write a raw key as hex, or end base64 with a newline"
            )
        return key
    if raw and len(data) in KEY_LENGTHS:
        return data
    if b'"modcrypt-keyring"' in data:
        raise KeyMaterialError(f"{where} is a keyring; name one of its master keys: file:PATH#ID")
    forms = (
        "16, 24 or 32 raw bytes, or their hex or base64 text"
        if raw
        else ("the hex or base64 text of 16, 24 or 32 bytes")
    )
    size = f"more than {MAX_KEY_TEXT}" if len(data) > MAX_KEY_TEXT else str(len(data))
    raise KeyMaterialError(f"{where} holds no key: expected {forms}, found {size} bytes")
