"""The program and its commands for Parquet: arguments in, one library call, a result out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.ags1 import ags1
from modcrypt.cli.failures import EXIT_CODES, explain, module_fields, printable
from modcrypt.cli.shared import (
    aad_prefix_from,
    convert,
    force_option,
    json_option,
    key_from,
    key_options,
    prefix_options,
    print_line,
    threads_option,
    together,
)
from modcrypt.cli.signals import Stopped
from modcrypt.parquet.properties import ALGORITHMS

__all__ = ["program"]


class _Program(click.Group):
    """A group whose failures are one line on stderr and an exit code of `EXIT_CODES`."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        more["standalone_mode"] = False  # click's own handling exits with 1 for what is no failure
        try:
            result = super().main(arguments, *rest, **more)
            sys.stdout.flush()
        except (Exception, Stopped) as error:
            failure = explain(error, arguments)
            click.echo(failure.line(), err=True)
            if "--json" in arguments:
                print_line(json.dumps(failure.fields()))
            sys.exit(failure.code)
        sys.exit(result if isinstance(result, int) else 0)


# --- options that several commands share ---------------------------------------------------------

_key_options = together(
    key_options("Footer key"),
    click.option(
        "--column-key",
        "column_key_refs",
        metavar="NAME=REF",
        multiple=True,
        help="Key of a column, or of all columns in a group. REF is file:PATH, env:VARIABLE or "
        "fd:N. Repeatable.",
    ),
)
_output_options = together(
    force_option,
    threads_option(
        "1: one thread; 2 or more: write in a second one. Default: by size and processors."
    ),
    json_option,
)
_reading_options = together(
    click.option(
        "--accept",
        metavar="ALGORITHM",
        type=click.Choice(ALGORITHMS),
        multiple=True,
        help="Accept files of this algorithm; repeatable. Default: AES_GCM_V1 alone, because "
        "AES_GCM_CTR_V1 does not authenticate pages and the name in a file can be forged.",
    ),
    click.option(
        "--on-missing-key",
        type=click.Choice(["error", "drop", "null"]),
        default="error",
        show_default=True,
        help="What to do with columns whose key is not given: refuse the file, leave them out, or "
        "fill them with nulls.",
    ),
    click.option(
        "--no-check-footer",
        is_flag=True,
        help="Trust a plaintext footer without verifying its signature.",
    ),
)


def _check_paths(*paths: str) -> None:
    if "-" in paths:
        raise click.UsageError(
            "pipes don't do: Parquet is read from its end, and written whole; "
            "modcrypt ags1 encrypts any file or pipe"
        )


