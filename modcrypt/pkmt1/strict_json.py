"""JSON from files, read strictly: what two readers could take for two things is refused."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from typing import Any, NoReturn

from modcrypt.errors import KeyMaterialError

__all__ = ["exact_members", "from_base64", "no_constant", "once", "strict_json"]


def strict_json(data: str | bytes) -> Any:
    """Parse JSON in UTF-8 in which no member is there twice.

    Raises:
        KeyMaterialError: it is none; the errors of `json` hold all of the text, so none is kept.
    """
    with contextlib.suppress(ValueError, RecursionError):
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    raise KeyMaterialError("no JSON, or a member of it is there twice")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, for `object_pairs_hook`; a ValueError if a member is there twice."""
    members = dict(pairs)
    if len(members) < len(pairs):  # readers would differ in which they take
        raise ValueError("a member is there twice")
    return members


def no_constant(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which are no JSON, for `parse_constant`."""
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
