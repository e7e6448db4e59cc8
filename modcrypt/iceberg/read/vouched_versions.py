"""Find older versions of a table that its current version vouches for through metadata logs."""

from __future__ import annotations

import errno
import heapq
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from modcrypt.errors import KmsUnavailableError, ModcryptError
from modcrypt.iceberg.format.deletion import METADATA
from modcrypt.iceberg.format.locations import plain_location
from modcrypt.iceberg.format.table_metadata import TableMetadata, history_lists
from modcrypt.iceberg.format.table_versions import file_names, is_later, read_metadata
from modcrypt.iceberg.read.inventory import Failure
from modcrypt.io.places import Place

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion

_LASTING = frozenset({
    errno.EACCES, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM,
})  # fmt: skip
"""Permanent file system errors, which a location in a forged file can also cause."""


def check_lasting(error: Failure | None) -> None:
    """Raise a temporary error: files that cannot be read now would otherwise never be deleted."""
    passing = isinstance(error, OSError) and error.errno not in _LASTING
    if error is not None and (passing or isinstance(error, KmsUnavailableError)):
        raise error


def vouched_versions(
    table: TableVersion,
    read: Callable[[Place], TableMetadata] | None = None,
    start: Collection[tuple[int, str]] | None = None,
) -> Iterator[tuple[Place, TableMetadata]]:
    """Yield the version of a table and the older ones that logs vouch for, the newest first.

    `read` returns an older version; by default it reads the file. `start` has log entries of a
    vouched-for version to begin with; then the versions that the table's own log names are left
    out.

    A log contains names and times, which do not authenticate the content of these files. So files
    that only an older version names are deleted only in the table's own folder.
    """
    yield table.place, table.metadata
    read = read or partial(read_metadata, lists=history_lists())
    own, there = table.place.name, set(metadata_files(table))
    times: dict[str, int | None] = {own: None}  # of files already read: a log may repeat names
    seen = set(table.metadata.log)
    waiting = _older_versions(seen if start is None else set(start) - seen, there, own)
    seen |= set(start or ())
    heapq.heapify(waiting)
    while waiting:
        before, name = heapq.heappop(waiting)
        if times.get(name, -before) != -before:
            continue
        metadata = _read_version(table, name, read)
        when = None if metadata is None else metadata.document.get("last-updated-ms")
        times[name] = when if type(when) is int else None
        if metadata is not None and times[name] == -before:
            times[name] = None
            yield table.place.beside(name), metadata
            fresh = metadata.log - seen
            seen |= fresh
            for version in _older_versions(fresh, there, own):
                heapq.heappush(waiting, version)


def _older_versions(
    log: Iterable[tuple[int, str]], there: set[str], own: str
) -> list[tuple[int, str]]:
    """Return the logged versions that exist and may be older, as items of a heap."""
    return [(-ms, name) for ms, name in log if name in there and not is_later(name, own)]


def metadata_files(table: TableVersion) -> list[str]:
    """List the names of all metadata.json files in the folder of the table's own."""
    folder = Place(table.place.filesystem, posixpath.dirname(table.place.path))
    return sorted(name for name in file_names(folder) if METADATA.fullmatch(name))


def _read_version(
    table: TableVersion, name: str, read: Callable[[Place], TableMetadata]
) -> TableMetadata | None:
    """Read an older version; return None if it is missing, or of another table or location.

    A table keeps its location. A metadata.json with another one may present copies of another
    table's files, which decrypt under the same master key, as this table's newest state.
    """
    try:
        metadata = read(table.place.beside(name))
    except FileNotFoundError:
        return None
    except (ModcryptError, OSError) as error:
        check_lasting(error)
        return None
    return metadata if _identity(metadata) == _identity(table.metadata) else None


def _identity(metadata: TableMetadata) -> tuple[str, str]:
    return metadata.uuid, plain_location(metadata.location)
