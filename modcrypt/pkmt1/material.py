"""Key material of the key tools, PKMT1: what stands in a file in the place of its keys.

A flat JSON object, as parquet-java and Arrow C++ write it:

    keyMaterialType "PKMT1" | internalStorage | isFooterKey | kmsInstanceID, kmsInstanceURL (footer
    key alone) | masterKeyID | wrappedDEK | doubleWrapping | keyEncryptionKeyID, wrappedKEK (double
    wrapping alone)

Stored internally it is the key metadata itself. Stored externally the key metadata is a reference,
and the material lies beside the file: an object of such objects, each spelt as a string.

    {"keyMaterialType":"PKMT1","internalStorage":false,"keyReference":"columnKey0"}

modcrypt adds a member `modcryptWrite` to references and to external material, by which both are
told to belong together; others pass it over.

Nothing in it is authenticated but the wrapped keys themselves. The address of the key service that
it names is kept, and never used (CVE-2026-73334).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.kms.client import MAX_WRAPPED, is_wrapped_key
from modcrypt.pkmt1.strict_json import no_constant, once

__all__ = [
    "KEK_ID_SIZE",
    "SHREDDED",
    "WRITE",
    "KeyMaterial",
    "KeyReference",
    "check_id",
    "decode_material",
    "decode_metadata",
    "decode_store",
    "encode_store",
    "external_name",
    "write_of",
]

TYPE = "PKMT1"

KEK_ID_SIZE = 16
"""Bytes of a KEK's id, which is the AAD of what the KEK wraps."""

MAX_METADATA = 64 << 10
"""Longest key metadata that is taken for key material, in bytes."""

MAX_STORE = 64 << 20
"""Largest file of external key material, in bytes: more than 32,767 columns take."""

MAX_NAME = 1024
"""Longest master key id or reference, in characters."""

WRITE = "modcryptWrite"
"""Member that says which run of modcrypt wrote it: 16 hex digits."""

SHREDDED = b'{"modcryptKeyMetadata":"shredded"}\n'
"""What stands in the place of a file's key, by which it is known that one was removed."""

DEFAULT_INSTANCE = "DEFAULT"
"""What the key tools write where no instance of a key service is named."""

