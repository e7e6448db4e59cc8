"""Descriptions of commands, for the manual page and the pages of the website."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class CommandDescription:
    """A command or group of commands."""

    name: str  # full name, such as "modcrypt keys scan"
    usage: str  # what follows the name
    paragraphs: tuple[str, ...]  # purpose, of which the first paragraph is one sentence
    # Names and texts of options, by the title of their group.
    options: dict[str, tuple[tuple[str, str], ...]]
    examples: str
    commands: tuple[str, ...]


def describe_commands(context: click.Context) -> Iterator[CommandDescription]:
    """Yield the description of a command and, for a group, of all its commands by name."""
    command: Any = context.command
    parts = getattr(command, "commands", {})  # which completes the program
    yield _describe(context)
    for name, part in sorted(parts.items()):
        if not part.hidden:
            yield from describe_commands(part.context_class(part, info_name=name, parent=context))


def _describe(context: click.Context) -> CommandDescription:
    command: Any = context.command
    own = command.option_groups
    groups = [*own, command.get_default_option_group(context, not own)]
    is_group = isinstance(context.command, click.Group)
    sections = command.list_sections(context) if is_group else ()
    return CommandDescription(
        name=context.command_path,
        usage=" ".join(command.collect_usage_pieces(context)),
        paragraphs=tuple(
            " ".join(text.split()) for text in (command.help or "").split("\n\n") if text.strip()
        ),
        options={
            group.title: tuple(filter(None, (o.get_help_record(context) for o in group)))
            for group in groups
        },
        examples=(command.epilog or "").replace("\b\n", "").strip("\n"),
        commands=tuple(name for section in sections for name in section.commands),
    )
