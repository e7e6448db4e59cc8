"""Output of rows: a table on the terminal, or text or an Arrow stream to stdout or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.output.signals import Stopped
from modcrypt.cli.output.terminal import BOLD, paint, width_of
from modcrypt.cli.shared import combine_options, end_if_unread, print_line
from modcrypt.cli.shared_options import F, option, rare_option, shared_option
from modcrypt.errors import list_names, printable
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

safe_option = shared_option(
    "--safe",
    rare=True,
    help="With --format csv: put an apostrophe before text that a spreadsheet would run as a "
    "formula (such as =, +, - or @ at its beginning); numbers stay unchanged.",
)


def row_options(order: str, condition: str) -> Callable[[F], F]:
    """Return the options that select rows and columns; the arguments are parts of help texts."""
    return combine_options(
        option("--column NAME...", "columns", help="Read only this column or group. Repeatable."),
        rare_option(
            "--columns NAME,NAME", "listed", help=f"Read only these columns, in {order} order."
        ),
        option(
            "--where CONDITION...",
            "conditions",
            help=f"Read only rows that match {condition}. Repeatable.",
        ),
    )


def count_option(text: str, **default: Any) -> Callable[[F], F]:
    """Return the option for a number of rows, with its help text."""
    return option("-n", "--rows N", "count", type=click.IntRange(min=0), help=text, **default)


def format_option(*more: str, text: str = "", **default: Any) -> Callable[[F], F]:
    """Return the option for the output format, which may have `more` formats."""
    return option(
        "--format",
        "form",
        type=click.Choice([*more, "jsonl", "csv", "arrow"]),
        help=f"Output format: {text}jsonl (one JSON object per line), csv (nested values as JSON) "
        "or arrow (an IPC stream).",
        **default,
    )


def selected_columns(columns: Sequence[str], listed: str | None) -> list[str] | None:
    """Return the columns that `row_options` select; None for all."""
    return [*columns, *([] if listed is None else listed.split(","))] or None


output_option = shared_option(
    "-o",
    "--output DESTINATION",
    help="Path or URL, which appears only when it is complete. Default: stdout.",
)


def check_output(form: str, output: str | None, *, safe: bool, force: bool) -> None:
    """Raise a usage error if options of the output contradict each other, or stdout won't do."""
    if safe and form != "csv":
        raise click.UsageError("--safe needs --format csv")
    if output is not None:
        return
    if force:
        raise click.UsageError("--force needs -o")
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError(
            "an Arrow stream cannot be shown on a terminal; use -o FILE or a pipe"
        )


def note_cells(kinds: pa.Schema) -> pa.Schema:
    """Say on stderr which columns show cells instead of values; return the schema."""
    from modcrypt.parquet.crypto.properties import CELLS

    if names := [field.name for field in kinds if CELLS in (field.metadata or {})]:
        click.echo(
            f"modcrypt: note: cells, in base64, in column {list_names(names)}: values encrypted "
            "under the keys of subjects; to read them, pass --policy with their vault as subjects",
            err=True,
        )
    return kinds


def print_rows(kinds: pa.Schema, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of `rows_of` as a table that fits the width of the terminal."""
    from modcrypt.cli.output.rows import is_number
    from modcrypt.cli.output.text_table import align_cells, format_cell

    cells = [[format_cell(value) for value in row.values()] for row in rows]
    right = [number for number, field in enumerate(kinds) if is_number(field.type)]
    text, hidden = align_cells(
        [*map(format_cell, kinds.names)], cells, right=right, width=width_of(sys.stdout)
    )
    head, line, body = text.partition("\n")
    print_line(f"{paint(head, BOLD, sys.stdout)}{line}{body}")
    if hidden:
        click.echo(
            f"modcrypt: {hidden} more columns do not fit; select columns by --column NAME", err=True
        )


def write_rows(pieces: Iterator[tuple[bytes, int]], output: str | None, *, force: bool) -> int:
    """Write the output of `format_rows` to a file or stdout; return the number of rows."""
    from modcrypt.io.destinations import open_sink

    if output is None:
        return _print_pieces(pieces)
    total = 0
    with open_sink(output, overwrite=force) as sink:
        for data, rows in pieces:
            sink.append(data)
            total += rows
    return total


def print_row_count(rows: int, output: str | None) -> None:
    """Print the number of rows that `write_rows` wrote to a file."""
    if output is not None:
        print_line(printable(f"wrote {format_count(rows, 'row')} to {output}"))


def _print_pieces(pieces: Iterator[tuple[bytes, int]]) -> int:
    """Write to stdout; end quietly if the reader has closed it, and report incomplete output."""
    # All other output must go to stderr from then on.
    out = sys.stdout.buffer
    escape = _escape_for_terminal if sys.stdout.isatty() else bytes
    total = 0
    try:
        for data, rows in pieces:
            out.write(escape(data))
            out.flush()
            total += rows
    except (Exception, Stopped) as error:
        if isinstance(error, BrokenPipeError):
            end_if_unread(out)
        click.echo(f"modcrypt: the output is incomplete: it ends after {total} rows", err=True)
        raise
    return total


def _escape_for_terminal(data: bytes) -> bytes:
    """Escape control characters that a terminal would interpret, except line feeds."""
    return "\n".join(map(printable, data.decode().split("\n"))).encode()
