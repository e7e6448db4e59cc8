"""The permitted form of a wrapped key, in answers of key services and in files."""

from __future__ import annotations

from typing import TypeGuard

MAX_WRAPPED = 16 << 10
"""Length limit of a wrapped key from a service or a file, in characters."""


def is_wrapped_key(text: object) -> TypeGuard[str]:
    """Return whether a text can be a wrapped key."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_WRAPPED:
        return False
    return text.isascii() and text.isprintable()
