"""Signature schemes, which `cryptography` provides.

ed25519      RFC 8032: 32-byte keys, 64-byte signatures
mldsa65      ML-DSA-65 (FIPS 204): resists quantum computers; 1,952-byte public keys, 3,309-byte
signatures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from modcrypt.runtime.tracebacks import hide_frames

ED25519, MLDSA65 = "ed25519", "mldsa65"


@dataclass(frozen=True, slots=True)
class Scheme:
    """A signature scheme.

    Attributes:
        name: Name in lines of public keys and in files of private keys.
        public_size, secret_size, signature_size: Lengths in bytes; a private key is a seed.
        load_private, load_public: Functions that decode keys.
        generate: Function that returns a new private key.
    """

    name: str
    public_size: int
    secret_size: int
    signature_size: int
    load_private: Callable[[bytes], Any]
    load_public: Callable[[bytes], Any]
    generate: Callable[[], Any]

    @hide_frames
    def encode_public(self, secret: bytes) -> bytes:
        """Return the encoded public key of an encoded private key."""
        public: bytes = self.load_private(secret).public_key().public_bytes_raw()
        return public

    @hide_frames
    def generate_secret(self) -> bytes:
        """Return a new encoded private key."""
        secret: bytes = self.generate().private_bytes_raw()
        return secret

    @hide_frames
    def sign(self, secret: bytes, message: bytes) -> bytes:
        """Sign a message."""
        signature: bytes = self.load_private(secret).sign(message)
        return signature

    def verify(self, public: bytes, signature: bytes, message: bytes) -> bool:
        """Return whether a signature is valid."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.load_public(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def find_scheme(name: str) -> Scheme:
    """Return a scheme by its name; raise ValueError for an unknown one."""
    if name not in SCHEMES:
        raise ValueError(f"unknown signature scheme; known schemes are {', '.join(SCHEMES)}")
    return SCHEMES[name]


@hide_frames
def _load_ed25519(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret)


def _load_ed25519_public(public: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def _generate_ed25519() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


@hide_frames
def _load_mldsa65(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

    return MLDSA65PrivateKey.from_seed_bytes(secret)


def _load_mldsa65_public(public: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

    return MLDSA65PublicKey.from_public_bytes(public)


def _generate_mldsa65() -> Any:
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

    return MLDSA65PrivateKey.generate()


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        ED25519: Scheme(
            ED25519, 32, 32, 64, _load_ed25519, _load_ed25519_public, _generate_ed25519
        ),
        MLDSA65: Scheme(
            MLDSA65, 1952, 32, 3309, _load_mldsa65, _load_mldsa65_public, _generate_mldsa65
        ),
    }
)
"""The known schemes; the first one is the default."""
