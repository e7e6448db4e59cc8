"""Lists and maps of a subject: each is one cell, with its length and order."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt import Key
from modcrypt.errors import FormatError, LimitError, TagMismatchError, UnsupportedFormatError
from modcrypt.parquet.arrow import value_bytes
from modcrypt.parquet.crypto.properties import CELLS
from modcrypt.subjects import Subjects, declaration
from modcrypt.subjects.cells import CellColumn, convert_batch, find_owners
from tests.support.sample_vault import SampleVault

KEY = Key.generate(16)
PHONE = pa.struct([pa.field("kind", pa.string(), False), ("numbers", pa.list_(pa.int64()))])
ADDRESS = pa.struct([("city", pa.string()), ("lines", pa.large_list(pa.string()))])
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 1, 3], pa.int64()),
        "emails": pa.array([["a@x", None], [], None, ["b@x"]], pa.list_(pa.string())),
        "phones": pa.array(
            [
                [{"kind": "home", "numbers": [1, None]}, None],
                None,
                [],
                [{"kind": "", "numbers": []}],
            ],
            pa.list_(PHONE),
        ),
        "notes": pa.array(
            [[("a", b"1"), ("b", None)], [], None, None], pa.map_(pa.string(), pa.binary())
        ),
        "address": pa.array(
            [
                {"city": "Oslo", "lines": ["x", ""]},
                None,
                {"city": None, "lines": None},
                {"city": "Rome", "lines": []},
            ],
            ADDRESS,
        ),
        "face": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.float32(), 2)),
        "tags": pa.array([["a"], ["b", None], None, []], pa.list_(pa.string())),
    }
)  # fmt: skip
NAMES = ["emails", "phones.list.element", "notes.key_value", "address.*", "face"]
COLUMNS = ["emails", "phones", "notes", "address", "face"]


@pytest.fixture
def vault() -> SampleVault:
    return SampleVault()


def declare(vault: SampleVault, columns: list[str] = NAMES, **more: Any) -> Subjects:
    return Subjects(vault=vault, **{"key": "id", "columns": columns, "dataset": "d", **more})


def write(
    path: Path, vault: SampleVault, rows: pa.Table = ROWS, columns: list[str] = NAMES,
    **options: Any,
) -> Path:  # fmt: skip
    modcrypt.write_table(rows, path, KEY, subjects=declare(vault, columns), **options)
    return path


@pytest.fixture
def path(tmp_path: Path, vault: SampleVault) -> Path:
    return write(tmp_path / "a.parquet", vault, row_group_size=3)


def read(path: Path, vault: SampleVault | None, **options: Any) -> pa.Table:
    known = None if vault is None else Subjects(vault=vault)
    return modcrypt.read_table(path, KEY, subjects=known, **options)


def test_lists_and_maps_come_back(path: Path, vault: SampleVault) -> None:
    found = read(path, vault)
    found.validate(full=True)
    assert found.schema.types == ROWS.schema.types
    assert found.to_pylist() == ROWS.to_pylist()
    batches = modcrypt.iter_batches(
        path, KEY, columns=COLUMNS, subjects=Subjects(vault=vault), batch_size=2
    )
    assert pa.Table.from_batches(batches).to_pylist() == ROWS.select(COLUMNS).to_pylist()
    assert read(path, vault, columns=["address.lines"]).to_pylist() == [
        {"address": row and {"lines": row["lines"]}} for row in ROWS["address"].to_pylist()
    ]


def test_large_cells_are_converted_in_parts(
    tmp_path: Path, vault: SampleVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def note(batch: pa.RecordBatch, *arguments: Any, **more: Any) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return convert_batch(batch, *arguments, **more)

    monkeypatch.setattr(declaration, "BATCH_BYTES", 2000)
    monkeypatch.setattr(declaration, "convert_batch", note)
    rows = pa.concat_tables([ROWS] * 8).combine_chunks()
    assert read(write(tmp_path / "a.parquet", vault, rows), vault).to_pylist() == rows.to_pylist()
    assert (sum(sizes), max(sizes) < len(rows)) == (2 * len(rows), True)


def test_each_list_is_one_cell(path: Path) -> None:
    stored = read(path, None)
    assert [stored.schema.field(name).type for name in ("emails", "phones", "notes", "face")] == [
        pa.large_binary()
    ] * 4
    cells = stored["emails"].to_pylist()
    assert [None if cell is None else len(cell) for cell in cells] == [28 + 11, 28, None, 28 + 7]
    assert stored["tags"].to_pylist() == ROWS["tags"].to_pylist()


def test_lists_of_erased_subjects_are_null(path: Path, vault: SampleVault) -> None:
    vault.forget(b"1")
    known = Subjects(vault=vault)
    found = modcrypt.read_table(path, KEY, subjects=known)
    for name in ("emails", "phones", "notes", "face"):
        wanted = [None, *ROWS[name].to_pylist()[1:]]
        wanted[2] = None
        assert found[name].to_pylist() == wanted
    assert (known.erased["emails"], known.erased["phones"]) == (1, 2)


def test_views_show_lists(path: Path, vault: SampleVault) -> None:
    with modcrypt.open_parquet(path, KEY, subjects=Subjects(vault=vault)) as file:
        assert pq.read_table(file).to_pylist() == ROWS.to_pylist()
        assert pq.ParquetFile(file).schema_arrow.types[1:] == ROWS.schema.types[1:]
        data = file.read_at(0, file.size)
    assert pl.read_parquet(data)["phones"].to_list() == ROWS["phones"].to_pylist()
    view = path.with_name("view.parquet")
    view.write_bytes(data)
    with duckdb.connect() as database:
        found = database.execute(f"select emails, tags from '{view}'").fetchall()
    assert found == list(zip(ROWS["emails"].to_pylist(), ROWS["tags"].to_pylist(), strict=True))
    chosen = ["tags", "address.lines", "phones"]
    with modcrypt.open_parquet(path, KEY, columns=chosen, subjects=Subjects(vault=vault)) as file:
        assert pq.read_table(file, columns=["phones", "tags"]).to_pylist() == (
            ROWS.select(["phones", "tags"]).to_pylist()
        )
        assert pq.read_table(file)["address"].to_pylist()[0] == {"lines": ["x", ""]}


def test_a_dataset_of_files_with_and_without_cells(tmp_path: Path, vault: SampleVault) -> None:
    (tmp_path / "d").mkdir()
    write(tmp_path / "d/a", vault)
    modcrypt.write_table(ROWS, tmp_path / "d/b", KEY)
    write(tmp_path / "d/c", vault, columns=["emails"])
    assert read(tmp_path / "d", vault).to_pylist() == ROWS.to_pylist() * 3


def test_a_file_of_cells_is_encrypted_again(path: Path, vault: SampleVault) -> None:
    """Names of elements are understood where the file has lists, and where it has cells."""
    plain, out = path.with_name("plain"), path.with_name("out")
    modcrypt.decrypt_parquet(path, plain, KEY)
    encryption = modcrypt.FileEncryptionProperties(footer_key=KEY, subjects=declare(vault))
    modcrypt.encrypt_parquet(plain, out, encryption)
    assert read(out, vault).to_pylist() == ROWS.to_pylist()
    pq.write_table(ROWS, plain)
    with pytest.raises(modcrypt.errors.PlaintextError, match="is in subject_columns"):
        modcrypt.encrypt_parquet(plain, out, encryption, overwrite=True)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (["phones.list.element.kind"], r"part of column phones, without phones\.list\.element\.nu"),
        (["notes.key_value.value"], "part of column notes"),
        (["phones.element"], r"not have these columns: phones\.element"),
    ],
)
def test_lists_are_encrypted_as_a_whole(
    tmp_path: Path, vault: SampleVault, columns: list[str], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        write(tmp_path / "a", vault, columns=columns)
    assert not any(tmp_path.iterdir())


# --- attacks -------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Return another file, with cells that a holder of the file's key has changed."""
    other = path.with_name("changed.parquet")
    modcrypt.write_table(change(read(path, None)), other, KEY)
    return other


