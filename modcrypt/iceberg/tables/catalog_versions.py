"""The versions of a table whose current metadata.json a pyiceberg catalog names.

A commit writes the next metadata.json beside the old one and replaces the location in the catalog
if it still is the old one: of several writers one succeeds.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    ModcryptError,
    UnsupportedFormatError,
    list_names,
    printable,
)
from modcrypt.iceberg.format.deletion import remove_new
from modcrypt.iceberg.format.locations import Locations, find_place, plain_location
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import (
    CurrentVersion,
    check_newest,
    create_once,
    read_current,
    read_metadata,
    version_number,
)
from modcrypt.iceberg.tables.pointers import Identifier, Pointed, Pointer
from modcrypt.iceberg.tables.sql_pointer import SqlPointer
from modcrypt.io.addresses import local_path
from modcrypt.io.hadoop import is_configured
from modcrypt.io.places import Place


@dataclass(frozen=True)
class CatalogVersions:
    """The versions of a table in a pyiceberg catalog."""

    catalog: Any = field(repr=False)
    identifier: Identifier
    # File system of pyarrow or fsspec; None to derive it from the locations.
    filesystem: Any = field(default=None, repr=False)
    location_map: Mapping[str, Any] = field(default_factory=dict, repr=False)
    merges = False

    def current(self) -> Place:
        """Return the place of the metadata.json that the catalog names.

        Raises:
            ValueError: The catalog has no such table.
            FormatError: The table's folder has newer versions than the catalog.
            IntegrityError: The metadata.json is not the one that the catalog has a hash of.
            OSError: The catalog failed.
        """
        place = self._find_checked()
        with contextlib.suppress(OSError):  # reading needs no right to list the folder
            check_newest(place)
        return place

    def read(self, known: TableMetadata | None = None) -> CurrentVersion:
        """Return the version that the catalog names; see `Versions`."""
        return read_current(self.current, known)

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError if the catalog does not support commits from modcrypt."""
        self._pointer.check_writable()

    def commit(self, base: Place, metadata: TableMetadata) -> tuple[Place, TableMetadata]:
        """Write the next metadata.json and make the catalog name it instead of `base`.

        Raises:
            CommitConflictError: The catalog already names another metadata.json, or has dropped
                the table.
            FormatError: The table's folder has newer versions than the catalog.
            OSError: The file system or the catalog's database failed.
        """
        pointed = self._pointer.find()
        if pointed is None or self._find_place(pointed.location) != base:
            raise self._conflict_error()
        old = pointed.location
        check_newest(base)
        number = version_number(base.name)
        place = base.beside(_file_name(0 if number is None else number + 1))
        new = f"{old.rpartition('/')[0]}/{place.name}"
        create_once(place, metadata.encode())
        try:
            # A metastore may repeat a request, and then find its own change instead of `old`.
            swapped = self._pointer.swap(old, new, metadata) or self._has_version(new)
        except CommitConflictError:
            _remove(place)
            raise
        except OSError:
            if not self._has_version(new):
                raise
            swapped = True  # only the answer was lost
        if not swapped:
            _remove(place)
            raise self._conflict_error()
        return place, metadata.named(place.path)

    def location_of(self, base: Place) -> str:
        """Return the location that the catalog names, for `drop`.

        Raise CommitConflictError if it is not that of version `base`, or the table does not exist;
        and OSError if the catalog failed.
        """
        pointed = self._pointer.find()
        if pointed is None or self._find_place(pointed.location).path != base.path:
            raise self._conflict_error()
        return pointed.location

    def drop(self, location: str) -> None:
        """Remove the table from the catalog if that still names `location`; keep all files.

        Raises:
            CommitConflictError: The catalog names another metadata.json, or has no table of this
                name. Then another process has renamed or dropped it, or a gateway has repeated
                this request.
            OSError: The catalog failed, and may have dropped the table.
        """
        if not self._pointer.drop(location):
            raise self._conflict_error()

    def exists(self) -> bool:
        """Return whether the catalog has a table of this name; raise OSError if it failed."""
        return self._pointer.find() is not None

    def first(self, metadata: TableMetadata, folder: Place) -> Place:
        """Write the first metadata.json of a new table into a folder and register the table.

        Raises:
            FileExistsError: The catalog has a table of this name.
            ValueError: The catalog has no such namespace, refuses the table, or does not support
                commits from modcrypt.
            OSError: The file system or the catalog's database failed.
        """
        self.check_free()
        name = _file_name(0)
        place = folder.below(name)
        create_once(place, metadata.encode())
        location = f"{metadata.location}/metadata/{name}"
        try:
            self._pointer.register(location, metadata)
        except (OSError, ModcryptError) as error:
            found = self._pointer.find()
            if found is None or found.location != location:  # else only the answer was lost
                refused = isinstance(error, FileExistsError | PermissionError | ModcryptError)
                if refused or not self.is_remote:
                    remove_new(place)  # else a server may still register it
                raise (
                    self._taken_error() if isinstance(error, FileExistsError) else error
                ) from None
        return place

    def check_free(self) -> None:
        """Check that the catalog accepts a new table of this name; raise the errors of `first`."""
        self._check_namespace()
        if self._pointer.find() is not None:
            raise self._taken_error()

    def default_location(self) -> str:
        """Return the folder for a new table in the catalog's warehouse.

        Raise ValueError if the catalog has no warehouse, or the errors of `first`.
        """
        self._check_namespace()
        return self._pointer.default_location()

    @property
    def _pointer(self) -> Pointer:
        return pointer_of(self.catalog, self.identifier)

    @property
    def _name(self) -> str:
        return ".".join(Catalog.identifier_to_tuple(self.identifier))

    @property
    def is_remote(self) -> bool:
        """True if a server may still carry out a commit that has failed here."""
        return self._pointer.is_remote

    def _find_checked(self) -> Place:
        """Return the place that the catalog names, whose hash is the one in the same entry."""
        # A metastore stores an entry as several rows of a database, and may return some of them as
        # they were before a commit and others as they are after it.
        pointed = self._pointed()
        while True:
            place = self._find_place(pointed.location)
            try:
                pointed.check(place)
            except IntegrityError:
                before, pointed = pointed, self._pointed()
                if pointed == before:
                    raise
            else:
                return place

    def _pointed(self) -> Pointed:
        if (pointed := self._pointer.find()) is None:
            raise self._missing_error()
        return pointed

    def _has_version(self, location: str) -> bool:
        """Return whether the catalog names a version, or a later one whose log names it."""
        pointed = self._pointer.find()
        if pointed is None or pointed.location == location:
            return pointed is not None
        log = read_metadata(self._find_place(pointed.location)).log
        return any(name == location.rpartition("/")[2] for _, name in log)

    def _check_namespace(self) -> None:
        self._pointer.check_writable()
        namespace = Catalog.namespace_from(self.identifier)
        try:
            exists = self.catalog.namespace_exists(namespace)
        except Exception as error:  # of pyiceberg, requests or Thrift; their texts may have URIs
            raise OSError(f"the catalog failed: {type(error).__name__}") from None
        if not exists:
            raise ValueError(f"the catalog has no namespace {'.'.join(namespace)}")

    def _find_place(self, location: str) -> Place:
        mapped = {
            prefix: find_place(where, self.filesystem)
            for prefix, where in self.location_map.items()
        }
        prefixes = Locations(mapped)
        if prefixes.prefix(location) is not None:
            return prefixes.place(location)
        if self.filesystem is not None:  # its paths have no scheme
            location = plain_location(location).rpartition("://")[2]
        elif not is_opened(location):
            raise FormatError(
                f"{self._name}: the catalog names {printable(location, 200)!r}, and modcrypt opens "
                "only local files, object stores and the clusters of Hadoop's configuration "
                "because a catalog names them: map the beginning of this address to a folder with "
                "location_map"
            )
        place = find_place(location, self.filesystem)
        return replace(place, root=posixpath.dirname(posixpath.dirname(place.path)))

    def _missing_error(self) -> ValueError:
        message = f"the catalog has no table {self._name}"
        pointer = self._pointer
        if isinstance(pointer, SqlPointer) and (others := pointer.other_catalogs()):
            message += (
                f", but its database has one in the catalog {list_names(others)}, not in "
                f"{printable(str(self.catalog.name))}: open the catalog by that name"
            )
        return ValueError(message)

    def _taken_error(self) -> FileExistsError:
        return FileExistsError(f"the catalog already has a table {self._name}")

    def _conflict_error(self) -> CommitConflictError:
        return CommitConflictError(
            f"{self._name}: the catalog names another version now, or none: another writer has "
            "committed, or dropped or renamed the table"
        )


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


def is_opened(location: str) -> bool:
    """Return whether a location is one that modcrypt opens because a catalog names it."""
    # Anyone who can change the catalog could otherwise have any host contacted: fsspec also opens
    # web pages, and Hadoop's client tries for minutes.
    if "\0" in location:
        return False
    with contextlib.suppress(ValueError):
        return (
            local_path(location) is not None
            or _STORED.match(location) is not None
            or is_configured(location)
        )
    return False


_STORED = re.compile(r"(?:s3[an]?|gcs|gs|abfss?|wasbs?|az|oss)://[^/]+/[^/]", re.IGNORECASE)
"""Locations in the stores that tables are kept in, by their schemes in Iceberg."""


def _remove(place: Place) -> None:
    """Remove the metadata.json of a failed commit; nothing names a file that stays."""
    with contextlib.suppress(OSError):
        remove_new(place)


def _file_name(number: int) -> str:
    return f"{number:05}-{uuid.uuid4()}.metadata.json"
