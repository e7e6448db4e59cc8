"""`-h`: the purpose of a command and its most used options; `--help` prints everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import cloup

_USUAL = {
    "--all", "--aad-prefix", "--catalog", "--column", "--column-key", "--column-master-key",
    "--config", "--drop", "--dry-run", "--force", "--format", "--hash", "--hash-key", "--html",
    "--in-place", "--json", "--junit", "--key", "--key-metadata-file", "--kms", "--length",
    "--master-key", "--new-key-metadata", "--new-master-key", "--null", "--output",
    "--plaintext-column", "--policy", "--prove", "--rows", "--since", "--strict", "--to",
    "--version", "--what", "--where", "--yes",
}  # fmt: skip


def add_short_help(group: Any) -> None:
    """Add the option `-h` to a group of commands and to all commands in it."""
    _add_option(group)
    for command in group.commands.values():
        if isinstance(command, click.Group):
            add_short_help(command)
        else:
            _add_option(command)


def _add_option(command: Any) -> None:
    option = cloup.Option(
        ["-h"], is_flag=True, expose_value=False, is_eager=True, callback=_print_short_help,
        help="Show the most used options, and exit.",
    )  # fmt: skip
    command.params.append(option)
    command.ungrouped_options.append(option)


def _print_short_help(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(format_short_help(context))
        context.exit(0)


def format_short_help(context: click.Context) -> str:
    """Return the usage, the first sentence and the most used options or commands."""
    command, formatter = context.command, context.make_formatter()
    command.format_usage(context, formatter)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text((command.help or "").partition("\n\n")[0])
    if isinstance(command, cloup.Group):
        command.format_commands(context, formatter)
    elif records := list(_usual_records(context)):
        with formatter.section("Options"):
            formatter.write_dl(records)
    formatter.write_paragraph()
    formatter.write_text(f"{context.command_path} --help shows everything.")
    return formatter.getvalue().rstrip()


def _usual_records(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.params:
        if isinstance(parameter, click.Option) and _USUAL.intersection(parameter.opts):
            record = parameter.get_help_record(context)
            if record is not None:
                yield record
