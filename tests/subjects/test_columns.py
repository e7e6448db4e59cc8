"""Columns whose values are encrypted one by one: written, and read with and without the vault."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt import Key
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    PlaintextError,
    TagMismatchError,
    UnsupportedFormatError,
)
from modcrypt.kms.key_tools import KeyTools
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.subjects import Subjects
from modcrypt.subjects.cells import parse_cell_fields
from modcrypt.subjects.declaration import find_rows
from modcrypt.subjects.vault import create_vault
from tests.support.sample_vault import SampleVault, make_rows

KEY = Key.generate(16)


def subjects(vault: Any, **more: Any) -> Subjects:
    columns = ["name", "born", "address.*"]
    return Subjects(
        vault=vault, **{"key": "customer_id", "columns": columns, "dataset": "d", **more}
    )


@pytest.fixture
def vault() -> SampleVault:
    return SampleVault()


@pytest.fixture
def path(tmp_path: Path, vault: SampleVault) -> Path:
    where = tmp_path / "people.parquet"
    modcrypt.write_table(make_rows(), where, KEY, subjects=subjects(vault))
    return where


def read(path: Path, vault: SampleVault | None, **options: Any) -> pa.Table:
    known = None if vault is None else Subjects(vault=vault)
    return modcrypt.read_table(path, KEY, subjects=known, **options)


def test_the_rows_are_read_as_they_were_written(path: Path, vault: SampleVault) -> None:
    plain = path.with_name("plain.parquet")
    modcrypt.write_table(make_rows(), plain, KEY)
    wanted = modcrypt.read_table(plain, KEY)
    assert read(path, vault).equals(wanted, check_metadata=True)
    with ParquetFile(path, KEY, subjects=Subjects(vault=vault)) as file:
        assert file.schema_arrow.equals(wanted.schema, check_metadata=True)
        assert pa.table(file).equals(make_rows())
        assert file.cell_names == {"name", "born", "address"}


@pytest.mark.parametrize(
    "columns",
    [["name"], ["amount", "name"], ["address.street"], ["name", "customer_id"], ["amount"], []],
)
def test_the_key_column_is_read_when_it_is_needed(
    path: Path, vault: SampleVault, columns: list[str]
) -> None:
    plain = path.with_name("plain.parquet")
    modcrypt.write_table(make_rows(), plain, KEY)
    wanted = modcrypt.read_table(plain, KEY, columns=columns)
    assert read(path, vault, columns=columns).equals(wanted)
    batches = modcrypt.iter_batches(
        path, KEY, columns=columns, subjects=Subjects(vault=vault), batch_size=3
    )
    assert [batch.num_rows for batch in batches] == [3, 1]


def test_values_are_binary_without_the_vault(path: Path) -> None:
    table = read(path, None)
    assert table.schema.field("name").type == pa.binary()
    assert table.column("amount").equals(make_rows().column("amount"))
    cells = table.column("name").drop_null().to_pylist()
    assert [len(cell) for cell in cells] == [28 + 3] * 3
    assert len(set(cells)) == 3  # equal values of one subject do not look equal


def test_other_readers_read_the_other_columns(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "decrypted.parquet"
    modcrypt.decrypt_parquet(path, plain, KEY)
    amounts = make_rows().column("amount").to_pylist()
    assert pq.read_table(plain).column("amount").to_pylist() == amounts
    assert pl.read_parquet(plain)["amount"].to_list() == amounts
    with duckdb.connect() as database:
        found = database.execute(f"select amount, name from '{plain}'").fetchall()
    assert [row[0] for row in found] == amounts
    assert all(isinstance(row[1], bytes) for row in found[:3])
    with modcrypt.open_parquet(path, KEY) as view:  # a view of bytes shows cells
        assert pq.read_table(view).schema.field("name").type == pa.binary()


def test_cells_have_neither_statistics_nor_dictionaries(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "decrypted.parquet"
    modcrypt.decrypt_parquet(path, plain, KEY)
    row_group = pq.ParquetFile(plain).metadata.row_group(0)
    for number in range(row_group.num_columns):
        chunk = row_group.column(number)
        is_cell = chunk.path_in_schema.startswith(("name", "born", "address"))
        assert chunk.is_stats_set != is_cell, chunk.path_in_schema
        assert chunk.has_dictionary_page != is_cell, chunk.path_in_schema


def test_values_of_erased_subjects_are_null_and_counted(
    path: Path, vault: SampleVault, caplog: pytest.LogCaptureFixture
) -> None:
    vault.forget(b"1")
    known = Subjects(vault=vault)
    with caplog.at_level(logging.INFO, "modcrypt"):
        table = modcrypt.read_table(path, KEY, subjects=known)
    assert table.column("name").to_pylist() == [None, "Bob", None, None]
    assert table.column("born").null_count == 3
    assert table.column("amount").equals(make_rows().column("amount"))
    assert known.erased["name"] == 2
    assert "2 values of column name are erased" in caplog.text
    with pytest.raises(KeyNotFoundError, match="erased"):
        modcrypt.read_table(path, KEY, subjects=Subjects(vault=vault, on_erased="raise"))


def test_an_unknown_subject_is_an_error(path: Path, vault: SampleVault) -> None:
    vault._known = {}
    vault._data_keys.clear()
    with pytest.raises(KeyNotFoundError, match="the vault does not know 3 subjects"):
        read(path, vault)


@pytest.mark.parametrize("erased", [(), (b"1", b"2", b"3")])
def test_another_vault_decides_about_no_values(
    path: Path, vault: SampleVault, tools: KeyTools, erased: tuple[bytes, ...]
) -> None:
    """It may have erased people with the same ids; `prove` would take its word for it."""
    other = SampleVault()
    other.forget(*erased)
    with pytest.raises(KeyNotFoundError, match=f"vault {vault.id}, and this is {other.id}"):
        read(path, other)
    with pytest.raises(KeyNotFoundError, match="open that one"):
        list(find_rows([str(path)], KEY, tools, Subjects(vault=other), b"1"))


def test_the_earliest_files_name_no_vault(path: Path, vault: SampleVault) -> None:
    early = rewrite(path, lambda table: note(table, f'"vault": "{vault.id}", '.encode(), b""))
    assert read(early, vault).equals(make_rows())
    other = SampleVault()
    other.forget(b"1", b"2", b"3")
    assert read(early, other).column("name").null_count == 4


def test_keys_are_looked_up_once_for_each_subject(path: Path, vault: SampleVault) -> None:
    vault._known = {}
    vault.calls = vault.asked = 0
    read(path, vault)
    assert (vault.calls, vault.asked) == (1, 3)


# --- attacks -------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Return another file, with cells that a holder of the file's key has changed."""
    other = path.with_name("changed.parquet")
    modcrypt.write_table(change(read(path, None)), other, KEY)
    return other