def set_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(name), values)


def cut(table: pa.Table) -> pa.Table:
    first, *others = table["emails"].to_pylist()
    return set_column(table, "emails", pa.array([first[:-4], *others], pa.large_binary()))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: set_column(t, "emails", t["emails"].take([1, 0, 2, 3])),
        lambda t: set_column(t, "emails", t["phones"]),
        lambda t: set_column(t, "id", pa.array([2, 2, 1, 3])),
        cut,
    ],
    ids=["rows", "columns", "subjects", "cut"],
)
def test_moved_and_cut_cells_are_errors(
    path: Path, vault: SampleVault, change: Callable[[pa.Table], pa.Table]
) -> None:
    with pytest.raises(TagMismatchError, match="a cell of column emails"):
        read(rewrite(path, change), vault)


def test_another_type_in_the_note_is_an_error(path: Path, vault: SampleVault) -> None:
    """A holder of the file's key alone can change the type, but not make values of it."""

    def change(table: pa.Table) -> pa.Table:
        notes = [json.loads((f.metadata or {}).get(CELLS, b"{}")) for f in table.schema]
        schema = pa.schema([pa.field("emails", ROWS.schema.field("face").type)])
        notes[1]["field"] = base64.b64encode(schema.serialize()).decode()
        fields = [
            f.with_metadata({CELLS: json.dumps(n).encode()} if n else None)
            for f, n in zip(table.schema, notes, strict=True)
        ]
        return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))

    with pytest.raises(
        FormatError, match="column emails: a value does not have the bytes of fixed"
    ):
        read(rewrite(path, change), vault)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.list_(pa.string()), "01"),
        (pa.list_(pa.string()), "02000000ff"),
        (pa.list_(pa.string()), "fffffffe"),
        (pa.list_(pa.string()), "01000000ff"),
        (pa.list_(pa.int32()), "0200000000ff"),
        (pa.list_(pa.int8(), 2), "0100000000"),
        (pa.list_(pa.struct([("a", pa.int8()), ("b", pa.int8())])), "050000000100000000"),
        (pa.map_(pa.string(), pa.int8()), "ffffffff"),
        (pa.map_(pa.string(), pa.int8()), "09000000ffffffff0100000001"),
    ],
)
def test_bytes_that_are_no_list(kind: pa.DataType, plain: str) -> None:
    """A holder of the subject's key can encrypt any bytes."""
    owners = find_owners(SampleVault(), pa.array(["x", "x"]), create=True)
    values = pa.array([bytes.fromhex(plain), None], pa.large_binary())
    cells = CellColumn("d", ("n",), values.type).encrypt(values, owners)
    with pytest.raises(FormatError, match="column n: a value"):
        CellColumn("d", ("n",), kind).decrypt(cells, owners)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(2**31 - 1),
        pa.list_(pa.string(), 2**31 - 1),
        pa.list_(pa.struct([("a", pa.list_(pa.list_(pa.int8(), 2**15), 2**15))]), 3),
    ],
)
def test_nulls_of_huge_types_take_no_memory(kind: pa.DataType) -> None:
    """A null has no cell, so that the type is that of an unauthenticated note."""
    with pytest.raises(LimitError, match="nulls of"):
        value_bytes.from_bytes(pa.nulls(1, pa.large_binary()), kind, "n")


