"""`modcrypt encrypt`, `decrypt`, `rekey`, `mask` and `share`: convert files and folders of them.

Each command collects its options into the arguments of a `Conversion`; `Batch` runs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import cloup

from modcrypt.cli.batch import Batch, batch_options, in_place_option, paths_argument
from modcrypt.cli.datasets.arguments import find_declared
from modcrypt.cli.options.kms_options import audit_option, refuse
from modcrypt.cli.options.parquet_options import (
    decryption_options,
    encryption_options,
    encryption_settings,
    exact_option,
    missing_key_option,
    output_options,
    reading_options,
    sidecar_options,
)
from modcrypt.cli.references import key_option
from modcrypt.cli.shared import (
    accept_option,
    prove_option,
    read_json,
    read_key,
    restrictions_option,
)
from modcrypt.cli.shared_options import option, rare_option, verb
from modcrypt.cli.targets import is_target_named, target_options, target_settings

_ENCRYPT_EXAMPLE = """\b
Examples: prices under a key of their own, ship dates readable by everyone
  modcrypt encrypt --key file:footer.key --column-key price=file:price.key \\
      --plaintext-column shipped orders.parquet orders.enc.parquet

\b
fresh keys, wrapped under master keys of a keyring; or as a policy says
  modcrypt encrypt --kms file:lake.keyring#footer --column-master-key price=pii \\
      --plaintext-column shipped orders.parquet orders.kms.parquet
  modcrypt encrypt --policy lake.toml orders.parquet orders.policy.parquet"""

_DECRYPT_EXAMPLE = """\b
Examples: what the footer key opens, without the columns under other keys
  modcrypt decrypt --key file:footer.key --on-missing-key drop \\
      orders.enc.parquet orders.public.parquet

\b
with the master keys of a keyring
  modcrypt decrypt --kms file:lake.keyring orders.kms.parquet orders.back.parquet"""


@verb(epilog=_ENCRYPT_EXAMPLE)
@paths_argument
@encryption_options
@audit_option
@in_place_option
@prove_option
@batch_options
@sidecar_options
@rare_option("--repair", help="Repair what misleads other readers (see doctor).")
@exact_option
@output_options
def encrypt(*, paths: tuple[str, ...], **options: Any) -> int:
    """Encrypt a Parquet file, or all files of a folder.

    SOURCE is a file or folder: a path or, with fsspec installed, a URL. Several keep their names in
    the folder DESTINATION. The footer key encrypts every column that no option names. A file
    appears only when it is complete.

    With --kms or --policy, keys are made for each file and wrapped by a key service, and {path} in
    an AAD prefix stands for the file's path inside DESTINATION, {name} for its name.
    """
    batch = Batch("encrypt", paths, options)
    return batch.run(encryption=batch.encryption(encryption_settings(options)))


@verb(epilog=_DECRYPT_EXAMPLE)
@paths_argument
@decryption_options
@reading_options
@in_place_option
@batch_options
@exact_option
@output_options
def decrypt(*, paths: tuple[str, ...], **options: Any) -> int:
    """Decrypt an encrypted Parquet file, or all files of a folder.

    SOURCE is a file or folder; several keep their names in the folder DESTINATION. modcrypt
    authenticates everything that it reads. A file appears only when it is complete. An AAD prefix
    given here must be the one that the file was written with.
    """
    if (declared := find_declared(None, writes=True)) is not None:
        raise click.UsageError(
            f"{declared} encrypted, so its files are not decrypted there; name another DESTINATION"
        )
    batch = Batch("decrypt", paths, options)
    return batch.run(decryption=batch.decryption(options))


_new_file = cloup.option_group("New file", target_options)


_REKEY_EXAMPLE = """\b
Examples: the keys of a policy, which names files or a key service; in place
  modcrypt rekey --key file:footer.key --column-key price=file:price.key \\
      --to next.toml orders.enc.parquet orders.next.parquet
  modcrypt rekey --key file:footer.key --column-key price=file:price.key \\
      --to lake.toml --in-place orders.enc.parquet

\b
a folder from one policy to another, in a run that can be resumed
  modcrypt rekey --policy lake.toml --to new.toml --record run lake new"""

_MASK_EXAMPLE = """\b
Examples: pseudonyms for customers and no prices, with the file's own keys
  modcrypt mask --key file:footer.key --column-key price=file:price.key \\
      --hash customer --hash-key file:hash.key --drop price \\
      orders.enc.parquet orders.masked.parquet

