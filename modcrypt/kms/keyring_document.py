"""What a keyring's file says: master keys by id and version, sealed under a passphrase.

    {"format": "modcrypt-keyring", "version": 1, "protection": "scrypt",
     "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

What is sealed are the keys, ids and all: AES-256-GCM under the key that scrypt (RFC 7914) makes of
the passphrase, with the other members as AAD. A keyring in the clear has `"protection": "none"`
and, in place of the last two, the keys themselves:

    {"keys": {"kf": {"enabled": true, "versions": [
        {"version": 1, "created": "2026-01-31T12:00:00Z", "state": "enabled", "value": base64}]}}}

Bytes in, checked values out: nothing here reads or writes a file.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from modcrypt.aead import GcmCipher
from modcrypt.errors import (
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.keys import KEY_LENGTHS, Key
from modcrypt.kms.client import MasterKey
from modcrypt.kms.strict_json import exact_members, from_base64, strict_json

__all__ = [
    "DESTROYED",
    "DISABLED",
    "ENABLED",
    "MAX_ID",
    "Master",
    "Scrypt",
    "Seal",
    "Sealed",
    "Version",
    "clear_keys",
    "decode_document",
    "decode_keys",
    "encode_document",
    "is_id",
    "is_sealed",
    "new_version",
    "sealed_keys",
]

FORMAT = "modcrypt-keyring"
FORMAT_VERSION = 1

SCRYPT_R, SCRYPT_P = 8, 1
"""What new passphrases have besides their cost."""
SALT_SIZE = 16

MIN_SCRYPT_N, MAX_SCRYPT_N = 2**14, 2**20
"""Costs that are taken from a file: up to 1 GiB of memory with the largest `r`."""
MAX_SCRYPT_R, MAX_SCRYPT_P = 8, 4

MAX_VERSIONS = 100_000
"""Most versions, over all master keys of a file."""
MAX_ID = 1024
"""Characters of the longest master key id."""

ENABLED, DISABLED, DESTROYED = "enabled", "disabled", "destroyed"

_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def is_id(value: Any) -> bool:
    """Tell whether a master key may have this id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


