"""Rows with cells in Iceberg tables: deleted, overwritten and upserted, while others stay."""

from __future__ import annotations

import base64
import copy
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    ModcryptError,
    PlaintextError,
    TagMismatchError,
    UnsupportedFormatError,
)
from modcrypt.iceberg import IcebergTable, create_table, open_table, verify_table
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.cell_notes import (
    SUBJECT_COLUMNS,
    SUBJECT_TYPES,
    declared_ids,
    keep_notes,
)
from modcrypt.subjects import Subjects
from tests.support.iceberg import by_hand
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.sample_vault import SampleVault, make_rows

ROWS = make_rows()
KMS = SampleKms()
COLUMNS = ["name", "born", "address.*"]


def subjects(vault: SampleVault, **more: Any) -> Subjects:
    return Subjects(vault=vault, key="customer_id", columns=COLUMNS, dataset="d", **more)


@pytest.fixture
def vault() -> SampleVault:
    return SampleVault()


@pytest.fixture
def table(tmp_path: Path, vault: SampleVault) -> IcebergTable:
    made = create_table(
        tmp_path / "t", ROWS.schema, KMS, master_key_id="keyA", subjects=subjects(vault)
    )
    return made.append(ROWS)


def reopen(table: IcebergTable, vault: SampleVault | None, **more: Any) -> IcebergTable:
    known = None if vault is None else Subjects(vault=vault, **more)
    return open_table(Path(table.place.path).parents[1], KMS, subjects=known)


def rows_of(table: IcebergTable) -> pa.Table:
    return table.scan().to_arrow().sort_by("amount").cast(ROWS.schema)


def change(rows: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(name), pa.array(values, rows.field(name).type))
    return rows


# --- rows that stay ------------------------------------------------------------------------------


@pytest.mark.parametrize("known", ["writer", "reader", "none"])
def test_rows_that_stay_keep_their_cells(
    table: IcebergTable, vault: SampleVault, known: str
) -> None:
    cells = rows_of_cells(table)
    opened = table if known == "writer" else reopen(table, vault if known == "reader" else None)
    asked = vault.calls
    changed = opened.delete("amount < 2")
    assert vault.calls == asked  # bytes are copied
    assert rows_of_cells(changed).equals(cells.slice(1))
    assert rows_of(reopen(changed, vault)).equals(ROWS.slice(1))
    assert verify_table(changed).ok
    again = reopen(changed.delete("customer_id = 3"), vault)
    assert rows_of(again).equals(ROWS.slice(1, 2))


def rows_of_cells(table: IcebergTable) -> pa.Table:
    return reopen(table, None).scan().to_arrow().sort_by("amount")


def test_moved_cells_have_no_statistics(table: IcebergTable) -> None:
    table.delete("amount < 2")
    opened = by_hand.open_table(Path(table.place.path).parents[1])
    (entry,) = [e for entries in opened.entries for e in entries if e["status"] != 2]
    ids = {field.name: field.field_id for field in table_schema(table)}
    bounds = {pair["key"] for pair in entry["data_file"]["lower_bounds"]}
    assert ids["amount"] in bounds
    assert not bounds & {ids["name"], ids["born"]}


def table_schema(table: IcebergTable) -> list[Any]:
    return list(schema_of(table.metadata).fields)


def test_overwritten_rows(table: IcebergTable, vault: SampleVault) -> None:
    new = change(ROWS.slice(0, 1), name=["Adele"], amount=[9.5])
    found = rows_of(reopen(table.overwrite(new, "amount < 2"), vault))
    assert found.equals(pa.concat_tables([ROWS.slice(1), new]))


def test_erased_rows_stay_erased(table: IcebergTable, vault: SampleVault) -> None:
    vault.forget(b"1")
    changed = table.delete("amount > 4")
    assert rows_of(changed)["name"].to_pylist() == [None, "Bob", None]
    strict = reopen(table, vault, on_erased="raise").delete("customer_id = 2")
    assert rows_of(reopen(strict, vault))["amount"].to_pylist() == [1.5, 3.5]


