"""`modcrypt schema`, `head` and `cat`: the schema and rows of Parquet files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.options.parquet_options import (
    decryption_options,
    decryption_settings,
    reading_options,
    template_options,
)
from modcrypt.cli.output.json_output import dump_line
from modcrypt.cli.rows.conditions import parse_conditions
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
from modcrypt.cli.shared import (
    allow_plaintext_option,
    combine_options,
    exclude_each_other,
    format_table,
    path_argument,
    print_json,
    print_line,
)
from modcrypt.cli.shared_options import option, verb

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

    from modcrypt.parquet.arrow.parquet_file import ParquetFile


_file_options = combine_options(
    decryption_options,
    template_options,
    reading_options,
    allow_plaintext_option,
    exclude_each_other("aad_prefix_template", "no_check_footer"),  # footers must be verified
)
_row_options = row_options(
    "this",
    "a condition: a column, one of = != < <= > >= and a value, or a column and 'is null' or "
    "'is not null'. 'and' and 'or' combine them; quote values that contain these words",
)


class _Reading:
    """The source and properties of a command that reads files."""

    def __init__(
        self, where: str, *, aad_prefix_template: str | None, expected_parts: int | None,
        allow_plaintext: bool, **reading: Any,
    ) -> None:  # fmt: skip
        settings = decryption_settings(reading)
        if allow_plaintext:
            settings = settings.evolve(require_encrypted=False)
        properties = settings.decryption()
        self.where, self.properties = where, properties
        self.parts: dict[str, Any] = {
            "aad_prefix_template": aad_prefix_template,
            "expected_parts": expected_parts,
        }

    def open_first(self) -> AbstractContextManager[tuple[ParquetFile, pa.Schema, int]]:
        """Open the first file; return it, the fields in folder names and the number of files."""
        from modcrypt.parquet.datasets.dataset_reader import open_first

        return open_first(self.where, self.properties, **self.parts)

    def batches(self, arguments: dict[str, Any], **more: Any) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows, batch by batch."""
        from modcrypt.cli.output.rows import validate_batches

        record_batches = modcrypt.iter_batches(
            self.where, self.properties, **arguments, **self.parts, **more
        )
        return validate_batches(record_batches)

    def row_arguments(
        self, columns: tuple[str, ...], listed: str | None, conditions: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return columns and filter as arguments of `iter_batches`."""
        arguments: dict[str, Any] = {"columns": selected_columns(columns, listed)}
        if conditions:
            with self.open_first() as (file, partitions, _):
                types = [*file.schema_arrow, *partitions]
            arguments["filters"] = parse_conditions(conditions, types)
        return arguments


_SCHEMA_EXAMPLE = """\b
Examples: with only the footer key; with a keyring, in Parquet's form
  modcrypt schema --key file:footer.key orders.enc.parquet
  modcrypt schema --kms file:lake.keyring --parquet orders.kms.parquet"""


@verb(epilog=_SCHEMA_EXAMPLE)
@path_argument
@option("--parquet", "as_parquet", help="Show the Parquet schema instead of the Arrow schema.")
@_file_options
def schema(*, path: str, as_parquet: bool, as_json: bool, **reading: Any) -> None:
    """Show the columns of FILE, their types, and the key of each.

    For DIR, schema shows the first file and the columns from folder names. The footer key suffices;
    with --no-check-footer, schema reads a plaintext footer without a key, and does not verify it.
    """
    from modcrypt.cli.output.schema_output import arrow_rows, columns_of, fields_of, parquet_text

    read = _Reading(path, **reading)
    with read.open_first() as (file, partitions, files):
        opened = file.open_file
        columns = columns_of(opened)
        fields = fields_of(note_cells(file.schema_arrow), partitions)
    footer, elements = opened.footer, opened.metadata.schema
    checked = read.properties.check_footer_integrity or not footer.plaintext_footer
    authenticated = footer.encrypted and checked
    if not authenticated:
        why = (
            "the footer's signature is not verified"
            if footer.encrypted
            else "the file is not encrypted"
        )
        click.echo(
            f"modcrypt: warning: {why}: anyone who can change the file can change this output",
            err=True,
        )
    if as_json:
        fields_of_file = {
            "path": path,
            "files": files,
            "encrypted": footer.encrypted,
            "footer": "plaintext" if footer.plaintext_footer else "encrypted",
            "authenticated": authenticated,
            "fields": fields,
            "columns": [column.fields() for column in columns],
        }
        print_json("schema", fields_of_file)
    elif as_parquet:
        print_line(parquet_text(elements, columns))
    else:
        titles = ("column", "type", "nullable", "key")
        print_line(format_table(titles, arrow_rows(fields, columns), left=(0, 1, 2, 3)))


_HEAD_EXAMPLE = """\b
Examples: the first five rows of two columns; rows of one day
  modcrypt head -n 5 --columns id,price --key file:footer.key \\
      --column-key price=file:price.key orders.enc.parquet
  modcrypt head --kms file:lake.keyring --where "id >= 2 and price < 10 or id = 7" \\
      orders.kms.parquet"""


_HEAD_ROWS = 65536  # rows per batch


@verb(epilog=_HEAD_EXAMPLE)
@path_argument
@count_option("Number of rows.", default=10, show_default=True)
@_row_options
@_file_options
def head(
    *, path: str, count: int, columns: tuple[str, ...], listed: str | None,
    conditions: tuple[str, ...], as_json: bool, **reading: Any,
) -> None:  # fmt: skip
    """Show the first rows of FILE, or of the files in DIR.

    head cuts long values and drops columns that do not fit the terminal; --json prints everything.
    """
    from modcrypt.cli.output.rows import rows_of

    read = _Reading(path, **reading)
    arguments = read.row_arguments(columns, listed, conditions)
    size = max(min(count, _HEAD_ROWS), 1)
    batches = list(read.batches(arguments, limit=count, batch_size=size))
    rows = [row for batch in batches for row in rows_of(batch)]
    kinds = note_cells(batches[0].schema if batches else _read_schema(read, arguments))
    if as_json:
        for row in rows:
            print_line(dump_line(row))
        return
    print_rows(kinds, rows)


def _read_schema(read: _Reading, arguments: dict[str, Any]) -> pa.Schema:
    """Return the schema of a result without rows; no page is read."""
    import pyarrow.compute as pc

    nothing = {**arguments, "filters": pc.scalar(False)}
    return modcrypt.read_table(read.where, read.properties, **nothing, **read.parts).schema


_CAT_EXAMPLE = """\b
Examples: all rows as lines of JSON; two columns for a spreadsheet; an Arrow stream
  modcrypt cat --kms file:lake.keyring orders.kms.parquet
  modcrypt cat --format csv --safe --columns id,price -o orders.csv \\
      --kms file:lake.keyring orders.kms.parquet
  modcrypt cat --format arrow -o orders.arrows --kms file:lake.keyring orders.kms.parquet"""


@verb(epilog=_CAT_EXAMPLE)
@path_argument
@format_option(default="jsonl", show_default=True)
@output_option
@safe_option
@_row_options
@_file_options
def cat(
    *, path: str, form: str, output: str | None, columns: tuple[str, ...], listed: str | None,
    conditions: tuple[str, ...], safe: bool, force: bool, as_json: bool, **reading: Any,
) -> None:  # fmt: skip
    """Write the rows of FILE or DIR as JSON lines, CSV or Arrow.

    Dates and times are ISO 8601, decimals text, bytes base64. Data encrypted with AES_GCM_V1 is
    authenticated before it is written; plaintext columns never. Rows on stdout are complete, and
    all pages authentic, only if the exit code is 0.
    """
    from modcrypt.cli.output.rows import format_rows

    output = None if output == "-" else output
    if output is None and as_json:
        raise click.UsageError("--json needs -o FILE, because the rows are on stdout")
    check_output(form, output, safe=safe, force=force)
    if output is not None and _lies_in(output, path):
        raise click.UsageError(f"{output} would replace the source; pass another path to -o")
    read = _Reading(path, **reading)
    arguments = read.row_arguments(columns, listed, conditions)
    batches = read.batches(arguments)
    first = next(batches, None)
    kinds = note_cells(_read_schema(read, arguments) if first is None else first.schema)
    rows_left = itertools.chain([first] if first is not None else [], batches)
    rows = write_rows(format_rows(form, kinds, rows_left, safe=safe), output, force=force)
    if as_json:
        fields = {"path": path, "destination": output, "format": form, "rows": rows}
        print_json("rows", fields)
    else:
        print_row_count(rows, output)


def _lies_in(output: str, path: str) -> bool:
    """Return whether a destination is the source file, or lies in the source folder."""
    from modcrypt.io.addresses import local_path

    if (to := local_path(output)) is None or (where := local_path(path)) is None:
        return False
    target, source = os.path.realpath(to), os.path.realpath(where)
    return target == source or target.startswith(f"{source}{os.sep}")
