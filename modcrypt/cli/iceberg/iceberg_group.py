"""`modcrypt iceberg`: encrypted Iceberg tables, and what there is to be seen in them."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.iceberg.iceberg_examine import tree, verify
from modcrypt.cli.iceberg.iceberg_policy import policy
from modcrypt.cli.iceberg.iceberg_rotation import expire, prune, rotate
from modcrypt.cli.iceberg.iceberg_writing import append, create, encrypt
from modcrypt.cli.options.iceberg_options import (
    lines_option,
    listing_options,
    snapshot_of,
    snapshot_option,
    table_argument,
    table_of,
    table_options,
)
from modcrypt.cli.row_output import check_safe, print_pieces, print_rows, safe_option, written
from modcrypt.cli.shared import force_option, print_line, table

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

__all__ = ["iceberg"]

# click keeps the lines of a paragraph after \b as they are.
_GROUP_EXAMPLE = """\b
Examples: what is in a table; its rows; its KEKs under the newest master key
  modcrypt iceberg snapshots lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --where "id > 5" lake/orders
  modcrypt iceberg rotate mek --kms file:lake.keyring lake/orders"""

_KEYS_EXAMPLE = """\b
Example:
  modcrypt iceberg keys lake/orders"""

_SNAPSHOTS_EXAMPLE = """\b
Examples: of a folder; of a table in a catalog
  modcrypt iceberg snapshots lake/orders
  modcrypt iceberg snapshots --catalog sqlite:///lake/catalog.db shop.sales"""

_FILES_EXAMPLE = """\b
Example:
  modcrypt iceberg files --kms file:lake.keyring --snapshot main lake/orders"""

_SCAN_EXAMPLE = """\b
Examples: a first look; some rows for a spreadsheet; for another program
  modcrypt iceberg scan --kms file:lake.keyring lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --columns id,price \\
      --where "id >= 2 and price is not null" --format csv -o orders.csv lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --format arrow -o orders.arrows lake/orders"""


@click.group(epilog=_GROUP_EXAMPLE, invoke_without_command=True)
@click.pass_context
def iceberg(context: click.Context) -> None:
    """Read and write encrypted Iceberg tables, verify them, and give them other keys.

    TABLE is a metadata.json, or the folder of a table, then its newest one; or an identifier in
    the catalog that --catalog names. Nothing vouches for a metadata.json: --table-uuid, --at-least
    and --master-key say what is known of the table from elsewhere.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


# --- listings ------------------------------------------------------------------------------------


@iceberg.command(epilog=_KEYS_EXAMPLE)
@table_argument
@listing_options
@lines_option
def keys(*, where: str, as_json: bool, **options: Any) -> None:
    """List the table's keys: KEKs, and those of manifest lists.

    No key itself is shown, and none is needed.
    """
    _print_listing(table_of(where, options).keys(), as_json)


@iceberg.command(epilog=_SNAPSHOTS_EXAMPLE)
@table_argument
@listing_options
@lines_option
def snapshots(*, where: str, as_json: bool, **options: Any) -> None:
    """List the table's snapshots, the oldest first, and which KEK each is under.

    No key is needed.
    """
    _print_listing(table_of(where, options).snapshots(), as_json)


@iceberg.command(epilog=_FILES_EXAMPLE)
@table_argument
@snapshot_option
@table_options
@lines_option
def files(*, where: str, snapshot: str | None, as_json: bool, **options: Any) -> None:
    """List the files of a snapshot: its manifests, data and delete files."""
    _print_listing(table_of(where, options).files(snapshot_of(snapshot)), as_json)


def _print_listing(listing: pa.Table, as_json: bool) -> None:
    """Print all rows, and of columns those that have a value: identifiers are not cut."""
    from modcrypt.cli.output.rows import is_number, json_line, rows_of

    rows = [row for batch in listing.to_batches() for row in rows_of(batch)]
    if as_json:
        for row in rows:
            print_line(json_line(row))
        return
    count = listing.num_rows  # of no rows all columns are shown, else those with a value
    shown = [one for one in listing.schema if not count or listing[one.name].null_count < count]
    left = [number for number, one in enumerate(shown) if not is_number(one.type)]
    titles = [one.name.replace("_", " ") for one in shown]
    print_line(table(titles, [[_shown(row[one.name]) for one in shown] for row in rows], left=left))


def _shown(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


# --- rows ----------------------------------------------------------------------------------------

_TABLE_ROWS = 10
"""Rows that a table for people has, if it isn't said."""


