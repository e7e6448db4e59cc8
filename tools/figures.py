"""Figures with their spread, lines of a table, and timing of jobs, for `tools/bench.py`."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

MIB = 1 << 20
Job = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """A median with its extremes; for a time, also the CPU time in user and in system mode."""

    median: float
    least: float
    most: float
    unit: str
    user: float | None = None
    system: float | None = None

    @property
    def cpu(self) -> str:
        """User and system time, in the unit of the text."""
        if self.user is None or self.system is None:
            return ""
        factor, _ = self._scale()
        return f"{factor * self.user:.3g} + {factor * self.system:.3g}"

    def times(self, factor: float, unit: str) -> Figure:
        """Return the figure in another unit."""
        median, least, most = (factor * n for n in (self.median, self.least, self.most))
        user, system = (None if n is None else factor * n for n in (self.user, self.system))
        return Figure(median, least, most, unit, user, system)

    def _scale(self) -> tuple[float, str]:
        return (1e3, "ms") if self.unit == "s" and self.median < 1 else (1, self.unit)

    def __str__(self) -> str:
        factor, unit = self._scale()
        mid, low, high = (
            f"{factor * n:.0f}" if factor * n >= 1000 else f"{factor * n:.3g}"
            for n in (self.median, self.least, self.most)
        )
        return f"{mid} {unit} [{low}-{high}]" if low != high else f"{mid} {unit}"


def figure(samples: Sequence[float], unit: str = "s") -> Figure:
    return Figure(statistics.median(samples), min(samples), max(samples), unit)


@dataclass(frozen=True)
class Sample:
    """Seconds that one run took."""

    wall: float
    user: float
    system: float

    def __sub__(self, other: Sample) -> Sample:
        return Sample(self.wall - other.wall, self.user - other.user, self.system - other.system)

    @property
    def cpu(self) -> float:
        """CPU time, of all threads."""
        return self.user + self.system


def now() -> Sample:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Sample(time.perf_counter(), usage.ru_utime, usage.ru_stime)


def timing(samples: Sequence[Sample]) -> Figure:
    """Return the wall time of runs, with the medians of their CPU times."""
    wall = figure([sample.wall for sample in samples])
    user = statistics.median(sample.user for sample in samples)
    system = statistics.median(sample.system for sample in samples)
    return replace(wall, user=user, system=system)


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
        cpu = [figure.cpu if figure else "" for figure in (self.modcrypt, self.peer)]
        return line(self.name, self.modcrypt or "", self.peer or "", ratio, self.target, met, *cpu)


def line(*cells: object) -> str:
    widths = (62, 23, 23, 6, 11, 3, 15, 15)
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
    quick: bool
    cache: Path
    work: Path
    plan_files: int = 20_000  # files of the tables whose scans are planned

    @property
    def columns(self) -> int:
        """Number of columns of a wide file."""
        return 200 if self.quick else 2000

    @property
    def scratch(self) -> Path:
        """Folder that is emptied before each run."""
        return self.work / "scratch"

    def samples(self, jobs: dict[str, Job]) -> dict[str, list[Sample]]:
        """Run the jobs in turn, `repeat` times after a warm-up."""
        taken: dict[str, list[Sample]] = {name: [] for name in jobs}
        for turn in range(self.repeat + 1):
            for name, run in jobs.items():
                for leftover in self.scratch.iterdir():
                    leftover.unlink()
                gc.collect()
                start = now()
                run()
                if turn:
                    taken[name].append(now() - start)
        return taken

    def time(self, jobs: dict[str, Job]) -> dict[str, Figure]:
        """Return the wall time of each job, and its user and system time."""
        return {name: timing(taken) for name, taken in self.samples(jobs).items()}

    def cached_file(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return an input file, which the first use makes."""
        path = self.cache / f"{name}-pyarrow{pa.__version__}.parquet"
        if not path.exists():
            unfinished = path.with_suffix(".tmp")
            make(unfinished)
            unfinished.rename(path)
        return path
