"""The entry of a table in an AWS Glue catalog, changed as Iceberg's Java changes it.

A commit compares the location, and updates the entry at the version at which it was read; Glue
refuses the update if another writer was faster. Java's entries have no hash and no master key, so
nothing shows that the metadata.json was altered: readers bring `master_key_ids`, seals or both.

Java compares no versions if it is configured to lock tables (`lock-impl`), and modcrypt does not
take those locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from pyiceberg.catalog import EXTERNAL_TABLE, METADATA_LOCATION, glue
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.utils.properties import property_as_bool

from modcrypt.errors import FormatError, UnsupportedFormatError, printable
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.table_metadata import EMPTY_HISTORY, TableMetadata
from modcrypt.iceberg.tables.pointers import Pointed, is_iceberg

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata as PyTableMetadata

MAX_COMMENT, MAX_DESCRIPTION = 255, 2048
"""Maximum bytes of a column's comment and of a table's description in Glue."""

_MAX_REASON = 300  # maximum length of Glue's reason in an error
_MISSING = "EntityNotFoundException"


@dataclass(frozen=True)
class GluePointer:
    """A table of a Glue catalog; see `Pointer`."""

    catalog: glue.GlueCatalog
    database: str
    name: str
    is_remote = True

    def find(self) -> Pointed | None:
        """Return the table's location; see `Pointer`."""
        if (entry := self._find_entry()) is None:
            return None
        if not is_iceberg(entry.get("Parameters")):
            raise ValueError(f"{self.database}.{self.name} is not an Iceberg table")
        location = entry["Parameters"].get(METADATA_LOCATION)
        return Pointed(location) if location else None

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError for S3 Tables, which rewrite the files of their tables."""
        with _glue_errors():
            is_managed = self.catalog._is_s3tables_database(self.database)
        if is_managed:
            raise UnsupportedFormatError(
                f"{self.database}.{self.name}: tables of S3 Tables cannot be changed: the service "
                "rewrites their files, and nobody has tried that with encrypted ones; use a "
                "database of Glue's own"
            )

    def swap(self, old: str, new: str, metadata: TableMetadata) -> bool:
        """Update the entry at its version; see `Pointer`."""
        if (entry := self._find_entry()) is None or not _names(entry, old):
            return False
        if not (version := entry.get("VersionId")):
            raise UnsupportedFormatError(
                f"{self.database}.{self.name}: the service numbers no versions of the table's "
                "entry, so commits are not safe"
            )
        skip = property_as_bool(
            self.catalog.properties, glue.GLUE_SKIP_ARCHIVE, glue.GLUE_SKIP_ARCHIVE_DEFAULT
        )
        changed = make_table_input(entry, metadata, new, old)
        try:
            self._call("update_table", TableInput=changed, VersionId=version, SkipArchive=skip)
        except _GlueError as error:
            if not error.is_conflict:
                raise
            # If the client has sent the request twice, the first copy may still be under way; it
            # can only fail once the entry has another version.
            if error.is_repeated and (self._find_entry() or entry).get("VersionId") == version:
                raise
            return False
        return True

    def drop(self, old: str) -> bool:
        """Delete the entry; see `Pointer`. Glue compares nothing: a change in between is lost."""
        if (entry := self._find_entry()) is None or not _names(entry, old):
            return False
        try:
            self._call("delete_table", Name=self.name)
        except _GlueError as error:
            if not error.is_conflict or error.is_repeated:
                raise
            return False
        return True

    def register(self, location: str, metadata: TableMetadata) -> None:
        """Create the entry; see `Pointer`."""
        made = make_table_input({"Name": self.name}, metadata, location)
        self._call("create_table", TableInput=made)

    def default_location(self) -> str:
        """Return the folder in the database's folder; see `Pointer`."""
        with _glue_errors(ValueError):  # pyiceberg's, if there is no folder
            return str(self.catalog._resolve_table_location(None, self.database, self.name))

    def _find_entry(self) -> dict[str, Any] | None:
        try:
            return dict(self._call("get_table", Name=self.name)["Table"])
        except _GlueError as error:
            if error.code != _MISSING:
                raise
        return None

    def _call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        with _glue_errors():
            return dict(
                getattr(self.catalog.glue, operation)(DatabaseName=self.database, **arguments)
            )


