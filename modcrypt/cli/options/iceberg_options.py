"""Which encrypted Iceberg table a command is for: its options, and from them to the table."""

from __future__ import annotations

import errno
import os
import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from modcrypt.cli.options.kms_options import Service, pairs
from modcrypt.cli.options.passphrases import passphrase_options
from modcrypt.cli.output.failures import printable
from modcrypt.cli.shared import together
from modcrypt.errors import KeyAccessDeniedError

if TYPE_CHECKING:  # not to be loaded for the help
    from pyiceberg.catalog import Catalog

    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools

__all__ = [
    "catalog_options",
    "counted",
    "key_store_at",
    "key_store_option",
    "lines_option",
    "listing_options",
    "location_map_option",
    "locations_of",
    "open_catalog",
    "service_of",
    "snapshot_of",
    "snapshot_option",
    "table_argument",
    "table_of",
    "table_options",
    "tables_service",
]

F = TypeVar("F", bound=Callable[..., Any])

table_argument = click.argument("where", metavar="TABLE")
lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print lines of JSON on stdout, failures included."
)
snapshot_option = click.option(
    "--snapshot",
    metavar="ID|NAME",
    help="This snapshot, or that of a branch or tag. Default: the current one.",
)


def _service_options(*, required: bool) -> Callable[[F], F]:
    return together(
        click.option(
            "--kms",
            metavar="URI",
            required=required,
            help="The key service with the table's master key: file:PATH, a keyring; "
            "env:VARIABLE; hcvault://HOST/MOUNT; aws-kms://ARN; gcp-kms://NAME; "
            "azure-kms://HOST; pkcs11:TOKEN.",
        ),
        passphrase_options,
    )


tables_service = together(
    _service_options(required=True),
    click.option(
        "--audit",
        metavar="FILE",
        help="Append every use of the key service to FILE, as a line of JSON.",
    ),
)
catalog_options = together(
    click.option(
        "--catalog",
        metavar="URI|NAME",
        help="TABLE is an identifier, NAMESPACE.TABLE, in this catalog: the URI of an SQL catalog, "
        "as sqlite:///lake/catalog.db; or the name of one that pyiceberg's configuration has.",
    ),
    click.option(
        "--catalog-name",
        metavar="NAME",
        help="What an SQL catalog calls itself in its database. Default: default.",
    ),
)
key_store_option = click.option(
    "--key-store",
    metavar="PATH",
    help="Where KEKs are kept besides the table's metadata: a file, of SQLite if it ends in .db or "
    ".sqlite, else of JSON.",
)
location_map_option = click.option(
    "--location-map",
    metavar="FROM=TO",
    multiple=True,
    help="Locations in the table's files that begin with FROM are in the folder TO. The last = "
    "counts. Repeatable. Nothing outside of the table and these folders is read.",
)
_where_options = together(
    catalog_options,
    location_map_option,
    key_store_option,
    click.option("--table-uuid", metavar="UUID", help="The table must be this one."),
    click.option(
        "--at-least",
        metavar="N",
        type=click.IntRange(min=0),
        help="The current snapshot's sequence number is N or more: no older state is taken.",
    ),
    click.option(
        "--master-key",
        "master_keys",
        metavar="ID",
        multiple=True,
        help="The table must be under this master key; of several, under one of them. Repeatable.",
    ),
    click.option(
        "--allow-plaintext",
        is_flag=True,
        help="Take what is in plaintext for what it is: nothing of it is authenticated.",
    ),
)
table_options = together(tables_service, _where_options)
listing_options = together(_service_options(required=False), _where_options)
"""Of commands that open nothing of a table but its metadata: they need no key."""

_OWN = (
    "catalog", "catalog_name", "location_map", "key_store", "table_uuid", "at_least", "master_keys",
    "allow_plaintext",
)  # fmt: skip


def table_of(where: str, options: dict[str, Any]) -> IcebergTable:
    """Open the table that the options name.

    Args:
        where: the command's argument.
        options: the values of `table_options` and nothing else.

    Raises:
        click.UsageError: they don't fit together.
        ModcryptError, ValueError, OSError: as `open_table`.
    """
    own = {name: options[name] for name in _OWN}
    asked: dict[str, Any] = {
        "location_map": locations_of(own["location_map"]),
        "key_store": key_store_at(own["key_store"]),
        "require_encrypted": not own["allow_plaintext"],
        "table_uuid": own["table_uuid"],
        "at_least": own["at_least"],
        "master_key_ids": own["master_keys"] or None,
    }
    catalog = open_catalog(own["catalog"], own["catalog_name"])
    kms = service_of(options)
    if catalog is None:
        from modcrypt.iceberg import open_table

        return open_table(where, kms, **asked)
    from modcrypt.iceberg import load_table

    return load_table(catalog, where, kms, **asked)


