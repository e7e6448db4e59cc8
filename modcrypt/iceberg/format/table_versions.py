"""The versions of a table: which metadata.json is the current one, and how another takes its place.

In a folder, versions are counted: `v3.metadata.json` is followed by `v4.metadata.json`, which
exactly one writer can create (as Iceberg's HadoopTableOperations has it). A catalog keeps a pointer
instead, see `catalogs`.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import posixpath
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modcrypt.errors import CommitConflictError, FormatError, LimitError, ModcryptError
from modcrypt.iceberg.format.table_metadata import MAX_METADATA, TableMetadata
from modcrypt.io.storage import Place

__all__ = [
    "FolderVersions",
    "Versions",
    "check_newest",
    "create_once",
    "file_names",
    "has_versions",
    "is_later",
    "log_of",
    "newest_metadata",
    "read_current",
    "read_metadata",
    "version_number",
    "write_hint",
]

_COUNTED = re.compile(r"v(0|[1-9]\d{0,17})(?:\.gz)?\.metadata\.json")
_NUMBERED = re.compile(r"(\d{1,18})-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")

HINT = "version-hint.text"

MAX_RATIO, ALWAYS_READ = 32, 16 << 20
"""How many times its size a compressed metadata.json may become; and bytes that any may."""


class Versions(Protocol):
    """Knows a table's current version, and puts another in its place."""

    def current(self) -> Place:
        """Give the place of the current metadata.json."""

    def commit(self, base: Place, metadata: TableMetadata) -> Place:
        """Put a new version in the place of `base`, if that still is the current one.

        Raises:
            CommitConflictError: it is not: somebody else has committed, and this is surely not
                done. After any other error it may be.
        """


@dataclass(frozen=True)
class FolderVersions:
    """The versions of a table in a folder without a catalog.

    Attributes:
        folder: `metadata/` of the table.
    """

    folder: Place

    def current(self) -> Place:
        """Return the place of the version with the highest number.

        Raises:
            FormatError: a catalog has gone on with the table.
            FileNotFoundError: there is none.
            ModcryptError, OSError: as `read_metadata`, if there are files of a catalog beside it.
        """
        return _newest(self.folder)

    def first(self, metadata: TableMetadata) -> Place:
        """Create version 1 of a new table.

        Raises:
            FileExistsError: it is there.
            ValueError: as `check_exclusive`.
            OSError: from the file system.
        """
        self.check_exclusive()
        place = self.folder_file("v1.metadata.json")
        create_once(place, metadata.encode())
        self._hint(1)
        return place

    def check_exclusive(self) -> None:
        """Check that the file system can tell two writers of one version apart.

        Raises:
            ValueError: it can't.
        """
        _check_exclusive(self.folder)

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
            create_once(place, data)
        except FileExistsError:
            raise _conflict(base) from None
        self._check_followed(base, place, metadata)
        self._hint(number)
        return place

    def _check_followed(self, base: Place, place: Place, metadata: TableMetadata) -> None:
        """Remove a version that was created after others had gone on from another one.

        Its number was free again if the other's file was removed since we looked. Whoever goes on
        from a version logs it; of those that came later, the log may have lost it.

        Raises:
            CommitConflictError: it was.
            OSError: nobody can tell: the version that would say so was removed as well.
        """
        number = version_number(place.name) or 0
        found = _counted(self.folder)
        newer = sorted(one for one in found if one > number)
        if not newer:
            return
        logged = (number, metadata.document.get("last-updated-ms"))
        logs = [_logged(self.folder_file(found[one])) for one in (newer[0], newer[-1])]
        if any(logged in log for log in logs):
            return
        if any(number == one for log in logs for one, _ in log):
            place.remove()
            raise _conflict(base)
        raise OSError(
            errno.ESTALE, "others went on so fast that this may be in the table or not", place.path
        )

    def _hint(self, number: int) -> None:
        """Note the number, as Java does; it is a hint, so that failing to is no failure."""
        with contextlib.suppress(OSError):
            write_hint(self.folder_file(HINT), number)

    def folder_file(self, name: str) -> Place:
        """Give the place of a file in the folder."""
        return self.folder.below(name)


