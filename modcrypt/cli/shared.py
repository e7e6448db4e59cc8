r"""Options, results and output that Parquet and AGS1 commands share.

The examples of commands begin with \b, after which click keeps the lines of a paragraph.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup.constraints import Constraint, ConstraintViolated, constraint, mutually_exclusive
from cloup.constraints.common import get_params_whose_value_is_set

from modcrypt.cli.datasets.arguments import take_paths
from modcrypt.cli.output import json_output
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.terminal import BOLD, is_terminal, paint, width_of
from modcrypt.cli.shared_options import F, shared_option
from modcrypt.errors import printable
from modcrypt.io.addresses import local_path
from modcrypt.module_ids import ALGORITHMS
from modcrypt.pkmt1.strict_json import load_json

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.keys import Key
    from modcrypt.kms.keyring.keyring_passphrase import Passphrase

SIGPIPE_EXIT = 141  # exit code that a shell reports for a program that SIGPIPE ended
TABLE_ROWS = 1000  # number of rows of a long table that are aligned together, and held in memory


def print_line(text: str) -> None:
    """Print to stdout; end quietly if the reader has closed it, as `| head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        end_if_unread(sys.stdout)
        raise


def print_json(schema: str, fields: Mapping[str, Any]) -> None:
    """Print an object as a line of JSON that names its schema."""
    print_line(json_output.format_json(schema, fields))


def end_if_unread(output: Any) -> None:
    """After a BrokenPipeError, end as SIGPIPE would if the reader of an output has closed it.

    Otherwise the error is of something else, such as the connection to a key service.
    """
    with suppress(OSError, ValueError, AttributeError):  # the output may have no descriptor
        poll = select.poll()
        poll.register(output.fileno(), 0)
        if poll.poll(0):
            drop_stdout()
            sys.exit(SIGPIPE_EXIT)


@contextmanager
def keep_code(code: int) -> Iterator[None]:
    """Let a failure of the block, which writes a result, end with the code found, unless it is 0.

    A fault must not look like a mistake of the call, which a script may repeat or ignore.
    """
    try:
        yield
    except Exception as error:
        error.__dict__["found_code"] = code
        raise


def drop_stdout() -> None:
    """Discard output that is still buffered: Python would try to write it at exit, and fail."""
    with suppress(OSError, ValueError, AttributeError):  # the stream may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def combine_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine several options into one decorator; the help lists them in this order."""

    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def exclude_each_other(*parameters: str) -> Callable[[F], F]:
    """Declare that at most one of some parameters of a command may be given."""

    def message(error: ConstraintViolated) -> str:
        values = error.ctx.params if error.ctx else {}
        given = get_params_whose_value_is_set(error.params, values)
        return f"{' and '.join(param.opts[0] for param in given)} exclude each other"

    return constraint(mutually_exclusive.rephrased(error=message), parameters)


class _Needs(Constraint):
    """A constraint: the first parameter may only be given with one of the others."""

    def help(self, ctx: click.Context) -> str:
        return "the first needs one of the others"

    def check_values(self, params: Sequence[click.Parameter], ctx: click.Context) -> None:
        first, *others = params
        if get_params_whose_value_is_set(params, ctx.params) == [first]:
            message = f"{first.opts[0]} needs {' or '.join(param.opts[0] for param in others)}"
            raise ConstraintViolated(message, ctx=ctx, constraint=self, params=params)


def needs_one_of(parameter: str, *others: str) -> Callable[[F], F]:
    """Declare that a parameter of a command may only be given with one of some others."""
    return constraint(_Needs(), (parameter, *others))


prefix_option = shared_option(
    "--aad-prefix TEXT",
    rare=True,
    help="AAD prefix: text, hex:DIGITS, or file:PATH for the whole content of a file.",
)
root_option = shared_option(
    "--root FOLDER", rare=True, help="Folder of the dataset. Default: the named one."
)
shared_prefix_option = shared_option(
    "--shared-aad-prefix",
    rare=True,
    help="Allow several files with the same AAD prefix; they can be swapped undetected.",
)
request_option = shared_option(
    "--request ID", help="Id of the request to erase, for the record beside modcrypt.toml."
)
prove_option = shared_option(
    "--prove",
    rare=True,
    type=click.Choice(["first", "all"]),
    default="first",
    help="Prove the first new wrap (default) or all.",
)
strict_option = shared_option(
    "--strict", help="Exit with 1 also if something was not authenticated."
)
record_option = shared_option(
    "--record FILE",
    rare=True,
    help="Resume file: record finished files in FILE, and skip files recorded there.",
)
allow_plaintext_option = shared_option(
    "--allow-plaintext",
    rare=True,
    help="Also accept plaintext tables and files, in which nothing is authenticated.",
)
key_length_option = shared_option(
    "--key-length",
    type=click.Choice(["16", "24", "32"]),
    help="Length of new keys in bytes. Default: 16.",
)
restrictions_option = shared_option(
    "--read-restrictions FILE",
    "restrictions",
    rare=True,
    type=click.Path(exists=True, dir_okay=False),
    help="JSON of Iceberg's read restrictions, as a REST catalog sends them: masks of columns and, "
    "for tables, a row filter.",
)
accept_option = shared_option(
    "--accept-algorithm ALGORITHM...",
    "accept_algorithms",
    rare=True,
    type=click.Choice(ALGORITHMS),
    help="Accept files of this algorithm. Default: the policy's; else only AES_GCM_V1 where pages "
    "are opened, because AES_GCM_CTR_V1 does not authenticate them. Repeatable.",
)
threads_option = shared_option(
    "--threads N",
    rare=True,
    type=click.IntRange(min=1),
    help="Number of threads for a single file. Default: by file size and processors.",
)


paths_argument = click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, callback=take_paths
)
path_argument = click.argument("path", metavar="FILE|DIR", callback=take_paths)
optional_paths_argument = click.argument(
    "paths", metavar="[PATH]...", nargs=-1, callback=take_paths
)


def read_json(path: str | None) -> Any:
    """Return the value of a file of JSON without repeated members; None without a file."""
    if path is None:
        return None
    try:
        return load_json(Path(path).read_bytes())
    except (ValueError, RecursionError):
        message = f"{printable(path)} is not a file of JSON, or repeats a member"
        raise click.UsageError(message) from None


def check_paths_exist(paths: Iterable[str]) -> None:
    """Raise FileNotFoundError for the first local path that does not exist."""
    for path in paths:
        if (local := local_path(path)) is not None and not os.path.exists(local):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def read_key(reference: str | None, what: str) -> Key | None:
    """Read the key that a reference of options names; return None without a reference."""
    if reference is None:
        return None
    from modcrypt.kms.key_references import names_master_key  # not to be loaded for the help
    from modcrypt.kms.key_references import read_key as read

    if names_master_key(reference):
        raise click.UsageError("--key names a master key; name its key service by --kms instead")
    return read(reference, what)


def read_aad_prefix(options: Mapping[str, Any], *, may_be_empty: bool = False) -> bytes | None:
    """Return the AAD prefix of `prefix_option`; None if it is not given.

    Text that begins with `file:` or `hex:` is written as `text:...`.

    An empty one is refused unless it `may_be_empty`, as that of files which Polars wrote.
    """
    text: str | None = options.get("aad_prefix")
    if text is None:
        return None
    kind, colon, rest = text.partition(":")
    if colon and kind == "file":
        with open(os.path.expanduser(rest), "rb") as file:
            prefix = file.read()
    elif colon and kind == "hex":
        try:
            prefix = bytes.fromhex(rest)
        except ValueError:
            raise click.UsageError("--aad-prefix hex: takes pairs of hex digits") from None
    else:
        prefix = os.fsencode(rest if colon and kind == "text" else text)
    if not prefix and not may_be_empty:
        raise click.UsageError("the AAD prefix is empty; omit the option to use no prefix")
    return prefix


def format_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, left: Collection[int] = ()
) -> str:
    """Return an aligned table, as wide as the terminal that stdout is; None becomes a dash.

    Cells may come from hostile files.

    `left` numbers the columns aligned to the left, such as columns of text.
    """
    from modcrypt.cli.output.text_table import align_cells, wrap_cells  # not for the help

    cells = [["-" if value is None else printable(str(value)) for value in row] for row in rows]
    right = set(range(len(titles))) - set(left)
    if (width := width_of(sys.stdout)) is None:
        return align_cells(titles, cells, right=right)[0]
    head, line, body = wrap_cells(titles, cells, right=right, width=width).partition("\n")
    return f"{paint(head, BOLD, sys.stdout)}{line}{body}"


def print_long_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of text, with its titles again after `TABLE_ROWS`; nothing without rows."""
    rest = iter(rows)
    while part := list(islice(rest, TABLE_ROWS)):
        print_line(format_table(titles, part, left=range(len(titles))))


def print_list(heading: str, sentences: Sequence[str]) -> None:
    """Print sentences under a heading, if there are any."""
    if sentences:
        print_line(f"\n{heading}")
        print_line("\n".join(f"  {printable(use_option_names(each))}" for each in sentences))


def format_failures(failures: Iterable[Sequence[str]], kind: str = "error") -> str:
    """Return a table of failures: file, error code and message of each."""
    return format_table(("file", kind, "message"), failures, left=(0, 1, 2))


def format_counts(counts: Mapping[str, int], words: Mapping[str, str] | None = None) -> str:
    """Return the counts that are not 0, with their names or with the words for these names."""
    words = words or {}
    return ", ".join(f"{count} {words.get(name, name)}" for name, count in counts.items() if count)


def print_facts(facts: Iterable[Sequence[object]]) -> None:
    """Print pairs of a name and a value as a table without titles."""
    print_line(format_table(("", ""), facts, left=(0, 1)).partition("\n")[2])


def confirm(consequence: str, yes: bool) -> None:
    """Return if `yes` was given or the user agrees on the terminal.

    Args:
        consequence: What the running command does, as "deletes the table".

    Raises:
        click.UsageError: The user does not agree, or there is no terminal.
    """
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError(f"this {consequence}; pass --yes to confirm it")
    click.echo(f"modcrypt: this {consequence}. Continue? [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.UsageError("not confirmed; nothing was changed")


def read_passphrase(what: str, reference: str | None, *, twice: bool = False) -> Passphrase | None:
    """Return the passphrase that a reference names, or ask for that of `what`; None without."""
    from modcrypt.kms.keyring.keyring_passphrase import ask_passphrase, make_reference_asker

    if reference == "prompt":
        return ask_passphrase(what, twice=twice)
    return None if reference is None else make_reference_asker(reference)


def refuse_existing(path: Path) -> None:
    """Raise a usage error if the path of a new key exists: no option replaces keys."""
    if path.is_symlink() or path.exists():
        raise click.UsageError(f"{path} exists and may be needed; choose another name")
