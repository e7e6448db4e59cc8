"""A pyiceberg catalog on a real Hive metastore, and a proxy that loses its answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hive_metastore.ttypes import ShowLocksRequest
from pyiceberg.catalog.hive import HiveCatalog

from tests.support.iceberg.catalog_tables import CatalogTable


class HiveTable(CatalogTable):
    """A table of a metastore, and ways to look at its entry without modcrypt."""

    @property
    def catalog(self) -> HiveCatalog:
        return HiveCatalog("hive", uri=self.uri, **{"hive.hive2-compatible": "true"})

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


@contextlib.contextmanager
def lost_answers(*, done: bool, error: Exception | None = None) -> Iterator[None]:
    """Have the next alteration fail in this process, `done` or not in the metastore.

    The `error` is a broken connection by default.
    """
    import pytest
    from hive_metastore.ThriftHiveMetastore import Client
    from thrift.transport.TTransport import TTransportException

    real = Client.alter_table_with_environment_context
    with pytest.MonkeyPatch.context() as patch:

        def alter(self: Any, *arguments: Any) -> None:
            patch.undo()
            if done:
                real(self, *arguments)
            raise error or TTransportException(message="the connection is lost")

        patch.setattr(Client, "alter_table_with_environment_context", alter)
        yield
