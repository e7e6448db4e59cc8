"""Iceberg's standard key metadata, which holds a key, sealed under a key service.

    {"modcryptKeyMetadata":1, "masterKeyID":"kf", "wrappedKeyMetadata":"...",
     "wrappedKEK":"...", "keyEncryptionKeyID":"..."}

One line of JSON. As in PKMT1's double wrapping, the key service wraps a KEK, and that seals the
metadata: base64( nonce (12) | ciphertext | tag (16) ), AAD the KEK's 16 id bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from modcrypt.aead import TagError
from modcrypt.errors import FormatError, KeyMaterialError
from modcrypt.io.storage import Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.kms.client import is_wrapped_key
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.pkmt1.material import KEK_ID_SIZE, MAX_NAME, KeyMaterial
from modcrypt.pkmt1.strict_json import no_constant, once
from modcrypt.tracebacks import hide_frames

__all__ = [
    "MAX_SEALED",
    "begins_sealed",
    "is_sealed",
    "kek_of",
    "open_key_metadata",
    "seal_key_metadata",
    "with_kek",
]

VERSION = 1

_BEGINNING = b'{"modcryptKeyMetadata":'

MAX_SEALED = 64 << 10
"""Longest sealed key metadata, in bytes."""

_NAMES = {
    "modcryptKeyMetadata", "masterKeyID", "wrappedKeyMetadata", "wrappedKEK", "keyEncryptionKeyID",
}  # fmt: skip


@hide_frames
def seal_key_metadata(
    wrapper: KeyWrapper, metadata: StandardKeyMetadata, master_key_id: str
) -> bytes:
    """Seal key metadata under a KEK, as long as its key, that the key service wraps.

    Raises:
        KeyRetrievalError: it wraps none.
    """
    kek = wrapper.writing_kek(master_key_id, len(metadata.key))
    sealed = _base64(kek.cipher.seal_block(metadata.encode(), kek.id))
    return with_kek(kek.material(sealed, is_footer_key=False, internal=True))


def kek_of(data: bytes) -> KeyMaterial:
    """Give the KEK under which key metadata is sealed, which takes the place of a wrapped DEK.

    Raises:
        KeyMaterialError: it is malformed.
    """
    members = _members(data)
    _bytes(members, "wrappedKeyMetadata")
    kek_id = _bytes(members, "keyEncryptionKeyID")
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(f"sealed key metadata: a KEK's id has {KEK_ID_SIZE} bytes")
    return KeyMaterial(
        is_footer_key=False,
        master_key_id=_text(members, "masterKeyID", MAX_NAME),
        wrapped_dek=members["wrappedKeyMetadata"],
        kek_id=kek_id,
        wrapped_kek=_wrapped(members, "wrappedKEK"),
    )


def with_kek(material: KeyMaterial) -> bytes:
    """Spell sealed key metadata; what `kek_of` gave, with the KEK wrapped anew."""
    assert material.kek_id is not None
    members = {
        "modcryptKeyMetadata": VERSION,
        "masterKeyID": material.master_key_id,
        "wrappedKeyMetadata": material.wrapped_dek,
        "wrappedKEK": material.wrapped_kek,
        "keyEncryptionKeyID": _base64(material.kek_id),
    }
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


@hide_frames
def open_key_metadata(wrapper: KeyWrapper, data: bytes) -> StandardKeyMetadata:
    """Open what `seal_key_metadata` gave, and nothing else.

    Raises:
        KeyMaterialError: it is malformed, altered, or of another KEK or master key.
        KeyRetrievalError: the key service refuses its KEK.
    """
    material = kek_of(data)
    kek = wrapper.reading_kek(material)
    sealed, kek_id = base64.b64decode(material.wrapped_dek), kek.id
    try:
        return StandardKeyMetadata.decode(kek.cipher.open_block(sealed, kek_id))
    except TagError:
        raise KeyMaterialError(
            "the sealed key metadata does not open under its KEK: altered bytes, or the KEK of "
            "another file"
        ) from None
    except FormatError as error:
        raise KeyMaterialError(f"sealed key metadata: {error}") from None


def is_sealed(data: bytes) -> bool:
    """Tell sealed key metadata from key metadata in the clear, of which no form begins so."""
    return data.lstrip().startswith(b"{")


def begins_sealed(source: Source) -> bool:
    """Tell a file of sealed key metadata by its first bytes."""
    size = min(len(_BEGINNING), source.size)
    return source.size <= MAX_SEALED and source.read_at(0, size) == _BEGINNING


# --- strict reading ------------------------------------------------------------------------------


def _members(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_SEALED:
        raise KeyMaterialError(f"sealed key metadata has at most {MAX_SEALED} bytes")
    try:
        found = json.loads(data, object_pairs_hook=once, parse_constant=no_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise KeyMaterialError("sealed key metadata: no JSON, or a member is there twice") from None
    if not isinstance(found, dict) or found.keys() != _NAMES:
        raise KeyMaterialError(f"sealed key metadata has exactly {', '.join(sorted(_NAMES))}")
    version = found["modcryptKeyMetadata"]
    if type(version) is not int or version != VERSION:  # True is 1, too
        raise KeyMaterialError(f"sealed key metadata: the version is not {VERSION}")
    return found


def _text(members: dict[str, Any], name: str, longest: int) -> str:
    value = members[name]
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise KeyMaterialError(
            f"sealed key metadata: {name} is no string of 1 to {longest} letters"
        )
    if name == "masterKeyID" and not value.isprintable():
        raise KeyMaterialError("sealed key metadata: masterKeyID has control characters")
    return value


def _wrapped(members: dict[str, Any], name: str) -> str:
    value = members[name]
    if not is_wrapped_key(value):
        raise KeyMaterialError(f"sealed key metadata: {name} is no wrapped key")
    return value


def _bytes(members: dict[str, Any], name: str) -> bytes:
    text = _text(members, name, MAX_SEALED)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise KeyMaterialError(f"sealed key metadata: {name} is no base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
