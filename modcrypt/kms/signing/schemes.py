"""Signature schemes, which `cryptography` provides.

ed25519      RFC 8032: 32-byte keys, 64-byte signatures
mldsa65      ML-DSA-65 (FIPS 204): resists quantum computers; 1,952-byte public keys,
             3,309-byte signatures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from modcrypt.runtime.tracebacks import hide_frames

ED25519, MLDSA65 = "ed25519", "mldsa65"


class Functions(NamedTuple):
    """The functions of `cryptography` that make and decode keys of a scheme."""

    generate: Callable[[], Any]
    load_private: Callable[[bytes], Any]
    load_public: Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A signature scheme."""

    name: str  # name in lines of public keys and in files of private keys
    public_size: int  # lengths in bytes; a private key is a seed
    secret_size: int
    # Function that imports the functions of `cryptography`, which costs start-up time
    load: Callable[[], Functions]

    @hide_frames
    def encode_public(self, secret: bytes) -> bytes:
        """Return the encoded public key of an encoded private key."""
        public: bytes = self.load().load_private(secret).public_key().public_bytes_raw()
        return public

    @hide_frames
    def generate_secret(self) -> bytes:
        """Return a new encoded private key."""
        secret: bytes = self.load().generate().private_bytes_raw()
        return secret

    @hide_frames
    def sign(self, secret: bytes, message: bytes) -> bytes:
        """Sign a message."""
        signature: bytes = self.load().load_private(secret).sign(message)
        return signature

    def verify(self, public: bytes, signature: bytes, message: bytes) -> bool:
        """Return whether a signature is valid."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.load().load_public(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def find_scheme(name: str) -> Scheme:
    """Return a scheme by its name; raise ValueError for an unknown one."""
    if name not in SCHEMES:
        raise ValueError(f"unknown signature scheme; known schemes are {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _load_ed25519() -> Functions:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    private, public = ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
    return Functions(private.generate, private.from_private_bytes, public.from_public_bytes)


def _load_mldsa65() -> Functions:
    from cryptography.hazmat.primitives.asymmetric import mldsa

    private, public = mldsa.MLDSA65PrivateKey, mldsa.MLDSA65PublicKey
    return Functions(private.generate, private.from_seed_bytes, public.from_public_bytes)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        ED25519: Scheme(ED25519, 32, 32, _load_ed25519),
        MLDSA65: Scheme(MLDSA65, 1952, 32, _load_mldsa65),
    }
)
"""The known schemes; the first one is the default."""
