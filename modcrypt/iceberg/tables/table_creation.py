"""New encrypted tables: in a folder of their own, or registered in a SQL catalog of pyiceberg."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from modcrypt.iceberg.format.locations import Locations, find_place
from modcrypt.iceberg.format.parquet_files import make_folder
from modcrypt.iceberg.format.table_metadata import KEY_ID, KEY_LENGTH, TableMetadata
from modcrypt.iceberg.format.table_versions import FolderVersions, has_versions
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.tables.table import Expectation, IcebergTable, resolver_of
from modcrypt.iceberg.write.schema_fitting import as_value_errors
from modcrypt.io.storage import Place
from modcrypt.keys import KEY_LENGTHS

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.tables.catalogs import CatalogVersions
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools

__all__ = ["NewPlace", "create_table", "encryption_properties", "new_metadata", "new_place"]


def create_table(
    where: Any,
    schema: Schema | pa.Schema,
    kms: KmsClient | KeyTools | str,
    *,
    master_key_id: str,
    partition_spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
    key_length: int = 16,
    policy: KeyPolicy | None = None,
    catalog: Any = None,
    identifier: str | tuple[str, ...] | None = None,
    location: str | None = None,
    key_store: KeyStore | None = None,
    filesystem: Any = None,
) -> IcebergTable:
    """Create an empty encrypted table, of format version 3.

    The key service is not asked yet: the first append makes the first KEK.

    Args:
        where: the table's folder, as a path, a URL, or a path in `filesystem`. With a catalog it
            may be None: then where the catalog's warehouse has it.
        schema: of pyiceberg, or of PyArrow; its fields get fresh ids, from 1 on.
        kms: client of the key service, or its URI, as for `open_kms`.
        master_key_id: of the master key (MEK) that the table's keys are to be under.
        partition_spec: its source ids are those of `schema`, or of a PyArrow schema those that its
            fields get: 1, 2 and so on, those of nested fields after all of their parents'.
        properties: of the table, as `write.target-file-size-bytes`.
        key_length: bytes of data keys and KEKs: 16, 24 or 32.
        policy: which KEKs there are, and where; by default as in Java: one for the table, in it.
        catalog: a `SqlCatalog` of pyiceberg; None for a table in a folder without one.
        identifier: of the table in the catalog, as `"shop.orders"`.
        location: what the table's metadata is to call its folder; by default its full path or URL.
        key_store: where KEKs are kept besides the table's metadata.
        filesystem: of pyarrow or fsspec.

    Raises:
        ValueError: an argument is none that can be taken.
        FileExistsError: there is a table in the folder, or in the catalog under this name.
        KeyRetrievalError: as `open_kms`.
        OSError: from the file system.
    """
    spec = UNPARTITIONED_PARTITION_SPEC if partition_spec is None else partition_spec
    told = encryption_properties(properties or {}, master_key_id, key_length, policy)
    place = new_place(where, catalog, identifier, location, filesystem)
    with as_value_errors():
        metadata = new_metadata(_with_ids(schema), spec, place.location, told)
    place.check_free()
    return place.publish(metadata, resolver_of(kms, key_store))


@dataclass(frozen=True)
class NewPlace:
    """Where a new table is to be.

    Attributes:
        folder: of the table.
        location: what the table's metadata calls it.
        versions: that will know its versions.
    """

    folder: Place
    location: str
    versions: FolderVersions | CatalogVersions

    def check_free(self) -> None:
        """Check that no table is there, nor in the catalog under its name.

        Raises:
            FileExistsError: one is.
            ValueError, OSError: as `create_table`.
        """
        found = f"{self.folder.path}: there is a table in this folder"
        if isinstance(self.versions, FolderVersions):
            if has_versions(self.folder):
                raise FileExistsError(found)
            self.versions.check_exclusive()
            return
        self.versions.check_free()
        if has_versions(self.folder):
            raise FileExistsError(
                f"{found}, which the catalog does not have under this name: if an interrupted run "
                "left its metadata.json, remove that"
            )

    def staged(self, metadata: TableMetadata, resolver: KeyResolver) -> IcebergTable:
        """Make the table's folder, and give the table, so that files can be written for it."""
        make_folder(self._metadata_folder.below("v1.metadata.json"))
        locations = Locations.of(None, self.location, self.folder)
        walk = Walk(metadata, locations, resolver)
        return IcebergTable(metadata, self._metadata_folder, walk, self.versions, Expectation())

    def publish(self, metadata: TableMetadata, resolver: KeyResolver) -> IcebergTable:
        """Put the first version of the table in its place: the last step of making one.

        Raises:
            FileExistsError, ValueError, OSError: as `create_table`.
        """
        make_folder(self._metadata_folder.below("v1.metadata.json"))
        if isinstance(self.versions, FolderVersions):
            place = self.versions.first(metadata)
        else:
            place = self.versions.first(metadata, self._metadata_folder)
        # The file is not read again: others might have altered it already.
        written = TableMetadata(metadata.encode(), place.path)
        return replace(self.staged(written, resolver), place=place)

    @property
    def _metadata_folder(self) -> Place:
        return self.folder.below("metadata")


