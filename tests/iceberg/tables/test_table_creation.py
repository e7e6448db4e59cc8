"""New tables: as Iceberg's Java makes them, and where there was none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg import KeyPolicy, create_table, load_table, open_table
from tests.support.cases import each_case
from tests.support.iceberg.by_hand import document
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.tables import small_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("place", pa.struct([("zip", pa.string()), ("lanes", pa.list_(pa.int32()))])),
    ]
)
AS_JAVA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "name", "required": False, "type": "string"},
        {"id": 3, "name": "place", "required": False, "type": {
            "type": "struct", "fields": [
                {"id": 4, "name": "zip", "required": False, "type": "string"},
                {"id": 5, "name": "lanes", "required": False, "type": {
                    "type": "list", "element-id": 6, "element": "int", "element-required": False,
                }},
            ],
        }},
    ],
}  # fmt: skip


UNKNOWN = PartitionSpec(PartitionField(99, 1000, IdentityTransform(), "a"))


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    made = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    made.create_namespace("shop")
    yield made
    made.close()


def test_the_metadata_is_as_java_writes_it(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    java.create(tmp_path / "java", AS_JAVA, properties={"encryption.data-key-length": "16"})
    create_table(tmp_path / "ours", SCHEMA, kms, master_key_id="keyA")
    javas, ours = document(tmp_path / "java"), document(tmp_path / "ours")
    own = ("table-uuid", "location", "last-updated-ms", "properties", "schemas")
    assert {k: v for k, v in ours.items() if k not in own} == {
        k: v for k, v in javas.items() if k not in own
    }
    assert ours.keys() == javas.keys()
    assert ours["schemas"][0]["fields"] == javas["schemas"][0]["fields"]
    assert ours["schemas"][0].keys() == javas["schemas"][0].keys()
    assert ours["location"] == str(tmp_path / "ours")
    assert ours["properties"] == {
        "encryption.key-id": "keyA", "encryption.data-key-length": "16"
    }  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "ours" / "metadata").iterdir())
    assert names == ["v1.metadata.json", "version-hint.text"]
    assert kms.calls == [("wrap", "keyA"), ("unwrap", "keyA")]  # on trial


def test_java_writes_to_a_new_table(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", SCHEMA, kms, master_key_id="keyA", key_length=32)
    assert java.read(table.place.path) == []
    row = {"id": 1, "name": "a", "place": {"zip": "01", "lanes": [1, 2]}}
    java.commit(table.place.path, {"do": "append", "rows": [row]})
    assert table.refreshed().scan().to_pylist() == [row]
    keys = java.keys(table.refreshed().place.path)
    assert {key["length"] for key in keys if "length" in key} == {32}


def test_a_new_table_has_no_rows(kms: SampleKms, tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", small_table().schema, kms, master_key_id="keyA")
    assert table.scan().num_rows == 0
    assert {column.num_chunks for column in table.scan().to_arrow().columns} == {1}
    assert table.scan().column_names == small_table().column_names
    assert open_table(tmp_path / "t", kms).snapshots().num_rows == 0
    assert repr(table) == (
        f"<IcebergTable: metadata: {tmp_path}/t/metadata/v1.metadata.json, snapshots: 0, "
        "master key: keyA>"
    )
    of_pyarrow: list[Any] = [[("id", ">", 5)], pc.field("id") > 5]
    for filters in of_pyarrow:
        with pytest.raises(ValueError, match="filters must be a text"):
            table.scan(filters=filters).to_arrow()


def test_a_schema_of_pyiceberg_gets_fresh_ids_and_its_spec_follows(
    kms: SampleKms, tmp_path: Path
) -> None:
    schema = Schema(
        NestedField(7, "a", LongType(), required=True), NestedField(9, "b", StringType())
    )
    spec = PartitionSpec(
        PartitionField(9, 1000, IdentityTransform(), "b"),
        PartitionField(7, 1001, BucketTransform(4), "a_bucket"),
    )
    table = create_table(tmp_path / "t", schema, kms, master_key_id="keyA", partition_spec=spec)
    found = table.metadata.document
    assert [field["id"] for field in found["schemas"][0]["fields"]] == [1, 2]
    assert [field["source-id"] for field in found["partition-specs"][0]["fields"]] == [2, 1]
    assert found["last-partition-id"] == 1001


def test_a_location_of_its_own(kms: SampleKms, tmp_path: Path) -> None:
    create_table(tmp_path / "t", SCHEMA, kms, master_key_id="keyA", location="s3://lake/t/")
    assert document(tmp_path / "t")["location"] == "s3://lake/t"
    assert open_table(tmp_path / "t", kms).append(rows()).scan().num_rows == 1


def rows() -> pa.Table:
    return pa.Table.from_pylist([{"id": 1, "name": "a", "place": None}], SCHEMA)


def test_properties_and_a_policy(kms: SampleKms, tmp_path: Path) -> None:
    policy = KeyPolicy(kek_per="day")
    table = create_table(
        tmp_path / "t", SCHEMA, kms, master_key_id="keyA", policy=policy,
        properties={"write.parquet.compression-codec": "zstd"},
    )  # fmt: skip
    assert KeyPolicy.of(table.metadata) == policy
    assert table.metadata.properties["write.parquet.compression-codec"] == "zstd"


def test_there_is_a_table_already(kms: SampleKms, tmp_path: Path, catalog: SqlCatalog) -> None:
    made = create_table(tmp_path / "t", SCHEMA, kms, master_key_id="keyA")
    before = made.place.path, Path(made.place.path).read_bytes()
    with pytest.raises(FileExistsError, match="this folder already has a table"):
        create_table(tmp_path / "t", SCHEMA, kms, master_key_id="keyB")
    Path(tmp_path / "t" / "metadata" / "v1.metadata.json").rename(
        tmp_path / "t" / "metadata" / "v8.metadata.json"
    )
    with pytest.raises(FileExistsError, match="this folder already has a table"):
        create_table(tmp_path / "t", SCHEMA, kms, master_key_id="keyB")
    assert (tmp_path / "t/metadata/v8.metadata.json").read_bytes() == before[1]
    with pytest.raises(FileExistsError, match="if an interrupted run left the metadata"):
        create_table(
            tmp_path / "t", SCHEMA, kms, master_key_id="keyA", catalog=catalog, identifier="shop.t"
        )
    catalog.create_table("shop.orders", SCHEMA)
    with pytest.raises(FileExistsError, match=r"the catalog already has a table shop\.orders"):
        create_table(
            tmp_path / "u", SCHEMA, kms, master_key_id="keyA", catalog=catalog,
            identifier="shop.orders",
        )  # fmt: skip
    assert not (tmp_path / "u").exists()


@each_case(
    ("arguments", "message"),
    [
        ({"master_key_id": ""}, "master_key_id is empty"),
        ({"key_length": 20}, "key_length must be 16, 24 or 32, not 20"),
        ({"properties": {"encryption.key-id": "x"}}, "encryption.key-id"),
        ({"properties": {"format-version": "2"}}, "format-version"),
        ({"properties": {"a": 1}}, "properties must map names to strings"),
        ({"identifier": "shop.orders"}, "catalog and identifier"),
        ({"schema": {"a": "long"}}, "schema must be of pyiceberg or PyArrow, not dict"),
        ({"schema": pa.schema([("a", pa.timestamp("us", "Europe/Rome"))])}, "unsupported type"),
        ({"partition_spec": UNKNOWN}, "99"),
        ({"destination": None}, "destination is missing"),
    ],
)
def test_arguments_that_cannot_be_taken(
    kms: SampleKms, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    given = {"destination": tmp_path / "t", "schema": SCHEMA, "master_key_id": "keyA", **arguments}
    with pytest.raises(ValueError, match=message):
        create_table(kms=kms, **given)
    assert list(tmp_path.iterdir()) == []


def test_in_a_catalog(kms: SampleKms, tmp_path: Path, catalog: SqlCatalog) -> None:
    made = create_table(
        None, SCHEMA, kms, master_key_id="keyA", catalog=catalog, identifier="shop.orders"
    )
    assert made.metadata.location == f"file://{tmp_path}/warehouse/shop/orders"
    table = catalog.load_table("shop.orders")
    assert table.metadata.format_version == 3
    assert table.metadata_location.removeprefix("file://") == made.place.path
    assert load_table(catalog, "shop.orders", kms).append(rows()).scan().num_rows == 1
    assert json.loads(Path(made.place.path).read_bytes())["snapshots"] == []


def test_in_a_catalog_elsewhere(kms: SampleKms, tmp_path: Path, catalog: SqlCatalog) -> None:
    made = create_table(
        tmp_path / "here", SCHEMA, kms, master_key_id="keyA", catalog=catalog,
        identifier=("shop", "orders"), location="wh:/orders",
    )  # fmt: skip
    made = made.append(rows()).append(rows())
    assert made.place.name.startswith("00002-")
    loaded = load_table(catalog, "shop.orders", kms, location_map={"wh:/orders": tmp_path / "here"})
    assert loaded.append(rows()).scan().num_rows == 3


def test_a_catalog_that_takes_none(kms: SampleKms, tmp_path: Path, catalog: SqlCatalog) -> None:
    with pytest.raises(ValueError, match="the catalog has no namespace sales"):
        create_table(
            None, SCHEMA, kms, master_key_id="keyA", catalog=catalog, identifier="sales.orders"
        )
    with pytest.raises(UnsupportedFormatError, match="cannot be changed"):
        create_table(
            tmp_path / "t", SCHEMA, kms, master_key_id="keyA", catalog=object(), identifier="a.b"
        )
    assert not (tmp_path / "t").exists()
    assert not (tmp_path / "warehouse").exists()
