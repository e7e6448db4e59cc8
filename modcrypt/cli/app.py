"""The `modcrypt` program: its groups and commands, with those of plug-ins."""

from __future__ import annotations

import logging

import click
import cloup

from modcrypt.cli import version_line
from modcrypt.cli.output.failures import EXIT_CODES
from modcrypt.cli.output.terminal import WarningLines
from modcrypt.cli.program import LAKE, OTHERS, Program
from modcrypt.cli.shared_options import RareOption
from modcrypt.runtime.log import LOGGER

_FIRST_EXAMPLE = """\b
A first file:
  modcrypt keys generate footer.key
  modcrypt encrypt --key file:footer.key orders.parquet orders.enc.parquet
  modcrypt decrypt --key file:footer.key orders.enc.parquet orders.again.parquet

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
    cls=Program,
    context_settings={
        "max_content_width": 100,
        "formatter_settings": cloup.HelpFormatter.settings(col1_max_width=28),
    },
    epilog=_FIRST_EXAMPLE + EXIT_CODES,
)
@click.version_option(message=version_line(), cls=RareOption)
@click.pass_context
def program(context: click.Context) -> None:
    """Encrypt Parquet files, column by column, and any file as an AGS1 stream.

    Options name keys by file or key service, never by value: other users can see arguments.
    """
    warnings = WarningLines(logging.WARNING)
    LOGGER.addHandler(warnings)
    context.call_on_close(lambda: LOGGER.removeHandler(warnings))


_CONVERSION, _TABLES = "modcrypt.cli.conversion", "modcrypt.cli.rows.tables"

# Modules of the commands, in the order in which users need them; plug-ins add theirs.
program.sections = {
    "Encrypt, read and check": {
        "encrypt": _CONVERSION,
        "decrypt": _CONVERSION,
        "head": _TABLES,
        "cat": _TABLES,
        "schema": _TABLES,
        "verify": "modcrypt.cli.verify",
        "inspect": "modcrypt.cli.inspect",
        "leaks": "modcrypt.cli.leaks",
        "doctor": "modcrypt.cli.doctor",
    },
    "Make and manage keys": {
        "keys": "modcrypt.cli.keys.keys_group",
        "recipients": "modcrypt.cli.recipients",
        "seals": "modcrypt.cli.seals",
    },
    "Change encrypted files": {
        "rekey": _CONVERSION,
        "mask": _CONVERSION,
        "share": _CONVERSION,
        "shred": "modcrypt.cli.shred",
    },
    LAKE: {},
    OTHERS: {"ags1": "modcrypt.cli.ags1.ags1_group"},
}
