"""What a keyring's file says: master keys by id and version, sealed under a passphrase.

    {"format": "modcrypt-keyring", "version": 2, "id": "<32 hex digits>", "generation": 7,
     "protection": "scrypt", "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

The id is a keyring's for good, and each update adds one to the generation: so a process notices
that an older state is back. Version 1 of the format has neither; an update turns it into version 2.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from modcrypt.aead import GcmCipher
from modcrypt.errors import (
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.fork_safety import cached_property
from modcrypt.keys import KEY_LENGTHS, Key, key_bytes
from modcrypt.kms.client import MasterKey
from modcrypt.pkmt1.strict_json import exact_members, from_base64, strict_json
from modcrypt.tracebacks import hide_frames

__all__ = [
    "DESTROYED",
    "DISABLED",
    "ENABLED",
    "FIRST",
    "MAX_ID",
    "Document",
    "Edition",
    "Master",
    "Scrypt",
    "Seal",
    "Sealed",
    "Version",
    "decode_document",
    "decode_keys",
    "encode_document",
    "is_id",
    "new_version",
]

FORMAT = "modcrypt-keyring"
FORMAT_VERSION = 2
OLD_VERSION = 1
"""Files without an id and a generation."""
ID_SIZE = 16
"""Bytes of a keyring's id."""
MAX_GENERATION = 2**63 - 1
"""Updates of one keyring: an int64, as other readers of JSON have it."""

SCRYPT_R, SCRYPT_P = 8, 1
"""What new passphrases have besides their cost."""
SALT_SIZE = 16

MIN_SCRYPT_N, MAX_SCRYPT_N = 2**14, 2**18
"""Costs accepted from a file: up to 256 MiB and about a second, twice those of new keyrings.

Anyone who can replace the file chooses them, and each attempt to open it pays them.
"""
MAX_SCRYPT_R, MAX_SCRYPT_P = 8, 4
MAX_SCRYPT_WORK = MAX_SCRYPT_N * SCRYPT_R * SCRYPT_P
"""Largest product of the three, to which the time is proportional."""

MAX_VERSIONS = 100_000
"""Most versions, over all master keys of a file."""
MAX_ID = 1024
"""Characters of the longest master key id."""

ENABLED, DISABLED, DESTROYED = "enabled", "disabled", "destroyed"

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
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

    def in_state(self, state: str) -> Version:
        """Return the version in another state; a destroyed one has no key."""
        return replace(self, state=state, key=None if state == DESTROYED else self.key)

    def encode(self) -> dict[str, Any]:
        """Return what `parse` reads, the key in the clear."""
        members = {"version": self.number, "created": self.created, "state": self.state}
        if self.key is None:
            return members
        return {**members, "value": base64.b64encode(key_bytes(self.key)).decode()}


def _key(text: Any, number: int) -> Key:
    raw = from_base64(text, f"version {number}")
    if len(raw) not in KEY_LENGTHS:
        raise KeyMaterialError(f"version {number} is no AES key")
    return Key(raw)


def new_version(number: int, key: Key) -> Version:
    """Return a version that is made now."""
    return Version(number, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), ENABLED, key)


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

    def encode(self) -> dict[str, Any]:
        """Return what `parse` reads, the keys in the clear."""
        versions = [version.encode() for version in self.versions]
        return {"enabled": self.enabled, "versions": versions}

    def in_states(self, numbers: range, state: str) -> Master:
        """Return the master key with some of its versions in another state."""
        versions = (v.in_state(state) if v.number in numbers else v for v in self.versions)
        return replace(self, versions=tuple(versions))

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
            raise KeyDisabledError(
                f"version {version.number} of master key {self.id} is destroyed: what it wrapped "
                "can only be read with a copy of the keyring that still has it"
            )

    def described(self) -> MasterKey:
        """Give what may be told of it."""
        newest = self.versions[-1]
        return MasterKey(
            id=self.id,
            version=newest.number,
            enabled=self.enabled and newest.state == ENABLED,
            created=newest.created,
            disabled_versions=tuple(v.number for v in self.versions[:-1] if v.state != ENABLED),
            destroyed=newest.state == DESTROYED,
            destroyed_versions=tuple(v.number for v in self.versions[:-1] if v.state == DESTROYED),
        )


@hide_frames
def decode_keys(keys: Any) -> dict[str, Master]:
    """Read the keys of a file, down to the last one.

    Raises:
        KeyMaterialError: they are malformed, or too many.
    """
    if not isinstance(keys, dict) or not all(map(is_id, keys)):
        raise KeyMaterialError("its keys are no object whose names are master key ids")
    masters = {name: Master.parse(name, value) for name, value in keys.items()}
    _check_count(masters)
    return masters