\b
a whole folder, in place
  modcrypt mask --policy lake.toml --null price --in-place lake"""

_SHARE_EXAMPLE = """\b
Examples: two columns for a partner, whose public key you have; as a policy says
  modcrypt share --key file:footer.key --column shipped --column customer \\
      --to partner.pub orders.enc.parquet orders.partner.parquet
  modcrypt share --key file:footer.key --column shipped --to partner.toml \\
      orders.enc.parquet orders.shipped.parquet"""


@verb(epilog=_REKEY_EXAMPLE)
@paths_argument
@decryption_options
@accept_option
@missing_key_option
@rare_option(
    "--keep-unchanged",
    help="Copy pages whose key, algorithm and AAD prefix stay the same without opening them; an "
    "attacker can then put parts of the old file into the new one.",
)
@_new_file
@in_place_option
@prove_option
@batch_options
@output_options
def rekey(*, paths: tuple[str, ...], keep_unchanged: bool, **options: Any) -> int:
    """Re-encrypt files under other keys.

    SOURCE is a file or folder; several keep their names in the folder DESTINATION. The policy of
    --to sets keys, algorithm, footer mode and AAD prefix. No page is decoded, and no plaintext is
    written.
    """
    batch = Batch("rekey", paths, options)
    encryption = batch.encryption(target_settings(options, encrypt))
    return batch.run(
        decryption=batch.decryption(options), encryption=encryption, keep_unchanged=keep_unchanged
    )


@verb(epilog=_MASK_EXAMPLE)
@paths_argument
@option("--null NAME...", "null", help="Set a column or group to null. Repeatable.")
@option(
    "--hash NAME...",
    "hashed",
    help="Replace values by keyed hashes (HMAC-SHA-256, hex), equal for equal values. Repeatable.",
)
@option("--drop NAME...", help="Leave out a column or group. Repeatable.")
@key_option("Key of --hash", "--hash-key")
@restrictions_option
@decryption_options
@accept_option
@_new_file
@in_place_option
@prove_option
@batch_options
@output_options
def mask(
    *, paths: tuple[str, ...], null: tuple[str, ...], hashed: tuple[str, ...],
    drop: tuple[str, ...], restrictions: str | None, **options: Any,
) -> int:  # fmt: skip
    """Drop, null or hash columns of encrypted files.

    SOURCE is a file or folder; several keep their names in the folder DESTINATION. Other columns
    are not decoded. Without --to, a file keeps its keys, key metadata and AAD prefix.
    A key does not hash its own hashes.
    """
    read_restrictions = read_json(restrictions)
    if not (null or hashed or drop or read_restrictions):
        raise click.UsageError("no column is named; use --null, --hash or --drop")
    on_spark = options["spark_master"] is not None
    batch = Batch("mask", paths, options)
    reference = _hash_key_reference(options, bool(hashed))
    hash_key = reference if on_spark else read_key(reference, "key of the hashes")
    encryption = None
    if is_target_named() or find_declared(None, writes=True) is not None:
        encryption = batch.encryption(target_settings(options, encrypt))
    return batch.run(
        decryption=batch.decryption(options), encryption=encryption, null=null, hashed=hashed,
        drop=drop, hash_key=hash_key, read_restrictions=read_restrictions,
    )  # fmt: skip


def _hash_key_reference(options: dict[str, Any], needed: bool) -> str | None:
    """Return the reference to the hash key, and remove its options from a command's."""
    # There must be one if, and only if, columns are hashed.
    reference: str | None = options.pop("hash_key")
    if not needed:
        refuse({"hash_key"}, "name the columns to hash by --hash")
    elif reference is None:
        raise click.UsageError("--hash needs a key: --hash-key")
    return reference


@verb(epilog=_SHARE_EXAMPLE)
@paths_argument
@option("--column NAME...", "columns", help="Share a column or group. Repeatable.")
@option(
    "--explicit-keys",
    help="With --to: also write the file's key beside it, encrypted to the recipients, for readers "
    "without modcrypt.",
)
@restrictions_option
@decryption_options
@accept_option
@_new_file
@batch_options
@output_options
def share(
    *, paths: tuple[str, ...], columns: tuple[str, ...], explicit_keys: bool,
    restrictions: str | None, **options: Any,
) -> int:  # fmt: skip
    """Copy some columns of encrypted files for another party.

    SOURCE is a file or folder; several keep their names in the folder DESTINATION. Copies contain
    only the columns that --column names, under the keys that --to names; names and values of
    other columns are left out, and their keys are not needed.
    """
    if not columns:
        raise click.UsageError("no column is named; use --column")
    batch = Batch("share", paths, options)
    encryption = batch.encryption(target_settings(options, encrypt))
    if explicit_keys:
        encryption = _add_explicit_keys(encryption)
    return batch.run(
        decryption=batch.decryption(options), encryption=encryption, only=columns,
        read_restrictions=read_json(restrictions),
    )  # fmt: skip


def _add_explicit_keys(encryption: Any) -> Any:
    """Return the encryption of new files that also writes their keys beside them."""
    from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption

    if not isinstance(encryption, RecipientEncryption):
        raise click.UsageError(
            "--explicit-keys needs --to with recipients, without a policy or --spark"
        )
    return replace(encryption, explicit_keys=True)
