"""The pointer of a catalog to the current metadata.json of a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.tables.pointed import Pointed
from modcrypt.iceberg.tables.sql_pointer import SqlPointer

if TYPE_CHECKING:
    from modcrypt.iceberg.format.table_metadata import TableMetadata

Identifier = str | tuple[str, ...]


class Pointer(Protocol):
    """A catalog's pointer to the current metadata.json of one table."""

    @property
    def is_remote(self) -> bool:
        """Whether a server may still carry out a request that has failed here."""

    def find(self) -> Pointed | None:
        """Return what the catalog has for the table; None if the table does not exist.

        Raise OSError if the catalog failed, as all methods do.
        """

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError if the catalog cannot commit safely."""

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Replace the location `old` by `new`, the one of `metadata`.

        Return False if the catalog has another location than `old`, and nothing was changed.

        Raises:
            CommitConflictError: Another writer holds the table; nothing was changed.
            OSError: The outcome is unknown.
        """

    def drop(self, old: str) -> bool:
        """Remove the table from the catalog, but none of its files.

        Return False if the catalog has another location than `old`, or no such table. A REST
        catalog compares no location, and Glue only before it drops. Raise as `swap` does.
        """

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Add a table with its first metadata.json; raise FileExistsError if the name is taken."""

    def default_location(self) -> str:
        """Return the folder for a new table; raise ValueError if the catalog has none."""


def pointer_of(catalog: Any, identifier: Identifier) -> Pointer:
    """Return the pointer of a pyiceberg catalog to a table."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    name = Catalog.table_name_from(identifier)
    if isinstance(catalog, SqlCatalog):
        return SqlPointer(catalog, namespace, name)
    hive = sys.modules.get("pyiceberg.catalog.hive")  # importing it needs Thrift
    if hive is not None and isinstance(catalog, hive.HiveCatalog):
        from modcrypt.iceberg.tables.hive_pointer import HivePointer

        return HivePointer(catalog, namespace, name)
    glue = sys.modules.get("pyiceberg.catalog.glue")  # importing it needs boto3
    if glue is not None and isinstance(catalog, glue.GlueCatalog):
        from modcrypt.iceberg.tables.glue_pointer import GluePointer

        return GluePointer(catalog, namespace, name)
    rest = sys.modules.get("pyiceberg.catalog.rest")  # importing it takes long
    if rest is not None and isinstance(catalog, rest.RestCatalog):
        from modcrypt.iceberg.tables.rest_pointer import RestPointer

        return RestPointer(catalog, identifier)
    return _ReadPointer(catalog, identifier)


@dataclass(frozen=True)
class _ReadPointer:
    """The pointer of a catalog that modcrypt cannot commit to."""

    catalog: Any
    identifier: Identifier
    is_remote = True

    def find(self) -> Pointed | None:
        try:
            return Pointed(str(self.catalog.load_table(self.identifier).metadata_location))
        except NoSuchTableError:
            return None

    def check_writable(self) -> None:
        name = ".".join(Catalog.identifier_to_tuple(self.identifier))
        raise UnsupportedFormatError(
            f"{name}: tables of a {type(self.catalog).__name__} cannot be changed: pyiceberg's "
            "commits cannot write format version 3; use a SqlCatalog, HiveCatalog, GlueCatalog or "
            "RestCatalog"
        )

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        raise NotImplementedError  # `check_writable` comes first

    def drop(self, old: str) -> bool:
        raise NotImplementedError

    def register(self, location: str, metadata: TableMetadata) -> None:
        raise NotImplementedError

    def default_location(self) -> str:
        raise NotImplementedError
