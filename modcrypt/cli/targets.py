"""`--to`: how a command encrypts the files that it makes of encrypted ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

import modcrypt
from modcrypt.cli.datasets.arguments import find_declared
from modcrypt.cli.datasets.declared import Declared, find_named
from modcrypt.cli.former_options import FormerOptions
from modcrypt.cli.options.kms_options import dataset_settings, named_service
from modcrypt.cli.options.parquet_options import encryption_settings
from modcrypt.cli.options.recipient_options import read_recipients, recipient_option
from modcrypt.cli.options.signing_options import sign_options, signing_references
from modcrypt.cli.references import refuse_descriptors
from modcrypt.cli.shared import combine_options

PARAMETERS = ("to", "sign", "sign_passphrase")

target_options = combine_options(recipient_option, sign_options)


def is_target_named() -> bool:
    """Return whether the running command is to encrypt under other keys."""
    params = click.get_current_context().params
    return bool(former_options().new or any(params[name] for name in PARAMETERS))


def former_options() -> FormerOptions:
    """Return the options that were typed and that the running command no longer has."""
    former = click.get_current_context().obj
    return former if isinstance(former, FormerOptions) else FormerOptions()


def target_settings(options: dict[str, Any], encrypt: click.Command) -> modcrypt.Settings:
    """Return how new files are encrypted, and remove the options that say it.

    The former options are those of `encrypt`.

    Raises:
        click.UsageError: No keys are named, or those named contradict each other.
        ValueError: The policy is invalid.
        OSError: A file cannot be read.
    """
    own = {name: options.pop(name) for name in PARAMETERS}
    if (declared := _find_dataset(own["to"])) is not None:
        given = {name: options[name] for name in ("passphrase", "audit")}
        return dataset_settings(declared, given, signing_references(own))
    policies = [text for text in own["to"] if text.endswith(".toml")]
    own["to"] = tuple(text for text in own["to"] if text not in policies)
    former = former_options().new
    if len(policies) + bool(former) > 1:
        raise click.UsageError("--to takes one policy, which the former --new options contradict")
    if former:
        return _former_settings(former, encrypt, {**own, "audit": options["audit"]})
    more = {"recipients": read_recipients(own), **signing_references(own)}
    if policies:
        return _policy_settings(policies[0], options, more)
    if not own["to"]:
        raise click.UsageError("name the keys of the new files by --to: a policy, or a recipient")
    return modcrypt.Settings(**more)


def _find_dataset(targets: tuple[str, ...]) -> Declared | None:
    """Return the dataset that --to names, or in which the new files lie; None for neither.

    Raise click.UsageError if both differ, or something else says how the files are encrypted.
    """
    named = [found for text in targets if (found := find_named(text)) is not None]
    place = find_declared(None, writes=True)
    declared = named[0] if named else place
    if declared is None:
        return None
    others = len(targets) > 1 or len(named) < len(targets) or former_options().new
    if others or (place is not None and place.key != declared.key):
        raise click.UsageError(
            f"--to: {place or declared} and how its files are encrypted; remove other keys"
        )
    return declared


def _policy_settings(path: str, options: dict[str, Any], more: dict[str, Any]) -> modcrypt.Settings:
    """Return the settings of a policy file."""
    policy = modcrypt.Policy.load(path)
    service = {"kms": None, "policy_file": path, "passphrase": None}
    if not policy.names_keys:
        service["audit"] = options["audit"]
        service["passphrase"] = _passphrase_for(policy.kms, options)
    settings = named_service(service, needed=True, **more)
    assert settings is not None  # a policy is named
    return settings


def _passphrase_for(kms: str | None, options: dict[str, Any]) -> str | None:
    """Return the passphrase that the options name, if it is that of the keyring of new files."""
    source, policy_file = options["kms"], options["policy_file"]
    if source is None and policy_file is not None:
        source = modcrypt.Policy.load(policy_file).kms
    passphrase: str | None = options["passphrase"]
    keyring = None if kms is None else _keyring(kms)
    return passphrase if keyring is not None and source and keyring == _keyring(source) else None


def _keyring(kms: str) -> str | None:
    """Return the path of a keyring whose URI names no passphrase."""
    from modcrypt.kms.keyring.keyring_uri import keyring_path, passphrase_of_uri

    if not kms.startswith("file:") or passphrase_of_uri(kms) is not None:
        return None
    return os.path.realpath(keyring_path(kms))


def _former_settings(
    former: Sequence[str], encrypt: click.Command, own: dict[str, Any]
) -> modcrypt.Settings:
    """Return the settings of `--new` options, which `encrypt` parses as its own."""
    master = click.get_current_context().params["spark_master"]
    spark = [] if master is None else [f"--spark={master}"]
    try:
        paths = ("--", "./SOURCE", "./DESTINATION")  # no names of datasets
        with encrypt.make_context("encrypt", [*former, *spark, *paths]) as context:
            if spark:
                refuse_descriptors()
            return encryption_settings({**context.params, **own})
    except click.UsageError as error:
        raise click.UsageError(f"former --new options: {error.message}") from None