def set_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(name), values)


def flip(table: pa.Table) -> pa.Table:
    first, *others = table.column("name").to_pylist()
    return set_column(table, "name", pa.array([first[:-1] + bytes([first[-1] ^ 1]), *others]))


def note(table: pa.Table, old: bytes, new: bytes) -> pa.Table:
    fields = [
        field.with_metadata({k: v.replace(old, new) for k, v in (field.metadata or {}).items()})
        for field in table.schema
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: set_column(t, "name", t.column("name").take([1, 0, 2, 3])),
        lambda t: set_column(t, "customer_id", pa.array([2, 2, 1, 3])),
        lambda t: set_column(
            t, "name", pc.struct_field(t.column("address"), "street").combine_chunks()
        ),
        lambda t: set_column(t, "name", pa.array([b"", b"x", None, None], pa.binary())),
        lambda t: note(t, b'"dataset": "d"', b'"dataset": "e"'),
        flip,
    ],
    ids=["rows", "subjects", "columns", "short", "datasets", "bits"],
)
def test_moved_and_altered_cells_are_errors(
    path: Path, vault: SampleVault, change: Callable[[pa.Table], pa.Table]
) -> None:
    with pytest.raises(TagMismatchError, match="a cell of column"):
        read(rewrite(path, change), vault)


