"""Equality deletes: tables of Iceberg's Java, which judges, and others made from outside."""

from __future__ import annotations

import decimal
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from modcrypt.errors import FormatError, LimitError, PlaintextError, UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.read import equality_deletes
from modcrypt.iceberg.read.data_files import open_data_file
from modcrypt.iceberg.rotate.expiry import expire_history
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.tables.table_encryption import encrypt_table
from modcrypt.iceberg.verify.table_verification import verify_table
from tests.support.cases import each_case, one_in
from tests.support.iceberg.builder import Builder, arrow, field, id_field, struct
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.java_tables import (
    ALL_TYPES,
    FULL,
    PARTITIONED,
    PEOPLE,
    Both,
    append,
    both,
    delete,
    ids,
    partition_spec,
    people,
    schema,
)
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.randomness import dice

__all__ = ["both"]  # a fixture

Row: TypeAlias = dict[str, Any]
Build: TypeAlias = Callable[[Both], Sequence[int]]
"""Make a table with equality deletes; return the ids of its rows."""

NAN = float("nan")


# --- by hand, against a model --------------------------------------------------------------------

KEYED = struct(
    field(1, "id", "long"),
    field(2, "real", "double"),
    field(3, "name", "string"),
    field(4, "place", struct(field(5, "zip", "int"), field(6, "town", "string"))),
)
PLACE = pa.struct([id_field(5, "zip", pa.int32()), id_field(6, "town", pa.string())])
KEYED_ARROW = pa.schema(
    [
        id_field(1, "id", pa.int64()),
        id_field(2, "real", pa.float64()),
        id_field(3, "name", pa.string()),
        id_field(4, "place", PLACE),
    ]
)
KEYS = {1: "id", 2: "real", 3: "name", 5: "zip", 6: "town"}
COLUMNS = [[1], [2], [1, 2], [3, 5], [1, 2, 3, 6], [2, 5, 6]]


def draw_rows(draw: random.Random, count: int) -> list[Row]:
    return [
        {
            "id": draw.choice([None, *range(6)]),
            "real": draw.choice([None, 0.0, -0.0, NAN, -NAN, 1.5]),
            "name": draw.choice([None, "", "a", "b"]),
            "place": draw.choice(
                [None, {"zip": draw.choice([None, 1, 2]), "town": draw.choice([None, "x"])}]
            ),
        }
        for _ in range(count)
    ]


def key_of(row: Row, ids_: Sequence[int]) -> list[Any]:
    """Return the values of a row that a delete compares."""
    found = {**row, **(row["place"] or {"zip": None, "town": None})}
    values = [found[KEYS[id_]] for id_ in ids_]
    return [repr(value) if isinstance(value, float) else value for value in values]


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_a_model(tmp_path: Path, seed: int) -> None:
    """Deletes by any columns, which apply to older files alone; keys fewer and more than rows."""
    draw = dice(seed)
    builder, manifests = Builder(tmp_path, KEYED), []
    written: list[tuple[int, Row]] = []
    deletes: list[tuple[int, Sequence[int], list[Row]]] = []
    for number in range(1, 8):
        rows = draw_rows(draw, 60)
        table = pa.Table.from_pylist(rows, KEYED_ARROW)
        data = builder.parquet(f"a{number}.parquet", table, row_group=draw.choice([7, 60]))
        manifests.append(builder.manifest([data]))
        written += [(number, row) for row in rows]
        files = []
        for part in range(draw.randrange(3)):
            by = draw.choice(COLUMNS)
            gone = draw_rows(draw, draw.choice([1, 3, 40]))
            name, keys = f"d{number}-{part}.parquet", pa.Table.from_pylist(gone, KEYED_ARROW)
            files.append(builder.parquet(name, keys, content=2, equality_ids=by))
            deletes.append((number, by, gone))
        if files:
            manifests.append(builder.manifest(files, content=1))
        builder.snapshot(manifests)
    expected = [
        row
        for written_in, row in written
        if not any(
            written_in < deleted_in and key_of(row, by) in [key_of(removed, by) for removed in gone]
            for deleted_in, by, gone in deletes
        )
    ]
    table = open_table(builder.write(), SampleKms())
    assert repr(table.scan().to_pylist()) == repr(expected)
    assert 0 < len(expected) < len(written)
    names = [row["name"] for row in expected if (row["id"] or 0) > 2]
    assert table.scan(columns=["name"], filters="id > 2")["name"].to_pylist() == names
    assert sum(batch.num_rows for batch in table.scan_batches(columns=[])) == len(expected)


