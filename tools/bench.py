"""Compare the speed of modcrypt with PyArrow and with the bare work, side by side in one run.

    python tools/bench.py                        everything, on TPC-H lineitem, scale 1
    python tools/bench.py --scale 0.1 --quick    a fast look
    python tools/bench.py --only wide small_pagesthese groups (`--help` lists them)
    python tools/bench.py --json result.json     table on stdout, JSON in a file

Without --json the table goes to stderr and the JSON to stdout. Repetitions are interleaved
(A, B, A, B, ...) after a warm-up of each; a figure is the median [min-max].
The ratio is the peer's time over modcrypt's where the target is >=, modcrypt's over the peer's
where it is <=. The last two columns are user and system time of all threads, modcrypt's and the
peer's. Outputs are deleted before a timed run, not during it: freeing 200 MB of tmpfs pages takes
as long as encrypting them. Inputs stay in a cache folder, on tmpfs if available.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.backends.openssl import backend

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

from modcrypt.io.threads import usable_cores
from modcrypt.parquet.format import page_header
from tools import (
    bench_ags1,
    bench_arrow,
    bench_files,
    bench_filters,
    bench_iceberg,
    bench_iceberg_sizes,
    bench_kms,
    bench_pages,
    bench_plan,
    bench_rekey,
    bench_subject_vault,
    bench_subjects,
    bench_tiny,
    bench_wide,
)
from tools.figures import Bench, Row, line

SECTIONS: dict[str, tuple[str, Callable[[Bench], Iterator[Row]]]] = {
    "start": ("A start, CPU time", bench_tiny.start),
    "tiny": ("Tiny files and column chunks, CPU time", bench_tiny.tiny),
    "filters": ("Filters that choose one row, CPU time", bench_filters.filters),
    "plan": ("Plans of scans of an Iceberg table, CPU time", bench_plan.plan),
    "pyarrow": ("Whole files against PyArrow", bench_files.against_pyarrow),
    "bare": ("Whole files against the bare work", bench_files.against_bare_work),
    "small_pages": (
        "Small pages in memory, CPU time per page",
        bench_pages.small_pages,
    ),
    "threads": ("1 MiB pages, a second thread", bench_files.second_thread),
    "memory": ("Peak memory", bench_files.peak_memory),
    "arrow_write": ("Arrow tables against PyArrow's encrypted write", bench_arrow.arrow_write),
    "arrow_read": ("Arrow tables against PyArrow's encrypted read", bench_arrow.arrow_read),
    "arrow_bytes": (
        "One column: bytes read against its size",
        bench_arrow.arrow_bytes,
    ),
    "arrow_memory": ("Peak memory of a stream of Arrow batches", bench_arrow.arrow_memory),
    "wide": ("Wide files with one small page per column chunk", bench_wide.wide),
    "rekey": ("Re-key and verify", bench_rekey.rewriting),
    "inspect": ("Inspect wide files", bench_rekey.inspecting),
    "ags1": ("AGS1 streams in memory, 1 MiB blocks", bench_ags1.streams),
    "ags1_java": ("AGS1 against Iceberg's Java", bench_ags1.java),
    "ags1_reads": ("AGS1, random reads", bench_ags1.reads),
    "ags1_memory": ("AGS1, peak memory", bench_ags1.memory),
    "kms_wrapping": ("Keys from a keyring against keys that are given", bench_kms.wrapping),
    "kms_calls": ("Calls of a key service", bench_kms.economy),
    "kms_rotation": ("Rotation on this disk against replacing files", bench_kms.rotation),
    "iceberg_scan": (
        "Encrypted Iceberg tables against pyiceberg's plaintext scan",
        bench_iceberg.scanning,
    ),
    "iceberg_rotation": ("Keys of an Iceberg table with a long history", bench_iceberg.rotation),
    "iceberg_history": ("Iceberg tables with many snapshots", bench_iceberg_sizes.histories),
    "iceberg_files": ("Metadata of many files of an Iceberg table", bench_iceberg_sizes.many_files),
    "subjects": ("Values under keys of subjects, CPU time", bench_subjects.subjects),
    "subject_vault": ("A vault of subjects' keys", bench_subject_vault.vault),
}


HEADINGS = ("figure", "modcrypt", "peer", "ratio", "target", "met", "user + system", "peer's")


def machine() -> dict[str, str]:
    """Describe the machine and the versions on which the figures depend."""
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    models = [row.partition(": ")[2] for row in rows if row.startswith("model name")]
    packages = ("modcrypt", "cryptography", "pyarrow", "polars", "duckdb")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "cpu": f"{[*models, platform.machine()][0]}, {usable_cores()} cores",
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "modcrypt runs": execution_mode(),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "openssl": backend.openssl_version_text(),
    }


def execution_mode() -> str:
    """Return whether the modules of the page loop are compiled or interpreted."""
    is_source = str(page_header.__file__).endswith(".py")
    return "interpreted" if is_source else "compiled"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale factor")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs of each job")
    parser.add_argument("--quick", action="store_true", help="3 runs, no 2 GB file, 200 columns")
    parser.add_argument("--skip-large", action="store_true", help="leave the 2 GB file out")
    parser.add_argument("--plan-files", type=int, default=20_000, help="files of a planned table")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes")
    shared = Path("/dev/shm")
    folder = shared if shared.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--cache", type=Path, default=folder / f"modcrypt-bench-{os.getuid()}")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    say = partial(print, file=sys.stdout if args.json else sys.stderr, flush=True)
    facts = machine() | {"input": f"TPC-H lineitem, scale {args.scale:g}, in {args.cache}"}
    say(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    say("\n" + line(*HEADINGS))
    repeat = 3 if args.quick else args.repeat
    skipped = {"memory", "arrow_memory", "ags1_memory"} if args.quick or args.skip_large else set()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.cache) as work:
        bench = Bench(repeat, args.scale, args.quick, args.cache, Path(work), args.plan_files)
        bench.scratch.mkdir()
        for name in (name for name in args.only if name not in skipped):
            title, section = SECTIONS[name]
            say(f"\n{title}")
            for row in section(bench):
                say(row)
                rows.append({"section": name} | asdict(row))
    result = json.dumps({"machine": facts, "repeat": repeat, "rows": rows}, indent=1)
    if args.json:
        args.json.write_text(result + "\n")
    else:
        print(result)


if __name__ == "__main__":
    main()
