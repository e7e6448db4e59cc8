"""The website that `make docs` builds: its links, its contents, and what a browser shows.

Only `make docs` runs this file, which alone knows that the website is not an old one.
"""

from __future__ import annotations

import functools
import html
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("mkdocs", reason="the group docs is not installed; run make docs")

import nbformat

from modcrypt.cli.app import program
from modcrypt.cli.help.command_descriptions import describe_commands
from modcrypt.parquet.writers.quirk import load_quirks
from tests.support.browser import POOR_CONTRAST, POOR_CONTRAST_OF_A_PICTURE, Browser, chromium
from tests.support.cases import each_case
from tests.support.guide import blocks_of
from tests.support.paths import ROOT
from tools.docs.hooks import RESULTS
from tools.docs.notebook_pages import NOTEBOOKS, execute

__all__ = ["chromium"]  # a fixture

SITE = ROOT / "build/site"
PAGES = (
    "index.html", "tutorial.html", "how-to/frames.html", "reference/command-line.html",
    "reference/commands/mask.html", "reference/limits.html", "reference/api/files.html",
    "explanation/formats.html", "reference/conformance.html", "notebooks/encrypt-and-read.html",
    "how-to/warehouses.html", "explanation/compliance.html", "explanation/performance.html",
    "reference/writers.html",
)  # fmt: skip