def _is_count(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high  # a bool is an int, too


# --- master keys ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """One version of a master key; `key` is None once it is destroyed."""

    number: int
    created: str
    state: str
    key: Key | None

    @cached_property
    def cipher(self) -> GcmCipher:
        """What wraps and unwraps with it."""
        assert self.key is not None  # who asks has looked at the state
        return GcmCipher(self.key)

    @classmethod
    def parse(cls, value: Any, number: int) -> Version:
        """Read the version that stands in the place of `number`; raises KeyMaterialError."""
        state = value.get("state") if isinstance(value, dict) else None
        names = ["version", "created", "state", *(["value"] if state != DESTROYED else [])]
        members = exact_members(value, *names)
        created = members["created"]
        if not _is_count(members["version"], number, number):
            raise KeyMaterialError(f"version {number} is not where it should be")
        if state not in (ENABLED, DISABLED, DESTROYED):
            raise KeyMaterialError(f"version {number} is in an unknown state")
        if not isinstance(created, str) or not _CREATED.fullmatch(created):
            raise KeyMaterialError(f"version {number} was created at no time in UTC")
        key = None if state == DESTROYED else _key(members["value"], number)
        return cls(number, created, state, key)


def _key(text: Any, number: int) -> Key:
    raw = from_base64(text, f"version {number}")
    if len(raw) not in KEY_LENGTHS:
        raise KeyMaterialError(f"version {number} is no AES key")
    return Key(raw)


def new_version(number: int, raw: bytes) -> dict[str, Any]:
    """Give what a file says of a version that is made now."""
    return {
        "version": number,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "state": ENABLED,
        "value": base64.b64encode(raw).decode(),
    }


@dataclass(frozen=True)
class Master:
    """A master key with all its versions, from 1 on."""

    id: str
    enabled: bool
    versions: tuple[Version, ...]

    @classmethod
    def parse(cls, name: str, value: Any) -> Master:
        """Read what a file says of a master key; raises KeyMaterialError."""
        members = exact_members(value, "enabled", "versions")
        enabled, versions = members["enabled"], members["versions"]
        if not isinstance(enabled, bool) or not isinstance(versions, list) or not versions:
            raise KeyMaterialError(f"master key {name} is malformed")
        parsed = (Version.parse(one, number) for number, one in enumerate(versions, 1))
        return cls(name, enabled, tuple(parsed))

    def wrapping(self) -> Version:
        """Give the version that wraps; raises KeyDisabledError."""
        newest = self.versions[-1]
        self._check(newest)
        return newest

    def unwrapping(self, number: int | None) -> Sequence[Version]:
        """Give the versions that may open what was wrapped under `number`, the newest first.

        Raises:
            KeyNotFoundError: there is no such version.
            KeyDisabledError: it is disabled or destroyed.
        """
        if number is None:
            if able := [v for v in reversed(self.versions) if self.enabled and v.state == ENABLED]:
                return able
            number = len(self.versions)
        if number > len(self.versions):
            raise KeyNotFoundError(
                f"the keyring has no version {number} of master key {self.id}; its newest is "
                f"{len(self.versions)}"
            )
        version = self.versions[number - 1]
        self._check(version)
        return (version,)

    def _check(self, version: Version) -> None:
        self.check_kept(version)
        if not self.enabled:
            raise KeyDisabledError(f"master key {self.id} is disabled in its keyring")
        if version.state != ENABLED:
            raise KeyDisabledError(
                f"version {version.number} of master key {self.id} is disabled in its keyring"
            )

    def check_kept(self, version: Version) -> None:
        """Raise KeyDisabledError if a version is destroyed."""
        if version.state == DESTROYED:
            raise KeyDisabledError(f"version {version.number} of master key {self.id} is destroyed")

    def described(self) -> MasterKey:
        """Give what may be told of it."""
        newest = self.versions[-1]
        return MasterKey(
            id=self.id,
            version=newest.number,
            enabled=self.enabled and newest.state == ENABLED,
            created=newest.created,
            disabled_versions=tuple(v.number for v in self.versions[:-1] if v.state != ENABLED),
        )


def decode_keys(keys: Any) -> dict[str, Master]:
    """Read the keys of a file, down to the last one.

    Raises:
        KeyMaterialError: they are malformed, or too many.
    """
    if not isinstance(keys, dict) or not all(map(is_id, keys)):
        raise KeyMaterialError("its keys are no object whose names are master key ids")
    masters = {name: Master.parse(name, value) for name, value in keys.items()}
    if sum(len(master.versions) for master in masters.values()) > MAX_VERSIONS:
        raise KeyMaterialError(f"it has more than {MAX_VERSIONS} versions of master keys")
    return masters


# --- under a passphrase --------------------------------------------------------------------------


@dataclass(frozen=True)
class Scrypt:
    """How a passphrase becomes a key (RFC 7914)."""

    n: int
    r: int
    p: int
    salt: bytes

    @classmethod
    def parse(cls, value: Any) -> Scrypt:
        """Read the parameters of a file; raises KeyMaterialError."""
        members = exact_members(value, "n", "r", "p", "salt")
        n, r, p = members["n"], members["r"], members["p"]
        if not (
            _is_count(n, MIN_SCRYPT_N, MAX_SCRYPT_N)
            and n & (n - 1) == 0
            and _is_count(r, 1, MAX_SCRYPT_R)
            and _is_count(p, 1, MAX_SCRYPT_P)
        ):
            raise KeyMaterialError("its scrypt parameters pass the limits")
        salt = from_base64(members["salt"], "its salt")
        if len(salt) != SALT_SIZE:
            raise KeyMaterialError(f"its salt has {len(salt)} bytes, not {SALT_SIZE}")
        return cls(n, r, p, salt)

    def header(self) -> dict[str, Any]:
        """Give what stands in the file beside the sealed keys."""
        salt = base64.b64encode(self.salt).decode()
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "protection": "scrypt",
            "scrypt": {"n": self.n, "r": self.r, "p": self.p, "salt": salt},
        }

    def cipher(self, passphrase: bytes) -> GcmCipher:
        """Derive the key.

        Raises:
            KeyRetrievalError: there is not the memory that it takes.
        """
        n, r, p = self.n, self.r, self.p
        size = 128 * n * r
        room = size + 128 * r * (p + 2) + (1 << 20)
        with contextlib.suppress(ValueError, MemoryError):
            raw = hashlib.scrypt(passphrase, salt=self.salt, n=n, r=r, p=p, maxmem=room, dklen=32)
            return GcmCipher(Key(raw))
        raise KeyRetrievalError(f"a keyring's passphrase takes {size >> 20} MiB of memory to try")


