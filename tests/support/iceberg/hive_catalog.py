"""A pyiceberg catalog on a real Hive metastore, and a proxy that loses its answers."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hive_metastore.ttypes import ShowLocksRequest
from pyiceberg.catalog.hive import HiveCatalog

from modcrypt.iceberg import IcebergTable, create_table, load_table
from tests.support.iceberg.sample_kms import SampleKms

SCHEMA = pa.schema([("id", pa.int64())])


@dataclass(frozen=True)
class HiveTable:
    """A table of a metastore, and ways to look at its entry without modcrypt."""

    uri: str
    name: str

    @property
    def catalog(self) -> HiveCatalog:
        return HiveCatalog("hive", uri=self.uri, **{"hive.hive2-compatible": "true"})

    def load(self, kms: Any = None, **options: Any) -> IcebergTable:
        return load_table(self.catalog, self.name, kms or SampleKms(), **options)

    def version(self) -> int:
        """The number of the current version."""
        return int(posixpath.basename(self.entry().parameters["metadata_location"])[:5])

    def entry(self) -> Any:
        with self.catalog._client as client:
            return client.get_table(*self.name.split("."))

    def change(self, **parameters: str) -> None:
        """Set parameters of the entry."""
        entry = self.entry()
        entry.parameters |= parameters
        with self.catalog._client as client:
            client.alter_table(*self.name.split("."), entry)

    def locks(self) -> list[Any]:
        database, table = self.name.split(".")
        with self.catalog._client as client:
            shown = client.show_locks(
                ShowLocksRequest(dbname=database, tablename=table, isExtended=True)
            )
        return list(shown.locks or ())


def make_hive_table(uri: str, schema: pa.Schema = SCHEMA, **options: Any) -> HiveTable:
    """Make an encrypted table in a database of its own."""
    database = f"d{uuid.uuid4().hex[:8]}"
    made = HiveTable(uri, f"{database}.orders")
    made.catalog.create_namespace(database)
    create_table(
        None, schema, SampleKms(), master_key_id="keyA", catalog=made.catalog,
        identifier=made.name, **options,
    )  # fmt: skip
    return made


@contextlib.contextmanager
def lost_answers(*, done: bool) -> Iterator[None]:
    """Have the next alteration fail in this process, `done` or not in the metastore."""
    import pytest
    from hive_metastore.ThriftHiveMetastore import Client
    from thrift.transport.TTransport import TTransportException

    real = Client.alter_table_with_environment_context
    with pytest.MonkeyPatch.context() as patch:

        def alter(self: Any, *arguments: Any) -> None:
            patch.undo()
            if done:
                real(self, *arguments)
            raise TTransportException(message="the connection is lost")

        patch.setattr(Client, "alter_table_with_environment_context", alter)
        yield
