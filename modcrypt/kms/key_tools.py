"""Envelope encryption of files with a key service: fresh data keys for every file (`KeyTools`).

This module corresponds to PyArrow's CryptoFactory and parquet-java's
PropertiesDrivenCryptoFactory, and each of the three reads the files of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NoReturn, Self

from modcrypt.errors import WriterSignatureError
from modcrypt.io.places import Root
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.audit import Audit, record_key
from modcrypt.kms.client import KmsClient, capabilities_of
from modcrypt.kms.expected_keys import ExpectedKeys, expect_keys, id_set
from modcrypt.kms.file_keys import KmsKeyRetriever
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import Policy, find_service, list_lifetime_faults
from modcrypt.kms.recipients.recipient import Recipient, check_recipients
from modcrypt.kms.references import open_kms
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.signing_keys import SigningKey, read_verifying_keys
from modcrypt.kms.wrapped_key_metadata import (
    decrypt_key_metadata,
    encrypt_key_metadata,
    parse_wrapped_metadata,
)
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, SubjectKeys
from modcrypt.runtime.former_names import accept_former_attributes, accept_former_names
from modcrypt.runtime.plugins import SUBJECTS, load
from modcrypt.runtime.tracebacks import hide_frames


@accept_former_attributes(
    seal_key_metadata="encrypt_key_metadata", open_key_metadata="decrypt_key_metadata"
)
class KeyTools:
    """A tool that wraps and unwraps files' keys with one key service, from any thread.

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
            under which the service unwraps, so anyone who may wrap under one can forge it.
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
        for fault in list_lifetime_faults(cache_lifetime_seconds):
            raise ValueError(fault)
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
        lifetime = cache_lifetime_seconds
        self.wrapper = KeyWrapper(client, cache_lifetime=lifetime, aad=aad, audit=audit)
        self.master_key_ids = None if master_key_ids is None else declared
        self.vaults: dict[Any, Any] = {}  # open ones, by address and expected master keys
        self._policy: Policy | None = None  # source of expected master keys if no policy is passed

    @classmethod
    @hide_frames
    def from_policy(
        cls, policy: Policy, *, audit: Audit | None = None, kms: KmsClient | str | None = None,
        master_key_ids: Collection[str] | None = None, **options: Any,
    ) -> Self:  # fmt: skip
        """Return tools for the key service of a policy.

        Args:
            policy: Policy that names the key service, unless `kms` does, and its master keys.
            audit, kms, options: Arguments of `KeyTools`.
            master_key_ids: Ids of further master keys that may protect what is read, as during a
                rotation.

        Raises:
            ValueError: Neither the policy nor `kms` names a key service; or as `KeyTools`.
        """
        tools = cls(
            find_service(kms, policy),
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

    @property
    def required_seal(self) -> RequiredSeal | None:
        """The seal that the policy of `from_policy` requires of tables; None without writers."""
        if (policy := self._policy) is None or not policy.signed_by:
            return None
        return RequiredSeal(read_verifying_keys(policy.signed_by), policy.seal_at_least or 1)

    def __repr__(self) -> str:
        return f"KeyTools({self.client!r})"

    def __reduce__(self) -> NoReturn:
        self.wrapper.__reduce__()

    def encryption(
        self, policy: Policy, *, root: Root | None = None, recipients: Iterable[Recipient] = (),
        signing_key: SigningKey | None = None,
    ) -> KeyedEncryption:  # fmt: skip
        """Return the encryption of files by a policy, for `encrypt_parquet`, `write_table` etc.

        Args:
            policy: Policy with master keys, columns and AAD prefix.
            root: The dataset's folder, as a path in the files' file system (for a
                SubTreeFileSystem, in its base file system) or a URL. `{path}` in the policy's
                AAD prefix is relative to it. None for the folder that `write_dataset` writes;
                single files need it.
            recipients: Recipients that open the files, too, without the key service.
            signing_key: Key of the writer, as in `FileEncryptionProperties`.

        Raises:
            ValueError: The policy has another AAD for the key service than these tools; or
                recipients are given, and the policy stores key material beside files.
        """
        self._check_aad(policy)
        retriever = KmsKeyRetriever(self.wrapper, self.expected_keys(policy))
        to = tuple(recipients)
        return KeyedEncryption(
            retriever, policy, policy.path_prefix(root), check_recipients(to) if to else (),
            signing_key, subjects=self.subjects_of(policy),
        )  # fmt: skip

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

        With `on_missing_key="drop"` or `"null"`, modcrypt treats a column whose master key is
        refused or does not exist as one without a key.

        Args:
            policy: Policy by which the files were written; its master keys, AAD prefix,
                algorithm and writers' signatures are required.
            master_key_ids: Ids of further master keys that may protect the files, as during a
                rotation: those of the old policy.
            root: Folder, as in `encryption`; None for the folder that is read.
            properties: Further arguments of `FileDecryptionProperties`; None leaves the policy's.

        Raises:
            ValueError: As `encryption`, or as `FileDecryptionProperties`.
            TypeError: `key_retriever` is among the properties.
        """
        if "key_retriever" in properties:
            raise TypeError("KeyTools.decryption creates the key_retriever; remove this argument")
        demands: dict[str, Any] = {}
        if policy is not None:
            self._check_aad(policy)
            demands["accept_algorithms"] = (policy.encryption_algorithm,)
            demands["aad_prefix"] = policy.path_prefix(root)
            demands["subjects"] = self.subjects_of(policy)
            demands["signed_by"] = writers = read_verifying_keys(policy.signed_by)
            if policy.seal_at_least is not None:
                demands["seal"] = RequiredSeal(writers, policy.seal_at_least, root)
        demands["key_retriever"] = KmsKeyRetriever(
            self.wrapper, self.expected_keys(policy, master_key_ids)
        )
        given = {name: value for name, value in properties.items() if value is not None}
        return FileDecryptionProperties(**{**demands, **given})

    def subjects_of(
        self, policy: Policy | None, address: str | None = None, **options: Any
    ) -> SubjectKeys | None:
        """Return the keys of a policy's subjects, whose vault is opened on first use.

        Args:
            policy: Policy that declares columns, and the vault unless `address` does.
            address: Address of the vault.
            options: Further arguments of `modcrypt.subjects.Subjects`.

        Returns:
            None if neither names a vault.

        Raises:
            ModuleNotFoundError: This modcrypt has no keys of subjects.
        """
        vault = address or (None if policy is None else policy.subjects)
        if vault is None:
            return None
        if policy is not None and policy.subject_columns:
            dataset = policy.subject_dataset or ""
            members = {"key": policy.subject_key, "columns": policy.subject_columns}
            options = {**members, "dataset": dataset, **options}
        tools = self
        if policy is not None:  # its master key for footers may protect the vault
            tools = object.__new__(type(self))
            tools.__dict__.update(self.__dict__, _policy=policy)
        found: SubjectKeys = load(SUBJECTS, "columns")(vault, tools, **options)
        return found

    @property
    def own_subjects(self) -> SubjectKeys | None:
        """The keys of subjects of the policy of `from_policy`; None if it names no vault."""
        return self.subjects_of(self._policy)

    def refuse_subjects(self, what: str) -> None:
        """Raise ValueError if the policy of `from_policy` has columns that these things cannot."""
        if self._policy is not None and self._policy.subject_columns:
            raise ValueError(
                f"{what} have no columns under keys of subjects: pass a policy without "
                "subject_columns, or keep these columns in a dataset of files"
            )

    def expected_keys(
        self, policy: Policy | None = None, master_key_ids: Collection[str] | None = None
    ) -> ExpectedKeys:
        """Return the master keys that may protect what is read.

        Args:
            policy: Policy that names the master keys, if there is one.
            master_key_ids: Ids of further master keys, as in `decryption`.
        """
        given = [ids for ids in (master_key_ids, self.master_key_ids) if ids is not None]
        declared = frozenset[str]().union(*map(id_set, given)) if given else None
        if policy is None and self._policy is not None:
            return ExpectedKeys(None, id_set(declared) | self._policy.master_key_ids)
        return expect_keys(self.client, policy=policy, declared=declared)

    def keys_of_whole_files(self, policy: Policy | None = None) -> ExpectedKeys:
        """Return the master keys that may protect an AGS1 stream or an Iceberg table.

        Args:
            policy: Policy whose master key for footers may. By default, that of `from_policy`.
        """
        return self.expected_keys(policy or self._policy)

    def encrypt_key_metadata(
        self, metadata: StandardKeyMetadata, master_key_id: str, *, file: str | None = None,
        replaces: bool = False,
    ) -> bytes:  # fmt: skip
        """Encrypt the key metadata of an AGS1 stream, so that it can be stored with the stream.

        Args:
            metadata: Key metadata of the stream.
            master_key_id: Id of the master key that protects the metadata.
            file: Name of the stream, for the audit.
            replaces: Whether the result or its stream replaces others, so that the key service
                first has to unwrap the key that it wrapped.

        Raises:
            KeyRetrievalError: The key service refuses to wrap a key, or to unwrap it again.
        """
        encrypted = encrypt_key_metadata(self.wrapper, metadata, master_key_id, replaces=replaces)
        self._record_metadata("wrap", encrypted, file)
        return encrypted

    @accept_former_names(sealed="encrypted")
    def decrypt_key_metadata(
        self, encrypted: bytes, *, file: str | None = None, policy: Policy | None = None,
        is_data: bool = True,
    ) -> StandardKeyMetadata:  # fmt: skip
        """Decrypt the result of `encrypt_key_metadata`.

        Args:
            encrypted: Encrypted key metadata.
            file: Name of the stream, for the audit.
            policy: Policy whose master key for footers must protect the metadata. By default, that
                of `from_policy`, or any of `master_key_ids`.
            is_data: Whether the stream has data, for which the policy may require signatures.

        Raises:
            KeyMaterialError: The metadata is malformed, altered, under an unexpected master key, or
                from another key service.
            WriterSignatureError: The policy requires signatures, which AGS1 streams do not have.
            KeyRetrievalError: The key service refuses the master key.
        """
        expected = self.keys_of_whole_files(policy)
        expected.check(
            parse_wrapped_metadata(encrypted), None, file or "the encrypted key metadata"
        )
        own = policy or self._policy
        if is_data and own is not None and own.signed_by:
            raise WriterSignatureError(
                "the policy requires signatures (signed_by), and an AGS1 stream has none; seal its "
                "folder, and use a policy without signed_by"
            )
        metadata = decrypt_key_metadata(self.wrapper, encrypted)
        self._record_metadata("unwrap", encrypted, file)
        return metadata

    def _record_metadata(
        self, operation: Literal["wrap", "unwrap"], encrypted: bytes, file: str | None
    ) -> None:
        record_key(self.wrapper.audit, operation, parse_wrapped_metadata(encrypted), file)

    def _check_aad(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            kind = type(policy).__name__
            raise TypeError(f"policy must be a Policy, for example from Policy.load, not {kind}")
        if (policy.kms_aad or "").encode() != self.wrapper.aad:
            raise ValueError(
                "the policy's kms_aad differs from that of these KeyTools; create them with "
                "KeyTools.from_policy"
            )


def check_tools(tools: object) -> None:
    """Raise TypeError unless tools are KeyTools."""
    if not isinstance(tools, KeyTools):
        raise TypeError(f"tools must be KeyTools, not {type(tools).__name__}")
