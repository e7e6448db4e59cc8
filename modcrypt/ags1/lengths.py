"""The trusted length: what a reader must know before it can tell a whole stream from a cut one.

No block says that it is the last. AGS1 "File length": "the reader implementations ... must use
the file length value taken from a trusted source ... and not from the file system".
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from modcrypt.errors import TruncationError
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import Key, KeyLike, as_key
from modcrypt.tracebacks import converted

__all__ = [
    "UNVERIFIED",
    "Ags1Key",
    "TrustedLength",
    "check_length",
    "takes_key",
    "trusted_length",
]


class _Unverified(Enum):
    UNVERIFIED = "UNVERIFIED"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


UNVERIFIED = _Unverified.UNVERIFIED
"""Said in place of a trusted length: a stream that lost its last blocks is taken for whole."""

TrustedLength: TypeAlias = "int | Literal[_Unverified.UNVERIFIED]"
"""Bytes of the encrypted stream, from a source that the attacker can't change; or `UNVERIFIED`."""

Ags1Key: TypeAlias = "KeyLike | StandardKeyMetadata"
"""A key of 16, 24 or 32 bytes; or Iceberg's key metadata, with AAD prefix and length."""


def _as_ags1_key(key: object) -> Key | StandardKeyMetadata:
    return key if isinstance(key, StandardKeyMetadata) else as_key(key)  # type: ignore[arg-type]


takes_key = converted("key", _as_ags1_key)
"""Decorator of functions with an argument `key`: their frames hold it as a `Key`."""


def trusted_length(key: Ags1Key, length: TrustedLength | None) -> int | None:
    """Give the length that the stream must have; None for any.

    Raises:
        TypeError: it is given neither as `length` nor in the key metadata.
        ValueError: it is negative, or differs from the one in the key metadata.
    """
    known = key.file_length if isinstance(key, StandardKeyMetadata) else None
    if length is UNVERIFIED:
        return known
    if length is None:
        if known is None:
            raise TypeError(
                "the trusted length of the encrypted stream is needed: length=…, as the writer "
                "reported it, or length=UNVERIFIED if a stream cut at a block's end may pass"
            )
        return known
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"length is an int or UNVERIFIED, not {type(length).__name__}")
    if length < 0:
        raise ValueError("length is not negative")
    if known is not None and known != length:
        raise ValueError(f"length is {length}, but the key metadata says {known}")
    return length


def check_length(actual: int, trusted: int | None, name: str) -> None:
    """Hold a stream's length against the trusted one.

    Raises:
        TruncationError: they differ.
    """
    if trusted is None or actual == trusted:
        return
    how = "cut short" if actual < trusted else "too long"
    raise TruncationError(
        f"{name}: {how}: {actual} bytes, but the trusted length is {trusted}; the stream was "
        "altered, or the length is another file's"
    )
