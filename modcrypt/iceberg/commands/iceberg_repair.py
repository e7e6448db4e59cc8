"""`modcrypt iceberg purge`, `admin repair` and `remove-orphans`: damaged and unneeded files."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.signing_options import sign_options
from modcrypt.cli.shared import confirm, print_json, print_line
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.iceberg.commands.iceberg_options import (
    Age,
    leave_out_declared,
    open_changing_table,
    open_selected_table,
    table_argument,
    table_options,
)
from modcrypt.iceberg.commands.iceberg_rotation import print_expiry
from modcrypt.report.text import format_count

if TYPE_CHECKING:
    from modcrypt.iceberg import Repaired, RepairedManifests

_REPAIR_EXAMPLE = """\b
Examples: what can be restored; restore it, and drop the snapshots that cannot be
  modcrypt iceberg admin repair --kms file:lake.keyring --dry-run lake/orders
  modcrypt iceberg admin repair --kms file:lake.keyring --drop-lost --yes lake/orders"""

_ORPHANS_EXAMPLE = """\b
Examples: list orphan files of three days or more; remove those of a week or more
  modcrypt iceberg admin remove-orphans --kms file:lake.keyring --dry-run lake/orders
  modcrypt iceberg admin remove-orphans --kms file:lake.keyring --older-than 7d --yes lake/orders"""


_PURGE_EXAMPLE = """\b
Examples: what would be deleted; delete the table
  modcrypt iceberg purge --kms file:lake.keyring --dry-run lake/orders
  modcrypt iceberg purge --kms file:lake.keyring --yes lake/orders"""


@verb(epilog=_REPAIR_EXAMPLE)
@table_argument
@option(
    "--drop-lost",
    help="Drop snapshots whose keys are not found. If the current one is among them, the table "
    "goes back to the newest intact one, and later rows are lost.",
)
@option(
    "--trust-plaintext",
    help="Accept plaintext manifests for which no older snapshot vouches: anyone who could write "
    "to the table's folder may have chosen the files in them.",
)
@table_options
@sign_options
def repair(
    *, where: str, drop_lost: bool, trust_plaintext: bool, dry_run: bool, yes: bool, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Restore lost keys of snapshots, and encrypt manifests that are in plaintext.

    Iceberg's Java 1.11 loses keys when commits collide. A key from an older metadata.json is
    restored only if it decrypts the snapshot's manifest list. Spark with Iceberg 1.11 rewrites
    manifests in plaintext. Their entries are taken from the encrypted manifests of the snapshot
    before; rotate dek afterwards, because the keys of files were readable. With --sign, the new
    version is sealed. The exit code is 1 if snapshots without keys or plaintext manifests are left.
    """
    from modcrypt.iceberg import repair_manifests, repair_table

    for dangerous, consequence in (
        (drop_lost, "drops snapshots whose keys are not found, and their rows"),
        (trust_plaintext, "accepts plaintext manifests that anyone may have written"),
    ):
        if dangerous and not dry_run:
            confirm(f"{consequence}; --dry-run shows which", yes)
    target = open_changing_table(where, options, dry_run=dry_run)
    done = repair_table(target, drop_lost=drop_lost, dry_run=dry_run)
    current, manifests = done.table.metadata.current, None
    # Without the keys of the current snapshot, its manifests cannot be read.
    is_lost = current is not None and current.id in done.lost
    if not (is_lost or (dry_run and done.restored)):
        manifests = repair_manifests(done.table, trust_plaintext=trust_plaintext, dry_run=dry_run)
    if as_json:
        members = None if manifests is None else manifests.fields()
        print_json("iceberg.repair", {**done.fields(), "plaintext_manifests": members})
    else:
        _print_keys(done)
        _print_manifests(manifests)
    left = manifests is not None and manifests.manifests and not manifests.replaced
    return int((bool(done.lost) and not done.dropped) or bool(left))


def _print_keys(done: Repaired) -> None:
    dry_run = done.dry_run
    for id_ in done.restored:
        print_line(printable(f"{'would restore' if dry_run else 'restored'} key {id_}"))
    verb = ("would be dropped" if dry_run else "dropped") if done.dropped else "left"
    for snapshot in done.lost:
        print_line(f"the key of snapshot {snapshot} is not found: {verb}")
    if done.lost and not done.dropped and done.newest_intact is not None:
        print_line(f"--drop-lost keeps snapshot {done.newest_intact} as the newest intact one")
    if not (done.restored or done.lost):
        print_line("no key is lost")