def _column_key_metadata(values: tuple[str, ...], columns: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for value in values:
        # Column names may hold a "=": the longest one that has a key is meant.
        names = [name for name in columns if value.startswith(f"{name}=")]
        if not names:
            raise click.UsageError(
                "--column-key-metadata takes NAME=TEXT, for a NAME that --column-key gives a key"
            )
        name = max(names, key=len)
        found[name] = os.fsencode(value[len(name) + 1 :])
    return found


# --- commands ------------------------------------------------------------------------------------

# click keeps the lines of a paragraph after \b as they are.
_FIRST_EXAMPLE = """\b
A first file:
  (umask 077; openssl rand -hex 16 > footer.key)
  modcrypt encrypt --key-file footer.key orders.parquet orders.enc.parquet
  modcrypt decrypt --key-file footer.key orders.enc.parquet orders.again.parquet

\b
Exit codes:
"""

_ENCRYPT_EXAMPLE = """\b
Example: prices under a key of their own, ship dates readable by everyone
  modcrypt encrypt --key-file footer.key --column-key price=file:price.key \\
      --plaintext-column shipped orders.parquet orders.enc.parquet"""

_DECRYPT_EXAMPLE = """\b
Example: all that the footer key opens, without the columns under other keys
  modcrypt decrypt --key-file footer.key --on-missing-key drop \\
      orders.enc.parquet orders.public.parquet"""

_MODULES_EXAMPLE = """\b
Example:
  modcrypt modules --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet"""


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_FIRST_EXAMPLE + EXIT_CODES,
    invoke_without_command=True,
)
@click.version_option(modcrypt.__version__, message="modcrypt %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Encrypt and decrypt Parquet files, column by column, and any file as an AGS1 stream.

    Keys come from files, environment variables or file descriptors, never from arguments, which
    other users could see.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


program.add_command(ags1)


@program.command(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@_key_options
@click.option(
    "--plaintext-column",
    "plaintext_columns",
    metavar="NAME",
    multiple=True,
    help="Leave a column, or all columns in a group, unencrypted and unauthenticated. Repeatable.",
)
@click.option(
    "--plaintext-footer",
    is_flag=True,
    help="Sign the footer with the footer key but leave it readable: schema, row counts and what "
    "is known of plaintext columns stay open to readers without keys.",
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHMS),
    default=ALGORITHMS[0],
    show_default=True,
    help="AES_GCM_CTR_V1 does not authenticate pages.",
)
@prefix_options
@click.option(
    "--no-store-aad-prefix",
    is_flag=True,
    help="Keep the AAD prefix out of the file: readers must know it.",
)
@click.option(
    "--footer-key-metadata",
    metavar="TEXT",
    help="Stored in the file, in clear, for readers to find the footer key by.",
)
@click.option(
    "--column-key-metadata",
    metavar="NAME=TEXT",
    multiple=True,
    help="The same for the key of a column; in clear if the footer is plaintext. Repeatable.",
)
@click.option(
    "--v2-levels",
    type=click.Choice(["encrypted", "plaintext"]),
    default="encrypted",
    show_default=True,
    help="Levels of data pages V2: parquet-java reads no encrypted ones, Arrow no plaintext ones.",
)
@_output_options
def encrypt(
    *,
    source: str,
    destination: str,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    plaintext_columns: tuple[str, ...],
    plaintext_footer: bool,
    algorithm: str,
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    no_store_aad_prefix: bool,
    footer_key_metadata: str | None,
    column_key_metadata: tuple[str, ...],
    v2_levels: Literal["encrypted", "plaintext"],
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Encrypt the Parquet file SOURCE into DESTINATION.

    Both are paths or, with fsspec installed, URLs. Columns that are named nowhere are sealed with
    the footer key. DESTINATION appears when it is complete, or not at all.
    """
    _check_paths(source, destination)
    footer_key = key_from(key_file, key_env, key_fd, "footer key")
    if footer_key is None:
        raise click.UsageError("a footer key is needed: --key-file, --key-env or --key-fd")
    prefix = aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file)
    if no_store_aad_prefix and prefix is None:
        raise click.UsageError("--no-store-aad-prefix needs --aad-prefix, in one of its forms")
    column_keys = key_refs.read_refs(column_key_refs)
    properties = modcrypt.FileEncryptionProperties(
        footer_key=footer_key,
        column_keys=column_keys,
        plaintext_columns=plaintext_columns,
        footer_key_metadata=None
        if footer_key_metadata is None
        else os.fsencode(footer_key_metadata),
        column_key_metadata=_column_key_metadata(column_key_metadata, list(column_keys)),
        aad_prefix=prefix,
        store_aad_prefix=not no_store_aad_prefix,
        plaintext_footer=plaintext_footer,
        encryption_algorithm=algorithm,
        data_page_v2_levels=v2_levels,
    )

    def work(progress: Callable[[int], None] | None) -> dict[str, Any]:
        modcrypt.encrypt_parquet(
            source, destination, properties, overwrite=force, threads=threads, progress=progress
        )
        return {}

    convert("Encrypting", source, destination, work, as_json)


@program.command(epilog=_DECRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@_key_options
@prefix_options
@_reading_options
@_output_options
def decrypt(
    *,
    source: str,
    destination: str,
    force: bool,
    threads: int | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Decrypt the encrypted Parquet file SOURCE into DESTINATION.

    Every module is authenticated on the way. DESTINATION appears when it is complete, or not at
    all. An AAD prefix that is given must be the one that the file was written with.
    """
    _check_paths(source, destination)
    properties = _decryption_properties(**reading)

    def work(progress: Callable[[int], None] | None) -> dict[str, Any]:
        missing = modcrypt.decrypt_parquet(
            source, destination, properties, overwrite=force, threads=threads, progress=progress
        )
        nulls = properties.on_missing_key == "null"
        if missing:
            names = printable(", ".join(missing))
            done = "filled with nulls" if nulls else "left out"
            click.echo(f"modcrypt: {done}, for want of a key: {names}", err=True)
        return {"dropped": () if nulls else missing, "nulls": missing if nulls else ()}

    convert("Decrypting", source, destination, work, as_json)


@program.command(epilog=_MODULES_EXAMPLE)
@click.argument("file")
@_key_options
@prefix_options
@_reading_options
@json_option
def modules(*, file: str, as_json: bool, **reading: Any) -> None:
    """Show where every encrypted module of FILE lies, in file order.

    Each one is opened and authenticated on the way. Modules inside the footer are not listed.
    """
    _check_paths(file)
    spans = modcrypt.list_modules(file, _decryption_properties(**reading))
    rows = [
        {**module_fields(span.module), "offset": span.start, "size": span.end - span.start}
        for span in spans
    ]
    if as_json:
        print_line(json.dumps({"file": file, "modules": rows}))
    else:
        print_line(_table(rows))


def _decryption_properties(
    *,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    accept: tuple[str, ...],
    on_missing_key: Literal["error", "drop", "null"],
    no_check_footer: bool,
) -> modcrypt.FileDecryptionProperties:
    return modcrypt.FileDecryptionProperties(
        footer_key=key_from(key_file, key_env, key_fd, "footer key"),
        column_keys=key_refs.read_refs(column_key_refs),
        aad_prefix=aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file),
        algorithms=accept or ALGORITHMS[:1],
        on_missing_key=on_missing_key,
        check_footer_integrity=not no_check_footer,
    )


_COLUMNS = ("type", "row_group", "path", "page", "offset", "size")
_TITLES = ("module", "row group", "column", "page", "offset", "size")
_WORDS = ("type", "path")
"""Columns of the table that are aligned to the left."""


def _table(rows: list[dict[str, Any]]) -> str:
    """Align the module table; what a module type doesn't have is a dash."""
    cells = [_TITLES, *(tuple(_cell(row[name]) for name in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if name in _WORDS else cell.rjust(width)
            for name, cell, width in zip(_COLUMNS, line, widths, strict=True)
        ).rstrip()
        for line in cells
    )


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))
