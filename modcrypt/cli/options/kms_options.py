"""Options that name a key service, and functions that open its client and the key tools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import modcrypt
from modcrypt.cli.options.passphrases import (
    PassphraseOptions,
    ask_passphrase,
    default_passphrase,
    passphrase_of_uri,
    passphrase_options,
)
from modcrypt.cli.shared import combine_options
from modcrypt.errors import KeyAccessDeniedError
from modcrypt.fork_safety import cached_property
from modcrypt.keys import Secret
from modcrypt.tracebacks import hide_frames

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.audit import Audit
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.keyring.keyring import Keyring, Passphrase
    from modcrypt.kms.policy import Policy

__all__ = [
    "Service",
    "audit_option",
    "default_key",
    "master_keys_option",
    "parse_pairs",
    "reading_service_options",
    "refuse",
    "service_options",
]

service_options = combine_options(
    click.option(
        "--kms",
        metavar="URI",
        help="Key service: file:PATH (a keyring), env:VARIABLE, hcvault://HOST/MOUNT, "
        "aws-kms://ARN, gcp-kms://NAME, azure-kms://HOST or pkcs11:TOKEN.",
    ),
    click.option(
        "--policy",
        "policy_file",
        metavar="FILE",
        help="TOML file with the master keys, the columns and how to encrypt them, and the key "
        "service unless --kms names it.",
    ),
    passphrase_options,
)
master_keys_option = click.option(
    "--master-key",
    "master_keys",
    metavar="ID",
    multiple=True,
    help="Accept keys under this master key besides those of the policy or the URI, for "
    "example during a rotation. Repeatable.",
)
reading_service_options = combine_options(service_options, master_keys_option)

audit_option = click.option(
    "--audit",
    metavar="FILE",
    help="Append each use of a key to FILE, as a line of JSON.",
)


_PARAMETERS = ("kms", "policy_file", "passphrase_file", "passphrase_env", "passphrase_fd")


class Service:
    """The key service that the options of a command name; it is opened on request.

    Args:
        options: Values of the command's options; those of `service_options`, and of
            `reading_service_options` if the command has them, are removed.

    Raises:
        click.UsageError: A passphrase is given, but no key service.
        ValueError: The policy is invalid.
        OSError: The policy cannot be read.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        kms, policy_file, *passphrase = (options.pop(name) for name in _PARAMETERS)
        self._master_keys: tuple[str, ...] | None = options.pop("master_keys", ()) or None
        self.passphrase = PassphraseOptions(*passphrase)
        self.named = kms is not None or policy_file is not None
        if self.passphrase.is_given and not self.named:
            raise click.UsageError("a passphrase needs a keyring; name it by --kms or --policy")
        self.policy: Policy | None = None
        if policy_file is not None:
            self.policy = modcrypt.Policy.load(policy_file)
        self._kms = kms if self.policy is None or kms is not None else self.policy.kms

    @property
    def uri(self) -> str:
        """The URI of the key service.

        Raises:
            click.UsageError: Neither the options nor the policy name a key service.
        """
        if self._kms is None:
            raise click.UsageError(
                "a key service is needed: --kms, or --policy with a file that names one"
                if self.policy is None
                else "the policy names no key service; name it by --kms"
            )
        return self._kms

    @property
    def is_keyring(self) -> bool:
        """True if the key service is a local keyring."""
        return self.uri.startswith("file:")

    @cached_property
    def _passphrase_of_options(self) -> Secret[bytes] | None:
        """The passphrase of the options, cached as a file descriptor can be read only once."""
        passphrase = self.passphrase.read()
        return None if passphrase is None else Secret(passphrase)

    @property
    def _display_uri(self) -> str:
        return self.uri.partition("#")[0].partition("?")[0]

    @hide_frames
    def client(self) -> KmsClient:
        """Open the key service; ask for a keyring's passphrase if necessary."""
        if not self.is_keyring:
            if self.passphrase.is_given:
                raise click.UsageError("a passphrase needs a keyring; name one by --kms file:PATH")
            return modcrypt.open_kms(self.uri)
        by_uri = passphrase_of_uri(self.uri) is not None
        passphrase: Passphrase | None = self._passphrase_of_options
        if passphrase is None and not by_uri:
            passphrase = default_passphrase()
        if passphrase is not None:
            return modcrypt.open_kms(self.uri, passphrase=passphrase)
        try:
            return modcrypt.open_kms(self.uri)
        except KeyAccessDeniedError:
            if by_uri:
                raise
        return modcrypt.open_kms(self.uri, passphrase=ask_passphrase(self._display_uri))

    @hide_frames
    def new_keyring(self, path: str, *, plaintext: bool) -> Keyring:
        """Create the keyring, which does not exist yet."""
        if plaintext:
            return modcrypt.Keyring.create(path, plaintext=True)
        by_uri = passphrase_of_uri(self.uri)
        passphrase: Passphrase | None = (
            self._passphrase_of_options if by_uri is None else by_uri.read()
        )
        if passphrase is None:
            passphrase = default_passphrase() or ask_passphrase(
                f"the new {self._display_uri}", twice=True
            )
        return modcrypt.Keyring.create(path, passphrase=passphrase)

    def tools(self, audit: str | None = None, *, keep_keks: bool = False) -> KeyTools:
        """Open the key service for the keys of files.

        Args:
            audit: File that records the uses of keys.
            keep_keks: Whether to cache KEKs for the whole run, up to `MAX_CACHE_LIFETIME`.
        """
        from modcrypt.kms.policy import MAX_CACHE_LIFETIME

        record: Audit | None = None if audit is None else modcrypt.audit_to_json_lines(audit)
        client = self.client()
        lifetime: dict[str, Any] = (
            {"cache_lifetime_seconds": MAX_CACHE_LIFETIME} if keep_keks else {}
        )
        ids = self._master_keys
        if self.policy is None:
            return modcrypt.KeyTools(client, audit=record, master_key_ids=ids, **lifetime)
        policy = replace(self.policy, **lifetime)
        return modcrypt.KeyTools.from_policy(policy, kms=client, audit=record, master_key_ids=ids)


# --- which options are given ---------------------------------------------------------------------


def refuse(parameters: Collection[str], why: str) -> None:
    """Raise a usage error if any of these parameters of the running command is typed."""
    context = click.get_current_context()
    typed = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if typed:
        raise click.UsageError(f"{', '.join(typed)}: {why}")


def parse_pairs(values: Collection[str], option: str, form: str) -> dict[str, str]:
    """Split each `NAME=ID` at its last "=": column names contain "=" more often than ids do."""
    split: dict[str, str] = {}
    for value in values:
        name, _, rest = value.rpartition("=")
        if not name or not rest:
            raise click.UsageError(f"{option} takes {form}")
        if name in split:
            raise click.UsageError(f"{option} is given twice for {name}")
        split[name] = rest
    return split


def default_key(tools: Any) -> str | None:
    """Return the master key that the key service's URI names; None if it names none."""
    key_id = getattr(tools.client, "default_key", None)
    return key_id if isinstance(key_id, str) and key_id else None
