"""Key material of the key tools (PKMT1): the wrapped keys that a file stores.

A flat JSON object, as parquet-java and Arrow C++ write it:

    keyMaterialType "PKMT1" | internalStorage | isFooterKey | kmsInstanceID, kmsInstanceURL (footer
    key only) | masterKeyID | wrappedDEK | doubleWrapping | keyEncryptionKeyID, wrappedKEK (double
    wrapping only)

Internal key material is the file's key metadata itself. With external key material, the key
metadata is a reference, and a file beside the data file contains the material: an object of such
objects, each encoded as a string.

    {"keyMaterialType":"PKMT1","internalStorage":false,"keyReference":"columnKey0"}

modcrypt adds the member `modcryptWrite` to references and to external material, to detect whether
both belong together; other implementations ignore it.

Only the wrapped keys themselves are authenticated. modcrypt preserves the address of the key
service in the material, and never uses it (CVE-2026-73334).
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats, refuse_surrogates

TYPE = "PKMT1"

KEK_ID_SIZE = 16  # length of a KEK's id in bytes; the id is the AAD of what the KEK wraps

MAX_METADATA = 64 << 10
"""Length limit of key metadata that may be key material, in bytes."""

MAX_SHARED_METADATA = 16 << 20
"""Length limit of key metadata that also has recipients, in bytes: each takes up to 2 KB."""

RECIPIENTS = "modcryptRecipients"
"""Member with the same key for recipients; see `recipient_metadata`."""

MAX_STORE = 64 << 20
"""Size limit of a file of external key material, in bytes: enough for 32,767 columns."""

MAX_NAME = 1024
"""Length limit of a master key id or reference, in characters."""

MAX_WRAPPED = 16 << 10
"""Length limit of a wrapped key from a service or a file, in characters."""

WRITE = "modcryptWrite"
"""Member with the id of the modcrypt run that wrote the material: 16 hex digits."""

SHREDDED = b'{"modcryptKeyMetadata":"shredded"}\n'
"""Replacement for a file's wrapped key, which shows that the key was shredded."""

DEFAULT_INSTANCE = "DEFAULT"
"""Value that the key tools write if no instance of a key service is named."""

_DEK = b',"wrappedDEK":"'
_WRAPPED_DEK = re.compile(rb'[A-Za-z0-9+/]{1,1024}={0,2}"\}')

