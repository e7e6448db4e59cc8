"""`modcrypt status` and `modcrypt apply`: compare a lake with its declaration, and establish it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from modcrypt.cli.engines import load_spark, start_spark
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.signing_options import sign_options
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.references import refuse_descriptors
from modcrypt.cli.shared import confirm, print_json, print_line, print_long_table
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import list_names, printable
from modcrypt.jobs.failures import common_code
from modcrypt.lake.commands.lake_options import (
    adapt_advice,
    dataset_argument,
    lake_options,
    open_lake,
)

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.leaks.scan import ValueLeak
    from modcrypt.lake.applying.application import LakeApplication
    from modcrypt.lake.status import DatasetStatus

_STATUS_EXAMPLE = """\b
Examples: all datasets of the lake; every file of one that is not as declared; for CI
  modcrypt status
  modcrypt status orders --files
  modcrypt status --exit-code

\b
States: as declared; plaintext; under another policy; under older keys; under keys that
are not declared; under a compromised key, rewrapped since, or with data keys of unknown
age; open to a former recipient; with the AAD prefix of another place; unreadable, with the reason
(disabled, denied, unavailable, destroyed, or an error code); erased; declared as
erased, but open"""

_APPLY_EXAMPLE = """\b
Examples: what would be done; one dataset, with eight jobs; on Spark
  modcrypt apply --dry-run
  modcrypt apply orders --jobs 8
  modcrypt apply --spark spark://host:7077

\b
Exit codes: 0 everything is as declared; otherwise that of the files that failed or were
refused, or 1 if they have different codes"""


@verb(epilog=_STATUS_EXAMPLE)
@dataset_argument
@lake_options
@option("--files", help="List the files that are not as declared.")
@option("--exit-code", help="Exit with 1 unless everything is as declared.")
def status(
    *, dataset: str | None, jobs: int | None, files: bool, exit_code: bool, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Compare the files of a lake with its declaration.

    DATASET is the name of a dataset; by default, all are compared. Only footers are read, and only
    of files that changed since the last status.
    """
    lake = open_lake(options)
    code = 0
    with files_bar("Examining") as bar:
        found = lake.status(dataset, jobs=jobs, progress=bar)
    for dataset_status in found:
        code = max(code, dataset_status.code, int(exit_code and not dataset_status.is_declared))
        if as_json:
            _print_lines("lake.status", [dataset_status.fields()])
            _print_lines("lake.status", dataset_status.file_fields() if files else ())
        else:
            _print_status(dataset_status, files)
    return code


def _print_status(status: DatasetStatus, files: bool) -> None:
    from modcrypt.lake.spool import take_batches

    print_line(printable(status.summary()))
    if files:
        rows = (
            (file.path, file.state, file.reason or None, adapt_advice(file.message) or None)
            for file in chain(status.files, (file for file in status.waiting if file.reason))
            if not file.is_declared or file.reason
        )
        print_long_table(("file", "state", "reason", "message"), rows)
        print_leaks(status.leaks)
        for strays in take_batches(status.strays, 100):
            print_line(printable(f"undeclared files: {', '.join(strays)}"))


def print_leaks(leaks: Iterable[ValueLeak]) -> None:
    """Print the table of leaks beside the files."""
    rows = ((leak.path, leak.kind, list_names(leak.columns), leak.remedy) for leak in leaks)
    print_long_table(("leak", "kind", "columns", "what to do"), rows)


@verb(epilog=_APPLY_EXAMPLE)
@dataset_argument
@lake_options
@sign_options
@option(
    "--accept-replaced",
    help="Also encrypt plaintext files that replaced encrypted ones, and sign those in the folder "
    "of a dataset with signed_by: anyone who could write there may have chosen them.",
)
@option(
    "--remove-erased",
    help="Delete the files that are declared as erased, after a proof that nothing opens them.",
)
def apply(
    *, dataset: str | None, jobs: int | None, spark_master: str | None, dry_run: bool,
    accept_replaced: bool, remove_erased: bool, yes: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Change the files of a lake to what its declaration says.

    Plaintext files are encrypted in place, files under other policies re-keyed, and keys that are
    too old rotated. Nothing is decrypted. Only erased files are deleted, on request. Files that
    keep values in plaintext are listed. Files that may be forged or moved, or cannot be read,
    are refused and listed. The next run resumes an interrupted one; a run that finds
    everything as declared does nothing.
    """
    if accept_replaced and not dry_run:
        confirm("encrypts and signs plaintext files that replaced encrypted ones", yes)
    if remove_erased and not dry_run:
        confirm("deletes the files that are declared as erased", yes)
    how: dict[str, Any] = {
        "dry_run": dry_run, "accept_replaced": accept_replaced, "remove_erased": remove_erased,
    }  # fmt: skip
    if spark_master is not None:
        refuse({"jobs"}, "not supported with --spark")
        refuse_descriptors()
    lake = open_lake(options)
    if spark_master is not None:
        with start_spark(spark_master, "apply") as spark:
            done: list[LakeApplication] = load_spark().apply_lake(spark, lake, dataset, **how)
    else:
        with files_bar("Applying") as bar:
            done = lake.apply(dataset, jobs=jobs, progress=bar, **how)
    for application in done:
        if as_json:
            _print_lines("lake.apply", application.fields())
        else:
            _print_application(application)
    return common_code({application.code for application in done} - {0})


def _print_application(done: LakeApplication) -> None:
    rows: Iterator[tuple[Any, ...]]
    if done.dry_run:
        rows = ((file.state.path, file.action, adapt_advice(file.why)) for file in done.plan.files)
        gone = ((state.path, "remove", state.message) for state in done.plan.removals)
        rows = chain(rows, gone)
    else:
        failed = (file for file in done.files if file.code)
        rows = ((file.path, file.result, adapt_advice(file.message)) for file in failed)
    print_long_table(("file", "action", "reason"), rows)
    print_leaks(done.plan.leaks)
    print_line(printable(done.summary()))


def _print_lines(schema: str, lines: Iterable[Mapping[str, Any]]) -> None:
    for fields in lines:
        message = adapt_advice(fields.get("message", ""))
        more = {"message": message} if "message" in fields else {}
        print_json(schema, {**fields, **more})
