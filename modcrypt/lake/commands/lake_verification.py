"""`modcrypt verify [DATASET]`: verify a lake against its declaration."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import click
import cloup

from modcrypt.cli.engines import is_any_typed, load_spark, start_spark
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.json_output import dump_line
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.references import refuse_descriptors
from modcrypt.cli.shared import optional_paths_argument, print_line, print_long_table, rare_option
from modcrypt.cli.verify import CHECKS, EXAMPLE, EXIT_CODES, options_of_files, verify_files
from modcrypt.errors import printable
from modcrypt.jobs.failures import common_code
from modcrypt.lake.commands.lake_options import adapt_advice, config_option, open_lake

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.verification.results import LakeVerification

lake_verify_options = cloup.option_group(
    "Lake",
    config_option,
    click.option(
        "--since",
        metavar="WHEN",
        help="Verify only files that changed since: last (the last verification that found them "
        "correct), a time such as 2026-11-26T08:00, or an age such as 2d.",
    ),
    rare_option(
        "--resume",
        is_flag=True,
        default=None,
        help="Take up an interrupted verification: skip the files that it found correct.",
    ),
    click.option("--junit", metavar="OUT", help="Write the result to OUT as JUnit XML."),
    rare_option("--sarif", metavar="OUT", help="Write the result to OUT as SARIF 2.1.0."),
)
LAKE_PARAMETERS = ("config", "since", "resume", "junit", "sarif")

_AGE = re.compile(r"([0-9]{1,6})([mhdw])")
_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10080}


_NOT_OF_LAKES = {
    "key", "column_key_refs", "signed_by", "seal_at_least",
    "aad_prefix", "root", "kms", "policy_file", "master_keys",
    "shared_aad_prefix", "accept_algorithms", "aad_prefix_template", "expected_parts",
    "expected_rows", "strict", "glob", "record", "threads", "html",
}  # fmt: skip

_LAKE_EXAMPLE = """\b
a lake against modcrypt.toml, for a CI system
  modcrypt verify --junit result.xml

"""


_HELP = f"""\
Verify that Parquet files are authentic and consistent, or a lake against its declaration.

PATH is a file or a folder; or a dataset that modcrypt.toml declares. Without PATH, all its datasets
are verified. {CHECKS}"""


@cloup.command(help=_HELP, epilog=EXAMPLE + _LAKE_EXAMPLE + EXIT_CODES)
@optional_paths_argument
@lake_verify_options
@options_of_files
def verify(
    *, paths: tuple[str, ...], jobs: int | None, spark_master: str | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Verify files, or a lake if it is meant."""
    how: dict[str, Any] = {"jobs": jobs, "as_json": as_json}
    lake = {name: options.pop(name) for name in LAKE_PARAMETERS}
    opening = options.keys() - verify_files.__annotations__.keys()  # its `reading`
    if is_of_lake(paths, lake, has_keys=is_any_typed(opening)):
        refuse(_NOT_OF_LAKES, "a lake is verified as its declaration says; remove it")
        return verify_lake(paths, {**options, **lake}, master=spark_master, **how)
    return verify_files(paths=paths, spark_master=spark_master, **how, **options)


def is_of_lake(paths: Sequence[str], options: dict[str, Any], *, has_keys: bool) -> bool:
    """Return whether `verify` is to verify a lake, not files at paths.

    It is if no path or an option of lakes is given; or if keys are not given, and the only path is
    the name of a dataset, or of a table of a namespace.
    """
    if not paths or any(options[name] is not None for name in LAKE_PARAMETERS):
        return True
    if has_keys or len(paths) > 1 or not re.fullmatch(r"[\w.-]+(/[^/]+)?", paths[0]):
        return False
    from modcrypt.lake.declarations.declaration_file import find_declaration, read_content

    path = find_declaration()
    if path is None:
        return False
    declaration = None
    with suppress(ValueError):  # `open_lake` reports it, and decides about trust
        declaration = read_content(path, reads_outside=False).declaration
    dataset, _, table = paths[0].partition("/")
    if declaration is None:  # its mistakes are reported, unless a file is meant
        return not table and not os.path.isfile(paths[0])
    declared = declaration.all.get(dataset)
    return declared is not None and (not table or getattr(declared, "namespace", None) is not None)


def verify_lake(
    paths: Sequence[str], options: dict[str, Any], *, jobs: int | None, master: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Verify a dataset or all datasets of a lake; print the result and return the exit code."""
    if len(paths) > 1:
        raise click.UsageError("name one dataset, or none for all")
    how: dict[str, Any] = {
        "since": parse_since(options["since"]),
        "resume": bool(options["resume"]),
    }
    if master is not None:
        refuse({"jobs"}, "not supported with --spark")
        refuse_descriptors()
    lake = open_lake(options, "Missing argument 'PATH...': name files or folders; " * (not paths))
    dataset = next(iter(paths), None)
    if master is not None:
        with start_spark(master, "verify") as spark:
            results: list[LakeVerification] = load_spark().verify_lake(spark, lake, dataset, **how)
    else:
        with progress_bar("Verifying", None) as progress:
            results = lake.verify(dataset, jobs=jobs, progress=progress, **how)
    for result in results:
        if as_json:
            for fields in result.fields():
                print_line(dump_line(fields))
        else:
            _print_result(result)
    _write_reports(results, options)
    return combine_codes([result.code for result in results])


def combine_codes(codes: Sequence[int]) -> int:
    """Return one exit code for several datasets: faults come first, then missing keys."""
    found = set(codes) - {0}
    if 1 in found:
        return 1
    return 3 if found == {3, 4} else common_code(found)


def parse_since(text: str | None) -> datetime.datetime | Literal["last"] | None:
    """Return the time that `--since` names; "last" for the last verification.

    Raises:
        click.UsageError: The text is none of these.
    """
    if text is None:
        return None
    if text == "last":
        return "last"
    if match := _AGE.fullmatch(text):
        age = datetime.timedelta(minutes=int(match[1]) * _MINUTES[match[2]])
        return datetime.datetime.now(datetime.UTC) - age
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(
            "--since takes last, a time such as 2026-11-26T08:00, or an age such as 2d"
        ) from None


def _print_result(result: LakeVerification) -> None:
    of_files = ((file.path, f) for file in result.files for f in file.findings)
    found = chain(of_files, (("-", finding) for finding in result.findings))
    rows = ((path, f.severity, f.word, adapt_advice(f.message)) for path, f in found)
    print_long_table(("file", "severity", "error", "meaning"), rows)
    for line in result.describe_missing():
        print_line(printable(line))
    if result.limits:
        print_line(printable(f"Open by design: {'; '.join(result.limits)}"))
    print_line(printable(result.summary()))


def _write_reports(results: Sequence[LakeVerification], options: dict[str, Any]) -> None:
    from modcrypt.io.destinations import open_sink
    from modcrypt.lake.ci_reports import make_junit, make_sarif

    for name, make in (("junit", make_junit), ("sarif", make_sarif)):
        if options[name] is not None:
            with open_sink(options[name], overwrite=True) as sink:
                sink.append(make(results))
