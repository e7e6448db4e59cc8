"""The options that name a key service, and from them to its client and the key tools."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import modcrypt
from modcrypt.cli.passphrases import PassphraseOptions, asked, passphrase_options, said_by_uri
from modcrypt.cli.shared import together
from modcrypt.errors import KeyAccessDeniedError

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.audit import Audit
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.keyring import Keyring
    from modcrypt.kms.policy import Policy

__all__ = [
    "Service",
    "audit_option",
    "given",
    "pairs",
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
audit_option = click.option(
    "--audit",
    metavar="FILE",
    help="Append every use of a key to FILE, as a line of JSON.",
)


class Service:
    """The key service that the options of a command name; nothing is opened yet.

    Args: the values of `service_options`.

    Raises:
        click.UsageError: options of a key service, but none is named.
        ValueError: the policy is wrong.
        OSError: it can't be read.
    """

    def __init__(
        self,
        *,
        kms: str | None,
        policy_file: str | None,
        passphrase_file: str | None,
        passphrase_env: str | None,
        passphrase_fd: int | None,
    ) -> None:
        self.passphrase = PassphraseOptions(passphrase_file, passphrase_env, passphrase_fd)
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

    def client(self) -> KmsClient:
        """Open the key service, asking for a keyring's passphrase where that is needed."""
        if not self.is_keyring:
            if self.passphrase.given:
                raise click.UsageError("a passphrase is for a keyring, which --kms file:PATH names")
            return modcrypt.open_kms(self.uri)
        by_uri = said_by_uri(self.uri) is not None
        told = self.passphrase.told() if by_uri else self.passphrase.told_or_default()
        if told is not None:
            return modcrypt.open_kms(self.uri, passphrase=told)
        try:
            return modcrypt.open_kms(self.uri)
        except KeyAccessDeniedError:
            if by_uri:
                raise
        return modcrypt.open_kms(self.uri, passphrase=asked("the keyring"))

    def new_keyring(self, path: str, *, plaintext: bool) -> Keyring:
        """Make the keyring that is not there yet."""
        if plaintext:
            return modcrypt.Keyring.create(path, plaintext=True)
        told = (said_by_uri(self.uri) or self.passphrase).told_or_default()
        passphrase = asked("the new keyring", twice=True) if told is None else told
        return modcrypt.Keyring.create(path, passphrase=passphrase)

    def tools(self, audit: str | None = None, kek_length: int | None = None) -> KeyTools:
        """Open the key service for the keys of files.

        Args:
            audit: the file to record the uses of keys in.
            kek_length: of fresh KEKs, in bytes, which are then kept for all of the run.
        """
        record: Audit | None = None if audit is None else modcrypt.audit_to_json_lines(audit)
        client = self.client()
        if kek_length is not None:
            aad = "" if self.policy is None else self.policy.kms_aad or ""
            return modcrypt.KeyTools(
                client,
                kms_aad=aad,
                cache_lifetime_seconds=math.inf,
                kek_length_bits=8 * kek_length,
                audit=record,
            )
        if self.policy is None:
            return modcrypt.KeyTools(client, audit=record)
        return modcrypt.KeyTools.from_policy(self.policy, kms=client, audit=record)


# --- which options are given ---------------------------------------------------------------------


def given(names: Collection[str]) -> list[str]:
    """Give those options of the running command, by their parameters' names, that are typed."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def refuse(names: Collection[str], why: str) -> None:
    """Raise a usage error if some of these options are given."""
    if found := given(names):
        raise click.UsageError(f"{', '.join(found)}: {why}")


def pairs(values: Collection[str], option: str, form: str) -> list[tuple[str, str]]:
    """Split `NAME=ID` at the last "=": more names of columns hold one than ids do."""
    split: list[tuple[str, str]] = []
    for value in values:
        name, _, rest = value.rpartition("=")
        if not name or not rest:
            raise click.UsageError(f"{option} takes {form}")
        split.append((name, rest))
    return split


def default_key(tools: Any) -> str | None:
    """Give the master key that the key service's URI names."""
    found = getattr(tools.client, "default_key", None)
    return found if isinstance(found, str) and found else None
