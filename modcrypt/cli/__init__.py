"""The command line: one module for each family of commands, and `app`, which combines them.

Nothing heavy is imported before a command runs, so `--help` and `--version` are fast.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["run"]


def run() -> None:
    """Run the program with `sys.argv`; always raise SystemExit with a documented exit code."""
    if sys.argv[1:] == ["--version"]:  # without the time that all commands take to load
        sys.stdout.write(f"{version_line()}\n")
        sys.exit(0)
    from modcrypt.cli.output.signals import raise_on_signals

    raise_on_signals()
    _make_streams_safe()
    try:
        from modcrypt.cli.app import program
    except ModuleNotFoundError as error:
        if error.name not in ("click", "cloup"):
            raise
        from modcrypt.runtime.extras import missing_extra

        sys.stderr.write(f"modcrypt: error: usage: {missing_extra('the command line', 'cli')}\n")
        sys.exit(2)
    program.main(prog_name="modcrypt")


def version_line() -> str:
    """Return the line that `--version` prints."""
    from modcrypt import __version__
    from modcrypt.runtime.code_form import code_form

    return f"modcrypt {__version__} ({code_form()})"


def _make_streams_safe() -> None:
    """Escape what the terminal cannot encode, and discard stderr output if stderr is closed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
