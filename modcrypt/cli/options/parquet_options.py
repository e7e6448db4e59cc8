"""Options that describe how Parquet files are encrypted, and the properties made from them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import cloup
from click.core import ParameterSource

import modcrypt
from modcrypt.cli.datasets.arguments import find_declared
from modcrypt.cli.datasets.requirements import refuse_declared
from modcrypt.cli.options.kms_options import (
    audit_option,
    dataset_settings,
    default_key,
    file_key_option,
    named_service,
    names_service,
    parse_pairs,
    reading_service_options,
    refuse,
    runs_on_spark,
    service_options,
    service_settings,
)
from modcrypt.cli.options.recipient_options import (
    identity_options,
    identity_references,
    read_recipients,
    recipient_option,
)
from modcrypt.cli.options.signing_options import (
    read_signers,
    seal_options,
    sign_options,
    signing_references,
)
from modcrypt.cli.options.table_options import settings_in, table_options, table_values
from modcrypt.cli.references import check_private_file
from modcrypt.cli.shared import (
    accept_option,
    combine_options,
    exclude_each_other,
    needs_one_of,
    prefix_option,
    read_aad_prefix,
    root_option,
    shared_prefix_option,
    threads_option,
)
from modcrypt.cli.shared_options import (
    force_option,
    json_option,
    option,
    rare_option,
    shared_option,
)
from modcrypt.settings.table import KeyReferences, PolicySettings

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.policy import Policy


_explicit_key_options = combine_options(
    file_key_option,
    shared_option(
        "--column-key NAME=REF...",
        "column_key_refs",
        help="Key of a column or group of columns. Repeatable.",
    ),
)
parquet_key_options = cloup.option_group("Keys", _explicit_key_options)
sidecar_options = combine_options(
    rare_option("--drop-summaries", help="Remove _metadata and _common_metadata."),
    rare_option("--allow-leaks", help="Encrypt despite what modcrypt leaks finds."),
)
exact_option = shared_option(
    "--no-exact", rare=True, help="Do not keep or use what restores every byte."
)
output_options = cloup.option_group(
    "Output",
    shared_option(
        "--keep-unknown-fields", rare=True, help="Keep unknown Thrift fields, perhaps statistics."
    ),
    force_option,
    threads_option,
    json_option,
)
decryption_options = combine_options(
    cloup.option_group("Keys", _explicit_key_options, identity_options, seal_options),
    cloup.option_group("AAD prefix", prefix_option, root_option),
    cloup.option_group("Key service", reading_service_options, audit_option),
)
template_options = combine_options(
    shared_option(
        "--aad-prefix-template TEXT",
        rare=True,
        help="Require each file to have an AAD prefix of its own, stored or not: TEXT with a "
        "number in place of {i}.",
    ),
    shared_option(
        "--expected-parts N",
        rare=True,
        type=click.IntRange(min=1),
        help="With --aad-prefix-template: require exactly the parts 0 to N - 1.",
    ),
    needs_one_of("expected_parts", "aad_prefix_template"),
    exclude_each_other("aad_prefix_template", "aad_prefix"),
)
missing_key_option = table_options(
    KeyReferences, "Missing keys", shared=True, on_missing_key="ACTION"
)
reading_options = cloup.option_group(
    "Reading",
    accept_option,
    missing_key_option,
    table_options(KeyReferences, "Reading", shared=True),
)

# How a file is encrypted. Commands add --audit themselves.
encryption_options = combine_options(
    cloup.option_group("Keys", _explicit_key_options, recipient_option, sign_options),
    cloup.option_group(
        "Encryption",
        table_options(PolicySettings, "Encryption"),
        rare_option(
            "--footer-key-metadata TEXT", help="Unencrypted text that names the footer key."
        ),
        rare_option(
            "--column-key-metadata NAME=TEXT...",
            help="Text by which readers find the key of NAME; readable in a plaintext footer. "
            "Repeatable.",
        ),
    ),
    cloup.option_group(
        "AAD prefix",
        prefix_option,
        root_option,
        shared_prefix_option,
        table_options(PolicySettings, "AAD prefix"),
        needs_one_of("no_store_aad_prefix", "aad_prefix"),
    ),
    cloup.option_group(
        "Key service",
        service_options,
        rare_option(
            "--master-key ID",
            help="With --kms: master key of the footer. Default: the one that the URI names.",
        ),
        option(
            "--column-master-key NAME=ID...",
            "column_master_keys",
            help="With --kms: master key of a column or group; the last = separates them. "
            "Repeatable.",
        ),
        table_options(PolicySettings, "Key service"),
    ),
)


def _column_key_metadata(values: tuple[str, ...], columns: Sequence[str]) -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    for value in values:
        # Column names may contain "=": use the longest one that has a key.
        names = [name for name in columns if value.startswith(f"{name}=")]
        if not names:
            raise click.UsageError(
                "--column-key-metadata takes NAME=TEXT; NAME must have a key from --column-key"
            )
        name = max(names, key=len)
        metadata[name] = os.fsencode(value[len(name) + 1 :])
    return metadata


def _parse_column_keys(values: tuple[str, ...]) -> dict[str, str]:
    """Return the references in `NAME=file:PATH`, `NAME=env:VARIABLE` and `NAME=fd:N` by name."""
    references: dict[str, str] = {}
    for value in values:
        if (match := _COLUMN_KEY.fullmatch(value)) is None:
            raise click.UsageError(
                "--column-key takes NAME=file:PATH, NAME=env:NAME or NAME=fd:N, never a key "
                "itself (not repeated here), which other users could see"
            )
        name, reference = match.groups()
        if reference.startswith("fd:") and runs_on_spark():
            raise click.UsageError(
                f"--column-key {name}: Spark's executors cannot read a file descriptor; use "
                "file:PATH or env:VARIABLE"
            )
        if name in references:
            raise click.UsageError(f"--column-key is given twice for {name}")
        references[name] = reference
        check_private_file(reference, "key file")
    return references


_COLUMN_KEY = re.compile(
    r"(.+?)=((?:file|env|fd|hcvault|vault|aws-kms|gcp-kms|azure-kms|pkcs11):.+)", re.DOTALL
)


def name_service(options: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the options with --kms for a --key that names a master key, as `file:KEYRING#ID`.

    Then --column-key names further master keys of the same keyring, as --column-master-key does.
    Also return the parameters of keys that name no master keys. Raise click.UsageError if other
    options name keys, too, or a column's key is elsewhere.
    """
    from modcrypt.kms.key_references import names_master_key  # not to be loaded for the help

    uri: str | None = options["key"]
    if uri is None or not names_master_key(uri):
        return options, EXPLICIT_KEYS
    for name in ("kms", "policy_file", "column_master_keys"):
        if options.get(name):
            refuse({name}, "--key names a master key, and so its key service; pass one of them")
    service, mark, _ = uri.partition("#")
    masters: dict[str, str] = {}
    for column, reference in _parse_column_keys(options["column_key_refs"]).items():
        place, _, master = reference.partition("#")
        if not mark or not master or place != service:
            raise click.UsageError(
                f"--column-key {column}: with a master key in --key, this is one of the same "
                f"keyring, as {column}=file:KEYRING#ID; for others, pass --kms and "
                f"--column-master-key {column}=ID"
            )
        masters[column] = master
    named = {
        "kms": uri,
        "key": None,
        "column_key_refs": (),
        "column_master_keys": tuple(f"{column}={master}" for column, master in masters.items()),
    }
    if "master_keys" in options:
        named["master_keys"] = (*options["master_keys"], *masters.values())
    return {**options, **named}, set()


