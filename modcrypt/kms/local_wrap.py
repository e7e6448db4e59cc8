"""The form of keys that are wrapped here, under a keyring's, a variable's or a token's master key.

It is that of parquet-java's LocalWrap:

    {"masterKeyVersion":"3","encryptedKey":"base64( nonce (12) | ciphertext | tag (16) )"}

AAD: the master key's id in UTF-8; then a zero byte and the caller's AAD, if there is one. The bare
base64 of PyArrow's and parquet-java's samples, and their version NO_VERSION, unwrap as well.
"""

from __future__ import annotations

import base64
import re

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.errors import KeyMaterialError
from modcrypt.keys import KEY_LENGTHS
from modcrypt.pkmt1.strict_json import exact_members, from_base64, strict_json

__all__ = ["local_aad", "parse_wrapped", "wrapped_text"]

MAX_LOCAL_WRAPPED = 1024
"""Characters of the longest wrapped key; those made here have 130 at most."""

NO_VERSION = "NO_VERSION"

_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


def wrapped_text(version: int | None, block: bytes) -> str:
    """Give the text of a wrapped key; a version of None is NO_VERSION."""
    encoded = base64.b64encode(block).decode()
    return f'{{"masterKeyVersion":"{version or NO_VERSION}","encryptedKey":"{encoded}"}}'


def parse_wrapped(text: str) -> tuple[int | None, bytes]:
    """Give version, None if it has none, and block of a wrapped key.

    Raises:
        KeyMaterialError: it is no wrapped key in one of the forms above.
    """
    if len(text) > MAX_LOCAL_WRAPPED:
        raise KeyMaterialError(f"a wrapped key of more than {MAX_LOCAL_WRAPPED} characters")
    version, encoded = NO_VERSION, text
    if text.startswith("{"):
        members = exact_members(strict_json(text), "masterKeyVersion", "encryptedKey")
        version, encoded = members["masterKeyVersion"], members["encryptedKey"]
    if version != NO_VERSION and not (isinstance(version, str) and _NUMBER.fullmatch(version)):
        raise KeyMaterialError("the masterKeyVersion of a wrapped key is no number")
    block = from_base64(encoded, "a wrapped key")
    if len(block) - BLOCK_OVERHEAD not in KEY_LENGTHS:
        raise KeyMaterialError(f"a wrapped key of {len(block)} bytes holds no AES key")
    return (None if version == NO_VERSION else int(version)), block


def local_aad(master_key_id: str, aad: bytes) -> bytes:
    """Give what a wrapped key is bound to; an id has no zero byte, so the two can't be confused."""
    return master_key_id.encode() + (b"\x00" + aad if aad else b"")
