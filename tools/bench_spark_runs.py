"""Runs of Spark jobs in turn, with their CPU time, for `tools/bench_spark.py`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import modcrypt as mc
from modcrypt.spark import Settings
from tools.figures import Figure, Row, Sample, timing

CORES = 2
POLICY = """\
kms = "file:lake.keyring?passphrase=file:passphrase"
footer_key = "footer"

[column_keys]
columns = [{columns}]
"""
Job = Callable[[], object]


@dataclass(frozen=True)
class Bench:
    """Settings and inputs that all sections share."""

    spark: Any
    args: argparse.Namespace
    work: Path

    def settings(self, *columns: str) -> Settings:
        """Write a policy with a separate master key for columns; return references to keys."""
        path = self.work / "policy.toml"
        path.write_text(POLICY.format(columns=", ".join(map(json.dumps, columns))))
        return Settings(policy=mc.Policy.load(path))

    def seconds(self, jobs: dict[str, Job], clean: Sequence[Path] = ()) -> dict[str, Figure]:
        """Run the jobs in turn, in alternating order, after a warm-up of each."""
        taken: dict[str, list[Sample]] = {name: [] for name in jobs}
        order = list(jobs)
        for turn in range(self.args.repeat + self.args.warm_up):
            for name in order:
                for folder in clean:
                    shutil.rmtree(folder, ignore_errors=True)
                gc.collect()
                started = now_of_tree()
                jobs[name]()
                if turn >= self.args.warm_up:
                    taken[name].append(now_of_tree() - started)
            order.reverse()
        return {name: timing(samples) for name, samples in taken.items()}


def now_of_tree() -> Sample:
    """Return the time, and the CPU time of this process and its descendants."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        stats[int(path.parent.name)] = int(fields[1]), [int(n) for n in fields[11:15]]
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in stats.items() if parent in family} - family:
        family |= more
    user, system, ended_user, ended_system = map(
        sum, zip(*(stats[pid][1] for pid in family), strict=True)
    )
    tick = os.sysconf("SC_CLK_TCK")
    return Sample(time.perf_counter(), (user + ended_user) / tick, (system + ended_system) / tick)


def policy_of(settings: Settings) -> mc.Policy:
    assert settings.policy is not None
    return settings.policy


def cpu_within(name: str, ours: Figure, peer: Figure, most: float) -> Row:
    """Return a row about the CPU time of two jobs."""
    mine, theirs = cpu_of(ours), cpu_of(peer)
    ratio = mine.median / theirs.median
    return Row(name, mine, theirs, ratio, f"<= {most:g}x", ratio <= most)


def cpu_of(taken: Figure) -> Figure:
    """Return the CPU time instead of the time."""
    cpu = (taken.user or 0) + (taken.system or 0)
    return replace(taken, median=cpu, least=cpu, most=cpu)


def plain_files(folder: str) -> list[str]:
    """Return the Parquet files of a folder."""
    return sorted(str(path) for path in Path(folder).glob("*.parquet"))
