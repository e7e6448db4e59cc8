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
    for full, command in walk_commands(group, name):
        context = click.Context(command, info_name=full, terminal_width=100, max_content_width=100)
        yield f"## {full.removeprefix('modcrypt ')}\n\n```text\n{_help_of(command, context)}\n```\n"


def _help_of(command: Any, context: click.Context) -> str:
    return click.unstyle(command.get_help(context)).rstrip()
