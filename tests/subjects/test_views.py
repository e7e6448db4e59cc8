"""Views of files with cells show the values, to every reader of Parquet files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt import FileDecryptionProperties, Key
from modcrypt.errors import KeyNotFoundError, LimitError, TagMismatchError
from modcrypt.parquet.arrow import cell_values
from modcrypt.subjects import Subjects
from tests.support.sample_vault import SampleVault, make_rows

KEY = Key.generate(16)
ROWS = make_rows()


def write(path: Path, vault: SampleVault, rows: pa.Table = ROWS, **options: Any) -> Path:
    columns = ["name", "born", "address.*"]
    declared = Subjects(vault=vault, key="customer_id", columns=columns, dataset="d")
    modcrypt.write_table(rows, path, KEY, subjects=declared, **options)
    return path


@pytest.fixture
def vault() -> SampleVault:
    return SampleVault()


@pytest.fixture
def path(tmp_path: Path, vault: SampleVault) -> Path:
    return write(tmp_path / "people.parquet", vault, row_group_size=3)


def view(path: Path, vault: SampleVault, **options: Any) -> Any:
    return modcrypt.open_parquet(path, KEY, subjects=Subjects(vault=vault), **options)


def test_readers_see_the_values(path: Path, vault: SampleVault) -> None:
    with view(path, vault) as file:
        assert pq.read_table(file).equals(ROWS)
        parquet = pq.ParquetFile(file)
        assert parquet.schema_arrow.types == ROWS.schema.types
        assert [parquet.read_row_group(n).num_rows for n in (0, 1)] == [3, 1]
        assert pl.read_parquet(io.BytesIO(file.read_at(0, file.size)))["name"].to_list() == [
            "Ada", "Bob", "Ada", None,
        ]  # fmt: skip
        frame = pd.read_parquet(file, engine="pyarrow")
        assert frame["born"].astype(str).tolist()[:3] == ["1970-01-02", "1970-01-03", "1970-01-04"]
    with duckdb.connect() as database:
        import fsspec

        files = fsspec.filesystem(
            "modcrypt", decryption=FileDecryptionProperties(
                footer_key=KEY, subjects=Subjects(vault=vault)
            ), skip_instance_cache=True,
        )  # fmt: skip
        database.register_filesystem(files)
        query = f"select name, address.floor from 'modcrypt://{path}' where name = 'Ada'"
        assert database.execute(query).fetchall() == [("Ada", 0), ("Ada", 2)]
        rows = database.execute(f"select amount from 'modcrypt://{path}'").fetchall()
        assert rows == [(1.5,), (2.5,), (3.5,), (4.5,)]


@pytest.mark.parametrize(
    "columns",
    [
        ["name"],
        ["amount"],
        ["address.street", "tags"],
        ["customer_id", "born"],
        ["address", "name"],
    ],
)
def test_columns_are_chosen(path: Path, vault: SampleVault, columns: list[str]) -> None:
    wanted = modcrypt.read_table(path, KEY, columns=columns, subjects=Subjects(vault=vault))
    known = Subjects(vault=vault)
    with modcrypt.open_parquet(path, KEY, columns=columns, subjects=known) as file:
        found = pq.read_table(file)
    assert found.select(wanted.column_names).equals(wanted)
    cells = {name for name in columns if name in ("name", "born")}
    assert {name for name in known.decrypted if "." not in name} == cells


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True, "write_page_index": True, "compression": "zstd"},
        {"row_group_size": 1, "data_page_version": "2.0"},
        {"store_schema": False},
    ],
)
def test_forms_of_files(tmp_path: Path, vault: SampleVault, options: dict[str, Any]) -> None:
    path = write(tmp_path / "f.parquet", vault, **options)
    shown = options.get("store_schema", True)
    with view(path, vault) as file:
        table = pq.read_table(file)
        assert table.equals(ROWS) if shown else table["name"].type == pa.binary()


def test_types_come_back(tmp_path: Path, vault: SampleVault) -> None:
    inner = pa.struct([pa.field("n", pa.uint8(), nullable=False), ("plain", pa.int32())])
    fields = [
        pa.field("id", pa.string()),
        pa.field("s", inner, nullable=False),
        pa.field("d", pa.duration("s"), metadata={"unit": "s"}),
        pa.field("t", pa.large_string(), nullable=False),
        pa.field("f", pa.float16()),
        pa.field("b", pa.binary(3)),
        pa.field("w", pa.timestamp("us", "Europe/Oslo")),
    ]
    row = {"s": {"n": 1, "plain": 7}, "d": 5, "t": "x", "f": 1.5, "b": b"abc", "w": 9}
    rows = pa.Table.from_pylist(
        [{"id": "a", **row}, {"id": "b", **row, "d": None, "w": None}], pa.schema(fields)
    )
    known = Subjects(
        vault=vault, key="id", columns=["s.n", "d", "t", "f", "b", "w"], dataset="types"
    )
    path = tmp_path / "types.parquet"
    modcrypt.write_table(rows, path, KEY, subjects=known)
    with view(path, vault) as file:
        found = pq.read_table(file)
        assert found.to_pylist() == rows.to_pylist()
        assert found.schema.types[2:] == rows.schema.types[2:]
        assert found.schema.field("d").metadata == {b"unit": b"s"}
    vault.forget(b"a")
    with view(path, vault) as file:
        first, second = pq.read_table(file).to_pylist()
    assert first == dict.fromkeys(row) | {"id": "a", "s": {"n": None, "plain": 7}}
    assert second == rows.to_pylist()[1]


def test_statistics_are_those_of_the_values(path: Path, vault: SampleVault) -> None:
    with view(path, vault) as file:
        group = pq.ParquetFile(file).metadata.row_group(0)
        chunks = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
        assert chunks["name"].statistics.max == "Bob"
        assert chunks["amount"].statistics.max == 3.5
        found = pq.read_table(file, filters=[("name", "=", "Bob")])
    assert found["amount"].to_pylist() == [2.5]


@pytest.mark.parametrize("rows", [ROWS.slice(0, 0), ROWS.slice(3)])
def test_files_without_values(tmp_path: Path, vault: SampleVault, rows: pa.Table) -> None:
    path = write(tmp_path / "none.parquet", vault, rows)
    with view(path, vault) as file:
        assert pq.read_table(file).equals(rows)


def test_empty_row_groups_and_dots_in_names(tmp_path: Path, vault: SampleVault) -> None:
    rows = ROWS.rename_columns(["customer.id", "first.name", *ROWS.column_names[2:]])
    known = Subjects(vault=vault, key="customer.id", columns=["first.name"], dataset="d")
    path = tmp_path / "f.parquet"
    with modcrypt.ParquetWriter(path, rows.schema, KEY, subjects=known) as writer:
        for part in (rows.slice(0, 2), rows.slice(0, 0), rows.slice(2)):
            writer.write_table(part)
    with view(path, vault) as file:
        assert pq.read_table(file).equals(rows)


def test_files_without_cells_are_decrypted_as_they_are_read(
    tmp_path: Path, vault: SampleVault
) -> None:
    modcrypt.write_table(ROWS, tmp_path / "plain.parquet", KEY)
    with view(tmp_path / "plain.parquet", vault) as file:
        assert pq.read_table(file).equals(ROWS)
    assert not vault.calls


# --- erased subjects, keys and limits -------------------------------------------------------------


def test_erased_values_are_null_and_counted(path: Path, vault: SampleVault) -> None:
    vault.forget(b"1")
    known = Subjects(vault=vault)
    with modcrypt.open_parquet(path, KEY, subjects=known) as file:
        found = pq.read_table(file)
    assert found["name"].to_pylist() == [None, "Bob", None, None]
    assert found["address"].to_pylist()[0] == {"street": None, "city": None, "floor": None}
    assert found.select(["amount", "tags"]).equals(ROWS.select(["amount", "tags"]))
    assert (known.erased["name"], known.decrypted["name"]) == (2, 1)
    strict = Subjects(vault=vault, on_erased="raise")
    with pytest.raises(KeyNotFoundError, match="belong to erased subjects"):
        modcrypt.open_parquet(path, KEY, subjects=strict)


def test_another_vault_and_a_failing_one(path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="under keys of the subject vault"):
        view(path, SampleVault())

    def fail() -> Any:
        raise OSError("no route to the vault")

    with pytest.raises(OSError, match="no route"):
        modcrypt.open_parquet(path, KEY, subjects=Subjects(vault=fail))
    with modcrypt.open_parquet(
        path, KEY, columns=["amount"], subjects=Subjects(vault=fail)
    ) as file:
        assert pq.read_table(file).equals(ROWS.select(["amount"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.set_column(1, t.field("name"), t["name"].take([1, 0, 2, 3])),
        lambda t: t.set_column(1, t.field("name"), pc.struct_field(t["address"], "street")),
        lambda t: t.set_column(0, "customer_id", pa.array([2, 2, 1, 3])),
    ],
    ids=["rows", "columns", "subjects"],
)
def test_swapped_cells_are_errors(
    path: Path, vault: SampleVault, change: Callable[[pa.Table], pa.Table]
) -> None:
    cells = modcrypt.read_table(path, KEY)
    other = path.with_name("changed.parquet")
    modcrypt.write_table(change(cells), other, KEY)
    with pytest.raises(TagMismatchError, match="a cell of column"):
        view(other, vault)


def test_columns_without_keys(tmp_path: Path, vault: SampleVault) -> None:
    path, own = tmp_path / "own.parquet", Key.generate(16)
    encryption = modcrypt.FileEncryptionProperties(footer_key=KEY, column_keys={"name": own})
    declared = Subjects(vault=vault, key="customer_id", columns=["name", "born"], dataset="d")
    modcrypt.write_table(ROWS, path, encryption, subjects=declared)
    for how, shown in (("drop", [n for n in ROWS.column_names if n != "name"]), ("null", None)):
        properties = FileDecryptionProperties(footer_key=KEY, on_missing_key=how)  # type: ignore[arg-type]
        with modcrypt.open_parquet(path, properties, subjects=Subjects(vault=vault)) as file:
            found = pq.read_table(file)
        assert found["born"].equals(ROWS["born"])
        assert found.column_names == (shown or ROWS.column_names)
        assert shown or found["name"].null_count == 4


def test_a_limit_of_memory(path: Path, vault: SampleVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_values, "MAX_VALUES", 100)
    with pytest.raises(LimitError, match=r"more than 100; show fewer columns, or read"):
        view(path, vault)
    with view(path, vault, columns=["amount"]) as file:
        assert pq.read_table(file).num_rows == 4


def test_a_closed_view_reads_nothing(path: Path, vault: SampleVault) -> None:
    with view(path, vault) as file:
        file.read(10)
    with pytest.raises(ValueError, match="closed"):
        file.read_at(0, 10)
    with pytest.raises(ValueError, match="closed"):
        file.read_buffer(10)


def test_key_columns_with_other_keys_are_needed(tmp_path: Path, vault: SampleVault) -> None:
    path, own = tmp_path / "own.parquet", Key.generate(16)
    encryption = modcrypt.FileEncryptionProperties(footer_key=KEY, column_keys={"customer_id": own})
    declared = Subjects(vault=vault, key="customer_id", columns=["name"], dataset="d")
    modcrypt.write_table(ROWS, path, encryption, subjects=declared)
    properties = FileDecryptionProperties(footer_key=KEY, on_missing_key="drop")
    with pytest.raises(KeyNotFoundError, match="customer_id names the subjects of column name"):
        modcrypt.open_parquet(path, properties, subjects=Subjects(vault=vault))