_KNOWN = frozenset(
    {
        "keyMaterialType", "internalStorage", "isFooterKey", "kmsInstanceID", "kmsInstanceURL",
        "masterKeyID", "wrappedDEK", "doubleWrapping", "keyEncryptionKeyID", "wrappedKEK",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMaterial:
    """The wrapped form of one data key (DEK) of a file."""

    is_footer_key: bool
    master_key_id: str
    # DEK wrapped under the KEK or, in single wrapping, under the master key.
    wrapped_dek: str = field(repr=False)
    kek_id: bytes | None = None  # id of the KEK, 16 bytes; None in single wrapping
    # KEK wrapped under the master key; None in single wrapping.
    wrapped_kek: str | None = field(default=None, repr=False)
    internal: bool = True  # whether the material is, or was, the file's key metadata
    # Id and URL of the key service, from the footer key's material only. Never used.
    instance: tuple[str | None, str | None] = field(default=(None, None), repr=False)
    # Members unknown to modcrypt, which it preserves.
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def double_wrapping(self) -> bool:
        """True if a KEK, wrapped under the master key, wraps the DEK."""
        return self.kek_id is not None

    @property
    def master_wrapped(self) -> str:
        """Text that the master key wrapped: the KEK, or the DEK in single wrapping."""
        return self.wrapped_dek if self.wrapped_kek is None else self.wrapped_kek

    def with_master_wrapped(self, wrapped: str, master_key_id: str) -> KeyMaterial:
        """Return the material of the same key under another master key or version of it."""
        if self.wrapped_kek is None:
            return replace(self, master_key_id=master_key_id, wrapped_dek=wrapped)
        return replace(self, master_key_id=master_key_id, wrapped_kek=wrapped)

    def with_dek(self, wrapped: str) -> KeyMaterial:
        """Return the material of another DEK under the same KEK; `replace` takes twice as long."""
        return KeyMaterial(
            is_footer_key=self.is_footer_key, master_key_id=self.master_key_id,
            wrapped_dek=wrapped, kek_id=self.kek_id, wrapped_kek=self.wrapped_kek,
            internal=self.internal, instance=self.instance, others=self.others,
        )  # fmt: skip

    def encode(self) -> str:
        """Return the material as JSON; a footer key without an instance gets the default one."""
        return f"{self.head()}{json.dumps(self.wrapped_dek)}}}"

    def head(self) -> str:
        """Return the JSON before the wrapped DEK, which is the same for all DEKs of a KEK."""
        members: dict[str, Any] = {"keyMaterialType": TYPE}
        if self.internal:
            members["internalStorage"] = True
        members["isFooterKey"] = self.is_footer_key
        if self.is_footer_key:  # parquet-java requires them
            instance, url = self.instance
            members["kmsInstanceID"] = instance or DEFAULT_INSTANCE
            members["kmsInstanceURL"] = url or DEFAULT_INSTANCE
        members["masterKeyID"] = self.master_key_id
        members["doubleWrapping"] = self.double_wrapping
        if self.kek_id is not None:
            members["keyEncryptionKeyID"] = base64.b64encode(self.kek_id).decode()
            members["wrappedKEK"] = self.wrapped_kek
        text = _ENCODER.encode({**members, **self.others})
        return f'{text[:-1]},"wrappedDEK":'


@dataclass(frozen=True, slots=True)
class KeyReference:
    """The key metadata of a key whose material is stored externally."""

    name: str  # name of the key in the key material
    write: str | None = None  # id of the modcrypt run that wrote the file; None for other writers

    def encode(self) -> bytes:
        """Return the reference as key metadata."""
        members: dict[str, Any] = {
            "keyMaterialType": TYPE,
            "internalStorage": False,
            "keyReference": self.name,
        }
        if self.write is not None:
            members[WRITE] = self.write
        return json.dumps(members, separators=(",", ":")).encode()


@functools.lru_cache(maxsize=64)  # opening a file and comparing its keys decode the same again
def decode_metadata(metadata: bytes) -> KeyMaterial | KeyReference:
    """Decode a file's key metadata into key material, or a reference to external material."""
    limit = MAX_SHARED_METADATA if RECIPIENTS.encode() in metadata else MAX_METADATA
    if len(metadata) > limit:
        raise KeyMaterialError(f"key metadata of {len(metadata)} bytes is too long for PKMT1")
    if (head := split_metadata(metadata)) is not None and limit == MAX_METADATA:
        shared = _decode_head(head)
        if isinstance(shared, KeyMaterial):
            return shared.with_dek(metadata[len(head) + len(_DEK) : -2].decode())
    return _decode(metadata)


def split_metadata(metadata: bytes) -> bytes | None:
    """Return the part that all DEKs of a KEK have in common; None if the DEK is not the end."""
    head, found, end = metadata.rpartition(_DEK)
    return head if found and _WRAPPED_DEK.fullmatch(end) else None


@functools.lru_cache(maxsize=64)
def _decode_head(head: bytes) -> KeyMaterial | KeyReference:
    """Decode what `split_metadata` returns."""
    # Base64 in quotes cannot change the meaning of what precedes it, so any DEK stands for all.
    return _decode(head + _DEK + b'A"}')


def _decode(metadata: bytes) -> KeyMaterial | KeyReference:
    members = _parse_members(metadata)
    if _require_boolean(members, "internalStorage"):
        return _parse_material(members, internal=True)
    return KeyReference(_require_name(members, "keyReference"), write_of(members))


def try_decode_metadata(metadata: bytes | None) -> KeyMaterial | KeyReference | None:
    """Return a key's material or the reference to it; None for key metadata that is not PKMT1."""
    try:
        return decode_metadata(metadata) if metadata else None
    except KeyMaterialError:
        return None


def write_of(members: Mapping[str, Any]) -> str | None:
    """Return the id of the modcrypt run that wrote a reference or external material."""
    write = members.get(WRITE)
    return write if isinstance(write, str) and re.fullmatch("[0-9a-f]{16}", write) else None


def decode_material(text: str) -> KeyMaterial:
    """Decode the material of one key from an external store; raise KeyMaterialError."""
    if len(text) > MAX_METADATA:
        raise KeyMaterialError(f"key material of {len(text)} characters is too long")
    return _parse_material(_parse_members(text), internal=False)


def external_name(name: str) -> str:
    """Return the name of the file that contains the key material of the file called `name`."""
    return f"_KEY_MATERIAL_FOR_{name}.json"


STORE_NAME = re.compile(r"(?:_TMP)?_KEY_MATERIAL_FOR_(.*)\.json", re.DOTALL)
"""Names of files of key material; other implementations add _TMP while they replace one."""


def decode_store(data: bytes) -> dict[str, str]:
    """Decode a file of external key material into a map from reference to undecoded material."""
    if (store := _parse_object(data)) is None:
        raise KeyMaterialError(
            "external key material must be a flat JSON object without repeated members"
        )
    for reference, material in store.items():
        if not isinstance(material, str) or len(reference) > MAX_NAME:
            raise KeyMaterialError(
                "a member of the external key material is not a string, or its name is too long"
            )
    return store


def encode_store(store: Mapping[str, str]) -> bytes:
    """Encode external key material; raise KeyMaterialError if it would be too large to read."""
    data = json.dumps(dict(store), separators=(",", ":")).encode()
    if len(data) > MAX_STORE:
        raise KeyMaterialError(f"external key material is longer than {MAX_STORE} bytes")
    return data


def _parse_material(members: dict[str, Any], *, internal: bool) -> KeyMaterial:
    footer = _require_boolean(members, "isFooterKey")
    double = _require_boolean(members, "doubleWrapping")
    return KeyMaterial(
        is_footer_key=footer,
        master_key_id=_require_name(members, "masterKeyID"),
        wrapped_dek=_require_wrapped(members, "wrappedDEK"),
        kek_id=_decode_kek_id(members) if double else None,
        wrapped_kek=_require_wrapped(members, "wrappedKEK") if double else None,
        internal=internal,
        instance=(
            _read_instance(members, "kmsInstanceID"),
            _read_instance(members, "kmsInstanceURL"),
        )
        if footer
        else (None, None),
        others={name: value for name, value in members.items() if name not in _KNOWN},
    )


def _parse_members(data: bytes | str) -> dict[str, Any]:
    members = _parse_object(data)
    if members is None or members.get("keyMaterialType") != TYPE:
        raise KeyMaterialError(
            "the key metadata is not valid key material of type PKMT1: it is damaged, or the "
            "writer did not use the key tools; then pass a key retriever that understands it"
        )
    return members


def _parse_object(data: bytes | str) -> dict[str, Any] | None:
    """Return a flat JSON object; None for anything else."""
    try:
        text = data if isinstance(data, str) else data.decode()  # UTF-8 and no other encoding
        value = _DECODER.decode(text)
        if "\\u" in text or not text.isascii():
            refuse_surrogates(value)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return value if isinstance(value, dict) else None


def _build_flat_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = refuse_repeats(pairs)
    if not {dict, list}.isdisjoint(map(type, members.values())):
        raise ValueError
    return members


def _parse_float(text: str) -> float:
    if not math.isfinite(number := float(text)):  # JSON cannot represent it
        raise ValueError
    return number


def _require_boolean(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    # Earlier versions of parquet-java write them as strings.
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise KeyMaterialError(f"the key material's {name} is neither true nor false")


def _require_name(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise KeyMaterialError(
            f"the key material's {name} is not a string of 1 to {MAX_NAME} printable characters"
        )
    return value


def check_id(master_key_id: object) -> None:
    """Raise ValueError if a value is not valid as the id of a master key."""
    try:
        _require_name({"id": master_key_id}, "id")
    except KeyMaterialError:
        raise ValueError(
            f"the id of a master key must have 1 to {MAX_NAME} printable characters"
        ) from None


def is_wrapped_key(text: object) -> TypeGuard[str]:
    """Return whether a text of a key service or a file can be a wrapped key."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_WRAPPED:
        return False
    return text.isascii() and text.isprintable()


def _require_wrapped(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not is_wrapped_key(value):
        raise KeyMaterialError(f"the key material's {name} is not a wrapped key")
    return value


def _read_instance(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    return value if isinstance(value, str) and len(value) <= MAX_WRAPPED else None


def _decode_kek_id(members: dict[str, Any]) -> bytes:
    try:
        kek_id = base64.b64decode(_require_name(members, "keyEncryptionKeyID"), validate=True)
    except (binascii.Error, ValueError):
        kek_id = b""
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(
            f"the key material's keyEncryptionKeyID is not the base64 of {KEK_ID_SIZE} bytes"
        )
    return kek_id


# Shared, because their construction takes longer than their work on key material.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_flat_object, parse_constant=refuse_constant, parse_float=_parse_float
)
