"""The class of the `modcrypt` program, to which plug-ins add commands.

Importing the commands takes most of a start. A run that names one of `ALONE` first imports only
that one; all others, and its usage errors, which may name other commands, complete the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from modcrypt.cli.former_options import find_command, use_present_names
from modcrypt.cli.help.first_screen import list_commands
from modcrypt.cli.help.help_screens import add_help_options, format_screen
from modcrypt.cli.output.failures import explain
from modcrypt.cli.output.signals import Stopped
from modcrypt.cli.output.terminal import RED, paint, wrap_words
from modcrypt.cli.shared import drop_stdout, end_if_unread, print_json
from modcrypt.cli.shared_options import VerbGroup, complete_paths, option_names, place_options
from modcrypt.runtime.plugins import COMMANDS, load_all

LAKE, OTHERS = "A lake in one file, modcrypt.toml", "Other formats, Spark and shells"
"""Titles of the sections that plug-ins add commands to."""

ALONE = {"encrypt", "decrypt", "head", "cat", "schema", "inspect", "leaks", "doctor", "rekey",
         "mask", "share"}  # fmt: skip
"""Commands that are used without the rest of the program: they are no groups, whose options depend
on other groups, and no plug-in replaces them."""


@contextmanager
def _judge_broken_pipes() -> Iterator[None]:
    """End quietly if the reader of stdout has left; click would exit with 1 for any broken pipe."""
    try:
        yield
    except BrokenPipeError:
        end_if_unread(sys.stdout)
        raise ConnectionError("the other end of a connection or pipe has closed it") from None


class Program(VerbGroup):
    """A group that reports a failure as one line on stderr and an exit code of `EXIT_CODES`.

    `sections` are the modules of commands, by the titles of sections and by names.
    """

    sections: Mapping[str, Mapping[str, str]] = {}
    is_complete = False

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """All commands by name."""
        self.complete()
        return self._commands

    @commands.setter
    def commands(self, commands: MutableMapping[str, click.Command]) -> None:
        self._commands = commands

    def complete(self) -> None:
        """Import all commands and those of plug-ins, once."""
        if self.is_complete or not self.sections:
            return
        self.is_complete = True
        for title, names in self.sections.items():
            found = (getattr(import_module(module), name) for name, module in names.items())
            self.section(title, *found)
        for add_commands in load_all(COMMANDS):
            add_commands(self)
        from modcrypt.cli.help.manual import completion, man

        self.add_to_section(OTHERS, completion, man)
        place_options(self)
        add_help_options(self)
        complete_paths(self)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name; import no other for one of `ALONE`."""
        if self.is_complete or cmd_name not in ALONE:
            return self.commands.get(cmd_name)
        module = next(names[cmd_name] for names in self.sections.values() if cmd_name in names)
        command: click.Command = getattr(import_module(module), cmd_name)
        add_help_options(command)
        complete_paths(command)
        return command

    def resolve_command_name(self, ctx: click.Context, name: str) -> str | None:
        """Return the name of a command that its name, or an alias, stands for."""
        return name if name in ALONE else super().resolve_command_name(ctx, name)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """Parse the arguments before a command, among which may be options that commands share."""
        self._prepare(args)
        with _judge_broken_pipes():  # of the help
            return super().make_context(info_name, args, *rest, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that a context names."""
        with _judge_broken_pipes():
            return super().invoke(ctx)

    def _prepare(self, arguments: Sequence[str]) -> None:
        if arguments and arguments[0] not in ALONE:
            self.complete()

    def get_help(self, ctx: click.Context) -> str:
        """Return the help with all commands."""
        self.complete()
        return super().get_help(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, without importing commands, or an option."""
        texts = {} if incomplete.startswith("-") else dict(list_commands())
        if not texts:
            return super().shell_complete(ctx, incomplete)
        found = (item for item in texts.items() if item[0].startswith(incomplete))
        return [CompletionItem(name, help=text) for name, text in found]

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
        self._prepare(typed)
        arguments, more["obj"] = use_present_names(self, typed)  # the rest for the command itself
        more["standalone_mode"] = False  # click itself would exit with 1 without a failure
        try:
            result = super().main(arguments, *rest, **more)
            sys.stdout.flush()
        except (Exception, Stopped) as error:
            as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
            if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group without a command
                if not as_json:
                    click.echo(format_screen(error.ctx), err=True)
                    sys.exit(2)
                error = click.UsageError("Missing command", error.ctx)
            failure = explain(error, typed, option_names(find_command(self, arguments)))
            found = getattr(error, "found_code", 0)
            failure = failure._replace(code=found or failure.code)
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
