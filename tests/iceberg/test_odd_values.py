"""Values that do not equal themselves, equal others, have no bound, or must not get about."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, create_table
from tests.iceberg.builder import Builder, arrow, field, struct
from tests.iceberg.conftest import SampleKms
from tests.iceberg.test_scan import ids, opened, position_deletes, spec


def made(folder: Path, kms: SampleKms, *columns: pa.Table) -> IcebergTable:
    """Make a table of the columns; each Arrow table is a commit, and so a file."""
    table = create_table(folder / "t", columns[0].schema, kms, master_key_id="keyA")
    for one in columns:
        table = table.append(one)
    return table


def test_position_deletes_by_partition_apply_where_that_is_nan(tmp_path: Path) -> None:
    schema = struct(field(1, "id", "long"), field(2, "part", "double"))
    avro = [{"name": "part", "type": "double", "field-id": 1000}]
    builder = Builder(tmp_path, schema, spec=spec("identity", 2), partition=avro)
    rows = pa.table(
        {"id": [1, 2], "part": [float("nan")] * 2},
        schema=arrow([(1, "id", pa.int64()), (2, "part", pa.float64())]),
    )
    nan = {"part": float("nan")}
    data = builder.parquet("a.parquet", rows, partition=nan)
    deletes = position_deletes(builder, "d", [(data["file_path"], 0)], "parquet", partition=nan)
    builder.snapshot([builder.manifest([data]), builder.manifest([deletes], content=1)])
    assert ids(opened(builder).scan()) == [2]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_both_zeros_are_in_a_set_with_one_of_them(
    tmp_path: Path, kms: SampleKms, zero: float
) -> None:
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    values = [0.0, -0.0, 1.5, None, float("nan"), 2.5]
    both = pa.table({"id": range(6), "f": values}, schema=schema)
    table = made(tmp_path, kms, both, both.slice(0, 1), both.slice(1, 1))

    def found(expression: str) -> list[int]:
        return sorted(table.scan(columns=["id"], filters=expression)["id"].to_pylist())

    assert found(f"f in ({zero}, 1.5)") == [0, 0, 1, 1, 2]
    assert found(f"f not in ({zero}, 1.5)") == [3, 4, 5]
    assert found(f"f not in ({zero}, 1.5, 2.5)") == [3, 4]


def test_a_text_is_cut_before_what_no_text_follows(tmp_path: Path, kms: SampleKms) -> None:
    """The upper bound of a text that is cut has its last character counted up: to a surrogate."""
    texts = ["a" * 15 + "\ud7ff" + "b", "a" * 15 + "\U0010ffff" * 2, "a" * 16 + "b"]
    schema = pa.schema([("s", pa.string())])
    for number, text in enumerate(texts):
        table = made(tmp_path / str(number), kms, pa.table({"s": [text]}, schema=schema))
        for expression in (f"s >= '{text}'", f"s = '{text}'", f"s like '{text[:16]}%'"):
            assert table.scan(filters=expression)["s"].to_pylist() == [text]


def test_rows_of_manifests_are_not_pickled(tmp_path: Path, kms: SampleKms) -> None:
    """They hold the keys of files in the clear."""
    table = made(tmp_path, kms, pa.table({"id": [1]}))
    current = table.metadata.current
    assert current is not None
    (manifest,) = table.walk.manifests(current)
    for one in (manifest, *table.walk.entries(manifest)):
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(one)
