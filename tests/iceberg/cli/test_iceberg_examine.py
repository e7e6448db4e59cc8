"""`modcrypt iceberg keys`, `snapshots`, `files` and `scan`, on the table that Java wrote."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from modcrypt.iceberg import create_table
from tests.support.cases import each_case
from tests.support.iceberg.cli_runs import Run, error_line, lines, run
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import DELETED, FIRST, SECOND, both, expected_rows

__all__ = ["run"]  # a fixture

ROWS = expected_rows([row for row in FIRST + SECOND if row not in DELETED])


@pytest.fixture
def args(t16: Path) -> list[str]:
    """The shared table as an argument, with what it takes to open it."""
    mapped = [f"--location-map={old}={new}" for old, new in both(t16).items()]
    return ["--kms", "sample:", *mapped, str(t16)]


# --- listings ------------------------------------------------------------------------------------


def test_snapshots_are_those_of_the_metadata(run: Run, args: list[str], t16: Path) -> None:
    document = json.loads((t16 / "metadata" / "v1.metadata.json").read_text())
    found = lines(run("snapshots", *args, "--json"))
    names = ("snapshot_id", "key_id", "current")
    assert [tuple(snapshot[name] for name in names) for snapshot in found] == [
        (
            entry["snapshot-id"],
            entry["key-id"],
            entry["snapshot-id"] == document["current-snapshot-id"],
        )
        for entry in document["snapshots"]
    ]
    for_people = run("snapshots", *args).stdout.splitlines()
    assert for_people[0].split()[:4] == ["snapshot", "id", "parent", "id"]
    assert [line.split()[-1] for line in for_people[1:]] == ["no", "no", "yes"]


def test_keys_are_listed_without_their_values(
    run: Run, args: list[str], t16: Path, kms: SampleKms
) -> None:
    document = json.loads((t16 / "metadata" / "v1.metadata.json").read_text())
    shown = run("keys", *args, "--json")
    entries = {entry["key-id"]: entry for entry in document["encryption-keys"]}
    assert {key["key_id"]: key["encrypted_by"] for key in lines(shown)} == {
        key_id: entry["encrypted-by-id"] for key_id, entry in entries.items()
    }
    for_people = run("keys", *args).stdout
    assert all(key_id in for_people for key_id in entries)
    for entry in entries.values():
        assert entry["encrypted-key-metadata"] not in shown.stdout + for_people
    assert kms.calls == []


def test_what_metadata_says_is_listed_without_a_key_service(run: Run, args: list[str]) -> None:
    for command in ("keys", "snapshots"):
        assert run(command, *args[2:]).stdout == run(command, *args).stdout
    assert "--kms" in error_line(run("files", *args[2:], code=2))
    assert "--kms" in error_line(run("keys", *args[2:], "--passphrase", "env:X", code=2))


def test_files_of_a_snapshot(run: Run, args: list[str]) -> None:
    now = lines(run("files", *args, "--json"))
    assert sorted(Path(file["location"]).name for file in now) == [
        "a1.avro", "a2.avro", "dm3.avro", "dv1.puffin", "m1.avro", "m2.avro", "p1.parquet",
        "p2.parquet", "snap-1003.avro",
    ]  # fmt: skip
    assert all(file["encrypted"] for file in now)
    first = run("files", *args, "--snapshot", 1001).stdout
    assert "p1.parquet" in first
    assert "p2.parquet" not in first


# --- rows ----------------------------------------------------------------------------------------


def test_scan_shows_the_first_rows_and_says_that_there_are_more(run: Run, args: list[str]) -> None:
    shown = run("scan", *args)
    assert shown.stdout.splitlines()[:3] == [
        " id  name      salary",
        "100  name-100   150.0",
        "101  name-101   151.5",
    ]
    assert len(shown.stdout.splitlines()) == 11
    assert (
        shown.stderr == "modcrypt: the table has more than these 10 rows; use -n N to show more\n"
    )
    everything = run("scan", *args, "-n", 1000)
    assert len(everything.stdout.splitlines()) == 1 + len(ROWS)
    assert everything.stderr == ""


def test_scan_as_json_csv_and_arrow_has_the_rows_that_java_reads(
    run: Run, args: list[str], tmp_path: Path
) -> None:
    assert lines(run("scan", *args, "--json")) == ROWS
    assert lines(run("scan", *args, "--format", "jsonl", "--snapshot", "main")) == ROWS
    text = run("scan", *args, "--format", "csv", "--columns", "name,id").stdout
    assert list(csv.reader(io.StringIO(text))) == [
        ["id", "name"], *([str(row["id"]), row["name"] or ""] for row in ROWS)
    ]  # fmt: skip
    done = run("scan", *args, "--format", "arrow", "-o", "rows.arrows", "--json")
    (reported,) = lines(done)
    assert reported == {
        "schema": "modcrypt.iceberg.rows/1", "table": args[-1], "destination": "rows.arrows",
        "format": "arrow", "rows": len(ROWS),
    }  # fmt: skip
    with pa.ipc.open_stream(tmp_path / "rows.arrows") as stream:
        assert stream.read_all().to_pylist() == ROWS
    assert "exists" in error_line(run("scan", *args, "-o", "rows.arrows", code=2))
    done = run("scan", *args, "-o", "rows.arrows", "--force", "-n", 3)
    assert done.stdout == "wrote 3 rows to rows.arrows\n"
    assert (tmp_path / "rows.arrows").read_text().splitlines() == [
        json.dumps(row) for row in ROWS[:3]
    ]


def test_scan_of_some_rows_and_columns(run: Run, args: list[str]) -> None:
    some = run("scan", *args, "--where", "id > 210", "--where", "name is null", "--json")
    assert [row["id"] for row in lines(some)] == [217, 224, 231, 238, 245, 252, 259, 266]
    assert lines(run("scan", *args, "--column", "salary", "-n", 2, "--json")) == [
        {"salary": 150.0}, {"salary": 151.5}
    ]  # fmt: skip
    assert run("scan", *args, "--where", "id > 999").stdout == "id  name  salary\n"
    assert run("scan", *args, "--where", "id > 999", "--format", "csv").stdout.split() == [
        '"id","name","salary"'
    ]
    assert lines(run("scan", *args, "--snapshot", 1001, "--json")) == expected_rows(FIRST)


def test_no_output_file_is_left_where_a_page_does_not_authenticate(
    run: Run, args: list[str], t16: Path, tmp_path: Path
) -> None:
    data = bytearray((t16 / "data" / "p2.parquet").read_bytes())
    data[100] ^= 1
    (t16 / "data" / "p2.parquet").write_bytes(data)
    line = error_line(run("scan", *args, "-o", "rows.jsonl", code=1))
    assert line.startswith("modcrypt: error: tag: ")
    assert "p2.parquet: " in line
    assert [path.name for path in tmp_path.iterdir()] == ["t16"]


@each_case(
    ("arguments", "part"),
    [
        (
            ("--where", "nothing > 1"),
            "the filter does not fit the table: the table has no column 'noth",
        ),
        (("--where", "id > 'x'"), "the filter does not fit the table: Could not convert x"),
        (("--where", "id >"), "not an expression"),
        (("--columns", "id,zip,nothing"), "the table has no columns 'nothing', 'zip'\n"),
        (("--snapshot", "7"), "snapshot 7 does not exist"),
        (("--snapshot", "dev"), "branch or tag 'dev' does not exist"),
        (("--json", "--format", "csv"), "-o"),
        (("--force",), "-o"),
        (("--safe",), "--format csv"),
        (("--format", "table", "-o", "x"), "--format table cannot"),
        (("--catalog-name", "x"), "--catalog"),
        (("--location-map", "x"), "FROM=TO"),
        (("--catalog", "sqlite:///none.db"), "none.db: No such file"),
        (("--catalog", "postgresql://me:secret@host/db"), "pyiceberg's configuration"),
        (("--catalog", "postgresql://host/db?password=secret"), "pyiceberg's configuration"),
        (("--catalog", "none-such"), "configuration"),
    ],
)
def test_what_is_wrong_in_the_arguments_is_said(
    run: Run, args: list[str], tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    line = error_line(run("scan", *args, *arguments, code=2))
    assert part.lower() in line.lower()
    assert "secret" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["t16"]


# --- what is known of the table from elsewhere ---------------------------------------------------


@pytest.mark.parametrize("command", ["keys", "snapshots", "files", "scan"])
def test_expectations_are_held_against_the_table(
    run: Run, args: list[str], t16: Path, command: str
) -> None:
    document = json.loads((t16 / "metadata" / "v1.metadata.json").read_text())
    fits = ("--table-uuid", document["table-uuid"], "--at-least", 3, "--master-key", "keyA")
    assert run(command, *args, *fits, "--master-key", "keyB").stdout
    for wrong in (("--table-uuid", "other"), ("--at-least", 4), ("--master-key", "keyB")):
        failed = run(command, *args, *wrong, "--json", code=1)
        assert lines(failed)[0]["error"] == "integrity"


def test_a_table_without_keys_is_read_where_plaintext_is_allowed_alone(
    run: Run, args: list[str], t16: Path
) -> None:
    path = t16 / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    del document["properties"]["encryption.key-id"]
    path.write_text(json.dumps(document))
    assert "plaintext" in error_line(run("scan", *args, code=1))
    assert lines(run("scan", *args, "--allow-plaintext", "--json")) == ROWS  # its keys are there


def test_a_location_that_is_not_mapped_is_not_followed(run: Run, args: list[str]) -> None:
    assert "--location-map" in error_line(run("scan", "--kms", "sample:", args[-1], code=1))


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), ("scan",), ("rotate",), ("append",)])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    script = (
        "import sys, atexit; from modcrypt.cli import run\n"
        "atexit.register(lambda: print('LOADED', *sys.modules))\n"
        "run()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, "iceberg", *command, "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")
    loaded = set(answer.stdout.partition("LOADED ")[2].split())
    assert "modcrypt.iceberg.commands.iceberg_group" in loaded
    assert loaded.isdisjoint({"pyarrow", "pyiceberg", "cryptography", "pyspark", "sqlalchemy"})


def test_a_scan_applies_read_restrictions(run: Run, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["Ada 1", "Bob 2"]})
    create_table(tmp_path / "t", rows.schema, SampleKms(), master_key_id="keyA").append(rows)
    (tmp_path / "rules.json").write_text(
        '{"required-row-filter": {"type": "gt", "left": {"type": "reference", "id": 1},'
        ' "right": 1}, "required-column-projections": [{"action": "mask-alphanum", "field-id": 2}]}'
    )
    (tmp_path / "no.json").write_text("{")
    scan = ("scan", "--kms", "sample:", "t", "--json", "--read-restrictions")
    assert lines(run(*scan, "rules.json")) == [{"id": 2, "name": "xxxxn"}]
    assert "not a file of JSON" in error_line(run(*scan, "no.json", code=2))