def key_references(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `parquet_key_options` as arguments of Settings.

    Raise click.UsageError if a reference names a master key.
    """
    from modcrypt.kms.key_references import names_master_key  # not to be loaded for the help

    keys = {"--key": options["key"] or ""}
    columns = _parse_column_keys(options["column_key_refs"])
    keys |= {f"--column-key {name}": reference for name, reference in columns.items()}
    for name, reference in keys.items():
        if names_master_key(reference):
            raise click.UsageError(
                f"{name} names a master key, but not all keys do; name the key service by --kms, "
                "and master keys by --master-key and --column-master-key"
            )
    return {"footer_key": options["key"], "column_keys": columns}


EXPLICIT_KEYS = {"key", "column_key_refs"}
_OF_EXPLICIT_KEYS = EXPLICIT_KEYS | {"footer_key_metadata", "column_key_metadata"}
_OF_A_SERVICE = {
    "master_key", "column_master_keys", "audit", *settings_in(PolicySettings, "Key service"),
}  # fmt: skip
_OF_A_POLICY = {
    "aad_prefix", *settings_in(PolicySettings, "Encryption"),
    *settings_in(PolicySettings, "AAD prefix"), *_OF_A_SERVICE - {"audit"},
}  # fmt: skip
_OF_A_DECLARATION = (
    _OF_A_POLICY | _OF_EXPLICIT_KEYS | {"to", "recipients_files", "shared_aad_prefix"}
)


def encryption_settings(options: dict[str, Any]) -> modcrypt.Settings:
    """Return references to the keys, and how to encrypt, for the values of `encryption_options`.

    `options` also has `audit`.

    Raises:
        click.UsageError: The options contradict each other.
        ValueError: The policy is invalid.
        ModcryptError: The key service that names the master key cannot be opened.
    """
    options, typed = name_service(options)
    more = {"shared_aad_prefix": options["shared_aad_prefix"], **signing_references(options)}
    if (declared := find_declared(options.get("policy_file"), writes=True)) is not None:
        refuse_declared(declared, _OF_A_DECLARATION)
        return dataset_settings(declared, options, more)
    if recipients := read_recipients(options):
        more["recipients"] = recipients
        refuse(_OF_EXPLICIT_KEYS, "files for recipients get fresh keys")
        refuse({"external_key_material"}, "recipients need keys inside the file")
    others = recipients or any(options.get(name) for name in EXPLICIT_KEYS)
    settings = named_service(options, needed=not others, **more)
    if settings is None and recipients:
        refuse(_OF_A_SERVICE, "this needs --kms or --policy")
        return modcrypt.Settings(**more, **_own_modes(options), root=options["root"])
    if settings is None:
        refuse({*_OF_A_SERVICE, "root"}, "this needs --kms or --policy")
        return _explicit_settings(options, more)
    refuse(
        _OF_EXPLICIT_KEYS - EXPLICIT_KEYS | typed,
        "keys come from the key service of --kms or --policy",
    )
    if options["policy_file"] is not None:
        refuse(_OF_A_POLICY, "the policy sets this; change the policy")
        return settings
    policy = _make_policy(options)
    if options["master_key"] is None:
        if (default := default_key(settings)) is None:
            raise click.UsageError(
                "the URI names no master key for the footer; name it by --master-key ID"
            )
        policy = replace(policy, footer_key=default)
    return settings.evolve(policy=policy)


def _explicit_settings(options: dict[str, Any], more: dict[str, Any]) -> modcrypt.Settings:
    keys, metadata = key_references(options), options["footer_key_metadata"]
    if keys["footer_key"] is None:
        raise click.UsageError("a footer key is needed: --key, or --kms or --policy, or --to")
    modes = _own_modes(options)
    modes["encryption_options"] |= {
        "footer_key_metadata": None if metadata is None else os.fsencode(metadata),
        "column_key_metadata": _column_key_metadata(
            options["column_key_metadata"], list(keys["column_keys"])
        ),
    }
    return modcrypt.Settings(**keys, **more, **modes)


def _own_modes(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options about encryption without a policy, as arguments of Settings."""
    modes = table_values(PolicySettings, options, "Encryption", "AAD prefix")
    return {
        "plaintext_columns": modes.pop("plaintext_columns"),
        "aad_prefix": read_aad_prefix(options),
        "encryption_options": modes,
    }


def _make_policy(options: dict[str, Any]) -> Policy:
    """Return the policy that the options describe; the caller replaces a missing master key."""
    columns: dict[str, list[str]] = {}
    pairs = parse_pairs(options["column_master_keys"], "--column-master-key", "NAME=ID")
    for name, master in pairs.items():
        columns.setdefault(master, []).append(name)
    prefix = read_aad_prefix(options)
    try:
        return modcrypt.Policy(
            footer_key="later" if options["master_key"] is None else options["master_key"],
            column_keys=columns,
            aad_prefix=None if prefix is None else prefix.decode(),
            **table_values(PolicySettings, options, "Encryption", "AAD prefix", "Key service"),
        )
    except UnicodeDecodeError:
        raise click.UsageError("with --kms the AAD prefix must be UTF-8 text") from None
    except ValueError as error:
        message = str(error).removeprefix("invalid policy: ")
        raise click.UsageError(message.replace("aad_prefix ", "--aad-prefix ")) from None


def decryption_settings(options: dict[str, Any]) -> modcrypt.Settings:
    """Return references for the options of keys, prefix, reading and service.

    Raise click.UsageError if the options contradict each other, ValueError for an invalid policy.
    """
    options, typed = name_service(options)
    more = {
        **table_values(KeyReferences, options, "Missing keys", "Reading"),
        "accept_algorithms": options.get("accept_algorithms") or None,
        "shared_aad_prefix": options.get("shared_aad_prefix", False),
        # Without one, the policy's prefix applies, if any.
        "aad_prefix": read_aad_prefix(options, may_be_empty=True),
        "signed_by": read_signers(options),  # else those of the policy, if any
        "seal_at_least": options.get("seal_at_least"),
    }
    keys = key_references(options)
    others = bool(options["kms"] or options["policy_file"] or keys["footer_key"])
    others = others or find_declared(options["policy_file"]) is not None
    more |= identity_references(options, others=others or bool(keys["column_keys"]))
    others = others or bool(keys["column_keys"] or "identities" in more)
    params = click.get_current_context().params
    is_optional = params.get("allow_plaintext") or params.get("no_check_footer")
    needed = not others and (not is_optional or names_service())
    settings = service_settings(options, needed=needed, **more)
    policy = None if settings is None else settings.policy
    signed = (settings and settings.signed_by) or (policy and policy.signed_by)
    signed = signed or getattr(settings, "declared", {}).get("signed_by")
    if more["seal_at_least"] and not (more["signed_by"] or signed):
        raise click.UsageError("--seal-at-least needs --signed-by, or a policy with signed_by")
    if settings is not None:
        refuse(typed, "keys come from the key service of --kms or --policy")
        return settings
    refuse({"audit", "master_keys"}, "this needs --kms or --policy")
    if "identities" not in more and more["seal_at_least"] is None:
        refuse({"root"}, "this needs --kms, --policy, --identity or --seal-at-least")
    return modcrypt.Settings(**keys, **more, root=options.get("root"))


def settings_of_options(
    reading: dict[str, Any], sources: Sequence[str] = ()
) -> modcrypt.Settings | None:
    """Return the settings that options describe; None if none does.

    Options are typed, or set by the environment. The declaration of a lake, and MODCRYPT_KMS,
    describe files, too. The only one of `sources` is the root of its files if it is a folder.
    """
    find_source = click.get_current_context().get_parameter_source
    given = ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT
    named = names_service() or any(find_source(name) in given for name in reading)
    if not named and find_declared(reading.get("policy_file"), tables=True) is None:
        return None
    from modcrypt.jobs.listing import folders_of, only_folder

    settings, root = decryption_settings(reading), only_folder(folders_of(sources, absolute=False))
    return settings if root is None else settings.under(root)
