"""The row of a pyiceberg `SqlCatalog` with the location of a table's metadata.json.

A commit replaces the location in the row if it still is the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.tables.pointers import Pointed

if TYPE_CHECKING:
    from modcrypt.iceberg.format.table_metadata import TableMetadata


@dataclass(frozen=True)
class SqlPointer:
    """A row of a SQL catalog; see `Pointer`."""

    catalog: SqlCatalog
    namespace: str
    name: str

    @property
    def is_remote(self) -> bool:
        """True if the database is a server; see `Pointer`."""
        return self.catalog.engine.url.host is not None

    def find(self) -> Pointed | None:
        """Read the location from the row."""
        # The row is read directly: pyiceberg would also read the table, and import the Python class
        # for file access that the table's properties name.
        with _database_errors(), Session(self.catalog.engine) as session:
            query = select(IcebergTables.metadata_location).where(*self._is_this_row())
            location = session.scalar(query)
        return Pointed(location) if location else None

    def other_catalogs(self) -> list[str]:
        """Return the names of the database's other catalogs that have such a table."""
        _, *is_table = self._is_this_row()
        with _database_errors(), Session(self.catalog.engine) as session:
            return sorted(session.scalars(select(IcebergTables.catalog_name).where(*is_table)))

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError if a lost race would go unnoticed."""
        if not self.catalog.engine.dialect.supports_sane_rowcount:
            raise UnsupportedFormatError(
                f"{self.namespace}.{self.name}: the catalog's database does not report whether a "
                "row was changed, so commits are not safe"
            )

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Replace the location in the row; see `Pointer`."""
        statement = (
            update(IcebergTables)
            .where(*self._is_this_row(), IcebergTables.metadata_location == old)
            .values(metadata_location=new, previous_metadata_location=old)
        )
        return self._execute(statement)

    def drop(self, old: str) -> bool:
        """Delete the row; see `Pointer`."""
        this_row = (*self._is_this_row(), IcebergTables.metadata_location == old)
        return self._execute(delete(IcebergTables).where(*this_row))

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Add a row; see `Pointer`."""
        row = self.catalog._create_table_row(self.namespace, self.name, location)
        self._execute(insert(IcebergTables).values(**row))

    def default_location(self) -> str:
        """Return the folder in the catalog's warehouse; see `Pointer`."""
        return str(self.catalog._resolve_table_location(None, self.namespace, self.name))

    def _execute(self, statement: Any) -> bool:
        """Execute a change in a transaction of its own; return whether it changed the row."""
        with _database_errors(), Session(self.catalog.engine) as session:
            result: Any = session.execute(statement)
            session.commit()
        return bool(result.rowcount)

    def _is_this_row(self) -> tuple[Any, ...]:
        return (
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == self.namespace,
            IcebergTables.table_name == self.name,
        )


@contextlib.contextmanager
def _database_errors() -> Iterator[None]:
    """Convert the database's errors to OSError: to the caller the database is a file."""
    try:
        yield
    except IntegrityError:
        raise FileExistsError("the catalog already has a row for this table") from None
    except SQLAlchemyError as error:
        raise OSError(f"the catalog's database failed: {type(error).__name__}") from error
