"""A dataset of a lake as settings, which other processes can receive: it holds no keys."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.lake.declarations.declaration import DatasetDeclaration, LakeDeclaration
from modcrypt.lake.declarations.partitions import matches, names_in
from modcrypt.lake.erased_files import ErasedFiles
from modcrypt.lake.files.declared_encryption import DeclaredEncryption
from modcrypt.lake.files.declared_keys import declared_decryption
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.module_ids import GCM_V1
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import Dataset, leave_out_erased

if TYPE_CHECKING:
    from modcrypt.parquet.crypto.properties import Encryption


@dataclass(frozen=True, kw_only=True, repr=False)
class LakeReference(Settings):
    """Settings of a dataset of a lake: the declaration decides about each file."""

    dataset: DatasetDeclaration
    digest: str  # digest of the declaration of the lake

    @classmethod
    def of(cls, declaration: LakeDeclaration, name: str, **options: Any) -> Self:
        """Return the settings of a dataset; `options` are arguments of `Settings`.

        Raise ValueError if the dataset is not declared, or is an Iceberg table.
        """
        dataset = declaration.find(name)
        if not isinstance(dataset, DatasetDeclaration):
            raise ValueError(
                f"{name} is an Iceberg table: modcrypt iceberg and Spark's own catalogs open it"
            )
        return cls(
            **options, kms=declaration.kms, root=dataset.location, dataset=dataset,
            digest=declaration.digest,
        )  # fmt: skip

    @property
    def declared(self) -> dict[str, Any]:
        """The values that the declaration sets, by attribute; None where it says nothing."""
        members, previous = self.dataset.members, self.dataset.previous
        algorithm = members.get("encryption_algorithm", GCM_V1)
        return {
            "kms": self.kms,
            "master_keys": [key for key in self.dataset.key_templates if not names_in(key)],
            "key_templates": self.dataset.key_templates,
            "previous": previous.master_keys,
            "double_wrapping": members.get("double_wrapping", True),
            "root": self.dataset.location,
            "aad_prefix": self.dataset.aad_prefix,
            "signed_by": tuple(members.get("signed_by", ())) or None,
            "seal_at_least": members.get("seal_at_least"),
            "recipients": tuple(self.dataset.recipients),
            "accept_algorithms": (algorithm, *previous.algorithms),
        }

    def declares_key(self, master_key_id: str) -> bool:
        """Return whether a master key is declared, for some values of partitions."""
        return any(matches(template, master_key_id) for template in self.dataset.key_templates)

    def declares_footer_key(self, master_key_id: str) -> bool:
        """Return whether a master key is declared for footers, for some values of partitions."""
        return matches(self.dataset.footer_key, master_key_id)

    @property
    def policies(self) -> DatasetPolicies:
        """The policies of its files, opened once in each process so that files share KEKs.

        Raise KeyRetrievalError if the key service cannot be opened.
        """
        return self._open_once("policies", self._open_policies)

    def _open_policies(self) -> DatasetPolicies:
        return DatasetPolicies(self.dataset, self.client, self.audit, self.writer_key)

    @property
    def required_seal(self) -> RequiredSeal | None:
        """The seal that the declaration requires; None if it requires none."""
        if (least := self.dataset.members.get("seal_at_least")) is None:
            return super().required_seal
        writers = read_verifying_keys(self.dataset.members["signed_by"])
        return RequiredSeal(writers, least, self.dataset.location)  # Spark may read a part of it

    def leave_out_erased(self, dataset: Dataset) -> Dataset:
        """Return a dataset without its erased files; see `ErasedFiles.find_erased`."""
        if not self.dataset.erased:
            return dataset  # without opening the key service
        return leave_out_erased(dataset, self.decryption())

    def check_distinct(self, paths: Iterable[str]) -> None:
        """Do nothing: the declaration decides which files may share an AAD prefix."""

    def decryption(self) -> FileDecryptionProperties:
        """Return the properties that open each file exactly as declared.

        Raise KeyRetrievalError if the key service cannot be opened.
        """
        erased = ErasedFiles(self.policies, self.on_erased)
        return self._open_files(exactly=True, erased=erased)

    def requirements(self) -> FileDecryptionProperties:
        """Return properties that open each footer under any master key declared for the file."""
        return self._open_files(exactly=False)

    def _open_files(
        self, *, exactly: bool, erased: ErasedFiles | None = None
    ) -> FileDecryptionProperties:
        return declared_decryption(
            self.policies, master_key_ids=self.master_key_ids, identities=self.identity_keys,
            exactly=exactly, erased=erased, **self._demands(),
        )  # fmt: skip

    def tools(self) -> KeyTools:
        """Return the tools of the key service; raises as `client`."""
        return self.policies.tools

    def encryption(self) -> Encryption:
        """Return the encryption of new files, each exactly as declared.

        Raise ValueError as `DatasetPolicies.check_signing_key`, and KeyRetrievalError if the key
        service cannot be opened.
        """
        self.policies.check_signing_key()
        return DeclaredEncryption(self.policies)

    def hand_over(self) -> AbstractContextManager[None]:
        """Sign what is changed while the block runs; see `DatasetPolicies.hand_over`."""
        return self.policies.hand_over()

    def check_writing(self) -> None:
        """Do nothing: a declaration says how files are encrypted."""
