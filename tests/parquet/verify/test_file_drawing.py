"""The page that draws a file, as a browser shows it: headless Chromium is the judge.

Files are real ones, whose sizes and places PyArrow and an independent verifier find, or made up
where they must be larger, or worse, than a test should write.
"""

from __future__ import annotations

import html.parser
import json
import re
import socket
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.format.byte_map import Region, State
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.verify import file_drawing as drawing
from modcrypt.parquet.verify.file_drawing import draw
from tests.support.browser import EVIL, POOR_CONTRAST, Browser, chromium
from tests.support.keys import FOOTER_KEY
from tests.support.module_spans import list_modules

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

__all__ = ["chromium"]  # a fixture

STATES = ("authentic", "locked", "unchecked", "unauthenticated", "plaintext", "fault")


# --- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Arguments of `draw`."""

    columns: tuple[str, ...]
    row_groups: int
    size: int
    regions: tuple[Region, ...]
    findings: tuple[Finding, ...] = ()

    def page(self, **other: Any) -> str:
        return draw(
            **{
                "title": "people.parquet",
                "facts": [("Algorithm", "AES_GCM_V1")],
                "columns": self.columns,
                "row_groups": self.row_groups,
                "size": self.size,
                "regions": self.regions,
                "findings": self.findings,
                **other,
            }
        )

    def with_states(self, states: dict[int, State]) -> Drawn:
        """Return a copy in which some regions, by their start, have another state."""
        regions = (
            replace(r, state=states[r.start], key=None if states[r.start] == "plaintext" else r.key)
            if r.start in states
            else r
            for r in self.regions
        )
        return replace(self, regions=tuple(regions))


KEYS = {"ssn": b"1234567890123450", "address": b"1234567890123451"}
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=KEYS)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = range(12_000)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "ssn": [f"{n * 7919 % 9973:04}-{n % 89:02}" for n in rows],
            "address": [{"zip": f"{n % 9000:05}", "city": ["Ulm", "Bonn"][n % 2]} for n in rows],
            "flag": [n % 3 == 0 for n in rows],
        }
    )
    path = tmp_path_factory.mktemp("drawn") / "people.parquet"
    sealing = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        column_keys=KEYS,
        column_key_metadata={name: name.encode() for name in KEYS},
        footer_key_metadata=b"footer",
    )
    options: dict[str, Any] = {"data_page_size": 4_096, "write_page_index": True}
    mc.write_table(table, path, sealing, row_group_size=4_000, **options)
    return path


@pytest.fixture(scope="module")
def file(people: Path) -> Drawn:
    """The modules of a real file, as the independent verifier finds them, all authentic."""
    spans = list_modules(people, READER)
    regions = []
    for span in spans:
        module = span.module
        group = (module.path or "").split(".")[0]
        regions.append(
            Region(
                start=span.start,
                end=span.end,
                kind=module.type.name.lower().replace("_", " "),
                state="authentic",
                row_group=module.row_group,
                column=module.column,
                page=module.page,
                path=module.path,
                key=f"kms {group}" if group in KEYS else "footer key",
            )
        )
    columns = ("id", "ssn", "address.zip", "address.city", "flag")
    return Drawn(columns, 3, people.stat().st_size, tuple(regions))


def page_of(file: Drawn, row_group: int, column: int, number: int = 1) -> Region:
    (found,) = (
        region
        for region in file.regions
        if (region.kind, region.row_group, region.column, region.page)
        == ("data page", row_group, column, number)
    )
    return found


def finding(region: Region, message: str = "the tag does not match", **other: Any) -> Finding:
    module = ModuleId(
        ModuleType[region.kind.upper().replace(" ", "_")],
        region.row_group,
        region.column,
        region.page,
        region.path,
    )
    values = {"word": "tag", "start": region.start, "end": region.end, "module": module}
    return Finding(**{**values, "message": message, **other})