def new_metadata(
    schema: Schema, spec: PartitionSpec, location: str, properties: Mapping[str, str]
) -> TableMetadata:
    """Give the metadata of an empty table, with the members that Java writes.

    Raises:
        ValueError: the spec does not fit the schema.
    """
    made = new_table_metadata(
        schema, spec, UNSORTED_SORT_ORDER, location, {**properties, "format-version": "3"}
    )
    document = made.model_dump(mode="json", by_alias=True, exclude_none=True)
    for one in document["schemas"]:
        if not one["identifier-field-ids"]:
            del one["identifier-field-ids"]
    document |= {"current-snapshot-id": None, "next-row-id": 0}
    first = ("format-version", "table-uuid", "location", "last-sequence-number")
    ordered = {name: document.pop(name) for name in first} | document
    return TableMetadata(json.dumps(ordered).encode(), location)


def _with_ids(schema: Schema | pa.Schema) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if not isinstance(schema, pa.Schema):
        raise ValueError(f"a schema is pyiceberg's or PyArrow's, not {type(schema).__name__}")
    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema, 3))


def encryption_properties(
    given: Mapping[str, str], master_key_id: str, key_length: int, policy: KeyPolicy | None
) -> dict[str, str]:
    """Give the properties of a new table: the caller's, and those that say how it is encrypted.

    Raises:
        ValueError: one of them can't be taken.
    """
    if not master_key_id:
        raise ValueError("master_key_id is empty")
    if key_length not in KEY_LENGTHS:
        raise ValueError(f"key_length is 16, 24 or 32, not {key_length}")
    own = {KEY_ID: master_key_id, KEY_LENGTH: str(key_length)}
    own |= {} if policy is None else policy.properties()
    taken = sorted({*own, "format-version"} & given.keys())
    if taken:
        raise ValueError(f"not a property of the caller's: {', '.join(taken)}")
    if not all(isinstance(value, str) for value in given.values()):
        raise ValueError("properties are texts by name")
    return {**own, **given}


def new_place(
    where: Any,
    catalog: Any,
    identifier: str | tuple[str, ...] | None,
    location: str | None,
    filesystem: Any,
) -> NewPlace:
    """Find where a new table is to be; arguments and errors as of `create_table`."""
    if (catalog is None) != (identifier is None):
        raise ValueError("a catalog and the identifier of the table in it go together")
    if catalog is not None:
        from modcrypt.iceberg.tables.catalogs import CatalogVersions

        in_catalog = CatalogVersions(catalog, identifier or ())
        if where is None:
            where = location = location or in_catalog.default_location()
    if where is None:
        raise ValueError("where the table is to be is not said")
    folder = find_place(where, filesystem)
    folder = Place(folder.filesystem, folder.path.rstrip("/") or "/")
    location = (location or folder.full_name).rstrip("/")
    if catalog is None:
        return NewPlace(folder, location, FolderVersions(folder.below("metadata")))
    in_catalog = replace(
        in_catalog, filesystem=folder.filesystem, location_map={location: folder.path}
    )
    return NewPlace(folder, location, in_catalog)
