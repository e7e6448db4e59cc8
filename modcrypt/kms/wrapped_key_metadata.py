"""Iceberg's standard key metadata, which contains a key, encrypted under a key service.

    {"modcryptKeyMetadata":1, "masterKeyID":"kf", "wrappedKeyMetadata":"...",
     "wrappedKEK":"...", "keyEncryptionKeyID":"..."}

One line of JSON. As in PKMT1's double wrapping, the key service wraps a KEK, and the KEK encrypts
the metadata: base64( nonce (12) | ciphertext | tag (16) ), AAD the KEK's 16 id bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from modcrypt.errors import FormatError, KeyMaterialError, TagError
from modcrypt.io.sources import Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.pkmt1.material import KEK_ID_SIZE, MAX_NAME, KeyMaterial
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats
from modcrypt.pkmt1.wrapped_keys import is_wrapped_key
from modcrypt.tracebacks import hide_frames

VERSION = 1

_BEGINNING = b'{"modcryptKeyMetadata":'

MAX_SEALED = 64 << 10
"""Size limit of encrypted key metadata, in bytes."""

_NAMES = {
    "modcryptKeyMetadata", "masterKeyID", "wrappedKeyMetadata", "wrappedKEK", "keyEncryptionKeyID",
}  # fmt: skip


@hide_frames
def seal_key_metadata(
    wrapper: KeyWrapper, metadata: StandardKeyMetadata, master_key_id: str
) -> bytes:
    """Encrypt key metadata under a KEK as long as its key; the key service wraps the KEK."""
    kek = wrapper.get_writing_kek(master_key_id, len(metadata.key))
    sealed = _encode_base64(kek.cipher.seal_block(metadata.encode(), kek.id))
    return encode_wrapped_metadata(kek.material(sealed, is_footer_key=False, internal=True))


def parse_wrapped_metadata(data: bytes) -> KeyMaterial:
    """Return the wrapped KEK of encrypted key metadata, with the metadata as its wrapped DEK."""
    members = _parse_members(data)
    _decode_bytes(members, "wrappedKeyMetadata")
    kek_id = _decode_bytes(members, "keyEncryptionKeyID")
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(f"encrypted key metadata: the id of a KEK has {KEK_ID_SIZE} bytes")
    return KeyMaterial(
        is_footer_key=False,
        master_key_id=_require_text(members, "masterKeyID", MAX_NAME),
        wrapped_dek=members["wrappedKeyMetadata"],
        kek_id=kek_id,
        wrapped_kek=_require_wrapped(members, "wrappedKEK"),
    )


def encode_wrapped_metadata(material: KeyMaterial) -> bytes:
    """Encode the result of `parse_wrapped_metadata`, with the same or a rewrapped KEK."""
    assert material.kek_id is not None
    members = {
        "modcryptKeyMetadata": VERSION,
        "masterKeyID": material.master_key_id,
        "wrappedKeyMetadata": material.wrapped_dek,
        "wrappedKEK": material.wrapped_kek,
        "keyEncryptionKeyID": _encode_base64(material.kek_id),
    }
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


@hide_frames
def open_key_metadata(wrapper: KeyWrapper, data: bytes) -> StandardKeyMetadata:
    """Decrypt the result of `seal_key_metadata`, and accept nothing else."""
    material = parse_wrapped_metadata(data)
    kek = wrapper.get_reading_kek(material)
    sealed, kek_id = base64.b64decode(material.wrapped_dek), kek.id
    try:
        return StandardKeyMetadata.decode(kek.cipher.open_block(sealed, kek_id))
    except TagError:
        raise KeyMaterialError(
            "the encrypted key metadata does not decrypt under its KEK: it was altered, or the KEK "
            "belongs to another file"
        ) from None
    except FormatError as error:
        raise KeyMaterialError(f"encrypted key metadata: {error}") from None


def is_sealed(data: bytes) -> bool:
    """Return whether key metadata is encrypted; no plaintext form begins with a brace."""
    return data.lstrip().startswith(b"{")


def holds_encrypted_metadata(source: Source) -> bool:
    """Return whether a file contains encrypted key metadata, judged by its first bytes."""
    size = min(len(_BEGINNING), source.size)
    return source.size <= MAX_SEALED and source.read_at(0, size) == _BEGINNING


# --- strict reading ------------------------------------------------------------------------------


def _parse_members(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_SEALED:
        raise KeyMaterialError(f"encrypted key metadata is longer than {MAX_SEALED} bytes")
    try:
        found = json.loads(data, object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise KeyMaterialError(
            "encrypted key metadata: not valid JSON, or a member is repeated"
        ) from None
    if not isinstance(found, dict) or found.keys() != _NAMES:
        raise KeyMaterialError(
            f"encrypted key metadata must have exactly the members {', '.join(sorted(_NAMES))}"
        )
    version = found["modcryptKeyMetadata"]
    if type(version) is not int or version != VERSION:  # True is 1, too
        raise KeyMaterialError(f"encrypted key metadata: the version is not {VERSION}")
    return found


def _require_text(members: dict[str, Any], name: str, longest: int) -> str:
    value = members[name]
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise KeyMaterialError(
            f"encrypted key metadata: {name} is not a string of 1 to {longest} characters"
        )
    if name == "masterKeyID" and not value.isprintable():
        raise KeyMaterialError("encrypted key metadata: masterKeyID has control characters")
    return value


def _require_wrapped(members: dict[str, Any], name: str) -> str:
    value = members[name]
    if not is_wrapped_key(value):
        raise KeyMaterialError(f"encrypted key metadata: {name} is not a wrapped key")
    return value


def _decode_bytes(members: dict[str, Any], name: str) -> bytes:
    text = _require_text(members, name, MAX_SEALED)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise KeyMaterialError(f"encrypted key metadata: {name} is not base64") from None


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
