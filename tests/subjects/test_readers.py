"""Every reader of the public API and of the program shows values, or says that it shows cells."""

from __future__ import annotations

import base64
import csv
import importlib
import inspect
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt import Lake, Policy
from modcrypt.cli import app
from modcrypt.iceberg import DataScan, IcebergTable, create_table
from modcrypt.kms.key_tools import KeyTools
from modcrypt.lake import LakeDataset
from modcrypt.subjects import SubjectVault
from tests.support.cli.program import Answer, run
from tests.support.sample_vault import POLICY, make_rows

NAMES = ["Ada", "Bob", "Ada", None]
PATH = "people/a.parquet"
LAKE = f"""
kms = "file:lake.keyring"
[dataset.people]
location = "people"
{"".join(line for line in POLICY.splitlines(keepends=True) if "kms" not in line)}
"""


@pytest.fixture
def policy(vault: SubjectVault) -> Policy:
    Path("policy.toml").write_text(POLICY)
    Path("modcrypt.toml").write_text(LAKE)
    Path("people").mkdir()
    policy = Policy.load("policy.toml")
    modcrypt.write_table(make_rows(), PATH, policy)
    return policy


# --- the public API -------------------------------------------------------------------------------


def names_in(batches: Any) -> list[Any]:
    return [name for batch in batches for name in batch.column("name").to_pylist()]


def names_in_view(file: Any) -> list[Any]:
    with file:
        return names_in([pq.read_table(file)])


def opened(policy: Policy) -> modcrypt.ParquetFile:
    return modcrypt.ParquetFile(PATH, policy)


def like_pyarrow(policy: Policy) -> Any:
    return modcrypt.parquet.ParquetFile(PATH, decryption_properties=policy)


def like_dataset(policy: Policy, **options: Any) -> Any:
    return modcrypt.parquet.ParquetDataset("people", decryption_properties=policy, **options)


def dataset(_: Policy) -> LakeDataset:
    return Lake.open("modcrypt.toml").dataset("people")


def from_disk(policy: Policy) -> Any:
    files = fsspec.filesystem("modcrypt", decryption=policy, skip_instance_cache=True)
    return names_in_view(files.open(str(Path(PATH).absolute())))


