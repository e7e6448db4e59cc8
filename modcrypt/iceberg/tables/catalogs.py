"""Tables that a catalog of pyiceberg knows: which metadata.json is the current one, and the swap.

A `SqlCatalog` keeps the location of each table's metadata.json in a row. Reading takes it from
there; a commit writes the next metadata.json beside it, and puts its location in the place of the
old one if that still is what the row says: of several writers one succeeds. pyiceberg's own commit
can't write format version 3. Of other catalogs tables are read, not changed.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from modcrypt.errors import CommitConflictError, UnsupportedFormatError
from modcrypt.iceberg.format.locations import Locations, find_place, plain_location
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import check_newest, create_once, version_number
from modcrypt.iceberg.keys.key_resolver import KeyStore
from modcrypt.iceberg.tables.table import (
    Expectation,
    IcebergTable,
    expected_master_keys,
    opened,
    resolver_of,
)
from modcrypt.io.storage import Place
from modcrypt.kms.references import open_kms

if TYPE_CHECKING:
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools

__all__ = ["CatalogVersions", "load_table"]

Identifier = str | tuple[str, ...]


def load_table(
    catalog: Any,
    identifier: Identifier,
    kms: KmsClient | KeyTools | str,
    *,
    location_map: Mapping[str, Any] | None = None,
    key_store: KeyStore | None = None,
    filesystem: Any = None,
    require_encrypted: bool = True,
    table_uuid: str | None = None,
    at_least: int | None = None,
    master_key_ids: Collection[str] | None = None,
) -> IcebergTable:
    """Open a table by its name in a catalog of pyiceberg.

    Args:
        catalog: as pyiceberg's `load_catalog` gives it; only a `SqlCatalog` takes commits.
        identifier: of the table, as `"shop.orders"`.
        kms, key_store, require_encrypted, table_uuid, at_least, master_key_ids: as of
            `open_table`.
        location_map: as of `open_table`; the metadata.json is found by it, too.
        filesystem: of pyarrow or fsspec, in which the folders are, and what isn't mapped.

    Raises:
        ValueError: there is no such table in the catalog.
        ModcryptError, OSError: as `open_table`.
    """
    versions = CatalogVersions(catalog, identifier, filesystem, location_map or {})
    kms = open_kms(kms) if isinstance(kms, str) else kms
    master_key_ids = expected_master_keys(kms, master_key_ids)
    expected = Expectation(
        require_encrypted=require_encrypted,
        table_uuid=table_uuid,
        at_least=at_least,
        master_key_ids=master_key_ids,
    )
    resolver = resolver_of(kms, key_store, master_key_ids)
    return opened(versions.current, versions, resolver, expected, location_map, filesystem)


@dataclass(frozen=True)
class CatalogVersions:
    """The versions of a table in a catalog of pyiceberg.

    Attributes:
        catalog: that knows the table.
        identifier: of the table in it.
        filesystem: of pyarrow or fsspec; None: as the locations say.
        location_map: as of `load_table`.
    """

    catalog: Any = field(repr=False)
    identifier: Identifier
    filesystem: Any = field(default=None, repr=False)
    location_map: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def current(self) -> Place:
        """Give the place of the metadata.json that the catalog names.

        Raises:
            ValueError: it has no such table.
            OSError: its database can't be asked.
        """
        return self._place(self._location())

    def commit(self, base: Place, metadata: TableMetadata) -> Place:
        """Write the next metadata.json, and have the catalog name it instead of `base`.

        Raises:
            CommitConflictError: the catalog names another one already.
            FormatError: the table was registered in the catalog, and its folder has gone on.
            UnsupportedFormatError: the catalog is none that takes commits here.
            OSError: from the file system, or the catalog's database can't be asked.
        """
        self._check_writable()
        old = self._location()
        if self._place(old) != base:
            raise self._conflict()
        check_newest(base)
        number = version_number(base.name)
        place = base.beside(_file_name(0 if number is None else number + 1))
        new = f"{old.rpartition('/')[0]}/{place.name}"
        create_once(place, metadata.encode())
        try:
            swapped = self._swapped(old, new)
        except OSError:
            if self._location() != new:
                raise
            swapped = True  # and the answer was lost
        if not swapped:
            with contextlib.suppress(OSError):  # what stays is named by nothing
                place.remove()
            raise self._conflict()
        return place

    def first(self, metadata: TableMetadata, folder: Place) -> Place:
        """Write the first metadata.json of a new table into a folder, and register it.

        Raises:
            FileExistsError: the catalog has a table of this name.
            ValueError: the catalog has no such namespace, or is none that takes commits here.
            OSError: from the file system, or the catalog's database can't be asked.
        """
        self.check_free()
        name = _file_name(0)
        place = folder.below(name)
        create_once(place, metadata.encode())
        location = f"{metadata.location}/metadata/{name}"
        row = self.catalog._create_table_row(*self._row, location)
        try:
            with _asked(), Session(self.catalog.engine) as session:
                session.execute(insert(IcebergTables).values(**row))
                session.commit()
        except OSError as error:
            if self._found() != location:  # else the answer was lost
                place.remove()
                raise (self._taken() if isinstance(error, FileExistsError) else error) from None
        return place

    def check_free(self) -> None:
        """Check that the catalog would take a new table of this name; raises as `first`."""
        self._check_namespace()
        if self._found() is not None:
            raise self._taken()

    def default_location(self) -> str:
        """Give the folder that the catalog's warehouse has for a new table.

        Raises:
            ValueError: it has no warehouse; or as `first`.
        """
        self._check_namespace()
        return str(self.catalog._resolve_table_location(None, *self._row))

    # --- the catalog ----------------------------------------------------------------------------

    @property
    def _row(self) -> tuple[str, str]:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(self.identifier))
        return namespace, Catalog.table_name_from(self.identifier)

    @property
    def _name(self) -> str:
        return ".".join(self._row)

    def _is_this_row(self) -> tuple[Any, ...]:
        namespace, name = self._row
        return (
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
        )

    def _location(self) -> str:
        """Ask for the location of the current metadata.json.

        A SQL catalog's row is read directly: pyiceberg would read the table, too, and import the
        Python class for its files that the table's properties name.
        """
        if not isinstance(self.catalog, SqlCatalog):
            try:
                return str(self.catalog.load_table(self.identifier).metadata_location)
            except NoSuchTableError:
                raise self._absent() from None
        found = self._found()
        if not found:
            raise self._absent()
        return found

    def _found(self) -> str | None:
        with _asked(), Session(self.catalog.engine) as session:
            query = select(IcebergTables.metadata_location).where(*self._is_this_row())
            return session.scalar(query)

    def _swapped(self, old: str, new: str) -> bool:
        statement = (
            update(IcebergTables)
            .where(*self._is_this_row(), IcebergTables.metadata_location == old)
            .values(metadata_location=new, previous_metadata_location=old)
        )
        with _asked(), Session(self.catalog.engine) as session:
            result = session.execute(statement)
            session.commit()
        return bool(result.rowcount)  # type: ignore[attr-defined]  # an UPDATE's result has it

    def _check_namespace(self) -> None:
        self._check_writable()
        namespace = Catalog.namespace_from(self.identifier)
        if not self.catalog.namespace_exists(namespace):
            raise ValueError(f"the catalog has no namespace {'.'.join(namespace)}")

    def _check_writable(self) -> None:
        if not isinstance(self.catalog, SqlCatalog):
            raise UnsupportedFormatError(
                f"{self._name}: tables of a {type(self.catalog).__name__} are read, not changed: "
                "pyiceberg's commits can't write format version 3; a SqlCatalog takes them"
            )
        if not self.catalog.engine.dialect.supports_sane_rowcount:
            raise UnsupportedFormatError(
                f"{self._name}: the catalog's database does not say whether a row was changed"
            )

    def _place(self, location: str) -> Place:
        mapped = {
            prefix: find_place(where, self.filesystem)
            for prefix, where in self.location_map.items()
        }
        prefixes = Locations(mapped)
        if prefixes.prefix(location) is not None:
            return prefixes.place(location)
        if self.filesystem is not None:  # in which a path has no scheme
            location = plain_location(location).rpartition("://")[2]
        place = find_place(location, self.filesystem)
        return replace(place, root=posixpath.dirname(posixpath.dirname(place.path)))

    def _absent(self) -> ValueError:
        return ValueError(f"the catalog has no table {self._name}")

    def _taken(self) -> FileExistsError:
        return FileExistsError(f"the catalog has a table {self._name} already")

    def _conflict(self) -> CommitConflictError:
        return CommitConflictError(
            f"{self._name}: the catalog names another version by now: somebody else has committed"
        )


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """Have failures of the database be errors of the file system: it is one of its files."""
    try:
        yield
    except IntegrityError:
        raise FileExistsError("the catalog has such a row") from None
    except SQLAlchemyError as error:
        raise OSError(f"the catalog's database: {type(error).__name__}") from error


def _file_name(number: int) -> str:
    return f"{number:05}-{uuid.uuid4()}.metadata.json"
