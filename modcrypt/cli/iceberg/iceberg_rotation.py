"""`modcrypt iceberg rotate`, `prune` and `expire`: other keys for a table, and no old ones."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from modcrypt.cli.options.iceberg_options import (
    counted,
    lines_option,
    table_argument,
    table_of,
    table_options,
)
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.failures import in_options, printable
from modcrypt.cli.shared import print_line
from modcrypt.cli.spark import rotate_table_on_spark, service_settings

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.rotate.expiry import Expired
    from modcrypt.iceberg.rotate.rotation_report import TableRotation

__all__ = ["expire", "prune", "rotate"]

_ROTATE_EXAMPLE = """\b
Examples: KEKs under the newest version of their master key, or under another one; a new KEK;
new keys for the data itself, and what of it the old keys still open
  modcrypt iceberg rotate mek --kms file:lake.keyring lake/orders
  modcrypt iceberg rotate mek --kms file:lake.keyring --new-master-key vault lake/orders
  modcrypt iceberg rotate kek --kms file:lake.keyring lake/orders
  modcrypt iceberg rotate dek --kms file:lake.keyring lake/orders
  modcrypt iceberg expire --kms file:lake.keyring --dry-run lake/orders"""

_PRUNE_EXAMPLE = """\b
Example:
  modcrypt iceberg prune --kms file:lake.keyring --dry-run lake/orders"""

_EXPIRE_EXAMPLE = """\b
Examples: what would be lost; all but the current snapshot and one more, done
  modcrypt iceberg expire --kms file:lake.keyring --dry-run lake/orders
  modcrypt iceberg expire --kms file:lake.keyring --keep 8744736658442914487 --yes lake/orders"""

_dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


# --- rotate --------------------------------------------------------------------------------------


@click.command(epilog=_ROTATE_EXAMPLE)
@click.argument("what", metavar="mek|kek|dek", type=click.Choice(["mek", "kek", "dek"]))
@table_argument
@click.option(
    "--new-master-key",
    metavar="ID",
    help="Bring the table under this master key. Of mek and kek.",
)
@_dry_run_option
@click.option(
    "--spark",
    "spark_master",
    metavar="MASTER",
    help="Have Spark write the data files (dek), or the manifests (kek, with single wrapping or "
    "KEKs per partition or files), as local[4], spark://HOST:PORT, yarn or sc://HOST:PORT says. "
    "The table and what the key service is read from must be there on its executors, too.",
)
@table_options
@lines_option
def rotate(
    *,
    what: Literal["mek", "kek", "dek"],
    where: str,
    new_master_key: str | None,
    dry_run: bool,
    spark_master: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Give the table other keys, as one commit: whoever reads has the old version or the new one.

    mek: all KEKs are wrapped anew, under the newest version of the master key or another one; no
    file of the table is touched but its metadata. kek: there is a new KEK, and the keys of manifest
    lists are sealed under it; with single wrapping, or KEKs per partition or files, the keys in
    manifests too. dek: the files of the current snapshot are written again under new keys, page by
    page, undecoded.

    Older versions of the table keep what they have, under the old keys, until they are expired.
    """
    from modcrypt.iceberg import rotate_table

    if what == "dek":
        refuse({"new_master_key"}, "a dek is under the KEKs that there are: rotate mek or kek")
    if spark_master is not None and what == "mek":
        raise click.UsageError("--spark is for dek and kek: mek rewrites no file")
    settings = None if spark_master is None else service_settings(options)
    found = table_of(where, options)
    if spark_master is not None and settings is not None and not dry_run:
        done = rotate_table_on_spark(spark_master, found, settings, what, new_master_key)
    else:
        done = rotate_table(found, what, new_master_key_id=new_master_key, dry_run=dry_run)
    _print_rotation(done, as_json)


