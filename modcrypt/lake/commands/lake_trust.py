"""`modcrypt trust`: let a declaration that is found, not named, command modcrypt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modcrypt.cli.shared import exclude_each_other, print_json, print_line
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.lake.commands.lake_options import MISSING, valid_declaration

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.lake.declarations.declaration_file import ReadDeclaration

_EXAMPLE = """\b
Examples: the declaration of this folder; its hash for a CI system; stop trusting it
  modcrypt trust
  modcrypt trust --print lake/modcrypt.toml
  modcrypt trust --remove"""


@verb(epilog=_EXAMPLE)
@click.argument("file", required=False)
@option("--print", "only_prints", help="Print the hash for MODCRYPT_TRUST; record nothing.")
@option("--list", "lists", help="List the trusted declarations.")
@option("--remove", "removes", help="Stop trusting the declaration.")
@exclude_each_other("only_prints", "lists", "removes")
def trust(
    *, file: str | None, only_prints: bool, lists: bool, removes: bool, as_json: bool
) -> None:
    """Trust a declaration that modcrypt finds, as it is now.

    A declaration that is found in the working directory or a folder above it, not named by --config
    or MODCRYPT_CONFIG, may name data sets and master keys. It must be trusted to name a key
    service, catalogs, keys, readers, writers, or places outside its folder. FILE is the
    declaration; by default, the one that is found. trust shows what it commands, and records its
    path and the SHA-256 over it and the files that it includes. After a change, trust it again.
    """
    if lists:
        _list_records(as_json)
        return
    from modcrypt.lake.declarations.declaration_file import read_content
    from modcrypt.lake.declarations.declaration_path import find_declaration
    from modcrypt.lake.declarations.trust import remove_record, resolve_declaration, write_record

    if (path := find_declaration(file)) is None:
        raise click.UsageError(f"{MISSING}; pass its path")
    path = resolve_declaration(path)
    if removes:
        was = "is no longer trusted" if remove_record(path) else "was not trusted"
        print_line(printable(f"{path} {was}"))
        return
    content = read_content(path, is_found=True)  # as it will be found, not named
    valid_declaration(content)
    if not only_prints:
        write_record(path, content.digest)
    if as_json:
        print_json("trust", {**_fields(path, content.digest), "commands": [*content.commands]})
    elif only_prints:
        print_line(content.digest)
    else:
        _print_commands(content)


def _print_commands(content: ReadDeclaration) -> None:
    for command in content.commands:
        print_line(f"  {command}")
    what = "" if content.commands else ", although nothing in it needs trust"
    print_line(printable(f"{content.path} is trusted, as shown, until it changes{what}"))


def _list_records(as_json: bool) -> None:
    from modcrypt.lake.declarations.trust import list_records

    for record in list_records():
        if as_json:
            print_json("trust", _fields(record.path, record.digest))
        else:
            print_line(printable(f"{record.digest}  {record.path}"))


def _fields(path: Path, digest: str) -> dict[str, object]:
    return {"file": str(path), "sha256": digest}
