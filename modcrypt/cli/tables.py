"""What is in Parquet files: `modcrypt schema`, `head` and `cat`."""

from __future__ import annotations

import itertools
import json
import operator
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.options.kms_options import audit_option, reading_service_options
from modcrypt.cli.options.parquet_options import (
    decryption_properties,
    parquet_key_options,
    reading_options,
)
from modcrypt.cli.output.failures import printable
from modcrypt.cli.row_output import check_safe, print_pieces, print_rows, safe_option, written
from modcrypt.cli.shared import (
    force_option,
    json_option,
    prefix_options,
    print_line,
    root_option,
    table,
    together,
)

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

    from modcrypt.parquet.arrow.parquet_file import ParquetFile

__all__ = ["cat", "head", "schema"]

# --- options that they share ---------------------------------------------------------------------

_file_options = together(
    parquet_key_options,
    prefix_options,
    root_option,
    click.option(
        "--aad-prefix-template",
        metavar="TEXT",
        help="Each file must have an AAD prefix of its own: this, with a number in the place of "
        "{i}; stored in it or not.",
    ),
    click.option(
        "--expected-parts",
        metavar="N",
        type=click.IntRange(min=1),
        help="With --aad-prefix-template: there must be the parts 0 to N - 1, and no others.",
    ),
    reading_options,
    click.option(
        "--allow-plaintext",
        is_flag=True,
        help="Take files that are not encrypted, too: nothing in them is authenticated.",
    ),
    reading_service_options,
    audit_option,
)
_row_options = together(
    click.option(
        "--column",
        "columns",
        metavar="NAME",
        multiple=True,
        help="Only this column, or the columns in a group. Repeatable.",
    ),
    click.option(
        "--columns", "listed", metavar="NAME,NAME", help="The same for several, in this order."
    ),
    click.option(
        "--where",
        metavar="CONDITION",
        multiple=True,
        help="Only rows for which this is true: a column, one of = != < <= > >= and a value; or a "
        "column and 'is null' or 'is not null'. Of several all must be true. Repeatable.",
    ),
)
_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a line of JSON for each row, failures included."
)


class _Reading:
    """What the options say of files to be read."""

    def __init__(
        self,
        where: str,
        *,
        aad_prefix_template: str | None,
        expected_parts: int | None,
        allow_plaintext: bool,
        **reading: Any,
    ) -> None:
        if where == "-":
            raise click.UsageError("pipes don't do: Parquet is read from its end")
        if expected_parts is not None and aad_prefix_template is None:
            raise click.UsageError("--expected-parts are counted by --aad-prefix-template")
        prefixes = (reading[name] for name in ("aad_prefix", "aad_prefix_hex", "aad_prefix_file"))
        if aad_prefix_template is not None and any(one is not None for one in prefixes):
            raise click.UsageError("--aad-prefix-template and --aad-prefix exclude each other")
        if aad_prefix_template is not None and reading["no_check_footer"]:
            raise click.UsageError("--aad-prefix-template needs footers that are checked")
        properties = decryption_properties(**reading)
        if allow_plaintext:
            properties = replace(properties, require_encrypted=False)
        self.where, self.properties = where, properties
        self.parts: dict[str, Any] = {
            "aad_prefix_template": aad_prefix_template,
            "expected_parts": expected_parts,
        }

    def first(self) -> AbstractContextManager[tuple[ParquetFile, pa.Schema, int]]:
        """Open the first file; give it, the fields that folders spell, and the number of files."""
        from modcrypt.parquet.datasets.dataset_reader import open_first

        return open_first(self.where, self.properties, **self.parts)

    def batches(self, asked: dict[str, Any], **more: Any) -> Iterator[pa.RecordBatch]:
        """Read the rows that are asked for, batch by batch."""
        from modcrypt.cli.output.rows import checked

        found = modcrypt.iter_batches(self.where, self.properties, **asked, **self.parts, **more)
        return checked(found)

    def asked(
        self, columns: tuple[str, ...], listed: str | None, where: tuple[str, ...]
    ) -> dict[str, Any]:
        """Give columns and filter as `iter_batches` takes them."""
        names = [*columns, *(listed.split(",") if listed is not None else ())]
        asked: dict[str, Any] = {"columns": names or None}
        if where:
            with self.first() as (file, partitions, _):
                types = [*file.schema_arrow, *partitions]
            asked["filters"] = _conditions(where, types)
        return asked


# --- conditions ----------------------------------------------------------------------------------

