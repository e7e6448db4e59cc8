"""The versions of a table: which metadata.json is the current one, and how another takes its place.

In a folder, versions are counted: `v3.metadata.json` is followed by `v4.metadata.json`, which
exactly one writer can create (as Iceberg's HadoopTableOperations has it). A catalog keeps a pointer
instead, see `catalogs`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import posixpath
import re
import zlib
from dataclasses import dataclass
from typing import Protocol

from modcrypt.errors import CommitConflictError, FormatError, LimitError
from modcrypt.iceberg.table_metadata import MAX_METADATA, TableMetadata
from modcrypt.storage import Place, open_sink

__all__ = [
    "FolderVersions",
    "Versions",
    "file_names",
    "has_versions",
    "newest_metadata",
    "read_metadata",
    "version_number",
]

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
        return _newest(self.folder)

    def first(self, metadata: TableMetadata) -> Place:
        """Create version 1 of a new table.

        Raises:
            FileExistsError: it is there.
            OSError: from the file system.
        """
        place = self.folder_file("v1.metadata.json")
        _create(place, metadata.encode())
        self._hint(1)
        return place

    def commit(self, base: Place, metadata: TableMetadata) -> Place:
        """Create the next version; of several writers one succeeds.

        Raises:
            CommitConflictError: the next version is there.
            ValueError: the versions are not counted: a catalog knows which is the current one; or
                the file system can't tell two writers apart.
        """
        _check_exclusive(base)
        counted = _COUNTED.fullmatch(base.name)
        if counted is None:
            raise ValueError(
                f"{base.path}: a catalog says which version of this table is the current one: "
                "open the table by load_table"
            )
        number = int(counted.group(1)) + 1
        place, data = base.beside(f"v{number}.metadata.json"), metadata.encode()
        if self.current().name != base.name:
            raise _conflict(base)
        try:
            _create(place, data)
        except FileExistsError:
            raise _conflict(base) from None
        if self._is_passed_over(place, metadata):
            place.remove()
            raise _conflict(base)
        self._hint(number)
        return place

    def _is_passed_over(self, place: Place, metadata: TableMetadata) -> bool:
        """Tell whether a version was created after others had gone on from another one.

        Its number was free again if the other's file was removed since we looked. Whoever goes on
        from a version logs it.
        """
        newest = self.current()
        if (version_number(newest.name) or 0) <= (version_number(place.name) or 0):
            return False
        log = read_metadata(newest).document.get("metadata-log") or []
        updated = metadata.document.get("last-updated-ms")
        return not any(
            one["timestamp-ms"] == updated
            and posixpath.basename(one["metadata-file"]) == place.name
            for one in log
        )

    def _hint(self, number: int) -> None:
        """Note the number, as Java does; it is a hint, so that failing to is no failure."""
        with contextlib.suppress(OSError), self.folder_file(HINT).create() as sink:
            sink.append(str(number).encode())

    def folder_file(self, name: str) -> Place:
        """Give the place of a file in the folder."""
        return Place(self.folder.filesystem, posixpath.join(self.folder.path, name))


def read_metadata(place: Place) -> TableMetadata:
    """Read a metadata.json, compressed or not.

    Raises:
        FormatError: it is none.
        LimitError: it is larger than any that is read.
        OSError: from the file system.
    """
    with place.open() as source:
        if source.size > MAX_METADATA:
            raise LimitError(f"{place.path}: more than {MAX_METADATA} bytes of table metadata")
        data = source.read_at(0, source.size)
    if data[:2] == b"\x1f\x8b":
        data = _decompressed(data, place.path)
    return TableMetadata(data, place.path)


def _decompressed(data: bytes, name: str) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(MAX_METADATA + 1)
    except (OSError, EOFError, zlib.error):
        raise FormatError(f"{name}: damaged gzip") from None


_EXCLUSIVE = {"s3", "s3a", "memory"}
"""fsspec's file systems that create a file only if it isn't there, in one step."""


def _check_exclusive(place: Place) -> None:
    """Refuse a file system in which one of two commits at the same time would be lost."""
    filesystem = place.filesystem
    if filesystem is None:
        return
    protocols = getattr(filesystem, "protocol", ())  # PyArrow's have none, and no such step
    if _EXCLUSIVE.isdisjoint({protocols} if isinstance(protocols, str) else protocols):
        raise ValueError(
            f"{place.path}: of two commits at the same time this file system would lose one: "
            "keep the table in a SQL catalog (load_table), or open it by fsspec's s3"
        )


def _create(place: Place, data: bytes) -> None:
    with open_sink(place.path, overwrite=False, filesystem=place.filesystem) as sink:
        sink.append(data)


def _conflict(base: Place) -> CommitConflictError:
    return CommitConflictError(
        f"{base.path} is not the table's current version any more: somebody else has committed"
    )


def newest_metadata(table: Place) -> Place:
    """Find the newest metadata.json of a table's folder.

    Raises:
        FormatError: there is none, or a catalog's: which of those is current, it alone knows.
    """
    return _newest(_metadata_folder(table))


def has_versions(table: Place) -> bool:
    """Tell whether there is a metadata.json in a table's folder, a catalog's or not."""
    names = file_names(_metadata_folder(table))
    return any(_COUNTED.fullmatch(name) or _NUMBERED.fullmatch(name) for name in names)


def version_number(name: str) -> int | None:
    """Give the number that the name of a metadata.json begins with, if it has one."""
    found = _COUNTED.fullmatch(name) or _NUMBERED.fullmatch(name)
    return None if found is None else int(found.group(1))


def _metadata_folder(table: Place) -> Place:
    return Place(table.filesystem, posixpath.join(table.path, "metadata"))


def _newest(folder: Place) -> Place:
    names = file_names(folder)
    counted = {int(m.group(1)): m.string for name in names if (m := _COUNTED.fullmatch(name))}
    if not counted:
        if any(_NUMBERED.fullmatch(name) for name in names):
            raise FormatError(
                f"{folder.path}: a catalog says which metadata.json of this table is the current "
                "one: name it, or open the table by load_table"
            )
        raise FormatError(f"{folder.path}: no table: there is no v1.metadata.json")
    return Place(folder.filesystem, posixpath.join(folder.path, counted[max(counted)]))


def file_names(folder: Place) -> list[str]:
    """List the names in a folder; none of one that isn't there."""
    if folder.filesystem is None:
        try:
            return os.listdir(folder.path or ".")
        except (NotADirectoryError, FileNotFoundError):
            return []
    from pyarrow.fs import FileSelector

    from modcrypt.parquet.discovery import as_arrow

    selector = FileSelector(folder.path, allow_not_found=True)
    return [info.base_name for info in as_arrow(folder.filesystem).get_file_info(selector)]
