"""`modcrypt rekey`, `mask` and `share`: encrypted files made of encrypted files.

The old keys are given by the options of `decrypt`, the new ones by those of `encrypt` with `new-`
before their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import modcrypt
from modcrypt.cli.batch import Batch, Conversion, Task, batch_options, in_place_option
from modcrypt.cli.options.kms_options import audit_option, reading_service_options, refuse
from modcrypt.cli.options.parquet_options import (
    accept_option,
    decryption_properties,
    encryption_options,
    encryption_properties,
    missing_key_option,
    output_options,
    parquet_key_options,
)
from modcrypt.cli.parquet import missing_names
from modcrypt.cli.shared import key_from, prefix_options, root_option
from modcrypt.cli.spark import (
    encryption_settings,
    hash_key_reference,
    mask_on_spark,
    rekey_on_spark,
    share_on_spark,
    spark_option,
)

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.keys import Key
    from modcrypt.parquet.crypto.properties import Encryption
    from modcrypt.spark.settings import Settings

__all__ = ["mask", "rekey", "share"]

# --- options -------------------------------------------------------------------------------------

_NEW = "new_"


def _options_of(options: Callable[[Any], Any]) -> list[click.Option]:
    """Give options as click has them, from their decorator."""
    command = click.command()(options(lambda: None))
    return [one for one in command.params if isinstance(one, click.Option)]


_ENCRYPTION = _options_of(encryption_options)
_NAMES = re.compile(
    rf"--({'|'.join(sorted((one.opts[0][2:] for one in _ENCRYPTION), key=len, reverse=True))})\b"
    r"(?!-)"
)


def _with_new_options(command: click.Command) -> click.Command:
    """Add the options of `encrypt`, with `new-` before their names, to a command."""
    for one in _ENCRYPTION:
        new = copy(one)
        new.name = f"{_NEW}{one.name}"
        new.opts = [_renamed(name) for name in one.opts]
        new.help = f"For DESTINATION, as {one.opts[0]} of encrypt."
        command.params.insert(_place(command), new)
    return command


def _place(command: click.Command) -> int:
    """Give the number of the parameter before which the new file's options stand in the help."""
    return next(number for number, one in enumerate(command.params) if one.name == "audit")


def _renamed(text: str) -> str:
    return _NAMES.sub(r"--new-\1", text)


@contextmanager
def _said_of_new() -> Iterator[None]:
    """Have messages about options name those of the new file."""
    try:
        yield
    except click.UsageError as error:
        raise click.UsageError(_renamed(error.message), error.ctx) from None


