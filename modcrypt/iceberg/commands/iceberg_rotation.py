"""`modcrypt iceberg rotate`, `prune` and `expire`: new keys, and removal of old ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import click

from modcrypt.cli.engines import load_spark, refuse_local_options, start_spark
from modcrypt.cli.options.kms_options import refuse, required_service
from modcrypt.cli.options.signing_options import read_signing_key, sign_options
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.shared import confirm, print_json, print_line, prove_option
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.iceberg.commands.iceberg_options import (
    Age,
    leave_out_declared,
    note_missing_seal,
    open_catalog,
    open_changing_table,
    open_service,
    opening_arguments,
    optional_table_argument,
    table_argument,
    table_options,
)
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.rotate.catalog_rotation import RotatedTable
    from modcrypt.iceberg.rotate.expiry import Expired
    from modcrypt.iceberg.rotate.rotation_report import TableRotation
    from modcrypt.kms.proof import Prove

_ROTATE_EXAMPLE = """\b
Examples: KEKs under the newest version of their master key; or another; new keys
  modcrypt iceberg rotate mek --kms file:lake.keyring lake/orders
  modcrypt iceberg rotate mek --kms file:lake.keyring --new-master-key vault lake/orders
  modcrypt iceberg rotate kek --kms file:lake.keyring lake/orders
  modcrypt iceberg rotate dek --kms file:lake.keyring lake/orders
  modcrypt iceberg rotate mek --kms file:lake.keyring --catalog sqlite:///lake/catalog.db"""

_PRUNE_EXAMPLE = """\b
Example:
  modcrypt iceberg admin prune --kms file:lake.keyring --dry-run lake/orders"""

_EXPIRE_EXAMPLE = """\b
Examples: what would be lost; expire all but the current snapshot and one more; all but the
snapshots of a week, and the last 9
  modcrypt iceberg expire --kms file:lake.keyring --dry-run lake/orders
  modcrypt iceberg expire --kms file:lake.keyring --keep 8744736658442914487 --yes lake/orders
  modcrypt iceberg expire --kms file:lake.keyring --older-than 7d --keep-last 9 --yes lake/orders"""


