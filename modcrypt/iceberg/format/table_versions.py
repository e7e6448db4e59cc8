"""Find the current metadata.json of a table, and replace it by a new version.

In a folder, versions are counted: `v3.metadata.json` is followed by `v4.metadata.json`, which
exactly one writer can create (as in Iceberg's HadoopTableOperations). A catalog keeps a pointer
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from modcrypt.errors import CommitConflictError, FormatError, LimitError, ModcryptError
from modcrypt.iceberg.format.deletion import HINT, METADATA, remove_new
from modcrypt.iceberg.format.repeated_json import RepeatedLists
from modcrypt.iceberg.format.table_metadata import MAX_METADATA, TableMetadata
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at

_FOLDER_NAME = re.compile(r"v(0|[1-9][0-9]{0,17})(?:\.gz)?\.metadata\.json")
_CATALOG_NAME = re.compile(r"([0-9]{1,18})-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")

MAX_RATIO, ALWAYS_READ = 32, 16 << 20
"""Maximum expansion of a compressed metadata.json, and decompressed bytes that any may have."""

ALWAYS_PARSED = 1 << 18
"""JSON values that any compressed metadata.json may have; more if each takes a compressed byte.

A value of 3 bytes takes 80 in memory, and gzip makes a thousand of one byte.
"""


class CurrentVersion(NamedTuple):
    """The current version of a table, and what its catalog lets this reader see of it."""

    place: Place
    metadata: TableMetadata
    restrictions: Mapping[str, Any] | None = None  # read restrictions, as JSON


class Versions(Protocol):
    """The versions of a table: finds the current one and commits new ones."""

    @property
    def is_remote(self) -> bool:
        """True if a server may still carry out a commit that has failed here."""

    @property
    def merges(self) -> bool:
        """True if a server applies commits to its own version, even if others have changed it.

        Such commits cannot change snapshots.
        """

    def current(self) -> Place:
        """Return the place of the current metadata.json."""

    def read(self, known: TableMetadata | None = None) -> CurrentVersion:
        """Return the current version; for `known` and the errors see `read_current`."""

    def check_writable(self) -> None:
        """Raise UnsupportedFormatError or ValueError if no version can be committed safely."""

    def commit(self, base: Place, metadata: TableMetadata) -> tuple[Place, TableMetadata]:
        """Replace version `base` by a new one if `base` is still current; return the new one.

        A catalog may have added the changes of others to it.

        Raises:
            CommitConflictError: Another writer has committed, and this commit certainly did not
                happen. After any other error it may have happened.
        """


@dataclass(frozen=True)
class FolderVersions:
    """The versions of a table in a folder without a catalog."""

    folder: Place
    merges = False

    @property
    def is_remote(self) -> bool:
        """True if the folder is in an object store, which may complete a request late."""
        return self.folder.filesystem is not None

    def current(self) -> Place:
        """Return the place of the version with the highest number."""
        folder = self.folder
        versions = _folder_versions(folder)
        in_catalog = [name for name in file_names(folder) if _CATALOG_NAME.fullmatch(name)]
        if not versions and in_catalog:
            raise FormatError(
                f"{folder.address}: a catalog knows which metadata.json of this table is current: "
                "pass the path of that file, or open the table with load_table"
            )
        if not versions:
            why = "not a table: v1.metadata.json does not exist"
            raise FileNotFoundError(errno.ENOENT, why, folder.address)
        newest = folder.below(versions[max(versions)])
        if in_catalog:
            _check_alone(newest, in_catalog)
        return newest

    def first(self, metadata: TableMetadata, folder: Place) -> Place:
        """Create version 1 of a new table in the folder.

        Raise FileExistsError if version 1 exists already, and ValueError if the file system cannot
        create files exclusively.
        """
        self.check_writable()
        place = folder.below("v1.metadata.json")
        create_once(place, metadata.encode())
        self._write_hint(1)
        return place

    def read(self, known: TableMetadata | None = None) -> CurrentVersion:
        """Return the version with the highest number; see `Versions`."""
        return read_current(self.current, known)

    def check_writable(self) -> None:
        """Raise ValueError if the file system would lose one of two simultaneous commits."""
        if self.folder.filesystem is None:
            return
        # PyArrow's file systems have no protocol, and no atomic creation.
        protocols = getattr(self.folder.filesystem, "protocol", ())
        if _EXCLUSIVE.isdisjoint({protocols} if isinstance(protocols, str) else protocols):
            raise ValueError(
                f"{self.folder.address}: this file system would lose one of two simultaneous "
                "commits: keep the table in a SQL catalog (load_table), or open it with fsspec's s3"
            )

    def check_free(self) -> None:
        """Check that a new table can be committed, with the errors of `check_writable`."""
        self.check_writable()

    def commit(self, base: Place, metadata: TableMetadata) -> tuple[Place, TableMetadata]:
        """Create the next version; of several writers one succeeds.

        Raises:
            CommitConflictError: The next version exists already.
            FormatError: No number follows that of `base`.
            ValueError: A catalog manages the versions, or the file system cannot tell two writers
                apart.
        """
        self.check_writable()
        if (name_match := _FOLDER_NAME.fullmatch(base.name)) is None:
            raise ValueError(
                f"{base.path}: a catalog manages the versions of this table: open the table with "
                "load_table"
            )
        number = int(name_match.group(1)) + 1
        place, data = base.beside(f"v{number}.metadata.json"), metadata.encode()
        if _FOLDER_NAME.fullmatch(place.name) is None:
            raise FormatError(
                f"{base.path}: no version can follow this number; if an attacker planted the file, "
                "remove it"
            )
        if self.current().name != base.name:
            raise _conflict(base)
        try:
            create_once(place, data)
        except FileExistsError:
            raise _conflict(base) from None
        self._check_still_last(base, place, metadata)
        self._write_hint(number)
        return place, metadata.named(place.path)

    def _check_still_last(self, base: Place, place: Place, metadata: TableMetadata) -> None:
        """Remove a version that was created after others had continued from, or purged, another.

        Its number was free again if another writer's file was removed since we looked. Writers log
        the version that they continue from; the logs of much later versions may have lost it. A
        purge removes `base` before the empty version that it had committed.

        Raises:
            CommitConflictError: Others had continued from another version, or purged the table.
            OSError: The outcome is unknown: the version that would show it was removed too.
        """
        number = version_number(place.name) or 0
        names = _folder_versions(self.folder)
        newer = sorted(later for later in names if later > number)
        if not newer and number - 1 in names:
            return
        if not newer:
            remove_new(place)
            raise _conflict(base)
        logged = (number, metadata.document.get("last-updated-ms"))
        versions = [read_metadata(self.folder.below(names[n])) for n in (newer[0], newer[-1])]
        log = {(version_number(name), ms) for version in versions for ms, name in version.log}
        if logged in log:
            return
        if any(number == entry for entry, _ in log):
            remove_new(place)
            raise _conflict(base)
        why = "others committed so fast that this commit may be lost"
        raise OSError(errno.ESTALE, why, place.address)

    def _write_hint(self, number: int) -> None:
        """Write the number to the version hint, as Java does; a failure of this is ignored."""
        with contextlib.suppress(OSError):
            write_hint(self.folder.below(HINT), number)


def write_hint(hint: Place, number: int) -> None:
    """Write `version-hint.text`; replace a symbolic link in its place rather than follow it."""
    if hint.filesystem is None and os.path.islink(hint.path):
        remove_new(hint)  # the link; the file that it leads to stays
    with open_sink_at(hint) as sink:
        sink.append(str(number).encode())


def read_metadata(
    place: Place, known: TableMetadata | None = None, lists: RepeatedLists | None = None
) -> TableMetadata:
    """Read a metadata.json, compressed or not.

    `known` is returned if it has this name and these bytes, whose parsing takes long. `lists` are
    those of `history_lists`, for one of many versions. Raise FormatError if the file is not a valid
    metadata.json, and LimitError if the file exceeds a size limit.
    """
    with open_source_at(place) as source:
        if source.size > MAX_METADATA:
            raise LimitError(f"{place.address}: more than {MAX_METADATA} bytes of table metadata")
        data = source.read_at(0, source.size)
    if data[:2] == b"\x1f\x8b":
        data = _decompress(data, place.path)
    if known is not None and known.name == place.path and known.is_of(data):
        return known
    return TableMetadata(data, place.path, lists)


def _decompress(data: bytes, name: str) -> bytes:
    limit = min(MAX_METADATA, ALWAYS_READ + MAX_RATIO * len(data))
    try:
        with gzip.open(io.BytesIO(data)) as file:
            plain = file.read(limit + 1)
    except (OSError, EOFError, zlib.error):
        raise FormatError(f"{name}: damaged gzip") from None
    if len(plain) > limit:
        raise LimitError(f"{name}: {len(data)} bytes of gzip decompress to more than {limit} bytes")
    values = sum(plain.count(sign) for sign in (b",", b"[", b"{"))
    if values > ALWAYS_PARSED + len(data):
        raise LimitError(f"{name}: gzip of more than {values} JSON values in {len(data)} bytes")
    return plain


def read_current(find: Callable[[], Place], known: TableMetadata | None = None) -> CurrentVersion:
    """Read the current version of a table; if it disappears meanwhile, read its successor.

    `find` returns the place of the current version, as `Versions.current`; for `known` see
    `read_metadata`. Raise FileNotFoundError if the version does not exist, and is still the current
    one, and ModcryptError or OSError if `read_metadata` or `find` fails.
    """
    place = find()
    while True:
        try:
            return CurrentVersion(place, read_metadata(place, known))
        except FileNotFoundError:  # another process has removed old versions
            missing, place = place, find()
            if place == missing:
                raise


_EXCLUSIVE = {"s3", "s3a", "memory"}
"""fsspec file systems that can create a file atomically only if it does not exist."""


def _create(place: Place, data: bytes) -> None:
    with open_sink_at(place, overwrite=False) as sink:
        sink.append(data)


def create_once(place: Place, data: bytes) -> None:
    """Create a file; handle errors after which the file may exist nevertheless.

    Networks lose answers. Stores and network file systems then repeat the request silently, and
    report that the file exists: it is the one that the first request created. Raise FileExistsError
    if another writer's file exists, and OSError if the file system reports an error, or it is
    unknown whose file exists.
    """
    try:
        _create(place, data)
    except OSError as error:
        try:
            with open_source_at(place) as source:
                stored = source.read_at(0, source.size)
        except OSError as unread:
            if not isinstance(error, FileExistsError):
                raise error from None
            raise OSError(
                errno.ESTALE, "the file may have been created, and cannot be read", place.path
            ) from unread
        if stored != data:
            raise


def _conflict(base: Place) -> CommitConflictError:
    return CommitConflictError(
        f"{base.path} is no longer the table's current version: another writer has committed"
    )


def check_newest(base: Place) -> None:
    """Check that a version which a catalog took over from a folder is the newest in the folder."""
    if (name_match := _FOLDER_NAME.fullmatch(base.name)) is None:
        return
    folder = Place(base.filesystem, posixpath.dirname(base.path))
    newest = max(_folder_versions(folder), default=0)
    if newest > int(name_match.group(1)):
        raise FormatError(
            f"{base.path}: the catalog names this version, but the folder of the table has newer "
            f"ones up to v{newest}.metadata.json: register that one in the catalog"
        )


def has_versions(table: Place) -> bool:
    """Return whether a table's folder has a metadata.json with any kind of name."""
    return any(METADATA.fullmatch(name) for name in file_names(table.below("metadata")))