# --- upserts -------------------------------------------------------------------------------------


def test_upserted_rows(table: IcebergTable, vault: SampleVault) -> None:
    new = change(
        pa.concat_tables([ROWS.slice(1, 3), ROWS.slice(0, 1)]),
        name=["Bob", "Augusta", None, "Eve"], amount=[2.5, 3.5, 4.5, 5.5], customer_id=[2, 1, 3, 7],
    )  # fmt: skip
    before = rows_of_cells(table)
    result = table.upsert(new, ["amount"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    found = rows_of(reopen(result.table, vault))
    assert found.equals(pa.concat_tables([ROWS.slice(0, 1), new]))
    after = rows_of_cells(result.table)
    assert after.take([0, 1, 3]).equals(before.take([0, 1, 3]))  # nothing was encrypted again
    again = result.table.upsert(new, ["amount"])
    assert (again.rows_updated, again.rows_inserted) == (0, 0)


def test_upserts_that_only_insert_or_update(table: IcebergTable, vault: SampleVault) -> None:
    new = change(ROWS, name=["A", "B", "C", "D"], amount=[1.5, 2.5, 3.5, 9.5])
    inserted = table.upsert(new, ["amount"], when_matched_update_all=False)
    assert (inserted.rows_updated, inserted.rows_inserted) == (0, 1)
    names = rows_of(reopen(inserted.table, vault))["name"].to_pylist()
    assert names == ["Ada", "Bob", "Ada", None, "D"]
    updated = inserted.table.upsert(new, ["amount"], when_not_matched_insert_all=False)
    assert (updated.rows_updated, updated.rows_inserted) == (3, 0)
    assert rows_of(updated.table)["name"].to_pylist() == ["A", "B", "C", None, "D"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("name", None), ("born", datetime.date(2000, 1, 1)), ("address", None), ("tags", ["z"])],
)
def test_any_difference_updates(
    table: IcebergTable, vault: SampleVault, column: str, value: Any
) -> None:
    new = change(ROWS.slice(0, 1), **{column: [value]})
    result = table.upsert(new, ["amount"])
    assert (result.rows_updated, result.rows_inserted) == (1, 0)
    assert rows_of(result.table).slice(0, 1).equals(new)


def test_values_with_other_types_are_compared(tmp_path: Path, vault: SampleVault) -> None:
    rows = pa.table({"id": [1, 2], "n": pa.array([7, 8], pa.int32()), "s": ["a", "b"]})
    known = Subjects(vault=vault, key="id", columns=["n", "s"], dataset="d")
    table = create_table(tmp_path / "n", rows.schema, KMS, master_key_id="keyA", subjects=known)
    table = table.append(rows)
    other = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.large_string())])
    same = table.upsert(rows.cast(other), ["id"])
    assert (same.rows_updated, same.rows_inserted) == (0, 0)
    big = rows.cast(other).set_column(1, "n", pa.array([7, 1 << 40]))
    result = table.upsert(big, ["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 0)
    texts = pa.table({"id": [1], "n": ["seven"], "s": ["a"]})
    assert table.refreshed().upsert(texts, ["id"]).rows_updated == 1


def test_upserts_of_erased_subjects(table: IcebergTable, vault: SampleVault) -> None:
    vault.forget(b"1")
    nothing = change(ROWS.slice(0, 1), name=[None], born=[None], address=[dict.fromkeys(
        ("street", "city", "floor"))])  # fmt: skip
    assert table.upsert(nothing, ["amount"]).rows_updated == 0
    with pytest.raises((ModcryptError, AssertionError)):  # no new key for an erased subject
        table.upsert(ROWS.slice(0, 1), ["amount"])
    assert rows_of(table.refreshed())["name"].to_pylist() == [None, "Bob", None, None]


def test_mistakes_of_upserts(table: IcebergTable, vault: SampleVault) -> None:
    with pytest.raises(ValueError, match="'name' cannot be a key: equal values have different"):
        table.upsert(ROWS, ["name"])
    stranger = open_table(Path(table.place.path).parents[1], KMS, subjects=subjects(SampleVault()))
    with pytest.raises(KeyNotFoundError, match="under keys of the subject vault"):
        stranger.upsert(change(ROWS, name=["x"] * 4), ["amount"])
    less = Subjects(vault=vault, key="customer_id", columns=["name"], dataset="d")
    partly = open_table(Path(table.place.path).parents[1], KMS, subjects=less)
    with pytest.raises(UnsupportedFormatError, match=r"column address has values.*open the table"):
        partly.upsert(as_bytes(ROWS, "address", "born"), ["amount"])
    assert rows_of(reopen(table, vault)).equals(ROWS)


def as_bytes(rows: pa.Table, *names: str) -> pa.Table:
    """Return rows with bytes in columns with cells, as a writer without the policy has them."""
    address = pa.struct([(name, pa.binary()) for name in ("street", "city", "floor")])
    kinds = {"name": pa.binary(), "born": pa.binary(), "address": address}
    for name in names or kinds:
        at = rows.schema.get_field_index(name)
        values: list[Any] = [b"plain"] * rows.num_rows
        if name == "address":
            values = [dict.fromkeys(("street", "city", "floor"), b"plain")] * rows.num_rows
        rows = rows.set_column(at, name, pa.array(values, kinds[name]))
    return rows


# --- writers without the policy ------------------------------------------------------------------


@pytest.mark.parametrize("known", ["reader", "none"])
def test_plaintext_is_refused_in_declared_columns(
    table: IcebergTable, vault: SampleVault, known: str
) -> None:
    opened = reopen(table, vault if known == "reader" else None)
    for rows in (as_bytes(ROWS), ROWS.select(["customer_id", "tags", "amount"])):
        for write in (opened.append, opened.overwrite):
            with pytest.raises(PlaintextError, match=r"column name has values.*open the table"):
                write(rows)
    for rows in (ROWS, as_bytes(ROWS)):
        with pytest.raises(PlaintextError, match="open the table with"):
            opened.upsert(rows, ["amount"])
    assert rows_of(reopen(table, vault)).equals(ROWS)


def test_tables_without_a_declaration(table: IcebergTable, vault: SampleVault) -> None:
    path = Path(table.place.path)
    document = json.loads(path.read_bytes())
    del document["properties"][SUBJECT_COLUMNS]
    path.write_text(json.dumps(document))
    opened = reopen(table, None)
    with pytest.raises(ValueError, match="'name' cannot be a key"):
        opened.upsert(as_bytes(ROWS).slice(0, 1), ["name"])
    with pytest.raises(UnsupportedFormatError, match=r"column address has values.*open the table"):
        opened.upsert(as_bytes(ROWS), ["amount"])
    assert rows_of(reopen(table, vault)).equals(ROWS)


def test_files_of_other_engines(
    table: IcebergTable, vault: SampleVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modcrypt.iceberg.write import data_writing

    monkeypatch.setattr(data_writing, "check_declared", lambda *_: None)
    others = change(ROWS.slice(0, 1), amount=[9.5]).select(["customer_id", "amount"])
    plain = reopen(table, None).append(others)
    found = rows_of(reopen(plain, vault))
    assert found.slice(0, 4).equals(ROWS)
    assert [found[name].to_pylist()[4] for name in ("name", "born", "address")] == [None] * 3
    assert reopen(table.delete("amount < 9"), vault).scan().to_arrow()["amount"].to_pylist() == [
        9.5
    ]
    monkeypatch.setattr(data_writing, "find_notes", lambda _: {})
    reopen(table.refreshed().append(ROWS), None).delete("amount < 2")
    lost = reopen(table, vault)
    with pytest.raises(FormatError, match=r"another engine has rewritten .*open the table with"):
        lost.scan().to_arrow()
    assert lost.scan(columns=["amount"]).to_arrow().num_rows == 4


@pytest.fixture
def rewritten(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., IcebergTable]:
    """A function that reopens a table whose rows another engine has moved to another file."""
    from modcrypt.iceberg.write import data_writing

    monkeypatch.setattr(data_writing, "find_notes", lambda _: {})
    reopen(table, None).delete("amount < 2")
    monkeypatch.undo()

    def open_again(known: Subjects | None) -> IcebergTable:
        return open_table(Path(table.place.path).parents[1], KMS, subjects=known)

    return open_again


def test_the_table_states_types_that_other_engines_lose(
    rewritten: Callable[..., IcebergTable], vault: SampleVault
) -> None:
    known = subjects(vault)
    table = rewritten(known)
    assert rows_of(table).equals(ROWS.slice(1))
    assert table.scan(columns=["name"]).to_arrow()["name"].to_pylist() == ["Bob", "Ada", None]
    assert rows_of(table.append(ROWS.slice(0, 1))).equals(ROWS)
    vault.forget(b"1")
    assert table.refreshed().scan(columns=["name"]).to_arrow()["name"].null_count == 3
    with pytest.raises(UnsupportedFormatError, match="cannot be compared"):
        table.scan(filters="name is null").to_arrow()
    result = table.refreshed().upsert(change(ROWS.slice(1, 1), name=["Bert"]), ["amount"])
    assert result.rows_updated == 1
    found = rows_of(rewritten(subjects(vault)))
    assert found["name"].to_pylist() == [None, "Bert", None, None]


def test_only_the_reader_chooses_keys(
    rewritten: Callable[..., IcebergTable], vault: SampleVault
) -> None:
    """A table states types; dataset, columns and the column of subjects are the reader's."""
    other = Subjects(vault=vault, key="customer_id", columns=COLUMNS, dataset="other")
    with pytest.raises(TagMismatchError):
        rewritten(other).scan().to_arrow()
    keyed = Subjects(vault=vault, key="amount", columns=COLUMNS, dataset="d")
    with pytest.raises(FormatError, match="another engine has rewritten"):
        rewritten(keyed).scan().to_arrow()
    fewer = Subjects(vault=vault, key="customer_id", columns=["name"], dataset="d")
    with pytest.raises(FormatError, match="column address: the table declares"):
        rewritten(fewer).scan().to_arrow()
    assert rewritten(fewer).scan(columns=["name"]).to_arrow()["name"][0].as_py() == "Bob"


@pytest.mark.parametrize("kinds", ["", "!", "AAAA", {"name": pa.int64()}, {"name": pa.binary(9)}])
def test_hostile_types(
    rewritten: Callable[..., IcebergTable], vault: SampleVault, kinds: Any
) -> None:
    table = rewritten(subjects(vault))
    document = json.loads(Path(table.place.path).read_bytes())
    text = kinds
    if isinstance(kinds, dict):
        fields = [f.with_type(kinds.get(f.name, f.type)) for f in ROWS.schema]
        text = base64.b64encode(pa.schema(fields).serialize()).decode()
    document["properties"][SUBJECT_TYPES] = text
    Path(table.place.path).write_text(json.dumps(document))
    with pytest.raises(FormatError, match="column name"):
        rewritten(subjects(vault)).scan(columns=["name"]).to_arrow()


def test_a_new_table_declares_its_columns(table: IcebergTable, tmp_path: Path) -> None:
    assert table.metadata.properties[SUBJECT_COLUMNS] == "2,3,7,8,9"
    schema = schema_of(table.metadata)
    known = subjects(SampleVault())
    other = create_table(tmp_path / "o", schema, KMS, master_key_id="keyA", subjects=known)
    assert other.metadata.properties[SUBJECT_COLUMNS] == "2,3,7,8,9"
    plain = create_table(tmp_path / "p", ROWS.schema, KMS, master_key_id="keyA")
    assert SUBJECT_COLUMNS not in plain.metadata.properties


def test_damaged_declarations_declare_less(table: IcebergTable, vault: SampleVault) -> None:
    path = Path(table.place.path)
    document = json.loads(path.read_bytes())
    for text in ("", "x", ",,", "-2", "\u0662", "9" * 5000, "2,99999,2"):
        document["properties"][SUBJECT_COLUMNS] = text
        path.write_text(json.dumps(document))
        assert declared_ids(reopen(table, vault).metadata) <= {2, 99999}
        assert rows_of(reopen(table, vault)).equals(ROWS)


def test_names_of_columns_with_cells_are_valid_in_avro(tmp_path: Path, vault: SampleVault) -> None:
    rows = pa.table({"id": [1], "first name": ["Ada"]})
    known = Subjects(vault=vault, key="id", columns=["first name"], dataset="d")
    table = create_table(tmp_path / "a", rows.schema, KMS, master_key_id="keyA", subjects=known)
    with pytest.raises(ValueError, match="may have only letters, digits"):
        table.append(rows)


# --- hostile and changed tables ------------------------------------------------------------------


def test_renamed_and_dropped_columns(table: IcebergTable, vault: SampleVault) -> None:
    path = Path(table.place.path)
    document = json.loads(path.read_bytes())

    def after(change: Callable[[list[dict[str, Any]]], object]) -> IcebergTable:
        changed = copy.deepcopy(document)
        new = {**copy.deepcopy(changed["schemas"][0]), "schema-id": 1}
        change(new["fields"])
        changed["schemas"].append(new)
        changed["current-schema-id"] = 1
        path.write_text(json.dumps(changed))
        return reopen(table, vault)

    renamed = after(lambda fields: fields[1].update(name="full_name"))
    with pytest.raises(
        UnsupportedFormatError, match=r"column name, on which.*renamed to full_name"
    ):
        renamed.delete("amount < 2")
    keyless = after(lambda fields: fields[0].update(name="client"))
    with pytest.raises(UnsupportedFormatError, match=r"column customer_id, on.*renamed to client"):
        keyless.delete("amount < 2")
    gone = after(lambda fields: fields.pop(0))
    with pytest.raises(UnsupportedFormatError, match=r"column customer_id, on .* dropped"):
        gone.delete("amount < 2")
    less = after(lambda fields: fields.pop(1))
    found = less.delete("amount < 2").scan().to_arrow()
    assert found["born"].to_pylist() == ROWS["born"].to_pylist()[1:]
    assert "name" not in found.column_names


def test_swapped_cells_do_not_open_after_a_change(
    table: IcebergTable, vault: SampleVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modcrypt.iceberg.write.data_writing import DataWriter

    write = DataWriter.copy

    def swap(writer: DataWriter, rows: pa.Table) -> Any:
        at = rows.schema.get_field_index("name")
        names = rows["name"].combine_chunks()
        swapped = names.take([1, 0, *range(2, len(names))])
        return write(writer, rows.set_column(at, rows.schema.field(at), swapped))

    monkeypatch.setattr(DataWriter, "copy", swap)
    changed = table.delete("amount > 4")
    with pytest.raises(TagMismatchError, match="a cell of column name"):
        changed.scan().to_arrow()


@pytest.mark.parametrize("note", [b"", b"{}", b"[]", b'{"key"', b"[" * 100_000])
def test_damaged_notes_are_errors(table: IcebergTable, note: bytes) -> None:
    field = pa.field("name", pa.binary(), metadata={b"PARQUET:field_id": b"2"})
    with pytest.raises(FormatError, match="column name: the metadata of its cells is damaged"):
        keep_notes({"name": note}, pa.schema([field]), schema_of(table.metadata))
