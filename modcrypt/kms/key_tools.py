"""Envelope encryption of files with a key service: fresh data keys for every file (`KeyTools`).

This module corresponds to PyArrow's CryptoFactory and parquet-java's
PropertiesDrivenCryptoFactory, and each of the three reads the files of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Self, cast

from modcrypt.errors import ModcryptError
from modcrypt.fork_safety import cached_property
from modcrypt.io.places import Place, Root
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import Key
from modcrypt.kms.audit import Audit, AuditEvent, record_key
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.expected_keys import ExpectedKeys, expect_keys, id_set
from modcrypt.kms.external_keys import ExternalKeys
from modcrypt.kms.file_keys import FileKeyRetriever
from modcrypt.kms.policy import MAX_CACHE_LIFETIME, Policy
from modcrypt.kms.references import open_kms
from modcrypt.kms.wrapped_key_metadata import (
    open_key_metadata,
    parse_wrapped_metadata,
    seal_key_metadata,
)
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.parquet.crypto.path_prefix import PathPrefix
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.pkmt1.material import KeyMaterial, decode_material
from modcrypt.tracebacks import hide_frames


class KeyTools:
    """A wrapper and unwrapper of files' keys with one key service, for any number of threads.

    Use one instance for all files: it caches KEKs, so that a dataset of a thousand files costs the
    service one call for each KEK.

    Args:
        kms: Client of the key service, or its URI as for `open_kms`.
        kms_aad: AAD to which the service binds every wrapped key, if it supports AAD. Unwrapping
            requires the same AAD.
        cache_lifetime_seconds: Seconds to use a KEK for writing, and to cache one for reading; at
            most a week.
        audit: Function that is called with an `AuditEvent` for every use of a key.
        master_key_ids: Ids of the master keys that may protect what is read, besides the one in the
            URI of `kms`. Without either, and without a policy, a file may be under any master key
            that the service unwraps by, so anyone who may wrap by one of them can forge it.
        options: Options for `open_kms`, if `kms` is a URI.

    Raises:
        ValueError: The service does not support AAD, and `kms_aad` is given; `master_key_ids` is a
            single string; or as `open_kms`.
        KeyRetrievalError, ModuleNotFoundError: As `open_kms`.
    """

    @hide_frames  # options may hold a passphrase or a PIN
    def __init__(
        self,
        kms: KmsClient | str,
        *,
        kms_aad: str | bytes = b"",
        cache_lifetime_seconds: float = 600.0,
        audit: Audit | None = None,
        master_key_ids: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        declared = id_set(master_key_ids)
        if not 0 <= cache_lifetime_seconds <= MAX_CACHE_LIFETIME:
            raise ValueError(f"cache_lifetime_seconds must be 0 to {MAX_CACHE_LIFETIME}")
        aad = kms_aad.encode() if isinstance(kms_aad, str) else kms_aad
        if not isinstance(aad, bytes):
            raise TypeError(f"kms_aad must be str or bytes, not {type(aad).__name__}")
        if options and not isinstance(kms, str):
            raise TypeError(
                f"{', '.join(options)}: options require a key service URI; pass them to the client"
            )
        client = open_kms(kms, **options) if isinstance(kms, str) else kms
        if not (hasattr(client, "wrap") and hasattr(client, "unwrap")):
            kind = type(kms).__name__
            raise TypeError(
                f"kms must be a key service URI or a client with wrap and unwrap, not {kind}"
            )
        if aad and not capabilities_of(client).aad:
            raise ValueError("this key service does not support AAD; remove kms_aad")
        self.wrapper = KeyWrapper(
            client,
            cache_lifetime=cache_lifetime_seconds,
            aad=aad,
            audit=audit,
        )
        self.master_key_ids = None if master_key_ids is None else declared
        self._policy: Policy | None = None  # source of expected master keys if no policy is passed

    @classmethod
    @hide_frames
    def from_policy(
        cls, policy: Policy, *, audit: Audit | None = None, kms: KmsClient | str | None = None,
        master_key_ids: Collection[str] | None = None, **options: Any,
    ) -> Self:  # fmt: skip
        """Return tools for the key service of a policy, to read what its master keys protect.

        Args:
            policy: Policy that names the service, unless `kms` does, and the use of its keys.
            audit, kms, options: Arguments of `KeyTools`.
            master_key_ids: Ids of further master keys that may protect what is read, as during a
                rotation.

        Raises:
            ValueError: Neither the policy nor `kms` names a key service; or as `KeyTools`.
        """
        service = policy.kms if kms is None else kms
        if service is None:
            raise ValueError("the policy names no key service; pass kms")
        tools = cls(
            service,
            kms_aad=policy.kms_aad or b"",
            cache_lifetime_seconds=policy.cache_lifetime_seconds,
            audit=audit,
            master_key_ids=master_key_ids,
            **options,
        )
        tools._policy = policy
        return tools

    @property
    def client(self) -> KmsClient:
        """The key service's client."""
        return self.wrapper.client

    def __repr__(self) -> str:
        return f"KeyTools({self.client!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("KeyTools can't be pickled; create them in each process")

    def encryption(self, policy: Policy, *, root: Root | None = None) -> KeyedEncryption:
        """Return the encryption of files by a policy, for `encrypt_parquet`, `write_table` etc.

        Args:
            policy: Policy with master keys, columns and AAD prefix.
            root: The dataset's folder, as a path in the files' file system (for a
                SubTreeFileSystem, in its base file system) or a URL. `{path}` in the policy's
                AAD prefix is relative to it. None for the folder that `write_dataset` writes;
                single files need it.

        Raises:
            ValueError: The policy has another AAD for the key service than these tools.
        """
        self._check_aad(policy)
        return KeyedEncryption(self, policy, policy.path_prefix(root))

    def decryption(
        self,
        policy: Policy | None = None,
        *,
        master_key_ids: Collection[str] | None = None,
        root: Root | None = None,
        **properties: Any,
    ) -> FileDecryptionProperties:
        """Return properties that decrypt files written with modcrypt, PyArrow or parquet-java.

        With a policy, modcrypt refuses a file if its footer key is not under the policy's master
        key for footers, or if a column is not encrypted as the policy specifies: under the column's
        master key, or under the footer key. modcrypt requests no other master key. Columns that the
        policy leaves in plaintext may be encrypted under the footer key.

        With `on_missing_key="drop"` or `"null"`, a column counts as one without a key if its master
        key is refused or does not exist.

        Args:
            policy: Policy by which the files were written; its master keys, AAD prefix and
                algorithm are required.
            master_key_ids: Ids of further master keys that may protect the files, as during a
                rotation: those of the old policy.
            root: Folder as of `encryption`; None for the folder that is read.
            properties: Further arguments of `FileDecryptionProperties`.

        Raises:
            ValueError: As `encryption`, or as `FileDecryptionProperties`.
            TypeError: `key_retriever` is among the properties.
        """
        if "key_retriever" in properties:
            raise TypeError("KeyTools.decryption creates the key_retriever; remove this argument")
        demands: dict[str, Any] = {}
        if policy is not None:
            self._check_aad(policy)
            demands["algorithms"] = (policy.encryption_algorithm,)
            demands["aad_prefix"] = policy.path_prefix(root)
        demands["key_retriever"] = FileKeyRetriever(
            self.wrapper, self.expected_keys(policy, master_key_ids)
        )
        return FileDecryptionProperties(**{**demands, **properties})

    def expected_keys(
        self, policy: Policy | None = None, master_key_ids: Collection[str] | None = None
    ) -> ExpectedKeys:
        """Return the master keys that may protect what is read.

        Args:
            policy: Policy that names the master keys, if there is one.
            master_key_ids: Ids of further master keys, as of `decryption`.
        """
        given = [ids for ids in (master_key_ids, self.master_key_ids) if ids is not None]
        declared = frozenset[str]().union(*map(id_set, given)) if given else None
        if policy is None and self._policy is not None:
            return ExpectedKeys(None, id_set(declared) | self._policy.master_key_ids)
        return expect_keys(self.client, policy=policy, declared=declared)

    def keys_of_whole_files(self, policy: Policy | None = None) -> ExpectedKeys:
        """Return the master keys that may protect an AGS1 stream or an Iceberg table.

        Args:
            policy: Policy whose master key for footers counts. By default, that of `from_policy`.
        """
        return self.expected_keys(policy or self._policy)

    def seal_key_metadata(
        self, metadata: StandardKeyMetadata, master_key_id: str, *, file: str | None = None
    ) -> bytes:
        """Encrypt the key metadata of an AGS1 stream, so that it can be stored with the stream.

        Args:
            metadata: Key metadata of the stream.
            master_key_id: Id of the master key that protects the metadata.
            file: Name of the stream, for the audit.

        Raises:
            KeyRetrievalError: The key service refuses to wrap a key.
        """
        sealed = seal_key_metadata(self.wrapper, metadata, master_key_id)
        self._record_metadata("wrap", sealed, file)
        return sealed

    def open_key_metadata(
        self, sealed: bytes, *, file: str | None = None, policy: Policy | None = None
    ) -> StandardKeyMetadata:
        """Decrypt the result of `seal_key_metadata`.

        Args:
            sealed: Encrypted key metadata.
            file: Name of the stream, for the audit.
            policy: Policy whose master key for footers must protect the metadata. By default, that
                of `from_policy`, or any of `master_key_ids`.

        Raises:
            KeyMaterialError: The metadata is malformed, altered, under an unexpected master key, or
                of another key service.
            KeyRetrievalError: The key service refuses the master key.
        """
        expected = self.keys_of_whole_files(policy)
        expected.check(parse_wrapped_metadata(sealed), None, file or "the encrypted key metadata")
        metadata = open_key_metadata(self.wrapper, sealed)
        self._record_metadata("unwrap", sealed, file)
        return metadata

    def _record_metadata(
        self, operation: Literal["wrap", "unwrap"], sealed: bytes, file: str | None
    ) -> None:
        record_key(self.wrapper.audit, operation, parse_wrapped_metadata(sealed), file)

    def _check_aad(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            kind = type(policy).__name__
            raise TypeError(f"policy must be a Policy, such as Policy.load returns, not {kind}")
        if (policy.kms_aad or "").encode() != self.wrapper.aad:
            raise ValueError(
                "the policy's kms_aad differs from that of these KeyTools; create them with "
                "KeyTools.from_policy"
            )


# --- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyedEncryption:
    """The encryption of each file by a policy, with fresh data keys; see `KeyTools.encryption`."""

    tools: KeyTools
    policy: Policy
    aad_prefix: bytes | PathPrefix | None = None

    @cached_property
    def column_keys(self) -> Mapping[str, str]:
        """Map of column or group to the id of its master key."""
        return self.policy.key_of_column

    @property
    def plaintext_columns(self) -> Sequence[str]:
        """Names of the columns to leave unencrypted."""
        return self.policy.plaintext_columns

    def for_check(self) -> FileEncryptionProperties:
        """Return properties with temporary keys, in order to check names and options."""
        keys = {name: Key.generate() for name in self.column_keys}
        prefix = self.aad_prefix
        if isinstance(prefix, PathPrefix):
            prefix = prefix("name")
        return self._make_properties(prefix, Key.generate(), keys)

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Create and wrap the keys of one file; `place` is None for a file object.

        Raises:
            ValueError: As `PathPrefix.of`; or the policy needs the folder of the file, and a file
                object has none.
            FileExistsError: The file exists, and `overwrite` is false.
            KeyRetrievalError: The key service refuses to wrap a key.
        """
        internal = self.policy.internal_key_material
        if place is None and not internal:
            raise ValueError("external key material is stored beside the file: pass a path or URL")
        prefix = self.prefix_at(place)
        if place is not None and not overwrite:
            place.check_absent()
        external = None if internal else ExternalKeys(cast(Place, place))
        length = self.policy.data_key_length_bits // 8
        footer_key = Key.generate(length)
        keys = {name: Key.generate(length) for name in self.column_keys}
        texts = self._wrap_keys(footer_key, keys, place)
        if external is None:
            metadata = {name: text.encode() for name, text in texts.items()}
        else:
            metadata = {name: external.add(decode_material(text)) for name, text in texts.items()}
        beside = nullcontext if external is None else external.keep_beside
        footer_metadata = metadata.pop(None)
        file = _File(self.tools.wrapper.audit, place, texts, footer_key, keys, beside)
        return self._make_properties(
            prefix,
            footer_key,
            keys,
            companion=file.companion,
            footer_key_metadata=footer_metadata,
            column_key_metadata=cast("dict[str, bytes]", metadata),  # without the footer's None
        )

    @cached_property
    def _groups(self) -> dict[str, list[str | None]]:
        """Map of master key id to its columns, with None for the footer."""
        groups: dict[str, list[str | None]] = {self.policy.footer_key: [None]}
        for name, master in self.column_keys.items():
            groups.setdefault(master, []).append(name)
        return groups

    def _wrap_keys(
        self, footer_key: Key, keys: Mapping[str, Key], place: Place | None
    ) -> dict[str | None, str]:
        """Return the material of all keys of a file; keys of one master key go in one call."""
        texts: dict[str | None, str] = {}
        for master, names in self._groups.items():
            deks = [footer_key if name is None else keys[name] for name in names]
            try:
                wrapped = self._wrap_keys_under(master, names, deks)
            except ModcryptError as error:
                self._record_failure(master, names, place, error.word)
                raise
            texts.update(zip(names, wrapped, strict=True))
        return texts

    def _wrap_keys_under(self, master: str, names: list[str | None], deks: list[Key]) -> list[str]:
        internal, wrapper = self.policy.internal_key_material, self.tools.wrapper
        if self.policy.double_wrapping:
            kek = wrapper.get_writing_kek(master, self.policy.kek_length_bits // 8)
            return [
                kek.wrap_to_json(dek, is_footer_key=name is None, internal=internal)
                for name, dek in zip(names, deks, strict=True)
            ]
        return [
            KeyMaterial(
                is_footer_key=name is None,
                master_key_id=master,
                wrapped_dek=wrapped,
                internal=internal,
            ).encode()
            for name, wrapped in zip(names, wrapper.wrap(deks, master), strict=True)
        ]

    def _record_failure(
        self, master: str, names: list[str | None], place: Place | None, result: str
    ) -> None:
        audit = self.tools.wrapper.audit
        if audit is not None:
            audit(
                AuditEvent(
                    operation="wrap",
                    by="file",
                    master_key_id=master,
                    file=None if place is None else place.full_name,
                    columns=tuple(name for name in names if name is not None),
                    result=result,
                    count=len(names),
                )
            )

    def prefix_at(self, place: Place | None) -> bytes | None:
        """Return the AAD prefix of a file; raise as `PathPrefix.of`."""
        prefix = self.aad_prefix
        return prefix.of(place) if isinstance(prefix, PathPrefix) else prefix

    def _make_properties(
        self, prefix: bytes | None, footer_key: Key, keys: Mapping[str, Key], **more: Any
    ) -> FileEncryptionProperties:
        policy = self.policy
        return FileEncryptionProperties(
            footer_key=footer_key,
            column_keys=keys,
            plaintext_columns=policy.plaintext_columns,
            aad_prefix=prefix,
            store_aad_prefix=policy.store_aad_prefix,
            plaintext_footer=policy.plaintext_footer,
            encryption_algorithm=policy.encryption_algorithm,
            data_page_v2_levels=cast(Any, policy.data_page_v2_levels),
            **more,
        )


@dataclass(frozen=True, slots=True)
class _File:
    """The keys of one file during the write: their stored material and their audit events."""

    audit: Audit | None
    place: Place | None
    texts: Mapping[str | None, str] = field(repr=False)  # key material, under None the footer's
    footer_key: Key
    keys: Mapping[str, Key]
    beside: Callable[[], AbstractContextManager[None]]

    @contextmanager
    def companion(self) -> Iterator[Callable[[], object]]:
        self._record("wrap", "ok")
        recorded = False

        def record_seal() -> None:
            nonlocal recorded
            recorded = True
            self._record("seal", "ok")

        try:
            with self.beside():
                yield record_seal
        except BaseException:
            if not recorded:
                self._record("seal", "error")  # keys were used even if the file was not completed
            raise

    def _record(self, operation: Literal["wrap", "seal"], result: str) -> None:
        if self.audit is None:
            return
        file = None if self.place is None else self.place.full_name
        for column, text in self.texts.items():
            key = self.footer_key if column is None else self.keys[column]
            count = key.invocations if operation == "seal" else 1
            material = decode_material(text)
            record_key(self.audit, operation, material, file, column, result=result, count=count)
