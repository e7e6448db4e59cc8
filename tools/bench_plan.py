"""Measure the planning of scans of Iceberg tables, for `tools/bench.py`.

    python -m tools.bench_plan METADATA WORK

plans once in a process of its own, and prints its CPU time and peak memory. The files of the tables
do not exist. Both tables have the same rows in their manifests, one in plaintext for pyiceberg.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from modcrypt.iceberg import IcebergTable, expire_history, open_table
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.row_filter import null_with_parents, parse_filter
from modcrypt.iceberg.read.scan_planning import Planner
from tests.support.iceberg.builder import Builder, field, key_metadata, struct
from tests.support.iceberg.sample_kms import SampleKms
from tools.bench_tiny import processor_time
from tools.figures import Bench, Row, Sample, figure, now, within

COLUMNS, IN_MANIFEST, COMMITS = 12, 1000, 10
"""Columns with statistics, files of a manifest, and commits that added the manifests."""

FILTERS = {
    "all files": None,
    "a filter that all files pass": "c0 >= 0 and c11 > 'a'",
    "a filter that one file in a hundred passes": "c1 < 1000",
}


def plan(bench: Bench) -> Iterator[Row]:
    """Plan scans of tables of many files, and the expiry of their history."""
    count = bench.plan_files
    encrypted, plain = (
        make_table(bench.work / name, count, encrypted=name == "encrypted")
        for name in ("encrypted", "plain")
    )
    for what in (*FILTERS, "expire"):
        jobs = {"encrypted": (encrypted, "modcrypt"), "plaintext": (plain, "modcrypt")}
        if what != "expire":
            jobs["pyiceberg"] = (plain, "pyiceberg")
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
        for _ in range(bench.repeat):
            for name, (metadata, who) in jobs.items():
                taken[name].append(_measure(metadata, f"{who}: {what}"))
        cpu = {name: processor_time(list(map(_sample, runs))) for name, runs in taken.items()}
        peak = {name: figure([run["peak"] for run in runs], "MB") for name, runs in taken.items()}
        for name, most in (("encrypted", 0.1), ("plaintext", 0.1)):
            title = f"{count:,} files, {name}: {what}"
            if what == "expire":
                yield Row(f"{title} (dry run), CPU", cpu[name])
                yield Row("  its peak memory", peak[name])
                continue
            yield within(f"{title}; peer pyiceberg, CPU", cpu[name], cpu["pyiceberg"], most)
            yield within("  its peak memory", peak[name], peak["pyiceberg"], 1)


def _sample(run: dict[str, float]) -> Sample:
    return Sample(run["wall"], run["user"], run["system"])


def _measure(metadata: Path, work: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tools.bench_plan", str(metadata), work]
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    facts: dict[str, float] = json.loads(run.stdout)
    return facts


# --- tables --------------------------------------------------------------------------------------


def make_table(where: Path, files: int, *, encrypted: bool) -> Path:
    """Make a table of files that do not exist; return its metadata.json."""
    kinds = ["long"] * (COLUMNS - 1) + ["string"]
    schema = struct(*(field(n + 1, f"c{n}", kind) for n, kind in enumerate(kinds)))
    builder = Builder(
        where, schema, encrypted=encrypted, version=3 if encrypted else 2, location=str(where),
        spec=[{"source-id": 1, "field-id": 1000, "name": "p", "transform": "truncate[1000000]"}],
        partition=[{"name": "p", "type": "long", "field-id": 1000}],
    )  # fmt: skip
    manifests: list[dict[str, Any]] = []
    starts = range(0, files, IN_MANIFEST)
    for number, first in enumerate(starts):
        rows = [_file(where, n) for n in range(first, min(files, first + IN_MANIFEST))]
        manifests.append(builder.manifest(rows, added_rows_count=1000 * len(rows)))
        if (number + 1) % max(1, len(starts) // COMMITS) == 0 or first == starts[-1]:
            builder.snapshot(manifests)
    return builder.write()


def _file(where: Path, number: int) -> dict[str, Any]:
    chance, first = random.Random(number), 1000 * number
    columns = range(1, COLUMNS + 1)
    low = [first, *(chance.randrange(100) * 1000 for _ in columns[2:])]
    bounds = [
        [*(value.to_bytes(8, "little") for value in values), text]
        for values, text in ((low, b"a value"), ([value + 999 for value in low], b"z value"))
    ]
    lower, upper = (
        [{"key": id_, "value": value} for id_, value in zip(columns, values, strict=True)]
        for values in bounds
    )
    place = f"00000-{number}-2f1c5a2e-7d5c-4f7e-9a55-{chance.randrange(10**12):012}-00001.parquet"
    return {
        "content": 0,
        "file_path": f"{where}/data/p={first // 1_000_000}/{place}",
        "file_format": "PARQUET",
        "partition": {"p": first // 1_000_000 * 1_000_000},
        "record_count": 1000,
        "file_size_in_bytes": 50_000 + number % 1000,
        "value_counts": [{"key": id_, "value": 1000} for id_ in columns],
        "null_value_counts": [{"key": id_, "value": number % 10} for id_ in columns],
        "nan_value_counts": [],
        "lower_bounds": lower,
        "upper_bounds": upper,
        "key_metadata": key_metadata(os.urandom(16), os.urandom(16), 50_000 + number % 1000),
    }


# --- work in a process of its own -----------------------------------------------------------------


def _plan_ours(table: IcebergTable, condition: str | None) -> int:
    snapshot = table.snapshot()
    assert snapshot is not None
    schema = null_with_parents(schema_of(table.metadata))
    planner = Planner(table.walk, schema, parse_filter(condition))
    return sum(1 for _ in planner.files(snapshot))  # a scan does not hold all of them either


def _plan_theirs(table: StaticTable, condition: str | None) -> int:
    scan = table.scan() if condition is None else table.scan(row_filter=condition)
    return sum(1 for _ in scan.plan_files())


def _prepare(metadata: str, work: str) -> Callable[[], object]:
    """Open a table, which imports what is needed; return the work."""
    who, _, what = work.partition(": ")
    if who == "pyiceberg":
        theirs = StaticTable.from_metadata(metadata)
        return lambda: _plan_theirs(theirs, FILTERS[what])
    ours = open_table(metadata, SampleKms(), require_encrypted=False)
    if what == "expire":
        return lambda: expire_history(ours, dry_run=True)
    return lambda: _plan_ours(ours, FILTERS[what])


def _main(metadata: str, work: str) -> None:
    job = _prepare(metadata, work)
    began = now()
    job()
    taken = now() - began
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    facts = {"wall": taken.wall, "user": taken.user, "system": taken.system}
    print(json.dumps(facts | {"peak": int(peak) * 1024 / 1e6}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
