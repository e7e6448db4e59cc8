"""The encryption of new files of a dataset: each gets the keys that are declared for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import Policy
from modcrypt.lake.declarations.columns import FileColumns, names_by_key
from modcrypt.lake.files.file_policies import DatasetPolicies, read_plain_columns
from modcrypt.parquet.crypto.path_prefix import require_place
from modcrypt.parquet.crypto.properties import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    SubjectKeys,
)
from modcrypt.parquet.rewrite.changes import Change


@dataclass(frozen=True)
class DeclaredEncryption:
    """The encryption of each file of a dataset as declared, by its path and its columns."""

    policies: DatasetPolicies

    @property
    def column_keys(self) -> Mapping[str, str]:
        """Map of the columns and groups that are declared by name to their master keys."""
        named = names_by_key(self.policies.dataset.rules, None)
        return {name: key for key, names in named.items() if key is not None for name in names}

    @property
    def plaintext_columns(self) -> Sequence[str]:
        """Names of the columns that are declared plaintext by name."""
        return names_by_key(self.policies.dataset.rules, None).get(None, [])

    @property
    def subjects(self) -> SubjectKeys | None:
        """Keys of the declared subjects; None if none are declared."""
        return self.policies.tools.subjects_of(self.policies.dataset.subject_policy)

    def of_file(
        self, source: Place, target: Place, decryption: FileDecryptionProperties | None,
        change: Change,
    ) -> KeyedEncryption:  # fmt: skip
        """Return the encryption of a file that is converted, with the columns of its source.

        Raise ValueError if the target is outside the dataset, or as `DatasetPolicies.policy`; and
        ModcryptError or OSError if the columns cannot be read.
        """
        if not self.policies.dataset.needs_columns:
            return self._of_columns(target, None)
        with open_source_at(source, stamped=False) as opened:
            if decryption is None:
                return self._of_columns(target, read_plain_columns(opened))
            return self._of_columns(target, self.policies.open_columns(opened, decryption, change))

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Return the properties of a new file, with keys that are made and wrapped for it.

        Raises:
            ValueError: Rules depend on the columns, which are unknown here; or as `of_file`.
        """
        if self.policies.dataset.needs_columns:
            raise ValueError(
                f"the keys of {self.policies.dataset.name} depend on the columns; write with "
                "Lake.dataset(...).write"
            )
        return self._of_columns(require_place(place), None).for_file(place, overwrite=overwrite)

    def for_check(self) -> FileEncryptionProperties:
        """Return properties with throw-away keys, for checks of names and options."""
        keys = {"none": [*self.column_keys]} if self.column_keys else {}
        policy = Policy(
            footer_key="none", column_keys=keys, plaintext_columns=self.plaintext_columns
        )
        return self.policies.encryption(policy).for_check()

    def _of_columns(self, target: Place, columns: FileColumns | None) -> KeyedEncryption:
        policies = self.policies
        if (listed := policies.find_listed(target)) is None:
            raise ValueError(
                f"{target.address} is not in the dataset {policies.dataset.name}, which is at "
                f"{policies.dataset.location}"
            )
        return policies.writing(policies.policy(policies.path_of(listed), columns))
