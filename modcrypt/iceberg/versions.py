"""The versions of a table: which metadata.json is the current one, and how another takes its place.

In a folder, versions are counted: `v3.metadata.json` is followed by `v4.metadata.json`, which
exactly one writer can create (as Iceberg's HadoopTableOperations has it). A catalog keeps a pointer
instead, see `catalogs`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
from dataclasses import dataclass
from typing import Protocol

from modcrypt.errors import CommitConflictError, FormatError
from modcrypt.iceberg.table_metadata import TableMetadata
from modcrypt.parquet.discovery import as_arrow
from modcrypt.storage import Place, open_sink

__all__ = ["FolderVersions", "Versions", "newest_metadata"]

_COUNTED = re.compile(r"v(\d{1,18})(?:\.gz)?\.metadata\.json")
_NUMBERED = re.compile(r"(\d{1,18})-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")

HINT = "version-hint.text"


class Versions(Protocol):
    """Knows a table's current version, and puts another in its place."""

    def current(self) -> Place:
        """Give the place of the current metadata.json."""

    def commit(self, base: Place, metadata: TableMetadata) -> Place:
        """Put a new version in the place of `base`, if that still is the current one.

        Raises:
            CommitConflictError: it is not: somebody else has committed.
        """


@dataclass(frozen=True)
class FolderVersions:
    """The versions of a table in a folder without a catalog.

    Attributes:
        folder: `metadata/` of the table.
    """

    folder: Place

    def current(self) -> Place:
        """Give the place of the version with the highest number."""
        return newest_metadata(Place(self.folder.filesystem, posixpath.dirname(self.folder.path)))

    def commit(self, base: Place, metadata: TableMetadata) -> Place:
        """Create the next version; of several writers one succeeds, where the file system can.

        Raises:
            CommitConflictError: the next version is there.
            ValueError: the versions are not counted: a catalog knows which is the current one.
        """
        counted = _COUNTED.fullmatch(base.name)
        if counted is None:
            raise ValueError(
                f"{base.path}: a catalog says which version of this table is the current one: "
                "open the table by load_table"
            )
        number = int(counted.group(1)) + 1
        place = base.beside(f"v{number}.metadata.json")
        if self.current() != base:
            raise _conflict(base)
        try:
            with open_sink(place.path, overwrite=False, filesystem=place.filesystem) as sink:
                sink.append(metadata.encode())
        except OSError as error:
            if error.errno == errno.EEXIST or isinstance(error, FileExistsError):
                raise _conflict(base) from None
            raise
        self._hint(number)
        return place

    def _hint(self, number: int) -> None:
        """Note the number, as Java does; it is a hint, so that failing to is no failure."""
        with contextlib.suppress(OSError), self.folder_file(HINT).create() as sink:
            sink.append(str(number).encode())

    def folder_file(self, name: str) -> Place:
        """Give the place of a file in the folder."""
        return Place(self.folder.filesystem, posixpath.join(self.folder.path, name))


def _conflict(base: Place) -> CommitConflictError:
    return CommitConflictError(
        f"{base.path} is not the table's current version any more: somebody else has committed"
    )


def newest_metadata(table: Place) -> Place:
    """Find the newest metadata.json of a table's folder.

    Raises:
        FormatError: there is none, or a catalog's: which of those is current, it alone knows.
    """
    folder = posixpath.join(table.path, "metadata")
    names = _names(table, folder)
    counted = {int(m.group(1)): m.string for name in names if (m := _COUNTED.fullmatch(name))}
    if not counted:
        if any(_NUMBERED.fullmatch(name) for name in names):
            raise FormatError(
                f"{table.path}: a catalog says which metadata.json of this table is the current "
                "one: name it, or open the table by load_table"
            )
        raise FormatError(f"{table.path}: no table: there is no metadata/v1.metadata.json")
    return Place(table.filesystem, posixpath.join(folder, counted[max(counted)]))


def _names(table: Place, folder: str) -> list[str]:
    if table.filesystem is None:
        try:
            return os.listdir(folder)
        except NotADirectoryError:
            return []
        except FileNotFoundError:
            return []
    from pyarrow.fs import FileSelector

    selector = FileSelector(folder, allow_not_found=True)
    return [info.base_name for info in as_arrow(table.filesystem).get_file_info(selector)]
