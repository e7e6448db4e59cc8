"""The name of a table in a REST catalog, which writes each metadata.json itself."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.tables import rest_requests
from modcrypt.iceberg.tables.pointers import Identifier, Pointed


@dataclass(frozen=True)
class RestPointer:
    """A table of a REST catalog; see `Pointer`."""

    catalog: RestCatalog
    identifier: Identifier
    is_remote = True

    def find(self) -> Pointed | None:
        """Return the location of the metadata.json; see `Pointer`."""
        answer = rest_requests.load(self.catalog, self.identifier)
        return None if answer is None else Pointed(answer.location)

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError if the server offers no commits."""
        rest_requests.check_writable(self.catalog)

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Raise UnsupportedFormatError: only the server changes the location."""
        raise UnsupportedFormatError("a REST catalog writes each metadata.json itself")

    def drop(self, old: str) -> bool:
        """Have the server drop the table and keep its files; see `Pointer`."""
        return rest_requests.drop(self.catalog, self.identifier)

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Have the server take over a metadata.json; see `Pointer`."""
        with rest_requests.pyiceberg_errors():
            self.catalog.register_table(self.identifier, location)

    def default_location(self) -> str:
        """Return the folder that the server chooses for a table; see `Pointer`."""
        with rest_requests.pyiceberg_errors():
            staged = self.catalog._create_table(self.identifier, Schema(), stage_create=True)
        return staged.metadata.location.rstrip("/")
