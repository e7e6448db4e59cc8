"""AES keys as text: hex, or base64 with either alphabet, padded or not.

Also the detection of text that may be a key.
"""

from __future__ import annotations

import re

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


# 16, 24 or 32 bytes as hex, base64, or raw text without a dot or slash.
_KEY_SHAPES = re.compile(
    r"[^./\\]{16}|[^./\\]{24}|[^./\\]{32}"
    r"|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64}"
    r"|[0-9A-Za-z+/_-]{22}(==)?|[0-9A-Za-z+/_-]{32}|[0-9A-Za-z+/_-]{43}=?"
)

# Iceberg's key metadata, which begins with 1 and the key's length: raw, hex or base64.
_METADATA_SHAPES = re.compile(
    r"\x01[ 0@].+|01[234]0[0-9A-Fa-f]{32,}|A[STU][A-D][0-9A-Za-z+/_-]{20,}={0,2}", re.DOTALL
)


def looks_like_key(text: str) -> bool:
    """Return whether `text` may be a key or key metadata instead of a reference to one."""
    return any(shape.fullmatch(text) for shape in (_KEY_SHAPES, _METADATA_SHAPES))
