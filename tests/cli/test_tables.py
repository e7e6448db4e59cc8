"""`modcrypt schema`, `head` and `cat`, their outputs judged by PyArrow, pandas and json."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import os
import re
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt.cli.output.rows import format_rows
from modcrypt.cli.output.text_table import align_cells, format_cell
from tests.support.cases import each_case
from tests.support.cli.forked import as_process
from tests.support.cli.program import (
    KEY,
    PROGRAM,
    check_failure,
    environment,
    examples_of,
    invoke,
    private,
    run,
    run_on_terminal,
)
from tests.support.folder_contents import names
from tests.support.forging import flip
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.module_spans import list_modules
from tests.support.tables import small_table, write_plain

NAME_KEY = ("--column-key", "name=file:name.key", "--column-key", "address.zip=file:name.key")
RING = ("--kms", "file:lake.keyring")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with plain.parquet, its keys and sealed.parquet, under a sealed footer."""
    write_plain(tmp_path / "plain.parquet")
    private(tmp_path / "footer.key", FOOTER_KEY)
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode() + b"\n")
    write_sealed(tmp_path, column_keys={"name": COLUMN_KEY, "address.zip": COLUMN_KEY})
    return tmp_path


def write_sealed(folder: Path, name: str = "sealed.parquet", **how: Any) -> Path:
    properties = modcrypt.FileEncryptionProperties(
        **{"footer_key": FOOTER_KEY, "plaintext_columns": ["flag"], **how}
    )
    modcrypt.encrypt_parquet(folder / "plain.parquet", folder / name, properties)
    return folder / name


def write_clear(folder: Path, table: pa.Table, **options: Any) -> Path:
    """Seal a table of the test's own, all under the footer key."""
    write_plain(folder / "plain.parquet", table, **options)
    return write_sealed(folder, "own.parquet", plaintext_columns=())


def lake(folder: Path, **how: Any) -> pa.Table:
    """Write the folder `lake` of two countries; return its rows in the order of its files."""
    countries = pa.array(["NO" if n % 2 else "SE" for n in range(50)])
    table = small_table().append_column("country", countries)
    properties = modcrypt.FileEncryptionProperties(footer_key=FOOTER_KEY)
    modcrypt.write_dataset(table, folder / "lake", properties, partitioning=["country"], **how)
    return table.sort_by([("country", "ascending"), ("id", "ascending")])


def run_ok(folder: Path, *arguments: str, stderr: str = "") -> str:
    """Run a command that must succeed, in this process; return stdout."""
    result = invoke(folder, *arguments)
    assert (result.exit_code, result.stderr) == (0, stderr)
    return result.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- schema --------------------------------------------------------------------------------------


def test_the_footer_key_shows_the_arrow_schema_and_every_columns_key(folder: Path) -> None:
    reported = json.loads(run_ok(folder, "schema", *KEY, "--json", "sealed.parquet"))
    theirs = pq.read_schema(folder / "plain.parquet")
    assert [(field["name"], field["type"], field["nullable"]) for field in reported["fields"]] == [
        (field.name, str(field.type), field.nullable) for field in theirs
    ]
    paths = pq.read_metadata(folder / "plain.parquet").schema
    assert [column["column"] for column in reported["columns"]] == [
        paths.column(number).path for number in range(len(paths))
    ]
    keys = {column["column"]: column["key"] for column in reported["columns"]}
    assert keys.pop("flag") == "plaintext"
    assert (keys.pop("name"), keys.pop("address.zip")) == ("column key", "column key")
    assert set(keys.values()) == {"footer key"}
    head = {name: reported[name] for name in ("encrypted", "footer", "authenticated", "files")}
    assert head == {"encrypted": True, "footer": "encrypted", "authenticated": True, "files": 1}


def test_the_table_reports_the_keys_within_a_group(folder: Path) -> None:
    text = run_ok(folder, "schema", *KEY, "sealed.parquet")
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert rows[0] == ["column", "type", "nullable", "key"]
    assert ["flag", "bool", "yes", "plaintext"] in rows
    assert ["address.zip", "byte_array (STRING)", "-", "column key"] in rows
    assert ["address.city", "byte_array (STRING)", "-", "footer key"] in rows


def test_parquet_text_has_the_structure_that_pyarrow_shows(folder: Path) -> None:
    table = small_table().append_column(
        "m", pa.array([[("k", [1])]] * 50, pa.map_(pa.string(), pa.list_(pa.int32())))
    )
    write_clear(folder, table)
    ours = run_ok(folder, "schema", "--parquet", *KEY, "own.parquet")
    theirs = str(pq.ParquetFile(folder / "plain.parquet").schema).split("{", 1)[1]
    shape = re.compile(
        r"^( *)(optional|required|repeated) (group|\S+) (?:field_id=-?\d+ )?(\w+)", re.MULTILINE
    )
    shown = shape.findall(ours)
    assert [(depth, how, name) for depth, how, _, name in shown] == [
        (depth, how, name) for depth, how, _, name in shape.findall(theirs)
    ]
    groups = [name for _, _, kind, name in shown if kind == "group"]
    assert groups == [name for _, _, kind, name in shape.findall(theirs) if kind == "group"]
    assert ours.count("{") == ours.count("}") == theirs.count("{") + 1
    leaves = [line for line in ours.splitlines() if ";" in line]
    assert all(line.endswith("# footer key") for line in leaves)


