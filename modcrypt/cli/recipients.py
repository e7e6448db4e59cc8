"""`modcrypt recipients`: public keys to encrypt files to, and the recipients of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import cloup

import modcrypt
from modcrypt.cli.batch_report import FileReport
from modcrypt.cli.options.parquet_options import decryption_options, decryption_settings
from modcrypt.cli.options.recipient_options import read_recipients, recipient_option
from modcrypt.cli.options.signing_options import (
    sign_options,
    signing_references,
    warn_about_lost_signatures,
)
from modcrypt.cli.shared import format_table, paths_argument, print_line
from modcrypt.cli.shared_options import VerbGroup, option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.settings import Settings

_GROUP_EXAMPLE = """\b
Examples: a key pair for a partner, a file for the partner, and one more recipient
  modcrypt keys generate --kind recipient partner.key
  modcrypt encrypt --to partner.pub orders.parquet orders.partner.parquet
  modcrypt keys generate --kind recipient colleague.key
  modcrypt recipients add --identity file:partner.key --to colleague.pub \\
      orders.partner.parquet
  modcrypt cat --identity file:colleague.key orders.partner.parquet"""

_LIST_EXAMPLE = """\b
Example:
  modcrypt recipients list orders.partner.parquet"""

_ADD_EXAMPLE = """\b
Examples: to files that your identity opens; to files of a key service
  modcrypt recipients add --identity file:me.key --to partner.pub orders.partner.parquet
  modcrypt recipients add --policy lake.toml --to partner.pub lake/orders.parquet"""

_REMOVE_EXAMPLE = """\b
Examples: from the list; also from the data, with fresh keys for those that remain
  modcrypt recipients remove --identity file:me.key --recipient partner.pub orders.parquet
  modcrypt recipients remove --identity file:me.key --recipient partner.pub \\
      --to me.pub orders.parquet"""


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def recipients() -> None:
    """List and change who can open files.

    The public key of a pair, its recipient, may be published; files are encrypted --to it. The
    private key, its identity, opens them. Anyone who has the public key can make files that open:
    an identity proves nothing about who wrote a file.
    """


@recipients.command("list", epilog=_LIST_EXAMPLE)
@paths_argument
def list_(*, paths: tuple[str, ...], as_json: bool) -> int:
    """List the recipients of files, by their ids.

    PATH is a file or a folder. No key is needed. The list comes from the file and is not
    authenticated.
    """
    listed = list(modcrypt.jobs.list_recipients(list(paths)))
    report = FileReport("recipients.file", as_json)
    for file in listed:
        report.add(file)
    if as_json:
        return report.code
    rows = [
        (file.path, kind, id_)
        for file in listed
        for kind, id_ in [
            *((recipient.kind, recipient.id) for recipient in file.recipients),
            *([("master key", file.master_key_id)] if file.master_key_id else []),
        ]
    ]
    print_line(format_table(("file", "kind", "recipient"), rows, left=(0, 1, 2)))
    report.print_failures()
    return report.code


@recipients.command(epilog=_ADD_EXAMPLE)
@paths_argument
@recipient_option
@sign_options
@decryption_options
def add(
    *, paths: tuple[str, ...], jobs: int | None, as_json: bool, **options: Any
) -> int:  # fmt: skip
    """Let further recipients open files.

    PATH is a file or a folder. Only the footer of a file is written again, and no page changes. An
    identity must open the files; files without recipients also open with their key service.
    """
    if not (to := read_recipients(options)):
        raise click.UsageError("no recipient is named; use --to")
    settings = _open_settings(options, [recipient.id for recipient in to], belong=True)
    run = partial(modcrypt.jobs.add_recipients, list(paths), to, jobs=jobs)
    return _report_changes("Adding recipients", as_json, settings, run).code


@recipients.command(epilog=_REMOVE_EXAMPLE)
@paths_argument
@option(
    "--recipient RECIPIENT...",
    "removed",
    required=True,
    help="Recipient to remove: its .pub file, its line or its id. Repeatable.",
)
@recipient_option
@sign_options
@decryption_options
def remove(
    *, paths: tuple[str, ...], removed: tuple[str, ...], jobs: int | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Remove recipients from files.

    PATH is a file or a folder. A removed recipient may have kept an earlier copy of a file or its
    data keys, which also open the file afterwards. To replace the data keys, and encrypt every page
    again, name all recipients that remain by --to.
    """
    ids = [_read_id(text) for text in removed]
    remaining = read_recipients(options)
    settings = _open_settings(options, ids, belong=False)
    run = partial(
        modcrypt.jobs.remove_recipients, list(paths), ids, new_recipients=remaining, jobs=jobs
    )
    report = _report_changes("Removing recipients", as_json, settings, run)
    if report.counts["changed"]:
        click.echo(
            "modcrypt: data keys stay the same: removed recipients may have kept them, or earlier "
            "copies of the files; name those that remain by --to to encrypt again with fresh keys",
            err=True,
        )
    return report.code


def _open_settings(options: dict[str, Any], ids: Sequence[bytes], *, belong: bool) -> Settings:
    """Return the settings that open and sign files.

    Raise a usage error if the declaration of a lake does not name, or names, recipients.
    """
    settings = decryption_settings(options).evolve(**signing_references(options))
    if (declared := getattr(settings, "declared", None)) is None:
        return settings
    known = {recipient.id for recipient in declared["recipients"]}
    if any((id_ in known) is not belong for id_ in ids):
        raise click.UsageError(
            "the declaration of the dataset names its recipients; change it and run modcrypt apply"
        )
    return settings


def _read_id(text: str) -> bytes:
    from modcrypt.kms.recipients.recipient import PREFIX, parse_ids

    if text.startswith(f"{PREFIX}:"):
        return modcrypt.Recipient.parse(text).id
    try:
        return parse_ids([text])[0]
    except ValueError:
        return modcrypt.Recipient.load(text).id


def _report_changes(
    doing: str, as_json: bool, settings: Settings, run: Callable[..., object]
) -> FileReport:
    """Run a change of recipients, and print its results; return their report."""
    report = FileReport("recipients.change", as_json, by_code=True)
    change = partial(run, decryption=settings, signing_key=settings.writer_key)
    with settings.hand_over():
        report.run(doing, lambda show: change(progress=show))
    report.print_failures()
    if not as_json:
        print_line(report.format_counts([*report.counts]))
    warn_about_lost_signatures(report.unsigned)
    return report