def test_a_cell_without_a_subject_is_an_error(path: Path, vault: SampleVault) -> None:
    ids = pa.array([None, 2, 1, 3], pa.int64())
    with pytest.raises(modcrypt.errors.FormatError, match="without a subject"):
        read(rewrite(path, lambda t: set_column(t, "customer_id", ids)), vault)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b'"version": 1', b'"version": 2', "cells of version 2"),
        (b'"columns": [["name"]]', b'"columns": [["amount"]]', "metadata of its cells is damaged"),
        (b'"columns"', b'"rows"', "damaged"),
        (b'"field": "', b'"field": "?', "damaged"),
        (b'"key": "customer_id"', b'"key": "nobody"', "nobody"),
        (b'"key": "customer_id"', b'"key": "address.street"', "address.street"),
        (b'"key": "customer_id"', b'"key": "tags"', "names no subjects"),
        (b'"key": "customer_id"', b'"key": "name"', "would be cells, too"),
        (b'"dataset": "d"', b'"dataset": "\\ud800"', "damaged"),
    ],
)
def test_damaged_metadata_is_an_error(
    path: Path, vault: SampleVault, tools: KeyTools, old: bytes, new: bytes, error: str
) -> None:
    changed = rewrite(path, lambda table: note(table, old, new))
    for columns in (None, ["name"]):
        with pytest.raises(modcrypt.errors.ModcryptError, match=error):
            read(changed, vault, columns=columns)
    if b"dataset" not in old:
        with pytest.raises(modcrypt.errors.ModcryptError, match=error):
            list(find_rows([str(changed)], KEY, tools, Subjects(vault=vault), b"1"))


@pytest.mark.parametrize("ids", [["", "2", "1", "3"], ["1" * 70_000, "2", "1", "3"]])
def test_a_file_with_impossible_subjects_is_an_error(
    path: Path, vault: SampleVault, tools: KeyTools, ids: list[str]
) -> None:
    with closing(create_vault("subjects.db", tools, "people")) as real:
        cells = note(read(path, None), vault.id.encode(), real.id.encode())
        number = cells.schema.get_field_index("customer_id")
        modcrypt.write_table(cells.set_column(number, "customer_id", pa.array(ids)), path, KEY)
        with pytest.raises(FormatError, match="subject_key: a subject has 1 to 65536 bytes"):
            modcrypt.read_table(path, KEY, subjects=Subjects(vault=real))
        rows = make_rows().set_column(0, "customer_id", pa.array(ids))
        with pytest.raises(ValueError, match=r"subject_key: .* has null there"):
            modcrypt.write_table(rows, path, KEY, subjects=subjects(real))


def test_small_dictionaries_of_many_chunks(tmp_path: Path, vault: SampleVault) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    chunks = [pa.array([f"{part} {n}" for n in range(100)], kind) for part in "ab"]
    rows = pa.table({"id": range(200), "name": pa.chunked_array(chunks)})
    known = Subjects(vault=vault, key="id", columns=["name"])
    modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)
    assert read(tmp_path / "a", vault).to_pylist() == rows.to_pylist()


def test_required_columns_are_read_as_optional(tmp_path: Path, vault: SampleVault) -> None:
    """Values of erased subjects are null, whatever the rows that were written could have."""
    address = pa.struct([pa.field("city", pa.string(), False), pa.field("no", pa.int8(), False)])
    types = {"id": pa.int8(), "name": pa.string(), "address": address}
    schema = pa.schema([pa.field(name, kind, False) for name, kind in types.items()])
    value = {"name": "Ada", "address": {"city": "Oslo", "no": 1}}
    rows = pa.Table.from_pylist([{"id": 1, **value}, {"id": 2, **value}], schema)
    known = Subjects(vault=vault, key="id", columns=["name", "address.city"])
    modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)
    vault.forget(b"1")
    found = read(tmp_path / "a", vault)
    assert found.to_pylist()[0] == {"id": 1, "name": None, "address": {"city": None, "no": 1}}
    assert [field.nullable for field in found.schema] == [False, True, False]
    assert [part.nullable for part in found.schema.field("address").type] == [True, False]
    modcrypt.write_table(found, tmp_path / "b", KEY)
    assert modcrypt.read_table(tmp_path / "b", KEY).equals(found)


# --- filters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters",
    [
        [("name", "=", "Ada")],
        pc.field("name") == "Ada",
        [("address", "is null", None)],
        pc.field("address", "street") == "x",
    ],
)
def test_filters_read_no_cells(path: Path, vault: SampleVault, filters: Any) -> None:
    with pytest.raises(ValueError, match="filter the rows after reading"):
        read(path, vault, filters=filters)


