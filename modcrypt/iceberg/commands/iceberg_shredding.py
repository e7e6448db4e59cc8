"""`modcrypt iceberg shred`: permanent removal of the keys of a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.datasets.table_arguments import declared_table
from modcrypt.cli.options.signing_options import sign_options
from modcrypt.cli.shared import confirm, print_json, print_line, request_option
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import list_names, printable
from modcrypt.iceberg.commands.iceberg_options import (
    open_changing_table,
    table_argument,
    table_options,
)
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.rotate.partition_shredding import ShreddedPartition

_EXAMPLE = """\b
Examples: what would be lost; erase a tenant, for a request
  modcrypt iceberg shred --partition tenant=umbrella --dry-run orders
  modcrypt iceberg shred --partition tenant=umbrella --request GDPR-17 --yes orders"""


@verb(epilog=_EXAMPLE)
@table_argument
@option(
    "--partition NAME=VALUE...",
    "given",
    required=True,
    help="Name and value of a partition, as in the paths of its files. Repeatable: all must match.",
)
@request_option
@table_options
@sign_options
def shred(
    *, where: str, given: tuple[str, ...], request: str | None, dry_run: bool, yes: bool,
    as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Make a partition of the table unreadable for good, in all snapshots.

    The KEKs of the partition are removed from the table and its key store, and older metadata.json
    files, which contain them, are deleted; no snapshot is dropped. The table's policy must have
    given the partition KEKs of its own. If modcrypt.toml declares the table, the erasure is first
    recorded beside it. Manifests still state the partition's name, and bounds of its values: delete
    its rows, and expire the history, to remove these. The exit code is 1 if keys could not be
    removed.
    """
    from modcrypt.iceberg import shred_partition

    partition = _parse_partition(given)
    dataset = declared_table().get("dataset")
    if request is not None and dataset is None:
        raise click.UsageError("--request: modcrypt.toml does not declare the table")
    if not dry_run:
        confirm("removes the keys of the partition for good; --dry-run shows what", yes)
    target = open_changing_table(where, options, dry_run=dry_run)
    done = shred_partition(target, partition, dry_run=True)
    if dataset is not None and not dry_run:
        key: Any = target.signing_key
        recording = dataset.lake.record_partition(dataset.name, partition, request or "", key)
        with recording as end:
            done = shred_partition(target, partition)
            end(int(bool(done.left)), done.files)
    elif not dry_run:
        done = shred_partition(target, partition)
    if as_json:
        print_json("iceberg.shred", done.fields())
    else:
        _print_result(done)
    return int(bool(done.left))


def _parse_partition(given: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not (name and mark) or name in found:
            raise click.UsageError(f"--partition takes NAME=VALUE, each name once, not {text}")
        found[name] = value
    return found


def _print_result(done: ShreddedPartition) -> None:
    for name in done.left:
        print_line(printable(f"could not be removed: {name}"))
    named = list_names(f"{name}={value}" for name, value in done.partition.items())
    keks = format_count(len(done.keks), "KEK")
    verb = "would be removed" if done.dry_run else "removed"
    files = format_count(done.files, "file")
    print_line(printable(f"{named}: {keks} {verb}; {files} in all snapshots"))
