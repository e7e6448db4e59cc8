"""Identities: private keys, which open what is encrypted to their recipients.

Settings name them by references, such as `file:PATH`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

from modcrypt.errors import KeyMaterialError
from modcrypt.io.sources import Source
from modcrypt.keys import Secret, Unpicklable
from modcrypt.kms.key_references import check_reference
from modcrypt.kms.keyring.keyring_passphrase import Passphrase, check_passphrase_reference
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from modcrypt.kms.recipients.kinds import HYBRID, decrypt_with, find_kind
from modcrypt.kms.recipients.private_key_file import (
    PrivateKeyFormat,
    load_private_key,
    load_with_reference,
    save_private_key,
)
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.parquet.crypto.properties import KeySource
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

IDENTITY_FILE = PrivateKeyFormat("modcrypt-identity", "recipient", "identity")

MAX_IDENTITIES = 64
"""Largest number of identities that a reader tries."""


class Identity(Unpicklable, KeySource):
    """A private key and its recipient; it never shows the key, and can't be pickled.

    Create one with `generate` or `load`. It is a `key_retriever` of `FileDecryptionProperties`.
    Anyone who has the recipient can make a file that opens: an identity proves nothing about the
    writer.
    """

    __slots__ = ("__dict__", "_secret", "recipient")
    _advice = "pass its path to Settings instead"

    def __init__(self, recipient: Recipient, secret: Secret[bytes]) -> None:
        self.recipient, self._secret = recipient, secret

    @classmethod
    @hide_frames
    def generate(cls, kind: str = HYBRID) -> Self:
        """Return a new identity.

        Args:
            kind: `"mlkem768-x25519"`, which also resists quantum computers, or `"x25519"`, whose
                keys are short.
        """
        found = find_kind(kind)
        secret = found.generate()
        return cls(Recipient(kind, found.encode_public(secret)), Secret(secret))

    @classmethod
    @hide_frames
    def load(cls, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> Self:
        """Read an identity file.

        Args:
            path: Path of the file, which only its owner may be able to read.
            passphrase: Passphrase of an encrypted file, or a function that returns it. If given,
                modcrypt refuses a plaintext file, which may have replaced the encrypted one.

        Raises:
            KeyNotFoundError: The file does not exist.
            KeyAccessDeniedError: The file may not be read, or the passphrase is missing or wrong.
            KeyRetrievalError: Others may read or write the file, or it is in plaintext and a
                passphrase was passed.
            KeyMaterialError: The file is not an identity.
        """
        line, secret = load_private_key(path, IDENTITY_FILE, passphrase)
        recipient = Recipient.parse(line)
        kind = find_kind(recipient.kind)
        if (
            len(secret()) != kind.secret_size
            or kind.encode_public(secret()) != recipient.public_key
        ):
            raise KeyMaterialError("the private key does not belong to the recipient in the file")
        return cls(recipient, secret)

    @hide_frames
    def save(self, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> None:
        """Write a new identity file of mode 0600.

        Args:
            path: Path of the file.
            passphrase: Passphrase that encrypts the file; None leaves the key in plaintext.

        Raises:
            FileExistsError: The file exists.
        """
        save_private_key(path, IDENTITY_FILE, str(self.recipient), self._secret(), passphrase)

    def for_file(self, source: Source, lenient: bool) -> IdentityKeys:
        """Return the keys of one file, as a key retriever."""
        return IdentityKeys((self,), None, lenient)

    @hide_frames
    def decrypt(self, wrapped: bytes, info: bytes) -> bytes:
        """Decrypt what is encrypted to the recipient; raise KeyMaterialError if it was altered."""
        return decrypt_with(find_kind(self.recipient.kind), self._private_key(), wrapped, info)

    @cached_property
    def _private_key(self) -> Secret[Any]:
        return Secret(find_kind(self.recipient.kind).load_private(self._secret()))

    def __repr__(self) -> str:
        return f"Identity({self.recipient.kind}, id {self.recipient.hex_id}, REDACTED)"


@hide_frames
def check_references(identities: Sequence[str], passphrase: str | None) -> None:
    """Raise ValueError if a reference is malformed; it may be a secret, so messages omit it."""
    if isinstance(identities, str) or len(identities) > MAX_IDENTITIES:
        raise ValueError(f"identities takes a sequence of at most {MAX_IDENTITIES} references")
    for reference in identities:
        check_reference(reference, "identity")
    if passphrase is None:
        return
    if not identities:
        raise ValueError("identity_passphrase needs identities")
    check_passphrase_reference(passphrase)


@hide_frames
def load_identities(identities: Sequence[str], passphrase: str | None) -> tuple[Identity, ...]:
    """Return the identities that references name; `passphrase` is one for all of them."""
    hint = "name its place by identity_passphrase="
    return tuple(
        load_with_reference(Identity.load, reference, passphrase, hint) for reference in identities
    )