def _taken_new(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of the new file's options out of a command's, under their own names."""
    names = [name for name in options if name.startswith(_NEW)]
    return {name[len(_NEW) :]: options.pop(name) for name in names}


def _new_properties(batch: Batch, new: dict[str, Any], audit: str | None) -> Encryption:
    with _said_of_new():
        found = encryption_properties(audit, _NEW, **new)
        return batch.check_prefixes(found, shared=new["shared_aad_prefix"])


def _new_settings(new: dict[str, Any]) -> Settings:
    """Give what `_new_properties` gives, as references for Spark."""
    with _said_of_new():
        return encryption_settings(new, _NEW)


def _says_new() -> bool:
    context = click.get_current_context()
    return any(
        name.startswith(_NEW) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in context.params
    )


# --- commands ------------------------------------------------------------------------------------

# click keeps the lines of a paragraph after \b as they are.
_REKEY_EXAMPLE = """\b
Examples: other keys; and those of a keyring in the place of keys that were given
  modcrypt rekey --key-file footer.key --column-key price=file:price.key \\
      --new-key-file next.key --new-column-key price=file:next-price.key \\
      orders.enc.parquet orders.next.parquet
  modcrypt rekey --key-file footer.key --column-key price=file:price.key \\
      --new-kms file:lake.keyring#footer --new-column-master-key price=pii \\
      --in-place orders.enc.parquet

\b
a folder from one policy to another; the run may be taken up
  modcrypt rekey --policy lake.toml --new-policy next.toml --record run.jsonl \\
      lake next"""

_MASK_EXAMPLE = """\b
Examples: customers by pseudonyms, and no prices, under the keys that the file has
  modcrypt mask --key-file footer.key --column-key price=file:price.key \\
      --hash customer --hash-key-file hash.key --drop price \\
      orders.enc.parquet orders.masked.parquet

\b
a whole folder, in place
  modcrypt mask --policy lake.toml --null price --in-place lake"""

_SHARE_EXAMPLE = """\b
Example: two columns for a partner, under a key for them
  modcrypt share --key-file footer.key --column shipped --column customer \\
      --new-key-file partner.key orders.enc.parquet orders.partner.parquet"""


@_with_new_options
@click.command(epilog=_REKEY_EXAMPLE)
@click.argument("source")
@click.argument("destination", required=False)
@parquet_key_options
@prefix_options
@root_option
@accept_option
@missing_key_option
@reading_service_options
@click.option(
    "--keep-unchanged",
    is_flag=True,
    help="Copy the pages of columns whose key, algorithm and AAD prefix stay, without opening "
    "them. The file then stays the same to its keys: modules of the old one fit into it.",
)
@audit_option
@in_place_option
@batch_options
@spark_option
@output_options
def rekey(
    *,
    source: str,
    destination: str | None,
    keep_unchanged: bool,
    spark_master: str | None,
    keep_unknown_fields: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Write the encrypted file SOURCE under other keys to DESTINATION, or all files of a folder.

    Keys, algorithm, footer mode, AAD prefix and key metadata are those that the --new options
    say, and nothing of the old ones stays. Every module is authenticated on the way, and sealed
    again; no page is decoded, and no plaintext is written.
    """
    if spark_master is not None:
        settings = _new_settings(_taken_new(options))
        return rekey_on_spark(
            spark_master, source, destination, options, settings, force=force, as_json=as_json
        )
    batch = Batch(options, source, destination)
    batch.keep_columns(options["on_missing_key"])
    new = _taken_new(options)
    encryption = _new_properties(batch, new, options["audit"])
    decryption = batch.rooted(decryption_properties(**options))

    def work(task: Task) -> dict[str, Any]:
        return modcrypt.rekey_parquet(
            task.source,
            task.destination,
            decryption,
            encryption,
            keep_unchanged=keep_unchanged,
            overwrite=task.overwrite,
            threads=task.threads,
            progress=task.progress,
            dry_run=task.dry_run,
            keep_unknown_fields=keep_unknown_fields,
        ).fields()

    conversion = Conversion(
        verb="rekey", doing="Rekeying", done="rekeyed", work=work, note=missing_names
    )
    return batch.run(conversion, force=force, threads=threads, as_json=as_json)


@_with_new_options
@click.command(epilog=_MASK_EXAMPLE)
@click.argument("source")
@click.argument("destination", required=False)
@click.option(
    "--null",
    "null",
    metavar="NAME",
    multiple=True,
    help="Set a column, or all columns in a group, to null. Repeatable.",
)
@click.option(
    "--hash",
    "hashed",
    metavar="NAME",
    multiple=True,
    help="Put keyed hashes (HMAC-SHA-256, in hex) in the place of the values of a column, or of "
    "all columns in a group: equal values have equal hashes. Repeatable.",
)
@click.option(
    "--drop",
    metavar="NAME",
    multiple=True,
    help="Leave a column, or all columns in a group, out. Repeatable.",
)
@click.option("--hash-key-file", metavar="PATH", help="Key of the hashes: as --key-file.")
@click.option("--hash-key-env", metavar="VARIABLE", help="Key of the hashes: as --key-env.")
@click.option(
    "--hash-key-fd",
    metavar="N",
    type=click.IntRange(min=0),
    help="Key of the hashes: as --key-fd.",
)
@parquet_key_options
@prefix_options
@root_option
@accept_option
@reading_service_options
@audit_option
@in_place_option
@batch_options
@spark_option
@output_options
def mask(
    *,
    source: str,
    destination: str | None,
    null: tuple[str, ...],
    hashed: tuple[str, ...],
    drop: tuple[str, ...],
    hash_key_file: str | None,
    hash_key_env: str | None,
    hash_key_fd: int | None,
    spark_master: str | None,
    keep_unknown_fields: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Write the encrypted file SOURCE to DESTINATION with columns masked, or all of a folder.

    What is not named is kept as it is, without being decoded. Without --new options the file's own
    keys, key metadata and AAD prefix are used again. A file says which of its columns are hashed:
    they are not hashed again with the same key, in whatever run.
    """
    if not (null or hashed or drop):
        raise click.UsageError("which columns? --null, --hash and --drop name them")
    if spark_master is not None:
        _check_hash_key(bool(hashed), hash_key_file, hash_key_env, hash_key_fd)
        reference = hash_key_reference(hash_key_file, hash_key_env)
        masks = {"null": null, "hashed": hashed, "drop": drop, "hash_key": reference}
        new = _taken_new(options)
        return mask_on_spark(
            spark_master, source, destination, options, _new_settings(new) if _says_new() else None,
            masks, force=force, as_json=as_json,
        )  # fmt: skip
    batch = Batch(options, source, destination)
    hash_key = _hash_key(hash_key_file, hash_key_env, hash_key_fd, bool(hashed))
    new = _taken_new(options)
    encryption = _new_properties(batch, new, options["audit"]) if _says_new() else None
    decryption = batch.rooted(decryption_properties(**options))

    def work(task: Task) -> dict[str, Any]:
        return modcrypt.mask_parquet(
            task.source,
            task.destination,
            decryption,
            encryption,
            null=null,
            hashed=hashed,
            drop=drop,
            hash_key=hash_key,
            overwrite=task.overwrite,
            threads=task.threads,
            progress=task.progress,
            dry_run=task.dry_run,
            keep_unknown_fields=keep_unknown_fields,
        ).fields()

    conversion = Conversion(
        verb="mask", doing="Masking", done="masked", work=work, once=bool(hashed)
    )
    return batch.run(conversion, force=force, threads=threads, as_json=as_json)


def _hash_key(file: str | None, env: str | None, fd: int | None, needed: bool) -> Key | None:
    _check_hash_key(needed, file, env, fd)
    return key_from(file, env, fd, "key of the hashes", "--hash-key")


def _check_hash_key(needed: bool, *given: object) -> None:
    """Check that there is a key for hashes, and none for nothing."""
    if not needed:
        refuse({"hash_key_file", "hash_key_env", "hash_key_fd"}, "--hash names what is hashed")
    elif all(value is None for value in given):
        raise click.UsageError(
            "--hash needs a key: --hash-key-file, --hash-key-env or --hash-key-fd"
        )


@_with_new_options
@click.command(epilog=_SHARE_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@click.option(
    "--column",
    "columns",
    metavar="NAME",
    multiple=True,
    help="Share a column, or all columns in a group. Repeatable.",
)
@parquet_key_options
@prefix_options
@root_option
@accept_option
@reading_service_options
@audit_option
@batch_options
@spark_option
@output_options
def share(
    *,
    source: str,
    destination: str,
    columns: tuple[str, ...],
    spark_master: str | None,
    keep_unknown_fields: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Write a copy of the encrypted file SOURCE for somebody else, or of all files of a folder.

    DESTINATION has the columns that --column names, under keys that the --new options give, and
    nothing of the others: neither their names nor their values. Their keys are not needed.
    """
    if not columns:
        raise click.UsageError("which columns? --column names them")
    if spark_master is not None:
        settings = _new_settings(_taken_new(options))
        return share_on_spark(
            spark_master, source, destination, options, settings, columns, force=force,
            as_json=as_json,
        )  # fmt: skip
    batch = Batch(options, source, destination)
    new = _taken_new(options)
    encryption = _new_properties(batch, new, options["audit"])
    decryption = batch.rooted(decryption_properties(**options))

    def work(task: Task) -> dict[str, Any]:
        return modcrypt.share_parquet(
            task.source,
            task.destination,
            decryption,
            encryption,
            columns,
            overwrite=task.overwrite,
            threads=task.threads,
            progress=task.progress,
            dry_run=task.dry_run,
            keep_unknown_fields=keep_unknown_fields,
        ).fields()

    conversion = Conversion(verb="share", doing="Sharing", done="shared", work=work)
    return batch.run(conversion, force=force, threads=threads, as_json=as_json)
