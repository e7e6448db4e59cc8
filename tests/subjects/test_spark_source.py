"""Values under keys of subjects in Spark's data source."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, NullType, StringType, StructField, StructType

import modcrypt
from modcrypt import Policy
from modcrypt.spark.source.data_source import ModcryptDataSource
from modcrypt.subjects import SubjectVault
from tests.support.sample_vault import POLICY, make_rows

TEXT = StringType()


@pytest.fixture
def options(vault: SubjectVault, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "policy.toml").write_text(POLICY)
    modcrypt.write_table(make_rows(), tmp_path / "a.parquet", Policy.load("policy.toml"))
    return {"path": str(tmp_path / "a.parquet"), "policy": str(tmp_path / "policy.toml")}


def read(options: dict[str, str]) -> pa.Table:
    """Read a table as the driver and the tasks of Spark do, each with its own copy."""
    source = ModcryptDataSource(options)
    reader: Any = source.reader(source.schema())
    batches: list[pa.RecordBatch] = []
    for pieces in reader.partitions():
        batches += pickle.loads(pickle.dumps(reader)).read(pieces)
    return pa.Table.from_batches(batches)


def test_the_source_decrypts_values(options: dict[str, str]) -> None:
    found = read(options)
    assert found.column("name").to_pylist() == ["Ada", "Bob", "Ada", None]
    assert found.column("address").to_pylist() == make_rows().column("address").to_pylist()
    assert read({**options, "columns": "name"}).to_pydict() == {"name": ["Ada", "Bob", "Ada", None]}


def test_filters_on_values_apply_after_decryption(options: dict[str, str]) -> None:
    found = read({**options, "filters": json.dumps([["name", "=", "Ada"], ["amount", ">", 2]])})
    assert found.column("amount").to_pylist() == [3.5]


def test_erased_subjects_and_other_keys(options: dict[str, str], vault: SubjectVault) -> None:
    vault.erase(vault.references([b"1"]), "R1")
    assert read(options).column("name").to_pylist() == [None, "Bob", None, None]
    del options["policy"]
    cells = read({**options, "kms": "file:lake.keyring#people"})
    assert cells.schema.field("name").type == pa.binary()
    values = read({**options, "kms": "file:lake.keyring#people", "subjects": "subjects.db"})
    assert values.column("name").to_pylist() == [None, "Bob", None, None]


def test_small_files_with_cells_of_binary_values_are_decrypted(
    options: dict[str, str], tmp_path: Path
) -> None:
    """Their cells have the type of the values, so that types do not tell them apart."""
    (tmp_path / "people").mkdir()
    rows = make_rows().drop(["tags", "born"])
    rows = rows.set_column(1, "name", rows.column("name").cast(pa.binary()))
    policy = Policy.load("policy.toml")
    for number in range(3):
        modcrypt.write_table(rows, tmp_path / f"people/{number}.parquet", policy)
    found = read({**options, "path": str(tmp_path / "people"), "columns": "customer_id,name"})
    assert found.column("name").to_pylist() == [b"Ada", b"Bob", b"Ada", None] * 3


@pytest.mark.parametrize(
    ("schema", "partition_by", "error"),
    [
        ({"name": TEXT, "address": TEXT}, "", "no column customer_id in the file"),
        ({"customer_id": TEXT, "name": TEXT}, "", "not have these columns: address"),
        ({"customer_id": TEXT, "name": TEXT, "address": TEXT}, "name", "these columns: name"),
        ({"customer_id": TEXT, "name": NullType(), "address": TEXT}, "", "name is of null, which"),
    ],
)
def test_the_driver_checks_the_columns(
    tools: Any, tmp_path: Path, schema: dict[str, DataType], partition_by: str, error: str
) -> None:
    """Before a job starts: neither key service nor vault is opened, and nothing is written."""
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "lake.keyring").unlink()
    options = {"policy": str(tmp_path / "policy.toml"), "path": str(tmp_path / "out")}
    fields = StructType([StructField(name, kind) for name, kind in schema.items()])
    source = ModcryptDataSource({**options, "partitionBy": partition_by})
    with pytest.raises(ValueError, match=error):
        source.writer(fields, overwrite=False)
    assert not (tmp_path / "out").exists()
