"""Encrypt an existing plaintext table as a new table of format version 3.

    data files        Parquet encrypted page by page, without decoding; Avro as AGS1
    delete files      rewritten, because they name data files, whose locations change
    manifests, lists  rewritten; sequence numbers, snapshot ids and partitions are kept
    row ids           kept; rows without ids get them, as after an upgrade to version 3
    statistics        dropped: Puffin files of statistics are not encrypted

The source is only read. The new table appears complete at the end, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1

from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.table_metadata import EMPTY_HISTORY, TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.read.table_version import Expectation
from modcrypt.iceberg.tables.table import (
    IcebergTable,
    find_versions,
    open_located_table,
    resolver_of,
)
from modcrypt.iceberg.tables.table_copying import Contents, Copy
from modcrypt.iceberg.tables.table_creation import encryption_properties, new_place
from modcrypt.iceberg.write.commit import is_answered
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.kms.key_tools import KeyTools
from modcrypt.runtime.former_names import accept_former_names

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyTable

    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.kms.client import KmsClient

_DROPPED = (
    "write.data.path", "write.metadata.path", "write.folder-storage.path",
    "write.object-storage.path", "write.object-storage.enabled", "write.location-provider.impl",
    "write.py-location-provider.impl", "py-io-impl", "format-version", "encryption.",
    "modcrypt.encryption.",
)  # fmt: skip
"""Prefixes of source properties that are dropped: locations, file access and keys."""


@accept_former_names(where="destination")
def encrypt_table(
    source: PyTable | Any,
    destination: Any,
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
    """Create an encrypted copy of a plaintext table.

    The copy has its own UUID. It does not contain commits made to the source during the copy.

    Args:
        source: Table of format version 1, 2 or 3: a table of pyiceberg, or the path or URL of a
            metadata.json or of the folder of a table with numbered versions.
        where, kms, master_key_id, key_length, policy, catalog, identifier, location, key_store,
            filesystem: See `create_table`.
        history: Whether to copy all snapshots with branches, tags and the log; by default only the
            current snapshot is copied.
        properties: Properties of the new table; they extend and override those of the source.
        location_map: Location mapping of the source; see `open_table`.

    Raises:
        ValueError: The source is already encrypted, or an argument is invalid.
        UnsupportedFormatError: The source has ORC files, which Iceberg does not encrypt, or
            snapshots without a manifest list (format version 1).
        FileExistsError: The destination already has a table.
        ModcryptError: The source cannot be read, or the key service refuses.
        OSError: The file system failed.
    """
    resolver = resolver_of(kms, key_store)
    if isinstance(kms, KeyTools):
        kms.refuse_subjects("Encrypted copies of tables")
    read, versions = find_versions(getattr(source, "metadata_location", source), filesystem)
    expected = Expectation(require_encrypted=False)
    old = open_located_table(read, versions, resolver, expected, location_map, filesystem)
    if old.metadata.is_encrypted:
        raise ValueError(f"{old.place.address}: the table is already encrypted")
    old.metadata.check_members()
    place = new_place(destination, catalog, identifier, location, filesystem)
    place.check_free()
    inherited = {k: v for k, v in old.metadata.properties.items() if not k.startswith(_DROPPED)}
    all_properties = encryption_properties(
        {**inherited, **(properties or {})}, master_key_id, key_length, policy
    )
    resolver.masters.try_master_key(master_key_id, key_length)
    contents = Contents.of(old, history=history)
    metadata = _empty_metadata(old.metadata, place.location, all_properties)
    staged = place.stage(metadata, resolver)
    with NewFiles(staged.walk.locations) as files:
        new = Copy(contents, staged, files).write()
        files.offered = place.folder  # from here on an error may come after the publication
        try:
            return place.publish(new, resolver)
        except FileExistsError:  # another writer was faster
            files.offered = None
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):  # the table may exist, or its state is unknown
                if is_answered(error, place.folder, place.versions):
                    place.check_free()
                    files.offered = None
            raise


def _empty_metadata(
    source: TableMetadata, location: str, properties: Mapping[str, str]
) -> TableMetadata:
    document = dict(source.document)
    if source.format_version == 1:
        document |= _upgrade_members(source)
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
        "next-row-id": int(document.get("next-row-id") or 0),
        **EMPTY_HISTORY,
    }
    return TableMetadata(json.dumps(document).encode(), location)


_OF_VERSION_2 = (
    "schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id",
    "sort-orders", "default-sort-order-id",
)  # fmt: skip


def _upgrade_members(source: TableMetadata) -> dict[str, Any]:
    """Return members that version 2 requires and version 1 may lack, as pyiceberg makes them."""
    with as_format_errors(source.name):
        parsed = TableMetadataUtil.parse_raw(source.encode().decode())
    assert isinstance(parsed, TableMetadataV1)
    document = parsed.to_v2().model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: document[name] for name in _OF_VERSION_2}
