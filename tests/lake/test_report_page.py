"""The report about a lake, shown by Chromium."""

from __future__ import annotations

import html.parser
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.reports.lake_report import make_report
from modcrypt.lake.reports.report_page import Proofs, list_entries, list_tasks
from modcrypt.lake.reports.report_pictures import MAX_DATASETS, MAX_KEYS, draw_keys, draw_runs
from tests.support.browser import EVIL, POOR_CONTRAST, Browser, chromium
from tests.support.cli.program import run
from tests.support.evidence import make_record as make_recorded_events
from tests.support.forging import flip
from tests.support.lake_folder import make_lake, trust_lake, write_day
from tests.support.lake_reports import (
    Record,
    describe_dataset,
    describe_key,
    make_record,
    make_worst_report,
    result,
)

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.keys import Keys

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


# --- how it looks --------------------------------------------------------------------------------

BROKEN_WORDS = r"""
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
let seen = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (element.closest("script, style, .hash, .unseen") || !element.checkVisibility()) continue;
  for (const {0: word, index} of texts.currentNode.data.matchAll(/[\p{L}\p{N}_.]{2,24}/gu)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, index);
    range.setEnd(texts.currentNode, index + word.length);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    seen += 1;
    if (lines.size > 1) broken.push(`${word} in ${element.outerHTML.slice(0, 120)}`);
  }
}
return [seen, broken];
"""

CLIPPED = """
const clipped = [];
for (const element of document.querySelectorAll("body *:not(.hash, .unseen, .scroll, .picture)")) {
  if (!element.checkVisibility() || element.closest("svg")) continue;
  if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth) {
    clipped.push(element.outerHTML.slice(0, 160));
  }
}
for (const text of document.querySelectorAll("svg svg text")) {
  const room = text.parentNode.width.baseVal.value - text.getBBox().x;
  if (text.getComputedTextLength() > room) clipped.push(text.outerHTML);
}
return clipped;
"""

CUT = """
return [...document.querySelectorAll(".scroll, .hash, td, .picture")].filter((box) =>
    box.clientWidth
    && (box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1)
).map((box) => box.outerHTML.slice(0, 200));
"""

VISIBLE = """
return [...document.querySelectorAll(arguments[0])].filter((one) => one.checkVisibility()).length;
"""

SIZES = pytest.mark.parametrize("width", [1280, 400])
THEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


@SIZES
@THEMES
def test_words_are_whole_and_readable(chromium: Browser, width: int, dark: bool) -> None:
    chromium.show(make_worst_report().to_html(), width=width, dark=dark)
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert chromium.overflow() <= 0
    seen, broken = chromium.run(BROKEN_WORDS)
    assert seen > 500
    assert broken == []
    assert chromium.run(CLIPPED) == []
    seen, poor = chromium.run(POOR_CONTRAST)
    assert seen > 300
    assert poor == []
    assert chromium.complaints() == []
    assert chromium.requests() == [(chromium.folder / "page.html").as_uri()]


def test_states_are_told_by_words_or_shapes(chromium: Browser) -> None:
    chromium.show(make_worst_report().to_html(), width=1280)
    words = chromium.run("return document.querySelector('svg.matrix').textContent")
    for word in ("compromised", "disabled", "state unknown", "enabled"):
        assert word in words
    assert chromium.count(".outcome.fault .flag, .outcome.warning .flag") == chromium.count(
        ".outcome.fault, .outcome.warning"
    )
    assert chromium.count("svg.runs .value") > 0


def test_a_leak_that_was_answered_is_no_fault() -> None:
    worst = make_worst_report()
    answered = make_worst_report(datasets=[describe_dataset("orders", 412, declared=412)])
    assert (worst.is_exposed, answered.is_exposed) == (True, False)
    assert 'class="failed"' in worst.to_html()
    assert 'class="failed"' not in answered.to_html()
    assert "opens no file" in answered.to_html()


# --- what it does --------------------------------------------------------------------------------


def column(chromium: Browser, table: str, number: int) -> list[str]:
    return list(
        chromium.run(
            """return [...document.querySelectorAll(`${arguments[0]} tbody tr:not(.group, .more)`)]
                .map((row) => row.cells[arguments[1]].innerText.trim())""",
            table,
            number,
        )
    )


