"""Options that say how Parquet files are encrypted, and the properties made from them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.options.kms_options import (
    Service,
    default_key,
    parse_pairs,
    refuse,
    service_options,
)
from modcrypt.cli.shared import (
    combine_options,
    force_option,
    key_options,
    prefix_options,
    read_aad_prefix,
    read_key,
    root_option,
    shared_prefix_option,
    threads_option,
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

parquet_key_options = combine_options(
    key_options("Footer key"),
    click.option(
        "--column-key",
        "column_key_refs",
        metavar="NAME=REF",
        multiple=True,
        help="Key of a column, or of all columns in a group; REF is file:PATH, env:VARIABLE or "
        "fd:N. Repeatable.",
    ),
)
output_options = combine_options(
    click.option(
        "--keep-unknown-fields",
        is_flag=True,
        help="Keep Thrift fields unknown to modcrypt in files that lose, mask or re-key columns; "
        "newer writers may put statistics of any column there.",
    ),
    force_option,
    threads_option(
        "Number of threads: 1, or 2 or more to write in a second thread. Default: by file size "
        "and processors."
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one line of JSON on stdout, also for a failure; for a folder, one line per "
        "file, then the totals.",
    ),
)
accept_option = click.option(
    "--accept",
    metavar="ALGORITHM",
    type=click.Choice(ALGORITHMS),
    multiple=True,
    help="Accept files of this algorithm. Default: AES_GCM_V1 only, because AES_GCM_CTR_V1 "
    "does not authenticate pages and the name in a file can be forged. Repeatable.",
)
missing_key_option = click.option(
    "--on-missing-key",
    type=click.Choice(["error", "drop", "null"]),
    default="error",
    show_default=True,
    help="Action for columns whose key is missing: refuse the file, drop the columns or fill "
    "them with nulls.",
)
reading_options = combine_options(
    accept_option,
    missing_key_option,
    click.option(
        "--no-check-footer",
        is_flag=True,
        help="Trust a plaintext footer without verifying its signature.",
    ),
)

# How a file is encrypted. Commands add --audit themselves.
encryption_options = combine_options(
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
        help="Sign the footer with the footer key but leave it readable: anyone can see the "
        "schema, row counts and the metadata of plaintext columns.",
    ),
    click.option(
        "--algorithm",
        type=click.Choice(ALGORITHMS),
        default=ALGORITHMS[0],
        show_default=True,
        help="Encryption algorithm; AES_GCM_CTR_V1 does not authenticate pages.",
    ),
    prefix_options,
    root_option,
    shared_prefix_option,
    click.option(
        "--no-store-aad-prefix",
        is_flag=True,
        help="Leave the AAD prefix out of the file; readers must supply it.",
    ),
    click.option(
        "--footer-key-metadata",
        metavar="TEXT",
        help="Text stored unencrypted in the file, by which readers find the footer key.",
    ),
    click.option(
        "--column-key-metadata",
        metavar="NAME=TEXT",
        multiple=True,
        help="Text stored in the file, by which readers find the key of column NAME; unencrypted "
        "if the footer is plaintext. Repeatable.",
    ),
    click.option(
        "--v2-levels",
        type=click.Choice(["encrypted", "plaintext"]),
        default="encrypted",
        show_default=True,
        help="Form of the levels of data pages V2: parquet-java cannot read encrypted levels, "
        "Arrow cannot read plaintext ones.",
    ),
    service_options,
    click.option(
        "--master-key",
        metavar="ID",
        help="With --kms: master key that wraps the footer key. Default: the one that the URI "
        "names.",
    ),
    click.option(
        "--column-master-key",
        "column_master_keys",
        metavar="NAME=ID",
        multiple=True,
        help="With --kms: master key of a column, or of all columns in a group, which then get "
        "keys of their own. The last = separates the two. Repeatable.",
    ),
    click.option(
        "--single-wrapping",
        is_flag=True,
        help="With --kms: wrap data keys directly under master keys, without key encryption "
        "keys; this takes more calls of the key service.",
    ),
    click.option(
        "--external-key-material",
        is_flag=True,
        help="With --kms: store wrapped keys in a file beside DESTINATION, not inside it.",
    ),
)


def _column_key_metadata(values: tuple[str, ...], columns: Sequence[str]) -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    for value in values:
        # Column names may contain "=": use the longest one that has a key.
        names = [name for name in columns if value.startswith(f"{name}=")]
        if not names:
            raise click.UsageError(
                "--column-key-metadata takes NAME=TEXT, for a NAME that --column-key gives a key"
            )
        name = max(names, key=len)
        metadata[name] = os.fsencode(value[len(name) + 1 :])
    return metadata


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
    """Return the library's properties for the values of `encryption_options`.

    Args:
        audit: File that records the uses of keys.
        new: Beginning of the options' parameter names, in commands that also have options for the
            keys of existing files.
        how: Values of the options.

    Raises:
        click.UsageError: The options contradict each other.
        ValueError: A key or the policy is invalid.
        ModcryptError: A key cannot be retrieved.
    """
    service = Service(how)
    if service.named:
        return _keyed_encryption(service, audit, new, **how)
    _refuse_prefixed(new, {*_OF_A_SERVICE, "root"}, "this needs --kms or --policy")
    return _explicit_encryption(**how)


def _refuse_prefixed(new: str, parameters: Collection[str], why: str) -> None:
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
    """Return properties with the keys that the options refer to."""
    footer_key = read_key(key_file, key_env, key_fd, "footer key")
    if footer_key is None:
        raise click.UsageError(
            "a footer key is needed: --key-file, --key-env or --key-fd; or --kms or --policy"
        )
    prefix = read_aad_prefix(aad_prefix, aad_prefix_hex, aad_prefix_file)
    if no_store_aad_prefix and prefix is None:
        raise click.UsageError(
            "--no-store-aad-prefix needs --aad-prefix, --aad-prefix-hex or --aad-prefix-file"
        )
    column_keys = key_refs.read_column_keys(column_key_refs)
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
    """Return properties for fresh keys, wrapped by the key service as policy or options say."""
    _refuse_prefixed(new, _OF_EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
    policy = service.policy
    if policy is not None:
        _refuse_prefixed(new, _OF_A_POLICY, "the policy sets this; change the policy")
        return service.tools(audit).encryption(policy, root=how["root"])
    policy = _make_policy(**how)
    tools = service.tools(audit)
    if how["master_key"] is None:
        default = default_key(tools)
        if default is None:
            raise click.UsageError(
                "the URI names no master key for the footer; name it by --master-key ID"
            )
        policy = replace(policy, footer_key=default)
    return tools.encryption(policy, root=how["root"])


def _make_policy(
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
    """Return the policy that the options describe; the caller replaces a missing master key."""
    columns: dict[str, list[str]] = {}
    for name, master in parse_pairs(column_master_keys, "--column-master-key", "NAME=ID").items():
        columns.setdefault(master, []).append(name)
    prefix = read_aad_prefix(aad_prefix, aad_prefix_hex, aad_prefix_file)
    if no_store_aad_prefix and prefix is None:
        raise click.UsageError(
            "--no-store-aad-prefix needs --aad-prefix, --aad-prefix-hex or --aad-prefix-file"
        )
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
        raise click.UsageError("with --kms the AAD prefix must be UTF-8 text") from None
    except ValueError as error:
        message = str(error).removeprefix("invalid policy: ")
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
    """Return the library's properties for the options of keys, prefix, reading and service.

    Raises:
        click.UsageError: The options contradict each other.
        ValueError: A key or the policy is invalid.
        ModcryptError: A key cannot be retrieved.
    """
    from modcrypt.parquet.crypto.path_prefix import PathPrefix

    service = Service(of_service)
    prefix = read_aad_prefix(aad_prefix, aad_prefix_hex, aad_prefix_file)
    arguments: dict[str, Any] = {
        "on_missing_key": on_missing_key,
        "check_footer_integrity": not no_check_footer,
    }
    if prefix is not None:  # else the policy's prefix applies, if any
        arguments["aad_prefix"] = prefix
    if accept:
        arguments["algorithms"] = accept
    if service.named:
        refuse(EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
        if prefix is not None:  # as in encryption
            arguments["aad_prefix"] = PathPrefix(prefix, root)
        return service.tools(audit).decryption(service.policy, root=root, **arguments)
    refuse({"audit", "master_keys", "root"}, "this needs --kms or --policy")
    return modcrypt.FileDecryptionProperties(
        footer_key=read_key(key_file, key_env, key_fd, "footer key"),
        column_keys=key_refs.read_column_keys(column_key_refs),
        **arguments,
    )
