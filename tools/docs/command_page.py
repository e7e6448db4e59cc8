"""The reference of the command line: a page for each command, from its declaration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from modcrypt.cli.app import program
from modcrypt.cli.help.command_descriptions import CommandDescription, describe_commands
from modcrypt.cli.output.failures import EXIT_CODES

INDEX = "reference/command-line.md"

_INTRODUCTION = f"""\
# Command line

`modcrypt COMMAND --help` shows the usual options on one screen, `--help-all` all of them, as the
pages below do.
Options that many commands share, such as `--kms` and `--json`, work before the command, too:
`modcrypt --kms file:lake.keyring keys list`.
[How to use the command line](../how-to/command-line.md) shows them at work.
`modcrypt man` prints them as a manual page.

## Exit codes

```text
{EXIT_CODES}
```
"""


def make_command_pages() -> dict[str, str]:
    """Return the pages as Markdown, by their paths in the site."""
    commands = {command.name: command for command in _describe_all()}
    pages = {_uri(name): _format(command, commands) for name, command in commands.items()}
    del pages[_uri("modcrypt")]
    return {INDEX: "\n".join(_format_index(commands)), **pages}


def make_command_navigation() -> list[dict[str, Any]]:
    """Return the part of the navigation that leads to the pages."""
    commands = {command.name: command for command in _describe_all()}
    return [{"Overview": INDEX}, *_navigate(commands["modcrypt"], commands)]


def _navigate(
    group: CommandDescription, commands: dict[str, CommandDescription]
) -> Iterator[dict[str, Any]]:
    for part in group.commands:
        name = f"{group.name} {part}"
        below = [*_navigate(commands[name], commands)]
        yield {part: [{f"All of {part}": _uri(name)}, *below] if below else _uri(name)}


def _describe_all() -> Iterator[CommandDescription]:
    context = program.context_class(program, info_name="modcrypt")
    return describe_commands(context)


def _uri(name: str) -> str:
    return f"reference/commands/{'-'.join(name.split()[1:])}.md"


def _format_index(commands: dict[str, CommandDescription]) -> Iterator[str]:
    yield _INTRODUCTION
    context = program.context_class(program, info_name="modcrypt")
    for section in program.list_sections(context):
        yield f"## {section.title}\n"
        yield from _list(section.commands, "modcrypt", commands, "commands/")
        yield ""
    yield from _format_options(commands["modcrypt"])


def _format(command: CommandDescription, commands: dict[str, CommandDescription]) -> str:
    lines = [f"# {command.name}\n", f"```text\n{command.name} {command.usage}\n```\n"]
    lines += [f"{_escape(paragraph)}\n" for paragraph in command.paragraphs]
    if command.examples:
        lines.append(f"```text\n{command.examples}\n```\n")
    if command.commands:
        lines += ["## Commands\n", *_list(command.commands, command.name, commands, ""), ""]
    return "\n".join([*lines, *_format_options(command)])


def _format_options(command: CommandDescription) -> Iterator[str]:
    for title, options in command.options.items():
        yield f"## {title}\n"
        yield from (_format_option(*option) for option in options)
        yield ""


def _list(
    names: Any, above: str, commands: dict[str, CommandDescription], folder: str
) -> Iterator[str]:
    for part in names:
        command = commands[f"{above} {part}"]
        page = _uri(command.name).rpartition("/")[2]
        yield f"- [`{part}`]({folder}{page}): {_escape(command.paragraphs[0])}"


def _format_option(name: str, text: str) -> str:
    return f"- `{name}`: {_escape(text)}"


def _escape(text: str) -> str:
    """Escape what Markdown would take for markup, except code."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
