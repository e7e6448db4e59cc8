"""Drop a table from its catalog, and delete its files and its KEKs.

The purges of Spark and of REST servers open no encrypted manifests, and leave data files behind. As
in Iceberg's Java, the table is dropped first, so that no writer can add to it. Its files follow in
the order of `expire_history`, and the last metadata.json at the very end: until then it leads to
everything that is left, and a purge that was interrupted can be resumed with it.

Nothing in a metadata.json says whether a catalog still has the table. So a marker is written beside
it before the drop, and a purge is resumed only where there is one. Anyone who may write to the
folder can write one, too: the caller must also say that no catalog has the table.

A table in a folder has no entry in a catalog. Instead a version without snapshots is committed that
says that it was purged (`PURGED`): modcrypt commits nothing after it. Other writers may, and keep
their version.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import CommitConflictError, ModcryptError
from modcrypt.iceberg.format.deletion import HINT, is_marker, marker_name, remove_files, remove_new
from modcrypt.iceberg.format.table_metadata import PURGED
from modcrypt.iceberg.format.table_versions import file_names, is_later
from modcrypt.iceberg.read.table_version import metadata_files
from modcrypt.iceberg.rotate.expiry import Expired, Expiry
from modcrypt.iceberg.rotate.retention import Kept
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions, pointer_of
from modcrypt.iceberg.tables.catalogs import list_tables
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.report.json_fields import json_fields

_MARK = b"modcrypt iceberg purge drops this version from its catalog, and then deletes its files\n"
"""Contents of the marker."""


@dataclass(frozen=True, kw_only=True)
class Purged:
    """The result of `purge_table`: what was deleted, or in a dry run would be deleted.

    Attributes:
        deleted: The snapshots, files and KEKs, and what was kept or is left, as `expire_history`
            reports them.
        metadata_json: Path or URL of the last metadata.json. If the purge was interrupted, or
            something is left, `open_table` opens the table with it.
        master_key_id: Id of the table's master key, which stays in the key service.
    """

    deleted: Expired = field(repr=False)
    metadata_json: str
    master_key_id: str | None

    @property
    def dry_run(self) -> bool:
        """True for a dry run, which changes nothing."""
        return self.deleted.dry_run

    @property
    def left(self) -> tuple[str, ...]:
        """Locations of files, and ids of KEKs, that could not be deleted.

        So are versions that another program has committed to a table in a folder meanwhile.
        """
        return self.deleted.left

    def fields(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        deleted = {name: value for name, value in self.deleted.fields().items() if name != "kept"}
        return {**json_fields(self, without=("deleted",)), **deleted}


def purge_table(
    table: IcebergTable, *, unregistered: bool = False, dry_run: bool = False
) -> Purged:
    """Drop a table irreversibly, with its files and its KEKs in the key store.

    Deleted are the files that `expire_history` would delete if no snapshot were kept, and then the
    last metadata.json and the version hint. Seals, orphan files and files that a rule keeps stay;
    remove orphan files before. The master key stays in the key service: destroy it there if no
    other table or file uses it.

    Args:
        table: Any version of the table; the current version is purged.
        unregistered: Whether no catalog has the table any more, under any name; to resume an
            interrupted purge of a catalog's table, which `open_table` has opened by its last
            metadata.json. The purge has left a marker beside it, `NAME.metadata.json.purge`.
        dry_run: Whether to change nothing and only return what would be deleted.

    Raises:
        ValueError: The table's gc.enabled is not true, which means that other tables may share its
            files; or `unregistered`, and there is no marker, or the folder has a newer version.
        CommitConflictError: Another process committed, or dropped or renamed the table; nothing was
            deleted. For a table of a catalog, repeat the purge.
        ModcryptError, OSError: The files cannot be determined, or the table cannot be dropped;
            nothing was deleted.
    """
    before = table if unregistered else latest(table)
    if unregistered:
        _check_marked(before)
        _check_last(before)
    ends = not isinstance(before.versions, CatalogVersions)
    purge = Expiry(lambda metadata: Kept({}, frozenset()), None, ends=ends)
    purge.next_version(before)
    if dry_run:
        return _report(purge, before, dry_run=True)
    after = before if unregistered else _drop(before, purge)
    done = _report(purge, after)
    left = purge.delete(after) or _remove_last(after)
    return replace(done, deleted=replace(done.deleted, left=left))


def _report(purge: Expiry, table: IcebergTable, *, dry_run: bool = False) -> Purged:
    return Purged(
        deleted=purge.report(table, dry_run=dry_run),
        metadata_json=table.place.full_name,
        master_key_id=purge.base.master_key_id,
    )


def _drop(table: IcebergTable, purge: Expiry) -> IcebergTable:
    """Drop a table from its catalog, or commit an empty version; return the last version."""
    if not isinstance(table.versions, CatalogVersions):
        done = PURGED in table.metadata.properties
        return table if done else commit(table, purge.next_version, keep_versions=True)
    table.versions.check_writable()
    known = set(metadata_files(table))
    _drop_entry(table.versions, table.place)
    own = table.place.name
    newer = [name for name in metadata_files(table) if name not in known and is_later(name, own)]
    if newer:  # a REST catalog drops whatever version it has
        remove_new(_mark_of(table.place))
        raise CommitConflictError(
            f"{table.place.beside(newer[-1]).full_name}: another writer committed this version "
            "while the table was dropped from its catalog; nothing was deleted: register it in the "
            "catalog again, and repeat the purge"
        )
    return table


def _drop_entry(versions: CatalogVersions, last: Place) -> None:
    """Mark the last version, and drop the table; raise as `CatalogVersions.drop`."""
    # After a conflict the marker stays if the table is gone: this very request, repeated by a
    # gateway, may have dropped it. Only the caller can know whether it was renamed.
    location, mark = versions.location_of(last), _mark_of(last)
    with open_sink_at(mark) as sink:
        sink.append(_MARK)
    try:
        versions.drop(location)
    except CommitConflictError as error:
        if versions.exists():
            remove_new(mark)
            raise
        raise CommitConflictError(
            f"{last.full_name}: the table is gone from its catalog, but perhaps not by this "
            "request; nothing was deleted: if it was renamed, purge it under its new name; if no "
            "catalog has it, open this metadata.json with open_table and purge it with "
            "unregistered=True"
        ) from error
    except OSError:
        if versions.exists() or _is_named(versions, location):
            raise  # else only the answer was lost


def _is_named(versions: CatalogVersions, location: str) -> bool:
    """Return whether any table of the catalog has a location; True if that cannot be found out."""
    with contextlib.suppress(ModcryptError, ValueError, OSError):
        names = list_tables(versions.catalog, ())
        entries = (pointer_of(versions.catalog, name).find() for name in names)
        return any(entry is not None and entry.location == location for entry in entries)
    return True


def _mark_of(last: Place) -> Place:
    return last.beside(marker_name(last.name))


def _check_marked(table: IcebergTable) -> None:
    """Raise ValueError unless a purge has come as far as to drop this version of a table."""
    if isinstance(table.versions, CatalogVersions) and table.versions.exists():
        raise ValueError(
            f"{table.place.full_name}: the catalog has this table: purge it without unregistered"
        )
    mark = _mark_of(table.place)
    if mark.stamp() is None:
        raise ValueError(
            f"{mark.full_name}: this marker of an interrupted purge does not exist, so a catalog "
            "may have the table; nothing was deleted: if none has it, register it in one, and "
            "purge it there; a table in a folder is purged without unregistered"
        )


def _check_last(table: IcebergTable) -> None:
    own = table.place.name
    if newer := [name for name in metadata_files(table) if name != own and is_later(name, own)]:
        raise ValueError(
            f"{table.place.beside(newer[-1]).full_name}: the folder has this newer version; open "
            "the table with it, or remove it if it is from a commit that failed"
        )


def _remove_last(table: IcebergTable) -> tuple[str, ...]:
    """Remove the last metadata.json, version hint and markers; return what could not be removed."""
    # A version that a writer of another program has committed since is left with all it needs.
    left, own = remove_files([_named(table.place)]), table.place.name
    names = metadata_files(table)
    newer = [name for name in names if name != own and is_later(name, own)]
    left += [table.place.beside(name).full_name for name in newer]
    if not (left or names):
        left = remove_files([_named(table.place.beside(HINT))])
    if not left:
        left = remove_files(_named(mark) for mark in _stale_marks(table))
    return tuple(left)


def _stale_marks(table: IcebergTable) -> list[Place]:
    """Return the markers of this purge and of earlier ones, beside versions that are gone."""
    stays = set(map(marker_name, metadata_files(table)))
    names = file_names(Place(table.place.filesystem, posixpath.dirname(table.place.path)))
    return [table.place.beside(name) for name in names if is_marker(name) and name not in stays]


def _named(place: Place) -> tuple[str, Place]:
    return place.full_name, place
