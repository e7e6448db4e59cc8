"""Keys as callers pass them: objects, bytes or hex text, which become `Key` objects at once.

Tracebacks hold the arguments of functions. `hide_keys` converts those that may be raw keys before
a function runs, so that no frame of modcrypt contains one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import ParamSpec, TypeVar

from modcrypt.keys.encoding import decode_hex
from modcrypt.keys.key import Key, KeyLike
from modcrypt.runtime.tracebacks import hide_frames

P = ParamSpec("P")
R = TypeVar("R")

_KINDS = ("decryption", "encryption")
_NAMES = {"hash_key", "properties", *_KINDS, *(f"{kind}_properties" for kind in _KINDS)}
"""Names of arguments that may be a key."""


@hide_frames
def as_given_key(value: KeyLike | bytearray | memoryview) -> Key:
    """Return a key that a caller passed, which may be hex text.

    Raises:
        ValueError: The bytes have another length than 16, 24 or 32, or are hex digits; or text is
            anything but 32, 48 or 64 hex digits. Messages never repeat the value.
    """
    if isinstance(value, Key):
        return value
    if isinstance(value, str):
        return Key.from_hex(value)
    if isinstance(value, bytes | bytearray | memoryview) and decode_hex(bytes(value).strip()):
        raise ValueError(
            "the key is hex text as bytes; pass the text as str, or Key(...) if its digits "
            "themselves are the key"
        )
    return Key(value)


class KeyReference:
    """Text that names a key or a key service, such as `file:footer.key`."""

    def __init__(self, text: str) -> None:
        self.text = text


_WRAPPED = (bytes, bytearray, memoryview, str, KeyReference)
"""Types of arguments that `hide_keys` may replace or refuse."""

_REFERENCE = r"[A-Za-z][A-Za-z0-9-]+:[^\s]+"


@hide_frames
def wrap_key(value: object) -> object:
    """Return a `Key` for bytes or hex text, a `Path` or `KeyReference` for text, else the value.

    Raises:
        ValueError: As `as_given_key`, or text is neither hex digits, nor the path of a policy, nor
            a reference. It may be a secret, so the message does not repeat it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return as_given_key(value)
    if not isinstance(value, str):
        return value
    if decode_hex(value.strip().encode("ascii", "replace")) is not None:
        return Key.from_hex(value)
    if value.endswith(".toml") or os.path.isfile(value):
        return Path(value)
    if re.match(_REFERENCE, value):
        return KeyReference(value)
    raise ValueError(
        "expected a key of 32, 48 or 64 hex digits, a reference such as file:footer.key, or the "
        "path of a policy (.toml); the text is none of these, and not shown"
    )


@hide_frames
def _wrap_argument(name: str | None, value: object) -> object:
    """Return the argument of a name, wrapped if it may be a key; no reference names hash keys."""
    wrapped = wrap_key(value) if name in _NAMES else value
    if name == "hash_key" and isinstance(wrapped, KeyReference):
        raise ValueError(
            "hash_key does not take a reference; pass Key.from_file(path) or Key.from_env"
        )
    return wrapped


def hide_keys(function: Callable[P, R], *, skip: int = 0) -> Callable[P, R]:
    """Decorate a function to convert its arguments that may be keys, see `wrap_key`.

    `skip` is the number of first arguments that the function's signature does not have.
    """

    @cache  # parsing the signature of a compiled function takes 2 ms, not to be spent on an import
    def positions() -> dict[int, str]:
        names = enumerate(signature(function).parameters, skip)
        return {at: name for at, name in names if name in _NAMES}

    def needs_wrapping(given: tuple[object, ...], named: dict[str, object]) -> bool:
        for at in positions():
            if at < len(given) and isinstance(given[at], _WRAPPED):
                return True
        return bool(named) and any(
            name in _NAMES and isinstance(value, _WRAPPED) for name, value in named.items()
        )

    @hide_frames
    def wrap(given: tuple[object, ...], named: dict[str, object]) -> tuple[list[object], object]:
        return (
            [_wrap_argument(positions().get(at), value) for at, value in enumerate(given)],
            {name: _wrap_argument(name, value) for name, value in named.items()},
        )

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not needs_wrapping(args, kwargs):  # most calls pass properties
            return function(*args, **kwargs)
        try:
            wrapped = wrap(args, kwargs)
        finally:
            del args, kwargs
        return function(*wrapped[0], **wrapped[1])  # type: ignore[arg-type]

    return call