ORDERS = struct(field(1, "id", "int"), field(2, "name", "string"))
ORDERS_ARROW = arrow([(1, "id", pa.int32()), (2, "name", pa.string())])


def orders(*numbers: int) -> pa.Table:
    return pa.table([list(numbers), [f"name-{number}" for number in numbers]], schema=ORDERS_ARROW)


def scan_ids(builder: Builder, **options: Any) -> list[int]:
    """Return the ids that a scan finds."""
    found = open_table(builder.write(), SampleKms()).scan(**options)["id"]
    return sorted(found.to_pylist())


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path, ORDERS)


def add_deletes(builder: Builder, *deletes: dict[str, Any], **manifest: Any) -> Builder:
    """Add a file of orders 1 to 5, and then delete files."""
    data = builder.manifest([builder.parquet("a.parquet", orders(*range(1, 6)), **manifest)])
    builder.snapshot([data])
    builder.snapshot([data, builder.manifest(deletes, content=1)])
    return builder


PRICES = struct(field(1, "id", "int"), field(2, "price", "decimal(18, 2)"))
PRICE_SPEC = [{"source-id": 2, "field-id": 1000, "transform": "identity", "name": "price"}]


@pytest.mark.parametrize("content", [1, 2])
def test_a_partition_whose_decimals_have_grown(tmp_path: Path, content: int) -> None:
    """Older manifests have it in fewer bytes; and their data files need not have the column."""
    avro = {"name": "price", "field-id": 1000, "type": "bytes"}
    builder = Builder(tmp_path, PRICES, spec=PRICE_SPEC, partition=[avro])
    prices = arrow([(1, "id", pa.int32())])
    rows = pa.table([[1, 2]], schema=prices)
    files = [builder.parquet(f"{n}.parquet", rows, partition={"price": bytes([n])}) for n in (5, 7)]
    reported: dict[str, Any] = {"partition": {"price": bytes([0, 0, 0, 5])}, "content": content}
    if content == 1:
        keys = pa.table(
            [[files[0]["file_path"]], [1]],
            schema=arrow([(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())]),
        )
    else:
        keys = pa.table(
            [[2, 1], [decimal.Decimal("0.05"), decimal.Decimal("0.07")]],
            schema=arrow([(1, "id", pa.int32()), (2, "price", pa.decimal128(18, 2))]),
        )
        reported["equality_ids"] = [1, 2]
    data = builder.manifest(files)
    builder.snapshot([data])
    deletes = builder.manifest([builder.parquet("d.parquet", keys, **reported)], content=1)
    builder.snapshot([data, deletes])
    assert scan_ids(builder) == [1, 1, 2]
    assert scan_ids(builder, filters="price = 0.05") == [1]


def test_a_spec_of_void_alone_is_unpartitioned(tmp_path: Path) -> None:
    """As version 1 keeps the fields of a spec that were removed: Java takes it for that, too."""
    spec = [{"source-id": 1, "field-id": 1000, "transform": "identity", "name": "id"}]
    avro = {"name": "id", "field-id": 1000, "type": "int"}
    builder = Builder(tmp_path, ORDERS, spec=spec, partition=[avro])
    builder.document["partition-specs"].append(
        {"spec-id": 1, "fields": [{**spec[0], "transform": "void"}]}
    )
    builder.partitions[1] = [avro]
    data = builder.manifest(
        [builder.parquet(f"{n}.parquet", orders(n), partition={"id": n}) for n in (1, 2, 3)]
    )
    builder.snapshot([data])
    none: dict[str, Any] = {"partition": {"id": None}}
    file = builder.parquet("d.parquet", orders(2), content=2, equality_ids=[1], **none)
    builder.snapshot([data, builder.manifest([file], content=1, spec_id=1)])
    assert scan_ids(builder) == scan_ids(builder, filters="id > 0") == [1, 3]