_KNOWN = frozenset(
    {
        "keyMaterialType", "internalStorage", "isFooterKey", "kmsInstanceID", "kmsInstanceURL",
        "masterKeyID", "wrappedDEK", "doubleWrapping", "keyEncryptionKeyID", "wrappedKEK",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMaterial:
    """How one data key (DEK) of a file is wrapped.

    Attributes:
        is_footer_key: whether it is the footer's.
        master_key_id: of the master key in the key service.
        wrapped_dek: the DEK, under the KEK or, in single wrapping, the master key.
        kek_id: of the KEK, 16 bytes; None in single wrapping.
        wrapped_kek: the KEK under the master key; None in single wrapping.
        internal: whether it is, or was, the file's key metadata.
        instance: what it says of the key service: id and URL, footer key alone. Never used.
        others: members that modcrypt doesn't know, which are kept.
    """

    is_footer_key: bool
    master_key_id: str
    wrapped_dek: str = field(repr=False)
    kek_id: bytes | None = None
    wrapped_kek: str | None = field(default=None, repr=False)
    internal: bool = True
    instance: tuple[str | None, str | None] = field(default=(None, None), repr=False)
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def double_wrapping(self) -> bool:
        """Whether a KEK stands between the DEK and the master key."""
        return self.kek_id is not None

    @property
    def master_wrapped(self) -> str:
        """What the master key has wrapped: the KEK, or the DEK in single wrapping."""
        return self.wrapped_dek if self.wrapped_kek is None else self.wrapped_kek

    def with_master_wrapped(self, wrapped: str, master_key_id: str) -> KeyMaterial:
        """Give the same key under another master key, or another version of it."""
        if self.wrapped_kek is None:
            return replace(self, master_key_id=master_key_id, wrapped_dek=wrapped)
        return replace(self, master_key_id=master_key_id, wrapped_kek=wrapped)

    def encode(self) -> str:
        """Spell it as JSON; a footer key's names the default instance where it names none."""
        return f"{self.head()}{json.dumps(self.wrapped_dek)}}}"

    def head(self) -> str:
        """Spell all before the wrapped DEK, which comes last: the same for all DEKs of a KEK."""
        members: dict[str, Any] = {"keyMaterialType": TYPE}
        if self.internal:
            members["internalStorage"] = True
        members["isFooterKey"] = self.is_footer_key
        if self.is_footer_key:  # parquet-java reads no file without them
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
    """What key metadata says of a key whose material is stored externally.

    Attributes:
        name: of the key in the key material.
        write: the run of modcrypt that wrote the file; None of other writers.
    """

    name: str
    write: str | None = None

    def encode(self) -> bytes:
        """Spell it as key metadata."""
        members: dict[str, Any] = {
            "keyMaterialType": TYPE,
            "internalStorage": False,
            "keyReference": self.name,
        }
        if self.write is not None:
            members[WRITE] = self.write
        return json.dumps(members, separators=(",", ":")).encode()


# --- key metadata --------------------------------------------------------------------------------


def decode_metadata(metadata: bytes) -> KeyMaterial | KeyReference:
    """Take key material, or the reference to external material, out of a file's key metadata.

    Raises:
        KeyMaterialError: it is none of PKMT1, or a damaged one.
    """
    if len(metadata) > MAX_METADATA:
        raise KeyMaterialError(f"key metadata of {len(metadata)} bytes is no key material")
    members = _members(metadata)
    if _boolean(members, "internalStorage"):
        return _material(members, internal=True)
    return KeyReference(_name(members, "keyReference"), write_of(members))


def write_of(members: Mapping[str, Any]) -> str | None:
    """Give the run of modcrypt that a reference, or external material, is of."""
    write = members.get(WRITE)
    return write if isinstance(write, str) and re.fullmatch("[0-9a-f]{16}", write) else None


def decode_material(text: str) -> KeyMaterial:
    """Take in the material of one key from an external store.

    Raises:
        KeyMaterialError: as `decode_metadata`.
    """
    if len(text) > MAX_METADATA:
        raise KeyMaterialError(f"key material of {len(text)} characters is too long")
    return _material(_members(text), internal=False)


# --- external stores -----------------------------------------------------------------------------


def external_name(name: str) -> str:
    """Give the name of the file that holds the key material of the file called `name`."""
    return f"_KEY_MATERIAL_FOR_{name}.json"


def decode_store(data: bytes) -> dict[str, str]:
    """Take in a file of external key material: reference to material, which is not decoded yet.

    Raises:
        KeyMaterialError: it is no such file.
    """
    store = _object(data)
    if store is None:
        raise KeyMaterialError("external key material is a flat JSON object, each member once")
    for reference, material in store.items():
        if not isinstance(material, str) or len(reference) > MAX_NAME:
            raise KeyMaterialError("the external key material has a member that is no string")
    return store


def encode_store(store: Mapping[str, str]) -> bytes:
    """Spell a file of external key material.

    Raises:
        KeyMaterialError: it would be too large to be read again.
    """
    data = json.dumps(dict(store), separators=(",", ":")).encode()
    if len(data) > MAX_STORE:
        raise KeyMaterialError(f"external key material of more than {MAX_STORE} bytes")
    return data


# --- strict reading ------------------------------------------------------------------------------


def _material(members: dict[str, Any], *, internal: bool) -> KeyMaterial:
    footer, double = _boolean(members, "isFooterKey"), _boolean(members, "doubleWrapping")
    return KeyMaterial(
        is_footer_key=footer,
        master_key_id=_name(members, "masterKeyID"),
        wrapped_dek=_wrapped(members, "wrappedDEK"),
        kek_id=_kek_id(members) if double else None,
        wrapped_kek=_wrapped(members, "wrappedKEK") if double else None,
        internal=internal,
        instance=(_instance(members, "kmsInstanceID"), _instance(members, "kmsInstanceURL"))
        if footer
        else (None, None),
        others={name: value for name, value in members.items() if name not in _KNOWN},
    )


def _members(data: bytes | str) -> dict[str, Any]:
    members = _object(data)
    if members is None or members.get("keyMaterialType") != TYPE:
        raise KeyMaterialError(
            "the key metadata is no key material of type PKMT1, or a damaged one: if it was made "
            "without the key tools, a key retriever of its writer's must read it"
        )
    return members


def _object(data: bytes | str) -> dict[str, Any] | None:
    """Give a flat JSON object; None for anything else."""
    try:
        text = data if isinstance(data, str) else data.decode()  # UTF-8, and no other encoding
        found = _DECODER.decode(text)
        if "\\u" in text:  # half a surrogate can't be written again
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return found if isinstance(found, dict) else None


def _flat(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = once(pairs)
    if any(isinstance(value, dict | list) for value in members.values()):
        raise ValueError
    return members


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):  # JSON could not spell it again
        raise ValueError
    return number


def _boolean(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    # Earlier versions of parquet-java spelt them as strings.
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise KeyMaterialError(f"the key material's {name} is neither true nor false")


def _name(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise KeyMaterialError(f"the key material's {name} is no string of 1 to {MAX_NAME} letters")
    return value


def check_id(master_key_id: object) -> None:
    """Raise a ValueError for what can't be written as the id of a master key."""
    try:
        _name({"id": master_key_id}, "id")
    except KeyMaterialError:
        raise ValueError(
            f"the id of a master key is printable text of 1 to {MAX_NAME} letters"
        ) from None


def _wrapped(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not is_wrapped_key(value):
        raise KeyMaterialError(f"the key material's {name} is no wrapped key")
    return value


def _instance(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    return value if isinstance(value, str) and len(value) <= MAX_WRAPPED else None


def _kek_id(members: dict[str, Any]) -> bytes:
    try:
        kek_id = base64.b64decode(_name(members, "keyEncryptionKeyID"), validate=True)
    except (binascii.Error, ValueError):
        kek_id = b""
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(
            f"the key material's keyEncryptionKeyID is not the base64 of {KEK_ID_SIZE} bytes"
        )
    return kek_id


# Made once: making them takes longer than their work on key material.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_flat, parse_constant=no_constant, parse_float=_finite
)
