"""Documents that a passphrase encrypts: keyrings, identities and signing keys.

    {..., "protection": "scrypt", "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

AES-256-GCM encrypts the secret part, under the key that scrypt (RFC 7914) derives from the
passphrase. The AAD is the other members, as compact JSON with sorted names. A plaintext document
has `"protection": "none"` and the secret part itself, in a member that its format names, instead of
the last two members.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.keys import Key
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members
from modcrypt.runtime.tracebacks import hide_frames

SCRYPT_R, SCRYPT_P = 8, 1  # scrypt parameters of new passphrases, besides the cost
SALT_SIZE = 16

MIN_SCRYPT_N, MAX_SCRYPT_N = 2**14, 2**18
"""Costs accepted from a file: up to 256 MiB and about a second, twice those of new documents.

Anyone who can replace the file chooses them, and each attempt to open the file incurs them.
"""
MAX_SCRYPT_R, MAX_SCRYPT_P = 8, 4
MAX_SCRYPT_WORK = MAX_SCRYPT_N * SCRYPT_R * SCRYPT_P
"""Limit for the product of the three parameters, to which the time is proportional."""


def is_count(value: Any, low: int, high: int) -> bool:
    """Return whether a JSON value is a whole number in a range; true and false are none."""
    return type(value) is int and low <= value <= high


@dataclass(frozen=True)
class Scrypt:
    """Parameters for the derivation of a key from a passphrase (RFC 7914)."""

    n: int
    r: int
    p: int
    salt: bytes

    @classmethod
    def parse(cls, value: Any) -> Scrypt:
        """Parse the parameters; raise KeyMaterialError."""
        members = require_members(value, "n", "r", "p", "salt")
        n, r, p = members["n"], members["r"], members["p"]
        if not (
            is_count(n, MIN_SCRYPT_N, MAX_SCRYPT_N)
            and n & (n - 1) == 0
            and is_count(r, 1, MAX_SCRYPT_R)
            and is_count(p, 1, MAX_SCRYPT_P)
            and n * r * p <= MAX_SCRYPT_WORK
        ):
            raise KeyMaterialError("the scrypt parameters exceed the limits")
        salt = decode_base64(members["salt"], "the salt")
        if len(salt) != SALT_SIZE:
            raise KeyMaterialError(f"the salt has {len(salt)} bytes, not {SALT_SIZE}")
        return cls(n, r, p, salt)

    def encode(self) -> dict[str, Any]:
        """Return the input of `parse`."""
        salt = encode_base64(self.salt)
        return {"n": self.n, "r": self.r, "p": self.p, "salt": salt}

    @hide_frames
    def derive(self, passphrase: bytes) -> PassphraseKey:
        """Derive the key from a passphrase; raise KeyRetrievalError if memory is lacking."""
        n, r, p = self.n, self.r, self.p
        size = 128 * n * r
        maxmem = size + 128 * r * (p + 2) + (1 << 20)
        with contextlib.suppress(ValueError, MemoryError):
            raw = hashlib.scrypt(passphrase, salt=self.salt, n=n, r=r, p=p, maxmem=maxmem, dklen=32)
            return PassphraseKey(self, GcmCipher(Key(raw)))
        raise KeyRetrievalError(
            f"not enough memory to check the keyring's passphrase, which takes {size >> 20} MiB"
        )


@dataclass(frozen=True)
class PassphraseKey:
    """A key derived from a passphrase, and the parameters of the derivation."""

    scrypt: Scrypt
    cipher: GcmCipher

    @classmethod
    @hide_frames
    def new(cls, passphrase: bytes, n: int) -> PassphraseKey:
        """Derive a key with a fresh salt at the cost `n`; raise as `Scrypt.derive`."""
        return Scrypt(n, SCRYPT_R, SCRYPT_P, secrets.token_bytes(SALT_SIZE)).derive(passphrase)


@dataclass(frozen=True)
class EncryptedPart:
    """The encrypted part of a document, and the members beside it, which are the AAD."""

    scrypt: Scrypt
    block: bytes = field(repr=False)
    header: dict[str, Any]

    @hide_frames
    def decrypt(self, key: PassphraseKey) -> bytes:
        """Decrypt the part; raise TagError if the passphrase is wrong, or bytes were altered."""
        return bytes(key.cipher.decrypt_block(self.block, encode_compact(self.header)))


@hide_frames
def split_document(
    document: dict[str, Any], plain: str, names: tuple[str, ...], what: str
) -> EncryptedPart | Any:
    """Return the encrypted part of a document, or the value of its member `plain`.

    `names` are the members that do not depend on the protection, and messages call the encrypted
    part `what`. Raise KeyMaterialError if members are missing, unknown or malformed.
    """
    content = {"none": (plain,), "scrypt": ("scrypt", "sealed")}.get(
        str(document.get("protection"))
    )
    if content is None:
        raise KeyMaterialError("unknown value of protection")
    require_members(document, *names, "protection", *content)
    if plain in content:
        return document[plain]
    block = decode_base64(document.pop("sealed"), what)
    return EncryptedPart(Scrypt.parse(document["scrypt"]), block, document)


@hide_frames
def encode_plaintext(header: dict[str, Any], name: str, part: Any) -> bytes:
    """Return a document with its secret part in plaintext, in the member `name`."""
    return _format({**header, "protection": "none", name: part})


@hide_frames
def encode_encrypted(header: dict[str, Any], part: bytes, key: PassphraseKey) -> bytes:
    """Return a document with its secret part encrypted."""
    header = {**header, "protection": "scrypt", "scrypt": key.scrypt.encode()}
    block = key.cipher.encrypt_block(part, encode_compact(header))
    return _format({**header, "sealed": encode_base64(block)})


def encode_compact(value: Any) -> bytes:
    """Return compact JSON with sorted names."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _format(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"
