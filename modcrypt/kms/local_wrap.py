"""The text format of keys wrapped locally, by a keyring, an environment variable or a token.

The format is that of parquet-java's LocalWrap:

    {"masterKeyVersion":"3","encryptedKey":"base64( nonce (12) | ciphertext | tag (16) )"}

The AAD is the master key's id in UTF-8, followed by a zero byte and the caller's AAD if there is
one. The bare base64 text of PyArrow's and parquet-java's samples, and their version NO_VERSION,
unwrap as well.
"""

from __future__ import annotations

import re

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.errors import KeyMaterialError
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members, strict_json

MAX_LOCAL_WRAPPED = 1024
"""Length limit of a wrapped key, in characters; modcrypt writes at most 130."""

NO_VERSION = "NO_VERSION"

_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


def format_wrapped_key(version: int | None, block: bytes) -> str:
    """Return the text of a wrapped key; a version of None becomes NO_VERSION."""
    encoded = encode_base64(block)
    return f'{{"masterKeyVersion":"{version or NO_VERSION}","encryptedKey":"{encoded}"}}'


def parse_wrapped(text: str) -> tuple[int | None, bytes]:
    """Return version (or None) and block of a wrapped key; raise KeyMaterialError if malformed."""
    if len(text) > MAX_LOCAL_WRAPPED:
        raise KeyMaterialError(f"a wrapped key is longer than {MAX_LOCAL_WRAPPED} characters")
    version, encoded = NO_VERSION, text
    if text.startswith("{"):
        members = require_members(strict_json(text), "masterKeyVersion", "encryptedKey")
        version, encoded = members["masterKeyVersion"], members["encryptedKey"]
    if version != NO_VERSION and not (isinstance(version, str) and _NUMBER.fullmatch(version)):
        raise KeyMaterialError("the masterKeyVersion of a wrapped key is not a number")
    block = decode_base64(encoded, "a wrapped key")
    if len(block) - BLOCK_OVERHEAD not in KEY_LENGTHS:
        raise KeyMaterialError(
            f"a wrapped key of {len(block)} bytes does not contain an AES key: did another key "
            "service wrap it?"
        )
    return (None if version == NO_VERSION else int(version)), block


def local_aad(master_key_id: str, aad: bytes) -> bytes:
    """Return the AAD of a wrapped key; ids contain no zero byte, so the parts are unambiguous."""
    return master_key_id.encode() + (b"\x00" + aad if aad else b"")


def check_wrappable(key: bytes) -> None:
    """Raise ValueError unless a key has the length of an AES key."""
    if len(key) not in KEY_LENGTHS:
        raise ValueError(f"an AES key must have 16, 24 or 32 bytes, not {len(key)}")


def mismatch_error(master_key_id: str) -> KeyMaterialError:
    """Return the error for a wrapped key whose tag does not match."""
    return KeyMaterialError(
        f"a wrapped key does not unwrap under master key {master_key_id}: it was altered, or "
        "wrapped under another master key or with other AAD; AES-GCM cannot tell which"
    )
