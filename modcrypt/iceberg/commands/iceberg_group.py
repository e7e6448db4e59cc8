"""`modcrypt iceberg`: the commands for encrypted Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import click
import cloup

from modcrypt.cli.output.json_output import dump_line
from modcrypt.cli.rows.row_output import (
    check_output,
    count_option,
    format_option,
    note_cells,
    output_option,
    print_row_count,
    print_rows,
    row_options,
    safe_option,
    selected_columns,
    write_rows,
)
from modcrypt.cli.shared import format_table, print_json, print_line, read_json, restrictions_option
from modcrypt.cli.shared_options import VerbGroup, rare_option
from modcrypt.iceberg.commands.iceberg_examine import tree, verify
from modcrypt.iceberg.commands.iceberg_options import (
    as_of_option,
    leave_out_declared,
    listing_options,
    open_selected_table,
    parse_snapshot,
    snapshot_option,
    table_argument,
    table_options,
)
from modcrypt.iceberg.commands.iceberg_policy import policy
from modcrypt.iceberg.commands.iceberg_repair import purge, remove_orphans, repair
from modcrypt.iceberg.commands.iceberg_rotation import expire, prune, rotate
from modcrypt.iceberg.commands.iceberg_sealing import seal
from modcrypt.iceberg.commands.iceberg_shredding import shred
from modcrypt.iceberg.commands.iceberg_writing import append, create, encrypt

if TYPE_CHECKING:  # not to be loaded for the help
    import datetime

    import pyarrow as pa

_GROUP_EXAMPLE = """\b
Examples: snapshots of a table; its rows; its KEKs under the newest master key
  modcrypt iceberg snapshots lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --where "id > 5" lake/orders
  modcrypt iceberg rotate mek --kms file:lake.keyring lake/orders"""

_KEYS_EXAMPLE = """\b
Example:
  modcrypt iceberg keys lake/orders"""

_SNAPSHOTS_EXAMPLE = """\b
Examples: a table in a folder; a table in a catalog
  modcrypt iceberg snapshots lake/orders
  modcrypt iceberg snapshots --catalog sqlite:///lake/catalog.db shop.sales"""

_FILES_EXAMPLE = """\b
Example:
  modcrypt iceberg files --kms file:lake.keyring --snapshot main lake/orders"""

_SCAN_EXAMPLE = """\b
Examples: the first rows, with values under keys of subjects; some for a spreadsheet; all rows
  modcrypt iceberg scan --policy people.toml lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --columns id,price \\
      --where "id >= 2 and price is not null" --format csv -o orders.csv lake/orders
  modcrypt iceberg scan --kms file:lake.keyring --format arrow -o orders.arrows lake/orders"""


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def iceberg() -> None:
    """Read, write, verify and rotate encrypted Iceberg tables.

    TABLE is a metadata.json, or the folder of a table, whose newest metadata.json is used; or,
    with --catalog, an identifier in that catalog. A metadata.json is not authenticated: pass what
    you know about the table by --table-uuid, --at-least and --master-key.
    """


@iceberg.command(epilog=_KEYS_EXAMPLE)
@table_argument
@listing_options
def keys(*, where: str, as_json: bool, **options: Any) -> None:
    """List the table's keys: KEKs and the keys of manifest lists.

    Key values are not shown, and no key is needed.
    """
    _print_listing(open_selected_table(where, options).keys(), as_json)


@iceberg.command(epilog=_SNAPSHOTS_EXAMPLE)
@table_argument
@listing_options
def snapshots(*, where: str, as_json: bool, **options: Any) -> None:
    """List the table's snapshots, with the KEK of each.

    The oldest snapshot comes first. No key is needed.
    """
    _print_listing(open_selected_table(where, options).snapshots(), as_json)


@iceberg.command(epilog=_FILES_EXAMPLE)
@table_argument
@snapshot_option
@table_options
def files(*, where: str, snapshot: str | None, as_json: bool, **options: Any) -> None:
    """List manifests, data and delete files of a snapshot."""
    _print_listing(open_selected_table(where, options).files(parse_snapshot(snapshot)), as_json)


def _print_listing(listing: pa.Table, as_json: bool) -> None:
    """Print all rows, without columns that have no value; identifiers are not cut."""
    from modcrypt.cli.output.rows import is_number, rows_of

    rows = [row for batch in listing.to_batches() for row in rows_of(batch)]
    if as_json:
        for row in rows:
            print_line(dump_line(row))
        return
    count = listing.num_rows  # without rows show all columns
    fields = [
        field for field in listing.schema if not count or listing[field.name].null_count < count
    ]
    left = [number for number, field in enumerate(fields) if not is_number(field.type)]
    titles = [field.name.replace("_", " ") for field in fields]
    values = [[_format_value(row[field.name]) for field in fields] for row in rows]
    print_line(format_table(titles, values, left=left))


