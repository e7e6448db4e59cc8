"""Options that name a lake, and the lake that they open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup

from modcrypt.cli.options.kms_options import audit_option, passphrase_option, passphrase_reference
from modcrypt.cli.options.signing_options import read_signing_key, signing_references
from modcrypt.cli.shared_options import shared_option
from modcrypt.errors import printable

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.declarations.declaration import LakeDeclaration
    from modcrypt.lake.declarations.declaration_file import ReadDeclaration
    from modcrypt.lake.lake import Lake

config_option = shared_option(
    "--config FILE",
    help="Declaration of the lake. Default: MODCRYPT_CONFIG, else the first modcrypt.toml here or "
    "in a folder above, if it is trusted.",
)
lake_options = cloup.option_group("Lake", config_option, passphrase_option, audit_option)
dataset_argument = click.argument("dataset", required=False)

MISSING = "there is no modcrypt.toml here or in a folder above"

# Advice of the library about its arguments, and the members of the declaration that replace them.
_ADVICE = {
    "pass master_key_ids to accept that master key too, as during a rotation": (
        "if it is a former master key, add it to previous.master_keys"
    ),
    "; if that is intended, pass require_encrypted=False and no AAD prefix to read it": (
        "; modcrypt apply encrypts it, unless it replaced an encrypted file"
    ),
    "than the one given:": "than its path requires:",
    "root is not its dataset's folder": (
        "the template has changed (previous.aad_prefixes names former ones)"
    ),
    "pass root=, the dataset's folder": "set location in the declaration",
}


def open_lake(options: dict[str, Any], hint: str = "") -> Lake:
    """Return the lake that the options name; print all mistakes in its declaration.

    `hint` begins the message if there is no declaration.

    Raises:
        click.UsageError: There is no declaration.
        ValueError: The declaration is invalid, or was found and is not trusted.
        OSError: It cannot be read.
    """
    from modcrypt.lake.lake import Lake

    declaration = read_declaration(options, hint)
    passphrase, named = passphrase_reference(declaration.kms, options), signing_references(options)
    reference = (named["signing_key"], named.get("signing_passphrase")) if named else None
    return Lake(
        declaration=declaration, passphrase=passphrase, audit=options["audit"],
        signing_key=read_signing_key(options), signing_reference=reference,
    )  # fmt: skip


def read_declaration(
    options: dict[str, Any], hint: str = "", *, records: bool = True
) -> LakeDeclaration:
    """Return the declaration that the options name, without recorded erasures if `records` is off.

    Print all mistakes in it, and raise as `open_lake`.
    """
    from modcrypt.lake.declarations.declaration_file import open_declaration

    if (content := open_declaration(options["config"], records=records)) is None:
        raise click.UsageError(f"{hint}{MISSING}; name it by --config, or set MODCRYPT_CONFIG")
    return valid_declaration(content)


def valid_declaration(content: ReadDeclaration) -> LakeDeclaration:
    """Return a declaration; print all mistakes in it, and raise ValueError, if it has any."""
    from modcrypt.lake.declarations.declaration_faults import MAX_FAULTS

    if content.declaration is not None:
        return content.declaration
    for fault in content.faults:
        click.echo(printable(f"modcrypt: {content.path}: {fault}"), err=True)
    count = "a mistake" if len(content.faults) == 1 else f"{len(content.faults)} mistakes"
    if len(content.faults) > MAX_FAULTS:
        count = f"more than {MAX_FAULTS} mistakes"
    raise ValueError(f"{content.path} has {count}")


def adapt_advice(message: str) -> str:
    """Replace advice about arguments of the library by advice about the declaration."""
    for advice, better in _ADVICE.items():
        message = message.replace(advice, better)
    return message
