"""`modcrypt verify [DATASET]`: verify a lake against its declaration."""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import click
import cloup

from modcrypt.cli.datasets.arguments import dataset_of, take_paths, use_paths
from modcrypt.cli.datasets.declared import KEYS, find_lake, list_typed
from modcrypt.cli.engines import load_spark, start_spark
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.references import refuse_descriptors
from modcrypt.cli.shared import keep_code, print_json, print_line
from modcrypt.cli.shared_options import option, rare_option, verb
from modcrypt.cli.verify import (
    CHECKS,
    EXAMPLE,
    EXIT_CODES,
    options_of_files,
    print_findings,
    verify_files,
)
from modcrypt.errors import printable
from modcrypt.jobs.failures import common_code
from modcrypt.lake.commands.lake_options import adapt_advice, config_option, open_lake

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.verification.results import LakeVerification
    from modcrypt.parquet.verify.verification_results import DatasetVerification

lake_verify_options = cloup.option_group(
    "Lake",
    config_option,
    option(
        "--since WHEN",
        help="Verify only files changed since a time (2026-11-26T08:00), an age (2d) or, of "
        "datasets, the last verification (last).",
    ),
    rare_option(
        "--resume",
        default=None,
        help="Resume an interrupted verification: skip the files that it found correct.",
    ),
    rare_option(
        "--no-evidence", help="Do not record the result in modcrypt.evidence.jsonl.", default=None
    ),
    option("--junit OUT", help="Write the result to OUT as JUnit XML."),
    rare_option("--sarif OUT", help="Write the result to OUT as SARIF 2.1.0."),
)
_LAKE_PARAMETERS = ("config", "since", "resume", "no_evidence", "junit", "sarif")

_AGE = re.compile(r"([0-9]{1,6})([mhdw])")
_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10080}


_AS_DECLARED = {
    *_LAKE_PARAMETERS, "paths", "jobs", "spark_master", "as_json", "passphrase", "audit",
}  # fmt: skip
"""Parameters with which a dataset is verified as declared; others are about files."""

_LAKE_EXAMPLE = """\b
a lake against modcrypt.toml, for a CI system; its dataset "lake"
  modcrypt verify --junit result.xml
  modcrypt verify lake

"""


_HELP = f"""\
Verify that Parquet files, or all of a lake, are authentic.

PATH is a file or a folder, or the name of a dataset or table that modcrypt.toml declares. What lies
in a dataset is verified as declared. Without PATH, all datasets are verified. {CHECKS}"""


@verb(help=_HELP, epilog=EXAMPLE + _LAKE_EXAMPLE + EXIT_CODES)
@click.argument("paths", metavar="[PATH]...", nargs=-1, callback=partial(take_paths, tables=True))
@lake_verify_options
@options_of_files
def verify(*, paths: tuple[str, ...], **options: Any) -> int:
    """Verify files, datasets and tables, each as what it is."""
    lake = {name: options.pop(name) for name in _LAKE_PARAMETERS}
    targets = _find_targets(paths, lake, options)
    about_files = list_typed(lambda name: name not in _AS_DECLARED)
    if about_files and targets.datasets:
        if targets.are_whole:
            refuse(about_files, "a lake is verified as its declaration says; remove it")
        targets = _Targets(paths)  # with the declared keys, and what the options demand
    results: list[LakeVerification] = []
    codes = [verify_dataset(*part, {**options, **lake}, results) for part in targets.parts()]
    if targets.files:
        codes.append(_verify_paths(targets.files, lake, options, results))
    code = combine_codes(codes)
    with keep_code(code):
        _write_reports(results, lake)
    return code


@dataclass(frozen=True)
class _Targets:
    """The files, datasets and tables that the arguments name."""

    files: Sequence[str] = ()  # paths in no dataset
    # Paths inside each dataset, by its name; none for all of it.
    datasets: Mapping[str | None, Sequence[str]] = field(default_factory=dict)
    # Whether a dataset has no folder of its own, or the whole lake is meant.
    are_whole: bool = False

    def parts(self) -> Iterator[tuple[str | None, Sequence[str]]]:
        """Yield each dataset, and the paths inside it; an empty path is all of it."""
        for name, parts in self.datasets.items():
            yield name, () if "" in parts else parts


def _find_targets(
    paths: Sequence[str], options: dict[str, Any], others: Mapping[str, Any]
) -> _Targets:
    """Return the subjects of the arguments; `FILE#NAME` sets the declaration in the options."""
    if not paths:
        return _Targets(datasets={None: ()}, are_whole=True)
    files: list[str] = []
    datasets: dict[str | None, list[str]] = {}
    are_whole = False
    for path in paths:
        if (declared := dataset_of(path, tables=True)) is None:
            _check_apart(path, options, others)
            files.append(path)
            continue
        options["config"] = declared.file or options["config"]
        is_table = declared.lake.locate(declared.name) is None
        inside = "" if is_table else declared.lake.inside(declared.name, path)
        datasets.setdefault(declared.name, []).append(inside)
        are_whole = are_whole or is_table
    return _Targets(files, datasets, are_whole)