_COMPARISONS = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CONDITION = re.compile(
    r"\s*(?P<op>is null|is not null|==|=|!=|<=|>=|<|>)\s*(?P<value>.*)", re.DOTALL | re.IGNORECASE
)


def _conditions(where: Sequence[str], fields: Sequence[pa.Field]) -> Any:
    """Give a filter for which all conditions are true."""
    known = dict(_paths(fields))
    return reduce(operator.and_, (_condition(one, known) for one in where))


def _paths(
    fields: Sequence[pa.Field], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[tuple[str, ...], pa.DataType]]]:
    """Give what can be compared, by its dotted name."""
    import pyarrow as pa

    for one in fields:
        path = (*above, one.name)
        yield ".".join(path), (path, one.type)
        if pa.types.is_struct(one.type):
            yield from _paths(list(one.type), path)


def _condition(text: str, known: dict[str, tuple[tuple[str, ...], pa.DataType]]) -> Any:
    """Give the filter that a condition spells; the longest name that fits is meant."""
    import pyarrow.compute as pc

    text = text.strip()
    for name in sorted(known, key=len, reverse=True):
        match = _CONDITION.fullmatch(text[len(name) :]) if text.startswith(name) else None
        if match is not None:
            break
    else:
        raise click.UsageError(
            "--where takes a column of the file, one of = != < <= > >= and a value, or 'is null'"
        )
    path, kind = known[name]
    column, op, value = pc.field(*path), match["op"].lower(), match["value"].strip()
    if op.startswith("is"):
        if value:
            raise click.UsageError(f"--where: after '{op}' there is nothing more")
        return column.is_null() if op == "is null" else column.is_valid()
    return _COMPARISONS[op](column, _typed(value, kind, name))


def _typed(value: str, kind: pa.DataType, name: str) -> pa.Scalar:
    """Take a value as one of the column's type; quotes around it are not a part of it."""
    import pyarrow as pa

    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        return pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise click.UsageError(
            f"--where: {printable(name)} is {kind}: its values can't be compared with that"
        ) from None


# --- schema --------------------------------------------------------------------------------------

# click keeps the lines of a paragraph after \b as they are.
_SCHEMA_EXAMPLE = """\b
Examples: the footer key is enough
  modcrypt schema --key-file footer.key orders.enc.parquet
  modcrypt schema --kms file:lake.keyring --parquet orders.kms.parquet"""


@click.command(epilog=_SCHEMA_EXAMPLE)
@click.argument("path", metavar="FILE|DIR")
@click.option("--parquet", "as_parquet", is_flag=True, help="As Parquet has it, not as Arrow does.")
@_file_options
@json_option
def schema(*, path: str, as_parquet: bool, as_json: bool, **reading: Any) -> None:
    """Show the columns of FILE, their types, and which key each is under.

    Of the files in DIR the first one is shown, and what the names of folders add. The footer key
    is enough; a plaintext footer is read without it by --no-check-footer, and believed.
    """
    from modcrypt.cli.output.schema_output import arrow_rows, columns_of, fields_of, parquet_text

    read = _Reading(path, **reading)
    with read.first() as (file, partitions, files):
        opened = file.opened
        columns = columns_of(opened)
        fields = fields_of(file.schema_arrow, partitions)
    footer, elements = opened.footer, opened.metadata.schema
    checked = read.properties.check_footer_integrity or not footer.plaintext_footer
    authenticated = footer.encrypted and checked
    if not authenticated:
        why = (
            "the footer's signature is not checked"
            if footer.encrypted
            else "the file is not encrypted"
        )
        click.echo(
            f"modcrypt: warning: {why}: whoever could change the file could change this", err=True
        )
    if as_json:
        told = {
            "path": path,
            "files": files,
            "encrypted": footer.encrypted,
            "footer": "plaintext" if footer.plaintext_footer else "encrypted",
            "authenticated": authenticated,
            "fields": fields,
            "columns": [one.fields() for one in columns],
        }
        print_line(json.dumps(told))
    elif as_parquet:
        print_line(parquet_text(elements, columns))
    else:
        titles = ("column", "type", "nullable", "key")
        print_line(table(titles, arrow_rows(fields, columns), left=(0, 1, 2, 3)))


# --- head ----------------------------------------------------------------------------------------

_HEAD_EXAMPLE = """\b
Examples: the first five rows of two columns; rows of one day
  modcrypt head -n 5 --columns id,price --key-file footer.key \\
      --column-key price=file:price.key orders.enc.parquet
  modcrypt head --kms file:lake.keyring --where "id >= 2" orders.kms.parquet"""


_HEAD_ROWS = 65536  # at once


