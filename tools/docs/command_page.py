"""The reference page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from modcrypt.cli.app import program
from modcrypt.cli.output.failures import EXIT_CODES

_INTRODUCTION = """\
# Command line

`modcrypt COMMAND --help` prints the same text; `modcrypt COMMAND -h` prints only the most used
options.
[How to use the command line](../how-to/command-line.md) shows them at work.
`man modcrypt` shows this page after `modcrypt manual --man DIR`.
"""


def make_command_page() -> str:
    """Return the page as Markdown."""
    codes = f"## Exit codes\n\n```text\n{EXIT_CODES}\n```\n"
    return "\n".join([_INTRODUCTION, codes, *_describe_group(program, "modcrypt")])


def walk_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each command that is not a group with its full name."""
    for part, command in sorted(group.commands.items()):
        full = f"{name} {part}"
        if isinstance(command, click.Group):
            yield from walk_commands(command, full)
        elif not command.hidden:
            yield full, command


def _describe_group(group: Any, name: str) -> Iterator[str]:
    for full, _ in walk_commands(group, name):
        yield f"## {full.removeprefix('modcrypt ')}\n\n```text\n{help_text(full)}\n```\n"


def help_text(name: str, width: int = 88) -> str:
    """Return the long help of a command, named in full, at a width in columns."""
    context: Any = None
    command: Any = program
    for part in name.split():
        if context is not None:
            command = command.commands[part]
        settings = {**command.context_settings, "terminal_width": width}
        context = command.context_class(command, info_name=part, parent=context, **settings)
    return click.unstyle(command.get_help(context)).rstrip()
