"""`--help` fits a screen: the purpose, first examples and usual options; `--help-all` has the rest.

`shared.rare_option` makes the options that are not usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any, TypeVar

import click
import cloup

from modcrypt.cli.shared import RareOption

P = TypeVar("P", bound=click.Parameter)


def add_help_options(command: Any) -> None:
    """Add `--help` and `--help-all` to a command and, for a group, to all commands in it."""
    command.add_help_option = False  # the one of click
    for names, everything, text in _OPTIONS:
        option = RareOption(
            names, is_flag=True, expose_value=False, is_eager=True,
            callback=partial(_print_help, everything), help=text,
        )  # fmt: skip
        command.params.append(option)
        command.ungrouped_options.append(option)
    for part in getattr(command, "commands", {}).values():
        add_help_options(part)


_OPTIONS = (
    (("-h", "--help"), False, "Show the usual options on one screen, and exit."),
    (("--help-all",), True, "Show all options and examples, and exit."),
)


def _print_help(
    everything: bool, context: click.Context, _option: click.Parameter, wanted: bool
) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(context.get_help() if everything else format_screen(context))
        context.exit(0)


def end_with_help(context: click.Context) -> None:
    """Print the help and end with an error, if a group is called without a command."""
    if context.invoked_subcommand is None:
        click.echo(format_screen(context), err=True)
        context.exit(2)


def format_screen(context: click.Context) -> str:
    """Return the help of a command without rare options and without its later examples."""
    command: Any = copy(context.command)
    groups = [_keep_usual(group) for group in command.option_groups]
    command.option_groups = [group for group in groups if group.options]
    command.ungrouped_options = _drop_rare(command.ungrouped_options)
    first, _, later = (command.epilog or "").strip().partition("\n\n")
    command.epilog = first
    text: str = command.get_help(context).rstrip()
    options = context.command.params[: -len(_OPTIONS)]
    if later or len(_drop_rare(options)) < len(options):
        text += f"\n\n{context.command_path} --help-all shows everything."
    return text


def _keep_usual(group: cloup.OptionGroup) -> cloup.OptionGroup:
    kept = copy(group)
    kept.options = _drop_rare(group.options)
    return kept


def _drop_rare(options: Iterable[P]) -> list[P]:
    return [option for option in options if not isinstance(option, RareOption)]