@dataclass(frozen=True)
class Seal:
    """A key derived from a passphrase, and how it was."""

    scrypt: Scrypt
    cipher: GcmCipher

    @classmethod
    def new(cls, passphrase: bytes, n: int) -> Seal:
        """Derive a key with a fresh salt, at the cost `n`; raises as `Scrypt.cipher`."""
        scrypt = Scrypt(n, SCRYPT_R, SCRYPT_P, secrets.token_bytes(SALT_SIZE))
        return cls(scrypt, scrypt.cipher(passphrase))


@dataclass(frozen=True)
class Sealed:
    """The keys of a file under a passphrase."""

    scrypt: Scrypt
    block: bytes

    def opened(self, seal: Seal) -> Any:
        """Give the keys in the clear, for `decode_keys`.

        Raises:
            TagError: another passphrase, or altered bytes.
            KeyMaterialError: what was sealed is no JSON.
        """
        return strict_json(seal.cipher.open_block(self.block, _compact(self.scrypt.header())))


# --- the whole file ------------------------------------------------------------------------------


def encode_document(keys: dict[str, Any], seal: Seal | None) -> bytes:
    """Give the bytes of a file: sealed, or in the clear without a seal."""
    if seal is None:
        document = {"format": FORMAT, "version": FORMAT_VERSION, "protection": "none", "keys": keys}
    else:
        header = seal.scrypt.header()
        sealed = seal.cipher.seal_block(_compact(keys), _compact(header))
        document = {**header, "sealed": base64.b64encode(sealed).decode()}
    return json.dumps(document, indent=1).encode() + b"\n"


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decode_document(data: bytes) -> dict[str, Any]:
    """Read a file as far as to tell `is_sealed`; `clear_keys` or `sealed_keys` read the rest.

    Raises:
        KeyMaterialError: it is no keyring, or of a kind that is not known here.
    """
    document = strict_json(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise KeyMaterialError(f"it is none: its format is not {FORMAT}")
    if not _is_count(document.get("version"), FORMAT_VERSION, FORMAT_VERSION):
        raise KeyMaterialError(f"only version {FORMAT_VERSION} of its format is known here")
    if document.get("protection") not in ("none", "scrypt"):
        raise KeyMaterialError("it is protected in an unknown way")
    return document


def is_sealed(document: dict[str, Any]) -> bool:
    """Tell whether the keys of a file are under a passphrase."""
    return bool(document["protection"] == "scrypt")


def clear_keys(document: dict[str, Any]) -> Any:
    """Give the keys of a file in the clear, for `decode_keys`; raises KeyMaterialError."""
    return exact_members(document, "format", "version", "protection", "keys")["keys"]


def sealed_keys(document: dict[str, Any]) -> Sealed:
    """Give the keys of a sealed file, as they are; raises KeyMaterialError."""
    exact_members(document, "format", "version", "protection", "scrypt", "sealed")
    block = from_base64(document["sealed"], "what is sealed")
    return Sealed(Scrypt.parse(document["scrypt"]), block)
