"""The manual page modcrypt(1), from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from modcrypt.cli.output.failures import EXIT_CODES


def make_manual_page(program: click.Context) -> str:
    """Return the page in the markup of man(7)."""
    import modcrypt  # not to be loaded for the help

    command = program.command
    summary, _, description = (command.help or "").partition("\n\n")
    lines = [
        f'.TH MODCRYPT 1 "" "modcrypt {modcrypt.__version__}"',
        ".SH NAME",
        f"modcrypt \\- {_escape(summary.rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B modcrypt",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_paragraphs(description),
        ".SH COMMANDS",
        *_describe_commands(program),
        ".SH EXIT STATUS",
        *_verbatim(EXIT_CODES),
        ".SH EXAMPLES",
        *_verbatim(_examples(command)),
    ]
    return "\n".join(lines)


def _describe_commands(above: click.Context) -> Iterator[str]:
    """Yield a section for each command that is not a group."""
    group: Any = above.command
    for name, command in sorted(group.commands.items()):
        context = command.context_class(command, info_name=name, parent=above)
        if isinstance(command, click.Group):
            yield from _describe_commands(context)
        elif not command.hidden:
            yield from _describe_command(context)


def _describe_command(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_escape(context.command_path)} {_escape(usage)}"
    yield from _paragraphs(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)):
            yield from (".TP", f".B {_escape(record[0])}", _escape(record[1]))
    yield from _verbatim((command.epilog or "").replace("\b\n", ""))


def _examples(command: click.Command) -> str:
    return (command.epilog or "").partition("\b\nExit codes")[0].replace("\b\n", "")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in filter(None, text.split("\n\n")):
        yield from (".PP", _escape(" ".join(paragraph.split())))


def _verbatim(text: str) -> Iterator[str]:
    if text.strip():
        yield from (".PP", ".nf", *map(_escape, text.strip("\n").splitlines()), ".fi")


def _escape(text: str) -> str:
    """Escape what man(7) would take for markup."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))
