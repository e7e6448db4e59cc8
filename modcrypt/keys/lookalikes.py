"""Names of files and variables that may be keys, which users paste where a name is expected."""

from __future__ import annotations

import re

from modcrypt.errors import printable

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


# What files of private keys contain besides the key.
_PRIVATE_FILE = re.compile(r"\"key\"|modcrypt-(identity|signing-key)|PRIVATE KEY|SECRET-KEY-")

_BASE64 = re.compile(r"[0-9A-Za-z+/_-]{43,}={0,2}")
_SWITCH = re.compile(r"[a-z0-9](?=[A-Z])|[A-Z](?=[0-9])")

SWITCHES = 0.08
"""Switches to and from upper case, per character, from which text of base64 is no words.

One in 16,000 random keys of 32 bytes has fewer; paths rarely have as many.
"""

HIDDEN = "(not repeated, it looks like a key)"


def looks_like_key(text: str) -> bool:
    """Return whether `text` may be a key or key metadata instead of a reference to one."""
    shapes = (_KEY_SHAPES, _METADATA_SHAPES)
    return any(shape.fullmatch(text) for shape in shapes) or looks_like_private_key(text)


def looks_like_private_key(text: str) -> bool:
    """Return whether `text` may be, or end in, a private key or the content of its file."""
    starts = (found.end() for found in re.finditer(r"^|[/:=]", text))
    return bool(_PRIVATE_FILE.search(text)) or any(_is_random(text[start:]) for start in starts)


def _is_random(text: str) -> bool:
    return bool(_BASE64.fullmatch(text)) and len(_SWITCH.findall(text)) >= SWITCHES * len(text)


def is_public_key(data: bytes) -> bool:
    """Return whether a file's content begins as the public key of a recipient or signer."""
    return data.startswith((b"modcrypt-recipient:", b"modcrypt-verifier:"))


def show_name(name: object) -> str:
    """Return the name of a file or variable for messages; a mark if it may be a key.

    Users paste a key where its file is to be named.
    """
    text = str(name)
    may_be_key = looks_like_key(text) or looks_like_key(text.rpartition(":")[2])
    return HIDDEN if may_be_key else printable(text)
