"""The command line: a room for each family of commands, and `app`, which has them all.

Nothing heavy is imported before a command runs, so `--help` and `--version` answer at once.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["run"]


def run() -> None:
    """Run the program with `sys.argv`; always ends in SystemExit with a documented exit code."""
    from modcrypt.cli.output.signals import raise_on_signals

    raise_on_signals()
    _mend_streams()
    try:
        from modcrypt.cli.app import program
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(
            "modcrypt: error: usage: the command line needs click and rich: "
            "pip install 'modcrypt[cli]'\n"
        )
        sys.exit(2)
    program.main(prog_name="modcrypt")


def _mend_streams() -> None:
    """Have any name printed, and a stderr that is closed swallow what is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