READERS: dict[str, Callable[[Policy], list[Any]]] = {
    "modcrypt.read_table": lambda p: names_in([modcrypt.read_table(PATH, p)]),
    "modcrypt.iter_batches": lambda p: names_in(modcrypt.iter_batches("people", p)),
    "modcrypt.read_parquet": lambda p: [
        name if isinstance(name, str) else None for name in modcrypt.read_parquet(PATH, p)["name"]
    ],
    "modcrypt.open_parquet": lambda p: names_in_view(modcrypt.open_parquet(PATH, p)),
    "modcrypt.ParquetFile.read": lambda p: names_in([opened(p).read()]),
    "modcrypt.ParquetFile.read_row_group": lambda p: names_in([opened(p).read_row_group(0)]),
    "modcrypt.ParquetFile.iter_batches": lambda p: names_in(opened(p).iter_batches(2)),
    "modcrypt.ParquetFile.__arrow_c_stream__": lambda p: names_in([pa.table(opened(p))]),
    "modcrypt.parquet.read_table": lambda p: names_in(
        [modcrypt.parquet.read_table(PATH, decryption_properties=p)]
    ),
    "modcrypt.parquet.read_pandas": lambda p: names_in(
        [modcrypt.parquet.read_pandas(PATH, decryption_properties=p)]
    ),
    "modcrypt.parquet.ParquetFile.read": lambda p: names_in([like_pyarrow(p).read()]),
    "modcrypt.parquet.ParquetFile.read_row_group": lambda p: names_in(
        [like_pyarrow(p).read_row_group(0)]
    ),
    "modcrypt.parquet.ParquetFile.read_row_groups": lambda p: names_in(
        [like_pyarrow(p).read_row_groups([0])]
    ),
    "modcrypt.parquet.ParquetFile.iter_batches": lambda p: names_in(
        like_pyarrow(p).iter_batches(2)
    ),
    "modcrypt.parquet.ParquetFile.__arrow_c_stream__": lambda p: names_in(
        [pa.table(like_pyarrow(p))]
    ),
    "modcrypt.parquet.ParquetDataset.read": lambda p: [
        *names_in([like_dataset(p).read()])[:2],
        *names_in([like_dataset(p, ignore_prefixes=["x"]).read()])[2:],  # by views
    ],
    "modcrypt.parquet.ParquetDataset.read_pandas": lambda p: names_in(
        [like_dataset(p).read_pandas()]
    ),
    "modcrypt.parquet.ParquetDataset.fragments": lambda p: names_in(
        fragment.to_table() for fragment in like_dataset(p).fragments
    ),
    "modcrypt.lake.LakeDataset.read": lambda p: names_in([dataset(p).read()]),
    "modcrypt.lake.LakeDataset.scan": lambda p: names_in(dataset(p).scan()),
    "modcrypt.lake.LakeDataset.view": lambda p: names_in_view(dataset(p).view("a.parquet")),
    "modcrypt.filesystem.ModcryptFileSystem": from_disk,
}
ELSEWHERE = {  # tested in test_iceberg
    *("modcrypt.iceberg.IcebergTable.scan_batches", "modcrypt.iceberg.IcebergTable.scan"),
    *(f"modcrypt.iceberg.DataScan.{name}" for name in (
        "select", "use_ref", "to_arrow", "to_arrow_batch_reader", "to_batches", "to_duckdb",
        "to_pandas", "to_polars", "__arrow_c_stream__",
    )),
}  # fmt: skip
NO_VALUES = {  # read no values, or leave the pages as they are
    *(f"modcrypt.{name}_parquet" for name in (
        "decrypt", "inspect", "mask", "rekey", "share", "verify",
    )),
    "modcrypt.verify_dataset", "modcrypt.parquet.read_metadata", "modcrypt.parquet.read_schema",
    *(f"modcrypt.iceberg.IcebergTable.{name}" for name in (
        "files", "history", "keys", "refs", "snapshots", "make_scan",
    )),
    *(f"modcrypt.ParquetFile.{name}" for name in ("batches_of_request", "read_request")),
}  # fmt: skip
_ROWS = [
    *("pa.Table", "RecordBatch", "PlaintextView", "DataScan", "TableScan", "DataFrame"),
    *("DuckDBPyConnection", "Fragment"),
]


def find_readers() -> Iterator[str]:
    """Yield the names of public functions and methods that may return rows."""
    for module in ("modcrypt", "modcrypt.parquet"):
        package = importlib.import_module(module)
        for name in dir(package):
            found = getattr(package, name)
            if name.startswith("_") or not inspect.isfunction(found):
                continue
            if {"decryption", "decryption_properties"} & inspect.signature(found).parameters.keys():
                yield f"{module}.{name}"
    classes: Sequence[tuple[str, type]] = [
        ("modcrypt", modcrypt.ParquetFile),
        ("modcrypt.parquet", modcrypt.parquet.ParquetFile),
        ("modcrypt.parquet", modcrypt.parquet.ParquetDataset),
        ("modcrypt.lake", LakeDataset),
        ("modcrypt.iceberg", IcebergTable),
        ("modcrypt.iceberg", DataScan),
    ]
    for module, kind in classes:
        for name, member in inspect.getmembers(kind):
            function = member.fget if isinstance(member, property) else member
            returned = str(getattr(function, "__annotations__", {}).get("return"))
            if name == "__arrow_c_stream__" or (
                not name.startswith("_") and any(word in returned for word in _ROWS)
            ):
                yield f"{module}.{kind.__name__}.{name}"


