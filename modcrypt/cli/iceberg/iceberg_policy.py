"""`modcrypt iceberg policy`: how a table's keys are kept; and the options that say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from modcrypt.cli.options.iceberg_options import (
    key_store_at,
    lines_option,
    listing_options,
    table_argument,
    table_of,
)
from modcrypt.cli.output.failures import printable
from modcrypt.cli.shared import print_facts, print_line, together

__all__ = ["policy", "policy_members", "policy_options"]

# click keeps the lines of a paragraph after \b as they are.
_EXAMPLE = """\b
Examples: what it is; a KEK for each partition from now on, and for what is there
  modcrypt iceberg policy lake/orders
  modcrypt iceberg policy --kek-per partition lake/orders
  modcrypt iceberg rotate dek --kms file:lake.keyring lake/orders"""

F = TypeVar("F", bound=Callable[..., Any])

_MEMBERS = {
    "kek_per": "kek_per", "files_per_kek": "files", "kek_lifetime": "kek_lifetime_days",
    "wrapping": "wrapping",
}  # fmt: skip


def policy_options(*, new: bool) -> Callable[[F], F]:
    """Give the options that say how a table's keys are kept.

    Args:
        new: of a table that is made: they have defaults. Else they change what there is.
    """
    return together(
        click.option(
            "--kek-per",
            type=click.Choice(["table", "day", "partition", "files"]),
            default="table" if new else None,
            show_default=new,
            help="For what there is a KEK of its own. Iceberg's Java reads those per table and "
            "day.",
        ),
        click.option(
            "--files-per-kek",
            metavar="N",
            type=click.IntRange(min=1),
            help="With --kek-per files: how many files share one.",
        ),
        click.option(
            "--kek-lifetime",
            metavar="DAYS",
            type=click.IntRange(min=1),
            default=730 if new else None,
            show_default=new,
            help="How old a KEK gets before another takes its place.",
        ),
        click.option(
            "--wrapping",
            type=click.Choice(["double", "single"]),
            default="double" if new else None,
            show_default=new,
            help="Data keys under KEKs under the master key, as Iceberg's Java reads it; or under "
            "the master key itself, at a call of the key service for each.",
        ),
    )


def policy_members(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `policy_options` out of the options: what they say of a `KeyPolicy`."""
    taken = {member: options.pop(name) for name, member in _MEMBERS.items()}
    return {member: value for member, value in taken.items() if value is not None}


@click.command(epilog=_EXAMPLE)
@table_argument
@policy_options(new=False)
@click.option(
    "--keks-in",
    type=click.Choice(["table", "key-store"]),
    help="Where KEKs are kept: in the table's metadata, as Iceberg's Java reads them, or in "
    "--key-store, which is made if it isn't there.",
)
@listing_options
@lines_option
def policy(*, where: str, keks_in: str | None, as_json: bool, **options: Any) -> None:
    """Say how the keys of the table's new files are kept, or change that.

    A change is one commit, to metadata.json alone; no key is needed. Files that are there stay as
    they are: rotate dek brings those of the current snapshot under the new policy.
    """
    from dataclasses import asdict, replace

    from modcrypt.iceberg import KeyPolicy, set_policy

    asked = policy_members(options) | ({} if keks_in is None else {"store": keks_in})
    if keks_in == "key-store":
        key_store_at(options["key_store"], create=True)
    found = table_of(where, options)
    before = KeyPolicy.of(found.metadata)
    wanted = replace(before, **asked)
    if "files" in asked and wanted.kek_per != "files":
        raise click.UsageError("--files-per-kek: that is of --kek-per files")
    done = set_policy(found, wanted) if asked else found
    told = {**asdict(wanted), "changed": wanted != before, "metadata": done.place.full_name}
    if as_json:
        print_line(json.dumps(told))
        return
    print_facts((name.replace("_", " "), value) for name, value in asdict(wanted).items())
    if wanted != before:
        print_line(printable(f"changed: {done.place.full_name}"))
