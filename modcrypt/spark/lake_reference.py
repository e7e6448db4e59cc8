"""A dataset of a lake by reference, which Spark can send to executors: it holds no keys."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.lake.declarations.declaration import DatasetDeclaration
from modcrypt.lake.file_policies import DatasetPolicies
from modcrypt.parquet.crypto.properties import FileDecryptionProperties

if TYPE_CHECKING:
    from modcrypt.lake.lake import Lake

_opened: dict[tuple[int | str | None, ...], DatasetPolicies] = {}


@dataclass(frozen=True, kw_only=True)
class LakeReference:
    """A dataset of a lake; picklable and without secrets.

    Attributes:
        dataset: Declaration of the dataset.
        settings: Settings with the key service.
        digest: Digest of the declaration of the lake.
        audit: Path of a file to which uses of keys are appended; None for none.
        on_missing_key: Treatment of columns whose key is refused, as in `LakeDataset.read`.
        master_key_ids: Ids of further master keys to accept, although they are not declared.
    """

    dataset: DatasetDeclaration
    settings: Settings
    digest: str
    audit: str | None = None
    on_missing_key: Literal["error", "drop", "null"] = "error"
    master_key_ids: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, lake: Lake, name: str, **options: Any) -> Self:
        """Return the reference to a dataset of a lake.

        Raises:
            ValueError: The dataset is not declared, or is an Iceberg table.
        """
        lake.names(name)
        if name not in lake.declaration.datasets:
            raise ValueError(f"{name} is an Iceberg table; Spark reads it with its own catalog")
        declaration = lake.declaration
        key, passphrase = lake.signing_reference or (None, None)
        settings = Settings(
            kms=declaration.kms, passphrase=lake.passphrase, signing_key=key,
            signing_passphrase=passphrase,
        )  # fmt: skip
        audit = None if lake.audit is None else os.path.abspath(lake.audit)
        return cls(
            dataset=declaration.datasets[name], settings=settings, digest=declaration.digest,
            audit=audit, **options,
        )  # fmt: skip

    @property
    def policies(self) -> DatasetPolicies:
        """The policies of its files, opened once in each process so that files share KEKs.

        Raises:
            KeyRetrievalError: The key service cannot be opened.
        """
        service = self.settings.kms, self.settings.passphrase
        signing = self.settings.signing_key
        key = os.getpid(), self.digest, *service, self.dataset.name, self.audit, signing
        if key not in _opened:
            _opened[key] = DatasetPolicies(
                self.dataset, self.settings.client, self.audit, self.settings.writer_key
            )
        return _opened[key]

    @property
    def required_seal(self) -> RequiredSeal | None:
        """The seal that the declaration requires; None if it requires none."""
        least = self.dataset.members.get("seal_at_least")
        if least is None:
            return None
        writers = read_verifying_keys(self.dataset.members["signed_by"])
        return RequiredSeal(writers, least, self.dataset.location)  # Spark may read a part of it

    def decryption_of(self, path: str) -> FileDecryptionProperties:
        """Return the properties that open a file exactly as declared.

        Raises:
            ValueError: As `DatasetPolicies.reading`, or the file is outside the dataset.
            ModcryptError, OSError: The file's columns cannot be read.
        """
        policies = self.policies
        place = Place(*locate(path, None))
        if place.inside(policies.root.place) is None and policies.is_folder:
            raise ValueError(f"{path} is not in the dataset {self.dataset.name}")
        return policies.reading(
            place, master_key_ids=self.master_key_ids, on_missing_key=self.on_missing_key
        )

    def evolve(self, *, on_missing_key: Literal["error", "drop", "null"]) -> LakeReference:
        """Return the reference with another treatment of columns without a key."""
        return LakeReference(**{**vars(self), "on_missing_key": on_missing_key})
