"""Options for the signatures of writers: of new files, and of files that are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.references import PASSPHRASE_KINDS, reference_option
from modcrypt.cli.shared import combine_options, needs_one_of
from modcrypt.cli.shared_options import shared_option
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey

SIGNING_SERVICES = ("hcvault", "vault", "aws-kms", "pkcs11")
sign_options = combine_options(
    reference_option(
        "--sign", "signing key", "Signing key, also as a URI of a key service.",
        services=SIGNING_SERVICES, bare=True, shared=True,
    ),
    reference_option(
        "--sign-passphrase", "passphrase", "Passphrase of the signing key. Default: a prompt.",
        PASSPHRASE_KINDS, bare=True, shared=True, rare=True,
    ),
    needs_one_of("sign_passphrase", "sign"),
)  # fmt: skip
signed_by_option = shared_option(
    "--signed-by VERIFIER...",
    "signed_by",
    rare=True,
    help="Require a writer's signature or seal, by its .pub file or line. Repeatable.",
)
valid_option = shared_option(
    "--valid-days DAYS",
    type=click.IntRange(min=0),
    help="Days until readers refuse the seal; 0: no limit. Default: as the old one.",
)
seal_options = combine_options(
    signed_by_option,
    shared_option(
        "--seal-at-least N",
        rare=True,
        type=click.IntRange(min=1),
        help="With --signed-by: require seal N or a newer one, to reject an older state.",
    ),
)


def signing_references(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `sign_options` as arguments of Settings."""
    if not options.get("sign"):
        return {}
    from modcrypt.cli.options.kms_options import runs_on_spark
    from modcrypt.kms.signing.signing_keys import names_service

    key, passphrase = options["sign"], options["sign_passphrase"]
    if names_service(key):
        if passphrase is not None:
            raise click.UsageError("--sign-passphrase is for a signing key in a file")
        return {"signing_key": key}
    prompt = None if runs_on_spark() else "prompt"
    return {"signing_key": key, "signing_passphrase": passphrase or prompt}


def warn_about_lost_signatures(files: int) -> None:
    """Print how many files lost the signature of their writer, if any, and what helps."""
    if files:
        click.echo(
            f"modcrypt: the writer's signature of {format_count(files, 'file')} was dropped; "
            "pass --sign to sign again",
            err=True,
        )


def read_signing_key(options: dict[str, Any]) -> SigningKey | None:
    """Return the key that `sign_options` name; None if they name none, or do not exist.

    Raise ValueError if the URI of a key service is invalid, or names no key; and KeyRetrievalError
    as `SigningKey.load` and `SigningKey.open`.
    """
    if not (references := signing_references(options)):
        return None
    from modcrypt.kms.signing.signing_keys import load_signing_key

    return load_signing_key(references["signing_key"], references.get("signing_passphrase"))


def read_signers(options: dict[str, Any]) -> tuple[VerifyingKey, ...]:
    """Return the keys that `signed_by_option` names.

    Raise KeyMaterialError if a key is malformed, and OSError if a file cannot be read.
    """
    texts = options.get("signed_by") or ()
    if not texts:
        return ()
    from modcrypt.kms.signing.signing_keys import read_verifying_keys

    return read_verifying_keys(texts)
