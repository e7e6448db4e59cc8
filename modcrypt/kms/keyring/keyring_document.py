"""The format of a keyring file: master keys by id and version, encrypted under a passphrase.

    {"format": "modcrypt-keyring", "version": 2, "id": "<32 hex digits>", "generation": 7,
     "protection": "scrypt", "scrypt": {...}, "sealed": "..."}

The id of a keyring never changes, and each update increments the generation, so that a process
notices the return of an older state. Version 1 of the format has neither; an update converts it to
version 2.

The encrypted part, which `passphrase_encryption` describes, contains the keys with their ids. In
plaintext they are:

    {"keys": {"kf": {"enabled": true, "versions": [
        {"version": 1, "created": "2026-01-31T12:00:00Z", "state": "enabled", "value": base64}]}}}

This module converts between bytes and checked values; it does not read or write files.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyDisabledError, KeyMaterialError, KeyNotFoundError
from modcrypt.keys import Key, key_bytes
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.kms.client import MasterKey
from modcrypt.kms.keyring.passphrase_encryption import (
    EncryptedPart,
    PassphraseKey,
    encode_compact,
    encode_encrypted,
    encode_plaintext,
    is_count,
    split_document,
)
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members, strict_json
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

FORMAT = "modcrypt-keyring"
FORMAT_VERSION = 2
OLD_VERSION = 1  # version of files without an id and a generation
ID_SIZE = 16  # length of a keyring's id, in bytes
MAX_GENERATION = 2**63 - 1
"""Limit for the number of updates of one keyring: an int64, for other readers of JSON."""

MAX_VERSIONS = 100_000
"""Limit for the number of versions of all master keys of a file."""
MAX_ID = 1024
"""Length limit of a master key id, in characters."""

ENABLED, DISABLED, DESTROYED = "enabled", "disabled", "destroyed"

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def is_id(value: Any) -> bool:
    """Return whether a value is a valid master key id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


_DISABLED = "is disabled in the keyring; modcrypt keys enable undoes it"


@dataclass(frozen=True)
class Version:
    """A version of a master key; `key` is None after its destruction."""

    number: int
    created: str
    state: str
    key: Key | None

    @cached_property
    def cipher(self) -> GcmCipher:
        """Cipher that wraps and unwraps with this version."""
        assert self.key is not None  # callers check the state first
        return GcmCipher(self.key)

    @classmethod
    def parse(cls, value: Any, number: int) -> Version:
        """Parse a version and check that it has this number; raise KeyMaterialError."""
        state = value.get("state") if isinstance(value, dict) else None
        names = ["version", "created", "state", *(["value"] if state != DESTROYED else [])]
        members = require_members(value, *names)
        created = members["created"]
        if not is_count(members["version"], number, number):
            raise KeyMaterialError(f"version {number} is missing, or out of order")
        if state not in (ENABLED, DISABLED, DESTROYED):
            raise KeyMaterialError(f"version {number} is in an unknown state")
        if not isinstance(created, str) or not _CREATED.fullmatch(created):
            raise KeyMaterialError(f"the creation time of version {number} is not a time in UTC")
        key = None
        if state != DESTROYED:
            raw = decode_base64(members["value"], f"version {number}")
            if len(raw) not in KEY_LENGTHS:
                raise KeyMaterialError(f"version {number} is not an AES key")
            key = Key(raw)
        return cls(number, created, state, key)

    def encode(self) -> dict[str, Any]:
        """Return the input of `parse`, with the key in plaintext."""
        members = {"version": self.number, "created": self.created, "state": self.state}
        if self.key is None:
            return members
        return {**members, "value": encode_base64(key_bytes(self.key))}


def new_version(number: int, key: Key) -> Version:
    """Return a version with the current time."""
    return Version(number, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), ENABLED, key)


