"""Judge encrypted Iceberg tables: `python tools/lake_judge --catalog hive --seed 1`.

Stock Spark and Iceberg and modcrypt change one table in turns, race each other, meet faults of the
key service and are killed, while a model knows the rows that must be there. Exit status 1 means
that something was wrong.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tests.support.iceberg.java_judge import why_unavailable as why_no_java
from tests.support.spark.iceberg_spark import why_unavailable as why_no_spark
from tools.lake_judge.catalogs import CATALOGS, WITH_SPARK, open_catalog
from tools.lake_judge.phases import run_phases
from tools.lake_judge.report import Report, engine_versions

DEFAULTS = {"turns": 500, "races": 200, "kills": 30, "faults": 100}


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if reason := why_unavailable(options.catalog):
        raise SystemExit(reason)
    report = Report(
        catalog=options.catalog, seed=options.seed,
        engines=engine_versions(spark=options.catalog in WITH_SPARK),
    )  # fmt: skip
    wanted = {name: getattr(options, name) for name in DEFAULTS}
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="lake-judge-", ignore_cleanup_errors=True) as folder,
        open_catalog(options.catalog, Path(folder)) as make,
    ):
        run_phases(make, report, wanted, options.only)
    print(report.to_text())
    if options.report:
        report.save(options.report)
    return int(not report.ok)


def why_unavailable(catalog: str) -> str | None:
    """Return what is missing for a catalog; None if all is there."""
    return why_no_spark() if catalog in WITH_SPARK else why_no_java()


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge encrypted Iceberg tables.")
    parser.add_argument("--catalog", choices=CATALOGS, default="hive")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    for name, number in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar="N")
    parser.add_argument("--only", metavar="PHASE:BLOCK", help="repeat one block, as races:3")
    parser.add_argument("--report", metavar="FILE", help="write the report as JSON")
    options = parser.parse_args(arguments)
    if options.only and not re.fullmatch(f"({'|'.join(DEFAULTS)}):[0-9]+", options.only):
        parser.error(
            f"--only {options.only}: must be a phase and the number of a block, as races:3"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
