"""Key metadata of files whose keys are encrypted to the public keys of recipients.

    {"keyMaterialType":"modcrypt-recipients","version":1,"keyEncryptionKeyID":"...",
     "wrappedDEK":"...","recipients":[{"kind":"x25519","id":"...","wrappedKEK":"..."}]}

A KEK of the file wraps its data keys (DEKs), and is itself encrypted to each recipient. The footer
key's metadata lists the recipients; that of a column's key has only the other members. If a key
service wraps the DEK too, this JSON is a string in the member `modcryptRecipients` of PKMT1
material, which other implementations ignore. docs/reference/recipients.md describes every byte.

Nothing here is authenticated but the wrapped keys themselves.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.material import KEK_ID_SIZE, MAX_SHARED_METADATA, RECIPIENTS, TYPE
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members, strict_json

RECIPIENTS_TYPE = "modcrypt-recipients"
VERSION = 1
ID_SIZE = 16  # length of a recipient's id in bytes, a part of the SHA-256 of the public key

MAX_RECIPIENTS = 4096
"""Largest number of recipients of a file: their wraps take up to 7 MB of its footer."""

MAX_WRAPPED_KEK = 2732
"""Length limit of a KEK that is encrypted to one recipient, in characters of base64.

They are 2,048 bytes; a hybrid one has 1,168.
"""

_MARK = RECIPIENTS_TYPE.encode()
_KIND = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_MAX_WRAPPED_DEK = 128  # characters: the longest AES key with nonce and tag, as base64, has 80


@dataclass(frozen=True, slots=True)
class RecipientWrap:
    """A KEK that is encrypted to one recipient."""

    kind: str  # of the recipient's public key; readers skip kinds that they do not know
    id: bytes  # of the recipient, `ID_SIZE` bytes
    wrapped: str = field(repr=False)  # encrypted KEK as base64, which only its recipient decodes

    @classmethod
    def encode_kek(cls, kind: str, id_: bytes, encrypted: bytes) -> RecipientWrap:
        """Return the entry of a recipient for an encrypted KEK."""
        return cls(kind, id_, encode_base64(encrypted))

    def decode_kek(self) -> bytes:
        """Return the encrypted KEK; raise KeyMaterialError if it is not base64."""
        return decode_base64(self.wrapped, "wrappedKEK")


@dataclass(frozen=True, slots=True)
class RecipientMaterial:
    """The wrapped form of one data key (DEK) of a file for recipients."""

    kek_id: bytes  # id of the file's KEK, 16 bytes
    wrapped_dek: str = field(repr=False)  # under the KEK, as in PKMT1's double wrapping
    recipients: tuple[RecipientWrap, ...] | None = None  # None for a column's key

    def encode(self) -> str:
        """Return the material as JSON."""
        members: dict[str, Any] = {
            "keyMaterialType": RECIPIENTS_TYPE,
            "version": VERSION,
            "keyEncryptionKeyID": encode_base64(self.kek_id),
            "wrappedDEK": self.wrapped_dek,
        }
        if self.recipients is not None:
            members["recipients"] = [
                {"kind": w.kind, "id": encode_base64(w.id), "wrappedKEK": w.wrapped}
                for w in self.recipients
            ]
        return json.dumps(members, separators=(",", ":"))


def may_hold_recipients(metadata: bytes) -> bool:
    """Return whether key metadata may be for recipients, judged without parsing it."""
    return _MARK in metadata


def add_to_pkmt1(material: str, recipients: RecipientMaterial) -> str:
    """Return the JSON of PKMT1 material with the same key for recipients."""
    return f'{material[:-1]},"{RECIPIENTS}":{json.dumps(recipients.encode())}}}'


def decode_recipients(metadata: bytes) -> RecipientMaterial | None:
    """Return the part of key metadata that is for recipients; None if it has none.

    Raise KeyMaterialError if that part is malformed, or exceeds a limit.
    """
    if not may_hold_recipients(metadata):
        return None
    if len(metadata) > MAX_SHARED_METADATA:
        raise KeyMaterialError(f"key metadata of {len(metadata)} bytes is too long for recipients")
    value = strict_json(metadata)
    if isinstance(value, dict) and value.get("keyMaterialType") == TYPE:
        if RECIPIENTS not in value:
            return None  # another member contains the text
        value = strict_json(_require_string(value[RECIPIENTS]))
    return _parse_material(value)


def list_recipient_ids(metadata: bytes) -> frozenset[bytes]:
    """Return the ids of the recipients that key metadata lists; raise as `decode_recipients`."""
    material = decode_recipients(metadata)
    wraps = () if material is None else material.recipients or ()
    return frozenset(wrap.id for wrap in wraps)


def replace_recipients(metadata: bytes, recipients: RecipientMaterial | None) -> bytes:
    """Return key metadata with another part for recipients, or without one.

    Raise KeyMaterialError if nothing would be left, or the metadata is of another kind.
    """
    members = strict_json(metadata)
    kind = members.get("keyMaterialType") if isinstance(members, dict) else None
    if kind == RECIPIENTS_TYPE and recipients is not None:
        return recipients.encode().encode()
    if kind != TYPE:
        raise KeyMaterialError("the key metadata is not PKMT1, so it needs recipients")
    members.pop(RECIPIENTS, None)
    if recipients is not None:
        members[RECIPIENTS] = recipients.encode()
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def _parse_material(value: Any) -> RecipientMaterial:
    if not isinstance(value, dict) or value.get("keyMaterialType") != RECIPIENTS_TYPE:
        raise KeyMaterialError(f"the key metadata is not of type {RECIPIENTS_TYPE}")
    version = value.get("version")
    if type(version) is not int or version != VERSION:  # True is 1, too
        raise KeyMaterialError(
            f"the key metadata for recipients has another version than {VERSION}; a newer modcrypt "
            "may read it"
        )
    of_footer = ("recipients",) if "recipients" in value else ()
    require_members(
        value, "keyMaterialType", "version", "keyEncryptionKeyID", "wrappedDEK", *of_footer
    )
    kek_id = decode_base64(value["keyEncryptionKeyID"], "keyEncryptionKeyID")
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(f"keyEncryptionKeyID does not have {KEK_ID_SIZE} bytes")
    wrapped = _require_string(value["wrappedDEK"])
    if len(wrapped) > _MAX_WRAPPED_DEK:
        raise KeyMaterialError("wrappedDEK is too long")
    return RecipientMaterial(
        kek_id, wrapped, _parse_wraps(value["recipients"]) if of_footer else None
    )


def _parse_wraps(values: Any) -> tuple[RecipientWrap, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= MAX_RECIPIENTS:
        raise KeyMaterialError(f"recipients is not a list of 1 to {MAX_RECIPIENTS}")
    wraps = tuple(map(_parse_wrap, values))
    if len({wrap.id for wrap in wraps}) < len(wraps):
        raise KeyMaterialError("a recipient is listed twice")
    return wraps


def _parse_wrap(value: Any) -> RecipientWrap:
    members = require_members(value, "kind", "id", "wrappedKEK")
    kind = members["kind"]
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise KeyMaterialError("the kind of a recipient is not a name")
    id_, wrapped = decode_base64(members["id"], "id"), _require_string(members["wrappedKEK"])
    if len(id_) != ID_SIZE or not 0 < len(wrapped) <= MAX_WRAPPED_KEK:
        raise KeyMaterialError("the id or the wrapped KEK of a recipient has another length")
    return RecipientWrap(kind, id_, wrapped)


def _require_string(value: Any) -> str:
    if not isinstance(value, str):
        raise KeyMaterialError("a member of the key metadata for recipients is not a string")
    return value
