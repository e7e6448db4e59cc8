"""Retrieval of the keys of files, under the master keys that the reader expects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, KeyNotFoundError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.kms.audit import record_key
from modcrypt.kms.client import capabilities_of
from modcrypt.kms.expected_keys import ExpectedKeys
from modcrypt.kms.wrapping import KeyWrapper, Refusals
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import SHREDDED, KeyMaterial, decode_metadata


@dataclass(frozen=True)
class KmsKeyRetriever:
    """The key retriever of `KeyTools.decryption`."""

    wrapper: KeyWrapper
    expected: ExpectedKeys

    def for_file(self, source: Source, lenient: bool) -> _FileKeys:
        """Return the retriever of one file's keys.

        If `lenient`, a column whose master key is refused counts as one without a key.
        """
        place = source.place
        name = source.name if place is None else place.full_name
        return _FileKeys(self.wrapper, self.expected, lenient, name, place)


def expect_also(
    properties: FileDecryptionProperties, master_key_ids: Collection[str]
) -> tuple[FileDecryptionProperties, ExpectedKeys | None]:
    """Return properties that accept further master keys, and the master keys that they expect.

    Properties that are no result of `KeyTools.decryption` stay unchanged.
    """
    retriever = properties.key_retriever
    if not isinstance(retriever, KmsKeyRetriever):
        return properties, None
    expected = retriever.expected.also(master_key_ids)
    return replace(properties, key_retriever=replace(retriever, expected=expected)), expected


@dataclass
class _FileKeys:
    """The keys of one file during the read."""

    wrapper: KeyWrapper
    expected: ExpectedKeys
    lenient: bool
    name: str
    place: Place | None
    store: dict[str, str] | None = None  # external key material, read once
    refusals: Refusals = field(default_factory=Refusals)
    footer_key: Key | None = None

    @property
    def anyone_can_wrap(self) -> bool:
        """True if everyone who has the public keys can make a file with such keys."""
        return capabilities_of(self.wrapper.client).public_keys

    def check_kind(self, leaf: tuple[str, ...], kind: str) -> None:
        self.expected.check_kind(leaf, kind)

    def declares_plaintext(self, leaf: tuple[str, ...]) -> bool:
        return self.expected.declares_plaintext(leaf)

    def retrieve(self, key_metadata: bytes, column: str | None) -> Key | None:
        try:
            key = self._unwrap_key(self._material(key_metadata), column)
            self._check_apart(key, column)
            return key
        except ModcryptError as error:
            refused = isinstance(error, KeyAccessDeniedError | KeyNotFoundError)
            if refused and self.lenient and column is not None:
                return None
            what = "footer key" if column is None else f"column {column}"
            error.args = (f"{what}: {error}", *error.args[1:])
            if isinstance(error, KeyNotFoundError):
                error.column = column
            raise

    def _unwrap_key(self, material: KeyMaterial, column: str | None) -> Key:
        try:
            self.expected.check(material, column, self.name)
            with self.refusals.count_refusals(material.master_key_id):
                key = self.wrapper.unwrap(material)
        except ModcryptError as error:
            self._record(material, column, error.word)
            raise
        self._record(material, column, "ok")
        return key

    def _check_apart(self, key: Key, column: str | None) -> None:
        """Raise if a column's own key is the footer key, whose holders could forge the column."""
        if column is None:
            self.footer_key = key
        elif key == self.footer_key and self.expected.has_own_key(column):
            raise KeyMaterialError(
                "the column's key is the footer key, but the policy requires a key of its own"
            )

    def _material(self, key_metadata: bytes) -> KeyMaterial:
        if key_metadata == SHREDDED:
            raise KeyNotFoundError("the file was shredded: its wrapped key was removed")
        material = decode_metadata(key_metadata)
        if isinstance(material, KeyMaterial):
            return material
        if self.store is None:
            if self.place is None:
                raise KeyMaterialError(
                    "the key material is stored beside the file: pass its path or URL"
                )
            self.store = read_store(self.place)
        return find_material(self.store, material)

    def _record(self, material: KeyMaterial, column: str | None, result: str) -> None:
        record_key(self.wrapper.audit, "unwrap", material, self.name, column, result=result)
