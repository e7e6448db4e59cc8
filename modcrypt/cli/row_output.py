"""Where rows go: to the terminal as a table, to stdout or a file as text or an Arrow stream."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.output.failures import printable
from modcrypt.cli.output.signals import Stopped
from modcrypt.cli.shared import SIGPIPE_EXIT, print_line

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

    from modcrypt.io.storage import Sink

__all__ = ["check_safe", "print_pieces", "print_rows", "safe_option", "written"]

safe_option = click.option(
    "--safe",
    is_flag=True,
    help="With --format csv: put an apostrophe before text that a spreadsheet would run as a "
    "formula, such as =, +, - or @ at its beginning. Numbers stay as they are.",
)


def check_safe(safe: bool, form: str) -> None:
    """Raise a usage error if `--safe` is given for another form than CSV."""
    if safe and form != "csv":
        raise click.UsageError("--safe is for --format csv")


def print_rows(kinds: pa.Schema, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows, as `rows_of` gives them, as a table that the terminal has room for."""
    from modcrypt.cli.output.rows import aligned, cell, is_number

    shown = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if shown else None
    cells = [[cell(value) for value in row.values()] for row in rows]
    right = [number for number, one in enumerate(kinds) if is_number(one.type)]
    text, hidden = aligned(kinds.names, cells, right=right, width=width)
    print_line(text)
    if hidden:
        click.echo(
            f"modcrypt: {hidden} more columns have no room here; --column NAME chooses some",
            err=True,
        )


def written(pieces: Iterator[tuple[bytes, int]], sink: Sink) -> int:
    """Append what `spelt` gives to a sink; give the number of rows."""
    total = 0
    for data, rows in pieces:
        sink.append(data)
        total += rows
    return total


def print_pieces(pieces: Iterator[tuple[bytes, int]]) -> None:
    """Write to stdout; end quietly when its reader has gone, and loudly where the rows break off.

    What else is printed from now on is on stderr.
    """
    out = sys.stdout.buffer
    shown = _shown_on_terminal if sys.stdout.isatty() else bytes
    total = 0
    try:
        for data, rows in pieces:
            out.write(shown(data))
            out.flush()
            total += rows
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(SIGPIPE_EXIT)
    except (Exception, Stopped):
        click.echo(
            f"modcrypt: the output is incomplete: it breaks off after {total} rows", err=True
        )
        raise


def _shown_on_terminal(data: bytes) -> bytes:
    """Escape what a terminal would obey; lines stay lines."""
    return "\n".join(map(printable, data.decode().split("\n"))).encode()
