"""Options for recipients of new files and for identities that open files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from modcrypt.cli.shared import combine_options, needs_one_of, rare_option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.recipients.recipient import Recipient

VARIABLE = "MODCRYPT_IDENTITY"

recipient_options = combine_options(
    click.option(
        "--to",
        metavar="RECIPIENT",
        multiple=True,
        help="Encrypt to a public key. Repeatable.",
    ),
    rare_option(
        "--recipients-file",
        "recipients_files",
        metavar="FILE",
        multiple=True,
        help="Encrypt to all public keys in a file.",
    ),
)
identity_options = combine_options(
    click.option(
        "--identity",
        "identities",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        envvar=VARIABLE,
        help=f"Private key; default: {VARIABLE}.",
    ),
    rare_option(
        "--identity-passphrase",
        metavar="PATH",
        help="Passphrase of an identity, in a file.",
    ),
    needs_one_of("identity_passphrase", "identities"),
)


def read_recipients(options: dict[str, Any]) -> tuple[Recipient, ...]:
    """Return the recipients that `recipient_options` name, each once.

    Raises:
        KeyMaterialError: A recipient is malformed.
        OSError: A file cannot be read.
    """
    if not (options["to"] or options["recipients_files"]):
        return ()
    from modcrypt.kms.recipients.recipient import (
        PREFIX,
        Recipient,
        check_recipients,
        read_recipients,
    )

    found: list[Recipient] = []
    for text in options["to"]:
        is_line = text.startswith(f"{PREFIX}:")
        found.append(Recipient.parse(text) if is_line else Recipient.load(text))
    for path in options["recipients_files"]:
        found += read_recipients(path)
    return check_recipients(found)


def identity_references(options: dict[str, Any], *, others: bool) -> dict[str, Any]:
    """Return the values of `identity_options` as arguments of Settings.

    `others` says whether other keys are named; then the environment variable does not count, as it
    would accept files from anyone who has the public key.
    """
    paths = options.get("identities") or ()
    source = click.get_current_context().get_parameter_source("identities")
    if not paths or (others and source is ParameterSource.ENVIRONMENT):
        return {}
    from modcrypt.cli.options.kms_options import runs_on_spark
    from modcrypt.kms.keyring.keyring_passphrase import PROMPT

    file = options.get("identity_passphrase")
    prompt = None if runs_on_spark() else PROMPT
    return {
        "identities": tuple(f"file:{path}" for path in paths),
        "identity_passphrase": prompt if file is None else f"file:{file}",
    }