def _print_manifests(done: RepairedManifests | None) -> None:
    if done is None or not done.manifests:
        return
    verb = "would be encrypted" if done.dry_run else "encrypted"
    verb = verb if done.replaced else "left in plaintext"
    for location in done.manifests:
        print_line(printable(f"plaintext manifest {location}: {verb}"))
    for location, reason in zip(done.untrusted, done.reasons, strict=True):
        print_line(printable(f"nothing vouches for {location}: {reason}"))
    if not done.replaced:
        print_line("--trust-plaintext accepts the files that these manifests name")
    elif not done.dry_run:
        print_line("the keys in these manifests were readable: rotate dek, expire, remove-orphans")


@verb("remove-orphans", epilog=_ORPHANS_EXAMPLE)
@table_argument
@option(
    "--older-than AGE",
    type=Age(days=True),
    default="3d",
    show_default=True,
    help="Minimum age of a file, such as 7d or 12h; a younger one may belong to a running commit.",
)
@option(
    "--foreign",
    help="Also remove files that are not encrypted, which another program may have put there.",
)
@table_options
def remove_orphans(
    *, where: str, older_than: timedelta, foreign: bool, dry_run: bool, yes: bool, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Remove files in the table's folder that no snapshot reaches.

    Interrupted writes leave them behind. No metadata.json is removed, nor a file in the folder of
    another table, nor anything of a table whose property gc.enabled is false. The exit code is 1 if
    a file could not be removed.
    """
    from modcrypt.iceberg import remove_orphan_files

    if not dry_run:
        also = ", and files that are not encrypted," if foreign else ""
        confirm(f"deletes files{also} for good; --dry-run lists them", yes)
    target = leave_out_declared(open_selected_table(where, options)).table
    days = older_than / timedelta(days=1)
    done = remove_orphan_files(target, older_than_days=days, foreign=foreign, dry_run=dry_run)
    if as_json:
        print_json("iceberg.remove-orphans", done.fields())
        return int(bool(done.left))
    for file in done.files if dry_run else ():
        print_line(printable(f"orphan {file.path}"))
    for path in done.kept:
        print_line(printable(f"kept {path} (rule {done.rules[path]})"))
    for location in done.left:
        print_line(printable(f"could not be removed {location}"))
    verb = "would be removed" if dry_run else "removed"
    count = format_count(len(done.files) - len(done.left), "file")
    print_line(f"{count} ({done.size:,} bytes) {verb}; {format_count(done.young, 'younger file')}")
    return int(bool(done.left))


@verb(epilog=_PURGE_EXAMPLE)
@table_argument
@option(
    "--unregistered",
    help="No catalog has TABLE any more under any name, and it is the path of its last "
    "metadata.json: resume an interrupted purge of a catalog's table. That purge has left a marker "
    "beside it, TABLE.purge; without one the table is refused.",
)
@table_options
@sign_options
def purge(
    *, where: str, unregistered: bool, dry_run: bool, yes: bool, as_json: bool, **options: Any
) -> int:
    """Drop the table from its catalog, and delete its files and its KEKs in the key store.

    The purges of Spark and of REST servers leave the data files of encrypted tables behind. Files
    that the rules for expire keep stay, and so do seals and orphan files. The master key stays in
    the key service. If this command is interrupted, run it again; for a table of a catalog, with
    --unregistered and the metadata.json that it prints first. The exit code is 1 if something could
    not be deleted.
    """
    from modcrypt.iceberg import purge_table

    if not dry_run:
        confirm("deletes the table for good; --dry-run shows what", yes)
    target = open_changing_table(where, options, dry_run=dry_run)
    if not dry_run:
        place = printable(target.place.full_name)
        click.echo(f"modcrypt: purging {place}", err=True)
    done = purge_table(target, unregistered=unregistered, dry_run=dry_run)
    if as_json:
        print_json("iceberg.purge", done.fields())
    else:
        print_expiry(done.deleted)
        if done.master_key_id is not None:
            print_line(printable(f"the master key {done.master_key_id} stays in the key service"))
    return int(bool(done.left))
