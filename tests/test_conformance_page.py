"""The page of the conformance suite's results, in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.browser import EVIL, POOR_CONTRAST, Browser, chromium
from tests.support.paths import ROOT
from tools.conformance import page, trace
from tools.conformance.disclosure import is_hostile
from tools.conformance.page_groups import AREAS, group_cases

__all__ = ["chromium"]  # a fixture

RESULTS = page.FOLDER.parent / "results"


@pytest.fixture(scope="module")
def text() -> str:
    return page.make_page(RESULTS)


def test_every_case_is_in_one_row_and_no_row_is_empty() -> None:
    groups = group_cases(trace.all_cases())
    assert sum(map(len, groups.values())) == len(trace.all_cases())
    assert len(groups) == sum(map(len, AREAS.values()))
    assert [key for key, cases in groups.items() if not cases] == []


def test_the_document_sums_up_the_results() -> None:
    text = (ROOT / "docs/reference/conformance.md").read_text()
    runs = page.read_runs(RESULTS)
    areas = page.group_rows(runs)
    valid = dict(page.only_rows(areas, valid=True))
    columns = [
        [_sum(column) for column in zip(*(row.tallies for row in valid[area]), strict=True)]
        for area in (
            "Reading valid Parquet files", "Key material (PKMT1)",
            "AGS1 and Iceberg's key metadata", "Writing",
        )
    ]  # fmt: skip
    for run, *cells in zip(runs, *columns, strict=True):
        version = run["version"].removeprefix("v")
        shown = ("-" if cell == "0/0" else cell for cell in cells)
        assert f"| {run['name']} {version} | {' | '.join(shown)} |" in text
    hostile = [row for _, rows in page.only_rows(areas, valid=False) for row in rows]
    passed, _, ran = _sum([row.tallies[0] for row in hostile]).partition("/")
    assert passed == ran
    assert f"modcrypt refuses all {ran} hostile files" in text


def _sum(tallies: Iterable[page.Tally]) -> str:
    tallies = list(tallies)
    return f"{sum(tally.passed for tally in tallies)}/{sum(tally.ran for tally in tallies)}"


def test_the_comparison_with_alternatives_has_figures_of_the_results() -> None:
    names = ["modcrypt", "PyArrow", "parquet-java", "Polars", "DuckDB"]
    runs = {run["name"]: run for run in page.read_runs(RESULTS)}
    valid = dict(page.only_rows(page.group_rows([runs[name] for name in names]), valid=True))
    text = (ROOT / "docs/explanation/alternatives.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| valid files read")]
    columns = zip(*(group.tallies for group in valid["Reading valid Parquet files"]), strict=True)
    assert line.strip("| ").split(" | ")[1:] == [_sum(column) for column in columns]


def test_the_results_are_of_cases_that_exist() -> None:
    known = {case.id for case in trace.all_cases()}
    for path in RESULTS.glob("*.json"):
        if path.name not in ("matrix.json",) and "badge" not in path.name:
            assert {*json.loads(path.read_text()).get("cases", ())} <= known, path


def test_of_other_implementations_only_valid_files_are_shown() -> None:
    runs = page.read_runs(RESULTS)
    hostile = {case.id for case in trace.all_cases() if is_hostile(case)}
    assert {*runs[0]["cases"]} > hostile
    for run in runs[1:]:
        assert run["cases"]
        assert not {*run["cases"]} & hostile
    for _, rows in page.only_rows(page.group_rows(runs), valid=False):
        for row in rows:
            assert [tally.ran for tally in row.tallies[1:]] == [0] * (len(runs) - 1)


@pytest.mark.parametrize("width", [1280, 480])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_shows_its_results_without_a_fault(
    chromium: Browser,
    text: str,
    width: int,
    dark: bool,
) -> None:
    chromium.show(text, width=width, dark=dark)
    assert chromium.overflow() <= 0
    chromium.click("#features .tally.mild button")
    assert "expected" in chromium.text("#cases")
    chromium.run("document.querySelector('#cases details').open = true")
    assert "Demanded" in chromium.text("#cases")
    assert chromium.overflow() <= 0
    seen, poor = chromium.run(POOR_CONTRAST)
    assert seen > 200
    assert poor == []
    chromium.click("#detail .close")
    assert not chromium.run("return document.getElementById('detail').checkVisibility()")
    assert chromium.complaints() == []
    assert len(chromium.requests()) == 1


def test_cells_open_the_sentence_the_bytes_and_the_upstream_issue(
    chromium: Browser,
    text: str,
) -> None:
    chromium.show(text, width=1280)
    chromium.run(
        "for (const button of document.querySelectorAll('#features button, #attacks button')) {"
        " button.click();"
        " const text = document.getElementById('cases').textContent;"
        " if (document.querySelector('#cases a') && text.includes('→')) break; }"
    )
    shown = chromium.run("return document.getElementById('cases').textContent")
    assert "PME-" in shown
    assert "→" in shown
    link = chromium.run("return document.querySelector('#cases a').href")
    assert link.startswith("https://github.com/")


def test_what_a_client_says_is_text(chromium: Browser, tmp_path: Path) -> None:
    for name in ("modcrypt", "polars"):
        run = json.loads((RESULTS / f"{name}.json").read_text())
        run["name"] = EVIL[0]
        for verdict, evil in zip(run["cases"].values(), EVIL * 1000, strict=False):
            verdict["detail"] = verdict["reason"] = evil.encode(errors="replace").decode()
        (tmp_path / f"{name}.json").write_text(json.dumps(run))
    chromium.show(page.make_page(tmp_path), width=480)
    chromium.run(
        "document.querySelectorAll('#features [data-open]').forEach(button => button.click())"
    )
    chromium.run(
        "document.querySelectorAll('#cases details').forEach(entry => { entry.open = true })"
    )
    assert chromium.run("return document.title") == "Conformance of Parquet encryption"
    assert chromium.run("return document.querySelectorAll('img, #cases script').length") == 0
    assert chromium.overflow() <= 0
    assert chromium.complaints() == []
    assert len(chromium.requests()) == 1
