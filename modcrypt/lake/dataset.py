"""Read and write a dataset of a lake: always as declared."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.lake.erased_files import ErasedFiles, OnErased
from modcrypt.lake.files.declared_encryption import DeclaredEncryption
from modcrypt.lake.files.declared_keys import declared_decryption
from modcrypt.lake.files.file_policies import DatasetPolicies, read_columns
from modcrypt.lake.files.lake_files import LakeFiles
from modcrypt.parquet.arrow.field_metadata import plan_footer
from modcrypt.parquet.arrow.view import PlaintextView, open_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, KeySettings
from modcrypt.parquet.datasets.dataset_reader import iter_batches, read_table
from modcrypt.parquet.datasets.dataset_writer import open_batches, write_dataset

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LakeDataset(KeySettings):
    """A dataset of a lake. Reading refuses what is not as declared; writing makes it so.

    It is accepted wherever `Settings` are, for files of the dataset.

    Args:
        policies: Policies of its files.
    """

    policies: DatasetPolicies

    @property
    def location(self) -> str:
        """Path or URL of the dataset."""
        return self.policies.dataset.location

    def decryption(self) -> FileDecryptionProperties:
        """Return the properties that open each file of the dataset exactly as declared."""
        return declared_decryption(self.policies, erased=ErasedFiles(self.policies))

    def decryption_of(self, path: str) -> FileDecryptionProperties:
        """Return the properties that open a file: `decryption()` for every file."""
        return self.decryption()

    def encryption(self) -> DeclaredEncryption:
        """Return the encryption of new files of the dataset, each exactly as declared.

        Raises:
            ValueError: The declaration requires signatures, and the lake has no signing key.
        """
        self.policies.check_signing_key()
        return DeclaredEncryption(self.policies)

    def read(
        self,
        *,
        master_key_ids: Collection[str] = (),
        on_missing_key: Literal["error", "drop", "null"] = "error",
        on_erased: OnErased = "skip",
        **options: Any,
    ) -> pa.Table:
        """Read the dataset as a table.

        The declaration decides: which master key protects the footer and each column, which columns
        have keys of their own, the AAD prefix and the algorithm. Previous master keys are accepted.

        Args:
            master_key_ids: Ids of further master keys to accept, although they are not declared.
            on_missing_key: Treatment of columns whose master key is refused or does not exist.
            on_erased: Treatment of files whose erasure is declared, and whose keys are gone:
                `"skip"` leaves them out, and reads erased columns as nulls, with a warning in the
                log; `"raise"` raises KeyNotFoundError.
            options: Arguments of `read_table`, such as `columns` and `filters`.

        Raises:
            ModcryptError: A file is not as declared, or a key is refused.
        """
        source, more = self._choose_source()
        decryption = declared_decryption(
            self.policies, master_key_ids=master_key_ids, on_missing_key=on_missing_key,
            erased=ErasedFiles(self.policies, on_erased),
        )  # fmt: skip
        return read_table(source, decryption, **{**more, **options})

    def scan(
        self,
        *,
        master_key_ids: Collection[str] = (),
        on_missing_key: Literal["error", "drop", "null"] = "error",
        on_erased: OnErased = "skip",
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Read the dataset batch by batch, in bounded memory.

        Args:
            master_key_ids, on_missing_key, on_erased: As in `read`.
            options: Arguments of `iter_batches`.

        Raises:
            ModcryptError: As `read`, partly during iteration.
        """
        source, more = self._choose_source()
        decryption = declared_decryption(
            self.policies, master_key_ids=master_key_ids, on_missing_key=on_missing_key,
            erased=ErasedFiles(self.policies, on_erased),
        )  # fmt: skip
        return iter_batches(source, decryption, **{**more, **options})

    def view(self, path: str, *, columns: Sequence[str] | None = None) -> PlaintextView:
        """Open a file of the dataset as a plaintext one that any Parquet reader can read.

        Args:
            path: Path of the file inside the dataset.
            columns: Names of columns or groups that the file shows; None for all.

        Raises:
            ModcryptError: The file is not as declared, or a key is refused.
        """
        place = self.policies.root.place.below(path)
        decryption = declared_decryption(self.policies)
        return open_parquet(place.path, decryption, columns=columns, filesystem=place.filesystem)

    def write(self, data: Any, **options: Any) -> list[str]:
        """Write Arrow data as further files of the dataset, encrypted as declared.

        The columns that the declaration names as partitions become folders in Hive's form. Files
        get new names, so that a call adds to the dataset.

        Args:
            data: Arrow data, as `write_dataset` takes it.
            options: Arguments of `write_dataset`.

        Returns:
            The paths of the files inside the dataset.

        Raises:
            ValueError: The data lacks a declared column or partition, or a partition value may not
                be part of a key's name or an AAD prefix.
            ModcryptError: A key is refused.
        """
        batches, schema = open_batches(data, options.pop("schema", None))
        partitions = list(self.policies.dataset.partitions)
        columns = read_columns(plan_footer(schema, without=partitions))
        more = {
            "partitioning": partitions or None,
            "basename_template": f"part-{uuid.uuid4().hex[:12]}-{{i}}.parquet",
            "existing_data_behavior": "overwrite_or_ignore",
            "shared_aad_prefix": not self.policies.dataset.binds_paths,
        }

        def encryption_of(path: str) -> KeyedEncryption:
            return self.policies.writing(self.policies.policy(path, columns))

        with self.policies.hand_over():
            return write_dataset(
                batches, self.location, encryption_of, schema=schema, **{**more, **options}
            )

    def _choose_source(self) -> tuple[Any, dict[str, Any]]:
        """Return the file, the folder, or the list of files to read, and arguments of reading."""
        root = self.policies.root
        more = {"partitioning": "hive" if self.policies.dataset.partitions else None}
        if not root.is_folder:
            return self.location, {}
        files, seal = LakeFiles(root, self.policies.dataset.include), self.policies.required_seal
        try:
            paths = [file.path for file in files]
        except ValueError:
            if seal is not None:
                seal.check_complete(root.place, ())  # names the files that are missing
            raise
        if not (files.strays or files.links):
            return self.location, more
        if seal is not None:  # the reader does it for folders
            seal.check_complete(root.place, [*paths, *files.strays])
        return [root.file(path) for path in paths], more
