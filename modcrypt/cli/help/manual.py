"""`modcrypt completion` and `modcrypt man`: scripts and a manual page for the shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

import click

from modcrypt.cli.help.command_descriptions import CommandDescription, describe_commands
from modcrypt.cli.output.failures import EXIT_CODES
from modcrypt.cli.shared import print_line
from modcrypt.cli.shared_options import verb

_COMPLETION_EXAMPLE = """\b
Examples: for bash; for zsh; for fish
  modcrypt completion bash > ~/.local/share/bash-completion/completions/modcrypt
  modcrypt completion zsh > ~/.zfunc/_modcrypt
  modcrypt completion fish > ~/.config/fish/completions/modcrypt.fish"""

_MAN_EXAMPLE = """\b
Example:
  modcrypt man > ~/.local/share/man/man1/modcrypt.1"""


@verb(epilog=_COMPLETION_EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell."""
    from click.shell_completion import get_completion_class  # not to be loaded for the help

    kind = get_completion_class(shell)
    assert kind is not None  # one of the choices
    program = context.find_root().command
    print_line(kind(program, {}, "modcrypt", "_MODCRYPT_COMPLETE").source())


@verb(epilog=_MAN_EXAMPLE)
@click.pass_context
def man(context: click.Context) -> None:
    """Print the manual page of all commands, modcrypt(1)."""
    print_line(_make_manual_page(context.find_root()))


def _make_manual_page(program: click.Context) -> str:
    """Return the page in the markup of man(7)."""
    import modcrypt  # not to be loaded for the help

    whole, *commands = describe_commands(program)
    summary, *description = whole.paragraphs
    lines = [
        f'.TH MODCRYPT 1 "" "modcrypt {modcrypt.__version__}"',
        ".SH NAME",
        f"modcrypt \\- {_escape(summary.rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B modcrypt",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_paragraphs(description),
        ".SH OPTIONS",
        *_list_options(whole),
        ".SH COMMANDS",
        *(line for command in commands if not command.commands for line in _format(command)),
        ".SH EXIT STATUS",
        *_verbatim(EXIT_CODES),
        ".SH EXAMPLES",
        *_verbatim(whole.examples.partition("\nExit codes")[0]),
    ]
    return "\n".join(lines)


def _format(command: CommandDescription) -> Iterator[str]:
    yield f".SS {_escape(command.name)} {_escape(command.usage)}"
    yield from _paragraphs(command.paragraphs)
    yield from _list_options(command)
    yield from _verbatim(command.examples)


def _list_options(command: CommandDescription) -> Iterator[str]:
    for name, text in chain.from_iterable(command.options.values()):
        yield from (".TP", f".B {_escape(name)}", _escape(text))


def _paragraphs(paragraphs: Iterable[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield from (".PP", _escape(paragraph))


def _verbatim(text: str) -> Iterator[str]:
    if text.strip():
        yield from (".PP", ".nf", *map(_escape, text.strip("\n").splitlines()), ".fi")


def _escape(text: str) -> str:
    """Escape what man(7) would take for markup."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))