def test_master_keys_are_reported_where_the_key_service_opens_the_footer(folder: Path) -> None:
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer"), ring.create_key("pii")
    how = modcrypt.Policy(footer_key="footer", column_keys={"pii": ["name"]})
    encryption = modcrypt.KeyTools(ring).encryption(how)
    modcrypt.encrypt_parquet(folder / "plain.parquet", folder / "kms.parquet", encryption)
    assert "column key under pii" in run_ok(folder, "schema", *RING, "kms.parquet")
    reported = json.loads(run_ok(folder, "schema", *RING, "--json", "kms.parquet"))
    masters = {column["column"]: column["master_key"] for column in reported["columns"]}
    assert {name for name, master in masters.items() if master == "pii"} == {"name"}


def test_a_signed_schema_is_trusted_by_request_alone(folder: Path) -> None:
    write_sealed(folder, "signed.parquet", plaintext_footer=True)
    assert "--no-check-footer" in check_failure(
        run(folder, "schema", "signed.parquet"), 3, "no-key"
    )
    unchecked = invoke(folder, "schema", "--no-check-footer", "--json", "signed.parquet")
    assert unchecked.stderr.startswith("modcrypt: warning: the footer's signature is not verified")
    reported = json.loads(unchecked.stdout)
    assert (reported["footer"], reported["authenticated"]) == ("plaintext", False)
    assert json.loads(run_ok(folder, "schema", *KEY, "--json", "signed.parquet"))["authenticated"]
    flip(folder / "signed.parquet", (folder / "signed.parquet").stat().st_size - 20)
    check_failure(run(folder, "schema", *KEY, "signed.parquet"), 1, "signature")


@pytest.mark.parametrize("command", ["schema", "head", "cat"])
def test_plaintext_files_are_read_by_request_alone(folder: Path, command: str) -> None:
    check_failure(run(folder, command, *KEY, "plain.parquet"), 1, "plaintext")
    assert invoke(folder, command, "--allow-plaintext", "plain.parquet").exit_code == 0


def test_a_plaintext_files_schema_comes_with_a_warning(folder: Path) -> None:
    answer = invoke(folder, "schema", "--allow-plaintext", "--json", "plain.parquet")
    assert "the file is not encrypted" in answer.stderr
    reported = json.loads(answer.stdout)
    assert (reported["encrypted"], reported["authenticated"]) == (False, False)


def test_the_schema_of_a_folder_has_what_its_folders_spell(folder: Path) -> None:
    lake(folder)
    reported = json.loads(run_ok(folder, "schema", *KEY, "--json", "lake"))
    assert reported["files"] == 2
    assert reported["fields"][-1] == {
        "name": "country", "type": "string", "nullable": True, "partition": True,
    }  # fmt: skip
    assert run_ok(folder, "schema", *KEY, "lake").splitlines()[-1].endswith("(folder)")


def test_hostile_names_cannot_forge_lines_or_colours(folder: Path) -> None:
    hostile = "a\n}  # footer key\x1b[2J"
    write_clear(folder, pa.table({hostile: ["b\nc\x1b[2J\u202e"], "ok": [1]}))
    for command in (("schema",), ("schema", "--parquet"), ("schema", "--json"), ("head",)):
        text = run_ok(folder, *command, *KEY, "own.parquet")
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "a\n}" not in text
    assert len(run_ok(folder, "head", *KEY, "own.parquet").splitlines()) == 2


# --- head ----------------------------------------------------------------------------------------


def test_head_shows_the_first_rows_and_nulls(folder: Path) -> None:
    text = run_ok(
        folder, "head", "-n", "3", *KEY, *NAME_KEY, "--columns", "name,id", "sealed.parquet"
    )
    assert text.splitlines() == ["name    id", "null     0", "name-1   1", "name-2   2"]


def test_head_as_json_is_the_first_rows(folder: Path) -> None:
    options = ("--columns", "id,name,day", "--column", "flag", "--json")
    rows = lines(run_ok(folder, "head", "-n", "8", *KEY, *NAME_KEY, *options, "sealed.parquet"))
    theirs = small_table().select(["id", "name", "day", "flag"]).slice(0, 8).to_pylist()
    assert rows == [{**row, "day": row["day"].isoformat()} for row in theirs]