def test_tables_are_sorted_by_click_and_by_key(chromium: Browser) -> None:
    chromium.show(make_worst_report().to_html(), width=1280)
    head = "#datasets thead th:nth-child(2)"
    assert column(chromium, "#datasets", 1) == ["412", "1,200", "0"]
    chromium.click(f"{head} button")
    assert column(chromium, "#datasets", 1) == ["1,200", "412", "0"]
    assert (
        chromium.run("return document.querySelector(arguments[0]).ariaSort", head) == "descending"
    )
    chromium.find(f"{head} button").send_keys(Keys.ENTER)
    assert column(chromium, "#datasets", 1) == ["0", "412", "1,200"]
    assert chromium.run("return document.querySelector(arguments[0]).ariaSort", head) == "ascending"
    chromium.find("#datasets thead th button").send_keys(Keys.SPACE)
    assert column(chromium, "#datasets", 0)[0] == "orders"
    assert chromium.count("#datasets [aria-sort]") == 1
    chromium.click("#datasets thead th:nth-child(8) button")  # sizes in different units
    assert column(chromium, "#datasets", 7) == ["13.8 GiB", "4.7 GiB", "0 B"]


def test_rows_stay_in_the_group_of_their_dataset(chromium: Browser) -> None:
    chromium.show(make_worst_report().to_html(), width=1280)
    groups = (
        "return [...document.querySelectorAll('#tasks .group bdi')].map((one) => one.innerText)"
    )
    rows = "return [...document.querySelectorAll('#tasks tbody')].map((body) => body.rows.length)"
    before = chromium.run(groups), chromium.run(rows)
    assert before == (["orders", "readings"], [10, 2])
    chromium.click("#tasks thead th:nth-child(2) button")
    assert (chromium.run(groups), chromium.run(rows)) == before
    assert column(chromium, "#tasks", 1) == ["39", "20", "17", "4", "3", "2", "1", "", "", ""]
    assert chromium.run("return document.querySelector('#tasks tbody tr').matches('.group')")


def test_the_theme_button_chooses_light_dark_or_as_the_system(chromium: Browser) -> None:
    chromium.show(make_worst_report().to_html(), width=400)
    scheme = "return getComputedStyle(document.documentElement).colorScheme"
    shown = []
    for _ in range(4):
        shown.append((chromium.text("#theme"), chromium.run(scheme)))
        chromium.click("#theme")
    system = ("Theme: as system", "light dark")
    assert shown == [system, ("Theme: dark", "dark"), ("Theme: light", "light"), system]


def test_a_digest_is_copied_as_a_whole(chromium: Browser) -> None:
    report = make_worst_report()
    chromium.show(report.to_html(), width=400)
    chromium.click(".facts .copy")
    assert chromium.run("return getSelection().toString()") == report.digest
    assert chromium.find(".facts .hash").size["width"] < 250


def test_on_paper_all_is_light_whole_and_without_buttons(chromium: Browser) -> None:
    record = make_record()
    events = [replace(record.events[-1], number=n + 1) for n in range(40)]
    report = make_worst_report(evidence=replace(record, events=events))
    chromium.show(report.to_html(), width=720, dark=True)
    chromium.click("#theme")
    chromium.emulate(dark=True, media="print")
    assert chromium.run("return getComputedStyle(document.documentElement).colorScheme") == "light"
    assert chromium.run(VISIBLE, "#theme, .copy, nav") == 0
    assert chromium.run(CUT) == []
    assert chromium.count("details:not([open])") == 1
    assert chromium.run(VISIBLE, ".timeline > li") == 40
    assert (
        chromium.run("return getComputedStyle(document.querySelector('tr')).breakInside") == "avoid"
    )
    assert chromium.overflow() <= 0


def test_without_javascript_all_is_there(chromium: Browser) -> None:
    chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.show(make_worst_report().to_html(), width=400)
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert not chromium.find("#theme").is_displayed()
    assert chromium.count(".copy, thead button") == 0
    assert chromium.count("#files tbody tr:not(.group)") == 39
    assert chromium.count("#record tbody tr") == 11
    assert chromium.overflow() <= 0