def write_hint(hint: Place, number: int) -> None:
    """Write `version-hint.text`, itself: a link in its place leads who knows where.

    Raises:
        OSError: from the file system.
    """
    if hint.filesystem is None and os.path.islink(hint.path):
        hint.remove()
    with hint.create() as sink:
        sink.append(str(number).encode())


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
    limit = min(MAX_METADATA, ALWAYS_READ + MAX_RATIO * len(data))
    try:
        with gzip.open(io.BytesIO(data)) as file:
            found = file.read(limit + 1)
    except (OSError, EOFError, zlib.error):
        raise FormatError(f"{name}: damaged gzip") from None
    if len(found) > limit:
        raise LimitError(f"{name}: gzip of more than {limit} bytes, in {len(data)}")
    return found


def read_current(find: Callable[[], Place]) -> tuple[Place, TableMetadata]:
    """Read the current version of a table; a newer one, where it goes before it is read.

    Args:
        find: gives its place, as `Versions.current`.

    Raises:
        FileNotFoundError: it is gone, and still said to be the current one.
        ModcryptError, OSError: as `read_metadata`, and from `find`.
    """
    place = find()
    while True:
        try:
            return place, read_metadata(place)
        except FileNotFoundError:  # others have dropped the history since
            gone, place = place, find()
            if place == gone:
                raise


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
    with place.create(overwrite=False) as sink:
        sink.append(data)


def create_once(place: Place, data: bytes) -> None:
    """Create a file; it may be there though an error says otherwise, or that it was before.

    Networks lose answers. Stores and network file systems are then asked again, unseen, and answer
    that the file exists: it is the one that the first request made.

    Raises:
        FileExistsError: somebody else's is there.
        OSError: from the file system; or nobody can tell whose file it was.
    """
    try:
        _create(place, data)
    except OSError as error:
        try:
            with place.open() as source:
                found = source.read_at(0, source.size)
        except OSError as unread:
            if not isinstance(error, FileExistsError):
                raise error from None
            raise OSError(
                errno.ESTALE, "it may have been created or not, and can't be read", place.path
            ) from unread
        if found != data:
            raise


def _logged(version: Place) -> list[tuple[int | None, Any]]:
    """Give the numbers and times of the versions that one has in its log."""
    log = read_metadata(version).document.get("metadata-log") or []
    return [
        (version_number(posixpath.basename(one["metadata-file"])), one["timestamp-ms"])
        for one in log
    ]


def _conflict(base: Place) -> CommitConflictError:
    return CommitConflictError(
        f"{base.path} is not the table's current version any more: somebody else has committed"
    )


def newest_metadata(table: Place) -> Place:
    """Find the newest metadata.json of a table's folder.

    Raises:
        FormatError: some are a catalog's: which of those is current, it alone knows.
        FileNotFoundError: there is none.
    """
    return _newest(_metadata_folder(table))


def check_newest(base: Place) -> None:
    """Check that a version which a catalog took over from a folder is the folder's newest.

    Raises:
        FormatError: the table was continued in the folder.
    """
    counted = _COUNTED.fullmatch(base.name)
    folder = Place(base.filesystem, posixpath.dirname(base.path))
    if counted and (newest := max(_counted(folder), default=0)) > int(counted.group(1)):
        raise FormatError(
            f"{base.path}: the catalog names this version, and the table has gone on in its folder "
            f"until v{newest}.metadata.json: register that one in the catalog"
        )


def has_versions(table: Place) -> bool:
    """Tell whether there is a metadata.json in a table's folder, a catalog's or not."""
    names = file_names(_metadata_folder(table))
    return any(_COUNTED.fullmatch(name) or _NUMBERED.fullmatch(name) for name in names)


def version_number(name: str) -> int | None:
    """Give the number that the name of a metadata.json begins with, if it has one."""
    found = _COUNTED.fullmatch(name) or _NUMBERED.fullmatch(name)
    return None if found is None else int(found.group(1))


