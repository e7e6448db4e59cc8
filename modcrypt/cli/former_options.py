"""Former commands and spellings of options, which work until 1.1 with a warning on stderr."""

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

_MOVED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("iceberg", "policy"): ("iceberg", "admin", "policy"),
    ("iceberg", "prune"): ("iceberg", "admin", "prune"),
    ("iceberg", "remove-orphans"): ("iceberg", "admin", "remove-orphans"),
    ("iceberg", "repair"): ("iceberg", "admin", "repair"),
    ("recipients", "generate"): ("keys", "generate", "--kind", "recipient"),
    ("seals", "generate"): ("keys", "generate", "--kind", "signing"),
}
"""Present commands by former ones."""

_MOVED_OPTIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("recipients", "generate"): {"--kind": "--scheme"}
}
"""Present spellings of options that have another meaning in the present command."""


def use_present_names(program: click.Group, arguments: Sequence[str]) -> list[str]:
    """Return arguments with each former command replaced, and each former spelling of an option.

    A spelling that the command has as an option of its own stays.
    """
    arguments = _replace_command(arguments)
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


def _replace_command(arguments: Sequence[str]) -> Sequence[str]:
    former = tuple(arguments[:2])
    present = _MOVED.get(former)
    if present is None:
        return arguments
    _warn(f"modcrypt {' '.join(former)}", f"modcrypt {' '.join(present)}")
    return [*present, *_replace(arguments[2:], _MOVED_OPTIONS.get(former, {}))]


def _replace(arguments: Sequence[str], renamed: dict[str, str]) -> Iterator[str]:
    options = True
    for argument in arguments:
        options = options and argument != "--"
        former, equals, value = argument.partition("=")
        if options and former in renamed:
            name = renamed[former]
            _warn(former, name)
            yield f"{name}{equals}{value}"
        else:
            yield argument


def _warn(former: str, present: str) -> None:
    note = f"{former} is now called {present}; the former name works until modcrypt 1.1"
    click.echo(f"modcrypt: warning: {note}", err=True)
