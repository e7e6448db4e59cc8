"""`modcrypt report`, `modcrypt keys impact` and `modcrypt why`: questions about a lake."""

from __future__ import annotations

import json
from typing import Any

import click
import cloup

from modcrypt.cli.options.lake_options import jobs_option, lake_options, open_lake
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import json_option, lines_option, needs_one_of, print_line
from modcrypt.errors import printable

# click keeps the lines of a paragraph after \b as they are.
_REPORT_EXAMPLE = """\b
Examples: a page; the same facts as JSON
  modcrypt report --html lake.html
  modcrypt report --json"""

_IMPACT_EXAMPLE = """\b
Examples: a master key; one version of it
  modcrypt keys impact pii
  modcrypt keys impact pii --version 1"""

_WHY_EXAMPLE = """\b
Example:
  modcrypt why orders/part-0.parquet ssn

\b
Exit codes: 0 it opens as declared; 3 a step refuses"""


@cloup.command(epilog=_REPORT_EXAMPLE)
@lake_options
@jobs_option
@click.option("--html", metavar="OUT", help="Write the report as a self-contained page to OUT.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@needs_one_of("force", "html")
@json_option
def report(
    *, jobs: int | None, html: str | None, force: bool, as_json: bool, **options: Any
) -> None:
    """Report on a lake: coverage, keys and findings.

    The report also has the ages of master keys, and changes since the last report.
    """
    if html is None and not as_json:
        raise click.UsageError("name a page by --html OUT, or pass --json")
    lake = open_lake(options)
    with files_bar("Examining") as bar:
        result = lake.report(jobs=jobs, progress=bar)
    if html is not None:
        from modcrypt.io.destinations import open_sink

        with open_sink(html, overwrite=force) as sink:
            sink.append(result.to_html().encode())
    if as_json:
        print_line(json.dumps(result.fields()))


@cloup.command(epilog=_IMPACT_EXAMPLE)
@click.argument("key")
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="Version of the key.")
@lake_options
@jobs_option
@lines_option
def impact(
    *, key: str, version: int | None, jobs: int | None, as_json: bool, **options: Any
) -> None:
    """List what a master key protects: what leaks with it, and what is lost without it.

    KEY is the id of a master key, or of a KEK in hex. All datasets of the lake are examined.
    """
    lake = open_lake(options)
    with files_bar("Examining") as bar:
        found = lake.impact(key, version=version, jobs=jobs, progress=bar)
    for protection in found:
        lines = (
            [json.dumps(protection.fields())] if as_json else map(printable, protection.describe())
        )
        print_line("\n".join(lines))


@cloup.command(epilog=_WHY_EXAMPLE)
@click.argument("file")
@click.argument("column", required=False)
@lake_options
@lines_option
def why(*, file: str, column: str | None, as_json: bool, **options: Any) -> int:
    """Explain why a file or column of a lake opens or not.

    The steps lead from the file over its data key, KEK and master key to the key service. The step
    that refuses is named, and what would help.
    """
    lake = open_lake(options)
    steps = lake.why(file, column)
    for step in steps:
        if as_json:
            print_line(json.dumps(step.fields()))
            continue
        print_line(printable(f"{'ok' if step.ok else 'REFUSED':8}{step.step}: {step.text}"))
        if step.advice:
            print_line(printable(f"{'':8}{step.advice}"))
    return 0 if all(step.ok for step in steps) else 3
