"""The format of an identity file: a private key, encrypted under a passphrase or not.

    {"format": "modcrypt-identity", "version": 1, "recipient": "modcrypt-recipient:...",
     "protection": "scrypt", "scrypt": {"n": 131072, "r": 8, "p": 1, "salt": "..."},
     "sealed": base64( nonce (12) | ciphertext | tag (16) )}

As in an encrypted keyring, AES-256-GCM encrypts the private key under the key that scrypt (RFC
7914) derives from the passphrase; the AAD is the other members as compact JSON with sorted names.
Without a passphrase, `"protection"` is `"none"` and `"key"`, the private key in base64, takes the
place of the last two members.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, TagError
from modcrypt.kms.keyring.keyring_document import Scrypt, Seal
from modcrypt.kms.recipients.kinds import find_kind
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.pkmt1.strict_json import decode_base64, require_members, strict_json
from modcrypt.tracebacks import hide_frames

FORMAT = "modcrypt-identity"
VERSION = 1

MAX_IDENTITY_FILE = 16 << 10
"""Size limit of an identity file in bytes: a hybrid one has 2.2 KB."""

SCRYPT_COST = 2**17
"""Cost of scrypt for new identity files, as for new keyrings: 128 MiB and half a second."""

_CONTENT = {"none": ("key",), "scrypt": ("scrypt", "sealed")}


@dataclass(frozen=True, slots=True)
class IdentityDocument:
    """The content of an identity file that is readable without a passphrase.

    Attributes:
        recipient: Public key.
        header: Members that are authenticated with the encrypted key.
        scrypt: Parameters of the passphrase's derivation; None without a passphrase.
        key: Encrypted private key, or the private key itself.
    """

    recipient: Recipient
    header: dict[str, Any]
    scrypt: Scrypt | None
    key: bytes = field(repr=False)

    @hide_frames
    def decrypt(self, passphrase: bytes) -> bytes:
        """Decrypt and check the private key.

        Raises:
            KeyAccessDeniedError: The passphrase is wrong, or the file was altered.
        """
        assert self.scrypt is not None
        try:
            plain = self.scrypt.cipher(passphrase).open_block(self.key, _encode_aad(self.header))
        except TagError:
            raise KeyAccessDeniedError(
                "wrong passphrase, or the identity file was altered"
            ) from None
        return check_private_key(self.recipient, bytes(plain))


@hide_frames
def check_private_key(recipient: Recipient, key: bytes) -> bytes:
    """Return a private key that belongs to a public key; raise KeyMaterialError for another."""
    kind = find_kind(recipient.kind)
    if len(key) != kind.secret_size or kind.encode_public(key) != recipient.public_key:
        raise KeyMaterialError("the private key does not belong to the recipient in the file")
    return key


@hide_frames
def encode_identity(recipient: Recipient, key: bytes, passphrase: bytes | None) -> bytes:
    """Return the bytes of an identity file, encrypted if there is a passphrase."""
    protection = "none" if passphrase is None else "scrypt"
    header: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "recipient": str(recipient), "protection": protection,
    }  # fmt: skip
    if passphrase is None:
        return _format({**header, "key": base64.b64encode(key).decode()})
    seal = Seal.new(passphrase, SCRYPT_COST)
    header["scrypt"] = seal.scrypt.encode()
    sealed = seal.cipher.seal_block(key, _encode_aad(header))
    return _format({**header, "sealed": base64.b64encode(sealed).decode()})


@hide_frames
def decode_identity(data: bytes) -> IdentityDocument:
    """Parse an identity file; raise KeyMaterialError if it is malformed."""
    document = strict_json(data) if len(data) <= MAX_IDENTITY_FILE else None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise KeyMaterialError(
            "not an identity, as `modcrypt recipients generate` writes it: the format is not "
            f"{FORMAT}"
        )
    if document.get("version") != VERSION or document["version"] is True:
        raise KeyMaterialError(f"the version of the identity's format is not {VERSION}")
    content = _CONTENT.get(str(document.get("protection")))
    if content is None:
        raise KeyMaterialError("unknown value of protection")
    require_members(document, "format", "version", "recipient", "protection", *content)
    if not isinstance(document["recipient"], str):
        raise KeyMaterialError("the recipient of the identity is not a string")
    recipient = Recipient.parse(document["recipient"])
    key = decode_base64(document.pop(content[-1]), "the private key")
    if "scrypt" in document:
        return IdentityDocument(recipient, document, Scrypt.parse(document["scrypt"]), key)
    return IdentityDocument(recipient, document, None, check_private_key(recipient, key))


def _format(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def _encode_aad(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