@iceberg.command(epilog=_SCAN_EXAMPLE)
@table_argument
@snapshot_option
@click.option(
    "--column", "columns", metavar="NAME", multiple=True, help="Only this column. Repeatable."
)
@click.option(
    "--columns", "listed", metavar="NAME,NAME", help="The same for several, in the table's order."
)
@click.option(
    "--where",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="Only rows for which this is true, as pyiceberg spells it: \"id > 5 and name = 'x'\". "
    "Files and pages without any are not opened. Of several all must be true. Repeatable.",
)
@click.option(
    "-n",
    "--rows",
    "count",
    metavar="N",
    type=click.IntRange(min=0),
    help=f"At most N rows. Default: {_TABLE_ROWS} of a table, else all.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl", "csv", "arrow"]),
    help="A table, in which long values are cut; a JSON object a line; CSV, in which nested values "
    "are JSON; or a stream of Arrow IPC. Default: table; jsonl with -o or --json.",
)
@click.option(
    "-o",
    "--output",
    metavar="DESTINATION",
    help="A path or URL, which appears when it is complete, or not at all. Default: stdout.",
)
@safe_option
@table_options
@force_option
@lines_option
def scan(
    *,
    where: str,
    snapshot: str | None,
    columns: tuple[str, ...],
    listed: str | None,
    conditions: tuple[str, ...],
    count: int | None,
    form: str | None,
    output: str | None,
    safe: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Read rows of the table: deleted rows are left out, and every page is authenticated.

    On stdout rows may be out already when something is met that does not authenticate: only exit
    code 0 says that they are all.
    """
    from modcrypt.cli.output.rows import checked, spelt
    from modcrypt.io.storage import open_sink

    output = None if output == "-" else output
    form = form or ("jsonl" if as_json or output is not None else "table")
    check_safe(safe, form)
    _check_output(form, output, force, as_json)
    asked: dict[str, Any] = {
        "snapshot": snapshot_of(snapshot),
        "columns": [*columns, *(listed.split(",") if listed is not None else ())] or None,
        "filters": " and ".join(f"({one})" for one in conditions) or None,
    }
    found = table_of(where, options)
    batches = found.scan_batches(**asked)
    first = next(batches, None)
    # Of no rows the columns are to be known, too; no data file is opened for that.
    kinds = found.scan(**{**asked, "filters": "false"}).schema if first is None else first.schema
    batches = checked(itertools.chain([] if first is None else [first], batches))
    if form == "table":
        _print_table(kinds, batches, _TABLE_ROWS if count is None else count)
        return
    pieces = spelt(form, kinds, _first(batches, count), safe=safe)
    if output is None:
        print_pieces(pieces)
        return
    with open_sink(output, overwrite=force) as sink:
        rows = written(pieces, sink)
    if as_json:
        told = {"table": where, "destination": output, "format": form, "rows": rows}
        print_line(json.dumps(told))


def _check_output(form: str, output: str | None, force: bool, as_json: bool) -> None:
    if output is not None and form == "table":
        raise click.UsageError("a table is for people: --format jsonl, csv or arrow with -o")
    if output is not None:
        return
    if sys.stdout is None:
        raise click.UsageError("stdout is closed: -o FILE")
    if as_json and form != "jsonl":
        raise click.UsageError("--json is a line of JSON for each row; with -o, how it went")
    if force:
        raise click.UsageError("--force is for -o")
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is nothing for a terminal: -o FILE, or a pipe")


def _first(batches: Iterator[pa.RecordBatch], count: int | None) -> Iterator[pa.RecordBatch]:
    """Pass rows on, up to a number of them."""
    left = count
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        left = None if left is None else left - batch.num_rows
        if left is not None and left <= 0:
            return


def _print_table(kinds: pa.Schema, batches: Iterator[pa.RecordBatch], count: int) -> None:
    from modcrypt.cli.output.rows import rows_of

    rows = [row for batch in _first(batches, count + 1) for row in rows_of(batch)]
    print_rows(kinds, rows[:count])
    if len(rows) > count:
        click.echo(f"modcrypt: there are more than these {count} rows: -n N shows more", err=True)


for _command in (create, append, encrypt, policy, rotate, prune, expire, verify, tree):
    iceberg.add_command(_command)
