"""The form of keys that are wrapped here, under a keyring's, a variable's or a token's master key.

It is that of parquet-java's LocalWrap:

    {"masterKeyVersion":"3","encryptedKey":"base64( nonce (12) | ciphertext | tag (16) )"}

AAD: the master key's id in UTF-8; then a zero byte and the caller's AAD, if there is one. The bare
base64 of PyArrow's and parquet-java's samples, and their version NO_VERSION, unwrap as well.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from typing import Any, NoReturn

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.errors import KeyMaterialError
from modcrypt.keys import KEY_LENGTHS

__all__ = [
    "exact_members",
    "from_base64",
    "local_aad",
    "parse_wrapped",
    "strict_json",
    "wrapped_text",
]

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


# --- strict JSON, also of the keyring's document -------------------------------------------------


def strict_json(data: str | bytes) -> Any:
    """Parse JSON in UTF-8 in which no member is there twice.

    Raises:
        KeyMaterialError: it is none; the errors of `json` hold all of the text, so none is kept.
    """
    with contextlib.suppress(ValueError, RecursionError):
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    raise KeyMaterialError("no JSON, or a member of it is there twice")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


def exact_members(value: Any, *names: str) -> dict[str, Any]:
    """Give an object that has these members and no others; raises KeyMaterialError."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise KeyMaterialError(f"an object with exactly {', '.join(names)} is wanted")
    return value


def from_base64(text: Any, what: str) -> bytes:
    """Decode the one standard spelling of some bytes; raises KeyMaterialError, naming `what`."""
    with contextlib.suppress(binascii.Error, ValueError):
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        # Bits that the padding hides would make two texts of one key.
        if data and base64.b64encode(data).decode() == text:
            return data
    raise KeyMaterialError(f"{what} is no standard padded base64")
