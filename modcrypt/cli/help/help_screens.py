"""`--help` fits a screen: the purpose, first examples and usual options; `--help-all` has the rest.

`shared.rare_option` makes the options that are not usual.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any, TypeVar

import click

from modcrypt.cli.shared_options import RareOption, SharedOption, parameters_of

P = TypeVar("P", bound=click.Parameter)


def add_help_options(command: Any) -> None:
    """Add `--help` and `--help-all` to a command and, for a group, to all commands in it."""
    is_new = command.add_help_option
    command.add_help_option = False  # the one of click
    for names, everything, text in _OPTIONS if is_new else ():
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


def format_screen(context: click.Context) -> str:
    """Return the help of a command without rare options and without its later examples."""
    command: Any = copy(context.command)
    groups = [copy(group) for group in command.option_groups]
    for group in groups:
        group.options = _keep_shown(group.options, command)
    command.option_groups = [group for group in groups if group.options]
    command.ungrouped_options = _keep_shown(command.ungrouped_options, command)
    first, _, later = (command.epilog or "").strip().partition("\n\n")
    command.epilog = first
    text: str = command.get_help(context).rstrip()
    rest = _list_rest(context.command)
    return f"{text}\n\n{_describe_rest(context, rest)}" if later or rest else text


def _list_rest(command: click.Command) -> list[click.Parameter]:
    """Return the parameters that the first help does not show, without those for help."""
    own = [names[-1] for names, _, _ in _OPTIONS]
    options = command.params if isinstance(command, click.Group) else parameters_of(command)
    return [o for o in options if o.opts[-1] not in own and not _is_shown(o, command)]


def _describe_rest(context: click.Context, rest: Iterable[click.Parameter]) -> str:
    """Return the end of a screen, which names the other options that a command shares."""
    end = f"{context.command_path} --help-all shows everything"
    shared = [option.opts[0] for option in rest if isinstance(option, SharedOption)]
    if not shared:
        return f"{end}."
    if isinstance(context.command, click.Group):
        return f"{end}, also options that many commands share."
    names = f"Also: {', '.join(shared)}"
    return f"{textwrap.fill(names, 100, subsequent_indent='  ', break_on_hyphens=False)}\n{end}."


def _keep_shown(options: Iterable[P], command: click.Command) -> list[P]:
    return [option for option in options if _is_shown(option, command)]


def _is_shown(option: click.Parameter, command: click.Command) -> bool:
    """Return whether the first help of a command shows an option; a group only lists its own."""
    in_group = isinstance(command, click.Group) and isinstance(option, SharedOption)
    usual = not isinstance(option, RareOption) or option.name in getattr(command, "essential", ())
    return usual and not in_group
