"""The trusted length, which a reader needs to detect that a stream was cut short.

No block is marked as the last one. AGS1 "File length": "the reader implementations ... must use
the file length value taken from a trusted source ... and not from the file system".
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from modcrypt.errors import TruncationError
from modcrypt.keys import Key, KeyLike, as_given_key
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import convert_argument


class _Unverified(Enum):
    UNVERIFIED = "UNVERIFIED"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


UNVERIFIED = _Unverified.UNVERIFIED
"""Passed as the trusted length to accept a stream that may have lost its last blocks."""

TrustedLength: TypeAlias = "int | Literal[_Unverified.UNVERIFIED]"
"""Bytes of the encrypted stream, from a source that an attacker cannot change; or `UNVERIFIED`."""

Ags1Key: TypeAlias = "KeyLike | StandardKeyMetadata"
"""A key of 16, 24 or 32 bytes; or Iceberg's key metadata, with AAD prefix and length."""


takes_key = convert_argument("key", as_given_key, (Key, StandardKeyMetadata))
"""Decorator for functions with an argument `key`: their frames contain only a `Key`."""


def trusted_length(key: Ags1Key, length: TrustedLength | None) -> int | None:
    """Return the length that the stream must have; None for any."""
    known = key.file_length if isinstance(key, StandardKeyMetadata) else None
    if length is UNVERIFIED:
        return known
    if length is None:
        if known is None:
            raise TypeError(
                "the trusted length of the encrypted stream is missing: pass length=…, as the "
                "writer reported it, or length=UNVERIFIED to accept a stream cut off between "
                "blocks"
            )
        return known
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"length must be an int or UNVERIFIED, not {type(length).__name__}")
    if length < 0:
        raise ValueError("length must not be negative")
    if known is not None and known != length:
        raise ValueError(f"length is {length}, but the key metadata contains {known}")
    return length


def check_length(actual: int, trusted: int | None, name: str) -> None:
    """Raise TruncationError if a stream is not as long as `trusted`; None permits any length."""
    if trusted is None or actual == trusted:
        return
    how = "cut short" if actual < trusted else "too long"
    raise TruncationError(
        f"{name}: {how}: {actual} bytes, but the trusted length is {trusted}; the stream was "
        "altered, or the length belongs to another file"
    )
