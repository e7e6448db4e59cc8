"""Options for recipients of new files and for identities that open files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from modcrypt.cli.references import PASSPHRASE_KINDS, Reference, reference_option
from modcrypt.cli.shared import combine_options, needs_one_of
from modcrypt.cli.shared_options import shared_option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.recipients.recipient import Recipient

VARIABLE = "MODCRYPT_IDENTITY"

recipient_option = shared_option(
    "--to RECIPIENT...",
    help="Encrypt to a public key: its line, or a file of lines; rekey, mask and share also take "
    "a policy (.toml), for its keys. Repeatable.",
)
identity_options = combine_options(
    shared_option(
        "--identity REF...",
        "identities",
        type=Reference("identity", bare=True),
        envvar=VARIABLE,
        help=f"Private key; default: {VARIABLE}.",
    ),
    reference_option(
        "--identity-passphrase", "passphrase", "Passphrase of an identity. Default: a prompt.",
        PASSPHRASE_KINDS, bare=True, shared=True, rare=True,
    ),
    needs_one_of("identity_passphrase", "identities"),
)  # fmt: skip


def read_recipients(options: dict[str, Any]) -> tuple[Recipient, ...]:
    """Return the recipients that `recipient_option` names, each once.

    Raises:
        click.UsageError: A master key is named instead.
        KeyMaterialError: A recipient is malformed.
        OSError: A file cannot be read.
    """
    if not options["to"]:
        return ()
    from modcrypt.kms.key_references import names_master_key
    from modcrypt.kms.recipients.recipient import (
        PREFIX,
        Recipient,
        check_recipients,
        read_recipients,
    )

    found: list[Recipient] = []
    for text in options["to"]:
        if names_master_key(text):
            raise click.UsageError(
                "--to takes a recipient or a policy, not a master key; name it in a policy (.toml)"
            )
        is_line = text.startswith(f"{PREFIX}:")
        found += [Recipient.parse(text)] if is_line else read_recipients(text)
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

    prompt = None if runs_on_spark() else "prompt"
    return {
        "identities": tuple(paths),
        "identity_passphrase": options.get("identity_passphrase") or prompt,
    }
