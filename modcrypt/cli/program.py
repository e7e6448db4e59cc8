"""The class of the `modcrypt` program, to which plug-ins add commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

import click

from modcrypt.cli.former_options import use_present_names
from modcrypt.cli.help.help_screens import format_screen
from modcrypt.cli.output.failures import explain
from modcrypt.cli.output.signals import Stopped
from modcrypt.cli.output.terminal import RED, paint, wrap_words
from modcrypt.cli.shared import drop_stdout, print_json
from modcrypt.cli.shared_options import VerbGroup

LAKE, OTHERS = "A lake in one file, modcrypt.toml", "Other formats, Spark and shells"
"""Titles of the sections that plug-ins add commands to."""


class Program(VerbGroup):
    """A group that reports a failure as one line on stderr and an exit code of `EXIT_CODES`."""

    def add_to_section(self, title: str, *commands: click.Command) -> None:
        """Add commands to a section that exists."""
        (section,) = (found for found in self._user_sections if found.title == title)
        for command in commands:
            self.add_command(command, section=section)

    def replace_command(self, command: click.Command) -> None:
        """Put a command in the place of one with the same name."""
        name = command.name or ""
        self.commands[name] = command
        for section in self._user_sections:
            if name in section.commands:
                section.commands[name] = command

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> NoReturn:
        """Run a command; always raise SystemExit with a documented exit code."""
        typed = sys.argv[1:] if args is None else args
        arguments, more["obj"] = use_present_names(self, typed)  # the rest for the command itself
        more["standalone_mode"] = False  # click itself would exit with 1 without a failure
        try:
            result = super().main(arguments, *rest, **more)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (Exception, Stopped) as error:
            as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
            if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group without a command
                if not as_json:
                    click.echo(format_screen(error.ctx), err=True)
                    sys.exit(2)
                error = click.UsageError("Missing command", error.ctx)
            failure = explain(error, typed)
            click.echo(paint(wrap_words(failure.line(), sys.stderr), RED, sys.stderr), err=True)
            if as_json:
                try:
                    print_json("failure", failure.fields())
                except OSError:  # stdout itself is what failed
                    drop_stdout()
            elif isinstance(error, OSError):
                drop_stdout()
            sys.exit(failure.code)
        sys.exit(result if isinstance(result, int) else 0)