@pytest.fixture(scope="module")
def damaged_file(file: Drawn) -> Drawn:
    """All six states, two faults, a warning about bytes and one about none."""
    bad, head = page_of(file, 1, 0), page_of(file, 2, 1)
    states: dict[int, State] = {}
    for region in file.regions:
        if region.path == "address.zip":
            states[region.start] = "locked"
        elif region.path == "address.city" and region.row_group == 2:
            states[region.start] = "unchecked"
        elif region.path == "flag":
            states[region.start] = "plaintext"
        elif region.path == "id" and region.row_group == 0 and region.kind == "data page":
            states[region.start] = "unauthenticated"
    states |= {bad.start: "fault", head.start: "fault"}
    findings = (
        finding(bad),
        finding(head, start=None, end=None),
        Finding(
            word="format", message="odd", severity="warning", start=file.size - 9, end=file.size
        ),
        Finding(word="aad-prefix", message="no prefix was demanded", severity="warning"),
    )
    return replace(file.with_states(states), findings=findings)


def made_up(
    columns: int, row_groups: int, pages: int, *, path: str = "c", state: Any = None, keys: int = 3
) -> Drawn:
    """Chunks of pages of 1,000 to 5,999 bytes with headers of 50, and a footer."""
    regions = [Region(start=0, end=4, kind="magic", state="plaintext")]
    names = tuple(f"{path}{c}" for c in range(columns))
    at = 4
    for r in range(row_groups):
        for c in range(columns):
            for p in range(pages):
                for kind, size in (("data page header", 50), ("data page", 1000 + at % 5000)):
                    regions.append(
                        Region(
                            start=at, end=at + size, kind=kind, row_group=r, column=c, page=p,
                            state="authentic" if state is None else state(r, c, p),
                            path=names[c], key=f"key {c % keys}",
                        )
                    )  # fmt: skip
                    at += size
    regions.append(Region(start=at, end=at + 900, kind="footer", state="authentic", key="key 0"))
    return Drawn(names, row_groups, at + 900, tuple(regions))


# --- the drawing ---------------------------------------------------------------------------------


def test_a_cell_for_every_chunk_and_no_request_and_no_complaint(
    chromium: Browser, people: Path, file: Drawn
) -> None:
    """PyArrow says how many chunks there are."""
    metadata = pq.read_metadata(
        people, decryption_properties=pe.create_decryption_properties(FOOTER_KEY)
    )
    chromium.show(file.page())
    assert metadata.num_row_groups * metadata.num_columns == 15
    assert chromium.count("#grid .cell") == 15
    assert chromium.count("#grid thead .name") == metadata.num_columns
    assert chromium.requests() == [(chromium.folder / "page.html").as_uri()]
    assert chromium.complaints() == []


