"""Settings of a dataset for a command, whose options may not contradict the declaration.

Options that repeat the declaration are compared with it, never preferred.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

from modcrypt.cli.datasets.arguments import find_declared
from modcrypt.cli.datasets.declared import KEYS, Declared, find_named, find_typed, usage_error
from modcrypt.cli.shared_options import parameters_of
from modcrypt.io.addresses import find_inside, is_url

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.settings import Settings


def declared_settings(
    declared: Declared, options: Mapping[str, Any], make_passphrase: Callable[[str], str | None],
    given: Mapping[str, Any],
) -> Settings:  # fmt: skip
    """Return the settings of a dataset, and what options demand in addition.

    Args:
        make_passphrase: Function from a key service's URI to the reference to its passphrase.
        given: Attributes of the Settings that options set.

    Raises:
        click.UsageError: An option contradicts the declaration, or the dataset is a table.
    """
    settings = _open_settings(declared, options)
    own = {name: value for name, value in given.items() if value not in (None, ())}
    for name in ("signed_by", "seal_at_least", "aad_prefix", "kms", "root"):
        if settings.declared.get(name):
            own.pop(name, None)
    own["passphrase"] = _choose_passphrase(declared, settings.kms, make_passphrase(settings.kms))
    evolved: Settings = settings.evolve(**own)
    return evolved


def _choose_passphrase(declared: Declared, kms: str, given: str | None) -> str | None:
    """Return the reference to the passphrase of a keyring; None if the declared URI names it."""
    from modcrypt.kms.key_references import absolute_reference
    from modcrypt.kms.keyring.keyring_uri import passphrase_of_uri

    if (known := passphrase_of_uri(kms)) is None or given is None:
        return given
    are_files = given.startswith("file:") and known.startswith("file:")
    is_same = are_files and absolute_reference(given) == absolute_reference(known)
    if given != known and not is_same:
        refuse_contradiction(declared, "passphrase", f"with passphrase={known}")
    return None


def declared_members(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declared values of the running command's dataset; empty for other files.

    Raise click.UsageError as `declared_settings`.
    """
    if (declared := find_declared(None)) is None:
        return {}
    members: Mapping[str, Any] = _open_settings(declared, options).declared
    return members


def _open_settings(declared: Declared, options: Mapping[str, Any]) -> Any:
    """Return the settings of a dataset; raise click.UsageError as `declared_settings`."""
    try:
        if declared.lake.locate(declared.name) is None:
            command = click.get_current_context().command_path
            raise click.UsageError(declared.lake.advise(declared.name, command))
        settings = declared.lake.settings(declared.name)
    except (ValueError, OSError) as error:
        raise usage_error(error) from None
    _check_options(declared, settings, options)
    return settings


def _check_options(declared: Declared, settings: Any, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError for the first option that contradicts the declaration."""
    what = settings.declared
    for name in KEYS - {"kms", "policy_file"}:
        if options.get(name):
            refuse_contradiction(declared, name, f"with the key service {what['kms']}")
    policy, kms = options.get("policy_file"), options.get("kms")
    if policy is not None and find_named(policy) is None:
        refuse_contradiction(declared, "policy_file", "with its own keys and columns")
    named = urllib.parse.unquote((kms or "").partition("#")[2])
    if kms is not None and not is_same_service(kms, what["kms"]):
        refuse_contradiction(declared, "kms", f"with the key service {what['kms']}")
    if named and not settings.declares_footer_key(named):
        refuse_contradiction(declared, "kms", f"with the footer key {what['key_templates'][0]}")
    prefix = what["aad_prefix"]
    if prefix is not None and options.get("aad_prefix") not in (None, prefix, f"text:{prefix}"):
        refuse_contradiction(declared, "aad_prefix", f"with the AAD prefix {prefix}")
    root = options.get("root")
    if root is not None and not _is_same_folder(root, what["root"]):
        refuse_contradiction(declared, "root", f"at {what['root']}")
    signers = options.get("signed_by")
    if signers and what["signed_by"] and set(signers) != set(what["signed_by"]):
        from modcrypt.kms.signing.signing_keys import read_verifying_keys

        if {str(key) for key in read_verifying_keys(signers)} != set(what["signed_by"]):
            refuse_contradiction(declared, "signed_by", "with other writers (signed_by)")
    least = options.get("seal_at_least")
    if least is not None and what["seal_at_least"] not in (None, least):
        declares = f"with seal_at_least = {what['seal_at_least']}"
        refuse_contradiction(declared, "seal_at_least", declares)
    if extra := set(options.get("accept_algorithms") or ()) - set(what["accept_algorithms"]):
        refuse_contradiction(declared, "accept_algorithms", f"without {', '.join(sorted(extra))}")


def check_rotation(
    settings: Any, key_id: str | None, renamed: Mapping[str, str],
    double_wrapping: bool | None,
) -> Mapping[str, str]:  # fmt: skip
    """Return the new master keys by old ones, for files of a dataset those that are declared, too.

    Raise click.UsageError if the files would no longer be as declared.

    Args:
        key_id: Master key that gets a version.
    """
    if (declared := find_declared(click.get_current_context().params["policy_file"])) is None:
        return renamed
    what, is_declared = settings.declared, settings.declares_key
    keys = f"with the master keys {', '.join(what['key_templates'])}"
    if key_id is not None and not is_declared(key_id):
        refuse_contradiction(declared, "key_id", keys)
    for old, new in renamed.items():
        if is_declared(old) or not is_declared(new) or what["previous"].get(old, new) != new:
            refuse_contradiction(declared, "new_master_keys", keys)
    if double_wrapping not in (None, what["double_wrapping"]):
        wrapping = "double" if what["double_wrapping"] else "single"
        refuse_contradiction(declared, "double_wrapping", f"with {wrapping} wrapping")
    return {**what["previous"], **renamed}


def refuse_declared(declared: Declared, parameters: Collection[str]) -> None:
    """Raise a usage error if an option is typed about which the declaration decides."""
    for parameter in find_typed(parameters):
        raise click.UsageError(
            f"{parameter.opts[0]}: {declared} and how its files are encrypted; remove the option, "
            "or change the declaration"
        )


def refuse_contradiction(declared: Declared, parameter: str, what: str) -> NoReturn:
    """Raise a usage error about an option that contradicts what is declared."""
    command = click.get_current_context().command
    options = (
        p.opts[:1] + p.secondary_opts[:1] for p in parameters_of(command) if p.name == parameter
    )
    option = "/".join(next(options, [parameter]))
    raise click.UsageError(
        f"{option} contradicts the declaration: {declared} {what}; remove the option, or change "
        "the declaration (MODCRYPT_CONFIG=none ignores it)"
    )


def _is_same_folder(given: str, declared: str) -> bool:
    if is_url(given) or is_url(declared):
        return find_inside(given, declared) == ""
    return os.path.realpath(given) == os.path.realpath(declared)


def is_same_service(given: str, declared: str) -> bool:
    """Return whether two URIs name a key service alike; the given one may leave out its query."""
    from modcrypt.kms.keyring.keyring_uri import keyring_path

    first, second = (uri.partition("#")[0] for uri in (given, declared))
    if "?" not in first:
        second = second.partition("?")[0]
    if first.startswith("file:") and second.startswith("file:"):
        return os.path.realpath(keyring_path(first)) == os.path.realpath(keyring_path(second))
    return first == second