def test_a_required_column_that_was_dropped(builder: Builder) -> None:
    """Newer files lack the column: it is null there and equals no value."""
    code = field(9, "code", "int", required=True)
    builder.document["schemas"].insert(0, struct(*ORDERS["fields"], code, schema_id=0))
    builder.document["schemas"][1]["schema-id"] = builder.document["current-schema-id"] = 1
    codes = pa.table(
        [[1, 2], [7, 8]], schema=arrow([(1, "id", pa.int32()), (9, "code", pa.int32())])
    )
    files = [builder.parquet("a.parquet", codes), builder.parquet("b.parquet", orders(3))]
    data = builder.manifest(files)
    builder.snapshot([data])
    gone = builder.parquet("d.parquet", codes.slice(0, 1), content=2, equality_ids=[9])
    builder.snapshot([data, builder.manifest([gone], content=1)])
    assert scan_ids(builder) == [2, 3]


def test_each_delete_file_is_read_once(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is older than all data files that are read, not at all."""
    delete: dict[str, Any] = {"content": 2, "equality_ids": [1]}
    first = builder.manifest([builder.parquet("old.parquet", orders(1), **delete)], content=1)
    builder.snapshot([first])
    files = [builder.parquet(f"{n}.parquet", orders(n, n + 10)) for n in range(6)]
    data = builder.manifest(files)
    builder.snapshot([first, data])
    deletes = [builder.parquet(f"d{n}.parquet", orders(n), **delete) for n in range(3)]
    builder.snapshot([first, data, builder.manifest(deletes, content=1)])
    opened: list[str] = []

    def note_opening(walk: Any, entry: Any) -> Any:
        opened.append(entry.location)
        return open_data_file(walk, entry)

    monkeypatch.setattr(equality_deletes, "open_data_file", note_opening)
    assert scan_ids(builder) == [3, 4, 5, *range(10, 16)]
    assert sorted(opened) == sorted(file["file_path"] for file in deletes)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no columns": ({"equality_ids": None}, FormatError, "name no columns"),
    "an empty list of columns": ({"equality_ids": []}, FormatError, "name no columns"),
    "no column": ({"equality_ids": [7]}, FormatError, "not a column of values"),
    "a struct": ({"equality_ids": [4]}, FormatError, "not a column of values"),
    "a column that is not in the file": ({"equality_ids": [1, 5]}, FormatError, "the file lacks"),
    "ORC": ({"equality_ids": [1], "file_format": "ORC"}, UnsupportedFormatError, "ORC"),
    "no key": ({"equality_ids": [1], "key_metadata": None}, PlaintextError, "d.parquet"),
}


@pytest.mark.parametrize(("changes", "error", "text"), BAD.values(), ids=BAD)
def test_deletes_that_cannot_be_read(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    place = field(4, "place", struct(field(5, "zip", "int")))
    builder = Builder(tmp_path, struct(*ORDERS["fields"], place))
    file = builder.parquet("d.parquet", orders(2), content=2)
    add_deletes(builder, {**file, **changes})
    with pytest.raises(error, match=text):
        scan_ids(builder)


def test_keys_beyond_the_limit(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all deletes of a scan together."""
    files = [
        builder.parquet("d1.parquet", orders(2), equality_ids=[1], content=2),
        builder.parquet("d2.parquet", orders(3, 4), equality_ids=[2], content=2),
    ]
    add_deletes(builder, *files)
    assert scan_ids(builder) == [1, 5]
    monkeypatch.setattr(equality_deletes, "MAX_KEYS", 40)  # more than either
    with pytest.raises(LimitError, match="more than 40 bytes"):
        scan_ids(builder)


# --- Java writes, and judges ---------------------------------------------------------------------


def equal(*by: str, rows: Sequence[Any], **file: Any) -> Row:
    """Return a file of equality deletes; where one column is meant, `rows` may be its values."""
    reported = [row if isinstance(row, dict) else {by[0]: row} for row in rows]
    return {"by": by, "rows": reported, **file}


def commit_of(*files: Row, **more: Any) -> Row:
    return {"do": "delete-equal", "files": files, **more}


def delete_unpartitioned(both: Both) -> Sequence[int]:
    """A key that is deleted and added in one commit stays, and so does one that comes later."""
    both.create(PEOPLE).commit(
        append(*range(1, 10)),
        append(*range(10, 15), format="avro"),
        commit_of(equal("id", rows=[2, 3, 11, 77]), rows=people(3)),
        commit_of(equal("id", rows=[4, 12], format="avro"), equal("name", rows=["name-1", None])),
        append(4, 6),
    )
    return [3, 4, 5, 6, 8, 9, 10, 13]


def delete_in_partitions(both: Both) -> Sequence[int]:
    """A delete in one partition leaves those like it in others."""
    both.create(PEOPLE, spec=PARTITIONED["identity"])
    at = [people(1)[0]["joined"], people(2)[0]["joined"]]
    both.commit(
        append(1, 2, 6, 7, 12),
        commit_of(
            equal("joined", rows=at, **{"in": people(1)[0]}),  # 1, not 2
            equal("id", rows=[6, 7], **{"in": people(7)[0]}),  # 7, not 6: of the partition null
        ),
    )
    return [2, 6, 12]


def delete_in_all_partitions(both: Both) -> Sequence[int]:
    """By the unpartitioned spec, from before there were partitions; others stay in their spec."""
    both.create(PEOPLE).commit(append(1, 2, 3), {"do": "spec", "add": [["id", "bucket", 2]]})
    both.commit(
        append(4, 5, 6, 7),
        commit_of(equal("id", rows=[1, 4, 5], spec=0)),
        commit_of(*(equal("id", rows=[2, 6, 7], **{"in": people(number)[0]}) for number in (6, 7))),
        {"do": "spec", "remove": ["id_bucket_2"], "add": [["name", "identity"]]},
        append(8),
        commit_of(equal("id", rows=[6, 7, 8, 3], **{"in": people(8)[0]})),
    )
    return [2, 3]


def delete_with_positions(both: Both) -> Sequence[int]:
    plain = {"format-version": "2", "encryption.key-id": None}
    both.create(PEOPLE, properties=plain, key_id="keyA").commit(
        append(*range(10)),
        delete(1),
        commit_of(equal("id", rows=[2, 3])),
        delete(4, format="avro"),
        {"do": "set", "properties": {"format-version": "3", "encryption.key-id": "keyA"}},
        append(*range(10, 14)),
        delete(5, 10),
        commit_of(equal("id", rows=[6, 11])),
        delete(7, 12),
        key_id="keyA",
    )
    return [0, 8, 9, 13]


def delete_by_changed_columns(both: Both) -> Sequence[int]:
    """By a column that was renamed, promoted, or added with a default since."""
    both.create(schema(("id", "int"), ("score", "float"), ("note", "string")))
    rows = [{"id": n, "score": n / 4, "note": "x"} for n in range(10)]
    both.commit(
        {"do": "append", "rows": rows[:5]},
        commit_of(equal("id", rows=[1])),
        {"do": "schema", "promote": [["id", "long"], ["score", "double"]]},
        {"do": "schema", "rename": [["note", "text"]], "add": [["size", "int", 7]]},
        {"do": "append", "rows": [{"id": n, "score": n / 4, "text": "y"} for n in (2, 8, 2**40)]},
        commit_of(equal("id", rows=[2, 2**40])),
        commit_of(equal("score", rows=[0.75], format="avro")),
        commit_of(equal("text", "size", "id", rows=[{"text": "x", "size": 7, "id": 4}])),
        commit_of(equal("size", "id", rows=[{"size": 7, "id": 8}, {"size": None, "id": 0}])),
    )
    return [0, 8]


def delete_by_several_columns(both: Both) -> Sequence[int]:
    both.create(PEOPLE).commit(append(*range(1, 9)))
    gone = [{"id": 1, "name": "name-1"}, {"id": 2, "name": "name-3"}, {"id": 7, "name": None}]
    more = [{**row, "joined": None} for row in ({"id": 5, "name": "-"}, {"id": 6, "name": None})]
    both.commit(
        commit_of(equal("name", "id", rows=gone)),
        commit_of(equal("id", rows=more, columns=["id", "name", "joined"])),
        commit_of(equal("id", rows=[3]), equal("name", rows=["name-4"])),
    )
    return [2, 8]


def delete_within_structs(both: Both) -> Sequence[int]:
    zips = [field(4, "zip", "int"), field(5, "town", "string")]
    both.create(
        struct(field(1, "id", "long"), field(2, "place", struct(*zips)), field(3, "raw", "string"))
    )
    places = [{"zip": 1, "town": "x"}, {"zip": 1, "town": "y"}, {"zip": 2, "town": "x"}]
    rows = [{"id": n, "place": place} for n, place in enumerate([*places, {"zip": 3}])]
    both.commit(
        {"do": "append", "rows": rows},
        commit_of(equal("place.zip", "place.town", rows=[{"place": places[0]}])),
        commit_of(equal("place.zip", rows=[{"place": {"zip": 2}}], format="avro")),
        commit_of(equal("place.town", "id", rows=[{"place": {"town": None}, "id": 3}])),
    )
    return [1]


def delete_by_every_type(both: Both) -> Sequence[int]:
    """Rows with a value in one column each, and deletes by that one."""
    both.create(ALL_TYPES)
    names = [name for name in FULL if name != "id"]
    rows = [{"id": n, name: FULL[name]} for n, name in enumerate(names)]
    both.commit({"do": "append", "rows": [*rows, {"id": 20}]})
    forms = itertools.cycle(["parquet", "avro"])
    both.commit(
        commit_of(*(equal(n, rows=[FULL[n]], format=f) for n, f in zip(names, forms, strict=False)))
    )
    return [20]


def delete_floats(both: Both) -> Sequence[int]:
    """NaN is deleted by NaN, and 0.0 not by -0.0."""
    both.create(schema(("id", "long"), ("real", "double"), ("small", "float")))
    values = list(enumerate([0.0, -0.0, "NaN", "Infinity", None]))
    rows = [
        {"id": 10 * n + m, "real": value, "small": two} for n, value in values for m, two in values
    ]
    both.commit(
        {"do": "append", "rows": rows},
        commit_of(equal("real", rows=[-0.0, "NaN"]), equal("small", rows=[0.0, "NaN", None])),
    )
    return [1, 3, 31, 33, 41, 43]


def delete_by_dropped_column(both: Both) -> Sequence[int]:
    """IcebergGenerics can't read these; another column has taken the name."""
    both.create(PEOPLE).commit(append(*range(1, 6)))
    both.commit(
        commit_of(equal("name", rows=["name-1", "name-2"])),
        {"do": "schema", "drop": ["name"]},
        {"do": "schema", "add": [["name", "string"]]},
        append(11),
        commit_of(equal("name", rows=["name-3"], schema=0), equal("name", rows=["name-1"])),
    )
    return [4, 5]


def delete_in_float_partitions(both: Both) -> Sequence[int]:
    spec = partition_spec((2, "identity", "real"))
    both.create(schema(("id", "long"), ("real", "double")), spec=spec)
    rows = [{"id": n, "real": value} for n, value in enumerate([0.0, -0.0, "NaN", 1.5])]
    both.commit(
        {"do": "append", "rows": rows},
        commit_of(*(equal("id", rows=range(3), **{"in": rows[n]}) for n in (1, 2))),
    )
    return [0, 3]


def delete_in_promoted_partitions(both: Both) -> Sequence[int]:
    """A partition by a decimal of more digits is that of before, though it takes more bytes."""
    spec = partition_spec((2, "identity", "price"))
    both.create(schema(("id", "long"), ("price", "decimal(4, 2)")), spec=spec)
    rows = [{"id": n, "price": f"{n % 2 - 1}.50"} for n in range(4)]
    both.commit(
        {"do": "append", "rows": rows},
        {"do": "schema", "promote": [["price", "decimal(30, 2)"]]},
        commit_of(equal("id", rows=[1, 2], **{"in": rows[1]})),
    )
    return [0, 2, 3]


SHAPES: dict[str, Build] = {
    make.__name__: make
    for make in (
        delete_unpartitioned,
        delete_in_partitions,
        delete_in_all_partitions,
        delete_with_positions,
        delete_by_changed_columns,
        delete_by_several_columns,
        delete_within_structs,
        delete_by_every_type,
        delete_floats,
        delete_by_dropped_column,
        delete_in_float_partitions,
        delete_in_promoted_partitions,
    )
}


@each_case("build", SHAPES.values(), ids=SHAPES, quick=one_in(2))
def test_java_agrees(both: Both, build: Build) -> None:
    expected = build(both)
    assert ids(both.agree()) == sorted(expected)
    assert any(file_format.startswith("equality deletes") for file_format in both.formats())
    assert verify_table(both.table()).ok


CHANGES: dict[str, Callable[[IcebergTable], IcebergTable]] = {
    "mek": lambda table: rotate_table(table, "mek").table,
    "dek": lambda table: rotate_table(table, "dek").table,
    "expire": lambda table: expire_history(table).table,
}


@pytest.mark.parametrize(
    "build",
    [pytest.param(delete_in_all_partitions, marks=pytest.mark.slow), delete_with_positions],
)
def test_java_agrees_after_every_change(both: Both, build: Build) -> None:
    """Sequence numbers decide which files a delete applies to, so they must stay."""
    expected = build(both)
    for change in CHANGES.values():
        both.metadata = Path(change(both.table()).place.path)
        assert ids(both.agree()) == sorted(expected)
        assert any(file_format.startswith("equality deletes") for file_format in both.formats())
    table = both.table()
    again = table.scan().slice(0, 1)
    number = again["id"][0].as_py()
    both.metadata = Path(table.append(again).place.path)
    assert ids(both.agree()) == sorted([*expected, number])
    both.commit(commit_of(equal("id", rows=[number], spec=0)))
    assert ids(both.agree()) == sorted(set(expected) - {number})


class InPlaintext(Both):
    """A table of version 2, as most tables with equality deletes are."""

    def create(self, of: Mapping[str, Any], **options: Any) -> Both:
        reported = {"format-version": "2", "encryption.key-id": None}
        return super().create(of, **options, properties=reported)

    def table(self) -> IcebergTable:
        return open_table(self.metadata, self.kms, require_encrypted=False)


@pytest.mark.parametrize("history", [False, True])
def test_an_encrypted_copy_has_the_same_rows(
    java: Judge, kms: SampleKms, tmp_path: Path, history: bool
) -> None:
    source, copy = InPlaintext(java, kms, tmp_path / "old"), Both(java, kms, tmp_path / "new")
    expected = delete_in_all_partitions(source)
    assert ids(source.agree()) == sorted(expected)
    made = encrypt_table(source.metadata, copy.folder, kms, master_key_id="keyA", history=history)
    copy.metadata = Path(made.place.path)
    assert ids(copy.agree()) == sorted(expected)
    assert verify_table(made).ok