def _names(entry: Mapping[str, Any], location: str) -> bool:
    """Return whether an entry is that of an Iceberg table with this location."""
    parameters = entry.get("Parameters") or {}
    return is_iceberg(parameters) and parameters.get(METADATA_LOCATION) == location


def make_table_input(
    entry: Mapping[str, Any], metadata: TableMetadata, location: str, previous: str | None = None
) -> dict[str, Any]:
    """Return the entry of a table with this metadata as Java writes it.

    Of the former `entry`, its parameters, description and comments stay. Glue only shows columns;
    if pyiceberg does not know a type among them, those of the entry stay.
    """
    made: dict[str, Any] = {
        "Name": entry["Name"],
        "TableType": EXTERNAL_TABLE,
        "Parameters": glue._construct_parameters(location, entry, previous),
    }
    known = entry.get("StorageDescriptor") or {}
    kept = {name: known[name] for name in ("AdditionalLocations", "Columns") if name in known}
    made["StorageDescriptor"] = {**kept, "Location": metadata.location}
    with contextlib.suppress(FormatError), as_format_errors(metadata.name):
        parsed = TableMetadataUtil.parse_obj({**metadata.document, **EMPTY_HISTORY})
        made["StorageDescriptor"]["Columns"] = _columns(parsed, known.get("Columns") or ())
    if text := metadata.properties.get("comment") or entry.get("Description"):
        made["Description"] = _cut(text, MAX_DESCRIPTION)
    return made


def _columns(metadata: PyTableMetadata, known: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    comments = {column["Name"]: column.get("Comment") for column in known}
    columns = [dict(column) for column in glue._to_columns(metadata)]
    for column in columns:
        if text := column.get("Comment") or comments.get(column["Name"]):
            column["Comment"] = _cut(text, MAX_COMMENT)
    return columns


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text on one line, as Glue accepts it."""
    return " ".join(text.split()).encode()[:limit].decode(errors="ignore")


class _GlueError(OSError):
    """An answer of Glue that is an error, after which the outcome may be unknown."""

    code = ""
    # Whether the request was sent more than once: an earlier copy may have been carried out.
    is_repeated = False

    @property
    def is_conflict(self) -> bool:
        """True if this request has changed nothing, because another writer was faster."""
        return self.code in {_MISSING, "ConcurrentModificationException"}


@contextlib.contextmanager
def _glue_errors(*expected: type[Exception]) -> Iterator[None]:
    """Convert all errors but those `expected` to OSError: to the caller the catalog is a file.

    Glue's reason appears only where it may help: that of a wrong signature has the session's token.
    """
    try:
        yield
    except expected:
        raise
    except ClientError as error:
        raise _as_error(error.response) from None
    except Exception as error:
        raise OSError(f"AWS Glue failed: {type(error).__name__}") from None


def _as_error(response: Mapping[str, Any]) -> Exception:
    error, repeats = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, is_repeated = printable(str(error.get("Code")), 60), bool(repeats.get("RetryAttempts"))
    reason = printable(str(error.get("Message")), _MAX_REASON)
    if code == "AlreadyExistsException":
        return FileExistsError("the catalog already has a table of this name")
    if code == "AccessDeniedException" and not is_repeated:
        return PermissionError(f"AWS Glue denies access: {reason}")
    if code == "InvalidInputException" and not is_repeated:
        return UnsupportedFormatError(f"AWS Glue refuses this: {reason}")
    failure = _GlueError(f"AWS Glue failed: {code}")
    failure.code, failure.is_repeated = code, is_repeated
    return failure
