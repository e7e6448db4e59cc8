"""Measure tables with many snapshots and with many files, for `tools/bench.py`.

    python -m tools.bench_iceberg_sizes TABLE WORK

does one piece of work on a table in a process of its own, and prints its CPU time and peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from modcrypt.iceberg import (
    IcebergTable,
    create_table,
    expire_history,
    open_table,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import ADDED, DATA
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import writing_keys, writing_policy
from modcrypt.iceberg.read.row_filter import null_with_parents, parse_filter
from modcrypt.iceberg.read.scan_planning import Planner
from modcrypt.iceberg.write.commit import commit
from modcrypt.iceberg.write.manifest_writing import write_manifest
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id
from modcrypt.keys import Secret
from modcrypt.keys.metadata import StandardKeyMetadata
from tests.support.iceberg.sample_kms import SampleKms
from tools.figures import Bench, Row, below, figure, within

SCHEMA = pa.schema([("p", pa.int64()), ("id", pa.int64()), ("name", pa.string())])
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))

SNAPSHOTS = 1000
FILES, IN_MANIFEST, COMMITS = 1_000_000, 200, 10


def histories(bench: Bench) -> Iterator[Row]:
    """Verify and expire a table with many snapshots, each of which adds two files."""
    count = max(10, int(SNAPSHOTS * bench.scale))
    for merged in ("false", "true"):
        where = bench.work / f"history-{merged}"
        table = create_table(
            where, SCHEMA, SampleKms(), master_key_id="keyA", partition_spec=SPEC,
            properties={"commit.manifest-merge.enabled": merged},
        )  # fmt: skip
        rows = pa.table([[0] * 100 + [1] * 100, range(200), ["x"] * 200], schema=SCHEMA)
        for _ in range(count):
            table = table.append(rows)
        peer = figure([_measure(where, "scan")["cpu"] for _ in range(bench.repeat)])
        kind = "merged manifests" if merged == "true" else "a manifest each"
        title = f"{count:,} snapshots, {kind}: CPU of"
        for work, most in (("verify", 2), ("expire", 1)):
            taken = figure([_measure(where, work)["cpu"] for _ in range(bench.repeat)])
            yield within(f"{title} {work}; peer a scan", taken, peer, most)
        taken = figure([_measure(where, "append")["cpu"] for _ in range(bench.repeat)])
        yield below(f"{title} append; peer a scan", taken, peer, 0.3)


def many_files(bench: Bench) -> Iterator[Row]:
    """Plan, rotate and expire tables of files that do not exist; peer a tenth of the files.

    The time for a part of the files may be a quarter above that part of the time for all.
    """
    sizes = [max(IN_MANIFEST * COMMITS, int(FILES * bench.scale / part)) for part in (10, 5, 2, 1)]
    tables = [_make_large(bench.work / f"files-{size}", size) for size in sizes]
    for work in ("open", "plan", "plan of all manifests", "mek", "kek", "expire"):
        facts = [_measure(where, work) for where in tables]
        cpu = [figure([measured["cpu"]]) for measured in facts]
        peak = [figure([measured["peak"]], "MB") for measured in facts]
        for size, taken, held in list(zip(sizes, cpu, peak, strict=True))[1:]:
            title = f"{size:,} files: {work}"
            yield within(f"{title}, CPU", taken, cpu[0], 1.25 * size / sizes[0])
            yield below(f"{title}, peak memory", held, peak[0], 1000)


def _measure(where: Path, work: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tools.bench_iceberg_sizes", str(where), work]
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    facts: dict[str, float] = json.loads(run.stdout)
    return facts


# --- a table of files that do not exist -----------------------------------------------------------


def _make_large(where: Path, files: int) -> Path:
    table = create_table(where, SCHEMA, SampleKms(), master_key_id="keyA", partition_spec=SPEC)
    manifests = files // IN_MANIFEST
    for first in range(0, manifests, manifests // COMMITS):
        numbers = range(first, min(manifests, first + manifests // COMMITS))
        with NewFiles(table.walk.locations) as new:
            table = commit(table, lambda base: _add_manifests(base, numbers, new), files=new)  # noqa: B023
    return where


def _add_manifests(table: IcebergTable, numbers: range, files: NewFiles) -> TableMetadata:
    metadata, current = table.metadata, table.metadata.current
    before = [] if current is None else table.walk.manifests(current)
    keys = writing_keys(table, writing_policy(metadata, metadata), [""])
    snapshot = new_snapshot_id(metadata)
    new = [
        write_manifest(
            table, 0, [_entry(metadata, number, at, snapshot) for at in range(IN_MANIFEST)], files,
            content=DATA, snapshot_id=snapshot,
        )
        for number in numbers
    ]  # fmt: skip
    return add_snapshot(
        table, snapshot, [*new, *(old.row for old in before)], keys.of_list, files,
        operation="append", summary={}, new_keys=keys.entries,
    )  # fmt: skip


def _entry(metadata: TableMetadata, number: int, at: int, snapshot: int) -> dict[str, Any]:
    first = 1000 * (number * IN_MANIFEST + at)
    low, high = (to_bytes(LongType(), value) for value in (first, first + 999))
    place = f"p={number}/00000-{at}-2f1c5a2e-7d5c-4f7e-9a55-{number:012}-{at:05}.parquet"
    return {
        "status": ADDED,
        "snapshot_id": snapshot,
        "data_file": {
            "file_path": f"{metadata.location}/data/{place}",
            "file_format": "PARQUET",
            "partition": {"p": number},
            "record_count": 1000,
            "file_size_in_bytes": 50_000,
            "lower_bounds": [{"key": 2, "value": low}, {"key": 3, "value": b"a"}],
            "upper_bounds": [{"key": 2, "value": high}, {"key": 3, "value": b"z"}],
            "key_metadata": Secret(StandardKeyMetadata.generate().with_length(50_000).encode()),
        },
    }


# --- work in a process of its own -----------------------------------------------------------------


def _plan(table: IcebergTable) -> object:
    """Plan a scan of half of the files of 100 manifests."""
    return _plan_where(table, f"p < 100 and id >= {50_000 * IN_MANIFEST}")


def _plan_where(table: IcebergTable, condition: str) -> object:
    current = table.snapshot()
    assert current is not None
    schema = null_with_parents(schema_of(table.metadata))
    files = Planner(table.walk, schema, parse_filter(condition)).files(current)
    return sum(1 for _ in files)  # a scan does not hold all of them either


_ROWS = pa.table([[0, 1], [1, 2], ["a", "b"]], schema=SCHEMA)

WORK: dict[str, Callable[[IcebergTable], object]] = {
    "open": lambda table: table.snapshots(),
    "scan": lambda table: table.scan().to_arrow(),
    "plan": _plan,
    "plan of all manifests": lambda table: _plan_where(table, "id >= 0 and name > 'b'"),
    "verify": verify_table,
    "append": lambda table: table.append(_ROWS),
    "mek": lambda table: rotate_table(table, "mek"),
    "kek": lambda table: rotate_table(table, "kek"),
    "expire": lambda table: expire_history(table, dry_run=True),
}


def _main(where: str, work: str) -> None:
    table = open_table(where, SampleKms())
    if work == "open":
        table.snapshots()  # imports
        started = time.process_time()
        table = open_table(where, SampleKms())
    else:
        started = time.process_time()
    WORK[work](table)
    taken = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"cpu": taken, "peak": peak}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
