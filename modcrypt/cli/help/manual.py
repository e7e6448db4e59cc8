"""`modcrypt completion` and `modcrypt man`: scripts and a manual page for the shell."""

from __future__ import annotations

import re
from typing import Any

import click
import cloup

from modcrypt.cli.help.manual_page import make_manual_page
from modcrypt.cli.shared import print_line

_PATH_WORDS = re.compile(r"\b(PATH|FILE|FOLDER|DIR|SOURCE|DESTINATION|TABLE)\b", re.IGNORECASE)

_COMPLETION_EXAMPLE = """\b
Examples: for bash; for zsh; for fish
  modcrypt completion bash > ~/.local/share/bash-completion/completions/modcrypt
  modcrypt completion zsh > ~/.zfunc/_modcrypt
  modcrypt completion fish > ~/.config/fish/completions/modcrypt.fish"""

_MAN_EXAMPLE = """\b
Example:
  modcrypt man > ~/.local/share/man/man1/modcrypt.1"""


@cloup.command(epilog=_COMPLETION_EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which a shell completes commands, options and paths."""
    from click.shell_completion import get_completion_class  # not to be loaded for the help

    kind = get_completion_class(shell)
    assert kind is not None  # one of the choices
    program = context.find_root().command
    print_line(kind(program, {}, "modcrypt", "_MODCRYPT_COMPLETE").source())


@cloup.command(epilog=_MAN_EXAMPLE)
@click.pass_context
def man(context: click.Context) -> None:
    """Print the manual page of all commands, modcrypt(1)."""
    print_line(make_manual_page(context.find_root()))


def complete_paths(group: Any) -> None:
    """Let shells complete paths where a command takes one."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            complete_paths(command)
            continue
        for parameter in command.params:
            if parameter.type is click.STRING and _is_path(parameter):
                parameter.type = click.Path()


def _is_path(parameter: click.Parameter) -> bool:
    return bool(_PATH_WORDS.search(parameter.metavar or parameter.name or ""))