@pytest.mark.parametrize(("count", "rows"), [("0", 0), ("49", 49), ("50", 50), ("1000", 50)])
def test_head_gives_no_more_rows_than_asked_for_or_there(
    folder: Path, count: str, rows: int
) -> None:
    text = run_ok(folder, "head", "-n", count, *KEY, "--column", "id", "sealed.parquet")
    assert text.split() == ["id", *map(str, range(rows))]


@each_case(
    ("conditions", "ids"),
    [
        (["id = 7"], [7]),
        (["id >= 47", "id != 48"], [47, 49]),
        (["name is null", "id < 10"], [0, 7]),
        (["name IS NOT NULL", "id<3"], [1, 2]),
        (["day > '2026-01-27'", "id < 28"], [27]),
        (["price = 1.25"], [5]),
        (["address.zip = 00009"], [9]),
        (["flag == true", "id <= 3"], [0, 3]),
        (["id = 1 or id >= 48 and id < 49"], [1, 48]),
        (["id < 3 OR id = 7", "id > 1"], [2, 7]),
        (["name is null and id < 10 or day = '2026-01-28' and id < 28"], [0, 7, 27]),
        (["name = 'a or id = 1' or id = 2"], [2]),
        (["id >= 47", "id != 48 and id != 47"], [49]),
    ],
)
def test_where_keeps_the_rows_for_which_it_is_true(
    folder: Path, conditions: list[str], ids: list[int]
) -> None:
    where = [part for condition in conditions for part in ("--where", condition)]
    options = (*KEY, *NAME_KEY, "--column", "id", "sealed.parquet")
    assert lines(run_ok(folder, "head", "--json", *where, *options)) == [{"id": n} for n in ids]
    assert lines(run_ok(folder, "cat", *where, *options)) == [{"id": n} for n in ids]


def test_the_longest_name_that_fits_is_meant_by_a_condition(folder: Path) -> None:
    write_clear(folder, pa.table({"a": ["b = 1", "x"], "a = b": [1, 2]}))
    rows = lines(run_ok(folder, "cat", *KEY, "--where", "a = b = 1", "own.parquet"))
    assert rows == [{"a": "b = 1", "a = b": 1}]


def test_uuids_are_compared_with_their_text(folder: Path) -> None:
    ids = [uuid.UUID(int=5), None, uuid.UUID(int=6)]
    write_clear(folder, pa.table({"id": pa.array(ids, pa.uuid()), "n": [1, 2, 3]}))
    cat = ("cat", *KEY, "--column", "n", "--where")
    assert lines(run_ok(folder, *cat, f"id = {ids[0]}", "own.parquet")) == [{"n": 1}]
    assert "id has the type" in run(folder, *cat, "id = 5", "own.parquet").stderr


def test_head_does_not_read_what_it_does_not_show(folder: Path) -> None:
    """Damage in the second row group, and in a column that is not asked for."""
    path = write_clear(
        folder, pa.table({"id": range(200), "other": range(200)}), row_group_size=100
    )
    spans = list_modules(path, modcrypt.FileDecryptionProperties(footer_key=FOOTER_KEY))
    pages = [s for s in spans if s.module.type.name == "DATA_PAGE"]
    for span in pages:
        if span.module.row_group == 1 or span.module.path == "other":
            flip(path, span.end - 1)
    options = (*KEY, "--column", "id", "own.parquet")
    assert run_ok(folder, "head", "-n", "100", *options).split()[-1] == "99"
    check_failure(run(folder, "head", "-n", "101", *options), 1, "tag")
    check_failure(run(folder, "head", "-n", "1", *KEY, "own.parquet"), 1, "tag")


def test_head_opens_single_pages_where_a_page_index_leads_to_them(folder: Path) -> None:
    how = {"write_page_index": True, "data_page_size": 800, "write_batch_size": 100}
    ids = pa.table({"id": pa.array(range(1000), pa.int64())})
    path = write_clear(folder, ids, use_dictionary=False, compression="none", **how)
    properties = modcrypt.FileDecryptionProperties(footer_key=FOOTER_KEY)
    spans = list_modules(path, properties)
    pages = [span for span in spans if span.module.type.name == "DATA_PAGE"]
    assert len(pages) == 10
    flip(path, pages[2].end - 1)
    assert run_ok(folder, "head", "-n", "200", *KEY, "own.parquet").split()[-1] == "199"
    check_failure(run(folder, "head", "-n", "201", *KEY, "own.parquet"), 1, "tag")


def test_long_values_are_cut_and_those_like_null_quoted(folder: Path) -> None:
    write_clear(folder, pa.table({"text": ["x" * 10_000, "", "null", None], "n": [1, 22, 3, 4]}))
    shown = run_ok(folder, "head", *KEY, "own.parquet").splitlines()
    assert shown[0] == "text" + " " * 36 + "   n"
    assert shown[1] == "x" * 39 + "…   1"
    assert [line.split()[0] for line in shown[2:]] == ['""', '"null"', "null"]
    whole = run_ok(folder, "head", "--json", *KEY, "own.parquet")
    assert lines(whole)[0]["text"] == "x" * 10_000