# --- what it states ------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """The elements of a page: their ids, where they lead, and what they would run or style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.active += [name for name, _ in attrs if name[:2] == "on" or name in ("src", "style")]


def test_each_claim_leads_to_its_line_of_the_record() -> None:
    found = Elements(make_worst_report().to_html())
    assert max(Counter(found.ids).values()) == 1
    assert [link for link in found.links if link.removeprefix("#") not in found.ids] == []
    # 7 ended events and an open one, 3 beginnings, 3 bars of the plot: apply and verify.
    assert {f"#line-{n}" for n in range(1, 12)} <= {*found.links}


def test_the_page_of_a_recorded_lake_proves_an_erasure(chromium: Browser, tmp_path: Path) -> None:
    make_recorded_events(tmp_path)
    report = mc.Lake.open(tmp_path / "modcrypt.toml").report()
    assert report.evidence is not None
    chromium.show(report.to_html(), width=1280)
    assert "Record of evidence intact" in chromium.text("header")
    shred = next(e for e in report.evidence.events if (e.event, e.phase) == ("shred", "done"))
    chromium.click("#erased td a")
    assert chromium.run("return location.hash") == f"#line-{shred.number}"
    line = chromium.text(":target")
    assert "modcrypt.erased.jsonl, line 1" in line
    assert shred.hash in chromium.run("return document.querySelector(':target').textContent")
    box = chromium.run("return document.querySelector(':target').getBoundingClientRect().top")
    assert 0 < box < 1200
    assert chromium.complaints() == []


def test_lines_that_are_not_listed_have_no_link() -> None:
    record = make_record()
    page = make_worst_report(evidence=replace(record, events=record.events[-1:])).to_html()
    found = Elements(page)
    assert [link for link in found.links if link.removeprefix("#") not in found.ids] == []
    assert "line 9" in page


def test_proofs_are_of_the_same_dataset_request_time_and_key() -> None:
    record = Record()
    begun = record.add("shred", "begun", request="r-1")
    first = record.add("shred", begun=begun, request="r-1", results=[result("people", 1)])
    begun = record.add("shred", "begun")
    second = record.add("shred", begun=begun, results=[result("people", 1)])
    record.add("shred", "failed", request="r-2", results=[result("people", 1)])
    leak = record.add("leak", keys=["pii@1"], results=[result("people", 3, exposed=3)])
    proofs = Proofs(record.events)
    during = record.events[begun].time
    assert proofs.erased("people", "2026-01-01", "r-1") == first
    assert proofs.erased("people", during, "") == second
    assert proofs.erased("people", "2026-01-01", "") == 0
    assert proofs.erased("people", "yesterday", "") == 0
    assert proofs.erased("people", during, "r-2") == 0  # it failed
    assert proofs.erased("orders", during, "r-1") == 0
    assert (proofs.leaked("pii"), proofs.leaked("pi"), proofs.rotated("pii")) == (leak, 0, 0)


def test_the_time_line_has_an_entry_for_each_event_from_its_beginning_to_its_end() -> None:
    entries = list_entries(make_worst_report())
    assert [(entry.event.number, entry.outcome, entry.severity) for entry in entries] == [
        (11, "not as declared", "fault"),
        (10, "no end recorded", "warning"),
        (9, "failed", "fault"),
        (7, "files exposed", "warning"),
        (6, "complete", ""),
        (4, "complete", ""),
        (3, "complete", ""),
        (2, "complete", ""),
    ]
    assert list_entries(make_worst_report(evidence=None)) == []


def test_tasks_name_what_helps() -> None:
    tasks = [
        (task["text"], task["files"], task["command"]) for task in list_tasks(make_worst_report())
    ]
    assert tasks == [
        ("Files under a compromised key", 20, "modcrypt apply orders"),
        ("Files rewrapped, data keys unchanged since the leak", 17, "modcrypt apply orders"),
        ("Plaintext files", 2, "modcrypt apply orders"),
        ("Files waiting in the source", 3, "modcrypt apply orders"),
        ("Master keys due for a new version: pii", None, "modcrypt apply orders"),
        ("seal x", None, "modcrypt verify orders"),
        ("Values of encrypted columns beside the files", 1, "modcrypt leaks orders"),
        ("Files that include does not match", 4, "modcrypt status --json"),
        ("Files not verified since they changed", 39, "modcrypt verify orders"),
        ("no such bucket", None, "modcrypt doctor"),
    ]


