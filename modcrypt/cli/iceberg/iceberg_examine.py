"""`modcrypt iceberg verify` and `tree`: whether a table is what was written, and what opens it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.iceberg_options import (
    counted,
    lines_option,
    snapshot_of,
    table_argument,
    table_of,
    table_options,
)
from modcrypt.cli.output.failures import in_options, printable
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.shared import print_facts, print_line, table, together
from modcrypt.errors import KmsUnavailableError

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.verify.key_trees import ProtectedFile
    from modcrypt.iceberg.verify.table_findings import TableVerification

__all__ = ["tree", "verify"]

# click keeps the lines of a paragraph after \b as they are.
_VERIFY_EXAMPLE = """\b
Examples: every file of every snapshot; the current one alone; a page for an auditor
  modcrypt iceberg verify --kms file:lake.keyring lake/orders
  modcrypt iceberg verify --kms file:lake.keyring --snapshot main lake/orders
  modcrypt iceberg verify --kms file:lake.keyring --strict --html orders.html lake/orders

\b
Exit codes: 0 nothing is wrong; 1 something is, or with --strict something was not
authenticated; 3 nothing could be checked for want of a key"""

_TREE_EXAMPLE = """\b
Examples: all keys, and what they open; what is under one of them
  modcrypt iceberg tree --kms file:lake.keyring lake/orders
  modcrypt iceberg tree --kms file:lake.keyring --protected-by lake lake/orders"""

_jobs_option = click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many files at once. Default: by processors.",
)
_html_options = together(
    click.option("--html", metavar="OUT", help="Write a page that needs nothing else, to OUT."),
    click.option("--force", is_flag=True, help="Replace OUT if it exists."),
)


def _check_page(out: str | None, force: bool) -> None:
    """Refuse a page that is there, before the work that it is to show."""
    from modcrypt.io.storage import place_of

    if out is None and force:
        raise click.UsageError("--force is for --html")
    place = None if out is None else place_of(out)
    if place is not None and not force:
        place.check_absent()


def _write_page(out: str | None, force: bool, html: Callable[[], str]) -> None:
    from modcrypt.io.storage import open_sink

    if out is not None:
        with open_sink(out, overwrite=force) as sink:
            sink.append(html().encode("utf-8", "replace"))


# --- verify --------------------------------------------------------------------------------------


@click.command(epilog=_VERIFY_EXAMPLE)
@table_argument
@click.option(
    "--snapshot",
    "snapshots",
    metavar="ID|NAME",
    multiple=True,
    help="Only this snapshot, or that of a branch or tag. Repeatable. Then orphans aren't told.",
)
@click.option(
    "--strict", is_flag=True, help="What is not authenticated is as bad as what is wrong."
)
@_jobs_option
@_html_options
@table_options
@lines_option
def verify(
    *,
    where: str,
    snapshots: tuple[str, ...],
    strict: bool,
    jobs: int | None,
    html: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Check every tag of every file that the table's snapshots reach, and that all fits together.

    Nothing is decoded, and a fault ends nothing: all are told. So are files in the table's folder
    that nothing reaches, keys that nothing uses, and KEKs that are past their time. What the key
    service refuses says nothing of the table: it is a warning.
    """
    from modcrypt.iceberg import verify_table

    _check_page(html, force)
    wanted = [one for one in map(snapshot_of, snapshots) if one is not None]
    opened = table_of(where, options)
    started = time.perf_counter()
    with progress_bar("Verifying", None) as progress:
        found = verify_table(opened, snapshots=wanted or None, jobs=jobs, progress=progress)
    _write_page(html, force, found.to_html)
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_line(json.dumps({**found.fields(), "seconds": seconds}))
    else:
        _print_verification(found)
    if found.ok and any(one.word == KmsUnavailableError.word for one in found.findings):
        return 4
    if found.ok and found.snapshots and found.master_key_id and not found.tags:
        return 3
    return int(not found.ok or (strict and not found.complete))


def _print_verification(found: TableVerification) -> None:
    print_line(printable(found.name))
    print_facts(found.facts())
    if found.findings:
        rows = [
            (one.severity, one.word, one.location, in_options(one.message))
            for one in found.findings
        ]
        titles = ("severity", "word", "file", "message")
        print_line(f"\n{table(titles, rows, left=range(4))}")
    for heading, notes in (
        ("Not authenticated:", found.gaps), ("Limits of the format:", found.limits)
    ):  # fmt: skip
        told = (f"{one.what} {one.path or ''}".rstrip() + f": {one.why}" for one in notes)
        _print_list(heading, list(told))
    _print_list("Keys that nothing uses:", list(found.unused_keys))
    _print_list("Files that nothing reaches:", [one.path for one in found.orphans or ()])


def _print_list(heading: str, lines: list[str]) -> None:
    if lines:
        print_line(f"\n{heading}")
        print_line("\n".join(f"  {printable(in_options(one))}" for one in lines))


# --- tree ----------------------------------------------------------------------------------------


@click.command(epilog=_TREE_EXAMPLE)
@table_argument
@click.option(
    "--protected-by",
    metavar="KEY",
    help="List the files that this KEK or master key still protects, instead of the tree.",
)
@click.option(
    "--version",
    metavar="N",
    help="Of the master key in --protected-by: what is under this version of it.",
)
@_jobs_option
@_html_options
@table_options
@lines_option
def tree(
    *,
    where: str,
    protected_by: str | None,
    version: str | None,
    jobs: int | None,
    html: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Draw the table's keys, from the master key down to the files that they open.

    Data files are not opened. The exit code is 1 where a manifest could not be read: then there may
    be more beneath it. It is 4 where the key service is unavailable.
    """
    from modcrypt.iceberg import key_tree

    if version is not None and protected_by is None:
        raise click.UsageError("--version is of the master key in --protected-by")
    if html is not None and protected_by is not None:
        raise click.UsageError("--html draws the tree, --protected-by lists files")
    _check_page(html, force)
    opened = table_of(where, options)
    with progress_bar("Reading manifests", None) as progress:
        found = key_tree(opened, jobs=jobs, progress=progress)
    _write_page(html, force, found.to_html)
    if protected_by is not None:
        _print_protected(found.protected_by(protected_by, version), as_json)
    elif as_json:
        print_line(json.dumps(found.fields()))
    else:
        print_line("\n".join(map(printable, found.to_text().split("\n"))))
    return 4 if found.kms_unavailable else int(not found.whole)


def _print_protected(files: Sequence[ProtectedFile], as_json: bool) -> None:
    if as_json:
        for one in files:
            print_line(json.dumps(one.fields()))
        return
    rows = [
        (
            one.kind,
            one.location,
            one.size,
            "yes" if one.only else "no",
            "yes" if one.certain else "perhaps",
        )
        for one in files
    ]
    if rows:
        titles = ("kind", "location", "bytes", "lost without it", "under it")
        print_line(table(titles, rows, left=(0, 1, 3, 4)))
    print_line(f"{counted(len(files), 'file')} under this key")