def test_all_readers_are_listed() -> None:
    known = {*READERS, *ELSEWHERE, *NO_VALUES}
    assert not set(find_readers()) - known, "add new readers to READERS, so that they show values"
    others = {"modcrypt.parquet.read_pandas", "modcrypt.filesystem.ModcryptFileSystem"}
    assert not known - set(find_readers()) - others


@pytest.mark.parametrize("name", READERS)
def test_readers_show_values(policy: Policy, vault: SubjectVault, name: str) -> None:
    assert READERS[name](policy) == NAMES
    vault.erase(vault.references([b"1"]), "R1")
    assert READERS[name](policy) == [None, "Bob", None, None]


# --- the program ----------------------------------------------------------------------------------

ROW_COMMANDS = {"head", "cat", "iceberg scan"}
KEYRING = "--kms", "file:lake.keyring#people"
WITH_POLICY = "--policy", "policy.toml"


def find_commands(group: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from find_commands(command, (*above, name))
        elif any(parameter.name == "conditions" for parameter in command.params):
            yield " ".join((*above, name))


def test_all_commands_that_print_rows_are_listed() -> None:
    assert set(find_commands(app.program)) == ROW_COMMANDS


def read_names(answer: Answer) -> list[Any]:
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line)["name"] for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("command", [("head", "--json"), ("cat",)])
def test_commands_show_values_or_name_the_cells(
    policy: Policy, vault: SubjectVault, command: tuple[str, ...]
) -> None:
    answer = run(Path(), *command, *WITH_POLICY, PATH)
    assert (read_names(answer), answer.stderr) == (NAMES, "")
    answer = run(Path(), *command, *KEYRING, PATH)
    assert len(base64.b64decode(read_names(answer)[0])) == 31
    assert "note: cells, in base64, in column name, address: " in answer.stderr
    assert "pass --policy with their vault as subjects" in answer.stderr
    answer = run(Path(), *command, *KEYRING, "--column", "amount", PATH)
    assert answer.stderr == ""
    vault.erase(vault.references([b"1"]), "R1")
    assert read_names(run(Path(), *command, *WITH_POLICY, PATH)) == [None, "Bob", None, None]


def test_other_forms_of_output(policy: Policy) -> None:
    answer = run(Path(), "cat", "--format", "csv", *WITH_POLICY, PATH)
    assert [row["name"] or None for row in csv.DictReader(io.StringIO(answer.stdout))] == NAMES
    run(Path(), "cat", "--format", "arrow", "-o", "a.arrows", *WITH_POLICY, PATH)
    with pa.ipc.open_stream("a.arrows") as stream:
        assert stream.read_all()["name"].to_pylist() == NAMES
    assert "Bob" in run(Path(), "head", *WITH_POLICY, PATH).stdout
    answer = run(Path(), "schema", *KEYRING, PATH)
    assert "note: cells, in base64" in answer.stderr
    assert run(Path(), "schema", *WITH_POLICY, PATH).stderr == ""
    empty = run(Path(), "cat", *KEYRING, "--where", "amount > 99", PATH)
    assert (empty.stdout, "note: cells" in empty.stderr) == ("", True)


def test_a_declaration_shows_values(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODCRYPT_CONFIG", "modcrypt.toml")
    assert read_names(run(Path(), "cat", PATH)) == NAMES


def test_scans_of_tables_name_the_cells(policy: Policy) -> None:
    keys = KeyTools.from_policy(policy)
    create_table("table", make_rows().schema, keys, master_key_id="people").append(make_rows())
    answer = run(Path(), "iceberg", "scan", "--format", "jsonl", "--kms", KEYRING[1], "table")
    assert len(base64.b64decode(read_names(answer)[0])) == 31
    assert "note: cells, in base64, in column name, address: " in answer.stderr
    assert "pass --policy with their vault as subjects" in answer.stderr
    scan = ["iceberg", "scan", "--column", "amount", "--kms", KEYRING[1], "table"]
    assert run(Path(), *scan).stderr == ""