def _check_apart(path: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Raise if a folder may belong to a declaration that does not decide, without keys."""
    # A folder of plaintext files has no fault, so that a check in CI would pass.
    lake = find_lake(options["config"])
    if lake is None or lake.refusal is None or os.path.isfile(path):
        return
    if lake.may_have(path) and not list_typed(KEYS.__contains__):
        open_lake({**options, **others})  # raises


def _verify_paths(
    paths: Sequence[str], lake: Mapping[str, Any], options: dict[str, Any],
    results: list[LakeVerification],
) -> int:  # fmt: skip
    """Verify files by the options, or with declared keys; add the result; return the exit code."""
    from modcrypt.lake.verification.results import LakeVerification, VerifiedFile

    use_paths(paths)
    if (since := parse_since(lake["since"])) == "last" or lake["resume"]:
        raise click.UsageError(
            "--since last and --resume need a dataset, verified as declared; use --record FILE"
        )
    if options["spark_master"] is not None:
        refuse({"since", "junit", "sarif"}, "not supported with --spark, but for a dataset")

    def add(result: DatasetVerification) -> None:
        verified = tuple(
            VerifiedFile(
                path=file.name, verification=file, findings=file.findings,
                missing=tuple(note for note in file.not_authenticated if note.word is not None),
            )
            for file in result.files
        )  # fmt: skip
        results.append(
            LakeVerification(dataset="files", location="", files=verified, findings=result.findings)
        )

    return verify_files(
        paths=tuple(paths), changed_since=None if since is None else since.timestamp(),
        report=add, **options,
    )  # fmt: skip


def verify_dataset(
    name: str | None, parts: Sequence[str], options: dict[str, Any],
    results: list[LakeVerification],
) -> int:  # fmt: skip
    """Verify a dataset or part of it, or all datasets of a lake; return the exit code."""
    how: dict[str, Any] = {
        "since": parse_since(options["since"]),
        "resume": bool(options["resume"]),
        "parts": parts,
        "evidence": not options["no_evidence"],
    }
    master, started = options["spark_master"], time.perf_counter()
    if master is not None:
        refuse({"jobs"}, "not supported with --spark")
        refuse_descriptors()
    hint = "Missing argument 'PATH...': name files or folders; " * (name is None)
    lake = open_lake(options, hint)
    if master is not None:
        with start_spark(master, "verify") as spark:
            found: list[LakeVerification] = load_spark().verify_lake(spark, lake, name, **how)
    else:
        with progress_bar("Verifying", None) as progress:
            found = lake.verify(name, progress=progress, jobs=options["jobs"], **how)
    for result in found:
        if options["as_json"]:
            _print_lines(result, started)
        else:
            _print_result(result)
    results += found
    return combine_codes([result.code for result in found])


def _print_lines(result: LakeVerification, started: float) -> None:
    """Print the lines of JSON that `verify` prints about files, and the totals."""

    def adapted(fields: dict[str, Any]) -> dict[str, Any]:
        findings = [{**f, "message": adapt_advice(f["message"])} for f in fields["findings"]]
        return {**fields, "findings": findings}

    for fields in result.file_fields():
        print_json("verify.file", adapted(fields))
    seconds = round(time.perf_counter() - started, 6)
    print_json("verify.totals", {**adapted(result.fields()), "seconds": seconds})


def combine_codes(codes: Sequence[int]) -> int:
    """Return one exit code for several datasets: faults come first, then missing keys."""
    found = set(codes) - {0}
    if 1 in found:
        return 1
    return 3 if found == {3, 4} else common_code(found)


def parse_since(text: str | None) -> datetime.datetime | Literal["last"] | None:
    """Return the time that `--since` names; "last" for the last verification.

    Raise click.UsageError if the text is none of these.
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
    found = chain(of_files, ((None, finding) for finding in result.findings))
    print_findings(found, adapt_advice, named=True)
    for line in result.describe_missing():
        print_line(printable(line))
    if result.limits:
        print_line(printable(f"Not authenticated by the format: {'; '.join(result.limits)}"))
    print_line(printable(result.summary()))


def _write_reports(results: Sequence[LakeVerification], options: dict[str, Any]) -> None:
    from modcrypt.io.destinations import open_sink
    from modcrypt.lake.reports.ci_reports import make_junit, make_sarif

    for name, make in (("junit", make_junit), ("sarif", make_sarif)):
        if options[name] is not None:
            with open_sink(options[name], overwrite=True) as sink:
                sink.append(make(results))