@verb(epilog=_ROTATE_EXAMPLE)
@click.argument("what", metavar="mek|kek|dek", type=click.Choice(["mek", "kek", "dek"]))
@optional_table_argument
@option("--namespace NAME", help="With mek, without TABLE: only the tables of this namespace.")
@option("--new-master-key ID", help="With mek and kek: move the table to this master key.")
@option(
    "--encrypt-plaintext",
    help="With dek: also encrypt files in plaintext, which anyone who could write to the table's "
    "folder may have chosen.",
)
@prove_option
@table_options
@sign_options
def rotate(
    *, what: Literal["mek", "kek", "dek"], where: str | None, namespace: str | None,
    new_master_key: str | None, encrypt_plaintext: bool, yes: bool, prove: Prove, dry_run: bool,
    spark_master: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Rotate the table's keys in one commit.

    Older versions keep their old keys until they are expired. With --sign, the new version is
    sealed.

    mek: wrap all KEKs again, under the newest version of the master key or another one. With
    --catalog and without TABLE, rotate all tables of the catalog, skip those that are done, and
    print which master key each is under.

    kek: make a new KEK and encrypt the keys of manifest lists under it; with single wrapping, or
    KEKs per partition or files, also the keys in manifests, which --spark distributes.

    dek: write the files of all branches and tags again under new keys, page by page, without
    decoding. With --spark, executors write the data files.
    """
    from modcrypt.iceberg import rotate_table

    if what == "dek":
        why = "dek keeps the KEKs; use rotate mek or kek to change the master key"
        refuse({"new_master_key"}, why)
    else:
        refuse({"encrypt_plaintext"}, "only dek writes data files")
    if spark_master is not None and what == "mek":
        raise click.UsageError("--spark needs dek or kek; mek rewrites no file")
    if where is None:
        return _rotate_catalog(what, namespace, new_master_key, dry_run, as_json, prove, options)
    if namespace is not None:
        raise click.UsageError("--namespace rotates all its tables; leave out TABLE")
    if encrypt_plaintext and not dry_run:
        confirm("encrypts files in plaintext, whose contents nothing authenticates", yes)
    settings = None
    if spark_master is not None:
        refuse_local_options()
        settings = required_service(options)
    target = open_changing_table(where, options, dry_run=dry_run)
    if what == "dek":
        target = leave_out_declared(target).table
    if spark_master is not None and settings is not None and not dry_run:
        of_dek = {"encrypt_plaintext": encrypt_plaintext}
        own: dict[str, Any] = of_dek if what == "dek" else {"new_master_key_id": new_master_key}
        with start_spark(spark_master, f"iceberg rotate {what}") as spark:
            rotation = load_spark().rotate_iceberg_table(
                spark, what, target, settings, prove=prove, **own
            )
    else:
        rotation = rotate_table(
            target, what, new_master_key_id=new_master_key, dry_run=dry_run,
            encrypt_plaintext=encrypt_plaintext, prove=prove,
        )  # fmt: skip
    _print_rotation(rotation, as_json)
    return 0


def _rotate_catalog(
    what: str, namespace: str | None, new_master_key: str | None, dry_run: bool, as_json: bool,
    prove: Prove, options: dict[str, Any],
) -> int:  # fmt: skip
    """Rotate the master keys of all tables; return the exit code that all failures share."""
    from modcrypt.iceberg import rotate_catalog
    from modcrypt.iceberg.tables.catalogs import parse_identifier
    from modcrypt.jobs.failures import exit_code

    catalog = open_catalog(options["catalog"], options["catalog_name"])
    if catalog is None or what != "mek":
        raise click.UsageError("Missing argument 'TABLE'; only mek with --catalog needs none")
    key = read_signing_key(options)
    if options["signed_by"] and key is None and not dry_run:
        note_missing_seal()
    found = []
    for done in rotate_catalog(
        catalog, open_service(options), namespace=parse_identifier(namespace or ""),
        dry_run=dry_run, new_master_key_id=new_master_key, signing_key=key,
        prove=prove, **opening_arguments(options),
    ):  # fmt: skip
        found.append(done)
        message = use_option_names(done.message)
        if as_json:
            fields = {**done.fields(), "message": message, "dry_run": dry_run}
            print_json("iceberg.rotated-table", fields)
        else:
            print_line(printable(f"{done.table}: {message or _format_state(done, dry_run)}"))
    return exit_code([done.result for done in found if done.failed])


def _format_state(done: RotatedTable, dry_run: bool) -> str:
    if done.master_key_id is None:
        return done.result
    versions = f", version {', '.join(done.versions)}" if done.versions else ""
    would = "would be " if dry_run and done.result == "rotated" else ""
    return f"{would}{done.result}, under the master key {done.master_key_id}{versions}"


def _print_rotation(done: TableRotation, as_json: bool) -> None:
    fields = done.fields()
    if as_json:
        print_json("iceberg.rotation", fields)
        return
    parts = (
        (done.keks, "KEK", "wrapped again" if done.what == "mek" else "dropped"),
        (done.new_keks, "KEK", "made"),
        (done.entries, "key of a manifest list", "encrypted again"),
        (done.data_files, "data file", "rewritten"),
        (done.delete_files, "delete file", "rewritten"),
        (done.manifests, "manifest", "rewritten"),
        (done.manifest_lists, "manifest list", "rewritten"),
    )
    steps = [f"{format_count(count, noun)} {verb}" for count, noun, verb in parts if count]
    would = "would be done: " if done.dry_run else ""
    calls = format_count(done.kms_calls, "call of the key service")
    print_line(f"{would}{', '.join(steps) or 'nothing to do'}; {calls}, {done.seconds:.2f} s")
    if done.committed:
        where = done.table.place.full_name
        print_line(printable(f"the table is at {where}, under the master key {done.master_key_id}"))
    if done.advice is not None:
        click.echo(f"modcrypt: {printable(use_option_names(done.advice))}", err=True)


@verb(epilog=_PRUNE_EXAMPLE)
@table_argument
@table_options
@sign_options
def prune(*, where: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Drop keys that no snapshot of the table needs.

    Only the table's metadata changes. With --sign, its new version is sealed.
    """
    from modcrypt.iceberg import prune_keys

    target = open_changing_table(where, options, dry_run=dry_run)
    done = prune_keys(target, dry_run=dry_run)
    if as_json:
        print_json("iceberg.prune", done.fields())
        return
    _print_each("KEK", done.keks if dry_run else ())
    _print_each("key of a manifest list", done.entries if dry_run else ())
    verb = "would be dropped" if dry_run else "dropped"
    keks = format_count(len(done.keks), "KEK")
    entries = format_count(len(done.entries), "key of a manifest list")
    kept = format_count(done.kept, "key")
    print_line(f"{keks} and {entries} {verb}, {done.saved:,} bytes; {kept} kept")


@verb(epilog=_EXPIRE_EXAMPLE)
@table_argument
@option(
    "--keep ID...",
    type=click.IntRange(min=0),
    help="Keep this snapshot in addition to the current one and those of branches and tags; "
    "after a rollback, name the newest snapshot to keep. Repeatable.",
)
@option(
    "--older-than AGE",
    type=Age(),
    help="Keep snapshots that are younger, such as 7d or 12h. Default: the table property "
    "history.expire.max-snapshot-age-ms; without it 5 days with --keep-last, else none.",
)
@option(
    "--keep-last N",
    type=click.IntRange(min=1),
    help="Keep at least the last N snapshots of each branch. Default: the table property "
    "history.expire.min-snapshots-to-keep, else 1.",
)
@option(
    "--drop-refs",
    help="Drop branches and tags that name other snapshots, and staged snapshots, instead of "
    "keeping their snapshots.",
)
@table_options
@sign_options
def expire(
    *, where: str, keep: tuple[int, ...], older_than: timedelta | None, keep_last: int | None,
    drop_refs: bool, dry_run: bool, yes: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Drop old snapshots, and the files that only they need.

    Settings of branches and tags apply, as in Iceberg's Java. Staged snapshots are kept. A table
    whose property gc.enabled is false is refused.

    Older metadata.json files named by metadata logs are deleted, too. Afterwards keys from before
    a rotation open nothing, except copies made elsewhere. The commit comes first: the table stays
    readable if this command is interrupted, and a later run deletes the rest. With --sign, the new
    version is sealed before anything is deleted. The exit code is 1 if something could not be
    deleted.
    """
    from modcrypt.iceberg import expire_history

    if not dry_run:
        refs = ", and branches and tags that name other snapshots," if drop_refs else ""
        confirm(f"deletes history{refs} for good; --dry-run shows what", yes)
    # Erased files stay, although their keys are missing: no older version may have them.
    target = leave_out_declared(open_changing_table(where, options, dry_run=dry_run)).table
    done = expire_history(
        target, keep=keep, older_than=older_than, keep_last=keep_last, force=drop_refs,
        dry_run=dry_run,
    )  # fmt: skip
    if as_json:
        print_json("iceberg.expire", done.fields())
    else:
        print_expiry(done)
    return int(bool(done.left))


_EXPIRED = (
    ("metadata.json file", "metadata_files"), ("manifest list", "manifest_lists"),
    ("manifest", "manifests"), ("data file", "data_files"), ("delete file", "delete_files"),
    ("statistics file", "statistics"), ("key", "keys"), ("branch or tag", "refs"),
)  # fmt: skip


def print_expiry(done: Expired) -> None:
    """Print what is dropped; in a dry run every item on a line of its own."""
    for id_, why in done.kept.items():
        print_line(printable(f"keeps snapshot {id_} ({why})"))
    for snapshot in done.snapshots:
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(snapshot.timestamp_ms / 1000))
        print_line(printable(f"drops snapshot {snapshot.id} of {created} ({snapshot.operation})"))
    counts = [(noun, getattr(done, name)) for noun, name in _EXPIRED]
    if done.dry_run:
        for noun, names in counts:
            _print_each(f"drops {noun}", names)
    for name in done.unreadable:
        print_line(printable(f"kept {name} (rule {done.rules[name]})"))
    _print_each("could not be deleted", done.left)
    totals = ", ".join(format_count(len(names), noun) for noun, names in counts if names)
    print_line(f"{'would drop' if done.dry_run else 'dropped'}: {totals or 'nothing'}")


def _print_each(what: str, names: Sequence[str]) -> None:
    for name in names:
        print_line(printable(f"{what} {name}"))
