"""Strict JSON for files: refuses text that two readers could interpret differently."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from typing import Any, NoReturn

from modcrypt.errors import KeyMaterialError


def strict_json(data: str | bytes, *, surrogates: bool = False) -> Any:
    """Parse JSON in UTF-8 without repeated members and surrogates without a partner.

    `surrogates` accepts these, in files that modcrypt writes of what others may have named so.
    Raise KeyMaterialError, whose message and context contain none of the text.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return load_json(data, surrogates=surrogates)
    raise KeyMaterialError("not valid JSON, or a member is repeated")


def load_json(data: str | bytes, *, surrogates: bool = False) -> Any:
    """Parse strict JSON; raise ValueError, which may repeat the text."""
    text = data if isinstance(data, str) else data.decode()
    value = json.loads(text, object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)
    if not surrogates and ("\\u" in text or not text.isascii()):
        refuse_surrogates(value)
    return value


def refuse_surrogates(value: Any) -> None:
    """Raise ValueError for half of a character, such as U+D800, which nothing can write again."""
    json.dumps(value, ensure_ascii=False).encode()


def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, for `object_pairs_hook`; raise ValueError if a member is repeated."""
    members = dict(pairs)
    if len(members) < len(pairs):  # readers would disagree on the value
        raise ValueError("a member is repeated")
    return members


def refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON, for `parse_constant`."""
    raise ValueError("NaN and Infinity are not JSON")


def require_members(value: Any, *names: str) -> dict[str, Any]:
    """Return an object with exactly these members; raise KeyMaterialError for others."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise KeyMaterialError(f"expected an object with exactly the members {', '.join(names)}")
    return value


def encode_base64(data: bytes) -> str:
    """Return bytes as canonical base64."""
    return base64.b64encode(data).decode()


def decode_base64(text: Any, what: str) -> bytes:
    """Decode canonical base64; raise a KeyMaterialError that names `what` for other text."""
    with contextlib.suppress(binascii.Error, ValueError):
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        # The padding can hide bits, which would allow two texts for one key.
        if data and base64.b64encode(data).decode() == text:
            return data
    raise KeyMaterialError(f"{what} is not standard padded base64")