def _format_value(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


_TABLE_ROWS = 10  # default number of rows in the format table


@iceberg.command(epilog=_SCAN_EXAMPLE)
@table_argument
@snapshot_option
@as_of_option
@row_options(
    "the table's",
    "a pyiceberg filter, such as \"id > 5 and name = 'x'\"; files and pages without a match are "
    "not opened",
)
@count_option(f"Read at most N rows. Default: {_TABLE_ROWS} for the format table, else all.")
@format_option(
    "table", text="table (long values are cut; the default without -o and --json), "
)  # fmt: skip
@output_option
@safe_option
@restrictions_option
@rare_option(
    "--on-erased",
    type=click.Choice(["skip", "raise"]),
    default="skip",
    help="Files that modcrypt.toml declares as erased: skip leaves them out, raise fails.",
)
@table_options
def scan(
    *, where: str, snapshot: str | None, as_of: datetime.datetime | None, columns: tuple[str, ...],
    listed: str | None, conditions: tuple[str, ...], count: int | None, form: str | None,
    output: str | None, safe: bool, force: bool, restrictions: str | None,
    on_erased: Literal["skip", "raise"], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Print rows of the table.

    Deleted rows are left out, and every page is authenticated. Rows may already be on stdout when
    modcrypt finds a page that is not authentic: the rows are complete only if the exit code is 0.
    """
    from modcrypt.cli.output.rows import format_rows, validate_batches
    from modcrypt.iceberg.read.cell_notes import set_notes
    from modcrypt.iceberg.write.cell_columns import declared_names
    from modcrypt.parquet.arrow.parquet_file import limit_rows

    output = None if output == "-" else output
    form = form or ("jsonl" if as_json or output is not None else "table")
    if output is not None and form == "table":
        raise click.UsageError(
            "--format table cannot be written to a file; use --format jsonl, csv or arrow with -o"
        )
    if output is None and as_json and form != "jsonl":
        raise click.UsageError("without -o, --json prints rows and needs --format jsonl")
    check_output(form, output, safe=safe, force=force)
    arguments: dict[str, Any] = {
        "snapshot": parse_snapshot(snapshot),
        "as_of": as_of,
        "columns": selected_columns(columns, listed),
        "filters": " and ".join(f"({condition})" for condition in conditions) or None,
    }
    target = open_selected_table(where, options, read_restrictions=read_json(restrictions))
    left_out = leave_out_declared(target, on_erased)
    rows = left_out.table.scan(**arguments)
    kinds, found = rows.schema, iter(rows.to_arrow_batch_reader())
    if left_out.table.resolver.subjects is None:
        cells = dict.fromkeys(declared_names(left_out.table.metadata), b"")
        note_cells(set_notes(kinds, cells))
    batches = validate_batches(left_out.warn_after(found))
    if form == "table":
        _print_table(kinds, batches, _TABLE_ROWS if count is None else count)
        return
    pieces = format_rows(form, kinds, limit_rows(batches, count), safe=safe)
    rows_written = write_rows(pieces, output, force=force)
    if as_json and output is not None:
        fields = {"table": where, "destination": output, "format": form, "rows": rows_written}
        print_json("iceberg.rows", fields)
    elif not as_json:
        print_row_count(rows_written, output)


def _print_table(kinds: pa.Schema, batches: Iterator[pa.RecordBatch], count: int) -> None:
    from modcrypt.cli.output.rows import rows_of
    from modcrypt.parquet.arrow.parquet_file import limit_rows

    rows = [row for batch in limit_rows(batches, count + 1) for row in rows_of(batch)]
    print_rows(kinds, rows[:count])
    if len(rows) > count:
        click.echo(
            f"modcrypt: the table has more than these {count} rows; use -n N to show more", err=True
        )


_ADMIN_EXAMPLE = """\b
Example: what could be restored, after Spark has lost keys of a table
  modcrypt iceberg admin repair --kms file:lake.keyring --dry-run lake/orders"""


@iceberg.group(epilog=_ADMIN_EXAMPLE)
def admin() -> None:
    """Maintain a table: its key policy, lost keys, and files and keys that nothing needs.

    TABLE is named as for the other commands of `modcrypt iceberg`.
    """


for _command in (policy, prune, remove_orphans, repair):
    admin.add_command(_command)
for _command in (create, append, encrypt, rotate, expire, verify, tree, seal, purge, shred):
    iceberg.add_command(_command)
