"""Commands on another engine (`--spark MASTER`): process the files of a folder on its executors.

Only references to keys are sent to Spark, so what they refer to must exist on the driver and on
all executors. Therefore file descriptors and typed passphrases are not supported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.references import refuse_descriptors
from modcrypt.cli.shared import format_failures, print_line
from modcrypt.jobs.failures import exit_code
from modcrypt.runtime.plugins import ENGINES, load

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 100  # largest number of failures printed for people, followed by the number of others
_NOT_ON_SPARK = {"glob", "jobs", "record", "fail_fast", "threads", "audit"}


def load_spark() -> Any:
    """Return the module of the plug-in with the jobs of Spark; see `modcrypt.spark.engine`.

    Raise ModuleNotFoundError if the plug-in is not there.
    """
    return load(ENGINES, "spark")


def start_spark(master: str, verb: str) -> AbstractContextManager[SparkSession]:
    """Return a session for a command."""
    bar = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    session: AbstractContextManager[SparkSession] = load_spark().spark_session(
        master, f"modcrypt {verb}", bar
    )
    return session


def iterate_rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows, one partition at a time."""
    return (row.asDict() for row in frame.toLocalIterator())


def show_results(report: DataFrame, kind: type[Any], show: Callable[..., object]) -> None:
    """Call `show` with the result in each row of a report, and the number of rows."""
    total = report.count()
    for row in iterate_rows(report.drop("failed", "worker")):
        show(kind(**row), total)


def print_failures(frame: DataFrame, result: str = "result") -> int:
    """Print some failures as a table; return the exit code of all, by the column with the codes."""
    failures = frame.where("failed")
    if counts := failures.groupBy(result).count().collect():
        rows = list(iterate_rows(failures.limit(SHOWN)))
        cells = [(row["path"], row[result], use_option_names(row["message"])) for row in rows]
        print_line(format_failures(cells))
        if (more := sum(row["count"] for row in counts) - len(rows)) > 0:
            print_line(f"and {more} more")
    return exit_code(row[result] for row in counts)


def take_details(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the command prints as JSON for a file, as without Spark."""
    details: dict[str, Any] = json.loads(row["details"])
    for fields in (details, *details.get("findings", ())):
        if "message" in fields:
            fields["message"] = use_option_names(fields["message"])
    return details


def refuse_local_options() -> None:
    """Raise a usage error if an option is typed that is not supported on Spark."""
    refuse(
        _NOT_ON_SPARK,
        "not supported with --spark, which checks each file and distributes the work itself",
    )
    refuse_descriptors()
    refuse({"no_check_footer"}, "not supported with --spark")