def test_wide_characters_keep_the_columns_straight() -> None:
    text, hidden = align_cells(
        ["a", "b"], [[format_cell("漢字"), "1"], [format_cell("e\u0301"), "2"]], right=[1]
    )
    assert (text.splitlines(), hidden) == (["a     b", "漢字  1", "e\u0301     2"], 0)


def on_terminal(folder: Path, columns: int, *arguments: str) -> tuple[int, str, str]:
    """Run it with stdout on a terminal; return the exit code, what is shown there, and stderr."""
    env = {name: value for name, value in environment().items() if name != "COLUMNS"}
    answer, shown = run_on_terminal(folder, [PROGRAM, *arguments], "stdout", columns, env)
    return answer.returncode, shown, answer.stderr.decode()


def test_a_narrow_terminal_gets_the_columns_that_fit(folder: Path) -> None:
    options = ("head", "-n", "2", *KEY, *NAME_KEY, "sealed.parquet")
    code, shown, said = on_terminal(folder, 30, *options)
    assert (code, shown.splitlines()[0]) == (0, "\x1b[1mid  name    price  score\x1b[0m")
    assert "4 more columns" in said
    whole = run(folder, *options)
    assert whole.stdout.splitlines()[0].split()[-1] == "tags"
    assert whole.stderr == ""


# --- cat -----------------------------------------------------------------------------------------


def test_pyarrow_reads_the_arrow_stream(folder: Path) -> None:
    options = ("cat", "--format", "arrow", *KEY, *NAME_KEY, "sealed.parquet")
    answer = subprocess.run(
        [PROGRAM, *options], cwd=folder, env=environment(), capture_output=True, check=True
    )
    assert pa.ipc.open_stream(answer.stdout).read_all().equals(small_table())
    assert answer.stderr == b""


def test_pandas_reads_the_lines_of_json(folder: Path) -> None:
    text = run_ok(folder, "cat", *KEY, *NAME_KEY, "sealed.parquet")
    theirs = small_table().to_pandas()
    ours = pd.read_json(io.StringIO(text), lines=True, dtype=False)
    assert list(ours) == list(theirs)
    assert ours["id"].tolist() == theirs["id"].tolist()
    assert ours["score"].tolist() == theirs["score"].tolist()
    assert [decimal.Decimal(price) for price in ours["price"]] == theirs["price"].tolist()
    days = [datetime.date.fromisoformat(day) for day in ours["day"]]
    assert days == theirs["day"].tolist()
    rows = lines(text)
    assert [row["name"] for row in rows] == small_table()["name"].to_pylist()
    assert [row["tags"] for row in rows] == small_table()["tags"].to_pylist()
    assert [row["address"] for row in rows] == small_table()["address"].to_pylist()


