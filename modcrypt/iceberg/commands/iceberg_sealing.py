"""`modcrypt iceberg seal`: sign the metadata.json of a table."""

from __future__ import annotations

from typing import Any

import click

from modcrypt.cli.options.signing_options import (
    read_signers,
    read_signing_key,
    sign_options,
    valid_option,
)
from modcrypt.cli.shared import confirm, print_json, print_line
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.iceberg.commands.iceberg_options import (
    listing_options,
    open_selected_table,
    table_argument,
)

_EXAMPLE = """\b
Examples: seal a table; seal a change with it; readers require the seal
  modcrypt iceberg seal --sign file:writer.key lake/orders
  modcrypt iceberg append --kms file:lake.keyring --sign file:writer.key lake/orders tuesday.parquet
  modcrypt iceberg scan --kms file:lake.keyring --signed-by writer.pub lake/orders"""


@verb(epilog=_EXAMPLE)
@table_argument
@sign_options
@listing_options
@option(
    "--accept",
    help="Seal the version whatever the older seal states; look first at what has changed.",
)
@valid_option
def seal(
    *, where: str, accept: bool, yes: bool, valid_days: int | None, as_json: bool, **options: Any
) -> None:
    """Sign the table's current metadata.json, in _modcrypt_seal.json beside it.

    Commands that are given --signed-by then refuse other metadata: an older state, other schemas,
    partition specs and keys. An older seal must be signed with the same key, or one that
    --signed-by names, and be that of this version: commands that change the table seal it with
    --sign, and --accept seals what others have changed. The new seal has the next number.
    """
    from modcrypt.iceberg import seal_table

    if (key := read_signing_key(options)) is None:
        raise click.UsageError("no signing key is named; use --sign")
    if accept:
        confirm("signs the table as others may have changed it since the last seal", yes)
    # The version to be sealed has no seal yet: only its old one is checked, by seal_table.
    table = open_selected_table(where, {**options, "signed_by": (), "seal_at_least": None})
    sealed = seal_table(
        table, key, signed_by=read_signers(options),
        seal_at_least=options["seal_at_least"] or 0, accept=accept,
        valid_for=None if valid_days is None else valid_days * 86400,
    )  # fmt: skip
    if as_json:
        print_json("iceberg.seal", sealed.fields())
        return
    print_line(f"seal {sealed.sequence}: {printable(sealed.metadata)}, signed by {sealed.signer}")
