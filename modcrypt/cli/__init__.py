"""The command line: one module for each family of commands, and `app`, which combines them.

Nothing heavy is imported before a command runs, so `--help` and `--version` are fast.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys

__all__ = ["run"]


def run() -> None:
    """Run the program with `sys.argv`; always raise SystemExit with a documented exit code."""
    _make_streams_safe()
    if sys.stdout is None:  # what is asked for would be lost, and a file opened in its place
        sys.stderr.write(
            "modcrypt: error: usage: standard output is closed; to discard it, use >/dev/null\n"
        )
        sys.exit(2)
    if _answer_at_once(sys.argv[1:]):
        sys.exit(0 if sys.argv[1:] else 2)
    gc.set_threshold(100_000)  # collections took a twelfth of the time that a command takes
    atexit.register(gc.freeze)  # and a last one, of all modules at the exit, a fifth
    from modcrypt.cli.output.signals import raise_on_signals

    raise_on_signals()
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

    return f"modcrypt {__version__}"


def _answer_at_once(words: list[str]) -> bool:
    """Print the version or the first help without loading a command; return whether that is all."""
    if "_MODCRYPT_COMPLETE" in os.environ or words not in ([], ["--help"], ["-h"], ["--version"]):
        return False
    text, stream = f"{version_line()}\n", sys.stdout if words else sys.stderr
    if words != ["--version"]:
        from modcrypt.cli.help.first_screen import read_first_screen

        text = read_first_screen()
    try:
        print(text, end="", file=stream, flush=True)
    except OSError:
        return False  # the program reports it
    return bool(text)


def _make_streams_safe() -> None:
    """Escape what the terminal cannot encode, and discard stderr output if stderr is closed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
