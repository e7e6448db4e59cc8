"""What the commands of Parquet and of AGS1 have in common: options, results, progress."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click

from modcrypt.cli import key_refs
from modcrypt.cli.output.failures import printable
from modcrypt.cli.output.progress import progress_bar
from modcrypt.keys import Key

__all__ = [
    "SIGPIPE_EXIT",
    "aad_prefix_from",
    "convert",
    "drop_stdout",
    "force_option",
    "json_option",
    "key_from",
    "key_options",
    "prefix_options",
    "print_facts",
    "print_line",
    "root_option",
    "shared_prefix_option",
    "table",
    "threads_option",
    "together",
]

SIGPIPE_EXIT = 141
"""What a shell reports for a program whose reader went away."""

F = TypeVar("F", bound=Callable[..., Any])
Work = Callable[[Callable[[int], None] | None], dict[str, Any]]


def print_line(text: str) -> None:
    """Print to stdout; end quietly when its reader has gone, as `| head` does."""
    if sys.stdout is None:  # closed: nobody wants it
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        sys.exit(SIGPIPE_EXIT)


def drop_stdout() -> None:
    """Throw away what is still to be printed: Python would try again at the end, and fail."""
    with suppress(OSError, ValueError, AttributeError):  # of a stream that has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- options -------------------------------------------------------------------------------------


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Make one decorator of several options, listed in the help as they stand."""

    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def key_options(what: str) -> Callable[[F], F]:
    """Give the options of one key; `what` it is called begins their help."""
    return together(
        click.option(
            "--key-file",
            metavar="PATH",
            help=f"{what}: a file of 16, 24 or 32 raw bytes, or of their hex or base64 text.",
        ),
        click.option(
            "--key-env",
            metavar="VARIABLE",
            help=f"{what}: an environment variable with the hex or base64 text; every child "
            "process inherits it.",
        ),
        click.option(
            "--key-fd",
            metavar="N",
            type=click.IntRange(min=0),
            help=f"{what}: an open file descriptor, read to its end; contents as of --key-file.",
        ),
    )


prefix_options = together(
    click.option("--aad-prefix", metavar="TEXT", help="AAD prefix, as UTF-8."),
    click.option("--aad-prefix-hex", metavar="HEX", help="AAD prefix, as hex digits."),
    click.option(
        "--aad-prefix-file",
        metavar="PATH",
        help="AAD prefix: the bytes of a file, newline included if there is one.",
    ),
)
root_option = click.option(
    "--root",
    metavar="FOLDER",
    help="Folder of the dataset: {path} in an AAD prefix is relative to it. Default: the folder "
    "that is named.",
)
shared_prefix_option = click.option(
    "--shared-aad-prefix",
    is_flag=True,
    help="Allow several files with the same AAD prefix, though one can then replace another "
    "unnoticed.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON on stdout, failures included."
)
force_option = click.option("--force", is_flag=True, help="Replace DESTINATION if it exists.")


def threads_option(text: str) -> Callable[[F], F]:
    """Give the option that says how many threads work, with its help."""
    return click.option("--threads", type=click.IntRange(min=1), help=text)


def key_from(
    key_file: str | None, key_env: str | None, key_fd: int | None, what: str, option: str = "--key"
) -> Key | None:
    """Read the key that `key_options` refer to, or options of another name like them.

    None if none of them is given.
    """
    given = [value for value in (key_file, key_env, key_fd) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{option}-file, {option}-env and {option}-fd exclude each other")
    if key_file is not None:
        return key_refs.from_file(key_file, what)
    if key_env is not None:
        return key_refs.from_env(key_env, what)
    return None if key_fd is None else key_refs.from_fd(key_fd, what)


def aad_prefix_from(text: str | None, digits: str | None, path: str | None) -> bytes | None:
    """Read the AAD prefix that `prefix_options` give; None if none of them is given."""
    given = [value for value in (text, digits, path) if value is not None]
    if len(given) > 1:
        raise click.UsageError(
            "--aad-prefix, --aad-prefix-hex and --aad-prefix-file exclude each other"
        )
    if not given:
        return None
    if path is not None:
        with open(path, "rb") as file:
            prefix = file.read()
    else:
        prefix = os.fsencode(text or "") if digits is None else _unhex(digits)
    if not prefix:
        raise click.UsageError("the AAD prefix is empty; leave the option out for no prefix")
    return prefix


def _unhex(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise click.UsageError("--aad-prefix-hex takes pairs of hex digits") from None


def table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, left: Collection[int] = ()
) -> str:
    """Align a table; None is a dash.

    Args:
        titles: of the columns.
        rows: cells, which names in files may be.
        left: numbers of the columns that are aligned to the left, as words are.
    """
    cells = [titles, *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def print_facts(facts: Iterable[Sequence[object]]) -> None:
    """Print pairs of a name and a value, as a table without titles."""
    print_line(table(("", ""), facts, left=(0, 1)).partition("\n")[2])


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))


# --- results -------------------------------------------------------------------------------------


def convert(verb: str, source: str, destination: str, work: Work, as_json: bool) -> dict[str, Any]:
    """Do the work of a command with a progress bar; give its result, printed if `as_json`."""
    source_size = _size(source)
    started = time.perf_counter()
    with progress_bar(verb, source_size) as progress:
        more = work(progress)
    seconds = time.perf_counter() - started
    result = {
        "source": source,
        "destination": destination,
        "source_bytes": source_size,
        "destination_bytes": _size(destination),
        "seconds": round(seconds, 6),
        **more,
    }
    if as_json:
        print_line(json.dumps(result))
    return result


def _size(path: str) -> int | None:
    """Give a file's size; None for a pipe, a URL, or what can't be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and path != "-" else None