def test_commands_can_be_pasted_whatever_the_name_is() -> None:
    row = describe_dataset("a; rm -r ~", 1, plaintext=1, unreadable=1)
    commands = [task["command"] for task in list_tasks(make_worst_report(datasets=[row]))]
    assert commands == ["modcrypt apply 'a; rm -r ~'", "modcrypt why FILE"]


def test_the_plot_has_the_lake_after_each_run_and_now() -> None:
    report = make_worst_report()
    assert report.evidence is not None
    plot = draw_runs(report, report.evidence.events)
    assert [(b.run.what, b.run.good, b.run.erased, b.run.bad) for b in plot.bars] == [
        ("apply", 1600, 0, 0),
        ("verify", 1600, 0, 0),
        ("verify", 395 + 1198, 2, 17),
        ("report", 373 + 1198, 2, 39),
    ]
    assert [tick for tick, _ in plot.ticks] == [0, 900, 1800]
    for bar in plot.bars:
        assert 0 <= bar.top <= plot.bottom
        assert bar.x + bar.width <= 100


def test_a_verification_of_parts_says_nothing_of_the_rest() -> None:
    record = Record()
    whole = record.add("verify", results=[result("orders", 2, correct=2, skipped=8)])
    record.add("verify", scope="since, parts", results=[result("orders", 1, correct=1)])
    report = make_worst_report(evidence=record.check())
    proofs = Proofs(record.events)
    assert proofs.verified("orders") == whole
    assert [event.number for event, _ in proofs.list_verified()] == [whole]
    (run, _) = (bar.run for bar in draw_runs(report, record.events).bars)
    assert (run.good, run.erased, run.bad) == (10, 0, 0)
    assert list_entries(report)[0].title == "Lake verified (limited: since, parts)"


def test_the_plot_of_an_empty_lake_is_empty() -> None:
    plot = draw_runs(make_worst_report(datasets=[]), ())
    assert [bar.parts for bar in plot.bars] == [[]]
    assert (
        "None: everything is as declared"
        in make_worst_report(
            datasets=[], keys=[], findings=[], more_findings=0, evidence=None
        ).to_html()
    )


def test_pictures_and_page_are_bounded() -> None:
    datasets = [describe_dataset(f"d{n}", 1, declared=1) for n in range(60)]
    keys = [describe_key(f"k{n}", {f"d{n % 60}": 1}) for n in range(300)]
    keys[-1]["compromised"] = ["k299"]
    record = Record()
    for _ in range(50):
        record.add("verify", results=[result(f"d{n}", 1, correct=1) for n in range(20)])
    report = make_worst_report(datasets=datasets, keys=keys, evidence=record.check())
    picture = draw_keys(report)
    assert (len(picture.keys), len(picture.datasets)) == (MAX_KEYS, MAX_DATASETS)
    assert picture.keys[0]["master_key_id"] == "k299"
    assert picture.more == [
        "260 master keys only in the table below", "40 datasets only in the table below",
    ]  # fmt: skip
    assert len(report.to_html()) < 600_000


# --- hostile names -------------------------------------------------------------------------------


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_are_only_text(evil: str) -> None:
    page = make_worst_report(lambda name: evil).to_html()
    page.encode()
    assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
    found = Elements(page)
    assert (found.tags["script"], found.tags["img"], found.active) == (1, 0, [])
    assert "n" * 500 not in page


@SIZES
def test_hostile_names_stay_in_their_place(chromium: Browser, width: int) -> None:
    numbers = iter(range(10_000_000))
    report = make_worst_report(lambda name: f"{name} {EVIL[next(numbers) % len(EVIL)]}")
    chromium.show(report.to_html(), width=width)
    assert chromium.driver.title == "Lake report"
    assert chromium.count("img, iframe, object, embed, form, [onerror], [onfocus], base") == 0
    assert chromium.overflow() <= 0
    assert chromium.complaints() == []
