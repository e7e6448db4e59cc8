"""Iceberg's standard key metadata, which contains a key, encrypted under a key service.

    {"modcryptKeyMetadata":1, "masterKeyID":"kf", "wrappedKeyMetadata":"...",
     "wrappedKEK":"...", "keyEncryptionKeyID":"..."}

One line of JSON. As in PKMT1's double wrapping, the key service wraps a KEK, and the KEK encrypts
the metadata: base64( nonce (12) | ciphertext | tag (16) ), AAD the KEK's 16 id bytes.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from modcrypt.errors import FormatError, KeyMaterialError, TagError
from modcrypt.io.sources import Source
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.pkmt1.material import KEK_ID_SIZE, MAX_NAME, KeyMaterial, is_wrapped_key
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64, require_members, strict_json
from modcrypt.runtime.tracebacks import hide_frames

VERSION = 1

_BEGINNING = b'{"modcryptKeyMetadata":'

MAX_ENCRYPTED = 64 << 10
"""Size limit of encrypted key metadata, in bytes."""

_NAMES = (
    "modcryptKeyMetadata", "masterKeyID", "wrappedKeyMetadata", "wrappedKEK", "keyEncryptionKeyID",
)  # fmt: skip


@hide_frames
def encrypt_key_metadata(
    wrapper: KeyWrapper, metadata: StandardKeyMetadata, master_key_id: str, *,
    replaces: bool = True,
) -> bytes:  # fmt: skip
    """Encrypt key metadata under a KEK as long as its key; the key service wraps the KEK."""
    kek = wrapper.get_writing_kek(master_key_id, len(metadata.key), replaces=replaces)
    encrypted = encode_base64(kek.cipher.encrypt_block(metadata.encode(), kek.id))
    return encode_wrapped_metadata(kek.material(encrypted, is_footer_key=False, internal=True))


def parse_wrapped_metadata(data: bytes) -> KeyMaterial:
    """Return the wrapped KEK of encrypted key metadata, with the metadata as its wrapped DEK."""
    if len(data) > MAX_ENCRYPTED:
        raise KeyMaterialError(f"encrypted key metadata is longer than {MAX_ENCRYPTED} bytes")
    try:
        return _parse_members(require_members(strict_json(data), *_NAMES))
    except KeyMaterialError as error:
        raise KeyMaterialError(f"encrypted key metadata: {error}") from None


def _parse_members(members: dict[str, Any]) -> KeyMaterial:
    version, name = members["modcryptKeyMetadata"], members["masterKeyID"]
    if type(version) is not int or version != VERSION:  # True is 1, too
        raise KeyMaterialError(f"the version is not {VERSION}")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise KeyMaterialError(f"masterKeyID is not a string of 1 to {MAX_NAME} characters")
    if not name.isprintable():
        raise KeyMaterialError("masterKeyID has control characters")
    decode_base64(members["wrappedKeyMetadata"], "wrappedKeyMetadata")
    kek_id = decode_base64(members["keyEncryptionKeyID"], "keyEncryptionKeyID")
    if len(kek_id) != KEK_ID_SIZE:
        raise KeyMaterialError(f"the id of a KEK has {KEK_ID_SIZE} bytes")
    if not is_wrapped_key(members["wrappedKEK"]):
        raise KeyMaterialError("wrappedKEK is not a wrapped key")
    return KeyMaterial(
        is_footer_key=False,
        master_key_id=name,
        wrapped_dek=members["wrappedKeyMetadata"],
        kek_id=kek_id,
        wrapped_kek=members["wrappedKEK"],
    )


def encode_wrapped_metadata(material: KeyMaterial) -> bytes:
    """Encode the result of `parse_wrapped_metadata`, with the same or a rewrapped KEK."""
    assert material.kek_id is not None
    members = {
        "modcryptKeyMetadata": VERSION,
        "masterKeyID": material.master_key_id,
        "wrappedKeyMetadata": material.wrapped_dek,
        "wrappedKEK": material.wrapped_kek,
        "keyEncryptionKeyID": encode_base64(material.kek_id),
    }
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


@hide_frames
def decrypt_key_metadata(wrapper: KeyWrapper, data: bytes) -> StandardKeyMetadata:
    """Decrypt the result of `encrypt_key_metadata`, and accept nothing else."""
    material = parse_wrapped_metadata(data)
    kek = wrapper.get_reading_kek(material)
    encrypted, kek_id = base64.b64decode(material.wrapped_dek), kek.id
    try:
        return StandardKeyMetadata.decode(kek.cipher.decrypt_block(encrypted, kek_id))
    except TagError:
        raise KeyMaterialError(
            "the encrypted key metadata does not decrypt under its KEK: it was altered, or the KEK "
            "belongs to another file"
        ) from None
    except FormatError as error:
        raise KeyMaterialError(f"encrypted key metadata: {error}") from None


def is_encrypted(data: bytes) -> bool:
    """Return whether key metadata is encrypted; no plaintext form begins with a brace."""
    return data.lstrip().startswith(b"{")


def holds_encrypted_metadata(source: Source) -> bool:
    """Return whether a file contains encrypted key metadata, judged by its first bytes."""
    size = min(len(_BEGINNING), source.size)
    return source.size <= MAX_ENCRYPTED and source.read_at(0, size) == _BEGINNING
