"""The report about a lake, shown by Chromium."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.reports.lake_report import make_report
from tests.support.browser import POOR_CONTRAST, Browser, chromium
from tests.support.cli.program import run
from tests.support.forging import flip
from tests.support.lake_folder import make_lake, trust_lake, write_day

__all__ = ["chromium"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the declaration of a lake with one damaged and one plaintext file."""
    config = make_lake(tmp_path)
    lake = mc.Lake.open(config)
    lake.apply()
    lake.report()
    write_day(tmp_path, "2026-11-03", 1)
    path = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    flip(path, path.stat().st_size - 20)
    return config


@pytest.mark.parametrize("width", [1280, 480])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_shows_the_lake(chromium: Browser, config: Path, width: int, dark: bool) -> None:
    chromium.show(mc.Lake.open(config).report().to_html(), width=width, dark=dark)
    assert chromium.overflow() <= 0
    assert "2 files not as declared" in chromium.text("body")
    seen, poor = chromium.run(POOR_CONTRAST)
    assert seen > 30
    assert poor == []
    assert chromium.complaints() == []
    assert len(chromium.requests()) == 1


def test_a_page_about_ten_thousand_files_opens_at_once(chromium: Browser, config: Path) -> None:
    lake = mc.Lake.open(config)
    (status,) = lake.status()
    file = replace(status.files[1], state="other-policy", message="x" * 300)
    many = [replace(file, path=f"day=2026-11-01/{n}-{'y' * 60}.parquet") for n in range(10_000)]
    page = make_report([replace(status, files=many)], lake.ages, lake="l", digest="d").to_html()
    assert len(page) < 3_000_000
    chromium.driver.execute_cdp_cmd("Performance.enable", {})
    chromium.show(page, width=1280)
    assert chromium.count("td.where") == 1000
    found = chromium.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    seconds = {metric["name"]: metric["value"] for metric in found}
    # Of the processor, which other programs do not change; it takes a quarter of a second.
    assert 0 < seconds["ThreadTime"] < 5


def test_a_finding_opens_the_page_of_its_file(chromium: Browser, config: Path) -> None:
    folder = trust_lake(config.parent).parent
    answer = run(folder, "report", "--html", "lake.html", "--file-pages")
    assert answer.returncode == 0, answer.stderr
    pages = sorted(path.name for path in (folder / "lake.html.files").iterdir())
    assert pages == ["0.html", "1.html"]
    chromium.driver.get((folder / "lake.html").as_uri())
    assert chromium.count("td.where a") == 2
    chromium.run("document.querySelector('td.where a').click()")
    assert chromium.driver.current_url == (folder / "lake.html.files/0.html").as_uri()
    assert "part-0.parquet" in chromium.text("h1")
    assert run(folder, "report", "--html", "lake.html", "--file-pages").returncode == 2
    assert run(folder, "report", "--html", "lake.html", "--file-pages", "--force").returncode == 0
