"""The options that name a key service, and from them to its client and the key tools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import modcrypt
from modcrypt.cli.options.passphrases import (
    PassphraseOptions,
    asked,
    by_default,
    passphrase_options,
    said_by_uri,
)
from modcrypt.cli.shared import together
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
    "pairs",
    "reading_service_options",
    "refuse",
    "service_options",
]

service_options = together(
    click.option(
        "--kms",
        metavar="URI",
        help="The key service that wraps keys: file:PATH, a keyring; env:VARIABLE; "
        "hcvault://HOST/MOUNT; aws-kms://ARN; gcp-kms://NAME; azure-kms://HOST; pkcs11:TOKEN.",
    ),
    click.option(
        "--policy",
        "policy_file",
        metavar="FILE",
        help="A TOML file that names the key service, unless --kms does, the master keys and "
        "columns, and how they are encrypted.",
    ),
    passphrase_options,
)
master_keys_option = click.option(
    "--master-key",
    "master_keys",
    metavar="ID",
    multiple=True,
    help="Accept keys under this master key, besides those that --policy or the URI of --kms "
    "names, as during a rotation. Repeatable.",
)
reading_service_options = together(service_options, master_keys_option)

audit_option = click.option(
    "--audit",
    metavar="FILE",
    help="Append every use of a key to FILE, as a line of JSON.",
)


_PARAMETERS = ("kms", "policy_file", "passphrase_file", "passphrase_env", "passphrase_fd")


class Service:
    """The key service that the options of a command name; nothing is opened yet.

    Args:
        options: the command's, out of which the values of `service_options`, and those of
            `reading_service_options` if it has them, are taken.

    Raises:
        click.UsageError: options of a key service, but none is named.
        ValueError: the policy is wrong.
        OSError: it can't be read.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        kms, policy_file, *passphrase = (options.pop(name) for name in _PARAMETERS)
        self._master_keys: tuple[str, ...] | None = options.pop("master_keys", ()) or None
        self.passphrase = PassphraseOptions(*passphrase)
        self.named = kms is not None or policy_file is not None
        if self.passphrase.given and not self.named:
            raise click.UsageError("a passphrase is for a keyring: name it by --kms or --policy")
        self.policy: Policy | None = None
        if policy_file is not None:
            self.policy = modcrypt.Policy.load(policy_file)
        self._kms = kms if self.policy is None or kms is not None else self.policy.kms

    @property
    def uri(self) -> str:
        """The key service's URI.

        Raises:
            click.UsageError: none is given.
        """
        if self._kms is None:
            raise click.UsageError(
                "a key service is needed: --kms, or --policy with a file that names one"
                if self.policy is None
                else "the policy names no key service: --kms does"
            )
        return self._kms

    @property
    def is_keyring(self) -> bool:
        """Whether it is a local keyring."""
        return self.uri.startswith("file:")

    @cached_property
    def _told(self) -> Secret[bytes] | None:
        """The passphrase of the options; a file descriptor tells it once."""
        told = self.passphrase.told()
        return None if told is None else Secret(told)

    @property
    def _shown(self) -> str:
        return self.uri.partition("#")[0].partition("?")[0]

    @hide_frames
    def client(self) -> KmsClient:
        """Open the key service, asking for a keyring's passphrase where that is needed."""
        if not self.is_keyring:
            if self.passphrase.given:
                raise click.UsageError("a passphrase is for a keyring, which --kms file:PATH names")
            return modcrypt.open_kms(self.uri)
        by_uri = said_by_uri(self.uri) is not None
        told: Passphrase | None = self._told
        if told is None and not by_uri:
            told = by_default()
        if told is not None:
            return modcrypt.open_kms(self.uri, passphrase=told)
        try:
            return modcrypt.open_kms(self.uri)
        except KeyAccessDeniedError:
            if by_uri:
                raise
        return modcrypt.open_kms(self.uri, passphrase=asked(self._shown))

    @hide_frames
    def new_keyring(self, path: str, *, plaintext: bool) -> Keyring:
        """Make the keyring that is not there yet."""
        if plaintext:
            return modcrypt.Keyring.create(path, plaintext=True)
        by_uri = said_by_uri(self.uri)
        passphrase: Passphrase | None = self._told if by_uri is None else by_uri.told()
        if passphrase is None:
            passphrase = by_default() or asked(f"the new {self._shown}", twice=True)
        return modcrypt.Keyring.create(path, passphrase=passphrase)

    def tools(self, audit: str | None = None, *, keep_keks: bool = False) -> KeyTools:
        """Open the key service for the keys of files.

        Args:
            audit: the file to record the uses of keys in.
            keep_keks: keep KEKs for all of the run, or a week.
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
    """Raise a usage error if options of the running command are typed, by their parameters."""
    context = click.get_current_context()
    typed = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if typed:
        raise click.UsageError(f"{', '.join(typed)}: {why}")


def pairs(values: Collection[str], option: str, form: str) -> dict[str, str]:
    """Split each `NAME=ID` at its last "=": more names of columns hold one than ids do."""
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
    """Give the master key that the key service's URI names."""
    found = getattr(tools.client, "default_key", None)
    return found if isinstance(found, str) and found else None
