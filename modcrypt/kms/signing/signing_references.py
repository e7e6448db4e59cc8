"""References to signing keys, and the verifying keys that files and lines name.

A signing key is in a file, `file:PATH`, or in a key service, whose URI names the key:
`hcvault://HOST/MOUNT/keys/NAME`, `aws-kms://ARN` or `pkcs11:token=TOKEN;object=NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable

from modcrypt.kms.key_references import absolute_reference
from modcrypt.kms.keyring.keyring_passphrase import check_passphrase_reference
from modcrypt.kms.recipients.private_key_file import load_with_reference
from modcrypt.kms.signing.signing_keys import PREFIX, SigningKey, VerifyingKey
from modcrypt.runtime.tracebacks import hide_frames

SERVICES = ("hcvault:", "aws-kms:", "pkcs11:")
"""Beginnings of the URIs of key services that sign."""


def names_service(reference: str) -> bool:
    """Return whether a reference is the URI of a key in a key service."""
    return reference.lower().startswith(SERVICES)


@hide_frames
def check_signing_reference(key: str | None, passphrase: str | None) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    if key is not None and not names_service(key):
        kind, _, where = key.partition(":")
        if kind != "file" or not where:
            raise ValueError(
                "name a signing key as file:PATH, or as a URI of hcvault:, aws-kms: or pkcs11:, "
                "never the key itself (not repeated here)"
            )
    if passphrase is None:
        return
    if key is None or names_service(key):
        raise ValueError("signing_passphrase needs signing_key, a file")
    check_passphrase_reference(passphrase)


def absolute_signing_reference(key: str) -> str:
    """Return a reference that has the same meaning in processes that run in other folders."""
    return key if names_service(key) else absolute_reference(key)


@hide_frames
def load_signing_key(key: str, passphrase: str | None) -> SigningKey:
    """Return the signing key that a reference names.

    Raises:
        ValueError: The URI of a key service is invalid, or names no key.
        KeyRetrievalError: As `SigningKey.load` and `SigningKey.open`.
    """
    if names_service(key):
        return SigningKey.open(key)
    path = key.partition(":")[2]
    hint = "name its place by signing_passphrase="
    return load_with_reference(SigningKey.load, path, passphrase, hint)


@hide_frames
def read_verifying_keys(texts: Iterable[str]) -> tuple[VerifyingKey, ...]:
    """Return the verifying keys of lines, or of files.

    Raises:
        KeyMaterialError: A key is malformed.
        KeyRetrievalError: Another user may change a file.
        OSError: A file cannot be read.
    """
    return tuple(
        VerifyingKey.parse(text) if text.startswith(f"{PREFIX}:") else VerifyingKey.load(text)
        for text in texts
    )
