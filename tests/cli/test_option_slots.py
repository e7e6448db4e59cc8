"""The number of options over all commands: one that several need is declared once, and seldom."""

from __future__ import annotations

from collections.abc import Iterator

import click

from modcrypt.cli.app import program
from modcrypt.cli.conversion import mask

MOST = 195
"""Options that are declared, without `-h`; lower it, and do not raise it.

A shared option is one of its group, and one of its commands only if it is not declared there.
"""

MOST_OF_MASK = 4


def options(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command, or of all commands in a group, without those for help."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options(below)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.opts[-1] not in (
            "--help",
            "--help-all",
        ):
            yield parameter


def test_commands_have_few_options() -> None:
    assert len(list(options(program))) <= MOST
    assert len(list(options(mask))) <= MOST_OF_MASK


def test_no_option_is_hidden() -> None:
    """A former spelling is rewritten before a command is parsed; it takes no slot."""
    assert [option.opts[0] for option in options(program) if option.hidden] == []
