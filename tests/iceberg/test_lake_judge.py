"""The judge of tables: a short run of it, and what it says of faults that are planted."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modcrypt.iceberg import IcebergTable
from tools.lake_judge import __main__ as program
from tools.lake_judge.catalogs import MakeSubject, Subject, make_folder_subject
from tools.lake_judge.model import Change, Row, State, count_wrong, states_after
from tools.lake_judge.operations import BY_NAME, Operation, draw_rows, to_arrow
from tools.lake_judge.phases import run_phases
from tools.lake_judge.report import Report
from tools.lake_judge.trial import read_rows

SHORT = {"turns": 8, "races": 5, "kills": 1, "faults": 1}


@pytest.fixture
def make(tmp_path: Path) -> MakeSubject:
    """Return a function that makes tables in folders, which only modcrypt reads."""
    folders = (tmp_path / f"t{number}" for number in range(100))
    return lambda: Subject(named=make_folder_subject(next(folders)))


def judge(make: MakeSubject, *operations: Operation, **wanted: int) -> Report:
    report = Report(catalog="folder", seed=1, engines={})
    return run_phases(make, report, wanted or {"turns": 3}, operations=operations)


def plant(run: Callable[[IcebergTable, Change], object]) -> Operation:
    """Return an append that goes wrong."""
    return Operation(name="modcrypt planted", draw=draw_rows, run=run)


def alter_a_row(table: IcebergTable, change: Change) -> object:
    first, *others = change.adds
    return table.append(to_arrow([{**first, "price": 7.0}, *others]))


def lose_rows(table: IcebergTable, change: Change) -> object:
    return table.append(to_arrow(change.adds).slice(1))


def double_a_row(table: IcebergTable, change: Change) -> object:
    return table.append(to_arrow([*change.adds, change.adds[0]]))


def damage_a_file(table: IcebergTable, change: Change) -> object:
    path = Path(table.files()["location"].to_pylist()[0].removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-20])
    return table


@pytest.mark.parametrize("run", [alter_a_row, lose_rows, double_a_row])
def test_wrong_rows_are_found(
    make: MakeSubject, run: Callable[[IcebergTable, Change], object]
) -> None:
    report = judge(make, plant(run))
    assert not report.ok
    assert report.wrong_rows == 1
    (finding,) = report.findings
    assert "modcrypt reads" in finding.wrong
    assert finding.repeat.endswith("--catalog folder --seed 1 --only turns:0")


def test_a_table_that_cannot_be_read_is_found(make: MakeSubject) -> None:
    (finding,) = judge(make, plant(damage_a_file)).findings
    assert "Error" in finding.wrong


def test_rows_that_a_writer_loses_in_a_race_are_found(make: MakeSubject) -> None:
    assert judge(make, plant(lose_rows), races=2).wrong_rows == 2  # one of each writer


def test_an_error_that_no_late_writer_gets_is_found(make: MakeSubject) -> None:
    def fail(table: IcebergTable, change: Change) -> object:
        raise KeyError("added-files-size")

    (finding,) = judge(make, plant(fail), races=1).findings
    assert "KeyError" in finding.wrong


def test_healthy_tables_give_no_findings(make: MakeSubject) -> None:
    operations = [BY_NAME[f"modcrypt {name}"] for name in ("append", "rotate kek", "expire")]
    report = judge(make, *operations, turns=6, races=6)
    assert report.ok
    assert report.done == {"turns": 6, "races": 6}
    assert report.rows


def test_a_stock_engine_that_reads_other_rows_ends_the_program_with_1(
    make: MakeSubject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    def make_lying() -> Subject:
        subject = make()
        return replace(subject, read=lambda branch: read_rows(subject.load())[1:])

    @contextlib.contextmanager
    def open_catalog(kind: str, folder: Path) -> Iterator[MakeSubject]:
        yield make_lying

    monkeypatch.setattr(program, "why_unavailable", lambda catalog: None)
    monkeypatch.setattr(program, "open_catalog", open_catalog)
    counts = ["--turns", "1", "--races", "0", "--kills", "0", "--faults", "0"]
    path = str(tmp_path / "report.json")
    assert program.main(["--catalog", "folder", "--seed", "7", "--report", path, *counts]) == 1
    reported = json.loads(Path(path).read_text())
    assert (reported["ok"], reported["seed"], reported["wrong_rows"]) == (False, 7, 1)
    assert {"modcrypt", "Iceberg", "pyarrow"} <= reported["engines"].keys()
    assert "repeat: python tools/lake_judge --catalog folder --seed 7" in capsys.readouterr().out


def test_rows_that_get_other_ids_are_found(make: MakeSubject) -> None:
    started = itertools.count(step=1000)

    def make_renumbered() -> Subject:
        subject = make()

        def read(branch: str | None) -> list[Row]:
            row_ids = itertools.count(next(started))
            return [{**row, "_row_id": next(row_ids)} for row in read_rows(subject.load())]

        return replace(subject, read=read)

    (finding,) = judge(make_renumbered, BY_NAME["modcrypt rotate dek"]).findings
    assert "have other row ids" in finding.wrong


def test_concurrent_changes_may_come_in_any_order_or_not_at_all() -> None:
    one = Change(adds=[{"id": 1, "country": "NO", "price": None}])
    emptied = Change(removes={"all": True})
    found = [sorted(state.rows) for state in states_after(State(), [one], [emptied])]
    assert found == [[1], [], [1]]


def test_missing_surplus_and_altered_rows_count() -> None:
    row = {"id": 1, "country": "NO", "price": None}
    state = State(rows={1: row})
    counts: Mapping[int, Any] = {0: [row], 1: [], 2: [row, row, row]}
    assert {count_wrong(rows, state): rows for rows in counts.values()} == counts
    assert count_wrong([{**row, "price": 0.0}], state) == 1


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["hive", "folder"])
def test_a_short_run_finds_nothing_wrong(catalog: str, tmp_path: Path) -> None:
    if reason := program.why_unavailable(catalog):
        pytest.skip(reason)
    counts = [text for name, number in SHORT.items() for text in (f"--{name}", str(number))]
    path = str(tmp_path / "report.json")
    status = program.main(["--catalog", catalog, "--seed", "3", "--report", path, *counts])
    reported = json.loads(Path(path).read_text())
    assert status == 0, reported["findings"]
    assert {name: reported["done"][name] for name in SHORT} == SHORT
