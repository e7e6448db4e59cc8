"""The versions of a table in a REST catalog.

The server has the metadata, applies a commit's updates to it and writes each metadata.json. Readers
take the metadata from its answer, and read no metadata.json from the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog

from modcrypt.errors import IntegrityError, ModcryptError, UnsupportedFormatError, list_names
from modcrypt.iceberg.format.metadata_updates import (
    Update,
    find_updates,
    is_applied,
    keeps_removed,
    list_requirements,
    restore_keks,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import CurrentVersion, check_newest
from modcrypt.iceberg.tables import rest_requests
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions, is_opened
from modcrypt.iceberg.tables.rest_stores import (
    EXPIRY,
    expires,
    merge_settings,
    names_address,
    renew_credentials,
)

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.rest_requests import TableAnswer
    from modcrypt.io.places import Place


@dataclass(frozen=True)
class RestVersions(CatalogVersions):
    """The versions of a table in a REST catalog; see `Versions`."""

    merges = True

    def __post_init__(self) -> None:
        rest_requests.bound_requests(self.catalog)
        names = self.catalog.identifier_to_tuple(self.identifier)
        rest_requests.check_names(self.catalog, names)

    def current(self) -> Place:
        """Return the place of the metadata.json that the server names; see `CatalogVersions`."""
        return self.read().place

    def read(self, known: TableMetadata | None = None) -> CurrentVersion:
        """Return the current version, as the server has it."""
        answer = self._load()
        place = self._find_file(answer)
        with contextlib.suppress(OSError):  # reading needs no right to list the folder
            check_newest(place)
        return CurrentVersion(place, answer.metadata.named(place.path), answer.restrictions)

    def commit(self, base: Place, metadata: TableMetadata) -> tuple[Place, TableMetadata]:
        """Have the server apply the changes from version `base`; see `Versions`."""
        before = rest_requests.load(self.catalog, self.identifier)
        if before is None or self._find_file(before).path != base.path:  # credentials may differ
            raise self._conflict_error()
        check_newest(base)
        updates = find_updates(before.metadata, metadata)
        if not updates:  # for which the server would write no version either
            return base, before.metadata.named(base.path)
        requirements = list_requirements(before.metadata, updates)
        after = self._send_updates(before, updates, requirements)
        if after.location == before.location:
            raise OSError(
                f"{self._name}: the REST catalog has accepted a commit, and still has the version "
                "before: whether the table will change is unknown"
            )
        if _ignores(updates, after.metadata, metadata):
            raise UnsupportedFormatError(
                f"{self._name}: the REST catalog has ignored a part of the commit, as servers do "
                "that know no encryption keys: restore the table's previous version there"
            )
        after = self._restore(before, metadata, after, base)
        place = self._find_file(after._replace(config=before.config))
        return place, after.metadata.named(place.path)

    def _send_updates(
        self, before: TableAnswer, updates: Sequence[Update], requirements: Sequence[Update]
    ) -> TableAnswer:
        """Have the server apply updates; return the version that it has afterwards."""
        # Gateways repeat requests and lose, cut or cache answers. So neither a refusal nor an old
        # version in the answer proves that the server has not applied the updates.
        try:
            after = rest_requests.commit(self.catalog, self.identifier, requirements, updates)
        except (OSError, ModcryptError):
            found = rest_requests.look_up(self.catalog, self.identifier)
            changed = found is not None and found.location != before.location
            if found is None or not changed or not _has_all(updates, found.metadata):
                raise
            return found
        if _has_all(updates, after.metadata):
            return after
        return rest_requests.look_up(self.catalog, self.identifier) or after

    def _restore(
        self, before: TableAnswer, metadata: TableMetadata, after: TableAnswer, base: Place
    ) -> TableAnswer:
        """Add KEKs again that a commit has dropped and others need; return the version after it."""
        if not (lost := restore_keks(before.metadata, metadata, after.metadata)):
            return after
        of_table, *_ = list_requirements(after.metadata)
        # No error, which may say that nothing was committed, and no answer proves that they are.
        with contextlib.suppress(OSError, ModcryptError, ValueError):
            after = self._send_updates(after, lost, [of_table])
        if lost := restore_keks(before.metadata, metadata, after.metadata):
            ids = list_names(update["encryption-key"]["key-id"] for update in lost)
            raise IntegrityError(
                f"{self._name}: the commit has dropped keys that another writer has used at the "
                f"same time ({ids}), and they could not be added again: have repair_table restore "
                f"them from {base.address} before the table's history is expired"
            )
        return after

    def _load(self) -> TableAnswer:
        if (answer := rest_requests.load(self.catalog, self.identifier)) is None:
            raise self._missing_error()
        return answer

    def _find_file(self, answer: TableAnswer) -> Place:
        """Return the place of the metadata.json, in a store with the credentials of the answer."""
        filesystem = self.filesystem or self._open_store(answer)
        return replace(self, filesystem=filesystem)._find_place(answer.location)

    def _open_store(self, answer: TableAnswer) -> Any:
        """Return the file system that the catalog's settings and the server's describe; or None."""
        # The table's own properties are not asked: anyone who may write the table can set them.
        scheme, separator, _ = answer.location.partition("://")
        if not separator or scheme == "file" or not is_opened(answer.location):
            return None
        own, vended = _split_settings(self.catalog)

        def settings_of(current: TableAnswer) -> dict[str, Any]:
            return merge_settings(own, {**vended, **current.config}, self._name)

        if not (settings := settings_of(answer)):
            return None
        from pyiceberg.io.fsspec import FsspecFileIO

        filesystem = FsspecFileIO(settings).get_fs(scheme)
        if scheme.lower() in ("s3", "s3a", "s3n") and expires(answer.config):

            def renew() -> dict[str, Any]:
                newest = self._load()
                return {**settings_of(newest), EXPIRY: newest.config.get(EXPIRY, "")}

            renew_credentials(filesystem, {**settings, EXPIRY: answer.config[EXPIRY]}, renew)
        return filesystem


def _has_all(updates: Sequence[Update], metadata: TableMetadata) -> bool:
    return is_applied(updates, metadata) and not keeps_removed(updates, metadata)


def _ignores(updates: Sequence[Update], after: TableMetadata, wanted: TableMetadata) -> bool:
    """Return whether the server has ignored a part of the updates that lead to `wanted`."""
    # A removed KEK may be there again with a newer snapshot, whose commit carries it.
    known = {snapshot.id for snapshot in wanted.snapshots}
    is_alone = known.issuperset(snapshot.id for snapshot in after.snapshots)
    return not is_applied(updates, after) or (is_alone and keeps_removed(updates, after))


def _split_settings(catalog: RestCatalog) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the settings of the user's catalog, and those among them that the server makes."""
    # pyiceberg merges both when it opens a catalog; only `LimitedRestCatalog` keeps the former.
    if (own := getattr(catalog, "own_settings", None)) is not None:
        properties = catalog.properties.items()
        return own, {name: value for name, value in properties if own.get(name) != value}
    if not names_address(catalog.properties):
        return catalog.properties, {}
    served = rest_requests.load_settings(catalog).items()
    vended = {name: value for name, value in served if catalog.properties.get(name) == value}
    mine = catalog.properties.keys() - vended.keys()
    return {name: catalog.properties[name] for name in mine}, vended
