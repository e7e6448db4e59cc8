"""Former spellings of options, which work until 1.1 with a warning on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

_PRESENT = {
    "--accept": "--accept-algorithm",
    "--threads": "--jobs",
    "--verify-key": "--signed-by",
    "--witness-key": "--witnessed-by",
}
"""Present spellings by former ones."""


def use_present_names(program: click.Group, arguments: Sequence[str]) -> list[str]:
    """Return arguments with each former spelling replaced, unless the command has that option."""
    command = _find_command(program, arguments)
    known = {name for parameter in command.params for name in parameter.opts}
    renamed = {
        former: name for former, name in _PRESENT.items() if former not in known and name in known
    }
    return list(_replace(arguments, renamed))


def _find_command(program: click.Group, arguments: Sequence[str]) -> click.Command:
    command: click.Command = program
    for argument in arguments:
        if isinstance(command, click.Group) and not argument.startswith("-"):
            command = command.commands.get(argument, command)
    return command


def _replace(arguments: Sequence[str], renamed: dict[str, str]) -> Iterator[str]:
    options = True
    for argument in arguments:
        options = options and argument != "--"
        former, equals, value = argument.partition("=")
        if options and former in renamed:
            name = renamed[former]
            note = f"{former} is now called {name}; the former name works until modcrypt 1.1"
            click.echo(f"modcrypt: warning: {note}", err=True)
            yield f"{name}{equals}{value}"
        else:
            yield argument
