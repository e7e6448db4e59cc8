"""The keys of a new file for its recipients: one KEK, encrypted to each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Protocol

from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyMaterialError
from modcrypt.keys import Key, key_bytes
from modcrypt.kms.recipients.kinds import ROLE_KEK, encrypt_to, find_kind, make_info
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.kms.wrapping import Kek
from modcrypt.pkmt1.material import KEK_ID_SIZE
from modcrypt.pkmt1.recipient_metadata import RecipientMaterial, RecipientWrap, add_to_pkmt1
from modcrypt.pkmt1.strict_json import encode_base64
from modcrypt.runtime.tracebacks import hide_frames

KEK_LENGTH = 32  # length of a file's KEK in bytes
_KEK_NAME = "of the recipients"  # in Kek's messages, which name the master key


@dataclass(frozen=True, slots=True)
class FileRecipients:
    """The KEK of one file, and the recipients to which it is encrypted."""

    key: Key
    kek: Kek
    recipients: tuple[Recipient, ...]

    @classmethod
    def create(cls, recipients: tuple[Recipient, ...]) -> FileRecipients:
        """Return a fresh KEK for the recipients of a new file."""
        return cls.with_key(Key.generate(KEK_LENGTH), urandom(KEK_ID_SIZE), recipients)

    @classmethod
    def with_key(
        cls, key: Key, kek_id: bytes, recipients: tuple[Recipient, ...] = ()
    ) -> FileRecipients:
        """Return a KEK that exists."""
        return cls(key, Kek(_KEK_NAME, kek_id, "", GcmCipher(key), len(key)), recipients)

    def wrap_column_key(self, dek: Key) -> RecipientMaterial:
        """Return the material of a column's key."""
        return RecipientMaterial(self.kek.id, self.kek.wrap(dek))

    def wrap_footer_key(self, dek: Key, file_aad: bytes) -> RecipientMaterial:
        """Return the material of the footer key, with the KEK encrypted to all recipients."""
        wraps = self.wrap_kek(self.recipients, file_aad)
        return RecipientMaterial(self.kek.id, self.kek.wrap(dek), wraps)

    def wrap_kek(
        self, recipients: Iterable[Recipient], file_aad: bytes
    ) -> tuple[RecipientWrap, ...]:
        """Return the KEK, encrypted to recipients and bound to the file."""
        info = make_info(ROLE_KEK, file_aad)
        return tuple(self._wrap_kek(recipient, info) for recipient in recipients)

    @hide_frames
    def _wrap_kek(self, recipient: Recipient, info: bytes) -> RecipientWrap:
        kind = find_kind(recipient.kind)
        wrapped = encrypt_to(kind, recipient.public_key, key_bytes(self.key), info)
        return RecipientWrap.encode_kek(recipient.kind, recipient.id, wrapped)

    def add_to_column(self, pkmt1: str, dek: Key) -> bytes:
        """Return the key metadata of a column whose key a key service wraps, too."""
        return add_to_pkmt1(pkmt1, self.wrap_column_key(dek)).encode()

    def make_footer_metadata(self, dek: Key, pkmt1: str | None = None) -> Callable[[bytes], bytes]:
        """Return the function from the file AAD to the footer key's metadata.

        `pkmt1` is the material of the same key under a key service.
        """

        def make(file_aad: bytes) -> bytes:
            material = self.wrap_footer_key(dek, file_aad)
            return (material.encode() if pkmt1 is None else add_to_pkmt1(pkmt1, material)).encode()

        return make


class PrivateKey(Protocol):
    """The private key of a recipient."""

    @property
    def recipient(self) -> Recipient:
        """Return the public key."""

    def decrypt(self, wrapped: bytes, info: bytes) -> bytes:
        """Decrypt what is encrypted to the recipient; raise KeyMaterialError if it was altered."""


@hide_frames
def encrypt_entry(recipient: Recipient, plain: bytes, info: bytes, name: str) -> dict[str, str]:
    """Return members of JSON for a recipient, with what is encrypted to it in the member `name`."""
    encrypted = encrypt_to(find_kind(recipient.kind), recipient.public_key, plain, info)
    return {
        "kind": recipient.kind,
        "id": encode_base64(recipient.id),
        name: encode_base64(encrypted),
    }


def open_kek(
    material: RecipientMaterial, identities: Sequence[PrivateKey], file_aad: bytes
) -> FileRecipients | None:
    """Return the KEK of a file that is encrypted to one of the identities; None if none is.

    Raise KeyMaterialError if the KEK was altered, or taken from another file.
    """
    mine = {identity.recipient.id: identity for identity in identities}
    for wrap in material.recipients or ():
        identity = mine.get(wrap.id)
        if identity is not None and identity.recipient.kind == wrap.kind:
            key = _open_wrap(identity, wrap, make_info(ROLE_KEK, file_aad))
            return FileRecipients.with_key(key, material.kek_id)
    return None


@hide_frames
def _open_wrap(identity: PrivateKey, wrap: RecipientWrap, info: bytes) -> Key:
    try:
        raw = identity.decrypt(wrap.decode_kek(), info)
    except KeyMaterialError:
        raise KeyMaterialError(
            f"the file's KEK for recipient {wrap.id.hex()} does not decrypt: it was altered, or "
            "taken from another file, or the file has another AAD prefix"
        ) from None
    if len(raw) != KEK_LENGTH:
        raise KeyMaterialError(f"the file's KEK does not have {KEK_LENGTH} bytes")
    return Key(raw)