def _check_count(masters: Mapping[str, Master]) -> None:
    if sum(len(master.versions) for master in masters.values()) > MAX_VERSIONS:
        raise KeyMaterialError(f"it has more than {MAX_VERSIONS} versions of master keys")


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
            and n * r * p <= MAX_SCRYPT_WORK
        ):
            raise KeyMaterialError("its scrypt parameters pass the limits")
        salt = from_base64(members["salt"], "its salt")
        if len(salt) != SALT_SIZE:
            raise KeyMaterialError(f"its salt has {len(salt)} bytes, not {SALT_SIZE}")
        return cls(n, r, p, salt)

    def encode(self) -> dict[str, Any]:
        """Return what `parse` reads."""
        salt = base64.b64encode(self.salt).decode()
        return {"n": self.n, "r": self.r, "p": self.p, "salt": salt}

    @hide_frames
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
    @hide_frames
    def new(cls, passphrase: bytes, n: int) -> Seal:
        """Derive a key with a fresh salt, at the cost `n`; raises as `Scrypt.cipher`."""
        scrypt = Scrypt(n, SCRYPT_R, SCRYPT_P, secrets.token_bytes(SALT_SIZE))
        return cls(scrypt, scrypt.cipher(passphrase))


@dataclass(frozen=True)
class Sealed:
    """The keys of a file under a passphrase, and the members beside them, which are its AAD."""

    scrypt: Scrypt
    block: bytes
    header: dict[str, Any]

    @hide_frames
    def opened(self, seal: Seal) -> dict[str, Master]:
        """Open the master keys.

        Raises:
            TagError: another passphrase, or altered bytes.
            KeyMaterialError: what was sealed is malformed.
        """
        return decode_keys(strict_json(seal.cipher.open_block(self.block, _compact(self.header))))


# --- the whole file ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edition:
    """Which keyring a file is, and in which state.

    Attributes:
        id: of the keyring, 32 hex digits; None in version 1 of the format.
        generation: number of updates; 0 in version 1 of the format.
    """

    id: str | None
    generation: int

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Edition:
        """Read what a file says of it; raises KeyMaterialError."""
        if document["version"] == OLD_VERSION:
            return cls(None, 0)
        id_, generation = document["id"], document["generation"]
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            raise KeyMaterialError("its id is not 32 hex digits")
        if not _is_count(generation, 0, MAX_GENERATION):
            raise KeyMaterialError("its generation is no count")
        return cls(id_, generation)

    def following(self) -> Edition:
        """Return the edition that an update makes."""
        return Edition(self.id or secrets.token_hex(ID_SIZE), self.generation + 1)


FIRST = Edition(None, 0)
"""The edition before that of a new keyring."""


@dataclass(frozen=True)
class Document:
    """A file as far as it can be read without a passphrase.

    Attributes:
        edition: which keyring it is, and in which state.
        content: the sealed keys, or the master keys of a file in the clear.
    """

    edition: Edition
    content: Sealed | dict[str, Master]


@hide_frames
def encode_document(masters: Mapping[str, Master], seal: Seal | None, edition: Edition) -> bytes:
    """Return the bytes of a file: sealed, or in the clear without a seal.

    Raises:
        KeyMaterialError: it has more versions, or updates, than can be read again.
        KeyExhaustedError: the seal has been used 2**32 times.
    """
    _check_count(masters)
    if edition.generation > MAX_GENERATION:
        raise KeyMaterialError(f"its generation would pass {MAX_GENERATION}")
    keys = {name: master.encode() for name, master in masters.items()}
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "id": edition.id,
        "generation": edition.generation,
        "protection": "none" if seal is None else "scrypt",
    }
    if seal is None:
        return _lines({**header, "keys": keys})
    header["scrypt"] = seal.scrypt.encode()
    sealed = seal.cipher.seal_block(_compact(keys), _compact(header))
    return _lines({**header, "sealed": base64.b64encode(sealed).decode()})


def _lines(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@hide_frames
def decode_document(data: bytes) -> Document:
    """Read a file; of a sealed one all but the keys.

    Raises:
        KeyMaterialError: it is no keyring, or of a kind that is not known here, or malformed.
    """
    document = strict_json(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise KeyMaterialError(f"it is none: its format is not {FORMAT}")
    if not _is_count(document.get("version"), OLD_VERSION, FORMAT_VERSION):
        raise KeyMaterialError(
            f"only versions {OLD_VERSION} and {FORMAT_VERSION} of its format are known here"
        )
    content = _CONTENT.get(str(document.get("protection")))
    if content is None:
        raise KeyMaterialError("it is protected in an unknown way")
    names = () if document["version"] == OLD_VERSION else ("id", "generation")
    exact_members(document, "format", "version", *names, "protection", *content)
    edition = Edition.parse(document)
    if "keys" in document:
        return Document(edition, decode_keys(document["keys"]))
    block = from_base64(document.pop("sealed"), "what is sealed")
    return Document(edition, Sealed(Scrypt.parse(document["scrypt"]), block, document))


_CONTENT = {"none": ("keys",), "scrypt": ("scrypt", "sealed")}
