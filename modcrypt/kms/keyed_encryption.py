"""Encryption of files by a policy: fresh data keys for each, which a key service wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from modcrypt.errors import ModcryptError
from modcrypt.io.places import Place
from modcrypt.keys import Key
from modcrypt.kms.audit import Audit, record_key
from modcrypt.kms.client import capabilities_of
from modcrypt.kms.external_keys import ExternalKeys
from modcrypt.kms.file_keys import KmsKeyRetriever
from modcrypt.kms.policy import Policy
from modcrypt.kms.proof import WrapProof
from modcrypt.kms.recipients.file_recipients import FileRecipients
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.parquet.crypto.path_prefix import PathPrefix
from modcrypt.parquet.crypto.properties import FileEncryptionProperties, SubjectKeys
from modcrypt.parquet.signatures.signers import Signer
from modcrypt.pkmt1.material import KeyMaterial, decode_material
from modcrypt.runtime.fork_safety import cached_property


@dataclass(frozen=True)
class KeyedEncryption:
    """The encryption of each file by a policy, with fresh data keys; see `KeyTools.encryption`."""

    # Retriever that can read the files again; its wrapper wraps their keys.
    retriever: KmsKeyRetriever
    policy: Policy
    aad_prefix: bytes | PathPrefix | None = None  # AAD prefix of the files, or its template
    recipients: tuple[Recipient, ...] = ()  # recipients that open the files, too
    signing_key: Signer | None = None  # key of the writer, who signs the files
    replaces: bool = False  # whether others are removed for the files, at whatever place
    # Columns without values: erased ones, whose keys are thrown away, so that they stay closed.
    erased: tuple[str, ...] = ()
    subjects: SubjectKeys | None = None  # keys of values that are encrypted one by one

    def __post_init__(self) -> None:
        if self.recipients and not self.policy.internal_key_material:
            raise ValueError("recipients need internal_key_material; change the policy")

    def with_proof(self, proof: WrapProof, *, replaces: bool = False) -> KeyedEncryption:
        """Return the encryption for the files of a run, whose wraps are proved.

        A file that replaces none may be under a master key that the key service does not let this
        caller unwrap with, unless `replaces`, as others are removed for it.
        """
        wrapper = self.retriever.wrapper.with_proof(proof)
        retriever = replace(self.retriever, wrapper=wrapper)
        return replace(self, retriever=retriever, replaces=replaces)

    @cached_property
    def column_keys(self) -> Mapping[str, str]:
        """Map of column or group to the id of its master key."""
        return self.policy.key_of_column

    @property
    def plaintext_columns(self) -> Sequence[str]:
        """Names of the columns to leave unencrypted."""
        return self.policy.plaintext_columns

    def for_check(self) -> FileEncryptionProperties:
        """Return properties with temporary keys, to check names and options."""
        keys = {name: Key.generate() for name in self.column_keys}
        prefix = self.aad_prefix
        if isinstance(prefix, PathPrefix):
            prefix = prefix("name")
        return self._make_properties(prefix, Key.generate(), keys)

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Create and wrap the keys of one file.

        If a file or its key material is replaced, the key service has to unwrap the new wraps, as
        `WrapProof` requires. Public keys wrap in this process, often for the identities of others.

        Raises:
            ValueError: The policy needs the folder of the file, and a file object has none.
            FileExistsError: The file exists.
            KeyRetrievalError: The key service refuses to wrap a key, or a new wrap does not open.
        """
        internal = self.policy.internal_key_material
        if place is None and not internal:
            raise ValueError("external key material is stored beside the file: pass a path or URL")
        prefix = self.prefix_at(place)
        if place is not None and not overwrite:
            place.check_absent()
        external = None if internal else ExternalKeys(cast(Place, place))
        replaces = self.replaces or self._replaces_at(place, external, overwrite)
        length = self.policy.data_key_length_bits // 8
        names = (name for group in self._groups.values() for name in group)
        keys = {name: Key.generate(length) for name in names}
        texts = self._wrap_keys(keys, place, replaces)
        if external is None:
            metadata = {name: text.encode() for name, text in texts.items()}
        else:
            metadata = {name: external.add(decode_material(text)) for name, text in texts.items()}
        beside = nullcontext if external is None else external.keep_beside
        closed = {name: Key.generate(length) for name in self.erased}
        columns = {name: key for name, key in keys.items() if name is not None}
        footer_metadata: Any = metadata[None]
        if self.recipients:
            sharing = FileRecipients.create(self.recipients)
            for name, key in columns.items():
                metadata[name] = sharing.add_to_column(texts[name], key)
            footer_metadata = sharing.make_footer_metadata(keys[None], texts[None])
        return self._make_properties(
            prefix,
            keys[None],
            {**columns, **closed},
            companion=_File(self.retriever.wrapper.audit, place, texts, keys, beside).companion,
            footer_key_metadata=footer_metadata,
            column_key_metadata={name: metadata[name] for name in columns},
        )

    def _replaces_at(
        self, place: Place | None, external: ExternalKeys | None, overwrite: bool
    ) -> bool:
        if capabilities_of(self.retriever.wrapper.client).public_keys:
            return False
        exists = overwrite and place is not None and place.stamp() is not None
        return exists or (external is not None and external.replaces)

    @cached_property
    def _groups(self) -> dict[str, list[str | None]]:
        """Map of master key id to its columns, with None for the footer; without erased ones."""
        groups: dict[str, list[str | None]] = {self.policy.footer_key: [None]}
        for name, master in self.column_keys.items():
            if name not in self.erased:
                groups.setdefault(master, []).append(name)
        return groups

    def _wrap_keys(
        self, keys: Mapping[str | None, Key], place: Place | None, replaces: bool
    ) -> dict[str | None, str]:
        """Return the material of all keys of a file; one call per master key wraps them."""
        texts: dict[str | None, str] = {}
        for master, names in self._groups.items():
            deks = [keys[name] for name in names]
            try:
                wrapped = self._wrap_keys_under(master, names, deks, replaces)
            except ModcryptError as error:
                missing = KeyMaterial(is_footer_key=False, master_key_id=master, wrapped_dek="")
                columns = [name for name in names if name is not None]
                record_key(
                    self.retriever.wrapper.audit, "wrap", missing, _name_file(place), columns,
                    result=error.word, count=len(names),
                )  # fmt: skip
                raise
            texts.update(zip(names, wrapped, strict=True))
        return texts

    def _wrap_keys_under(
        self, master: str, names: list[str | None], deks: list[Key], replaces: bool
    ) -> list[str]:
        internal, wrapper = self.policy.internal_key_material, self.retriever.wrapper
        if self.policy.double_wrapping:
            length = self.policy.kek_length_bits // 8
            kek = wrapper.get_writing_kek(master, length, replaces=replaces)
            return [
                kek.wrap_to_json(dek, is_footer_key=name is None, internal=internal)
                for name, dek in zip(names, deks, strict=True)
            ]
        texts = wrapper.wrap(deks, master, replaces=replaces)
        return [
            KeyMaterial(
                is_footer_key=name is None,
                master_key_id=master,
                wrapped_dek=wrapped,
                internal=internal,
            ).encode()
            for name, wrapped in zip(names, texts, strict=True)
        ]

    def prefix_at(self, place: Place | None) -> bytes | None:
        """Return the AAD prefix of a file; raise as `PathPrefix.of`."""
        prefix = self.aad_prefix
        return prefix.of(place) if isinstance(prefix, PathPrefix) else prefix

    def _make_properties(
        self, prefix: bytes | None, footer_key: Key, keys: Mapping[str, Key], **more: Any
    ) -> FileEncryptionProperties:
        policy = self.policy
        return FileEncryptionProperties(
            footer_key=footer_key, column_keys=keys, plaintext_columns=policy.plaintext_columns,
            aad_prefix=prefix, store_aad_prefix=policy.store_aad_prefix,
            plaintext_footer=policy.plaintext_footer,
            encryption_algorithm=policy.encryption_algorithm,
            data_page_v2_levels=cast(Any, policy.data_page_v2_levels), signing_key=self.signing_key,
            subjects=self.subjects, **more,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _File:
    """The keys of one file during the write: their stored material and their audit events."""

    audit: Audit | None
    place: Place | None
    texts: Mapping[str | None, str] = field(repr=False)  # key material, under None the footer's
    keys: Mapping[str | None, Key]
    beside: Callable[[], AbstractContextManager[None]]

    @contextmanager
    def companion(self) -> Iterator[Callable[[], object]]:
        self._record("wrap", "ok")
        recorded = False

        def record_encryption() -> None:
            nonlocal recorded
            recorded = True
            self._record("seal", "ok")

        try:
            with self.beside():
                yield record_encryption
        except BaseException:
            if not recorded:
                self._record("seal", "error")  # keys were used even if the file was not completed
            raise

    def _record(self, operation: Literal["wrap", "seal"], result: str) -> None:
        if self.audit is None:
            return
        for column, text in self.texts.items():
            count = self.keys[column].invocations if operation == "seal" else 1
            material = decode_material(text)
            file = _name_file(self.place)
            record_key(self.audit, operation, material, file, column, result=result, count=count)


def _name_file(place: Place | None) -> str | None:
    return None if place is None else place.full_name
