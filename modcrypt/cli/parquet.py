"""The commands for Parquet files: `modcrypt encrypt`, `decrypt` and `modules`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.failures import module_fields, printable
from modcrypt.cli.kms_options import (
    Service,
    audit_option,
    default_key,
    pairs,
    refuse,
    service_options,
)
from modcrypt.cli.shared import (
    aad_prefix_from,
    convert,
    force_option,
    json_option,
    key_from,
    key_options,
    prefix_options,
    print_line,
    table,
    threads_option,
    together,
)
from modcrypt.parquet.properties import ALGORITHMS

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.key_tools import KeyedEncryption
    from modcrypt.kms.policy import Policy

__all__ = ["decrypt", "encrypt", "modules"]

# --- options that they share ---------------------------------------------------------------------

_key_options = together(
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
_output_options = together(
    force_option,
    threads_option(
        "1: one thread; 2 or more: write in a second one. Default: by size and processors."
    ),
    json_option,
)
_reading_options = together(
    click.option(
        "--accept",
        metavar="ALGORITHM",
        type=click.Choice(ALGORITHMS),
        multiple=True,
        help="Accept files of this algorithm; repeatable. Default: AES_GCM_V1 alone, because "
        "AES_GCM_CTR_V1 does not authenticate pages and the name in a file can be forged.",
    ),
    click.option(
        "--on-missing-key",
        type=click.Choice(["error", "drop", "null"]),
        default="error",
        show_default=True,
        help="What to do with columns whose key is not given: refuse the file, leave them out, or "
        "fill them with nulls.",
    ),
    click.option(
        "--no-check-footer",
        is_flag=True,
        help="Trust a plaintext footer without verifying its signature.",
    ),
)


def _check_paths(*paths: str) -> None:
    if "-" in paths:
        raise click.UsageError(
            "pipes don't do: Parquet is read from its end, and written whole; "
            "modcrypt ags1 encrypts any file or pipe"
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


# --- commands ------------------------------------------------------------------------------------

# click keeps the lines of a paragraph after \b as they are.
_ENCRYPT_EXAMPLE = """\b
Examples: prices under a key of their own, ship dates readable by everyone
  modcrypt encrypt --key-file footer.key --column-key price=file:price.key \\
      --plaintext-column shipped orders.parquet orders.enc.parquet

\b
the same with fresh keys, wrapped under master keys of a keyring; or by a policy
  modcrypt encrypt --kms file:lake.keyring#footer --column-master-key price=pii \\
      --plaintext-column shipped orders.parquet orders.kms.parquet
  modcrypt encrypt --policy lake.toml orders.parquet orders.policy.parquet"""

_DECRYPT_EXAMPLE = """\b
Examples: all that the footer key opens, without the columns under other keys
  modcrypt decrypt --key-file footer.key --on-missing-key drop \\
      orders.enc.parquet orders.public.parquet

\b
with the master keys of a keyring
  modcrypt decrypt --kms file:lake.keyring orders.kms.parquet orders.back.parquet"""

_MODULES_EXAMPLE = """\b
Examples:
  modcrypt modules --key-file footer.key --column-key price=file:price.key \\
      orders.enc.parquet
  modcrypt modules --kms file:lake.keyring orders.kms.parquet"""


@click.command(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@_key_options
@click.option(
    "--plaintext-column",
    "plaintext_columns",
    metavar="NAME",
    multiple=True,
    help="Leave a column, or all columns in a group, unencrypted and unauthenticated. Repeatable.",
)
@click.option(
    "--plaintext-footer",
    is_flag=True,
    help="Sign the footer with the footer key but leave it readable: schema, row counts and what "
    "is known of plaintext columns stay open to readers without keys.",
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHMS),
    default=ALGORITHMS[0],
    show_default=True,
    help="AES_GCM_CTR_V1 does not authenticate pages.",
)
@prefix_options
@click.option(
    "--no-store-aad-prefix",
    is_flag=True,
    help="Keep the AAD prefix out of the file: readers must know it.",
)
@click.option(
    "--footer-key-metadata",
    metavar="TEXT",
    help="Stored in the file, in clear, for readers to find the footer key by.",
)
@click.option(
    "--column-key-metadata",
    metavar="NAME=TEXT",
    multiple=True,
    help="The same for the key of a column; in clear if the footer is plaintext. Repeatable.",
)
@click.option(
    "--v2-levels",
    type=click.Choice(["encrypted", "plaintext"]),
    default="encrypted",
    show_default=True,
    help="Levels of data pages V2: parquet-java reads no encrypted ones, Arrow no plaintext ones.",
)
@service_options
@click.option(
    "--master-key",
    metavar="ID",
    help="With --kms: master key under which the footer's key is wrapped. Default: the one that "
    "the URI names.",
)
@click.option(
    "--column-master-key",
    "column_master_keys",
    metavar="NAME=ID",
    multiple=True,
    help="With --kms: master key of a column, or of all columns in a group, which get keys of "
    "their own. The last = counts. Repeatable.",
)
@click.option(
    "--single-wrapping",
    is_flag=True,
    help="With --kms: wrap data keys under the master keys themselves, by more calls of the key "
    "service, instead of under key encryption keys that these wrap.",
)
@click.option(
    "--external-key-material",
    is_flag=True,
    help="With --kms: keep wrapped keys in a file beside DESTINATION, not within it.",
)
@audit_option
@_output_options
def encrypt(
    *,
    source: str,
    destination: str,
    audit: str | None,
    force: bool,
    threads: int | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Encrypt the Parquet file SOURCE into DESTINATION.

    Both are paths or, with fsspec installed, URLs. Columns that are named nowhere are sealed with
    the footer key. DESTINATION appears when it is complete, or not at all.

    Keys are given; or they are made for this file, and wrapped by the key service that --kms or
    --policy names. Then {name} in an AAD prefix stands for the name of DESTINATION.
    """
    _check_paths(source, destination)
    service = Service(how)
    properties: modcrypt.FileEncryptionProperties | KeyedEncryption
    if service.named:
        properties = _keyed_encryption(service, audit, **how)
    else:
        refuse(_OF_A_SERVICE, "--kms or --policy is needed with that")
        properties = _explicit_encryption(**how)

    def work(progress: Callable[[int], None] | None) -> dict[str, Any]:
        modcrypt.encrypt_parquet(
            source, destination, properties, overwrite=force, threads=threads, progress=progress
        )
        return {}

    convert("Encrypting", source, destination, work, as_json)


