"""Create encrypted tables, in a folder or registered in a catalog of pyiceberg."""

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

from modcrypt.iceberg.format.encrypted_files import make_folder
from modcrypt.iceberg.format.locations import Locations, find_place
from modcrypt.iceberg.format.table_metadata import KEY_ID, KEY_LENGTH, TableMetadata
from modcrypt.iceberg.format.table_versions import FolderVersions, has_versions
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.read.schema_projection import arrow_schema
from modcrypt.iceberg.read.table_version import Expectation
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.tables.table import IcebergTable, resolver_of
from modcrypt.iceberg.write.cell_columns import declare_cells, plan_cells
from modcrypt.iceberg.write.schema_fitting import as_value_errors
from modcrypt.io.places import Place
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.runtime.former_names import accept_former_names

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.parquet.crypto.properties import SubjectKeys


@accept_former_names(where="destination")
def create_table(
    destination: Any,
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
    subjects: SubjectKeys | None = None,
) -> IcebergTable:
    """Create an empty encrypted table of format version 3.

    The key service wraps a key on trial, so that a wrong `master_key_id` creates no table. The
    first append makes the first KEK.

    Args:
        destination: The table's folder, as a path, a URL, or a path in `filesystem`. With a
            catalog, None selects the folder in the catalog's warehouse.
        schema: Schema of pyiceberg or PyArrow; fields of a PyArrow schema get fresh ids from 1 on.
        kms: Client of the key service, or its URI as for `open_kms`.
        master_key_id: Id of the master key (MEK) that protects the table's keys.
        partition_spec: Partition spec with the field ids of `schema` as source ids. The fields of
            a PyArrow schema get the ids 1, 2 and so on, nested fields after all of their parents.
        properties: Properties of the table, for example `write.target-file-size-bytes`.
        key_length: Length of data keys and KEKs in bytes: 16, 24 or 32.
        policy: Number and place of the KEKs; by default as in Java: one KEK for the table, in its
            metadata.
        catalog: `SqlCatalog`, `HiveCatalog`, `GlueCatalog` or `RestCatalog` of pyiceberg; None for
            a table in a folder without a catalog.
        identifier: Identifier of the table in the catalog, for example `"shop.orders"`.
        location: Location of the folder in the table's metadata; by default its full path or URL.
        key_store: Store of KEKs outside of the table's metadata.
        filesystem: File system of pyarrow or fsspec.
        subjects: See `open_table`; a PyArrow schema has the types of the values, and the table
            those of their cells.

    Raises:
        ValueError: An argument is invalid.
        FileExistsError: A table exists in the folder, or in the catalog under this name.
        KeyRetrievalError: See `open_kms`; or the key service does not wrap under the master key, or
            its wrap does not open.
        OSError: The file system failed.
    """
    spec = UNPARTITIONED_PARTITION_SPEC if partition_spec is None else partition_spec
    all_properties = encryption_properties(properties or {}, master_key_id, key_length, policy)
    place = new_place(destination, catalog, identifier, location, filesystem)
    resolver = resolver_of(kms, key_store, subjects=subjects)
    arrow = arrow_schema(schema) if isinstance(schema, Schema) else schema
    cells = plan_cells(resolver.subjects, arrow) if isinstance(arrow, pa.Schema) else None
    rows = schema if isinstance(schema, pa.Schema) else None
    if cells is not None and rows is not None:
        schema = cells.schema
    with as_value_errors():
        fields = _with_ids(schema)
        all_properties |= {} if cells is None else declare_cells(cells, fields, rows)
        metadata = new_metadata(fields, spec, place.location, all_properties)
    place.check_free()
    resolver.masters.try_master_key(master_key_id, key_length)
    return place.publish(metadata, resolver)