def version_number(name: str) -> int | None:
    """Return the number in the name of a metadata.json, or None."""
    name_match = _FOLDER_NAME.fullmatch(name) or _CATALOG_NAME.fullmatch(name)
    return None if name_match is None else int(name_match.group(1))


def is_later(name: str, than: str) -> bool:
    """Return whether a metadata.json has the number of another one of its kind, or a later one."""
    for pattern in (_FOLDER_NAME, _CATALOG_NAME):
        first, second = pattern.fullmatch(name), pattern.fullmatch(than)
        if first is not None and second is not None:
            return int(first.group(1)) >= int(second.group(1))
    return False


def _folder_versions(folder: Place) -> dict[int, str]:
    """Return the counted versions in a folder by number; of two with one number, Java's choice."""
    names = sorted(file_names(folder), key=len, reverse=True)  # v1.gz.metadata.json comes first
    return {int(m.group(1)): m.string for name in names if (m := _FOLDER_NAME.fullmatch(name))}


def _check_alone(newest: Place, in_catalog: Sequence[str]) -> None:
    """Raise FormatError if a catalog has continued a folder's table beyond its last version.

    That is so if a metadata.json of the table that a catalog numbers (`in_catalog`) came after
    `newest`: its log names it, it has newer snapshots, or both came after the same version.
    """
    here = read_metadata(newest)
    for name in sorted(in_catalog, key=lambda name: (version_number(name), name), reverse=True):
        with contextlib.suppress(ModcryptError, FileNotFoundError):  # damaged, or removed meanwhile
            other = read_metadata(newest.beside(name))
            is_newer = other.last_sequence_number > here.last_sequence_number
            continues = any(newest.name == logged for _, logged in other.log)
            if other.uuid == here.uuid and (is_newer or continues or _is_fork(other, here)):
                break
    else:
        return
    raise FormatError(
        f"{newest.path}: a catalog has continued this table ({name}), so that this version is "
        "outdated: open the table with load_table. If no catalog has it any more, remove the "
        "catalog's metadata.json files"
    )


def _is_fork(other: TableMetadata, here: TableMetadata) -> bool:
    """Return whether a catalog's version forked from one that the folder's log names.

    The fork is newer than that version, and it is neither in the folder's log nor a copy of `here`.
    """
    log, when = here.log, other.document.get("last-updated-ms")
    shared = [ms for ms, name in log & other.log if _FOLDER_NAME.fullmatch(name)]
    known = {ms for ms, _ in log}
    is_after = bool(shared) and type(when) is int and when > max(shared) and when not in known
    return is_after and other.document != here.document


def file_names(folder: Place) -> list[str]:
    """Return the names in a folder, or none if it does not exist."""
    if folder.filesystem is None:
        try:
            return os.listdir(folder.path or ".")
        except (NotADirectoryError, FileNotFoundError):
            return []
    from pyarrow.fs import FileSelector

    from modcrypt.parquet.datasets.discovery import as_arrow

    selector = FileSelector(folder.path, allow_not_found=True)
    return [info.base_name for info in as_arrow(folder.filesystem).get_file_info(selector)]
