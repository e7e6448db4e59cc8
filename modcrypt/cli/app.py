"""The `modcrypt` program: its groups and commands, and how it ends."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
import cloup

from modcrypt.cli import version_line
from modcrypt.cli.ags1 import ags1
from modcrypt.cli.doctor import doctor
from modcrypt.cli.help.manual import complete_paths, completion, man
from modcrypt.cli.help.short_help import add_short_help
from modcrypt.cli.iceberg.iceberg_group import iceberg
from modcrypt.cli.inspect import inspect
from modcrypt.cli.keys import keys
from modcrypt.cli.lake.lake_commands import apply, status
from modcrypt.cli.lake.lake_questions import report, why
from modcrypt.cli.lake.lake_trust import trust
from modcrypt.cli.leaks import leaks
from modcrypt.cli.output.failures import EXIT_CODES, explain
from modcrypt.cli.output.signals import Stopped
from modcrypt.cli.output.terminal import RED, WarningLines, paint, wrap_words
from modcrypt.cli.parquet import decrypt, encrypt
from modcrypt.cli.recipients import recipients
from modcrypt.cli.rewrite import mask, rekey, share
from modcrypt.cli.rows.tables import cat, head, schema
from modcrypt.cli.shared import drop_stdout, end_with_help, print_json
from modcrypt.cli.shred import shred
from modcrypt.cli.signing.seals import seals
from modcrypt.cli.spark_files import spark
from modcrypt.cli.verification.verify import verify
from modcrypt.log import LOGGER


class _Program(cloup.Group):
    """A group that reports a failure as one line on stderr and an exit code of `EXIT_CODES`."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        more["standalone_mode"] = False  # click itself would exit with 1 without a failure
        try:
            result = super().main(arguments, *rest, **more)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (Exception, Stopped) as error:
            failure = explain(error, arguments)
            click.echo(paint(wrap_words(failure.line(), sys.stderr), RED, sys.stderr), err=True)
            if "--json" in arguments:
                try:
                    print_json("failure", failure.fields())
                except OSError:  # stdout itself is what failed
                    drop_stdout()
            elif isinstance(error, OSError):
                drop_stdout()
            sys.exit(failure.code)
        sys.exit(result if isinstance(result, int) else 0)


# click keeps the lines of a paragraph after \b as they are.
_FIRST_EXAMPLE = """\b
A first file:
  (umask 077; openssl rand -hex 16 > footer.key)
  modcrypt encrypt --key-file footer.key orders.parquet orders.enc.parquet
  modcrypt decrypt --key-file footer.key orders.enc.parquet orders.again.parquet

\b
With master keys in a keyring, whose passphrase modcrypt asks for:
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt encrypt --kms file:lake.keyring#footer orders.parquet orders.kms.parquet
  modcrypt keys scan orders.kms.parquet
  modcrypt decrypt --kms file:lake.keyring orders.kms.parquet orders.back.parquet

\b
Exit codes:
"""


@cloup.group(
    cls=_Program,
    context_settings={
        "help_option_names": ["--help"],
        "max_content_width": 100,
        "formatter_settings": cloup.HelpFormatter.settings(col1_max_width=28),
    },
    epilog=_FIRST_EXAMPLE + EXIT_CODES,
    invoke_without_command=True,
)
@click.version_option(message=version_line())
@click.pass_context
def program(context: click.Context) -> None:
    """Encrypt Parquet files, column by column, and any file as an AGS1 stream.

    Keys come from files, environment variables or file descriptors, never from arguments, which
    other users could see, or from a key service that --kms or a policy names.
    """
    warnings = WarningLines(logging.WARNING)
    LOGGER.addHandler(warnings)
    context.call_on_close(lambda: LOGGER.removeHandler(warnings))
    end_with_help(context)


_SECTIONS = {
    "Files and their rows": (
        encrypt,
        decrypt,
        rekey,
        mask,
        share,
        verify,
        inspect,
        leaks,
        schema,
        head,
        cat,
    ),
    "Keys": (keys, recipients, seals, shred),
    "A lake in one file, modcrypt.toml": (status, apply, report, why, trust),
    "Other formats and engines": (ags1, iceberg, spark),
    "This program": (doctor, completion, man),
}
for _title, _commands in _SECTIONS.items():
    program.section(_title, *_commands)
add_short_help(program)
complete_paths(program)