def locations_of(mapped: Sequence[str]) -> dict[str, str]:
    """Give what the values of --location-map say."""
    return pairs(mapped, "--location-map", "FROM=TO")


def service_of(options: dict[str, Any]) -> KmsClient | KeyTools:
    """Open the key service that `tables_service` names; raises as `Service`."""
    service = Service({**options, "policy_file": None})
    return service.tools(options.get("audit")) if service.named else _NoService()


class _NoService:
    """Stands for the key service where none is named, because none is asked."""

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> NoReturn:
        raise KeyAccessDeniedError("a key service is needed: --kms")

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> NoReturn:
        raise KeyAccessDeniedError("a key service is needed: --kms")


def key_store_at(path: str | None, *, create: bool = False) -> KeyStore | None:
    """Open the store of KEKs that --key-store names.

    Args:
        path: of the option; None for none.
        create: make one that isn't there yet.
    """
    if path is None:
        return None
    from modcrypt.iceberg import FileKeyStore, SqliteKeyStore

    kind = SqliteKeyStore if path.endswith((".db", ".sqlite", ".sqlite3")) else FileKeyStore
    return kind.create(path) if create and not os.path.exists(path) else kind(path)


def snapshot_of(text: str | None) -> int | str | None:
    """Give the snapshot that is meant: ids are numbers, branches and tags may be called so too."""
    if text is None:
        return None
    return int(text) if re.fullmatch(r"\d{1,19}", text) else text


def open_catalog(
    catalog: str | None, name: str | None, *, create: bool = False, option: str = "--catalog"
) -> Catalog | None:
    """Open the catalog of `catalog_options`; None if none is given.

    Args:
        catalog, name: values of the options.
        create: make an SQL catalog's tables, and its SQLite file, if they are not there.
        option: that the catalog is given by.

    Raises:
        click.UsageError: a URI with a password, which other users could see among the arguments;
            or a catalog that can't be opened.
        FileNotFoundError: the SQLite file is not there.
    """
    if catalog is None:
        if name is not None:
            raise click.UsageError("--catalog-name is for --catalog")
        return None
    is_uri = ":" in catalog
    if not is_uri and name is not None:
        raise click.UsageError("--catalog-name is for a --catalog that is given by its URI")
    if is_uri:
        _check_uri(catalog, create, option)
    more = {"uri": catalog, "init_catalog_tables": str(create).lower()} if is_uri else {}
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError
    from pyiceberg.utils.config import Config
    from sqlalchemy.exc import SQLAlchemyError

    if not is_uri and Config().get_catalog_config(catalog) is None:
        raise click.UsageError(
            f"{option}: pyiceberg's configuration (~/.pyiceberg.yaml, or "
            f"PYICEBERG_CATALOG__NAME__URI) has no catalog {printable(catalog)}"
        )
    try:
        return load_catalog(name or "default" if is_uri else catalog, **more)
    except (ValueError, ImportError, NotInstalledError, SQLAlchemyError) as error:
        # Their texts may repeat the URI of the configuration, which may have a password.
        why = type(error).__name__ if isinstance(error, SQLAlchemyError) or not is_uri else error
        raise click.UsageError(f"{option}: {printable(catalog)} can't be opened: {why}") from None


def _check_uri(catalog: str, create: bool, option: str) -> None:
    uri = urllib.parse.urlsplit(catalog)
    named = {name.lower() for name in urllib.parse.parse_qs(uri.query)}
    if uri.password is not None or named & {"password", "passwd"}:
        raise click.UsageError(
            f"{option}: a URI with a password is seen by all users: have pyiceberg's configuration "
            "name it (~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__URI), and give the name here"
        )
    path = uri.path[1:]  # of sqlite:///PATH, which is made by looking at it
    if uri.scheme.startswith("sqlite") and path and not (create or os.path.exists(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def counted(count: int, noun: str) -> str:
    """Say how many there are of something."""
    return f"1 {noun}" if count == 1 else f"{count:,} {_PLURALS.get(noun, f'{noun}s')}"


_PLURALS = {
    "branch or tag": "branches and tags",
    "call of the key service": "calls of the key service",
    "key of a manifest list": "keys of manifest lists",
}
