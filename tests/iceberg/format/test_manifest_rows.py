"""Rows of manifests of any writer are those that fastavro decodes, also if damaged."""

from __future__ import annotations

import gc
import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from modcrypt.errors import FormatError, LimitError, ModcryptError
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.format import manifests
from modcrypt.iceberg.format.avro_files import read_avro
from modcrypt.iceberg.format.manifest_rows import entry_plan, file_entries, row_scan
from modcrypt.iceberg.format.manifest_rows.entry_plan import STATISTICS
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile, read_manifest
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read import file_pruning
from modcrypt.iceberg.read.file_pruning import bind_test, statistics_of
from modcrypt.iceberg.read.scan_planning import PlannedFile, Planner
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.keys import Secret
from tests.support.iceberg.builder import Builder, avro_file, entry_schema, field, varint
from tests.support.iceberg.builder import struct as struct_type
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.paths import ROOT
from tests.support.randomness import examples

BY_WRITER = ROOT / "spec-vectors" / "by-writer"
COLUMNS = range(1, 4)
PARTITION = [
    {"name": "day", "type": {"type": "int", "logicalType": "date"}, "field-id": 1000},
    {"name": "town", "type": "string", "field-id": 1001},
]


def data_file(number: int, **more: Any) -> dict[str, Any]:
    """Return a `data_file` with statistics of five columns."""
    return {
        "content": 0, "file_path": f"wh://t/data/{number}-ä.parquet", "file_format": "PARQUET",
        "partition": {"day": number // 3, "town": None if number % 2 else "Ulm"},
        "record_count": 10 * number, "file_size_in_bytes": 1 << number,
        "value_counts": [{"key": id_, "value": 300 * id_} for id_ in COLUMNS],
        "null_value_counts": [{"key": id_, "value": number} for id_ in COLUMNS],
        "nan_value_counts": [],
        "lower_bounds": [{"key": id_, "value": bytes([number] * 8)} for id_ in COLUMNS],
        "upper_bounds": [{"key": id_, "value": b"\x7f" * id_} for id_ in COLUMNS],
        "key_metadata": bytes(range(40)), "equality_ids": [1, 2] if number == 1 else None,
        "referenced_data_file": "wh://t/data/x.parquet" if number == 2 else None,
        "content_offset": 4 if number == 2 else None, **more,
    }  # fmt: skip


ROWS: list[dict[str, Any]] = [
    {"status": number % 3, "snapshot_id": None if number else 7, "data_file": data_file(number)}
    for number in range(3)
]
SCHEMA = entry_schema(PARTITION)
ADDED_BY = {"manifest_path": "m.avro", "added_snapshot_id": 9}


def manifest_row(sequence_number: int = 5) -> ManifestFile:
    return ManifestFile("m.avro", 100, 0, 0, sequence_number, 9, None, ADDED_BY)


def expected_entries(data: bytes, manifest: ManifestFile) -> list[tuple[Any, ...]]:
    """Return the entries of a manifest as fastavro decodes it."""
    avro = read_avro(data, "x")
    names, found = manifests._entry_names(avro), []
    for record in avro.records:
        file = {names.file_names.get(name, name): v for name, v in record[names.file].items()}
        row = {names.names.get(name, name): value for name, value in record.items()}
        status = row["status"]
        inherited = manifests._inherited_numbers(status, manifest)
        own = [row.get(n) for n in ("snapshot_id", "sequence_number", "file_sequence_number")]
        numbers = [new if old is None else old for old, new in zip(own, inherited, strict=True)]
        found.append((
            status, *numbers, file.get("content") or 0, file["file_path"],
            file["file_format"].upper(), file["record_count"], file["file_size_in_bytes"],
            file.get("key_metadata"), file["partition"], file,
        ))  # fmt: skip
    return found


def own_entries(entries: Iterable[FileEntry]) -> list[tuple[Any, ...]]:
    return [
        (
            entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number,
            entry.content, entry.location, entry.file_format, entry.record_count, entry.size,
            entry.key_metadata, entry.partition, reveal(entry.file),
        )
        for entry in entries
    ]  # fmt: skip


def reveal(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return all members of a file; those that are read at once are the ones that are decoded."""
    decoded = dict(file)
    for name, value in decoded.items():
        assert file.get(name) == value
    key = decoded.get("key_metadata")
    return decoded if key is None else {**decoded, "key_metadata": key()}


# --- real writers --------------------------------------------------------------------------------


def check_manifests(walk: Walk) -> int:
    """Check all manifests of a table; return the number of their rows."""
    rows = 0
    for snapshot in walk.metadata.snapshots:
        for manifest in walk.manifests(snapshot):
            keys = walk.manifest_keys(manifest)
            data = walk.read(manifest.location, keys, manifest.length)
            entries = walk.entries(manifest)
            assert own_entries(entries) == expected_entries(data, manifest)
            rows += len(entries)
    return rows


def test_tables_of_java_and_spark() -> None:
    files = sorted(BY_WRITER.glob("iceberg-*/**/*.metadata.json"))
    found = [check_manifests(open_table(path, SampleKms()).walk) for path in files]
    assert len(found) > 2
    assert sum(found) > 30


def test_a_table_of_java_classes(t16: Path) -> None:
    assert check_manifests(open_table(t16, SampleKms(), location_map=both(t16)).walk) > 3


def test_tables_of_pyiceberg(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    rows = pa.table({"id": range(9), "name": ["a", "b", None] * 3, "ratio": [0.5] * 9})
    table = catalog.create_table("shop.orders", rows.schema)
    with table.update_spec() as update:
        update.add_identity("name")
    for _ in range(2):
        table.append(rows)
    table.delete("id = 4")
    catalog.close()
    ours = open_table(table.metadata_location, SampleKms(), require_encrypted=False)
    assert check_manifests(ours.walk) > 10


@pytest.mark.parametrize("sequence_number", [0, 5])
def test_tables_of_fastavro(sequence_number: int) -> None:
    data, manifest = avro_file(SCHEMA, ROWS), manifest_row(sequence_number)
    assert own_entries(read_manifest(data, manifest, "x")) == expected_entries(data, manifest)


def test_odd_schemas() -> None:
    """Other names, orders and types; the same record elsewhere; values of any type."""
    text = json.dumps(SCHEMA).replace('"file_path"', '"path"').replace('"status"', '"state"')
    schema = json.loads(text)
    again: dict[str, Any] = {"name": "again", "type": ["null", "r2"], "default": None}
    kinds: list[Any] = [
        "float", "double", "boolean", {"type": "fixed", "name": "f", "size": 3},
        {"type": "enum", "name": "e", "symbols": ["A", "B"]}, {"type": "map", "values": "long"},
        {"type": "array", "items": ["null", "string", "e"]},
    ]  # fmt: skip
    more = [{"name": f"x{n}", "type": kind} for n, kind in enumerate(kinds)]
    schema["fields"] += [again, *more]
    odd = {"x0": 0.5, "x1": 2.5, "x2": True, "x3": b"abc", "x4": "B", "x5": {"ö": 1 << 40}}
    rows = []
    for row in ROWS:
        file = dict(row["data_file"])
        file["path"] = file.pop("file_path")
        rows.append({
            "state": row["status"], "data_file": file, "again": {**file, "path": "another"},
            **odd, "x6": [None, "y", "A"],
        })  # fmt: skip
    data, manifest = avro_file(schema, rows), manifest_row()
    assert own_entries(read_manifest(data, manifest, "x")) == expected_entries(data, manifest)


def test_records_that_double() -> None:
    """A schema whose types would be 2^40 if they were written out."""
    last: Any = "long"
    kinds: list[Any] = []
    for number in range(40):
        fields = [{"name": "a", "type": last}, {"name": "b", "type": last}]
        kinds.append({"type": "record", "name": f"d{number}", "fields": fields})
        last = {"type": "array", "items": f"d{number}"}
    schema = entry_schema([])
    schema["fields"] += [
        {"name": kind["name"], "type": ["null", kind], "default": None} for kind in kinds
    ]
    data = avro_file(schema, [{"status": 1, "data_file": {**data_file(1), "partition": {}}}])
    (entry,) = read_manifest(data, manifest_row(), "x")
    assert entry.record_count == 10


# --- hostile bytes -------------------------------------------------------------------------------

FILE = avro_file(SCHEMA, ROWS, codec="null")
SYNC = FILE[-16:]
HEADER, BODY = FILE.split(SYNC)[0] + SYNC, FILE.split(SYNC)[1]
BLOCK = BODY[len(varint(len(ROWS)) + varint(len(BODY) - 4)) :]


def framed(rows: bytes, count: int = len(ROWS)) -> bytes:
    return HEADER + varint(count) + varint(len(rows)) + rows + SYNC


def check_damaged(data: bytes) -> bool:
    """Return whether a damaged manifest is refused; otherwise its rows are fastavro's."""
    try:
        entries = list(read_manifest(data, manifest_row(), "x"))
    except (FormatError, LimitError):
        return True
    assert repr(own_entries(entries)) == repr(expected_entries(data, manifest_row()))  # NaN
    return False


def test_the_block_is_found() -> None:
    assert framed(BLOCK) == FILE
    assert not check_damaged(FILE)


def test_every_truncation() -> None:
    assert all(check_damaged(framed(BLOCK[:size])) for size in range(len(BLOCK)))
    assert all(check_damaged(framed(BLOCK[size:])) for size in range(1, len(BLOCK)))
    assert check_damaged(framed(BLOCK + b"\0"))
    assert check_damaged(framed(BLOCK, len(ROWS) + 1))


@pytest.mark.parametrize("bits", [0x01, 0x82])
def test_every_flipped_byte(bits: int) -> None:
    refused = 0
    for at in range(len(BLOCK)):
        refused += check_damaged(framed(BLOCK[:at] + bytes([BLOCK[at] ^ bits]) + BLOCK[at + 1 :]))
    assert refused > len(BLOCK) / 20


@settings(max_examples=examples(1000))
@given(st.data())
def test_damaged_rows(data: st.DataObject) -> None:
    rows = bytearray(BLOCK)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rows) - 1))
        rows[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    check_damaged(framed(bytes(rows)))


@pytest.mark.parametrize(
    "count", [varint(1 << 40), varint(-(1 << 40)) + varint(9), b"\xff" * 9 + b"\x01", b"\xff" * 11]
)
def test_counts_that_no_bytes_hold(count: bytes) -> None:
    """The first array of a row follows its numbers."""
    begin = BLOCK.index(varint(len(COLUMNS)) + varint(1) + varint(300))
    with pytest.raises(FormatError):
        read_manifest(framed(BLOCK[:begin] + count + BLOCK[begin + 1 :]), manifest_row(), "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("record_count", -1), ("file_size_in_bytes", -5), ("content", 3), ("content", -1)],
)
def test_invalid_values_are_named(name: str, value: int) -> None:
    rows = [{"status": 1, "data_file": data_file(1, **{name: value})}]
    with pytest.raises(FormatError, match=f"x: {name} of a row"):
        read_manifest(avro_file(SCHEMA, rows), manifest_row(), "x")


def test_a_row_hides_its_key() -> None:
    (entry,) = read_manifest(avro_file(SCHEMA, ROWS[:1]), manifest_row(), "x")
    for _ in range(2):
        assert "\\x07" not in repr(entry.file._values)  # type: ignore[attr-defined]
        assert "\\x07" not in repr(entry) + repr(entry.file) + str(dict(entry.file))
        with pytest.raises(TypeError, match="can't be pickled"):
            entry.file.__reduce__()


# --- statistics ----------------------------------------------------------------------------------

TABLE = Schema(
    NestedField(1, "a", LongType()), NestedField(2, "b", StringType()),
    NestedField(3, "c", DoubleType()), NestedField(4, "d", IntegerType()),
)  # fmt: skip
NUMBERS = st.integers(-3, 3)
BOUNDS = {
    1: NUMBERS.map(struct.Struct("<q").pack),
    2: st.text("ab", max_size=2).map(str.encode),
    3: st.sampled_from([-1.0, 0.0, 2.0, float("nan")]).map(struct.Struct("<d").pack),
    4: NUMBERS.map(struct.Struct("<i").pack),
}
OPERATORS = st.sampled_from(["<", "<=", ">", ">=", "=", "!="])
TEXTS = st.text("ab", max_size=2).map("'{}'".format)
PREDICATES = (
    st.builds("a {} {}".format, OPERATORS, NUMBERS)
    | st.builds("b {} {}".format, OPERATORS, TEXTS)
    | st.builds("c {} {}.5".format, OPERATORS, st.integers(-2, 2))
    | st.builds("d {} {}".format, OPERATORS, NUMBERS)
    | st.builds("{} is {}null".format, st.sampled_from("abcd"), st.sampled_from(["", "not "]))
    | st.builds("d {}in ({}, {})".format, st.sampled_from(["", "not "]), NUMBERS, NUMBERS)
    | st.builds("b {}like '{}%'".format, st.sampled_from(["", "not "]), st.text("ab", min_size=1))
    | st.sampled_from(["c is nan", "c is not nan"])
)
FILTERS = st.recursive(
    PREDICATES,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=4,
)


def pairs(draw: st.DrawFn, values: Mapping[int, st.SearchStrategy[Any]]) -> Any:
    ids = draw(st.none() | st.lists(st.sampled_from(sorted(values)), max_size=5))
    return None if ids is None else [{"key": id_, "value": draw(values[id_])} for id_ in ids]


@st.composite
def statistics(draw: st.DrawFn) -> dict[str, Any]:
    counts = dict.fromkeys(BOUNDS, st.integers(0, 2))
    found = {
        name: pairs(draw, counts)
        for name in ("value_counts", "null_value_counts", "nan_value_counts")
    }
    return {
        **found, "lower_bounds": pairs(draw, BOUNDS), "upper_bounds": pairs(draw, BOUNDS),
        "record_count": draw(st.integers(0, 2)),
    }  # fmt: skip


def as_pyiceberg(entry: FileEntry) -> Any:
    maps = {
        name: {pair["key"]: pair["value"] for pair in entry.file.get(name) or ()}
        for name in STATISTICS
    }
    return SimpleNamespace(record_count=entry.record_count, **maps)


@settings(max_examples=examples(300))
@given(FILTERS.map(parse), st.lists(statistics(), min_size=1, max_size=3))
def test_files_are_excluded_as_pyiceberg_does(
    row_filter: BooleanExpression, found: list[dict[str, Any]]
) -> None:
    rows = [{"status": 1, "data_file": data_file(1, **each)} for each in found]
    data, test = avro_file(SCHEMA, rows), bind_test(TABLE, row_filter)
    entries = list(read_manifest(data, manifest_row(), "x"))
    theirs = _InclusiveMetricsEvaluator(TABLE, row_filter)
    expected = [bool(theirs.eval(as_pyiceberg(entry))) for entry in entries]
    assert [test([statistics_of(entry)])[0] for entry in entries] == expected
    kept = read_manifest(
        data, manifest_row(), "x", choose=lambda rows, _: [*itertools.compress(rows, test(rows))]
    )
    assert [reveal(entry.file) for entry in kept] == [
        reveal(entry.file) for entry, keeps in zip(entries, expected, strict=True) if keeps
    ]


def with_bound(number: int, bound: bytes, nulls: int) -> dict[str, Any]:
    """Return a file of two rows with a lower bound and a number of nulls of a column."""
    return data_file(
        number, record_count=2, partition={}, lower_bounds=[{"key": 1, "value": bound}],
        value_counts=[{"key": 1, "value": 2}], null_value_counts=[{"key": 1, "value": nulls}],
    )  # fmt: skip


def plan_of(tmp_path: Path, files: list[dict[str, Any]], text: str) -> list[str]:
    """Return the locations of the files that a filter leaves."""
    builder = Builder(tmp_path / "t", struct_type(field(1, "id", "long")))
    builder.snapshot([builder.manifest(files)])
    table = open_table(builder.write(), SampleKms())
    snapshot = table.snapshot()
    assert snapshot is not None
    planner = Planner(table.walk, schema_of(table.metadata), parse(text))
    return [file.data.location for file in planner.files(snapshot)]


SMALL, LARGE = (number.to_bytes(8, "little") for number in (1, 9))


def test_damaged_bounds_of_a_column_without_values_do_not_count(tmp_path: Path) -> None:
    files = [with_bound(1, LARGE, 0), with_bound(2, b"???", 2), with_bound(3, SMALL, 0)]
    assert plan_of(tmp_path, files, "id < 5") == [files[2]["file_path"]]


def test_damaged_bounds_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    files = [with_bound(1, LARGE, 0), with_bound(2, b"???", 1), with_bound(3, SMALL, 0)]
    with pytest.raises(FormatError, match="2-ä"):
        plan_of(tmp_path, files, "id < 5")


# --- cost ----------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table of 60 files in 3 manifests and 3 partitions."""
    return make_table(tmp_path)


def make_table(tmp_path: Path, *deletes: dict[str, Any]) -> IcebergTable:
    """Make a table, whose last snapshot has these delete files."""
    schema = struct_type(field(1, "id", "long"), field(2, "name", "string"))
    spec = [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "truncate[20]"}]
    partition = [{"name": "p", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path / "t", schema, spec=spec, partition=partition)
    for first in range(0, 60, 20):
        files = [
            data_file(
                1, file_path=f"{builder.location}/data/{n}.parquet", partition={"p": first},
                lower_bounds=[{"key": 1, "value": struct.pack("<q", n)}],
                upper_bounds=[{"key": 1, "value": struct.pack("<q", n)}],
            )
            for n in range(first, first + 20)
        ]  # fmt: skip
        before = list(builder.document.get("lists", ()))
        builder.document["lists"] = [*before, builder.manifest(files)]
        builder.snapshot(builder.document["lists"])
    lists = builder.document.pop("lists")
    if deletes:
        builder.snapshot([*lists, builder.manifest(deletes, content=1)])
    return open_table(builder.write(), SampleKms())


@pytest.mark.parametrize(
    ("text", "files", "read"),
    [(None, 60, 3), ("id >= 0", 60, 3), ("id = 21", 1, 3), ("id = 21 and name > 'a'", 1, 3)],
)
def test_a_plan_decodes_what_it_needs(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, text: str | None, files: int, read: int
) -> None:
    """An entry for each planned file, a partition for each manifest; each of these is read once."""
    partitions: dict[int, dict[bytes, Any]] = {}
    scan_rows, make_entry = row_scan.scan_rows, file_entries.make_entry
    made: list[Any] = []

    def scan(*arguments: Any) -> Any:
        partitions[id(arguments[-1])] = arguments[-1]
        return scan_rows(*arguments)

    def make(*arguments: Any) -> Any:
        made.append(make_entry(*arguments))
        return made[-1]

    monkeypatch.setattr(entry_plan, "scan_rows", scan)
    monkeypatch.setattr(manifests, "make_entry", make)
    reads = count_calls(monkeypatch, Walk, "read")
    snapshot = table.snapshot()
    assert snapshot is not None
    row_filter = AlwaysTrue() if text is None else parse(text)
    planner = Planner(table.walk, schema_of(table.metadata), row_filter)
    planned = list(planner.files(snapshot))
    assert len(planned) == len(made) == files
    assert sum(map(len, partitions.values())) == len(partitions) == read
    assert len(reads) == 1 + read
    assert len({id(file.constants) for file in planned}) <= 3


def test_a_filter_asks_bounds_for_a_block_and_counts_for_what_these_leave(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = count_calls(monkeypatch, file_pruning, "find_statistics")
    counts = count_calls(monkeypatch, file_pruning, "lacks_values")
    snapshot = table.snapshot()
    assert snapshot is not None
    planner = Planner(table.walk, schema_of(table.metadata), parse("id = 21"))
    assert len(list(planner.files(snapshot))) == len(counts) == 1
    assert len(bounds) == 3 * 2  # lower and upper bounds of the only block of each manifest


@pytest.mark.parametrize(("content", "read"), [(0, 1 + 1), (1, 1 + 2), (2, 1 + 4)])
def test_manifests_are_read_when_their_files_are_needed(
    content: int, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the list and delete files; equality deletes may be older than all data files."""
    kind = {"content": content, "equality_ids": [1] if content == 2 else None}
    delete = data_file(1, file_path=f"{tmp_path}/t/d.parquet", partition={"p": 0}, **kind)
    table = make_table(tmp_path, *[delete] * bool(content))
    reads = count_calls(monkeypatch, Walk, "read")
    snapshot = table.snapshot()
    assert snapshot is not None
    planned = Planner(table.walk, schema_of(table.metadata), AlwaysTrue()).files(snapshot)
    assert len(next(planned).deletes) == (content == 1)
    assert len(reads) == read
    assert sum(1 for _ in planned) == 59


def test_a_planned_file_takes_few_objects(table: IcebergTable) -> None:
    """Of those that Python's garbage collector visits, when it stops for all of them."""
    snapshot = table.snapshot()
    assert snapshot is not None
    gc.collect()
    before = set(map(id, gc.get_objects()))
    planned = list(Planner(table.walk, schema_of(table.metadata), AlwaysTrue()).files(snapshot))
    gc.collect()
    found = Counter(type(item) for item in gc.get_objects() if id(item) not in before)
    kinds = {PlannedFile: 1, FileEntry: 1, entry_plan.StoredFile: 0, Secret: 2, dict: 0}
    assert {kind: found[kind] // len(planned) for kind in kinds} == kinds
    assert planned[0].data.file["file_path"] == planned[0].data.location


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[object]:
    """Return a list that gets an item with each call of a function."""
    calls, function = list[object](), getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_damage_is_a_fault_of_the_manifest(table: IcebergTable) -> None:
    snapshot = table.snapshot()
    assert snapshot is not None
    (first, *_) = table.walk.manifests(snapshot)
    path = Path(table.walk.place(first.location).path)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModcryptError):
        table.walk.entries(first)
