"""Hashes of masked values, computed by `hmac` alone."""

from __future__ import annotations

import hmac


def mask_hash(key: bytes, value: bytes, label: bytes = b"modcrypt mask hash v1") -> str:
    """Compute a hash of masks by `hmac` alone: HKDF-SHA-256 (RFC 5869), then HMAC-SHA-256."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    derived = hmac.digest(extracted, label + b"\x01", "sha256")
    return hmac.digest(derived, value, "sha256").hex()


HASH_KEY = b"sixteen of bytes"


def hash_value(value: object) -> str | None:
    """Compute the hash of a value from its text."""
    if value is None:
        return None
    return mask_hash(HASH_KEY, str(value).encode())
