"""An existing table in plaintext as a new encrypted one, of format version 3.

    data files        Parquet sealed page by page, never decoded; Avro as AGS1
    delete files      rewritten: they name data files, which have other locations now
    manifests, lists  written anew; sequence numbers, snapshot ids and partitions are kept
    row ids           kept; rows that have none get them, as after an upgrade to version 3
    statistics        left out: Puffin files of statistics are not encrypted

The source is only read. The new table appears at the end, complete, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1

from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.locations import find_place
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import FolderVersions, newest_metadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.tables.table import Expectation, IcebergTable, opened, resolver_of
from modcrypt.iceberg.tables.table_copying import Contents, Copy
from modcrypt.iceberg.tables.table_creation import encryption_properties, new_place
from modcrypt.io.storage import Place

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyTable

    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools

__all__ = ["encrypt_table"]

_DROPPED = (
    "write.data.path", "write.metadata.path", "write.folder-storage.path",
    "write.object-storage.path", "write.object-storage.enabled", "write.location-provider.impl",
    "write.py-location-provider.impl", "py-io-impl", "format-version", "encryption.",
    "modcrypt.encryption.",
)  # fmt: skip
"""Properties of the source that say where its files are, how they get there, and under which keys;
or beginnings of them."""


def encrypt_table(
    source: PyTable | Any,
    where: Any,
    kms: KmsClient | KeyTools | str,
    *,
    master_key_id: str,
    history: bool = False,
    properties: Mapping[str, str] | None = None,
    key_length: int = 16,
    policy: KeyPolicy | None = None,
    catalog: Any = None,
    identifier: str | tuple[str, ...] | None = None,
    location: str | None = None,
    location_map: Mapping[str, Any] | None = None,
    key_store: KeyStore | None = None,
    filesystem: Any = None,
) -> IcebergTable:
    """Make an encrypted copy of a table that is in plaintext.

    It gets a uuid of its own. Commits to the source meanwhile are not in it.

    Args:
        source: of format version 1, 2 or 3: a table of pyiceberg; or the path or URL of a
            metadata.json, or of the folder of a table whose versions are counted.
        where, kms, master_key_id, key_length, policy, catalog, identifier, location, key_store,
            filesystem: as of `create_table`.
        history: whether all snapshots are taken, with branches, tags and the log; by default only
            the current one.
        properties: of the new table, besides those of the source and in their place.
        location_map: of the source, as of `open_table`.

    Raises:
        ValueError: the source is encrypted already, or an argument is none that can be taken.
        UnsupportedFormatError: it has files in ORC, which Iceberg does not encrypt, or snapshots
            without a manifest list (format version 1).
        FileExistsError: there is a table already where the new one is to be.
        ModcryptError: the source can't be read, or the key service refuses.
        OSError: from the file system.
    """
    resolver = resolver_of(kms, key_store)
    old = _opened(source, resolver, location_map, filesystem)
    if old.metadata.is_encrypted:
        raise ValueError(f"{old.place.path}: the table is encrypted already")
    old.metadata.check_members()
    place = new_place(where, catalog, identifier, location, filesystem)
    place.check_free()
    kept = {k: v for k, v in old.metadata.properties.items() if not k.startswith(_DROPPED)}
    told = encryption_properties({**kept, **(properties or {})}, master_key_id, key_length, policy)
    contents = Contents.of(old, history)
    metadata = _empty(old.metadata, place.location, told)
    copy = Copy(contents, place.staged(metadata, resolver))
    try:
        new = copy.filled()
    except BaseException:
        copy.remove()
        raise
    try:
        return place.publish(new, resolver)
    except FileExistsError:  # somebody else was faster
        copy.remove()
        raise
    except BaseException:
        with contextlib.suppress(Exception):  # the table may be there, or it can't be told
            place.check_free()
            copy.remove()
        raise


def _opened(
    source: Any, resolver: KeyResolver, location_map: Mapping[str, Any] | None, filesystem: Any
) -> IcebergTable:
    where = getattr(source, "metadata_location", source)
    place = find_place(where, filesystem)
    if not place.path.endswith((".json", ".json.gz")):
        place = newest_metadata(place)
    versions = FolderVersions(Place(place.filesystem, posixpath.dirname(place.path)))
    expected = Expectation(require_encrypted=False)
    return opened(lambda: place, versions, resolver, expected, location_map, filesystem)


def _empty(source: TableMetadata, location: str, properties: Mapping[str, str]) -> TableMetadata:
    """Give the metadata of the new table before it has snapshots."""
    document = dict(source.document)
    if source.format_version == 1:
        document |= _upgraded(source)
    for name in ("schema", "partition-spec", "encryption-keys", "partition-statistics"):
        document.pop(name, None)
    now = int(time.time() * 1000)
    document |= {
        "format-version": 3,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": source.last_sequence_number,
        "last-updated-ms": now,
        "properties": dict(properties),
        "current-snapshot-id": None,
        "next-row-id": int(document.get("next-row-id") or 0),
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    return TableMetadata(json.dumps(document).encode(), location)


_OF_VERSION_2 = (
    "schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id",
    "sort-orders", "default-sort-order-id",
)  # fmt: skip


def _upgraded(source: TableMetadata) -> dict[str, Any]:
    """Give the members that version 2 demands, and version 1 may lack, as pyiceberg makes them."""
    with as_format_errors(source.name):
        parsed = TableMetadataUtil.parse_raw(source.encode().decode())
    assert isinstance(parsed, TableMetadataV1)
    document = parsed.to_v2().model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: document[name] for name in _OF_VERSION_2}