def test_deep_types_are_errors(tmp_path: Path, vault: SampleVault) -> None:
    kind: pa.DataType = pa.int8()
    value: Any = 1
    for _ in range(60):
        kind, value = pa.list_(kind), [value]
    rows = pa.table({"id": [1], "deep": pa.array([value], kind)})
    known = Subjects(vault=vault, key="id", columns=["deep"])
    try:
        modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)
    except UnsupportedFormatError:
        return
    assert read(tmp_path / "a", vault).to_pylist() == rows.to_pylist()


def test_large_lists(tmp_path: Path, vault: SampleVault) -> None:
    rows = pa.table({"id": [1, 2], "n": [list(range(300_000)), ["x"] * 0]})
    known = Subjects(vault=vault, key="id", columns=["n"])
    modcrypt.write_table(rows, tmp_path / "a", KEY, subjects=known)
    assert read(tmp_path / "a", vault).equals(rows)


def test_frames_of_polars(tmp_path: Path, vault: SampleVault) -> None:
    frame = pl.DataFrame(ROWS.drop(["notes"]))
    known = Subjects(vault=vault, key="id", columns=["emails", "phones", "address", "face"])
    modcrypt.write_table(frame, tmp_path / "a", KEY, subjects=known)
    assert pl.DataFrame(read(tmp_path / "a", vault)).equals(frame)
