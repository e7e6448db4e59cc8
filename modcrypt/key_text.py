"""AES keys as text: hex, or base64 with either alphabet, padded or not.

Also the detection of text that may be a key.
"""

from __future__ import annotations

import base64
import binascii
import re

from modcrypt.keys import Key


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
