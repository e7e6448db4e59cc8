"""Retrieval of the keys of files that are encrypted to recipients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyMaterialError, KeyNotFoundError, ModcryptError
from modcrypt.io.sources import Source
from modcrypt.keys import FileKeys, Key, KeyLike, as_key
from modcrypt.kms.file_keys import KmsKeyRetriever
from modcrypt.kms.recipients.file_recipients import FileRecipients, PrivateKey, open_kek
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.recipient_metadata import RecipientMaterial, decode_recipients

MAX_SHOWN = 3
"""Number of recipients that an error lists: a file may have thousands."""


@dataclass(frozen=True)
class IdentityRetriever:
    """A key retriever that opens files with identities.

    Anyone who has a recipient's public key can make a file that opens: an identity proves nothing
    about the writer.
    """

    identities: tuple[PrivateKey, ...]  # identities to open files with
    # Retriever for keys that are not encrypted to one of the identities
    otherwise: KmsKeyRetriever | None = None

    def for_file(self, source: Source, lenient: bool) -> IdentityKeys:
        """Return the retriever of one file's keys; see `KmsKeyRetriever.for_file`."""
        other = None if self.otherwise is None else self.otherwise.for_file(source, lenient)
        return IdentityKeys(self.identities, other, lenient)


def open_also(
    properties: FileDecryptionProperties, identities: tuple[PrivateKey, ...]
) -> FileDecryptionProperties:
    """Return the result of `KeyTools.decryption` that also opens files with identities."""
    if not identities:
        return properties
    retriever = properties.key_retriever
    assert isinstance(retriever, KmsKeyRetriever)
    return replace(properties, key_retriever=IdentityRetriever(identities, retriever))


@dataclass
class IdentityKeys:
    """The keys of one file during the read."""

    anyone_can_wrap = True  # who has the public key of an identity

    identities: Sequence[PrivateKey]
    other: FileKeys | None
    lenient: bool
    footer: RecipientMaterial | None = None
    footer_metadata: bytes | None = field(default=None, repr=False)
    file_aad: bytes = field(default=b"", repr=False)
    kek: FileRecipients | None = field(default=None, repr=False)
    footer_key: Key | None = None

    def check_kind(self, leaf: tuple[str, ...], kind: str) -> None:
        """Check how a column is encrypted, as the key service's policy requires."""
        if self.other is not None:
            self.other.check_kind(leaf, kind)

    def declares_plaintext(self, leaf: tuple[str, ...]) -> bool:
        """Return whether the key service's policy leaves a column in plaintext."""
        return self.other is not None and self.other.declares_plaintext(leaf)

    def accept_file(self, footer_key_metadata: bytes | None, file_aad: bytes) -> None:
        """Take the key metadata of the footer key, which lists the recipients, and the file AAD."""
        self.footer_metadata, self.file_aad = footer_key_metadata, file_aad

    def retrieve(self, key_metadata: bytes, column: str | None) -> KeyLike | None:
        """Return the key of a column, or of the footer; None if it is missing."""
        what = "footer key" if column is None else f"column {column}"
        try:
            material = self._decode(key_metadata)
            kek = None if material is None else self._find_kek(material)
            if material is None or kek is None:
                return self._retrieve_otherwise(key_metadata, column, material)
            key = kek.kek.unwrap(material.wrapped_dek)
        except ModcryptError as error:
            if isinstance(error, KeyNotFoundError):
                if self.lenient and column is not None:
                    return None
                error.column = column
            if not str(error).startswith(what):
                error.args = (f"{what}: {error}", *error.args[1:])
            raise
        self._check_apart(key, column)
        return key

    def _decode(self, key_metadata: bytes) -> RecipientMaterial | None:
        """Decode key metadata; that of the footer, which may list thousands, only once."""
        if key_metadata != self.footer_metadata:
            return decode_recipients(key_metadata)
        if self.footer is None:
            self.footer = decode_recipients(key_metadata)
        return self.footer

    def _find_kek(self, material: RecipientMaterial) -> FileRecipients | None:
        if self.kek is None:
            footer = self._decode(self.footer_metadata or b"")
            if footer is None or footer.recipients is None:
                if self.other is not None:
                    return None
                raise KeyMaterialError("the footer's key metadata lists no recipients")
            self.kek = open_kek(footer, self.identities, self.file_aad)
        if self.kek is not None and self.kek.kek.id != material.kek_id:
            raise KeyMaterialError("the key is wrapped under the KEK of another file")
        return self.kek

    def _retrieve_otherwise(
        self, key_metadata: bytes, column: str | None, material: RecipientMaterial | None
    ) -> KeyLike | None:
        if self.other is not None:
            key = self.other.retrieve(key_metadata, column)
            if column is None and key is not None:
                self.footer_key = as_key(key)
            return key
        if material is None:
            raise KeyNotFoundError("the key is not encrypted to recipients; pass another key")
        mine = ", ".join(identity.recipient.hex_id for identity in self.identities[:MAX_SHOWN])
        count = len(self.footer.recipients or ()) if self.footer is not None else 0
        raise KeyNotFoundError(
            f"none of the file's {count} recipients is the identity that was given ({mine}); "
            "`modcrypt recipients list` shows them"
        )

    def _check_apart(self, key: Key, column: str | None) -> None:
        """Raise if a column's own key is the footer key, whose holders could forge the column."""
        if column is None:
            self.footer_key = key
        elif key == self.footer_key:
            raise KeyMaterialError(f"column {column}: the column's own key is the footer key")