@pytest.mark.parametrize(
    "filters", [[("amount", ">", 2)], pc.field("amount") > 2, [("customer_id", "!=", 1)]]
)
def test_filters_on_other_columns_work(path: Path, vault: SampleVault, filters: Any) -> None:
    wanted = make_rows()
    rows = [1, 2, 3] if "amount" in str(filters) else [1, 3]
    assert read(path, vault, filters=filters).equals(wanted.take(rows))
    assert read(path, vault, filters=filters, columns=["name"]).equals(
        wanted.take(rows).select(["name"])
    )


# --- datasets ------------------------------------------------------------------------------------


def test_a_dataset_of_old_and_new_files(tmp_path: Path, vault: SampleVault) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name, known in (("a", subjects(vault)), ("b", None), ("c", subjects(vault))):
        modcrypt.write_table(make_rows(), folder / f"{name}.parquet", KEY, subjects=known)
    wanted = pa.concat_tables([make_rows()] * 3)
    assert read(folder, vault).equals(wanted)
    assert read(folder, vault, columns=["name"]).equals(wanted.select(["name"]))
    (folder / "0.parquet").write_bytes((folder / "b.parquet").read_bytes())
    assert read(folder, vault, columns=["name", "address.street"]).num_rows == 16
    found = read(folder, vault, filters=[("amount", "=", 1.5)], columns=["name"])
    assert found.column("name").to_pylist() == ["Ada"] * 4


def test_partitioned_datasets(tmp_path: Path, vault: SampleVault) -> None:
    modcrypt.write_dataset(
        make_rows(), tmp_path / "d", KEY, partitioning=["amount"], subjects=subjects(vault)
    )
    found = read(tmp_path / "d", vault).sort_by("amount")
    assert found.column("name").to_pylist() == ["Ada", "Bob", "Ada", None]
    with pytest.raises(
        ValueError, match="not have these columns: name"
    ):  # folder names would show the values
        modcrypt.write_dataset(
            make_rows(), tmp_path / "e", KEY, partitioning=["name"], subjects=subjects(vault)
        )
    assert not (tmp_path / "e").exists() or not any((tmp_path / "e").rglob("*.parquet"))


# --- mistakes ------------------------------------------------------------------------------------


def test_a_value_needs_a_subject(tmp_path: Path, vault: SampleVault) -> None:
    rows = set_column(make_rows(), "customer_id", pa.array([1, None, 1, None], pa.int64()))
    with pytest.raises(ValueError, match="rows without a subject"):
        modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=subjects(vault))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"key": "nobody"}, "no column nobody"),
        ({"columns": ["nothing"]}, "not have these columns: nothing"),
        ({"columns": ["customer_id", "name"]}, "names the key column"),
        ({"columns": "name"}, "list of names"),
        ({"key": None}, "both key and columns"),
        ({"on_erased": "skip"}, "on_erased"),
        ({"key": "amount"}, "names no subjects"),
    ],
)
def test_mistakes_in_declarations(
    tmp_path: Path, vault: SampleVault, more: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        modcrypt.write_table(make_rows(), tmp_path / "a", KEY, subjects=subjects(vault, **more))
    assert not any(tmp_path.iterdir())


def test_repeated_names_are_refused(tmp_path: Path, vault: SampleVault) -> None:
    for name in ("name", "customer_id", "amount"):
        rows = make_rows().append_column(name, [[1, 2, 3, 4]])
        with pytest.raises(ValueError, match=f"several columns have the same name: {name}"):
            modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=subjects(vault))
    assert not any(tmp_path.iterdir())


def test_partitions_are_neither_subjects_nor_cells(tmp_path: Path, vault: SampleVault) -> None:
    for name in ("customer_id", "name"):
        with pytest.raises(ValueError, match="do not partition by"):
            modcrypt.write_dataset(
                make_rows(), tmp_path, KEY, partitioning=[name], subjects=subjects(vault)
            )
    assert not any(tmp_path.iterdir())


def test_a_vault_is_no_path() -> None:
    with pytest.raises(TypeError, match="open_vault"):
        Subjects(vault="subjects.db")  # type: ignore[arg-type]


