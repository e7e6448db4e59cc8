"""Key material of the key tools, wrapped and unwrapped by `cryptography` alone."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def seal_base64(key: bytes, value: bytes, aad: bytes) -> str:
    """Wrap a key as the key tools do locally: base64 of nonce, ciphertext and tag."""
    nonce = os.urandom(12)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, aad)).decode()


def open_base64(key: bytes, wrapped: str, aad: bytes) -> bytes:
    """Unwrap what `seal_base64` made; raise ValueError or InvalidTag."""
    raw = base64.b64decode(wrapped, validate=True)
    return AESGCM(key).decrypt(raw[:12], raw[12:], aad)


def open_data_key(material: Mapping[str, Any], unwrap: Callable[[str, str], bytes]) -> bytes:
    """Return the data key of key material; `unwrap` is the KMS's."""
    if not material["doubleWrapping"]:
        return unwrap(material["wrappedDEK"], material["masterKeyID"])
    kek = unwrap(material["wrappedKEK"], material["masterKeyID"])
    return open_base64(
        kek, material["wrappedDEK"], base64.b64decode(material["keyEncryptionKeyID"])
    )


def unwrap_by(masters: Mapping[str, bytes]) -> Callable[[str, str], bytes]:
    """Return how a KMS with these master keys unwraps: with the master key's id as AAD."""

    def unwrap(wrapped: str, master_id: str) -> bytes:
        return open_base64(masters[master_id], wrapped, master_id.encode())

    return unwrap


def pkmt1_retriever(
    masters: Mapping[str, bytes], external: Mapping[str, str] | None = None
) -> Callable[[bytes], bytes]:
    """Return a key retriever for PKMT1 key metadata.

    `masters` are the KMS's. `external` is the object that a key material file holds.
    """

    def retrieve(metadata: bytes) -> bytes:
        material = json.loads(metadata)
        assert material["keyMaterialType"] == "PKMT1"
        if not material["internalStorage"]:
            assert external is not None
            material = json.loads(external[material["keyReference"]])
        return open_data_key(material, unwrap_by(masters))

    return retrieve
