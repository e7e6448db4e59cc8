"""The entry of a table in a Hive metastore, changed as Iceberg's Java changes it.

A commit holds the metastore's lock of the table, compares the location, and alters the table's
parameters. Java compares the hash among them with the metadata.json that it reads. Newer metastores
(2.3.10, 4.0) compare the old location themselves (HIVE-26882), which protects the commit of a
writer whose lock has expired.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hive_metastore.ttypes import (
    AlreadyExistsException,
    EnvironmentContext,
    MetaException,
    NoSuchObjectException,
)
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.table import StagedTable
from pyiceberg.table.metadata import TableMetadataUtil
from thrift.Thrift import TException

from modcrypt.iceberg.format.java_metadata import hash_as_java
from modcrypt.iceberg.format.table_metadata import KEY_ID, TableMetadata
from modcrypt.iceberg.tables.hive_locks import HeldLock, table_lock
from modcrypt.iceberg.tables.pointers import Pointed, is_iceberg

if TYPE_CHECKING:
    from hive_metastore.ThriftHiveMetastore import Client
    from hive_metastore.ttypes import Table

LOCATION, PREVIOUS, DIGEST = "metadata_location", "previous_metadata_location", "metadata_hash"
"""Parameters of a table in the metastore."""

_TOTALS = {
    "total-data-files": "numFiles", "total-records": "numRows", "total-files-size": "totalSize",
}  # fmt: skip
"""Parameters with statistics, by the names in a snapshot's summary."""

_MAX_PARAMETER = 32672
"""Maximum length of a parameter in the metastore's database (Java's default limit)."""


@dataclass(frozen=True)
class HivePointer:
    """A table of a Hive metastore; see `Pointer`."""

    catalog: HiveCatalog
    database: str
    name: str
    is_remote = True

    def find(self) -> Pointed | None:
        """Return the table's location, hash and master key; see `Pointer`."""
        with metastore_errors(), self._connect() as client:
            table = self._find_table(client)
        if table is None:
            return None
        parameters = _parameters_of(table)
        if not is_iceberg(parameters):
            raise ValueError(f"{self.database}.{self.name} is not an Iceberg table")
        if not (location := parameters.get(LOCATION)):
            return None
        return Pointed(location, parameters.get(DIGEST) or None, parameters.get(KEY_ID) or None)

    def check_writable(self) -> None:
        """Accept every metastore: all of them have locks."""

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Alter the table under its lock; see `Pointer`."""
        with self._lock_entry(old) as (lock, table):
            if table is None:
                return False
            known = _parameters_of(table)
            table.parameters = {**_parameters(known, metadata, new), PREVIOUS: old}
            lock.ensure_held()
            return self._alter(lock.client, table, old)

    def _alter(self, client: Client, table: Table, old: str) -> bool:
        expected = {"expected_parameter_key": LOCATION, "expected_parameter_value": old}
        context = EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true", **expected})
        try:
            client.alter_table_with_environment_context(self.database, self.name, table, context)
        except MetaException as error:
            if "The table has been modified" in (error.message or ""):
                return False
            raise
        return True

    def drop(self, old: str) -> bool:
        """Drop the table under its lock; see `Pointer`."""
        with self._lock_entry(old) as (lock, table):
            if table is not None:
                lock.ensure_held()
                lock.client.drop_table(self.database, self.name, deleteData=False)
            return table is not None

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Create the table in the metastore; see `Pointer`."""
        parsed = TableMetadataUtil.parse_raw(metadata.encode().decode())
        io = self.catalog._load_file_io(location=location)
        staged = StagedTable(
            (self.database, self.name), parsed, location, io=io, catalog=self.catalog
        )
        table = self.catalog._convert_iceberg_into_hive(staged)
        table.parameters = _parameters(table.parameters, metadata, location)
        with metastore_errors(), self._connect() as client:
            client.create_table(table)

    def default_location(self) -> str:
        """Return the folder in the database's folder; see `Pointer`."""
        return str(self.catalog._resolve_table_location(None, self.database, self.name))

    @contextlib.contextmanager
    def _lock_entry(self, old: str) -> Iterator[tuple[HeldLock, Table | None]]:
        """Hold the table's lock; yield it with the table, or None if its location is not `old`."""
        with (
            metastore_errors(),
            table_lock(self._connect, self.database, self.name) as lock,
            metastore_errors(),  # the metastore's exceptions cannot cross a context manager
        ):
            table = self._find_table(lock.client)
            known = {} if table is None else _parameters_of(table)
            yield lock, table if is_iceberg(known) and known.get(LOCATION) == old else None

    def _connect(self) -> contextlib.AbstractContextManager[Client]:
        """Open a connection of its own: that of the catalog serves one thread at a time."""
        return HiveCatalog._create_hive_client(self.catalog.properties)

    def _find_table(self, client: Client) -> Table | None:
        try:
            return client.get_table(self.database, self.name)
        except NoSuchObjectException:
            return None


def _parameters_of(table: Table) -> Mapping[str, str]:
    """Return the parameters of a table, which the metastore may leave out."""
    return table.parameters or {}


def _parameters(old: Mapping[str, str], metadata: TableMetadata, location: str) -> dict[str, Any]:
    """Return the parameters of a table with this metadata, as Java sets them."""
    given = {
        "external.table.purge" if name == "gc.enabled" else name: value
        for name, value in metadata.properties.items()
        if name.lower() != "hive.metastore.table.owner"
    }
    parameters = {
        **old, **given, "uuid": metadata.uuid, "table_type": "ICEBERG", "EXTERNAL": "TRUE",
        "DO_NOT_UPDATE_STATS": "true", LOCATION: location, **_snapshot_parameters(metadata),
    }  # fmt: skip
    for name in ("COLUMN_STATS_ACCURATE", DIGEST):
        parameters.pop(name, None)
    if metadata.properties.get(KEY_ID):
        parameters[DIGEST] = hash_as_java(metadata)
    return parameters


def _snapshot_parameters(metadata: TableMetadata) -> dict[str, str]:
    """Return the parameters that show Hive's users the current snapshot."""
    parameters = {"snapshot-count": str(len(metadata.snapshots))}
    if (current := metadata.current) is None:
        return parameters
    summary = current.document.get("summary") or {}
    parameters |= {_TOTALS[name]: summary[name] for name in _TOTALS if name in summary}
    parameters["current-snapshot-id"] = str(current.id)
    parameters["current-snapshot-timestamp-ms"] = str(current.timestamp_ms)
    text = json.dumps(summary, separators=(",", ":"))
    if len(text) <= _MAX_PARAMETER:
        parameters["current-snapshot-summary"] = text
    return parameters


@contextlib.contextmanager
def metastore_errors() -> Iterator[None]:
    """Convert the metastore's errors to OSError: to the caller the metastore is a file."""
    try:
        yield
    except AlreadyExistsException:
        raise FileExistsError("the metastore already has a table of this name") from None
    except TException as error:
        raise OSError(f"the Hive metastore failed: {type(error).__name__}") from error
