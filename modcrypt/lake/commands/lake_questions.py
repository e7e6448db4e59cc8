"""`modcrypt report`, `modcrypt keys impact` and `modcrypt why`: questions about a lake."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.datasets.arguments import take_paths
from modcrypt.cli.examine import html_option, prepare_page
from modcrypt.cli.options.signing_options import read_signers, signed_by_option
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import (
    exclude_each_other,
    needs_one_of,
    print_json,
    print_line,
    print_long_table,
)
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import list_names, printable
from modcrypt.lake.commands.lake_options import lake_options, open_lake, read_declaration
from modcrypt.report.json_fields import json_fields
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.evidence.events import EvidenceCheck
    from modcrypt.lake.lake import Lake
    from modcrypt.lake.reports.lake_report import LakeReport

MAX_FILE_PAGES = 100
"""Maximum number of pages of files beside a report."""

_REPORT_EXAMPLE = """\b
Examples: a page; with the pages of files that are not as declared; the same facts as JSON;
a check of the record of evidence, which must have a line that was noted
  modcrypt report --html lake.html
  modcrypt report --html lake.html --file-pages
  modcrypt report --json
  modcrypt report --check --signed-by operator.pub --at-least 17

\b
Exit codes of --check: 0 the record is as it was written; 1 it has a fault"""

_IMPACT_EXAMPLE = """\b
Examples: a master key; one version of it; what of an erased tenant a backup still has
  modcrypt keys impact pii
  modcrypt keys impact pii --version 1
  modcrypt keys impact tenant-umbrella --copies /backup/lake

\b
Exit codes: 0; 1 files that are declared as erased still open"""

_WHY_EXAMPLE = """\b
Example:
  modcrypt why orders/part-0.parquet ssn

\b
Exit codes: 0 it opens as declared; 3 a step refuses"""


@verb(epilog=_REPORT_EXAMPLE)
@lake_options
@html_option
@option(
    "--file-pages",
    help="Write the pages of the first 100 listed files, too, into the folder OUT.files; their "
    "entries lead to them.",
)
@option(
    "--check",
    help="Check only the record of evidence, modcrypt.evidence.jsonl, without key service and "
    "files: its chain of hashes, its signatures, and the records that it names.",
)
@option(
    "--at-least N[:HASH]",
    help="Require line N of the record, with this hash, to detect lines cut off at its end.",
)
@signed_by_option
@needs_one_of("force", "html")
@needs_one_of("file_pages", "html")
@needs_one_of("at_least", "check")
@needs_one_of("signed_by", "check")
@exclude_each_other("check", "html")
def report(
    *, jobs: int | None, html: str | None, file_pages: bool, force: bool, check: bool,
    at_least: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Report on a lake: coverage, keys and findings.

    The report also has the ages of master keys, changes since the last report, and the newest
    events of the record of evidence.
    """
    if check:
        return _check_record(options, at_least, as_json)
    if html is None and not as_json:
        raise click.UsageError("name a page by --html OUT, or pass --json")
    prepare_page(html, force)  # before the work
    lake = open_lake(options)
    with files_bar("Examining") as bar:
        result = lake.report(jobs=jobs, progress=bar)
    if html is not None:
        from modcrypt.io.destinations import open_sink

        links = _write_file_pages(lake, result, html, force) if file_pages else {}
        with open_sink(html, overwrite=force) as sink:
            sink.append(result.to_html(links).encode())
    if as_json:
        print_json("lake.report", result.fields())
    return 0


def _check_record(options: dict[str, Any], at_least: str | None, as_json: bool) -> int:
    """Check the record beside the declaration that the options name; return the exit code."""
    from modcrypt.lake.evidence.evidence_check import check_declared

    declaration = read_declaration(options, records=False)
    result = check_declared(declaration, read_signers(options), at_least=at_least)
    if not (result.lines or at_least):
        raise FileNotFoundError(
            f"{result.path} has no line: nothing was recorded, or it was removed; evidence is "
            "recorded if the declaration has a table [evidence]"
        )
    if as_json:
        print_json("report.check", json_fields(result, "ok", without=("events", "more_events")))
    else:
        _print_check(result)
    return 0 if result.ok else 1


def _print_check(result: EvidenceCheck) -> None:
    rows = [(each.line, each.word, printable(each.message)) for each in result.findings]
    print_long_table(("line", "fault", "message"), rows)
    if result.more_findings:
        print_line(f"and {format_count(result.more_findings, 'more fault')}")
    for number in result.interrupted:
        print_line(f"line {number}: began, and no line says that it ended")
    by = f" by {list_names(result.signers)}" if result.signers else ""
    lines = format_count(result.lines, "line")
    faults = format_count(len(result.findings) + result.more_findings, "fault")
    signed = f"{result.signed:,} with a valid signature{by}"
    print_line(printable(f"{result.path}: {lines}, {signed}; {faults}"))
    if result.head:
        print_line(f"head {result.head}")
    print_line(
        "A record whose last lines were cut off has no fault: keep the head in another place, and "
        "pass it by --at-least."
    )


def _write_file_pages(
    lake: Lake, report: LakeReport, html: str, force: bool
) -> dict[tuple[str, str], str]:
    from modcrypt.io.destinations import open_sink

    folder = Path(f"{html}.files")
    folder.mkdir(exist_ok=True)
    links = {}
    files = [f for f in report.findings if f["dataset"] in lake.declaration.datasets]
    for number, file in enumerate(files[:MAX_FILE_PAGES]):
        with open_sink(folder / f"{number}.html", overwrite=force) as sink:
            sink.append(lake.draw_file(file["dataset"], file["file"]).encode())
        address = f"{urllib.parse.quote(folder.name)}/{number}.html"
        links[file["dataset"], file["file"]] = address
    return links


@verb(epilog=_IMPACT_EXAMPLE)
@click.argument("key")
@option("--version N", type=click.IntRange(min=1), help="Version of the key.")
@option(
    "--copies FOLDER...",
    help="Also examine copies of datasets in a folder, such as a backup. Repeatable.",
)
@lake_options
def impact(
    *, key: str, version: int | None, copies: tuple[str, ...], jobs: int | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """List what a master key protects: what leaks with it, and what is lost without it.

    KEY is the id of a master key, also with a version (pii@1), or of a KEK in hex. All datasets of
    the lake are examined. Files that are declared as erased, but open, are named whatever the key.
    """
    lake = open_lake(options)
    with files_bar("Examining") as bar:
        found = lake.impact(key, version=version, copies=copies, jobs=jobs, progress=bar)
    for protection in found:
        if as_json:
            print_json("lake.impact", protection.fields())
        else:
            print_line("\n".join(map(printable, protection.describe())))
    codes = [protection.code for protection in found]
    return max([*codes, int(any(protection.not_erased for protection in found))])


@verb(epilog=_WHY_EXAMPLE)
@click.argument("file", callback=take_paths)
@click.argument("column", required=False)
@lake_options
def why(*, file: str, column: str | None, as_json: bool, **options: Any) -> int:
    """Explain why a file or column of a lake opens, or why not.

    The steps lead from the file through its data key, KEK and master key to the key service.
    modcrypt names the step that refuses, and the remedy.
    """
    lake = open_lake(options)
    steps = lake.why(file, column)
    for step in steps:
        if as_json:
            print_json("lake.why", step.fields())
            continue
        print_line(printable(f"{'ok' if step.ok else 'REFUSED':8}{step.step}: {step.text}"))
        if step.advice:
            print_line(printable(f"{'':8}{step.advice}"))
    return 0 if all(step.ok for step in steps) else 3