def _print_rotation(done: TableRotation, as_json: bool) -> None:
    fields = done.fields()
    if as_json:
        print_line(json.dumps(fields))
        return
    parts = (
        (done.keks, "KEK", "wrapped anew" if done.what == "mek" else "dropped"),
        (done.new_keks, "KEK", "made"),
        (done.entries, "key of a manifest list", "sealed anew"),
        (done.data_files, "data file", "written anew"),
        (done.delete_files, "delete file", "written anew"),
        (done.manifests, "manifest", "written anew"),
        (done.manifest_lists, "manifest list", "written anew"),
    )
    told = [f"{counted(count, noun)} {verb}" for count, noun, verb in parts if count]
    would = "would be done: " if done.dry_run else ""
    calls = counted(done.kms_calls, "call of the key service")
    print_line(f"{would}{', '.join(told) or 'nothing to do'}; {calls}, {done.seconds:.2f} s")
    if done.committed:
        where = done.table.place.full_name
        print_line(printable(f"the table is at {where}, under the master key {done.master_key_id}"))
    if done.advice is not None:
        click.echo(f"modcrypt: {printable(in_options(done.advice))}", err=True)


# --- prune ---------------------------------------------------------------------------------------


@click.command(epilog=_PRUNE_EXAMPLE)
@table_argument
@_dry_run_option
@table_options
@lines_option
def prune(*, where: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Drop the keys that no snapshot of the table needs; no file is touched but its metadata."""
    from modcrypt.iceberg import prune_keys

    done = prune_keys(table_of(where, options), dry_run=dry_run)
    if as_json:
        print_line(json.dumps(done.fields()))
        return
    _print_each("KEK", done.keks if dry_run else ())
    _print_each("key of a manifest list", done.entries if dry_run else ())
    verb = "would be dropped" if dry_run else "dropped"
    keks = counted(len(done.keks), "KEK")
    entries = counted(len(done.entries), "key of a manifest list")
    kept = counted(done.kept, "key")
    print_line(f"{keks} and {entries} {verb}, {done.saved:,} bytes; {kept} kept")


# --- expire --------------------------------------------------------------------------------------


@click.command(epilog=_EXPIRE_EXAMPLE)
@table_argument
@click.option(
    "--keep",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="Keep this snapshot, too. Repeatable. The current one is kept, and those of branches and "
    "tags are.",
)
@click.option(
    "--drop-refs",
    is_flag=True,
    help="Branches and tags keep nothing: those that name other snapshots are dropped with them.",
)
@_dry_run_option
@click.option("--yes", is_flag=True, help="Do it: nothing brings history back.")
@table_options
@lines_option
def expire(
    *,
    where: str,
    keep: tuple[int, ...],
    drop_refs: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Drop old snapshots of the table, their files, and older metadata.json files that logs name.

    Then nothing is left that the keys of before a rotation open, but for copies that somebody made.
    The commit comes first: the table is readable whenever this is interrupted, and a later run
    deletes what is left. The exit code is 1 where something could not be deleted.
    """
    from modcrypt.iceberg import expire_history

    if dry_run == yes:
        raise click.UsageError("history is lost for good: --dry-run says which, --yes says do it")
    found = table_of(where, options)
    done = expire_history(found, keep=keep, force=drop_refs, dry_run=dry_run)
    if as_json:
        print_line(json.dumps(done.fields()))
    else:
        _print_expiry(done)
    return int(bool(done.left))


_EXPIRED = (
    ("metadata.json file", "metadata_files"), ("manifest list", "manifest_lists"),
    ("manifest", "manifests"), ("data file", "data_files"), ("delete file", "delete_files"),
    ("statistics file", "statistics"), ("key", "keys"), ("branch or tag", "refs"),
)  # fmt: skip


def _print_expiry(done: Expired) -> None:
    """Say what goes: in a dry run each thing on its line, for who wants to keep some of it."""
    for id_, why in done.kept.items():
        print_line(printable(f"keeps snapshot {id_} ({why})"))
    for one in done.snapshots:
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.timestamp_ms / 1000))
        print_line(printable(f"drops snapshot {one.id} of {made} ({one.operation})"))
    counts = [(noun, getattr(done, name)) for noun, name in _EXPIRED]
    if done.dry_run:
        for noun, names in counts:
            _print_each(f"drops {noun}", names)
    _print_each("kept, unreadable or not named by a log", done.unreadable)
    _print_each("could not be deleted", done.left)
    told = ", ".join(counted(len(names), noun) for noun, names in counts if names)
    print_line(f"{'would drop' if done.dry_run else 'dropped'}: {told or 'nothing'}")


def _print_each(what: str, names: Sequence[str]) -> None:
    for name in names:
        print_line(printable(f"{what} {name}"))
