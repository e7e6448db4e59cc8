"""The pictures of a report about a lake: master keys by datasets, and files after each run.

Both are bounded: of many keys and datasets the first are drawn, of many runs the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from modcrypt.lake.evidence.events import DatasetResult, EvidenceEvent
from modcrypt.lake.files.file_states import DECLARED
from modcrypt.report.text import format_count

if TYPE_CHECKING:
    from modcrypt.lake.reports.lake_report import LakeReport

MAX_KEYS = 40
"""Maximum number of master keys in the picture."""

MAX_DATASETS = 20
"""Maximum number of datasets in the picture."""

MAX_RUNS = 12
"""Maximum number of runs in the plot, which stays readable on a telephone."""

MIN_SLOTS = 6
"""Number of runs for which the plot has room at least, so that few do not become wide blocks."""

_GOOD = ("current", "encrypted", "rekeyed", "rotated", "renewed", "correct")
"""Results of files that are as declared."""

Counts: TypeAlias = tuple[int, int, int]
"""Numbers of files that are as declared, erased, and neither."""


@dataclass(frozen=True, kw_only=True)
class KeyPicture:
    """A grid: a row for each master key, a column for each dataset."""

    datasets: Sequence[Mapping[str, Any]]  # the datasets in the picture, as rows of the report
    keys: Sequence[Mapping[str, Any]]  # the master keys in the picture, as rows of the report
    more: Sequence[str]  # texts about keys and datasets that are left out

    # Sizes in pixels: of the labels at the left, of a cell, and of the head.
    label, cell, row, head = 156, 104, 54, 30

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.label + self.cell * len(self.datasets)

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self.head + self.row * len(self.keys)

    def bar(self, files: int, of: int) -> int:
        """Return the width of the bar of a cell: the share of a dataset's files, in pixels."""
        full = self.cell - 24
        return min(full, max(2, full * files // of)) if files and of else 0


def draw_keys(report: LakeReport) -> KeyPicture:
    """Return the picture of the master keys and datasets; compromised keys come first."""
    keys = sorted(report.keys, key=lambda key: not key["compromised"])
    more = [
        f"{format_count(count - limit, what)} only in the table below"
        for count, limit, what in (
            (len(keys), MAX_KEYS, "master key"), (len(report.datasets), MAX_DATASETS, "dataset"),
        ) if count > limit
    ]  # fmt: skip
    return KeyPicture(datasets=report.datasets[:MAX_DATASETS], keys=keys[:MAX_KEYS], more=more)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The files of the lake, as far as they were known after a run."""

    time: str  # time of the run, ISO 8601
    what: str  # name of the event; "report" for this report
    number: int | None  # number of the line of the record; None for this report
    # Number of files as declared, erased, and neither.
    good: int
    erased: int
    bad: int

    @property
    def total(self) -> int:
        """Number of files."""
        return self.good + self.erased + self.bad


def list_runs(report: LakeReport, events: Iterable[EvidenceEvent]) -> list[Run]:
    """Return the newest runs of `apply` and `verify`, and then the state of this report.

    A run that did not concern a dataset leaves what the run before had found of it. Verifications
    of parts of a dataset are left out.
    """
    known: dict[str, Counts] = {}
    runs: list[Run] = []
    for event in events:
        whole = "parts" not in event.scope
        if event.event in ("apply", "verify") and event.phase == "done" and whole:
            known |= {result.dataset: _count_result(result) for result in event.results}
            runs.append(_sum_up(known.values(), event.time, event.event, event.number))
    now = [_count_states(row) for row in report.datasets]
    return [*runs, _sum_up(now, report.time, "report", None)][-MAX_RUNS:]


def _sum_up(counts: Iterable[Counts], time: str, what: str, number: int | None) -> Run:
    good, erased, bad = (sum(each) for each in zip((0, 0, 0), *counts, strict=True))
    return Run(time=time, what=what, number=number, good=good, erased=erased, bad=bad)


def _count_result(result: DatasetResult) -> Counts:
    """Return how many files of a dataset a run left as declared, erased, and neither."""
    # Skipped files, which were found correct before, are not among the files of a verification.
    good = sum(result.counts.get(name, 0) for name in _GOOD)
    erased, removed, skipped = (result.counts.get(n, 0) for n in ("erased", "removed", "skipped"))
    return good + skipped, erased, max(0, result.files - good - erased - removed)


def _count_states(row: Mapping[str, Any]) -> Counts:
    """Return how many files of a dataset are as declared, erased, and neither now."""
    good, erased = (row["states"].get(state, 0) for state in DECLARED)
    return good, erased, row["files"] - good - erased


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of the plot: a run. Places across are percentages, others pixels from the top."""

    run: Run  # the run
    # Left edge and width.
    x: float
    width: float
    # Class of style, upper edge and height of each part, from the bottom.
    parts: Sequence[tuple[str, float, float]]
    top: float  # upper edge

    @property
    def middle(self) -> float:
        """Place of the middle."""
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Files after each run, as stacked bars."""

    bars: Sequence[Bar]  # the bars, oldest first
    # Numbers of files at the axis, with their places in pixels from the top.
    ticks: Sequence[tuple[int, float]]
    bottom: float  # place of the number 0
    end: float  # right edge of the last bar


_TOP, _BOTTOM = 24, 160


def draw_runs(report: LakeReport, events: Iterable[EvidenceEvent]) -> Plot:
    """Return the plot of the newest runs."""
    runs = list_runs(report, events)
    most = round_up(max(run.total for run in runs))
    slot = 100 / max(MIN_SLOTS, len(runs))
    bars = [
        _draw_run(run, round(n * slot, 2), round(slot * 0.7, 2), most) for n, run in enumerate(runs)
    ]
    ticks = sorted({0, most // 2, most})
    return Plot(
        bars=bars, ticks=[(tick, _BOTTOM - _scale(tick, most)) for tick in ticks],
        bottom=_BOTTOM, end=round(bars[-1].x + bars[-1].width, 2),
    )  # fmt: skip


def _draw_run(run: Run, x: float, width: float, most: int) -> Bar:
    parts, top = [], float(_BOTTOM)
    for kind, files in (("good", run.good), ("gone", run.erased), ("wrong", run.bad)):
        if files:
            height = max(2.0, _scale(files, most))  # a single file of millions is visible
            top = round(top - height, 2)
            parts.append((kind, top, height))
    return Bar(run=run, x=x, width=width, parts=parts, top=top)


def _scale(files: int, most: int) -> float:
    return round((_BOTTOM - _TOP) * files / most, 2)


def round_up(number: int) -> int:
    """Return the next even number of two digits and zeros, at least 4: the end of an axis."""
    step = 2 * int(f"1{'0' * (len(str(number)) - 2)}")
    return max(4, -(-number // step) * step)
