"""Fingerprints of data keys: rewrapping keeps them, and encrypting again changes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from modcrypt.keys.key import FINGERPRINT_LENGTH


def fingerprint_location(location: str) -> bytes:
    """Return a fingerprint for the data key of a file of a table, which no other file replaces."""
    name = location.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(name, digest_size=FINGERPRINT_LENGTH).digest()


def split_prints(prints: bytes) -> Iterator[bytes]:
    """Yield the fingerprint of each key."""
    for start in range(0, len(prints), FINGERPRINT_LENGTH):
        yield prints[start : start + FINGERPRINT_LENGTH]
