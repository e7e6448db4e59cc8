"""Options that name a key service, and the Settings that they become."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from cloup.constraints import Constraint, constraint

import modcrypt
from modcrypt.cli.datasets.arguments import find_declared, names_paths
from modcrypt.cli.datasets.declared import Declared, Lake, find_lake
from modcrypt.cli.datasets.requirements import declared_settings
from modcrypt.cli.references import (
    PASSPHRASE_KINDS,
    check_private_file,
    key_option,
    reference_option,
)
from modcrypt.cli.shared import combine_options
from modcrypt.cli.shared_options import parameters_of, shared_option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.settings import Settings

VARIABLE = "MODCRYPT_PASSPHRASE"

passphrase_option = reference_option(
    "--passphrase", "passphrase", f"Passphrase of a keyring. Default: {VARIABLE}, else a prompt.",
    PASSPHRASE_KINDS, shared=True, rare=True,
)  # fmt: skip


def _find_default_service() -> str | None:
    from modcrypt.kms.policy import service_of_environment  # not to be loaded for the help

    return service_of_environment()


class _NeedsService(Constraint):
    """A constraint: --kms, a policy or the environment names a key service."""

    def help(self, ctx: click.Context) -> str:
        return "required"

    def check_values(self, params: Sequence[click.Parameter], ctx: click.Context) -> None:
        if ctx.params.get("policy_file") is not None:
            return  # it, or the environment, names the service when it is read
        ctx.params["kms"] = ctx.params["kms"] or _find_default_service()
        if ctx.params["kms"] is None:
            raise click.MissingParameter(ctx=ctx, param=params[0])


needs_service = constraint(_NeedsService(), ["kms"])
"""Declare that a command needs --kms, for which the environment may stand."""

kms_option = shared_option(
    "--kms URI",
    help="Key service: file:KEYRING, env:VARIABLE, hcvault://HOST/MOUNT, aws-kms://ARN, "
    "gcp-kms://NAME, azure-kms://HOST or pkcs11:TOKEN.",
)
policy_option = shared_option(
    "--policy FILE",
    "policy_file",
    help="Policy (.toml), which may name the key service; or a dataset, as modcrypt.toml#orders.",
)
service_options = combine_options(kms_option, policy_option, passphrase_option)
master_keys_option = shared_option(
    "--master-key ID...",
    "master_keys",
    rare=True,
    help="Require this master key, or one of several. Repeatable.",
)
reading_service_options = combine_options(service_options, master_keys_option)

file_key_option = key_option("Key", masters=True, shared=True)
audit_option = shared_option(
    "--audit FILE", rare=True, help="Append uses of keys to FILE as lines of JSON."
)


def service_settings(
    options: dict[str, Any], *, needed: bool = False, **more: Any
) -> Settings | None:
    """Return references to the key service that options name; None if they name none.

    They are those of a lake's dataset if the command is about its files. Nothing is opened. A
    keyring's passphrase is that of the options, the URI or the environment, or is asked for on the
    terminal, except on Spark. It uses the options of `service_options` and
    `reading_service_options`, `--root` and `--audit`; `more` are attributes of the Settings.

    Args:
        needed: Whether nothing else names keys, so that the environment may name the service.

    Raises:
        click.UsageError: The options contradict each other.
        ValueError: The policy or the URI is invalid.
        OSError: The policy cannot be read.
    """
    if (declared := find_declared(options.get("policy_file"))) is None:
        return named_service(options, needed=needed, **more)
    return dataset_settings(declared, options, more)


def dataset_settings(
    declared: Declared, options: dict[str, Any], more: Mapping[str, Any]
) -> Settings:
    """Return the settings of a dataset, with the attributes that options may add to them."""
    given = {
        "audit": options.get("audit"),
        "master_key_ids": tuple(options.get("master_keys") or ()),
        **more,
    }
    return declared_settings(
        declared, options, lambda uri: passphrase_reference(uri, options), given
    )


def other_service(settings: Settings) -> Settings:
    """Return settings for other things than a dataset's files: those of a dataset open only these.

    They have its footer key and its vault of subjects' keys.
    """
    dataset: Any = getattr(settings, "dataset", None)
    if dataset is None:
        return settings
    given = {name: getattr(settings, name) for name in ("kms", "passphrase", "audit")}
    return modcrypt.Settings(policy=dataset.subject_policy, **given)


def named_service(options: dict[str, Any], *, needed: bool, **more: Any) -> Settings | None:
    """Return `service_settings` of a command that is about no dataset of a lake."""
    kms, policy_file = options["kms"], options.get("policy_file")
    if kms is None and policy_file is None and needed:
        kms = _find_default_service()
    if kms is None and policy_file is None:
        if options["passphrase"] is not None:
            raise click.UsageError("a passphrase needs a keyring; name it by --kms or --policy")
        return None
    from modcrypt.kms.policy import find_service  # not for the help

    policy = None if policy_file is None else modcrypt.Policy.load(policy_file)
    if policy is not None and policy.names_keys:
        return _settings_of_keys(policy, options, more)
    if kms is None and (policy is None or policy.kms is None):
        kms = _find_default_service()
    uri = find_service(kms, policy)
    return modcrypt.Settings(
        kms=uri, policy=policy, passphrase=passphrase_reference(uri, options),
        root=options.get("root"), audit=options.get("audit"),
        master_key_ids=tuple(options.get("master_keys") or ()), **more,
    )  # fmt: skip


def _settings_of_keys(
    policy: modcrypt.Policy, options: dict[str, Any], more: dict[str, Any]
) -> Settings:
    """Return the settings of a policy that names keys by reference."""
    names = ("kms", "passphrase", "audit", "master_key", "master_keys")
    needless = {name for name in names if options.get(name)}
    refuse(needless, "the policy names keys by reference, without a key service")
    for reference in policy.master_key_ids:
        check_private_file(reference, "key file")
    return modcrypt.Settings(policy=policy, root=options.get("root"), **more)


def names_service() -> bool:
    """Return whether the environment names a key service for what also works without keys.

    VAULT_ADDR does so with a token: without, it is set for other programs.
    """
    if os.environ.get("MODCRYPT_KMS"):
        return True
    if not os.environ.get("VAULT_ADDR"):
        return False
    from modcrypt.kms.services.vault_location import has_ambient_token  # not for the help

    return has_ambient_token()


def required_service(options: dict[str, Any]) -> Settings:
    """Return `service_settings`, but raise click.UsageError if nothing names a key service.

    A command that is about no file takes that of the lake which is found.
    """
    is_named = names_paths() or options["kms"] or options.get("policy_file")
    lake = None if is_named else find_lake()
    settings = None if lake is None else service_of_lake(lake, options)
    settings = settings or service_settings(options, needed=True)
    if settings is None:
        more = f"; {lake.refusal}" if lake is not None and lake.refusal else ""
        raise click.UsageError(
            f"a key service is needed: --kms, or --policy with a file that names one{more}"
        )
    if not settings.has_service:
        raise click.UsageError("a key service is needed; the policy names keys by reference")
    return settings


def service_of_lake(lake: Lake, options: dict[str, Any]) -> Settings | None:
    """Return the declared key service; None if the declaration does not decide."""
    if lake.refusal is not None:
        return None
    passphrase = passphrase_reference(lake.kms, options)
    return modcrypt.Settings(kms=lake.kms, passphrase=passphrase, audit=options.get("audit"))


def passphrase_reference(uri: str, options: dict[str, Any]) -> str | None:
    """Return the reference to the passphrase of a keyring; None if none is needed."""
    reference: str | None = options["passphrase"]
    if not uri.startswith("file:"):
        return reference
    from modcrypt.kms.keyring.keyring_states import is_plaintext
    from modcrypt.kms.keyring.keyring_uri import keyring_path, passphrase_of_uri

    check_private_file(f"file:{keyring_path(uri)}", "keyring", is_plaintext)
    if reference is not None:
        return reference
    if (named := passphrase_of_uri(uri)) is not None:
        check_private_file(named, "passphrase file")
        return None
    if os.environ.get(VARIABLE):
        return f"env:{VARIABLE}"
    return None if runs_on_spark() else "prompt"


def runs_on_spark() -> bool:
    """Return whether the running command has the option --spark."""
    return click.get_current_context().params.get("spark_master") is not None


def refuse(parameters: Collection[str], why: str) -> None:
    """Raise a usage error if any of these parameters of the running command is typed."""
    context = click.get_current_context()
    typed = [
        parameter.opts[0]
        for parameter in parameters_of(context.command)
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
