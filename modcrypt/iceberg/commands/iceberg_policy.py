"""`modcrypt iceberg admin policy`: the key policy of a table, and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from modcrypt.cli.datasets.requirements import refuse_contradiction
from modcrypt.cli.datasets.table_arguments import declared_table
from modcrypt.cli.options.signing_options import sign_options
from modcrypt.cli.options.table_options import settings_in, table_options, table_values
from modcrypt.cli.shared import print_facts, print_json, print_line
from modcrypt.cli.shared_options import F, verb
from modcrypt.errors import printable
from modcrypt.iceberg.commands.iceberg_options import (
    listing_options,
    open_changing_table,
    open_key_store,
    table_argument,
)
from modcrypt.settings.table import TablePolicySettings

_EXAMPLE = """\b
Examples: show the policy; use a KEK for each partition; apply it to existing files
  modcrypt iceberg admin policy lake/orders
  modcrypt iceberg admin policy --kek-per partition lake/orders
  modcrypt iceberg rotate dek --kms file:lake.keyring lake/orders"""

_GROUP = "Keys of tables"


def policy_options(*, new: bool) -> Callable[[F], F]:
    """Return the options that set a table's key policy, with defaults if the table is new."""
    return table_options(TablePolicySettings, _GROUP, has_defaults=new, kek_lifetime_days="DAYS")


def policy_members(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the values of `policy_options` from the options; return fields of a `KeyPolicy`."""
    values = table_values(TablePolicySettings, options, _GROUP)
    for parameter in settings_in(TablePolicySettings, _GROUP):
        del options[parameter]
    return {member: value for member, value in values.items() if value is not None}


def new_policy_members(options: dict[str, Any]) -> dict[str, Any]:
    """As `policy_members`, for a new table: declared members replace the defaults of options.

    Raise click.UsageError if an option contradicts the declaration.
    """
    table, context = declared_table(), click.get_current_context()
    declared = table["declaration"].policy if table else {}
    for parameter, setting in settings_in(TablePolicySettings, _GROUP).items():
        is_given = context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
        wanted = declared.get(setting.name)
        if is_given and wanted not in (None, options[parameter]):
            refuse_contradiction(table["dataset"], parameter, f"with {wanted}")
    return {**policy_members(options), **declared}


@verb(epilog=_EXAMPLE)
@table_argument
@policy_options(new=False)
@table_options(TablePolicySettings, "Place of KEKs", has_defaults=False)
@listing_options
@sign_options
def policy(*, where: str, keks_in: str | None, as_json: bool, **options: Any) -> None:
    """Show or change the key policy for the table's new files.

    A change is one commit, to metadata.json only, and needs no key. Existing files keep their
    keys: rotate dek applies the policy to those of the current snapshot. With --sign, the new
    version is sealed, as by `modcrypt iceberg seal`.
    """
    from dataclasses import asdict, replace

    from modcrypt.iceberg import KeyPolicy, set_policy

    changes = policy_members(options) | ({} if keks_in is None else {"store": keks_in})
    if keks_in == "key-store":
        open_key_store(options["key_store"], create=True)
    target = open_changing_table(where, options, dry_run=not changes)
    before = KeyPolicy.of(target.metadata)
    wanted = replace(before, **changes)
    if "files" in changes and wanted.kek_per != "files":
        raise click.UsageError("--files-per-kek needs --kek-per files")
    done = set_policy(target, wanted) if changes else target
    fields = {**asdict(wanted), "changed": wanted != before, "metadata": done.place.full_name}
    if as_json:
        print_json("iceberg.policy", fields)
        return
    print_facts((name.replace("_", " "), value) for name, value in asdict(wanted).items())
    if wanted != before:
        print_line(printable(f"changed: {done.place.full_name}"))