@click.command(epilog=_HEAD_EXAMPLE)
@click.argument("path", metavar="FILE|DIR")
@click.option(
    "-n",
    "--rows",
    "count",
    metavar="N",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many rows.",
)
@_row_options
@_file_options
@_lines_option
def head(
    *,
    path: str,
    count: int,
    columns: tuple[str, ...],
    listed: str | None,
    where: tuple[str, ...],
    as_json: bool,
    **reading: Any,
) -> None:
    """Show the first rows of FILE, or of the files in DIR.

    Long values are cut, and columns left out that the terminal has no room for; --json has all.
    """
    from modcrypt.cli.output.rows import json_line, rows_of

    read = _Reading(path, **reading)
    asked = read.asked(columns, listed, where)
    size = max(min(count, _HEAD_ROWS), 1)
    batches = list(read.batches(asked, limit=count, batch_size=size))
    rows = [row for batch in batches for row in rows_of(batch)]
    if as_json:
        for row in rows:
            print_line(json_line(row))
        return
    print_rows(batches[0].schema if batches else _schema_of(read, asked), rows)


def _schema_of(read: _Reading, asked: dict[str, Any]) -> pa.Schema:
    """Give the columns of what has no rows; no page is read."""
    import pyarrow.compute as pc

    nothing = {**asked, "filters": pc.scalar(False)}
    return modcrypt.read_table(read.where, read.properties, **nothing, **read.parts).schema


# --- cat -----------------------------------------------------------------------------------------

_CAT_EXAMPLE = """\b
Examples: all rows as lines of JSON; two columns for a spreadsheet; for another program
  modcrypt cat --kms file:lake.keyring orders.kms.parquet
  modcrypt cat --format csv --safe --columns id,price -o orders.csv \\
      --kms file:lake.keyring orders.kms.parquet
  modcrypt cat --format arrow -o orders.arrows --kms file:lake.keyring orders.kms.parquet"""


@click.command(epilog=_CAT_EXAMPLE)
@click.argument("path", metavar="FILE|DIR")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "arrow"]),
    default="jsonl",
    show_default=True,
    help="A JSON object a line; CSV, in which nested values are JSON; or a stream of Arrow IPC.",
)
@click.option(
    "-o",
    "--output",
    metavar="DESTINATION",
    help="A path or URL, which appears when it is complete, or not at all. Default: stdout.",
)
@safe_option
@_row_options
@_file_options
@force_option
@json_option
def cat(
    *,
    path: str,
    form: str,
    output: str | None,
    columns: tuple[str, ...],
    listed: str | None,
    where: tuple[str, ...],
    safe: bool,
    force: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    """Write the rows of FILE, or of the files in DIR, in a form that others read.

    Dates and times are ISO 8601, decimals text, bytes base64. What is encrypted by AES_GCM_V1 is
    authenticated before it is written; plaintext columns never are. On stdout rows may be out
    already when something is met that does not authenticate: only exit code 0 says that they are
    all.
    """
    from modcrypt.cli.output.rows import spelt
    from modcrypt.io.storage import open_sink

    to_stdout = output in (None, "-")
    if to_stdout and sys.stdout is None:
        raise click.UsageError("stdout is closed: -o FILE")
    if to_stdout and as_json:
        raise click.UsageError("--json tells how it went on stdout, where the rows are: -o FILE")
    if to_stdout and force:
        raise click.UsageError("--force is for -o")
    check_safe(safe, form)
    if to_stdout and form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is nothing for a terminal: -o FILE, or a pipe")
    if output is not None and _lies_in(output, path):
        raise click.UsageError(f"{output} would replace what is read")
    read = _Reading(path, **reading)
    asked = read.asked(columns, listed, where)
    batches = read.batches(asked)
    first = next(batches, None)
    kinds = _schema_of(read, asked) if first is None else first.schema
    rows_left = itertools.chain([first] if first is not None else [], batches)
    pieces = spelt(form, kinds, rows_left, safe=safe)
    if to_stdout:
        print_pieces(pieces)
        return
    with open_sink(output or "", overwrite=force) as sink:
        rows = written(pieces, sink)
    if as_json:
        print_line(json.dumps({"path": path, "destination": output, "format": form, "rows": rows}))


def _lies_in(output: str, path: str) -> bool:
    """Tell whether a destination is a file that is read, or lies in the folder that is."""
    from modcrypt.io.storage import local_path

    if (to := local_path(output)) is None or (where := local_path(path)) is None:
        return False
    target, source = os.path.realpath(to), os.path.realpath(where)
    return target == source or target.startswith(f"{source}{os.sep}")
