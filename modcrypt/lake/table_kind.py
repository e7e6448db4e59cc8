"""The kind of datasets that are tables: what the plug-in for a table format offers a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from modcrypt.runtime.plugins import TABLES, load

if TYPE_CHECKING:
    import pyarrow as pa

    from modcrypt.io.places import Place
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.signing.signing_keys import SigningKey
    from modcrypt.lake.applying.application import AppliedFile
    from modcrypt.lake.applying.plan import LakePlan
    from modcrypt.lake.compromise.leak_judgement import LeakJudge
    from modcrypt.lake.declarations.declaration import TableDeclaration
    from modcrypt.lake.key_ages import KeyAges
    from modcrypt.lake.status import DatasetStatus
    from modcrypt.lake.verification.results import LakeVerification
    from modcrypt.parquet.arrow.parquet_file import ParquetFile
    from modcrypt.parquet.crypto.properties import SubjectKeys

RotateTable = Callable[..., Any]
"""A function with the parameters of `rotate_table` of the plug-in: table, what, new master key."""


class LakeTable(Protocol):
    """A declared table. Reading refuses a table that is not under a declared master key."""

    def open(self, *, sealed: bool = True) -> Any:
        """Return the table's current version, as the plug-in's own API opens it."""

    def read(self, **options: Any) -> pa.Table:
        """Return the rows; takes the arguments of the table's own scan."""

    def scan(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """Read rows batch by batch."""

    def write(self, data: Any) -> None:
        """Append Arrow data."""

    def shred(self, partition: Mapping[str, str], *, dry_run: bool = False) -> Any:
        """Remove the keys of a partition for good."""


class TableKind(Protocol):
    """The plug-in for a table format: a module with these functions."""

    def open_declared(
        self, declared: TableDeclaration, client: KmsClient, audit: str | None,
        signing_key: SigningKey | None,
    ) -> LakeTable:  # fmt: skip
        """Return a declared table; nothing is read yet."""

    def list_names(self, declared: TableDeclaration) -> list[str]:
        """Return the name of a table in a list, or those of the tables of a namespace.

        A namespace that cannot be listed, or not completely, also has its own name: opening it
        raises the error.
        """

    def open_cell_files(
        self, place: Place, tools: KeyTools, subjects: SubjectKeys
    ) -> Iterator[tuple[Place, Callable[[], AbstractContextManager[ParquetFile | None]]]]:
        """Yield the place of each file of all snapshots, and what opens it.

        `place` is that of the table's folder or of its metadata; `subjects` decrypt the values.
        Deletes, and files without values that are encrypted one by one, open as None. Raise
        OSError, ValueError or ModcryptError as the plug-in's own API.
        """

    def find_table_status(
        self, declared: Any, ages: KeyAges, judge: LeakJudge | None,
        is_verified: Callable[[str], bool],
    ) -> DatasetStatus:  # fmt: skip
        """Compare a table with its declaration; data files are not read.

        `judge` judges what compromised keys open; None if there are none. `is_verified` is the
        function that says whether `verify` found a version of the table correct. Raise OSError or
        ValueError if the table does not exist or cannot be listed.
        """

    def plan_table(self, status: DatasetStatus) -> LakePlan:
        """Return the changes that a table with a status needs."""

    def change_table(
        self, plan: LakePlan, declared: Any, ages: KeyAges, rotate: RotateTable | None = None
    ) -> Sequence[AppliedFile]:
        """Carry out a plan; return the result of each of the table's files.

        `rotate` rotates keys elsewhere, such as on Spark; None to do it here.
        """

    def verify_declared_table(
        self, declared: Any, *, jobs: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> LakeVerification:  # fmt: skip
        """Verify all files, keys and snapshots of a table against its declaration.

        Raise OSError or ValueError if the table does not exist or cannot be listed.
        """


def load_table_kind() -> TableKind:
    """Return the plug-in for Iceberg tables; raise ModuleNotFoundError if it is not there."""
    kind: TableKind = load(TABLES, "iceberg")
    return kind