def test_a_strips_width_is_its_share_of_the_chunks_bytes(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    cells = chromium.run(
        """return [...document.querySelectorAll("#grid .cell")].map((cell) => [
            cell.dataset.cell, cell.querySelector(".band").getBoundingClientRect().width,
            [...cell.querySelectorAll(".part")].map((part) => [Number(part.dataset.start),
                Number(part.dataset.end), part.getBoundingClientRect().width])])"""
    )
    assert len(cells) == 15
    for place, width, parts in cells:
        r, c = map(int, place.split(","))
        spans = [region for region in file.regions if (region.row_group, region.column) == (r, c)]
        chunk = sum(span.size for span in spans)
        assert len(parts) > 1
        assert sum(end - start for start, end, _ in parts) == chunk  # nothing was left out
        for start, end, pixels in parts:
            assert pixels == pytest.approx((end - start) / chunk * width, abs=0.6)


def test_the_strip_of_the_file_is_to_scale_from_its_first_byte_to_its_last(
    chromium: Browser, damaged_file: Drawn
) -> None:
    chromium.show(damaged_file.page())
    left, width, parts = chromium.run(
        """const box = document.querySelector("#file .strip").getBoundingClientRect();
        return [box.left, box.width, [...document.querySelectorAll("#file .part")].map((part) => {
            const own = part.getBoundingClientRect();
            return [Number(part.dataset.start), Number(part.dataset.end), own.left, own.width];
        })]"""
    )
    assert parts[0][0] == 0
    assert parts[-1][1] == damaged_file.size
    assert all(first[1] == second[0] for first, second in pairwise(parts))  # gaps are drawn, too
    for start, end, x, pixels in parts:
        assert x - left == pytest.approx(start / damaged_file.size * width, abs=0.6)
        assert pixels == pytest.approx((end - start) / damaged_file.size * width, abs=0.6)


def test_gaps_are_named_and_counted(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    listed = sum(region.size for region in file.regions)
    gaps = chromium.run(
        """const row = [...document.querySelectorAll("#kinds tbody tr")]
            .find((element) => element.cells[0].textContent === "gap");
        return Number(row.cells[4].dataset.value)"""
    )
    assert gaps == file.size - listed > 0


def test_what_is_counted_adds_up(chromium: Browser, damaged_file: Drawn) -> None:
    chromium.show(damaged_file.page())
    sums = chromium.run(
        """const sum = (rows, n) => [...document.querySelectorAll(rows)]
            .reduce((all, row) => all + Number(row.cells[n].dataset.value), 0);
        return [sum(".states tbody tr", 3), sum("#kinds tbody tr", 4),
                sum("#columns tbody tr", 4), sum("#columns tbody tr", 3)]"""
    )
    in_columns = [region for region in damaged_file.regions if region.column is not None]
    assert sums[:2] == [damaged_file.size, damaged_file.size]
    assert sums[2:] == [sum(region.size for region in in_columns), len(in_columns)]
    for state in STATES:
        parts = chromium.run(
            """return Number([...document.querySelectorAll(".states tbody tr")].find(
                (row) => row.cells[0].textContent === arguments[0]).cells[2].dataset.value)""",
            state,
        )
        gaps = 3 if state == "plaintext" else 0
        assert parts in range(
            sum(region.state == state for region in damaged_file.regions),
            sum(region.state == state for region in damaged_file.regions) + gaps + 1,
        )
        assert parts


def test_the_pointer_on_a_strip_shows_what_and_where_it_is(
    chromium: Browser, damaged_file: Drawn
) -> None:
    bad = page_of(damaged_file, 1, 0)
    chromium.show(damaged_file.page())
    reported = chromium.hover(f"#grid .part[data-start='{bad.start}']")
    lines = reported.splitlines()
    assert lines[0] == "data page"
    assert lines[1] == "row group 1, column id, page 1"
    assert f"{bad.start:,}\u2013{bad.end:,}" in lines
    assert f"({bad.size:,} bytes)" in reported
    assert "fault" in lines
    assert "A · footer key" in lines
    frame = chromium.run(
        """const one = document.querySelector("#file .range.hover").getBoundingClientRect();
        const all = document.querySelector("#file .strip").getBoundingClientRect();
        return (one.left - all.left) / all.width"""
    )
    assert frame == pytest.approx(bad.start / damaged_file.size, abs=0.003)
    ActionChains(chromium.driver).move_to_element(chromium.find("h1")).perform()
    assert chromium.count("#tip[hidden]") == 1


def test_a_joined_strip_says_how_many_it_stands_for(chromium: Browser, file: Drawn) -> None:
    """A page header of a few bytes is joined with its page."""
    page = page_of(file, 0, 0)
    header = next(region for region in file.regions if region.end == page.start)
    chromium.show(file.page())
    reported = chromium.hover(f"#grid .part[data-start='{header.start}']")
    assert reported.startswith("data page header, data page")
    assert "2, drawn as one" in reported
    assert f"{header.start:,}\u2013{page.end:,}" in reported


def test_choosing_a_cell_lists_every_part_of_the_chunk(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    assert chromium.count("#detail[hidden]") == 1
    chromium.click("[data-cell='2,1'] .part")
    spans = [region for region in file.regions if (region.row_group, region.column) == (2, 1)]
    rows = chromium.run(
        """return [...document.querySelectorAll("#detail tbody tr")]
            .map((row) => [...row.cells].map((cell) => cell.innerText))"""
    )
    assert [[row[0], row[2], row[4], row[5]] for row in rows] == [
        [span.kind, f"{span.start:,}\u2013{span.end:,}", "authentic", "B · kms ssn"]
        for span in spans
    ]
    assert "row group 2, column ssn" in chromium.text("#detail h3")


# --- findings ------------------------------------------------------------------------------------


def test_a_click_on_a_finding_marks_its_module_everywhere(
    chromium: Browser, damaged_file: Drawn
) -> None:
    """The second one shows no bytes: its address is enough. The window is a low one."""
    chromium.show(damaged_file.page(), height=700)
    for number, (r, c) in enumerate([(1, 0), (2, 1)]):
        module = page_of(damaged_file, r, c)
        chromium.click(f"[data-finding='{number}'] button")
        for box in ("#file", "#grid", "#detail"):
            hit = chromium.run(
                """return [...document.querySelectorAll(arguments[0] + " .part.hit")]
                    .map((part) => [Number(part.dataset.start), Number(part.dataset.end)])""",
                box,
            )
            assert hit == [[module.start, module.end]], box
        assert chromium.count("#grid .cell.hit") == 1
        assert chromium.count(f"[data-cell='{r},{c}'].hit .part.hit") == 1
        seen = chromium.run(
            """const cell = document.querySelector("#grid .cell.hit").getBoundingClientRect();
            const over = document.elementFromPoint(cell.left + cell.width / 2, cell.bottom - 3);
            return cell.top >= 0 && cell.bottom <= innerHeight && !over.closest("#detail")"""
        )
        assert seen


def test_a_finding_about_bytes_frames_them_and_one_about_none_says_so(
    chromium: Browser, damaged_file: Drawn
) -> None:
    chromium.show(damaged_file.page())
    chromium.click("[data-finding='2'] td:last-child")
    assert chromium.count("#file .range.fixed") == 1
    assert chromium.count("#grid .hit, #detail:not([hidden])") == 0
    chromium.click("[data-finding='3'] button")
    assert chromium.count("#file .range.fixed") == 0
    assert chromium.text("#said") == "This finding has no place in the file."


def test_findings_are_flagged_and_counted(chromium: Browser, damaged_file: Drawn) -> None:
    chromium.show(damaged_file.page())
    assert chromium.text("header p").split("\n") == ["2 faults2 warnings"]
    assert chromium.count("#findings tbody tr") == 4
    assert chromium.count("#grid .mark") == 2
    assert chromium.count("#file .mark.fault") == 2
    assert chromium.count("#file .mark.warning") == 1
    assert chromium.count("#grid .cell.faulty") == 2


def test_a_fault_that_no_finding_reports_is_flagged_all_the_same(chromium: Browser) -> None:
    """However small it is among the other parts."""
    drawn = made_up(
        3, 2, 400, state=lambda r, c, p: "fault" if (r, c, p) == (1, 2, 77) else "locked"
    )
    chromium.show(drawn.page())
    assert chromium.text("header p") == "2 faulty parts"
    assert chromium.count("[data-cell='1,2'] .mark") == chromium.count("#grid .mark") == 2
    assert chromium.count("[data-cell='1,2'].faulty") == chromium.count(".faulty") == 1
    assert chromium.count("#file .mark") == 2


def test_without_findings_nothing_is_said_of_any(chromium: Browser, file: Drawn) -> None:
    """Perhaps nobody looked."""
    chromium.show(file.page())
    assert chromium.text("header p") == ""
    assert not chromium.find("#findings").is_displayed()


# --- keyboard and tables -------------------------------------------------------------------------


def test_the_keyboard_reaches_cells_and_parts(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    chromium.find("#grid [tabindex='0']").send_keys(Keys.ARROW_RIGHT)
    chromium.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    cell = chromium.driver.switch_to.active_element
    assert cell.get_attribute("data-cell") == "1,1"
    assert "row group 1" in chromium.text("#tip")
    assert cell.get_attribute("aria-label").startswith("ssn; row group 1; Bytes ")
    cell.send_keys(Keys.ENTER)
    first = chromium.find("#detail .part[tabindex='0']")
    first.send_keys(Keys.ARROW_RIGHT)
    assert chromium.run("return document.activeElement.previousSibling === arguments[0]", first)
    assert chromium.text("#tip").startswith("data page")
    chromium.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    chromium.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert chromium.count("#detail[hidden]") == 1
    assert chromium.driver.switch_to.active_element.get_attribute("data-cell") == "1,1"


def test_columns_are_sorted_found_and_shown_in_the_grid(chromium: Browser) -> None:
    chromium.show(made_up(20, 2, 3).page())
    shown = """return [...document.querySelectorAll("#columns tbody tr")]
        .filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"""
    chromium.click("#columns thead th:nth-child(1) button")
    assert chromium.run(shown) == [f"c{n}" for n in range(20)]
    chromium.click("#columns thead th:nth-child(1) button")
    assert chromium.run(shown) == [f"c{n}" for n in reversed(range(20))]
    chromium.click("#columns thead th:nth-child(5) button")
    sizes = chromium.run(
        "return [...document.querySelectorAll('#columns data')].map((item) => Number(item.value))"
    )
    assert sizes == sorted(sizes, reverse=True)
    chromium.find("#filter").send_keys("c7")
    assert chromium.run(shown) == ["c7"]
    chromium.click("#columns [data-column='7']")
    across = (
        "return [...document.querySelectorAll('.across')].map((element) => element.dataset.cell)"
    )
    assert chromium.run(across) == ["0,7", "1,7"]


# --- light, dark, print, colour blindness --------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_the_contrast_that_wcag_asks_for(
    chromium: Browser, damaged_file: Drawn, dark: bool
) -> None:
    chromium.show(damaged_file.page(notes=[("Heading", "Sentence.")]), dark=dark)
    chromium.click("[data-finding='0'] button")
    chromium.hover("#grid .part")
    seen, poor = chromium.run(POOR_CONTRAST)
    assert seen > 150
    assert poor == []


def paper(chromium: Browser) -> str:
    return str(chromium.run("return getComputedStyle(document.body).backgroundColor"))


def test_the_system_or_the_button_chooses_light_or_dark(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    light = paper(chromium)
    chromium.emulate(dark=True)
    dark = paper(chromium)
    assert light != dark
    chromium.click("#theme")
    assert (paper(chromium), chromium.text("#theme")) == (light, "Theme: light")
    chromium.click("#theme")
    assert (paper(chromium), chromium.text("#theme")) == (dark, "Theme: dark")
    chromium.click("#theme")
    assert chromium.text("#theme") == "Theme: as system"
    chromium.emulate(dark=False)
    assert paper(chromium) == light


def test_states_and_keys_differ_in_more_than_hue(chromium: Browser, damaged_file: Drawn) -> None:
    chromium.show(damaged_file.page())
    looks = chromium.run(
        """return arguments[0].map((state) => {
            const style = getComputedStyle(document.querySelector(`.states .s-${state}`));
            return `${style.backgroundImage} ${style.boxShadow}`;
        })""",
        list(STATES),
    )
    patterns = [re.sub(r"(rgba?|color|light-dark)\([^)]*\)", "", look) for look in looks]
    assert len(set(patterns)) == len(STATES)
    letters = chromium.run(
        "return [...document.querySelectorAll('#keys .key')].map((element) => element.textContent)"
    )
    assert letters == ["A", "B", "C"]
    rails = chromium.run(
        """const seen = new Set();
        for (let n = 0; n < 24; n++) {
          const chip = document.querySelector("#keys .key").cloneNode();
          chip.className = `key k${n}`;
          document.body.append(chip);
          const {borderBottomColor, borderBottomStyle} = getComputedStyle(chip);
          seen.add(borderBottomColor + borderBottomStyle);
        }
        return seen.size"""
    )
    assert rails == 24


def test_on_paper_it_is_light_whole_and_without_buttons(
    chromium: Browser, damaged_file: Drawn
) -> None:
    chromium.show(damaged_file.page(), width=1000, dark=True)
    chromium.emulate(dark=True, media="print")
    assert not chromium.find("#theme").is_displayed()
    assert chromium.run("return getComputedStyle(document.documentElement).colorScheme") == "light"
    cut = chromium.run(
        """return [...document.querySelectorAll(".scroll")].filter(
            (box) => box.scrollHeight > box.clientHeight + 1
                  && getComputedStyle(box).overflow !== "visible").length"""
    )
    assert cut == 0
    kept = "return getComputedStyle(document.querySelector('.part')).printColorAdjust"
    assert chromium.run(kept) == "exact"


@pytest.mark.parametrize("width", [700, 1600, 2500])
def test_nothing_is_wider_than_the_window(
    chromium: Browser, damaged_file: Drawn, width: int
) -> None:
    chromium.show(damaged_file.page(notes=[("n" * 300, "m" * 300)], title="t" * 400), width=width)
    chromium.click("[data-finding='0'] button")
    assert chromium.overflow() <= 0


def test_a_narrower_window_is_drawn_anew(chromium: Browser) -> None:
    chromium.show(made_up(4, 2, 40).page())
    before = chromium.count("#file .part")
    chromium.resize(700)
    chromium.wait(f"return document.querySelectorAll('#file .part').length < {before}")
    assert chromium.overflow() <= 0


# --- hostile files -------------------------------------------------------------------------------


def hostile() -> Drawn:
    drawn = made_up(len(EVIL), 2, 2)
    regions = tuple(
        r if r.column is None else replace(r, path=EVIL[r.column], key=EVIL[r.column])
        for r in drawn.regions
    )
    found = tuple(
        finding(r, message=EVIL[r.column], word=EVIL[r.column])
        for r in regions
        if r.column is not None and r.kind == "data page"
    )
    return replace(drawn, columns=EVIL, regions=regions, findings=found)


def test_hostile_names_are_only_ever_text(chromium: Browser) -> None:
    pairs = [(name, name) for name in EVIL]
    page = hostile().page(title=EVIL[0], facts=pairs, notes=pairs)
    chromium.show(page)
    assert chromium.driver.title.startswith("</script><script>document.title")
    assert chromium.count("img, iframe, object, embed, a, form, [onerror], [onfocus]") == 0
    assert chromium.count("script") == 3
    assert chromium.run("return document.querySelector('#grid .name').textContent") == EVIL[0]
    assert (
        chromium.hover("[data-cell='0,0'] .part")
        .splitlines()[1]
        .startswith(f"row group 0, column {EVIL[0]}")
    )
    chromium.click("[data-finding='0'] button")
    assert EVIL[0] in chromium.text("#detail h3")
    assert chromium.count("img") == 0
    assert chromium.overflow() <= 0
    assert chromium.requests() == [(chromium.folder / "page.html").as_uri()]
    assert chromium.complaints() == []


def test_no_character_that_hides_or_turns_text_is_in_the_page() -> None:
    page = hostile().page(title=EVIL[3], notes=[(EVIL[2], EVIL[5])])
    page.encode()  # no lone surrogate
    assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
    assert "annex\\u202egnp.exe" in page
    assert "(10,000 characters)" in page
    assert "n" * 500 not in page


INTRUSION = """
const script = document.createElement("script");
script.textContent = "document.title = 'owned'";
document.body.append(script);
document.body.setAttribute("style", "display: none");
const image = document.createElement("img");
image.src = arguments[0];
document.body.append(image);
return image.decode().catch(() => null);
"""


def test_the_policy_lets_no_other_script_or_style_in(chromium: Browser, file: Drawn) -> None:
    chromium.show(file.page())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        chromium.run(INTRUSION, f"http://127.0.0.1:{server.getsockname()[1]}/x.png")
        assert chromium.driver.title == "people.parquet"
        assert chromium.run("return getComputedStyle(document.body).display") == "block"
        blocked = " ".join(chromium.complaints())
        with pytest.raises(BlockingIOError):  # nobody came
            server.accept()
    assert [word for word in ("script-src", "style-src", "x.png") if word not in blocked] == []


class Links(html.parser.HTMLParser):
    """Collects what a page could load, and how it would style or run something inline."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, _ in attrs:
            if name in ("src", "href", "srcset", "style", "data", "action") or name[:2] == "on":
                self.found.append((tag, name))


def test_the_page_links_to_nothing(file: Drawn) -> None:
    page, links = file.page(), Links()
    links.feed(page)
    assert links.found == []
    assert not re.search(r"@import|url\(|https?://|fetch\(|innerHTML =|eval\(", page)


def test_positions_beyond_the_file_and_its_chunks_do_no_harm(
    chromium: Browser, file: Drawn
) -> None:
    """A file that lies about offsets gives such regions and findings."""
    odd = Region(
        start=file.size + 5, end=2**62, kind="data page", state="fault", row_group=99, column=99
    )
    over = replace(page_of(file, 0, 0), kind="column index", state="fault")
    empty = replace(over, start=10, end=10)
    found = (finding(odd), finding(over), Finding(word="format", message="m", start=-5, end=2**63))
    chromium.show(replace(file, regions=(*file.regions, odd, over, empty), findings=found).page())
    for number in range(3):
        chromium.click(f"[data-finding='{number}'] button")
    assert chromium.count("#grid .cell") == 15
    assert chromium.overflow() <= 0
    assert chromium.complaints() == []


# --- large files, and such as hide everything ----------------------------------------------------


@pytest.mark.slow  # the largest pages take seconds; smaller ones take the same paths
def test_two_thousand_columns_are_a_square_each(chromium: Browser) -> None:
    def state(r: int, c: int, p: int) -> State:
        return "fault" if (r, c, p) == (7, 1201, 1) else "locked" if c % 11 == 0 else "authentic"

    wide = made_up(2_000, 10, 2, state=state, path="feature_with_quite_a_long_name_", keys=40)
    bad = next(
        region for region in wide.regions if region.state == "fault" and region.kind == "data page"
    )
    page = replace(wide, findings=(finding(bad),)).page()
    assert len(page.encode()) < 8 << 20
    chromium.show(page)
    assert chromium.count("#grid .cell") == 20_000
    assert chromium.count("#grid .s-locked") == 10 * 182
    assert chromium.count("*") < 80_000
    assert "draws 80,002 parts as 2,000" in chromium.text("#merged")
    assert chromium.count("#columns tbody tr") == 2_000
    assert chromium.overflow() <= 0
    chromium.click("[data-finding='0'] button")
    assert chromium.count("[data-cell='7,1201'].hit.marked") == 1
    assert f"{bad.end:,}" in chromium.text("#detail table")
    assert chromium.complaints() == []


@pytest.mark.slow  # as above
def test_a_hundred_thousand_modules_give_a_page_of_bounded_size(chromium: Browser) -> None:
    many = made_up(
        20, 10, 250, state=lambda r, c, p: "fault" if (r, c, p) == (4, 7, 99) else "authentic"
    )
    assert len(many.regions) > 100_000
    page = many.page()
    assert len(page.encode()) < 3 << 20
    chromium.show(page)
    assert chromium.count("#grid .cell") == 200
    assert chromium.count("*") < 20_000
    assert "100,000 parts are drawn as" in chromium.text("#merged")
    sizes = chromium.run(
        """const data = JSON.parse(document.getElementById("data").textContent);
        const sum = (parts, n) => parts.reduce((all, one) => all + one[n], 0);
        return [sum(data.rows.flat(2), 2), sum(data.rows.flat(2), 6), sum(data.file, 2)]"""
    )
    in_chunks = [region for region in many.regions if region.column is not None]
    assert sizes == [sum(region.size for region in in_chunks), 100_000, many.size]
    assert chromium.count("[data-cell='4,7'].faulty") == 1


def test_more_chunks_than_cells_are_drawn_together_and_it_says_so(chromium: Browser) -> None:
    chromium.show(made_up(3, 1_000, 1).page())
    assert chromium.count("#grid .cell") == 250 * 3
    assert "Each row stands for 4 row groups." in chromium.text("#merged")
    reported = chromium.hover("[data-cell='249,2']")
    assert "row groups 996\u2013999" in reported
    assert "Parts 8" in " ".join(reported.split())


def test_many_columns_are_drawn_together_and_it_says_so() -> None:
    page = made_up(9_000, 1, 1).page()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["columnStep"] == 3
    assert len(data["rows"][0]) == 3_000
    assert "Each cell stands for 3 columns." in page
    assert "and 6,952 more that are not listed" in page
    assert len(page.encode()) < 8 << 20


@pytest.mark.slow  # as above
def test_the_worst_file_gives_a_page_of_bounded_size() -> None:
    """Long names that have to be escaped, no two neighbours alike, and a finding for each."""
    states: list[State] = ["fault", "locked", "authentic", "unchecked", "plaintext"]
    bad = made_up(2_000, 10, 2, state=lambda r, c, p: states[(r + c + p) % 5], path="&" * 1_000)
    found = tuple(finding(region, message="<" * 1_000) for region in bad.regions[1:20_000])
    regions = tuple(
        replace(region, key=f"{'&' * 200}{n % 5_000}") for n, region in enumerate(bad.regions)
    )
    page = replace(bad, regions=regions, findings=found).page(
        title="&" * 10_000, notes=[(f"{'&' * 999}{n}", "<" * 9_999) for n in range(5_000)]
    )
    assert len(page.encode()) < 16 << 20
    assert "and 18,899 more that are not listed" in page


def test_merging_keeps_every_part_once_and_in_order() -> None:
    """Whatever the limit: alone, joined where alike, or in slices."""
    drawn = made_up(2, 2, 40, state=lambda r, c, p: STATES[(p // 7) % 6])
    regions = list(drawn.regions)
    for limit in (1, 2, 5, 30, 100, 1_000):
        groups = drawing._merge_neighbours(regions, limit, lambda region: region.row_group)
        assert len(groups) <= limit
        assert [region for group in groups for region in group] == regions


def test_a_file_whose_footer_hides_it_is_a_strip_alone(chromium: Browser) -> None:
    regions = (
        Region(start=0, end=4, kind="magic", state="plaintext"),
        Region(start=4, end=9_000, kind="modules", state="locked"),
        Region(start=9_000, end=9_992, kind="footer", state="locked", key="footer key"),
    )
    chromium.show(Drawn((), 0, 10_000, regions).page())
    assert chromium.count("#file .part") >= 3
    assert not chromium.find("#grid").is_displayed()
    assert not chromium.find("#columns").is_displayed()
    assert chromium.complaints() == []


def test_without_a_map_the_page_says_that_there_is_nothing_to_draw(chromium: Browser) -> None:
    chromium.show(Drawn(("a", "b"), 1, 100, ()).page())
    assert "nothing to draw" in chromium.text("#merged")
    assert chromium.count(".part") == 0
    assert chromium.complaints() == []


def test_an_empty_file_is_drawn(chromium: Browser) -> None:
    chromium.show(Drawn((), 0, 0, ()).page())
    assert chromium.complaints() == []


def test_what_notes_say_of_many_columns_they_say_once(chromium: Browser) -> None:
    notes = [(f"Not authenticated: column c{n}", "it is in plaintext") for n in range(2_000)]
    chromium.show(Drawn((), 0, 100, ()).page(notes=notes))
    assert chromium.text(".notes").count("it is in plaintext") == 1
    assert "and 1,994 more" in chromium.text(".notes")


def test_without_javascript_the_tables_are_there(chromium: Browser, damaged_file: Drawn) -> None:
    chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.show(damaged_file.page())
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert chromium.count("#findings tbody tr") == 4
    assert chromium.find("noscript p").is_displayed()
    assert not chromium.find("#theme").is_displayed()