@dataclass(frozen=True)
class NewPlace:
    """The place of a new table."""

    folder: Place
    location: str  # location of the folder in the table's metadata
    versions: FolderVersions | CatalogVersions

    def check_free(self) -> None:
        """Raise FileExistsError if the folder has a table, or the catalog one of this name.

        Raise ValueError as in `create_table`.
        """
        self.versions.check_free()
        if has_versions(self.folder):
            in_catalog = (
                ", but the catalog has none of this name; if an interrupted run left the "
                "metadata.json, remove that file"
            )
            raise FileExistsError(
                f"{self.folder.address}: this folder already has a table"
                f"{'' if isinstance(self.versions, FolderVersions) else in_catalog}"
            )

    def stage(self, metadata: TableMetadata, resolver: KeyResolver) -> IcebergTable:
        """Create the table's folder and return the table, so that its files can be written."""
        make_folder(self._metadata_folder.below("v1.metadata.json"))
        locations = Locations.of(None, self.location, self.folder)
        walk = Walk(metadata, locations, resolver)
        return IcebergTable(metadata, self._metadata_folder, walk, self.versions, Expectation())

    def publish(self, metadata: TableMetadata, resolver: KeyResolver) -> IcebergTable:
        """Publish the first version of the table: the last step of its creation.

        Raise FileExistsError and ValueError as in `create_table`.
        """
        make_folder(self._metadata_folder.below("v1.metadata.json"))
        place = self.versions.first(metadata, self._metadata_folder)
        # Do not read the file again: another process might have altered it.
        written = TableMetadata(metadata.encode(), place.path)
        return replace(self.stage(written, resolver), place=place)

    @property
    def _metadata_folder(self) -> Place:
        return self.folder.below("metadata")


def new_metadata(
    schema: Schema, spec: PartitionSpec, location: str, properties: Mapping[str, str]
) -> TableMetadata:
    """Return the metadata of an empty table, with the members that Java writes.

    Raise ValueError if the spec does not fit the schema.
    """
    empty = new_table_metadata(
        schema, spec, UNSORTED_SORT_ORDER, location, {**properties, "format-version": "3"}
    )
    document = empty.model_dump(mode="json", by_alias=True, exclude_none=True)
    for schema_document in document["schemas"]:
        if not schema_document["identifier-field-ids"]:
            del schema_document["identifier-field-ids"]
    document |= {"current-snapshot-id": None, "next-row-id": 0}
    first = ("format-version", "table-uuid", "location", "last-sequence-number")
    ordered = {name: document.pop(name) for name in first} | document
    return TableMetadata(json.dumps(ordered).encode(), location)


def _with_ids(schema: Schema | pa.Schema) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if not isinstance(schema, pa.Schema):
        raise ValueError(f"schema must be of pyiceberg or PyArrow, not {type(schema).__name__}")
    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema, 3))


def encryption_properties(
    given: Mapping[str, str], master_key_id: str, key_length: int, policy: KeyPolicy | None
) -> dict[str, str]:
    """Return the properties of a new table: the caller's and those of its encryption.

    Raise ValueError if a property or argument is invalid.
    """
    if not master_key_id:
        raise ValueError("master_key_id is empty; pass the id of a master key")
    if key_length not in KEY_LENGTHS:
        raise ValueError(f"key_length must be 16, 24 or 32, not {key_length}")
    own = {KEY_ID: master_key_id, KEY_LENGTH: str(key_length)}
    own |= {} if policy is None else policy.properties()
    if taken := sorted({*own, "format-version"} & given.keys()):
        raise ValueError(f"modcrypt sets these properties; remove them: {', '.join(taken)}")
    if not all(isinstance(value, str) for value in given.values()):
        raise ValueError("properties must map names to strings")
    return {**own, **given}


def new_place(
    where: Any, catalog: Any, identifier: str | tuple[str, ...] | None, location: str | None,
    filesystem: Any,
) -> NewPlace:  # fmt: skip
    """Return the place of a new table; arguments and errors as of `create_table`."""
    if (catalog is None) != (identifier is None):
        raise ValueError("catalog and identifier must be passed together")
    if catalog is not None:
        from modcrypt.iceberg.tables.catalogs import versions_of

        in_catalog = versions_of(catalog, identifier or ())
        if where is None:
            where = location = location or in_catalog.default_location()
    if where is None:
        raise ValueError(
            "destination is missing; pass the table's folder, or a catalog and identifier"
        )
    folder = find_place(where, filesystem)
    folder = Place(folder.filesystem, folder.path.rstrip("/") or "/")
    location = (location or folder.full_name).rstrip("/")
    if catalog is None:
        return NewPlace(folder, location, FolderVersions(folder.below("metadata")))
    in_catalog = replace(
        in_catalog, filesystem=folder.filesystem, location_map={location: folder.path}
    )
    return NewPlace(folder, location, in_catalog)