_EXPLICIT_KEYS = {"key_file", "key_env", "key_fd", "column_key_refs"}
_OF_EXPLICIT_KEYS = _EXPLICIT_KEYS | {"footer_key_metadata", "column_key_metadata"}
_OF_A_SERVICE = {
    "master_key", "column_master_keys", "single_wrapping", "external_key_material", "audit",
}  # fmt: skip
_OF_A_POLICY = {
    "plaintext_columns", "plaintext_footer", "algorithm", "aad_prefix", "aad_prefix_hex",
    "aad_prefix_file", "no_store_aad_prefix", "v2_levels", *_OF_A_SERVICE - {"audit"},
}  # fmt: skip


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


def _keyed_encryption(service: Service, audit: str | None, **how: Any) -> KeyedEncryption:
    """Have the key service wrap fresh keys, by the policy or as the options say."""
    refuse(_OF_EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
    policy = service.policy
    if policy is not None:
        refuse(_OF_A_POLICY, "the policy says that")
        return service.tools(audit).encryption(policy)
    policy = _policy(**how)
    tools = service.tools(audit)
    if how["master_key"] is None:
        named = default_key(tools)
        if named is None:
            raise click.UsageError("the URI names no master key for the footer: --master-key ID")
        policy = replace(policy, footer_key=named)
    return tools.encryption(policy)


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


@click.command(epilog=_DECRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@_key_options
@prefix_options
@_reading_options
@service_options
@audit_option
@_output_options
def decrypt(
    *,
    source: str,
    destination: str,
    force: bool,
    threads: int | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Decrypt the encrypted Parquet file SOURCE into DESTINATION.

    Every module is authenticated on the way. DESTINATION appears when it is complete, or not at
    all. An AAD prefix that is given must be the one that the file was written with.
    """
    _check_paths(source, destination)
    properties = _decryption_properties(**reading)

    def work(progress: Callable[[int], None] | None) -> dict[str, Any]:
        missing = modcrypt.decrypt_parquet(
            source, destination, properties, overwrite=force, threads=threads, progress=progress
        )
        nulls = properties.on_missing_key == "null"
        if missing:
            names = printable(", ".join(missing))
            done = "filled with nulls" if nulls else "left out"
            click.echo(f"modcrypt: {done}, for want of a key: {names}", err=True)
        return {"dropped": () if nulls else missing, "nulls": missing if nulls else ()}

    convert("Decrypting", source, destination, work, as_json)


@click.command(epilog=_MODULES_EXAMPLE)
@click.argument("file")
@_key_options
@prefix_options
@_reading_options
@service_options
@audit_option
@json_option
def modules(*, file: str, as_json: bool, **reading: Any) -> None:
    """Show where every encrypted module of FILE lies, in file order.

    Each one is opened and authenticated on the way. Modules inside the footer are not listed.
    """
    _check_paths(file)
    spans = modcrypt.list_modules(file, _decryption_properties(**reading))
    rows = [
        {**module_fields(span.module), "offset": span.start, "size": span.end - span.start}
        for span in spans
    ]
    if as_json:
        print_line(json.dumps({"file": file, "modules": rows}))
    else:
        print_line(_table(rows))


def _decryption_properties(
    *,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    accept: tuple[str, ...],
    on_missing_key: Literal["error", "drop", "null"],
    no_check_footer: bool,
    audit: str | None,
    **of_service: Any,
) -> modcrypt.FileDecryptionProperties:
    from modcrypt.kms.policy import NAME, named

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
        refuse(_EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
        if prefix is not None and NAME.encode() in prefix:  # as encrypt takes it
            said["aad_prefix"] = partial(named, prefix)
        return service.tools(audit).decryption(service.policy, **said)
    refuse({"audit"}, "--kms or --policy is needed with that")
    return modcrypt.FileDecryptionProperties(
        footer_key=key_from(key_file, key_env, key_fd, "footer key"),
        column_keys=key_refs.read_refs(column_key_refs),
        **said,
    )


_COLUMNS = ("type", "row_group", "path", "page", "offset", "size")
_TITLES = ("module", "row group", "column", "page", "offset", "size")


def _table(rows: list[dict[str, Any]]) -> str:
    return table(_TITLES, ([row[name] for name in _COLUMNS] for row in rows), left=(0, 2))