@dataclass(frozen=True)
class Master:
    """A master key with all its versions, from 1 on."""

    id: str
    enabled: bool
    versions: tuple[Version, ...]

    @classmethod
    def parse(cls, name: str, value: Any) -> Master:
        """Parse a master key; raise KeyMaterialError."""
        members = require_members(value, "enabled", "versions")
        enabled, versions = members["enabled"], members["versions"]
        if not isinstance(enabled, bool) or not isinstance(versions, list) or not versions:
            raise KeyMaterialError(f"master key {name} is malformed")
        parsed = (Version.parse(version, number) for number, version in enumerate(versions, 1))
        return cls(name, enabled, tuple(parsed))

    def encode(self) -> dict[str, Any]:
        """Return the input of `parse`, with the keys in plaintext."""
        versions = [version.encode() for version in self.versions]
        return {"enabled": self.enabled, "versions": versions}

    def with_states(self, numbers: range, state: str) -> Master:
        """Return the master key with some of its versions in another state."""
        changed = {
            number: replace(v, state=state, key=None if state == DESTROYED else v.key)
            for number, v in enumerate(self.versions, 1)
            if number in numbers
        }
        return replace(self, versions=tuple(changed.get(v.number, v) for v in self.versions))

    def find_wrapping_version(self) -> Version:
        """Return the version that wraps; raise KeyDisabledError."""
        newest = self.versions[-1]
        self._check(newest)
        return newest

    def find_unwrapping_versions(self, number: int | None) -> Sequence[Version]:
        """Return the versions that may unwrap a key wrapped under `number`, the newest first.

        Raise KeyNotFoundError if there is no such version, KeyDisabledError if it may not unwrap.
        """
        if number is None:
            if able := [v for v in reversed(self.versions) if self.enabled and v.state == ENABLED]:
                return able
            number = len(self.versions)
        if number > len(self.versions):
            raise KeyNotFoundError(
                f"the keyring has no version {number} of master key {self.id}; the newest version "
                f"is {len(self.versions)}"
            )
        version = self.versions[number - 1]
        self._check(version)
        return (version,)

    def _check(self, version: Version) -> None:
        self.check_kept(version)
        if not self.enabled:
            raise KeyDisabledError(f"master key {self.id} {_DISABLED}")
        if version.state != ENABLED:
            raise KeyDisabledError(f"version {version.number} of master key {self.id} {_DISABLED}")

    def check_kept(self, version: Version) -> None:
        """Raise KeyDisabledError if a version is destroyed."""
        if version.state == DESTROYED:
            raise KeyDisabledError(
                f"version {version.number} of master key {self.id} is destroyed: keys that it "
                "wrapped unwrap only with a copy of the keyring that still contains it"
            )

    def describe(self) -> MasterKey:
        """Return the public facts about the master key."""
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
    """Parse all keys of a file; raise KeyMaterialError if they are malformed or too many."""
    if not isinstance(keys, dict) or not all(map(is_id, keys)):
        raise KeyMaterialError("the keys must be an object with master key ids as names")
    masters = {name: Master.parse(name, value) for name, value in keys.items()}
    _check_count(masters)
    return masters


def _check_count(masters: Mapping[str, Master]) -> None:
    if sum(len(master.versions) for master in masters.values()) > MAX_VERSIONS:
        raise KeyMaterialError(f"more than {MAX_VERSIONS} versions of master keys")


@dataclass(frozen=True)
class Edition:
    """The identity and state of a keyring file."""

    id: str | None  # id of the keyring, 32 hex digits; None in version 1 of the format
    generation: int  # number of updates; 0 in version 1 of the format

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Edition:
        """Parse the edition of a document; raise KeyMaterialError."""
        if document["version"] == OLD_VERSION:
            return cls(None, 0)
        id_, generation = document["id"], document["generation"]
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            raise KeyMaterialError("the id is not 32 hex digits")
        if not is_count(generation, 0, MAX_GENERATION):
            raise KeyMaterialError(f"the generation is not a number from 0 to {MAX_GENERATION}")
        return cls(id_, generation)

    def next_edition(self) -> Edition:
        """Return the edition after one more update."""
        return Edition(self.id or secrets.token_hex(ID_SIZE), self.generation + 1)


FIRST = Edition(None, 0)  # edition that precedes a new keyring's


@dataclass(frozen=True)
class Document:
    """The content of a file that is readable without a passphrase."""

    edition: Edition  # identity and state of the keyring
    content: EncryptedPart | dict[str, Master]  # in a plaintext file the master keys


@hide_frames
def encode_document(
    masters: Mapping[str, Master], key: PassphraseKey | None, edition: Edition
) -> bytes:
    """Return the bytes of a file, encrypted or, without a key, in plaintext.

    Raise KeyMaterialError if the file would exceed the limits for versions or updates.
    """
    _check_count(masters)
    if edition.generation > MAX_GENERATION:
        raise KeyMaterialError(f"the generation would exceed {MAX_GENERATION}")
    keys = {name: master.encode() for name, master in masters.items()}
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "id": edition.id,
        "generation": edition.generation,
    }
    if key is None:
        return encode_plaintext(header, "keys", keys)
    return encode_encrypted(header, encode_compact(keys), key)


@hide_frames
def decode_document(data: bytes) -> Document:
    """Parse a file; in an encrypted file, parse all but the keys."""
    document = strict_json(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise KeyMaterialError(f"not a keyring: the format is not {FORMAT}")
    if not is_count(document.get("version"), OLD_VERSION, FORMAT_VERSION):
        raise KeyMaterialError(
            f"unsupported version of the format; expected {OLD_VERSION} or {FORMAT_VERSION}"
        )
    names = () if document["version"] == OLD_VERSION else ("id", "generation")
    content = split_document(document, "keys", ("format", "version", *names), "the encrypted part")
    if not isinstance(content, EncryptedPart):
        content = decode_keys(content)
    return Document(Edition.parse(document), content)
