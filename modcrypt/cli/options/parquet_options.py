"""The options of Parquet commands that say how files are encrypted, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.options.kms_options import Service, default_key, pairs, refuse, service_options
from modcrypt.cli.shared import (
    aad_prefix_from,
    force_option,
    key_from,
    key_options,
    prefix_options,
    root_option,
    shared_prefix_option,
    threads_option,
    together,
)
from modcrypt.parquet.crypto.properties import ALGORITHMS

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.key_tools import KeyedEncryption
    from modcrypt.kms.policy import Policy

__all__ = [
    "EXPLICIT_KEYS",
    "accept_option",
    "decryption_properties",
    "encryption_options",
    "encryption_properties",
    "missing_key_option",
    "output_options",
    "parquet_key_options",
    "reading_options",
]

# --- options -------------------------------------------------------------------------------------

parquet_key_options = together(
    key_options("Footer key"),
    click.option(
        "--column-key",
        "column_key_refs",
        metavar="NAME=REF",
        multiple=True,
        help="Key of a column, or of all columns in a group. REF is file:PATH, env:VARIABLE or "
        "fd:N. Repeatable.",
    ),
)
output_options = together(
    click.option(
        "--keep-unknown-fields",
        is_flag=True,
        help="Keep Thrift fields that modcrypt does not know where columns are left out, masked or "
        "under other keys. Newer writers may put statistics of any column there.",
    ),
    force_option,
    threads_option(
        "1: one thread; 2 or more: write in a second one. Default: by size and processors."
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one line of JSON on stdout, failures included; of a folder one for each file, "
        "then the totals.",
    ),
)
accept_option = click.option(
    "--accept",
    metavar="ALGORITHM",
    type=click.Choice(ALGORITHMS),
    multiple=True,
    help="Accept files of this algorithm; repeatable. Default: AES_GCM_V1 alone, because "
    "AES_GCM_CTR_V1 does not authenticate pages and the name in a file can be forged.",
)
missing_key_option = click.option(
    "--on-missing-key",
    type=click.Choice(["error", "drop", "null"]),
    default="error",
    show_default=True,
    help="What to do with columns whose key is not given: refuse the file, leave them out, or "
    "fill them with nulls.",
)
reading_options = together(
    accept_option,
    missing_key_option,
    click.option(
        "--no-check-footer",
        is_flag=True,
        help="Trust a plaintext footer without verifying its signature.",
    ),
)

# How a file is encrypted; --audit is another matter.
encryption_options = together(
    parquet_key_options,
    click.option(
        "--plaintext-column",
        "plaintext_columns",
        metavar="NAME",
        multiple=True,
        help="Leave a column, or all columns in a group, unencrypted and unauthenticated. "
        "Repeatable.",
    ),
    click.option(
        "--plaintext-footer",
        is_flag=True,
        help="Sign the footer with the footer key but leave it readable: schema, row counts and "
        "what is known of plaintext columns stay open to readers without keys.",
    ),
    click.option(
        "--algorithm",
        type=click.Choice(ALGORITHMS),
        default=ALGORITHMS[0],
        show_default=True,
        help="AES_GCM_CTR_V1 does not authenticate pages.",
    ),
    prefix_options,
    root_option,
    shared_prefix_option,
    click.option(
        "--no-store-aad-prefix",
        is_flag=True,
        help="Keep the AAD prefix out of the file: readers must know it.",
    ),
    click.option(
        "--footer-key-metadata",
        metavar="TEXT",
        help="Stored in the file, in clear, for readers to find the footer key by.",
    ),
    click.option(
        "--column-key-metadata",
        metavar="NAME=TEXT",
        multiple=True,
        help="The same for the key of a column; in clear if the footer is plaintext. Repeatable.",
    ),
    click.option(
        "--v2-levels",
        type=click.Choice(["encrypted", "plaintext"]),
        default="encrypted",
        show_default=True,
        help="Levels of data pages V2: parquet-java reads no encrypted ones, Arrow no plaintext "
        "ones.",
    ),
    service_options,
    click.option(
        "--master-key",
        metavar="ID",
        help="With --kms: master key under which the footer's key is wrapped. Default: the one "
        "that the URI names.",
    ),
    click.option(
        "--column-master-key",
        "column_master_keys",
        metavar="NAME=ID",
        multiple=True,
        help="With --kms: master key of a column, or of all columns in a group, which get keys of "
        "their own. The last = counts. Repeatable.",
    ),
    click.option(
        "--single-wrapping",
        is_flag=True,
        help="With --kms: wrap data keys under the master keys themselves, by more calls of the "
        "key service, instead of under key encryption keys that these wrap.",
    ),
    click.option(
        "--external-key-material",
        is_flag=True,
        help="With --kms: keep wrapped keys in a file beside DESTINATION, not within it.",
    ),
)


def _column_key_metadata(values: tuple[str, ...], columns: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for value in values:
        # Column names may hold a "=": the longest one that has a key is meant.
        names = [name for name in columns if value.startswith(f"{name}=")]
        if not names:
            raise click.UsageError(
                "--column-key-metadata takes NAME=TEXT, for a NAME that --column-key gives a key"
            )
        name = max(names, key=len)
        found[name] = os.fsencode(value[len(name) + 1 :])
    return found


# --- what they mean ------------------------------------------------------------------------------

EXPLICIT_KEYS = {"key_file", "key_env", "key_fd", "column_key_refs"}
_OF_EXPLICIT_KEYS = EXPLICIT_KEYS | {"footer_key_metadata", "column_key_metadata"}
_OF_A_SERVICE = {
    "master_key", "column_master_keys", "single_wrapping", "external_key_material", "audit",
}  # fmt: skip
_OF_A_POLICY = {
    "plaintext_columns", "plaintext_footer", "algorithm", "aad_prefix", "aad_prefix_hex",
    "aad_prefix_file", "no_store_aad_prefix", "v2_levels", *_OF_A_SERVICE - {"audit"},
}  # fmt: skip


def encryption_properties(
    audit: str | None = None, new: str = "", **how: Any
) -> modcrypt.FileEncryptionProperties | KeyedEncryption:
    """Make of the values of `encryption_options` what the library takes.

    Args:
        audit: the file to record the uses of keys in.
        new: what the names of the options' parameters begin with, where the command has those of
            other keys, too.
        how: the options.

    Raises:
        click.UsageError: they don't fit together.
        ValueError: a key or the policy is wrong.
        ModcryptError: a key can't be had.
    """
    service = Service(how)
    if service.named:
        return _keyed_encryption(service, audit, new, **how)
    _refuse(new, {*_OF_A_SERVICE, "root"}, "--kms or --policy is needed with that")
    return _explicit_encryption(**how)


def _refuse(new: str, parameters: Collection[str], why: str) -> None:
    refuse({f"{new}{name}" for name in parameters}, why)


def _explicit_encryption(
    *,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    plaintext_columns: tuple[str, ...],
    plaintext_footer: bool,
    algorithm: str,
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    no_store_aad_prefix: bool,
    footer_key_metadata: str | None,
    column_key_metadata: tuple[str, ...],
    v2_levels: Literal["encrypted", "plaintext"],
    **_: Any,
) -> modcrypt.FileEncryptionProperties:
    """Take the keys that the options refer to."""
    footer_key = key_from(key_file, key_env, key_fd, "footer key")
    if footer_key is None:
        raise click.UsageError(
            "a footer key is needed: --key-file, --key-env or --key-fd; or --kms or --policy"
        )
    prefix = aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file)
    if no_store_aad_prefix and prefix is None:
        raise click.UsageError("--no-store-aad-prefix needs --aad-prefix, in one of its forms")
    column_keys = key_refs.read_refs(column_key_refs)
    return modcrypt.FileEncryptionProperties(
        footer_key=footer_key,
        column_keys=column_keys,
        plaintext_columns=plaintext_columns,
        footer_key_metadata=None
        if footer_key_metadata is None
        else os.fsencode(footer_key_metadata),
        column_key_metadata=_column_key_metadata(column_key_metadata, list(column_keys)),
        aad_prefix=prefix,
        store_aad_prefix=not no_store_aad_prefix,
        plaintext_footer=plaintext_footer,
        encryption_algorithm=algorithm,
        data_page_v2_levels=v2_levels,
    )


def _keyed_encryption(service: Service, audit: str | None, new: str, **how: Any) -> KeyedEncryption:
    """Have the key service wrap fresh keys, by the policy or as the options say."""
    _refuse(new, _OF_EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
    policy = service.policy
    if policy is not None:
        _refuse(new, _OF_A_POLICY, "the policy says that")
        return service.tools(audit).encryption(policy, root=how["root"])
    policy = _policy(**how)
    tools = service.tools(audit)
    if how["master_key"] is None:
        named = default_key(tools)
        if named is None:
            raise click.UsageError("the URI names no master key for the footer: --master-key ID")
        policy = replace(policy, footer_key=named)
    return tools.encryption(policy, root=how["root"])


def _policy(
    *,
    master_key: str | None,
    column_master_keys: tuple[str, ...],
    plaintext_columns: tuple[str, ...],
    plaintext_footer: bool,
    algorithm: str,
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    no_store_aad_prefix: bool,
    v2_levels: str,
    single_wrapping: bool,
    external_key_material: bool,
    **_: Any,
) -> Policy:
    """Make the policy that the options spell; who has no master key adds it."""
    columns: dict[str, list[str]] = {}
    for name, master in pairs(column_master_keys, "--column-master-key", "NAME=ID").items():
        columns.setdefault(master, []).append(name)
    prefix = aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file)
    if no_store_aad_prefix and prefix is None:
        raise click.UsageError("--no-store-aad-prefix needs --aad-prefix, in one of its forms")
    try:
        return modcrypt.Policy(
            footer_key="later" if master_key is None else master_key,
            column_keys=columns,
            plaintext_columns=plaintext_columns,
            encryption_algorithm=algorithm,
            plaintext_footer=plaintext_footer,
            aad_prefix=None if prefix is None else prefix.decode(),
            store_aad_prefix=not no_store_aad_prefix,
            data_page_v2_levels=v2_levels,
            double_wrapping=not single_wrapping,
            internal_key_material=not external_key_material,
        )
    except UnicodeDecodeError:
        raise click.UsageError("with --kms the AAD prefix is text: UTF-8") from None
    except ValueError as error:
        message = str(error).removeprefix("the policy is wrong: ")
        raise click.UsageError(message.replace("aad_prefix ", "--aad-prefix ")) from None


def decryption_properties(
    *,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    accept: tuple[str, ...] = (),
    on_missing_key: Literal["error", "drop", "null"] = "error",
    no_check_footer: bool = False,
    audit: str | None = None,
    root: str | None = None,
    **of_service: Any,
) -> modcrypt.FileDecryptionProperties:
    """Make of the values of options of keys, prefix, reading and service what the library takes.

    Raises:
        click.UsageError: they don't fit together.
        ValueError: a key or the policy is wrong.
        ModcryptError: a key can't be had.
    """
    from modcrypt.parquet.crypto.path_prefix import PathPrefix

    service = Service(of_service)
    prefix = aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file)
    said: dict[str, Any] = {
        "on_missing_key": on_missing_key,
        "check_footer_integrity": not no_check_footer,
    }
    if prefix is not None:  # else the policy's, if there is one
        said["aad_prefix"] = prefix
    if accept:
        said["algorithms"] = accept
    if service.named:
        refuse(EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
        if prefix is not None:  # as encrypt takes it
            said["aad_prefix"] = PathPrefix(prefix, root)
        return service.tools(audit).decryption(service.policy, root=root, **said)
    refuse({"audit", "master_keys", "root"}, "--kms or --policy is needed with that")
    return modcrypt.FileDecryptionProperties(
        footer_key=key_from(key_file, key_env, key_fd, "footer key"),
        column_keys=key_refs.read_refs(column_key_refs),
        **said,
    )
