"""Options that select an encrypted Iceberg table, and functions that open it."""

from __future__ import annotations

import datetime
import errno
import os
import re
import urllib.parse
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from modcrypt.cli.datasets.table_arguments import declared_table, take_table
from modcrypt.cli.options.kms_options import (
    audit_option,
    kms_option,
    master_keys_option,
    needs_service,
    other_service,
    parse_pairs,
    passphrase_option,
    service_options,
    service_settings,
)
from modcrypt.cli.options.signing_options import read_signers, read_signing_key, seal_options
from modcrypt.cli.shared import allow_plaintext_option, combine_options, needs_one_of
from modcrypt.cli.shared_options import rare_option, shared_option
from modcrypt.errors import KeyAccessDeniedError, printable

if TYPE_CHECKING:  # not to be loaded for the help
    from pyiceberg.catalog import Catalog

    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.lake.erased_table_files import LeftOut
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools

table_argument = click.argument("where", metavar="TABLE", callback=take_table)
optional_table_argument = click.argument(
    "where", metavar="[TABLE]", required=False, callback=take_table
)
snapshot_option = shared_option(
    "--snapshot ID|NAME",
    help="Snapshot id, or the name of a branch or tag. Default: the current snapshot.",
)


def _parse_time(_: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return a time as a datetime with a zone; a time without one is in UTC."""
    if text is None:
        return None
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            "not a time in ISO 8601, such as 2026-11-28T22:15:00+00:00", param=option
        ) from None
    return when if when.tzinfo is not None else when.replace(tzinfo=datetime.UTC)


as_of_option = rare_option(
    "--as-of TIME",
    callback=_parse_time,
    help="Snapshot that was the current one at a time in ISO 8601, such as 2026-11-28T22:15:00; "
    "without a time zone, in UTC.",
)


tables_service = combine_options(service_options, audit_option, needs_service)
catalog_options = combine_options(
    shared_option(
        "--catalog URI|NAME",
        help="Catalog of TABLE, which is then NAMESPACE.TABLE: URI of an SQL catalog "
        "(sqlite:///lake/catalog.db), Hive metastore (thrift://HOST:PORT) or REST catalog "
        "(https://HOST/...), or a name from pyiceberg's configuration.",
    ),
    shared_option(
        "--catalog-name NAME",
        rare=True,
        help="Name under which an SQL catalog stores its tables in its database. Default: default.",
    ),
)
key_store_option = shared_option(
    "--key-store PATH",
    rare=True,
    help="File that keeps KEKs outside the table's metadata: SQLite if PATH ends in .db, "
    ".sqlite or .sqlite3, else JSON.",
)
location_map_option = shared_option(
    "--location-map FROM=TO...",
    rare=True,
    help="Replace FROM, the beginning of locations in the table's metadata, by the folder "
    "TO. Only the table's folder and these folders are read. The last = separates the "
    "two. Repeatable.",
)
_where_options = combine_options(
    catalog_options,
    location_map_option,
    key_store_option,
    shared_option("--table-uuid UUID", rare=True, help="Require the table to have this UUID."),
    shared_option(
        "--at-least N",
        rare=True,
        type=click.IntRange(min=0),
        help="Require a current snapshot with sequence number N or higher, to reject an older "
        "state.",
    ),
    master_keys_option,
    seal_options,
    needs_one_of("seal_at_least", "signed_by"),
    allow_plaintext_option,
)
table_options = combine_options(tables_service, _where_options)
listing_options = combine_options(kms_option, passphrase_option, _where_options)
"""Options of commands that read only the table's metadata and therefore need no key."""


def open_selected_table(where: str, options: dict[str, Any], **more: Any) -> IcebergTable:
    """Open the table that the TABLE argument and the values of `table_options` select.

    `more` has other arguments of `open_table` and `load_table`. Raise click.UsageError if the
    options contradict each other, and ModcryptError, ValueError or OSError as `open_table`.
    """
    if (restrictions := declared_table().get("read_restrictions")) is not None:
        if more.get("read_restrictions") is not None:
            raise click.UsageError(
                "--read-restrictions contradicts the declaration, which restricts reading already"
            )
        more["read_restrictions"] = restrictions
    arguments = {**opening_arguments(options), **more}
    catalog = open_catalog(options["catalog"], options["catalog_name"])
    kms = open_service(options)
    if catalog is None:
        from modcrypt.iceberg import open_table

        return open_table(where, kms, **arguments)
    from modcrypt.iceberg import load_table
    from modcrypt.iceberg.tables.catalogs import parse_identifier

    return load_table(catalog, parse_identifier(where), kms, **arguments)


def leave_out_declared(
    table: IcebergTable, on_erased: Literal["skip", "raise"] = "skip"
) -> LeftOut:
    """Return a table without the files that its declaration, if it has one, says are erased."""
    from modcrypt.iceberg.lake.erased_table_files import ErasedTableFiles, read_without_erased
    from modcrypt.lake.declarations.declaration import TableDeclaration
    from modcrypt.lake.key_ages import KeyAges

    declaration = declared_table().get("declaration")
    if not isinstance(declaration, TableDeclaration):
        declaration = TableDeclaration(name="", location="", master_key="")
    ages = KeyAges(table.resolver.masters.client)
    return read_without_erased(ErasedTableFiles(declaration, table, ages), on_erased)


def open_changing_table(
    where: str, options: dict[str, Any], *, dry_run: bool = False
) -> IcebergTable:
    """Open the selected table for a change, which is sealed in the same step with --sign.

    Raise click.UsageError, ModcryptError, ValueError or OSError as `open_selected_table`, and
    `read_signing_key`.
    """
    table = open_selected_table(where, options, signing_key=read_signing_key(options))
    if table.expected.signed_by and table.signing_key is None and not dry_run:
        note_missing_seal()
    return table


def note_missing_seal() -> None:
    """Print, before a change, that it is not sealed although readers are to require seals."""
    click.echo(
        "modcrypt: the change is not sealed, and readers who require a seal refuse the table until "
        "it is: pass --sign, or run modcrypt iceberg seal --accept afterwards",
        err=True,
    )


def opening_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_table` and `load_table` that `table_options` select."""
    return {
        "location_map": parse_location_map(options["location_map"]),
        "key_store": open_key_store(options["key_store"]),
        "require_encrypted": not options["allow_plaintext"],
        "table_uuid": options["table_uuid"],
        "at_least": options["at_least"],
        "master_key_ids": options["master_keys"] or None,
        "signed_by": read_signers(options),
        "seal_at_least": options["seal_at_least"] or 1,
    }


def parse_location_map(mapped: Sequence[str]) -> dict[str, str]:
    """Return the values of --location-map as a dictionary."""
    return parse_pairs(mapped, "--location-map", "FROM=TO")


def open_service(options: dict[str, Any]) -> KmsClient | KeyTools:
    """Open the key service that `tables_service` names, with the errors of `service_settings`."""
    settings = service_settings(options)
    return _NoService() if settings is None else other_service(settings).tools()


class _NoService:
    """A substitute for the key service, for commands that name none and need none."""

    def wrap(self, key: Any, master_key_id: str, *, aad: bytes = b"") -> NoReturn:
        raise KeyAccessDeniedError("a key service is needed: --kms")

    unwrap = wrap


def open_key_store(path: str | None, *, create: bool = False) -> KeyStore | None:
    """Open the store of KEKs that --key-store names, if any; if `create`, create a missing one."""
    if path is None:
        return None
    from modcrypt.iceberg import FileKeyStore, SqliteKeyStore

    kind = SqliteKeyStore if path.endswith((".db", ".sqlite", ".sqlite3")) else FileKeyStore
    return kind.create(path) if create and not os.path.exists(path) else kind(path)


_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([dhm])")

_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


class Age(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no type of its values
    """An age such as `7d`, `12h` or `30m`; with `days`, also a number of days."""

    name = "age"

    def __init__(self, *, days: bool = False) -> None:
        self._days = days

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the age."""
        if isinstance(value, timedelta):
            return value
        match = _AGE.fullmatch(f"{value}d" if self._days and value[-1:].isdigit() else value)
        if match is None:
            self.fail(f"{value!r} is not an age such as 7d, 12h or 30m", param, ctx)
        return timedelta(**{_UNITS[match[2]]: float(match[1])})


def parse_snapshot(text: str | None) -> int | str | None:
    """Return a snapshot id if `text` is a number, else the name of a branch or tag."""
    if text is None:
        return None
    return int(text) if re.fullmatch(r"\d{1,19}", text) else text


def open_catalog(
    catalog: str | None, name: str | None, *, create: bool = False, option: str = "--catalog"
) -> Catalog | None:
    """Open the catalog of `catalog_options`; return None if none is given.

    `name` is that of an SQL catalog in its database. If `create`, create the tables of an SQL
    catalog, and its SQLite file. `option` is the option that names the catalog. Raise
    click.UsageError if the URI has a password, which other users could see among the arguments, or
    the catalog cannot be opened; and FileNotFoundError if the SQLite file does not exist.
    """
    if catalog is None:
        if name is not None:
            raise click.UsageError("--catalog-name needs --catalog")
        return None
    is_uri = ":" in catalog
    if not is_uri and name is not None:
        raise click.UsageError("--catalog-name needs the URI of a catalog in --catalog")
    if is_uri:
        _check_uri(catalog, create, option)
    from pyiceberg.exceptions import NotInstalledError
    from sqlalchemy.exc import SQLAlchemyError

    from modcrypt.iceberg.tables.catalog_opening import find_settings, open_pyiceberg_catalog

    try:
        called, properties = find_settings(catalog, name, create=create)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    try:
        return open_pyiceberg_catalog(called, **properties)
    except (ValueError, ImportError, NotInstalledError, SQLAlchemyError) as error:
        # The messages may repeat the configured URI, which may hold a password.
        why = type(error).__name__ if isinstance(error, SQLAlchemyError) or not is_uri else error
        raise click.UsageError(f"{option}: {printable(catalog)} cannot be opened: {why}") from None


def _check_uri(catalog: str, create: bool, option: str) -> None:
    uri = urllib.parse.urlsplit(catalog)
    parameters = {name.lower() for name in urllib.parse.parse_qs(uri.query)}
    if uri.password is not None or parameters & {"password", "passwd"}:
        raise click.UsageError(
            f"{option}: other users could see the password in this URI; put the URI into "
            "pyiceberg's configuration (~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__URI), "
            "and pass its name here"
        )
    path = uri.path[1:]  # opening sqlite:///PATH would create the file
    if uri.scheme.startswith("sqlite") and path and not (create or os.path.exists(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