class _Page(HTMLParser):
    """The links, the anchors and the resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.resources: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and values.get("href"):
            self.links.add(values["href"] or "")
        for name in ("src", "href"):
            if tag in ("link", "script", "img", "iframe") and values.get(name):
                self.resources.add(values[name] or "")


@pytest.fixture(scope="module")
def pages() -> dict[Path, _Page]:
    assert SITE.exists(), "run make docs, which builds the website first"
    return {path: _Page(path) for path in sorted(SITE.rglob("*.html")) if path.name != "404.html"}


def test_every_link_leads_to_a_page_and_a_place_on_it(pages: dict[Path, _Page]) -> None:
    assert len(pages) > 50
    broken = []
    for page in pages.values():
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            target, fragment = urldefrag(unquote(link))
            path = (page.path.parent / target).resolve() if target else page.path
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (fragment and fragment not in pages[path].ids):
                broken.append((str(page.path.relative_to(SITE)), link))
    assert broken == []


def test_no_page_loads_anything_from_another_host(pages: dict[Path, _Page]) -> None:
    loaded = {resource for page in pages.values() for resource in page.resources}
    assert [resource for resource in loaded if "//" in resource] == []


def test_each_bug_of_writers_has_an_anchor(pages: dict[Path, _Page]) -> None:
    assert {*load_quirks()} <= pages[SITE / "reference/writers.html"].ids


def test_each_command_has_a_page_with_its_options() -> None:
    for command in describe_commands(program.context_class(program, info_name="modcrypt")):
        if command.commands:
            continue
        name = "-".join(command.name.split()[1:])
        page = (SITE / f"reference/commands/{name}.html").read_text()
        for option, _ in chain.from_iterable(command.options.values()):
            assert html.escape(option) in page, (name, option)


@each_case("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_stores(path: Path) -> None:
    stored, again = nbformat.read(path, as_version=4), execute(path)
    assert [cell.get("outputs") for cell in again.cells] == [
        cell.get("outputs") for cell in stored.cells
    ]


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=SITE))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_readable(chromium: Browser, address: str, width: int, dark: bool) -> None:
    chromium.resize(width, 900)
    chromium.emulate(dark=dark)
    for page in PAGES:
        for log in ("browser", "performance"):
            chromium.driver.get_log(log)  # takes what others left
        chromium.driver.get(f"{address}/{page}")
        scheme = chromium.run("return document.body.dataset.mdColorScheme")
        assert scheme == ("slate" if dark else "default"), page
        assert chromium.overflow() <= 0, page
        seen, poor = chromium.run(POOR_CONTRAST)
        assert seen > 50, page
        assert poor == [], (page, poor[:3])
        assert chromium.complaints() == [], page
        others = [url for url in chromium.requests() if not url.startswith((address, "data:"))]
        assert others == [], page


CUT_OFF = """
const tooWide = (box) => box.scrollWidth > box.clientWidth + 2;
const cut = (element) => {
  for (let box = element; !box.matches(".md-content"); box = box.parentElement)
    if (tooWide(box) && getComputedStyle(box).overflowX !== "visible") return true;
  return false;
};
const all = [...document.querySelectorAll(".md-content :is(pre > code, table)")];
return all.filter(cut).map((element) => element.innerText.slice(0, 80));
"""
OUT_OF_REACH = """
const right = document.documentElement.clientWidth;
const reachable = (element) => {
  for (let box = element; box; box = box.parentElement) {
    if (box.getBoundingClientRect().right <= right + 1) return true;
    const parent = box.parentElement, style = parent && getComputedStyle(parent);
    if (style && ["auto", "scroll"].includes(style.overflowX)) box = parent;
    else if (style && style.overflowX !== "visible") return false;
  }
  return false;
};
const all = [...document.querySelectorAll(".md-content__inner *")];
const shown = all.filter((element) => element.checkVisibility() && element.innerText?.trim());
return shown.filter((element) => !reachable(element)).map((element) => element.outerHTML);
"""


def test_pages_fit_a_screen_and_a_phone(chromium: Browser, pages: dict[Path, _Page]) -> None:
    """No code or table is cut off at 1280 pixels, and nothing is out of reach at 400."""
    faults = {}
    for path in pages.keys() - {SITE / RESULTS}:
        chromium.resize(1280, 900)
        chromium.driver.get(path.as_uri())  # does not load the index of the search
        cut = chromium.run(CUT_OFF)
        chromium.resize(400, 900)
        if found := cut + chromium.run(OUT_OF_REACH):
            faults[str(path.relative_to(SITE))] = found
    assert faults == {}


def test_the_copy_button_takes_commands_alone(chromium: Browser, address: str) -> None:
    chromium.resize(1280, 900)
    grant = {"permissions": ["clipboardReadWrite"], "origin": address}
    chromium.driver.execute_cdp_cmd("Browser.grantPermissions", grant)
    chromium.driver.get(f"{address}/tutorial.html")
    blocks = "[...document.querySelectorAll('.highlight')]"
    block = f"{blocks}.find((element) => element.innerText.includes('created pii'))"
    chromium.wait(f"return {block}.querySelector('[data-md-type=copy]') !== null")
    button = chromium.run(f"return {block}.querySelector('[data-md-type=copy]')")
    chromium.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()  # as a user does: a script may not write to the clipboard
    chromium.wait("return document.querySelector('.md-dialog--active') !== null")
    copied = chromium.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0])"
    )
    (shown,) = [block for block in blocks_of("tutorial.md") if "created pii" in block.text]
    commands = [line for line in shown.text.splitlines() if line.startswith("$ ")]
    assert copied.splitlines() == [command.removeprefix("$ ") for command in commands]


@pytest.mark.parametrize("dark", [False, True])
@each_case("picture", sorted((ROOT / "docs/assets").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_readable(chromium: Browser, picture: Path, dark: bool) -> None:
    chromium.show(picture.read_text(), dark=dark)
    seen, poor = chromium.run(POOR_CONTRAST_OF_A_PICTURE)
    assert seen > 4
    assert poor == []


@pytest.mark.parametrize(
    ("words", "page"), [("crontab", "nightly-verification"), ("wrong key", "reference/errors")]
)
def test_the_search_finds_a_page(chromium: Browser, address: str, words: str, page: str) -> None:
    chromium.resize(1280, 900)
    chromium.driver.get(f"{address}/index.html")
    chromium.click("label[for=__search]")
    chromium.find("input[name=query]").send_keys(words)
    chromium.wait("return document.querySelector('.md-search-result__link') !== null")
    link = chromium.run("return document.querySelector('.md-search-result__link').href")
    assert page in link


def test_the_index_of_the_search_is_built() -> None:
    index = json.loads((SITE / "search/search_index.json").read_text())
    assert len(index["docs"]) > 200