def is_later(name: str, than: str) -> bool:
    """Return whether a metadata.json has the number of another or a later one, counted alike."""
    for counting in (_COUNTED, _NUMBERED):
        first, second = counting.fullmatch(name), counting.fullmatch(than)
        if first is not None and second is not None:
            return int(first.group(1)) >= int(second.group(1))
    return False


def log_of(metadata: TableMetadata) -> set[tuple[int, str]]:
    """Return the times and names of the versions in a log."""
    log = metadata.document.get("metadata-log")
    return {
        (one["timestamp-ms"], posixpath.basename(one["metadata-file"]))
        for one in (log if isinstance(log, list) else ())
        if isinstance(one, dict)
        and isinstance(one.get("metadata-file"), str)
        and type(one.get("timestamp-ms")) is int
    }


def _metadata_folder(table: Place) -> Place:
    return table.below("metadata")


def _counted(folder: Place) -> dict[int, str]:
    """Return the counted versions in a folder by number; of two with one number, Java's choice."""
    names = sorted(file_names(folder), key=len, reverse=True)  # v1.gz.metadata.json comes first
    return {int(m.group(1)): m.string for name in names if (m := _COUNTED.fullmatch(name))}


def _newest(folder: Place) -> Place:
    counted = _counted(folder)
    in_catalog = [name for name in file_names(folder) if _NUMBERED.fullmatch(name)]
    if not counted and in_catalog:
        raise FormatError(
            f"{folder.path}: a catalog says which metadata.json of this table is the current "
            "one: name it, or open the table by load_table"
        )
    if not counted:
        why = "no table: there is no v1.metadata.json"
        raise FileNotFoundError(errno.ENOENT, why, folder.path)
    newest = folder.below(counted[max(counted)])
    if in_catalog:
        _check_alone(newest, in_catalog)
    return newest


def _check_alone(newest: Place, in_catalog: Sequence[str]) -> None:
    """Check that no catalog has gone on with a folder's table.

    Args:
        newest: The newest version in the folder.
        in_catalog: Names of metadata.json files beside it that a catalog numbers.

    Raises:
        FormatError: one of them is of this table and came after this version: its log names it, or
            it has newer snapshots; or both came after one version.
    """
    here = read_metadata(newest)
    for name in sorted(in_catalog, key=lambda one: (version_number(one), one), reverse=True):
        with contextlib.suppress(ModcryptError, FileNotFoundError):  # damaged, or gone by now
            found = read_metadata(newest.beside(name))
            is_newer = found.last_sequence_number > here.last_sequence_number
            continues = any(newest.name == logged for _, logged in log_of(found))
            if found.uuid == here.uuid and (is_newer or continues or _is_fork(found, here)):
                break
    else:
        return
    raise FormatError(
        f"{newest.path}: a catalog has gone on with this table ({name}), so that this version is "
        "an old one: open the table by load_table. If no catalog has it any more, remove the "
        "catalog's metadata.json files"
    )


def _is_fork(found: TableMetadata, here: TableMetadata) -> bool:
    """Whether a catalog's version came after one in the log of a folder's, and is not in that."""
    log, when = log_of(here), found.document.get("last-updated-ms")
    shared = [ms for ms, name in log & log_of(found) if _COUNTED.fullmatch(name)]
    known = {here.document.get("last-updated-ms"), *(ms for ms, _ in log)}
    return bool(shared) and type(when) is int and when > max(shared) and when not in known


def file_names(folder: Place) -> list[str]:
    """List the names in a folder; none of one that isn't there."""
    if folder.filesystem is None:
        try:
            return os.listdir(folder.path or ".")
        except (NotADirectoryError, FileNotFoundError):
            return []
    from pyarrow.fs import FileSelector

    from modcrypt.parquet.datasets.discovery import as_arrow

    selector = FileSelector(folder.path, allow_not_found=True)
    return [info.base_name for info in as_arrow(folder.filesystem).get_file_info(selector)]
