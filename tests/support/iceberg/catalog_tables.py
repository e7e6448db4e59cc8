"""Tables of a catalog, named so that other processes find them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from modcrypt.iceberg import IcebergTable, create_table, load_table, rotate_catalog
from tests.support.iceberg.sample_kms import MASTERS, SampleKms

SCHEMA = pa.schema([("id", pa.int64())])


@dataclass(frozen=True)
class CatalogTable:
    """A table of the catalog at a URI."""

    uri: str
    name: str

    @classmethod
    def make(cls, uri: str, schema: pa.Schema = SCHEMA, **options: Any) -> Self:
        """Make an encrypted table in a namespace of its own."""
        namespace = f"n{uuid.uuid4().hex}"
        made = cls(uri, f"{namespace}.orders")
        made.catalog.create_namespace(namespace)
        create_table(
            None, schema, SampleKms(), master_key_id="keyA", catalog=made.catalog,
            identifier=made.name, **options,
        )  # fmt: skip
        return made

    @property
    def catalog(self) -> Any:
        raise NotImplementedError

    def load(self, kms: Any = None, **options: Any) -> IcebergTable:
        return load_table(self.catalog, self.name, kms or SampleKms(), **options)

    def version(self) -> int:
        """The number of the current version."""
        return int(self.load(master_key_ids=list(MASTERS)).place.name[:5])

    def locks(self) -> list[Any]:
        return []


def check_rotation_of_namespace(table: CatalogTable) -> None:
    """Move all tables of a namespace to another master key; it has only the given table."""
    namespace = table.name.split(".")[0]
    for result in ("rotated", "current"):
        (done,) = rotate_catalog(
            table.catalog, SampleKms(), namespace=namespace, new_master_key_id="keyB"
        )
        assert (done.table, done.result, done.master_key_id) == (table.name, result, "keyB")
