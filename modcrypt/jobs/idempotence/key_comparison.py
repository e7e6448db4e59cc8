"""Comparison of a file's keys and encryption with those that it must have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from modcrypt.errors import (
    IntegrityError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.idempotence.shapes import (
    Difference,
    ExpectedMasks,
    Shape,
    find_plaintext_difference,
)
from modcrypt.keys import Key
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.ciphers import ColumnKey, assign_keys
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.parquet.format.schema import covering_name
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import KeyMaterial, KeyReference, decode_metadata
from modcrypt.pkmt1.recipient_metadata import list_recipient_ids

MAX_COMPARED = 1000
"""Maximum number of compared files that are remembered, as far as their keys differ."""


class NewKeys:
    """The keys and the encryption that the destination files must have."""

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption
        if not isinstance(encryption, FileEncryptionProperties):
            encryption = encryption.for_check()
        self._wanted = encryption
        self._compared: dict[KeyFacts, str | None] = {}

    def find_difference(
        self, place: Place, expected: Shape | ExpectedMasks | None = None
    ) -> Difference | None:
        """Return how a file differs from the expected encryption or content; None if it does not.

        Raise KmsUnavailableError if the key service is unavailable, so the result is unknown.
        """
        try:
            return self._compare(place, expected)
        except KmsUnavailableError:
            raise
        except PlaintextError as error:
            if find_plaintext_difference(place, None) is None:
                return Difference("it is not encrypted")
            return Difference(str(error), of_encryption=True)
        except (KeyRetrievalError, IntegrityError) as error:
            why = f"it can't be decrypted with the new keys: {error}"
            if isinstance(self.encryption, RecipientEncryption):
                why = "only its recipients can compare it; a record of the run skips finished files"
            return Difference(why, of_encryption=True)
        except ModcryptError as error:
            return Difference(f"it can't be opened: {error}")

    def _compare(self, place: Place, expected: Shape | ExpectedMasks | None) -> Difference | None:
        decryption = self._make_decryption(place)
        with open_source_at(place) as source:
            file = OpenFile(source, decryption)
            file.select()  # retrieves all keys and decrypts the column metadata
            check_border(file.footer.file_unique, decryption)
            why = None if expected is None else expected.find_open_difference(file)
        if why is not None:
            return Difference(why)
        how = self.compare_encryption(place, file)
        return None if how is None else Difference(how, of_encryption=True)

    def compare_encryption(self, place: Place, file: OpenFile) -> str | None:
        """Return how the encryption of an open file differs; None if it does not.

        Raise ModcryptError if external key material cannot be read, or lacks a key.
        """
        prefix = self._resolve_prefix(place)
        return self._compare_modes(file.footer, prefix) or self._compare_keys(place, file)

    def compare_facts(self, footer: Footer, prefix: bytes | None, facts: KeyFacts) -> str | None:
        """Return how a file differs from a policy; None if it does not.

        Args:
            prefix: AAD prefix of the file by the policy.
        """
        return self._compare_modes(footer, prefix) or self._compare_key_facts(facts)

    def _make_decryption(self, place: Place) -> FileDecryptionProperties:
        """Return properties that are stricter than readers': success means the work is done."""
        strict: dict[str, Any] = {
            "require_encrypted": True,
            "accept_algorithms": ALGORITHMS,
            "aad_prefix": self._resolve_prefix(place),
        }
        if self._wanted.signing_key is not None:
            strict["signed_by"] = (self._wanted.signing_key.verifier,)
        if isinstance(self.encryption, KeyedEncryption):
            return FileDecryptionProperties(key_retriever=self.encryption.retriever, **strict)
        wanted = self._wanted
        return FileDecryptionProperties(
            footer_key=wanted.footer_key, column_keys=wanted.column_keys, **strict
        )

    def _compare_modes(self, footer: Footer, prefix: bytes | None) -> str | None:
        wanted = self._wanted
        if footer.cipher.algorithm != wanted.encryption_algorithm:
            return f"its algorithm is {footer.cipher.algorithm}"
        if footer.plaintext_footer != wanted.plaintext_footer:
            return "its footer is " + ("in plaintext" if footer.plaintext_footer else "encrypted")
        stored = prefix is not None and wanted.store_aad_prefix
        if footer.aad_prefix != prefix or bool(footer.algorithm.aad_prefix) != stored:
            return "its AAD prefix, or whether it stores the prefix, differs"
        return None

    def _resolve_prefix(self, place: Place) -> bytes | None:
        if isinstance(self.encryption, KeyedEncryption):
            return self.encryption.prefix_at(place)
        return self._wanted.aad_prefix

    def _compare_keys(self, place: Place, file: OpenFile) -> str | None:
        if not isinstance(self.encryption, KeyedEncryption):
            return self._compare_explicit_keys(file)
        footer = file.footer
        if not file.metadata.row_groups:
            columns: dict[str, ColumnKey] = {}
        else:
            columns = file.own_keys(range(len(file.leaves)))
        plain = file.plaintext_columns(range(len(file.leaves)))
        facts = gather_key_facts(place, footer, file.leaves, plain, columns)
        return self._compare_key_facts(facts)

    def _compare_key_facts(self, facts: KeyFacts) -> str | None:
        """Compare the keys of a file; most files of a dataset have the same facts."""
        if facts not in self._compared:
            if len(self._compared) >= MAX_COMPARED:
                self._compared.clear()
            self._compared[facts] = self._compare_with_policy(facts)
        return self._compared[facts]

    def _compare_with_policy(self, facts: KeyFacts) -> str | None:
        assert isinstance(self.encryption, KeyedEncryption)
        policy = self.encryption.policy
        if fault := _compare_wrapping(policy, policy.footer_key, facts.footer):
            return f"its footer key is {fault}"
        if facts.recipients != {recipient.id for recipient in self.encryption.recipients}:
            return "its footer key is encrypted to other recipients"
        if fault := _compare_length(policy, facts.footer):
            return f"its footer key has {fault}"
        if not facts.has_rows:
            return None  # without row groups, no column has a key
        own = dict(facts.columns)
        if fault := self._compare_kinds(facts.leaves, facts.plain, {*own, *facts.erased}):
            return fault
        for leaf in facts.leaves:
            name = ".".join(leaf)
            given = covering_name(leaf, policy.key_of_column)
            if name not in own or given is None:
                continue
            key, master = own[name], policy.key_of_column[given]
            length = _compare_length(policy, key)
            fault = _compare_wrapping(policy, master, key) or (f"one of {length}" if length else "")
            if fault:
                return f"the key of column {name} is {fault}"
        return None

    def _compare_kinds(
        self, leaves: Sequence[tuple[str, ...]], plain: Collection[str], own: Collection[str]
    ) -> str | None:
        try:
            rules = assign_keys(list(leaves), self._wanted)
        except ValueError as error:
            return str(error)
        for leaf, rule in zip(leaves, rules, strict=True):
            name = ".".join(leaf)
            if (name in plain, name in own) != (rule is None, rule is not None and rule.own):
                return f"column {name} is encrypted differently, or not encrypted"
        return None

    def _compare_explicit_keys(self, file: OpenFile) -> str | None:
        """Compare a file with keys that the caller gave, not a policy."""
        wanted = self._wanted
        if file.footer.footer_key != wanted.footer_key:
            return "it has another footer key"
        if file.footer.key_metadata != wanted.footer_key_metadata:
            return "its footer key has other key metadata"
        if not file.metadata.row_groups:
            return None
        own = file.own_keys(range(len(file.leaves)))
        plain = file.plaintext_columns(range(len(file.leaves)))
        if fault := self._compare_kinds(file.leaves, plain, own):
            return fault
        for leaf in file.leaves:
            name, given = ".".join(leaf), covering_name(leaf, wanted.column_keys)
            if name not in own or given is None:
                continue
            if own[name].key != wanted.column_keys[given]:
                return f"the key of column {name} is another one"
            if own[name].metadata != wanted.column_key_metadata.get(given):
                return f"the key of column {name} is stored with other key metadata"
        return None


