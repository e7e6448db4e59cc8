"""Kinds of public keys, and encryption to them by HPKE (RFC 9180), which `cryptography` provides.

    x25519            DHKEM(X25519, HKDF-SHA256): 32-byte keys; adds 48 bytes to a wrapped key
    mlkem768-x25519   ML-KEM-768 and X25519 (X-Wing): secure as long as either is; 1,216-byte public
                      keys; adds 1,136 bytes

Both use HKDF-SHA256 and AES-256-GCM in HPKE's base mode, which does not authenticate a sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.runtime.tracebacks import hide_frames

if TYPE_CHECKING:  # loaded when it is used
    from cryptography.hazmat.primitives.hpke import Suite

HYBRID, X25519 = "mlkem768-x25519", "x25519"

X25519_SIZE = 32  # length of a public or private X25519 key in bytes
MLKEM_PUBLIC_SIZE = 1184  # length of an ML-KEM-768 encapsulation key in bytes (FIPS 203)
MLKEM_SEED_SIZE = 64  # length of the seed of an ML-KEM-768 private key in bytes (FIPS 203)

ROLE_KEK, ROLE_EXPLICIT_KEYS = "file KEK", "explicit keys"
"""The purposes for which something is encrypted to a recipient."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of key pair."""

    name: str  # name in public key lines, identity files and key metadata
    public_size: int  # lengths of the encoded keys in bytes
    secret_size: int
    generate: Callable[[], bytes]  # function that returns a new encoded private key
    load_public: Callable[[bytes], Any]  # functions that decode keys for `suite`
    load_private: Callable[[bytes], Any]
    # Function that returns the encoded public key of a decoded private key
    encode_public: Callable[[bytes], bytes]


def find_kind(name: str) -> Kind:
    """Return a kind by its name; raise ValueError for an unknown one."""
    if name not in KINDS:
        raise ValueError(f"unknown kind of public key; known kinds are {', '.join(KINDS)}")
    return KINDS[name]


def make_info(role: str, file_aad: bytes) -> bytes:
    """Return HPKE's info: format version, role and file AAD, which is last and may be any bytes."""
    return b"modcrypt-recipients\x00\x01" + role.encode() + b"\x00" + file_aad


@hide_frames
def encrypt_to(kind: Kind, public_key: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypt to a public key; raise KeyMaterialError if it is invalid."""
    try:
        return _suite(kind.name).encrypt(plaintext, kind.load_public(public_key), info)
    except Exception as error:
        failure = _convert_error(error, "the public key is invalid")
    raise failure  # outside the handler, which would set the library's error as context


@hide_frames
def decrypt_with(kind: Kind, private_key: Any, ciphertext: bytes, info: bytes) -> bytes:
    """Decrypt the result of `encrypt_to`.

    Raise KeyMaterialError if it was altered, or is for another key, role or file.
    """
    try:
        return _suite(kind.name).decrypt(ciphertext, private_key, info)
    except Exception as error:
        failure = _convert_error(error, "it does not decrypt")
    raise failure


def _convert_error(error: Exception, why: str) -> KeyRetrievalError:
    from cryptography.exceptions import UnsupportedAlgorithm

    if isinstance(error, UnsupportedAlgorithm):
        return KeyRetrievalError(
            "the OpenSSL of this installation lacks ML-KEM; install a wheel of cryptography, or "
            f"use the kind {X25519}"
        )
    return KeyMaterialError(why)


@cache
def _suite(kind: str) -> Suite:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    kem = KEM.X25519 if kind == X25519 else KEM.MLKEM768_X25519
    return Suite(kem, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@hide_frames
def _generate_x25519() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def _load_x25519_public(data: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return X25519PublicKey.from_public_bytes(data)


@hide_frames
def _load_x25519(data: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(data)


@hide_frames
def _encode_x25519_public(data: bytes) -> bytes:
    public: bytes = _load_x25519(data).public_key().public_bytes_raw()
    return public


@hide_frames
def _generate_hybrid() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

    return MLKEM768PrivateKey.generate().private_bytes_raw() + _generate_x25519()


def _load_hybrid_public(data: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PublicKey

    mlkem = MLKEM768PublicKey.from_public_bytes(data[:MLKEM_PUBLIC_SIZE])
    return MLKEM768X25519PublicKey(mlkem, _load_x25519_public(data[MLKEM_PUBLIC_SIZE:]))


@hide_frames
def _load_mlkem(data: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

    return MLKEM768PrivateKey.from_seed_bytes(data[:MLKEM_SEED_SIZE])


@hide_frames
def _load_hybrid(data: bytes) -> Any:
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

    return MLKEM768X25519PrivateKey(_load_mlkem(data), _load_x25519(data[MLKEM_SEED_SIZE:]))


@hide_frames
def _encode_hybrid_public(data: bytes) -> bytes:
    mlkem: bytes = _load_mlkem(data).public_key().public_bytes_raw()
    return mlkem + _encode_x25519_public(data[MLKEM_SEED_SIZE:])


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        HYBRID: Kind(
            HYBRID,
            MLKEM_PUBLIC_SIZE + X25519_SIZE,
            MLKEM_SEED_SIZE + X25519_SIZE,
            _generate_hybrid,
            _load_hybrid_public,
            _load_hybrid,
            _encode_hybrid_public,
        ),
        X25519: Kind(
            X25519,
            X25519_SIZE,
            X25519_SIZE,
            _generate_x25519,
            _load_x25519_public,
            _load_x25519,
            _encode_x25519_public,
        ),
    }
)
"""The known kinds; the first one is the default."""