def test_pyarrow_reads_the_csv(folder: Path) -> None:
    text = run_ok(folder, "cat", "--format", "csv", *KEY, *NAME_KEY, "sealed.parquet")
    flat = small_table().drop_columns(["address", "tags"])
    how = pyarrow.csv.ConvertOptions(
        column_types=flat.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    ours = pyarrow.csv.read_csv(io.BytesIO(text.encode()), convert_options=how)
    assert ours.drop_columns(["address", "tags"]).equals(flat)
    nested = list(csv.DictReader(io.StringIO(text)))
    assert [json.loads(row["tags"]) for row in nested] == small_table()["tags"].to_pylist()
    assert [json.loads(row["address"]) for row in nested] == small_table()["address"].to_pylist()


def special() -> tuple[pa.Table, list[dict[str, Any]]]:
    """Return values that JSON has no form for, and their spelling."""
    unknown = pa.map_(pa.string(), pa.timestamp("us", "Evil/Zone"))
    number = uuid.UUID(int=7)
    fields: dict[str, tuple[pa.DataType, Any, Any]] = {
        "naive": (pa.timestamp("ns"), 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789"),
        "moment": (pa.timestamp("ms", "Europe/Berlin"), 0, "1970-01-01T00:00:00.000Z"),
        "before": (pa.timestamp("us", "UTC"), -1, "1969-12-31T23:59:59.999999Z"),
        "far": (pa.timestamp("ms"), 253402300800000, "10000-01-01T00:00:00.000"),
        "time": (pa.time64("us"), 1, "00:00:00.000001"),
        "duration": (pa.duration("ms"), -1500, "-PT1.500S"),
        "exact": (pa.decimal128(38, 2), decimal.Decimal("987654321098765432109876543210.10"),
                  "987654321098765432109876543210.10"),
        "bytes": (pa.binary(), b"\xff\x00", "/wA="),
        "fixed": (pa.binary(2), b"\x01\x02", "AQI="),
        "nan": (pa.float64(), float("nan"), "NaN"),
        "endless": (pa.float32(), float("-inf"), "-Infinity"),
        "single": (pa.float32(), 0.1, 0.1),
        "half": (pa.float16(), 1.5, 1.5),
        "big": (pa.uint64(), 2**64 - 1, 2**64 - 1),
        "uuid": (pa.uuid(), number.bytes, str(number)),
        "word": (pa.dictionary(pa.int32(), pa.string()), "a", "a"),
        "map": (unknown, [("k", 0)], [{"key": "k", "value": "1970-01-01T00:00:00.000000Z"}]),
        "deep": (pa.list_(pa.struct([("at", pa.timestamp("s")), ("raw", pa.binary())])),
                 [{"at": 0, "raw": b"a"}, None],
                 [{"at": "1970-01-01T00:00:00.000", "raw": "YQ=="}, None]),
        "flag": (pa.bool8(), 1, True),
        "escape": (pa.string(), 'a\n"\x1b', 'a\n"\x1b'),
    }  # fmt: skip
    columns = {name: pa.array([value, None], kind) for name, (kind, value, _) in fields.items()}
    spelt = {name: text for name, (_, _, text) in fields.items()}
    return pa.table(columns), [spelt, dict.fromkeys(fields)]


def test_what_json_has_no_form_for_is_text(folder: Path) -> None:
    table, spelt = special()
    write_clear(folder, table)
    text = run_ok(folder, "cat", *KEY, "own.parquet")
    assert "\x1b" not in text
    assert lines(text) == spelt


def test_csv_spells_values_as_the_lines_of_json_do(folder: Path) -> None:
    table, (spelt, _) = special()
    write_clear(folder, table)
    text = run_ok(folder, "cat", "--format", "csv", *KEY, "own.parquet")
    row, nulls = csv.DictReader(io.StringIO(text))
    own = {"nan", "endless", "map", "deep", "flag"}
    assert {name: row[name] for name in row if name not in own} == {
        name: str(value) for name, value in spelt.items() if name not in own
    }
    assert float(row["endless"]) == float("-inf")
    assert row["flag"] == "true"
    assert json.loads(row["map"]) == spelt["map"]
    assert json.loads(row["deep"]) == spelt["deep"]
    assert set(nulls.values()) == {""}


def test_nested_extension_types_and_structs_without_fields_are_shown() -> None:
    text = pa.array(["1", "2", None, "4"])
    flat = pa.ExtensionArray.from_storage(pa.json_(), text)
    offsets, mask = pa.array([0, 1, 2, 4], pa.int32()), pa.array([False, True, False])
    items, entries = [["1"], None, [None, "4"]], pa.array([7, 8, 9, 10])
    tensor = pa.fixed_shape_tensor(pa.int32(), [2])
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(range(6), pa.int32()), 2)
    columns: dict[str, tuple[pa.Array, list[Any]]] = {
        "list": (pa.ListArray.from_arrays(offsets, flat, mask=mask), items),
        "view": (
            pa.ListViewArray.from_arrays(
                pa.array([0, 1, 2], pa.int32()), pa.array([1, 1, 2], pa.int32()), flat, mask=mask
            ),
            items,
        ),
        "fixed": (
            pa.FixedSizeListArray.from_arrays(
                flat.take(pa.array([0, 1, 2, 3, 0, 1])), 2, mask=mask
            ),
            [["1", "2"], None, ["1", "2"]],
        ),
        "map": (
            pa.MapArray.from_arrays(offsets, entries, flat, mask=mask),
            [
                [{"key": 7, "value": "1"}],
                None,
                [{"key": 9, "value": None}, {"key": 10, "value": "4"}],
            ],
        ),
        "tensor": (
            pa.ExtensionArray.from_storage(tensor, numbers),
            [[0, 1], [2, 3], [4, 5]],
        ),
        "void": (pa.array([{}, None, {}], pa.struct([])), [{}, None, {}]),
    }
    for name, (array, wanted) in columns.items():
        for start in (0, 1):
            batch = pa.record_batch([array.slice(start)], [name])
            shown: dict[str, str] = {}
            for form in ("jsonl", "csv"):
                pieces = format_rows(form, batch.schema, iter([batch]))
                shown[form] = b"".join(piece for piece, _ in pieces).decode()
            assert [row[name] for row in lines(shown["jsonl"])] == wanted[start:]
            cells = [row[name] for row in csv.DictReader(io.StringIO(shown["csv"] + "\n"))]
            assert [json.loads(cell) if cell else None for cell in cells if cell] == [
                value for value in wanted[start:] if value is not None
            ]


FORMULAS = {
    "=cmd|'/c calc'!A1": "'=cmd|'/c calc'!A1",
    "+1+1": "'+1+1",
    "-2+3": "'-2+3",
    "@SUM(A1)": "'@SUM(A1)",
    "\tx": "'\tx",
    "\r=1": "'\r'=1",
    "\uff1d1": "'\uff1d1",
    "x;=1": "x;'=1",  # a spreadsheet may split lines at semicolons
    "a\n@b": "a\n'@b",
    "x=1": "x=1",
    "-12.5e3": "-12.5e3",
    "+7": "+7",
    "-": "'-",
    "-1;=2": "'-1;'=2",
    "": "",
}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_safe_csv_has_no_formulas_and_the_same_numbers(folder: Path, kind: pa.DataType) -> None:
    table = pa.table(
        {
            "=text": pa.array(FORMULAS, kind),
            "'=text": pa.array([f"{text}!" for text in FORMULAS]).dictionary_encode(),
            "number": pa.array([-1.5] * len(FORMULAS)),
            "list": pa.array([["=1"]] * len(FORMULAS)),
        }
    )
    write_clear(folder, table)
    text = run_ok(folder, "cat", "--format", "csv", "--safe", *KEY, "own.parquet")
    titles, *rows = csv.reader(io.StringIO(text, newline=""))
    assert titles == ["'=text", "'=text", "number", "list"]
    assert [row[0] for row in rows] == list(FORMULAS.values())
    assert all(row[1][:1] not in tuple("=+-@\t\r") for row in rows)
    assert {(row[2], row[3]) for row in rows} == {("-1.5", '["=1"]')}
    plain = run_ok(folder, "cat", "--format", "csv", *KEY, "own.parquet")
    assert [row[0] for row in csv.reader(io.StringIO(plain, newline=""))][1:] == list(FORMULAS)


def test_safe_is_for_csv_alone(folder: Path) -> None:
    assert "--safe" in check_failure(
        run(folder, "cat", "--safe", *KEY, "sealed.parquet"), 2, "usage"
    )


def test_nothing_at_all_has_a_header_or_a_schema_all_the_same(folder: Path) -> None:
    write_clear(folder, small_table(0))
    assert run_ok(folder, "cat", *KEY, "own.parquet") == ""
    assert run_ok(folder, "cat", *KEY, "--format", "csv", "--columns", "day,id", "own.parquet") == (
        '"day","id"\n'
    )
    run_ok(folder, "cat", *KEY, "--format", "arrow", "-o", "out.arrows", "own.parquet")
    with pa.OSFile(str(folder / "out.arrows")) as file:
        assert pa.ipc.open_stream(file).read_all().equals(small_table(0))
    none = (*KEY, "--format", "csv", "--column", "id", "--where", "id > 1000", "sealed.parquet")
    assert run_ok(folder, "cat", *none) == '"id"\n'


def test_batches_with_dictionaries_of_their_own_make_one_stream(folder: Path) -> None:
    words = pa.array([f"w{n // 100}" for n in range(300)]).dictionary_encode()
    write_clear(folder, pa.table({"word": words}), row_group_size=100)
    run_ok(folder, "cat", *KEY, "--format", "arrow", "-o", "out.arrows", "own.parquet")
    with pa.OSFile(str(folder / "out.arrows")) as file:
        read = pa.ipc.open_stream(file).read_all()
    assert read["word"].to_pylist() == words.to_pylist()


def test_columns_without_a_key_are_left_out_or_null_on_request(folder: Path) -> None:
    drop = run_ok(folder, "cat", *KEY, "--on-missing-key", "drop", "sealed.parquet")
    assert "name" not in lines(drop)[1]
    null = run_ok(folder, "cat", *KEY, "--on-missing-key", "null", "sealed.parquet")
    assert {row["name"] for row in lines(null)} == {None}
    assert "--column-key" in check_failure(run(folder, "cat", *KEY, "sealed.parquet"), 3, "no-key")


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow"])
def test_text_that_is_no_utf_8_is_1(folder: Path, form: str) -> None:
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    broken = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))
    write_clear(folder, pa.table({"text": broken}))
    options = ("--format", form, *KEY, "-o", "out", "own.parquet")
    assert "column text" in check_failure(run(folder, "cat", *options), 1, "format")
    check_failure(run(folder, "head", *KEY, "own.parquet"), 1, "format")


