"""Keep figures of `tools/bench.py` for `docs/explanation/performance.md`, and draw them.

    python tools/bench.py --only start tiny filters plan --json new.json
    python -m tools.bench_plots new.json

puts what `new.json` has in the place of the same groups in `performance.json`. The website draws a
group where the page has a line `<!-- table: figures GROUP -->`, if the group has figures.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from tools.figures import Figure

PAGE = Path(__file__).resolve().parents[1] / "docs/explanation/performance.md"
FIGURES = PAGE.with_suffix(".json")

Row: TypeAlias = Mapping[str, Any]
"""A row of the JSON of `tools/bench.py`."""

_WIDTH, _NAMES, _LONGEST, _STEP = 720, 330, 270, 40
"""Sizes in pixels: the picture, the column of names, the longest bar, and a row."""


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures by group, with those of a run of `tools/bench.py` in place of older ones."""
    groups: dict[str, Any] = dict(old)
    for name in dict.fromkeys(row["section"] for row in new["rows"]):
        rows = [row for row in new["rows"] if row["section"] == name]
        groups[name] = {"machine": new["machine"], "repeat": new["repeat"], "rows": rows}
    return groups


def load() -> dict[str, Any]:
    """Return the figures by group."""
    groups: dict[str, Any] = json.loads(FIGURES.read_text())
    return groups


def serialize(groups: Mapping[str, Any]) -> str:
    """Return figures by group as JSON, with a row on each line."""
    written = ",\n".join(_write_group(name, group) for name, group in groups.items())
    return f"{{\n{written}\n}}\n"


def _write_group(name: str, group: Mapping[str, Any]) -> str:
    head = json.dumps({name: {**group, "rows": []}})[1:].removesuffix("]}}")
    return head + "\n  " + ",\n  ".join(map(json.dumps, group["rows"])) + "\n]}"


def show(name: str) -> str:
    """Return the plot and the table of a group, and what they were measured with."""
    group = load().get(name)
    if group is None:
        return ""
    facts, rows = group["machine"], group["rows"]
    what = f"{facts['versions']}, {facts['modcrypt runs']}, load {facts['load']}"
    return "\n\n".join([draw(name, rows), "\n".join(_table(rows)), f"{facts['cpu']}; {what}."])


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| | modcrypt (user + system) | peer | ratio | target |\n|---|---|---|---|---|"
    for row in rows:
        figures = [f"{_format(row[who])}{_parts(row[who])}" for who in ("modcrypt", "peer")]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
        missed = ", missed" if row["met"] is False else ""
        target = row["target"].replace("<", "&lt;") + missed
        yield f"| {' | '.join([row['name'].strip(), *figures, ratio, target])} |"


def _format(figure: Mapping[str, Any] | None) -> str:
    """Return a figure without its extremes."""
    if figure is None:
        return ""
    median = figure["median"]
    return str(Figure(median, median, median, figure["unit"]))


def _parts(figure: Mapping[str, Any] | None) -> str:
    """Return the user and the system time of a figure, if it has them."""
    parts = Figure(**figure).cpu if figure else ""
    return f" ({parts})" if parts else ""


def draw(name: str, rows: Sequence[Row]) -> str:
    """Return bars for the times of a group, modcrypt's above its peer's, and marks for targets."""
    shown = [row for row in rows if row["modcrypt"] and row["peer"] and _is_time(row)]
    longest = {
        unit: max(max(_seconds(row, who) for who in ("modcrypt", "peer")) for row in shown if
                  row["peer"]["unit"] == unit)
        for unit in {row["peer"]["unit"] for row in shown}
    }  # fmt: skip
    label = f"Times of the group {name}: modcrypt's bars are filled, those of its peers are not"
    head = (
        f'<svg class="figure" viewBox="0 0 {_WIDTH} {_STEP * len(shown) + 4}" role="img" '
        f'aria-label="{label}" fill="currentColor" stroke="none" font-family="inherit" '
        'font-size="11">'
    )
    lines = (
        line
        for number, row in enumerate(shown)
        for line in _bars(row, _STEP * number + 4, _LONGEST / longest[row["peer"]["unit"]])
    )
    return "\n".join([head, *lines, "</svg>"])


def _is_time(row: Row) -> bool:
    return row["peer"]["unit"] in ("s", "ms", "us", "µs", "ns")


def _seconds(row: Row, who: str) -> float:
    median: float = row[who]["median"]
    return median


def _bars(row: Row, y: int, scale: float) -> Iterator[str]:
    """Yield the name of a row, its two bars with their times, and the mark of its target."""
    what, _, peer = row["name"].partition("; peer ")
    for shift, text in ((11, what), (26, f"peer: {peer}")):
        yield f'<text x="0" y="{y + shift}">{escape(text[:60])}</text>'
    target = 0.0
    if found := re.search(r"<= ([\d.e-]+)(x?)", row["target"]):
        most = float(found[1]) * (_seconds(row, "peer") if found[2] else 1)
        target = _NAMES + min(most * scale, _LONGEST)
        yield (
            f'<line x1="{target:.1f}" y1="{y - 1}" x2="{target:.1f}" y2="{y + 15}" '
            'stroke="currentColor" stroke-dasharray="2"/>'
        )
    empty = ' fill="none" stroke="currentColor"'
    for who, shift, look in (("modcrypt", 2, ""), ("peer", 17, empty)):
        width = max(1, _seconds(row, who) * scale)
        yield f'<rect x="{_NAMES}" y="{y + shift}" width="{width:.1f}" height="10"{look}/>'
        end = 6 + max(_NAMES + width, target if who == "modcrypt" else 0)
        yield f'<text x="{end:.1f}" y="{y + shift + 9}">{_format(row[who])}</text>'


def main() -> None:
    groups = load()
    for name in sys.argv[1:]:
        groups = merge(groups, json.loads(Path(name).read_text(), parse_float=_round))
    FIGURES.write_text(serialize(groups))


def _round(number: str) -> float:
    """Return a number with the digits that a reader of the figures can use."""
    return float(f"{float(number):.4g}")


if __name__ == "__main__":
    main()
