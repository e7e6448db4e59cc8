"""A dataset that is an Iceberg table: open it as declared, read it, and compare its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from modcrypt.kms.audit import audit_to_json_lines
from modcrypt.kms.client import KmsClient
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, read_verifying_keys
from modcrypt.lake.declarations.declaration import WHOLE_CATALOG, TableDeclaration
from modcrypt.lake.files.key_choice import KeyTrial, check_writing
from modcrypt.lake.key_ages import KeyAges

if TYPE_CHECKING:
    import pyarrow as pa

    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
    from modcrypt.iceberg.lake.erased_table_files import LeftOut, OnErased
    from modcrypt.iceberg.rotate.partition_shredding import ShreddedPartition
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.io.places import Place
    from modcrypt.parquet.arrow.parquet_file import ParquetFile
    from modcrypt.parquet.crypto.properties import SubjectKeys


@dataclass(frozen=True)
class DeclaredTable:
    """An Iceberg table of a lake. Reading refuses a table that is not under a declared master key.

    Args:
        audit: Path of a file to which uses of keys are appended; None for none.
        signing_key: Key that seals what is committed, if the declaration names writers.
    """

    dataset: TableDeclaration
    client: KmsClient = field(repr=False)
    audit: str | None = None
    signing_key: SigningKey | None = None

    @property
    def location(self) -> str:
        """Path or URL of the table's folder, or its name in a catalog."""
        return self.dataset.location

    def open(self, *, sealed: bool = True) -> IcebergTable:
        """Open the current version of the table.

        `sealed` says whether it must have the seal that is declared: without a key that seals it,
        what compares or changes its keys goes on, since it has to be sealed afterwards.

        Raises:
            ModuleNotFoundError: The extra `modcrypt[iceberg]` is not installed.
            PlaintextError: The table is not encrypted.
            IntegrityError: It is another table, under a master key that is not declared, or not
                sealed by a declared writer.
            ModcryptError, ValueError, OSError: As `open_table` and `load_table`.
        """
        from modcrypt.iceberg import load_table, open_table
        from modcrypt.iceberg.tables.catalogs import parse_identifier

        declared = self.dataset
        audit = None if self.audit is None else audit_to_json_lines(self.audit)
        tools = KeyTools(self.client, audit=audit, master_key_ids=declared.master_key_ids)
        options: dict[str, Any] = {
            "location_map": declared.location_map or None,
            "key_store": _open_key_store(declared.key_store),
            "table_uuid": declared.table_uuid,
            "read_restrictions": declared.read_restrictions,
        }
        if declared.signed_by and (sealed or self.signing_key is not None):
            options |= self._seal_options(read_verifying_keys(declared.signed_by))
        if declared.namespace is not None:
            _, unlisted = _list_tables(declared)
            for error in unlisted.values():
                raise error
            raise ValueError(
                f"{declared.name} is a namespace; name one of its tables, {declared.name}/TABLE"
            )
        if declared.table is None:
            table = open_table(declared.location, tools, **options)
        else:
            assert declared.catalog is not None
            catalog = _open_catalog(declared.catalog, declared.catalog_name)
            table = load_table(catalog, parse_identifier(declared.table), tools, **options)
        table.resolver.check_new = self._check_new
        return table

    def _check_new(self, key: IcebergKey) -> None:
        """Raise ValueError if a key for new files, or the version that wraps it, is compromised."""
        from modcrypt.iceberg.verify.key_checks import master_key_version

        wrapped, trial = key.wrapped, KeyTrial(self.client)
        find = trial.wrap_with if wrapped is None else lambda _: master_key_version(wrapped)
        check_writing(self.dataset, (key.master_key_id, key.id), find)

    def _seal_options(self, writers: tuple[VerifyingKey, ...]) -> dict[str, Any]:
        if (key := self.signing_key) is not None and key.verifier not in writers:
            raise ValueError("the signing key is not that of a writer whom signed_by names")
        least = self.dataset.seal_at_least
        return {"signed_by": writers, "seal_at_least": least, "signing_key": key}

    def read(self, *, on_erased: OnErased = "skip", **options: Any) -> pa.Table:
        """Read rows; takes the arguments of `IcebergTable.scan`.

        Args:
            on_erased: Treatment of files whose erasure is declared, and whose keys are gone:
                `"skip"` leaves them out with a warning in the log; `"raise"` raises
                KeyNotFoundError.

        Raises:
            ModcryptError: As `open`, or a file of the table is not authentic.
        """
        left_out = self.leave_out(self.open(), on_erased)
        rows = left_out.table.scan(**options).to_arrow()
        left_out.warn()
        return rows

    def scan(self, *, on_erased: OnErased = "skip", **options: Any) -> Iterator[pa.RecordBatch]:
        """Read rows batch by batch; takes the arguments of `IcebergTable.scan_batches`.

        Args:
            on_erased: As in `read`.
            options: Arguments of `IcebergTable.scan_batches`.

        Raises:
            ModcryptError: As `read`.
        """
        left_out = self.leave_out(self.open(), on_erased)
        batches: Any = left_out.warn_after(left_out.table.scan_batches(**options))
        return cast("Iterator[pa.RecordBatch]", batches)

    def leave_out(self, table: IcebergTable, on_erased: OnErased = "skip") -> LeftOut:
        """Return a version of the table without the files that are erased."""
        from modcrypt.iceberg.lake.erased_table_files import ErasedTableFiles, read_without_erased

        erased = ErasedTableFiles(self.dataset, table, KeyAges(self.client))
        return read_without_erased(erased, on_erased)

    def write(self, data: Any) -> None:
        """Append Arrow data as a new snapshot.

        Raises:
            ValueError: New files would be under a compromised key.
            ModcryptError, OSError: As `modcrypt.iceberg.append`.
        """
        self.open().append(data)

    def shred(self, partition: Mapping[str, str], *, dry_run: bool = False) -> ShreddedPartition:
        """Remove the keys of a partition; takes and raises the same as `shred_partition`.

        `Lake.shred_partition` records the erasure first.
        """
        from modcrypt.iceberg import shred_partition

        return shred_partition(self.open(), partition, dry_run=dry_run)

    def compare_policy(self, table: IcebergTable) -> str:
        """Return how the policy of a table differs from the declared one; empty if it does not."""
        from modcrypt.iceberg import KeyPolicy

        policy = KeyPolicy.of(table.metadata)
        return "; ".join(
            f"{name} is {getattr(policy, name)}, not {value}"
            for name, value in self.dataset.policy.items()
            if getattr(policy, name) != value
        )


