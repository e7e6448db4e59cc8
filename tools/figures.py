"""Figures with their spread, lines of a table, and timing of jobs, for `tools/bench.py`."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

MIB = 1 << 20
Job = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """A median with its extremes."""

    median: float
    least: float
    most: float
    unit: str

    def __str__(self) -> str:
        factor, unit = (1e3, "ms") if self.unit == "s" and self.median < 1 else (1, self.unit)
        mid, low, high = (
            f"{factor * n:.0f}" if factor * n >= 1000 else f"{factor * n:.3g}"
            for n in (self.median, self.least, self.most)
        )
        return f"{mid} {unit} [{low}-{high}]" if low != high else f"{mid} {unit}"


def figure(samples: Sequence[float], unit: str = "s") -> Figure:
    return Figure(statistics.median(samples), min(samples), max(samples), unit)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    modcrypt: Figure | None
    peer: Figure | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}x"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return line(self.name, self.modcrypt or "", self.peer or "", ratio, self.target, met)


def line(*cells: object) -> str:
    widths = (62, 23, 23, 6, 11, 3)
    return "  ".join(f"{c!s:<{w}}" for c, w in zip(cells, widths, strict=True)).rstrip()


def faster(name: str, ours: Figure, peer: Figure, least: float) -> Row:
    ratio = peer.median / ours.median
    return Row(name, ours, peer, ratio, f">= {least:g}x", ratio >= least)


def within(name: str, ours: Figure, peer: Figure, most: float) -> Row:
    ratio = ours.median / peer.median
    return Row(name, ours, peer, ratio, f"<= {most:g}x", ratio <= most)


def below(name: str, ours: Figure, peer: Figure, most: float) -> Row:
    return Row(name, ours, peer, None, f"<= {most:g} {ours.unit}", ours.median <= most)


@dataclass(frozen=True)
class Bench:
    """Settings that all sections share: inputs stay in `cache`, other files are in `work`."""

    repeat: int
    scale: float
    columns: int
    cache: Path
    work: Path

    @property
    def scratch(self) -> Path:
        """Folder that is emptied before each run."""
        return self.work / "scratch"

    def seconds(
        self, jobs: dict[str, Job], clock: Callable[[], float] = time.perf_counter
    ) -> dict[str, list[float]]:
        """Run the jobs in turn, `repeat` times after a warm-up."""
        taken: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(self.repeat + 1):
            for name, run in jobs.items():
                for leftover in self.scratch.iterdir():
                    leftover.unlink()
                gc.collect()
                start = clock()
                run()
                if turn:
                    taken[name].append(clock() - start)
        return taken

    def time(self, jobs: dict[str, Job]) -> dict[str, Figure]:
        """Return the wall time of each job."""
        return {name: figure(taken) for name, taken in self.seconds(jobs).items()}

    def cached_file(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return an input file, which the first use makes."""
        path = self.cache / f"{name}-pyarrow{pa.__version__}.parquet"
        if not path.exists():
            unfinished = path.with_suffix(".tmp")
            make(unfinished)
            unfinished.rename(path)
        return path
