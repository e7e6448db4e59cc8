"""What Parquet files need of keys that sign and keys that verify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

MAX_VERIFYING_KEYS = 64
"""Largest number of verifying keys that a reader accepts signatures of."""


class Verifier(Protocol):
    """A verifying key: the public key of a writer."""

    @property
    def scheme(self) -> str:
        """Name of the signature scheme."""

    @property
    def hex_id(self) -> str:
        """Id of the key, 16 bytes in hex."""

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether the key made a signature of a message."""


class Signer(Protocol):
    """A signing key: the private key of a writer."""

    @property
    def verifier(self) -> Verifier:
        """The verifying key."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""


def check_signer(key: Signer | None) -> None:
    """Raise TypeError unless the key can sign; None means that files are not signed."""
    if key is not None and not (hasattr(key, "sign") and hasattr(key, "verifier")):
        raise TypeError(f"signing_key must be a SigningKey, not {type(key).__name__}")


def list_verifiers(keys: Verifier | Iterable[Verifier]) -> tuple[Verifier, ...]:
    """Return the verifying keys that a caller names; none if signatures are not required.

    Raises:
        ValueError: There are too many.
        TypeError: Something is not a verifying key.
    """
    given: tuple[Any, ...] = tuple(keys) if isinstance(keys, Iterable) else (keys,)
    for key in given:
        if not (hasattr(key, "verify") and hasattr(key, "hex_id")):
            raise TypeError(f"signed_by takes VerifyingKey objects, not {type(key).__name__}")
    if len(given) > MAX_VERIFYING_KEYS:
        raise ValueError(f"signed_by takes at most {MAX_VERIFYING_KEYS} keys, not {len(given)}")
    return given