def open_declared(
    declared: TableDeclaration, client: KmsClient, audit: str | None, signing_key: SigningKey | None
) -> DeclaredTable:
    """Return a declared table; nothing is read yet."""
    return DeclaredTable(declared, client, audit, signing_key)


def open_cell_files(
    place: Place, tools: KeyTools, subjects: SubjectKeys
) -> Iterator[tuple[Place, Callable[[], AbstractContextManager[ParquetFile | None]]]]:
    """Yield the place of each file of all snapshots, and what opens it."""
    from modcrypt.iceberg import open_table
    from modcrypt.iceberg.read.table_scan import TableScan

    table = open_table(place.path, tools, filesystem=place.filesystem, subjects=subjects)
    scan = TableScan(table.walk, None, None, None, None)
    found = {each.location: each for each in table.walk.all_entries()}
    table.walk.fetch_file_keys(found.values())
    for location, entry in found.items():
        yield table.walk.place(location), partial(scan.open_cells, entry)


def list_names(declared: TableDeclaration) -> list[str]:
    """Return the name of a table in a list, or those of the tables of a namespace."""
    if declared.namespace is not None:
        with suppress(OSError, ValueError, ImportError):
            names, unlisted = _list_tables(declared)
            return [declared.name, *names] if unlisted else names
    return [declared.name]


def _list_tables(declared: TableDeclaration) -> tuple[list[str], dict[tuple[str, ...], Exception]]:
    """Return the names of the tables of a namespace, as datasets, and errors about inner ones.

    Raise OSError if the catalog cannot be listed; and ValueError if it cannot be opened, or has no
    such namespace or no tables in it.
    """
    from modcrypt.iceberg.tables.catalogs import format_identifier, list_tables, parse_identifier

    assert declared.catalog is not None
    assert declared.namespace is not None
    catalog = _open_catalog(declared.catalog, declared.catalog_name)
    namespace = () if declared.namespace == WHOLE_CATALOG else parse_identifier(declared.namespace)
    unlisted: dict[tuple[str, ...], Exception] = {}
    found = [format_identifier(each) for each in list_tables(catalog, namespace, unlisted)]
    if not found and not unlisted:
        raise ValueError(f"{declared.location} has no tables")
    return [f"{declared.name}/{table}" for table in found], unlisted


def _open_key_store(path: str | None) -> KeyStore | None:
    from modcrypt.iceberg import FileKeyStore, SqliteKeyStore

    if path is None:
        return None
    is_database = path.endswith((".db", ".sqlite", ".sqlite3"))
    return SqliteKeyStore(path) if is_database else FileKeyStore(path)


def _open_catalog(catalog: str, name: str | None) -> Any:
    """Open a catalog by its URI (SQL, Hive or REST), or a configured one by its name.

    Raises:
        ValueError: The catalog cannot be opened. The message does not repeat a configured URI,
            which may contain a password.
        OSError: Its server cannot be reached.
    """
    from pyiceberg.exceptions import NotInstalledError
    from sqlalchemy.exc import SQLAlchemyError

    from modcrypt.iceberg.tables.catalog_opening import find_settings, open_pyiceberg_catalog

    called, properties = find_settings(catalog, name)
    try:
        return open_pyiceberg_catalog(called, **properties)
    except (ValueError, ImportError, NotInstalledError, SQLAlchemyError) as error:
        kind = type(error).__name__
        raise ValueError(f"the catalog {catalog} cannot be opened: {kind}") from None
    except OSError as error:
        kind = type(error).__name__
        raise OSError(f"the catalog {catalog} cannot be reached: {kind}") from None