# --- where it goes -------------------------------------------------------------------------------


def test_a_file_says_how_many_rows_it_has(folder: Path) -> None:
    options = ("cat", *KEY, *NAME_KEY, "--json", "-o", "out.jsonl", "sealed.parquet")
    assert json.loads(run_ok(folder, *options)) == {
        "schema": "modcrypt.rows/1",
        "path": "sealed.parquet", "destination": "out.jsonl", "format": "jsonl", "rows": 50,
    }  # fmt: skip
    assert len(lines((folder / "out.jsonl").read_text())) == 50


def test_a_file_that_is_there_is_kept_unless_forced(folder: Path) -> None:
    (folder / "out.jsonl").write_text("dear")
    options = ("cat", *KEY, *NAME_KEY, "-o", "out.jsonl", "sealed.parquet")
    assert "--force" in check_failure(run(folder, *options), 2, "file")
    assert (folder / "out.jsonl").read_text() == "dear"
    assert run_ok(folder, *options, "--force") == "wrote 50 rows to out.jsonl\n"
    assert len(lines((folder / "out.jsonl").read_text())) == 50


@pytest.fixture
def damaged_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with own.parquet, whose last row group does not authenticate; it is read alone."""
    monkeypatch.setattr("modcrypt.parquet.arrow.parquet_file.BATCH_BYTES", 32 << 10)
    ids = pa.table({"id": pa.array(range(6_000), pa.int64())})
    how = {"row_group_size": 4_500, "compression": "none", "use_dictionary": False}
    path = write_clear(folder, ids, **how)
    properties = modcrypt.FileDecryptionProperties(footer_key=FOOTER_KEY)
    pages = [
        span for span in list_modules(path, properties) if span.module.type.name == "DATA_PAGE"
    ]
    flip(path, pages[-1].end - 1)
    return folder


def test_an_output_that_breaks_off_says_so(damaged_folder: Path) -> None:
    for form in ("csv", "arrow"):
        options = ("cat", "--format", form, *KEY, "own.parquet")
        process = as_process([PROGRAM, *options], environment())
        answer = subprocess.run(**process, cwd=damaged_folder, capture_output=True, check=False)
        said = answer.stderr.decode().splitlines()
        assert (answer.returncode, len(said)) == (1, 2)
        found = re.fullmatch(r"modcrypt: the output is incomplete: .* after (\d+) rows", said[0])
        assert found is not None
        assert said[1].startswith("modcrypt: error: tag: data page, row group 1")
        rows = answer.stdout.count(b"\n") - 1 if form == "csv" else _rows(answer.stdout)
        assert rows == int(found[1]) == 4_500  # the row group that authenticates, and no more
    before = names(damaged_folder)
    output = ("cat", "--format", "csv", *KEY, "own.parquet", "-o", "out.csv")
    check_failure(run(damaged_folder, *output), 1, "tag")
    assert names(damaged_folder) == before


def _rows(stream: bytes) -> int:
    return sum(batch.num_rows for batch in pa.ipc.open_stream(stream))


def test_a_reader_that_goes_away_ends_it_quietly(folder: Path) -> None:
    write_clear(folder, pa.table({"id": range(20_000)}))
    for command in ("cat", "head"):
        read, write = os.pipe()
        os.close(read)
        process = as_process([PROGRAM, command, *KEY, "own.parquet"], environment())
        answer = subprocess.run(
            **process, cwd=folder, stdout=write, stderr=subprocess.PIPE, check=False
        )
        os.close(write)
        assert (answer.returncode, answer.stderr) == (128 + signal.SIGPIPE, b"")


def test_an_arrow_stream_is_not_written_to_a_terminal(folder: Path) -> None:
    options = ("cat", "--format", "arrow", *KEY, *NAME_KEY, "sealed.parquet")
    code, shown, said = on_terminal(folder, 80, *options)
    assert (code, shown) == (2, "")
    assert "terminal" in said


def test_csv_on_a_terminal_gives_it_no_orders(folder: Path) -> None:
    write_clear(folder, pa.table({"text": ["a\x1b[2J", "ö"]}))
    code, shown, said = on_terminal(folder, 80, "cat", "--format", "csv", *KEY, "own.parquet")
    assert (code, said) == (0, "")
    assert shown.splitlines() == ['"text"', '"a\\x1b[2J"', '"ö"']


# --- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow"])
def test_a_folders_rows_have_what_the_folders_spell(folder: Path, form: str) -> None:
    table = lake(folder).select(["id", "country"])
    options = ("--format", form, "--columns", "id,country", *KEY, "-o", "out", "lake")
    run_ok(folder, "cat", *options)
    if form == "arrow":
        with pa.OSFile(str(folder / "out")) as file:
            assert pa.ipc.open_stream(file).read_all().equals(table)
    elif form == "csv":
        assert pd.read_csv(folder / "out").equals(table.to_pandas())
    else:
        assert lines((folder / "out").read_text()) == table.to_pylist()


def test_head_and_where_work_across_the_files_of_a_folder(folder: Path) -> None:
    table = lake(folder)
    rows = lines(run_ok(folder, "head", "-n", "30", "--json", "--column", "id", *KEY, "lake"))
    assert [row["id"] for row in rows] == table["id"].to_pylist()[:30]
    where = ("--where", "country = SE", "--where", "id < 4")
    rows = lines(run_ok(folder, "head", "--json", "--column", "id", *where, *KEY, "lake"))
    assert [row["id"] for row in rows] == [0, 2]


@pytest.mark.parametrize("command", ["schema", "head", "cat"])
def test_prefixes_by_a_template_show_that_no_part_is_missing(folder: Path, command: str) -> None:
    for part in range(3):
        path, prefix = folder / "parts" / f"p{part}.parquet", f"orders.{part}".encode()
        path.parent.mkdir(exist_ok=True)
        own = modcrypt.FileEncryptionProperties(
            footer_key=FOOTER_KEY, aad_prefix=prefix, store_aad_prefix=False
        )
        modcrypt.write_table(small_table(2), path, own)
    template = ("--aad-prefix-template", "orders.{i}", "--expected-parts")
    run_ok(folder, command, *KEY, *template, "3", "parts")
    assert "parts are missing" in check_failure(
        run(folder, command, *KEY, *template, "4", "parts"), 1, "aad-prefix"
    )
    check_failure(run(folder, command, *KEY, "parts"), 1, "aad-prefix")
    one = ("--aad-prefix", "orders.1", "parts/p1.parquet")
    run_ok(folder, command, *KEY, *one)


# --- help and options ----------------------------------------------------------------------------


@each_case(
    ("arguments", "part"),
    [
        (("head", *KEY, "-"), "pipes"),
        (("head", *KEY, "-n", "-1", "sealed.parquet"), "x>=0"),
        (("head", *KEY, "--column", "nothing", "sealed.parquet"), "nothing"),
        (("head", *KEY, "--where", "nothing = 1", "sealed.parquet"), "--where"),
        (("head", *KEY, "--where", "id ~ 1", "sealed.parquet"), "--where"),
        (("head", *KEY, "--where", "id = x", "sealed.parquet"), "id has the type int64"),
        (("head", *KEY, "--where", "tags = 1", "sealed.parquet"), "tags has the type list"),
        (("head", *KEY, "--where", "id is null or", "sealed.parquet"), "remove what follows"),
        (("head", *KEY, "--where", "id = 1 or name", "sealed.parquet"), "--where takes a column"),
        (
            ("head", *KEY, "--where", "adress.zip = 1", "sealed.parquet"),
            "did you mean address.zip?",
        ),
        (("cat", *KEY, "--format", "xml", "sealed.parquet"), "jsonl"),
        (("cat", *KEY, "--force", "sealed.parquet"), "-o"),
        (("cat", *KEY, "--expected-parts", "2", "sealed.parquet"), "--aad-prefix-template"),
        (
            ("cat", *KEY, "--aad-prefix-template", "a{i}", "--aad-prefix", "a", "sealed.parquet"),
            "exclude each other",
        ),
        (
            ("schema", "--aad-prefix-template", "a{i}", "--no-check-footer", "sealed.parquet"),
            "--aad-prefix-template and --no-check-footer exclude each other",
        ),
        (("schema", *KEY, *RING, "sealed.parquet"), "--kms or --policy"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    folder: Path, arguments: tuple[str, ...], part: str
) -> None:
    before = names(folder)
    result = invoke(folder, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("modcrypt: error: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
    assert names(folder) == before


def test_json_does_not_stand_among_the_rows(folder: Path) -> None:
    answer = invoke(folder, "cat", *KEY, "--json", "sealed.parquet")
    assert (answer.exit_code, json.loads(answer.stdout)["error"]) == (2, "usage")
    assert "-o FILE" in answer.stderr


@pytest.mark.parametrize("command", ["schema", "head", "cat"])
def test_the_examples_of_the_help_texts_run(folder: Path, command: str) -> None:
    """Typed as they stand, in a folder with the files they name."""
    orders = pa.table({"price": [1.5, 2.5], "shipped": ["a", "b"], "id": [1, 2]})
    write_plain(folder / "plain.parquet", orders)
    private(folder / "price.key", COLUMN_KEY)
    keys = {"column_keys": {"price": COLUMN_KEY}, "plaintext_columns": ()}
    write_sealed(folder, "orders.enc.parquet", **keys)
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer")
    how = modcrypt.KeyTools(ring).encryption(modcrypt.Policy(footer_key="footer"))
    modcrypt.encrypt_parquet(folder / "plain.parquet", folder / "orders.kms.parquet", how)
    examples = examples_of(folder, command)
    assert len(examples) >= 2
    for example in examples:
        run_ok(folder, *example)


def test_text_that_is_not_utf8_is_a_usage_error(folder: Path) -> None:
    answer = run(folder, "head", "plain.parquet", "--allow-plaintext", "--where", "name=\udcff")
    assert "cannot be compared with this value" in check_failure(answer, 2, "usage")
