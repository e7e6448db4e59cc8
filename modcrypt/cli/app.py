"""The `modcrypt` program: its groups and commands, with those of plug-ins."""

from __future__ import annotations

import logging

import click
import cloup

from modcrypt.cli import version_line
from modcrypt.cli.ags1.ags1_group import ags1
from modcrypt.cli.conversion import decrypt, encrypt, mask, rekey, share
from modcrypt.cli.doctor import doctor
from modcrypt.cli.help.help_screens import add_help_options
from modcrypt.cli.help.manual import complete_paths, completion, man
from modcrypt.cli.inspect import inspect
from modcrypt.cli.keys.keys_group import keys
from modcrypt.cli.leaks import leaks
from modcrypt.cli.output.failures import EXIT_CODES
from modcrypt.cli.output.terminal import WarningLines
from modcrypt.cli.program import LAKE, OTHERS, Program
from modcrypt.cli.recipients import recipients
from modcrypt.cli.rows.tables import cat, head, schema
from modcrypt.cli.seals import seals
from modcrypt.cli.shared_options import RareOption, place_options
from modcrypt.cli.shred import shred
from modcrypt.cli.verify import verify
from modcrypt.runtime.log import LOGGER
from modcrypt.runtime.plugins import COMMANDS, load_all

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

    Arguments, which other users can see, only name keys, in files or a key service.
    """
    warnings = WarningLines(logging.WARNING)
    LOGGER.addHandler(warnings)
    context.call_on_close(lambda: LOGGER.removeHandler(warnings))


# In the order in which users need them.
_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Encrypt, read and check": (
        encrypt, decrypt, head, cat, schema, verify, inspect, leaks, doctor,
    ),
    "Make and manage keys": (keys, recipients, seals),
    "Change encrypted files": (rekey, mask, share, shred),
    LAKE: (),
    OTHERS: (ags1,),
}  # fmt: skip
for _title, _commands in _SECTIONS.items():
    program.section(_title, *_commands)
for _add_commands in load_all(COMMANDS):
    _add_commands(program)
program.add_to_section(OTHERS, completion, man)
place_options(program)
add_help_options(program)
complete_paths(program)
