"""`modcrypt encrypt` and `decrypt`, for Parquet files and folders of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.batch import Batch, Conversion, Task, batch_options, in_place_option
from modcrypt.cli.options.kms_options import audit_option, reading_service_options
from modcrypt.cli.options.parquet_options import (
    decryption_properties,
    encryption_options,
    encryption_properties,
    output_options,
    parquet_key_options,
    reading_options,
)
from modcrypt.cli.output.failures import printable
from modcrypt.cli.shared import prefix_options, root_option
from modcrypt.cli.spark import decrypt_on_spark, encrypt_on_spark, spark_option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.crypto.properties import Encryption

__all__ = ["decrypt", "encrypt", "format_missing_columns"]

# click keeps the lines of a paragraph after \b as they are.
_ENCRYPT_EXAMPLE = """\b
Examples: prices under a key of their own, ship dates readable by everyone
  modcrypt encrypt --key-file footer.key --column-key price=file:price.key \\
      --plaintext-column shipped orders.parquet orders.enc.parquet

\b
fresh keys, wrapped under master keys of a keyring; or as a policy says
  modcrypt encrypt --kms file:lake.keyring#footer --column-master-key price=pii \\
      --plaintext-column shipped orders.parquet orders.kms.parquet
  modcrypt encrypt --policy lake.toml orders.parquet orders.policy.parquet"""

_DECRYPT_EXAMPLE = """\b
Examples: what the footer key opens, without the columns under other keys
  modcrypt decrypt --key-file footer.key --on-missing-key drop \\
      orders.enc.parquet orders.public.parquet

\b
with the master keys of a keyring
  modcrypt decrypt --kms file:lake.keyring orders.kms.parquet orders.back.parquet"""


@click.command(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination", required=False)
@encryption_options
@audit_option
@in_place_option
@batch_options
@spark_option
@output_options
def encrypt(
    *,
    source: str,
    destination: str | None,
    audit: str | None,
    spark_master: str | None,
    keep_unknown_fields: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
    **how: Any,
) -> int:
    """Encrypt a Parquet file, or all files of a folder.

    SOURCE and DESTINATION are both files or both folders: paths or, with fsspec installed, URLs.
    The footer key encrypts every column that no option names. A file appears only when it is
    complete.

    Keys come from options, or they are made for each file and wrapped by the key service that
    --kms or --policy names. In that case {path} in an AAD prefix stands for the file's path inside
    DESTINATION, and {name} for its name.
    """
    if spark_master is not None:
        return encrypt_on_spark(
            spark_master, source, destination, how, force=force, as_json=as_json
        )
    batch = Batch(how, source, destination)
    properties = batch.check_prefixes(
        encryption_properties(audit, **how), shared=how["shared_aad_prefix"]
    )

    def work(task: Task) -> dict[str, Any]:
        if task.dry_run:
            _check_encryptable(task.source, properties)
            return {}
        modcrypt.encrypt_parquet(
            task.source,
            task.destination,
            properties,
            overwrite=task.overwrite,
            threads=task.threads,
            progress=task.progress,
            keep_unknown_fields=keep_unknown_fields,
        )
        return {}

    conversion = Conversion(verb="encrypt", doing="Encrypting", done="encrypted", work=work)
    return batch.run(conversion, force=force, threads=threads, as_json=as_json)


def _check_encryptable(source: str, encryption: Encryption) -> None:
    """Raise if the footer shows that a file cannot be encrypted; make no key."""
    from modcrypt.io.sources import open_source
    from modcrypt.parquet.convert.encryptor import plan_encryption
    from modcrypt.parquet.crypto.properties import is_keyed

    with open_source(source) as opened:
        plan_encryption(opened, encryption.for_check() if is_keyed(encryption) else encryption)


@click.command(epilog=_DECRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination", required=False)
@parquet_key_options
@prefix_options
@root_option
@reading_options
@reading_service_options
@audit_option
@in_place_option
@batch_options
@spark_option
@output_options
def decrypt(
    *,
    source: str,
    destination: str | None,
    spark_master: str | None,
    keep_unknown_fields: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
    **reading: Any,
) -> int:
    """Decrypt an encrypted Parquet file, or all files of a folder.

    SOURCE and DESTINATION are both files or both folders. modcrypt authenticates every module that
    it reads. A file appears only when it is complete. An AAD prefix given here must be the one
    that the file was written with.
    """
    if spark_master is not None:
        return decrypt_on_spark(
            spark_master, source, destination, reading, force=force, as_json=as_json
        )
    batch = Batch(reading, source, destination)
    batch.refuse_column_loss(reading["on_missing_key"])
    properties = batch.resolve_root(decryption_properties(**reading))
    nulls = properties.on_missing_key == "null"

    def work(task: Task) -> dict[str, Any]:
        if task.dry_run:
            missing = _missing_columns(task.source, properties)
        else:
            missing = modcrypt.decrypt_parquet(
                task.source,
                task.destination,
                properties,
                overwrite=task.overwrite,
                threads=task.threads,
                progress=task.progress,
                keep_unknown_fields=keep_unknown_fields,
            )
        return {"dropped": () if nulls else missing, "nulls": missing if nulls else ()}

    conversion = Conversion(
        verb="decrypt", doing="Decrypting", done="decrypted", work=work, note=format_missing_columns
    )
    return batch.run(conversion, force=force, threads=threads, as_json=as_json)


def _missing_columns(source: str, decryption: modcrypt.FileDecryptionProperties) -> tuple[str, ...]:
    """Return the columns without a key, as `decrypt_parquet` does, but open no page."""
    from modcrypt.io.sources import open_source
    from modcrypt.parquet.crypto.file_plan import plan_decryption

    with open_source(source) as opened:
        return plan_decryption(opened, decryption).missing_names


def format_missing_columns(more: dict[str, Any]) -> str:
    """Return a sentence on columns dropped or null without a key, or without their own key now."""
    words = {"dropped": "columns left out", "nulls": "columns filled with nulls"}
    sentences = [
        f"{action} because their key is missing: {printable(', '.join(more[field]))}"
        for field, action in words.items()
        if more[field]
    ]
    if columns := more.get("under_footer_key"):
        sentences.append(
            f"columns that no longer have a key of their own: {printable(', '.join(columns))}"
        )
    return "; ".join(sentences)