def _compare_length(policy: Policy, key: WrappedKey) -> str | None:
    """Return how the length of a key differs from the policy; None if it does not."""
    bits = policy.data_key_length_bits
    return None if key.bits in (None, bits) else f"{key.bits} bits, not {bits}"


def _compare_wrapping(policy: Policy, master_key_id: str, key: WrappedKey) -> str | None:
    """Return how the wrapping of a key differs from the policy; None if it does not."""
    if key.master_key_id != master_key_id:
        return f"under the master key {key.master_key_id}, not {master_key_id}"
    if key.double_wrapping != policy.double_wrapping:
        return "not wrapped (single or double) as in the policy"
    if key.internal != policy.internal_key_material:
        return "not stored (internally or externally) as in the policy"
    return None


class ExternalMaterial:
    """The external key material of a file, read when a key needs it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store: dict[str, str] | None = None

    def find(self, reference: KeyReference) -> KeyMaterial:
        """Return the material of a key.

        Raise ModcryptError if the material cannot be read, or lacks the key.
        """
        if self._store is None:
            self._store = read_store(self._place)
        return find_material(self._store, reference)


class WrappedKey(NamedTuple):
    """The wrapping of a data key, and its length."""

    master_key_id: str
    double_wrapping: bool
    internal: bool
    bits: int | None


class KeyFacts(NamedTuple):
    """Facts about the keys of a file, by which it is compared with a policy."""

    has_rows: bool
    leaves: tuple[tuple[str, ...], ...]
    plain: tuple[str, ...]  # dotted names of the plaintext columns
    footer: WrappedKey
    # The keys of columns that have one of their own, by dotted name.
    columns: tuple[tuple[str, WrappedKey], ...]
    # Ids of the recipients to whom the file is encrypted, too.
    recipients: frozenset[bytes] = frozenset()
    # Dotted names of columns whose keys are gone on purpose; nothing is known of them.
    erased: tuple[str, ...] = ()

    def replace_master_keys(self, replacements: Mapping[str, str]) -> KeyFacts:
        """Return the facts after a rotation that replaces master keys, given by their ids."""

        def move(key: WrappedKey) -> WrappedKey:
            return key._replace(master_key_id=replacements.get(key.master_key_id, key[0]))

        columns = tuple((name, move(key)) for name, key in self.columns)
        return self._replace(footer=move(self.footer), columns=columns)


def gather_key_facts(
    place: Place, footer: Footer, leaves: Sequence[tuple[str, ...]], plain: Iterable[str],
    columns: Mapping[str, ColumnKey],
) -> KeyFacts:  # fmt: skip
    """Return the facts about the keys of an open file.

    Args:
        place: Place of the file, for its external key material.

    Raises:
        ModcryptError: Key metadata is malformed, or external key material cannot be read.
    """
    external = ExternalMaterial(place)
    own = [(name, _describe_key(key.metadata, key.key, external)) for name, key in columns.items()]
    return KeyFacts(
        bool(footer.metadata.row_groups),
        tuple(leaves),
        tuple(plain),
        _describe_key(footer.key_metadata, footer.footer_key, external),
        tuple(own),
        list_recipient_ids(footer.key_metadata or b""),
    )


def _describe_key(
    metadata: bytes | None, key: Key | None, external: ExternalMaterial
) -> WrappedKey:
    decoded = decode_metadata(metadata or b"")
    internal = isinstance(decoded, KeyMaterial)
    material = decoded if isinstance(decoded, KeyMaterial) else external.find(decoded)
    bits = None if key is None else 8 * len(key)
    return WrappedKey(material.master_key_id, material.double_wrapping, internal, bits)
