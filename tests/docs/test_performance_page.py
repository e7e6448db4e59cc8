"""The page about performance shows the figures that a benchmark has written."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from tools.bench_plots import FIGURES, PAGE, draw, load, merge, serialize
from tools.figures import Figure, Row, below, within


def test_the_page_has_a_place_for_each_group_of_figures() -> None:
    groups = load()
    assert FIGURES.read_text() == serialize(groups), "run python -m tools.bench_plots"
    assert json.loads(serialize(groups)) == groups
    places = re.findall(r"^<!-- table: figures (\w+) -->$", PAGE.read_text(), re.MULTILINE)
    assert set(groups) <= set(places), "add a line <!-- table: figures GROUP --> to the page"
    assert len(places) == len(set(places))


def test_a_run_replaces_the_figures_of_its_groups() -> None:
    rows = [{"section": "start", "name": "new"}, {"section": "tiny", "name": "first"}]
    new = {"machine": {"cpu": "fast"}, "repeat": 3, "rows": rows}
    groups = merge({"start": {"rows": []}, "plan": {"rows": ["kept"]}}, new)
    assert groups["start"] == {**new, "rows": rows[:1]}
    assert groups["tiny"]["rows"] == rows[1:]
    assert groups["plan"] == {"rows": ["kept"]}


def test_a_plot_has_two_bars_a_time_and_the_target() -> None:
    time, memory = Figure(0.2, 0.1, 0.3, "s", 0.15, 0.05), Figure(70, 70, 70, "MiB")
    rows = [
        within("a & b; peer <c>", time, time.times(2, "s"), 0.9),
        below("d; peer e", time, time, 0.1),
        Row("alone", time),
        within("  its memory", memory, memory, 1),
    ]
    drawn = draw("start", [asdict(row) for row in rows])
    assert drawn.count("<rect") == 4
    assert drawn.count("<line") == 2
    assert "a &amp; b" in drawn
    assert "peer: &lt;c&gt;" in drawn
    widths = [float(width) for width in re.findall(r'<rect .*?width="([\d.]+)"', drawn)]
    assert widths == [135, 270, 135, 135]
