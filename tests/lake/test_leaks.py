"""Values beside the files of declared datasets: status, apply, verify and the report name them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modcrypt.lake.lake import Lake
from tests.support.cli.program import invoke


@pytest.fixture
def log(config: Path) -> Path:
    """Return a table log with values of a column that a pattern of the declaration encrypts."""
    folder = Path(Lake.open(config).declaration.datasets["orders"].location)
    (folder / "_delta_log").mkdir()
    path = folder / "_delta_log/0.json"
    path.write_text(json.dumps({"add": {"partitionValues": {"home_ssn": "111-SECRET"}}}))
    return path


def test_a_lake_as_declared_has_no_leaks(config: Path) -> None:
    lake = Lake.open(config)
    (status,) = lake.status()
    assert (status.leaks, status.is_declared) == ((), True)
    assert [row["leaks"] for row in lake.report().datasets] == [[]]


def test_every_answer_names_a_leak(config: Path, log: Path) -> None:
    lake = Lake.open(config)
    (status,) = lake.status()
    (leak,) = status.leaks
    assert (leak.kind, leak.path, leak.columns) == ("delta-log", str(log.parent), ("home_ssn",))
    assert not status.is_declared
    assert "1 leak beside the files" in status.summary()
    assert status.fields()["leaks"] == [leak.fields()]

    (applied,) = lake.apply()
    assert applied.code == 1
    assert "1 leak beside the files" in applied.summary()
    assert lake.apply(dry_run=True)[0].code == 1

    (verified,) = lake.verify()
    assert verified.code == 1
    assert [fault.word for fault in verified.faults] == ["plaintext"]

    report = lake.report()
    assert [len(row["leaks"]) for row in report.datasets] == [1]
    page = report.to_html()
    assert "1 leak beside the files" in page
    assert "delta-log" in page
    assert "SECRET" not in page + repr(report.fields()) + repr(verified.faults)


def test_columns_in_plaintext_by_declaration_are_no_leaks(config: Path, log: Path) -> None:
    log.write_text(json.dumps({"add": {"partitionValues": {"country": "NO"}}}))
    assert Lake.open(config).status()[0].leaks == ()


def test_files_that_the_dataset_does_not_include_are_searched(config: Path) -> None:
    folder = Path(Lake.open(config).declaration.datasets["orders"].location)
    pq.write_table(pa.table({"home_ssn": ["1"]}), folder / ".old.parquet")
    assert [leak.kind for leak in Lake.open(config).status()[0].leaks] == ["plaintext-parquet"]


def test_the_commands_list_leaks(config: Path, log: Path) -> None:
    result = invoke(config.parent, "status", "--config", str(config), "--files")
    assert result.exit_code == 0
    assert "delta-log" in result.stdout
    result = invoke(config.parent, "apply", "--config", str(config))
    assert result.exit_code == 1
    assert "delta-log" in result.stdout
    assert invoke(config.parent, "verify", "--config", str(config)).exit_code == 1
    log.unlink()
    assert invoke(config.parent, "apply", "--config", str(config)).exit_code == 0