def test_types_without_cells_are_refused(tmp_path: Path, vault: SampleVault) -> None:
    kind = pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string()))
    rows = pa.table({"id": [1], "m": pa.array([[("a", "x")]], kind)})
    known = Subjects(vault=vault, key="id", columns=["m"])
    with pytest.raises(UnsupportedFormatError, match="column m is of map"):
        modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)


def test_plaintext_files_are_not_encrypted_without_keys_of_subjects(
    path: Path, tmp_path: Path, vault: SampleVault
) -> None:
    plain, out = tmp_path / "plain.parquet", tmp_path / "out.parquet"
    pq.write_table(make_rows(), plain)
    encryption = modcrypt.FileEncryptionProperties(footer_key=KEY, subjects=subjects(vault))
    with pytest.raises(PlaintextError, match="write it with write_table"):
        modcrypt.encrypt_parquet(plain, out, encryption)
    assert not out.exists()
    modcrypt.decrypt_parquet(path, plain, KEY)  # its values are still cells
    modcrypt.encrypt_parquet(plain, out, encryption)
    assert read(out, vault).equals(make_rows())
    other = modcrypt.FileEncryptionProperties(
        footer_key=KEY, subjects=subjects(vault, dataset="other")
    )
    with pytest.raises(PlaintextError):
        modcrypt.encrypt_parquet(plain, out, other)


def test_the_cells_of_a_subject_are_counted(
    path: Path, vault: SampleVault, tools: KeyTools
) -> None:
    def count(subject: bytes) -> tuple[int, int]:
        known = Subjects(vault=vault)
        for _ in find_rows([str(path)], KEY, tools, known, subject):
            pass
        return known.decrypted.total(), known.erased.total()

    assert count(b"1") == (10, 0)
    vault.forget(b"1")
    assert count(b"1") == (0, 10)
    for stranger in (b"9", b"01", b"x", b"\xff", b"9" * 30):
        assert count(stranger) == (0, 0)
    with pytest.raises(KeyNotFoundError, match=r"people\.parquet: column name is under"):
        list(find_rows([str(path)], KEY, tools, Subjects(vault=SampleVault()), b"1"))


def test_a_renamed_column_is_an_error_not_its_cells(path: Path, vault: SampleVault) -> None:
    stored = modcrypt.read_table(path, KEY)
    names = ["title" if name == "name" else name for name in stored.column_names]
    renamed = path.with_name("renamed.parquet")
    modcrypt.write_table(stored.rename_columns(names), renamed, KEY)
    for columns in (None, ["title"]):
        with pytest.raises(UnsupportedFormatError, match="title has the cells of column name"):
            read(renamed, vault, columns=columns)
    assert read(renamed, vault, columns=["amount"]).num_rows == 4


def test_cells_are_not_encrypted_again(path: Path, vault: SampleVault) -> None:
    stored, again = modcrypt.read_table(path, KEY), path.with_name("again.parquet")
    known = Subjects(vault=vault, key="customer_id", columns=["name"])
    with pytest.raises(ValueError, match=r"column name .* keys of their subjects already"):
        modcrypt.write_table(stored, again, KEY, subjects=known)
    assert not again.exists()


@pytest.mark.parametrize("column", ["name", "empty"])
def test_an_empty_struct_is_an_error_as_without_subjects(
    tmp_path: Path, vault: SampleVault, column: str
) -> None:
    rows = pa.table({"id": [1], "name": ["Ada"], "empty": pa.array([{}], pa.struct([]))})
    known = Subjects(vault=vault, key="id", columns=[column])
    with pytest.raises(pa.ArrowNotImplementedError, match="no child field"):
        modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)


def test_frames_of_polars(tmp_path: Path, vault: SampleVault) -> None:
    frame = pl.DataFrame(make_rows())
    known = Subjects(vault=vault, key="customer_id", columns=["name", "address"])
    modcrypt.write_table(frame, tmp_path / "a", KEY, subjects=known)
    assert pl.DataFrame(read(tmp_path / "a", vault)).equals(frame)


@pytest.mark.parametrize("text", [b"!", b"AAAA", b"/////w==", b"\xff"])
def test_a_damaged_arrow_schema_is_an_error(text: bytes) -> None:
    pair: Any = SimpleNamespace(key=b"ARROW:schema", value=text)
    footer: Any = SimpleNamespace(key_value_metadata=[pair])
    with pytest.raises(FormatError):
        parse_cell_fields(footer)
