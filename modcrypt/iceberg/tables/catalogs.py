"""Open tables by their names in a pyiceberg catalog.

A `SqlCatalog`, a Hive metastore and AWS Glue store the location of each table's metadata.json, and
a REST catalog serves the metadata. pyiceberg's own commits cannot write format version 3, so
modcrypt has its own for these. Tables of other catalogs can be read, but not changed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from modcrypt.errors import ModcryptError, printable
from modcrypt.iceberg.keys.key_resolver import KeyStore
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
from modcrypt.iceberg.tables.pointers import Identifier
from modcrypt.iceberg.tables.table import IcebergTable, known_writers, open_located_table, reader_of

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog

    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
    from modcrypt.parquet.crypto.properties import SubjectKeys

MAX_DEPTH = 32
"""Maximum depth of nested namespaces that are listed."""


def load_table(
    catalog: Any,
    identifier: Identifier,
    kms: KmsClient | KeyTools | str,
    *,
    location_map: Mapping[str, Any] | None = None,
    key_store: KeyStore | None = None,
    filesystem: Any = None,
    require_encrypted: bool = True,
    table_uuid: str | None = None,
    at_least: int | None = None,
    master_key_ids: Collection[str] | None = None,
    read_restrictions: Mapping[str, Any] | None = None,
    signed_by: Iterable[VerifyingKey] = (),
    seal_at_least: int = 1,
    seal_needed: int = 1,
    signing_key: SigningKey | Sequence[SigningKey] | None = None,
    subjects: SubjectKeys | None = None,
) -> IcebergTable:
    """Open a table by its name in a pyiceberg catalog.

    Args:
        catalog: Catalog from pyiceberg's `load_catalog`; commits need a `SqlCatalog`,
            `HiveCatalog`, `GlueCatalog` or `RestCatalog`.
        identifier: Identifier of the table in the catalog, for example `"shop.orders"`.
        kms, key_store, require_encrypted, table_uuid, at_least, master_key_ids,
            read_restrictions, signed_by, seal_at_least, seal_needed, signing_key, subjects: See
            `open_table`.
        location_map: See `open_table`; the mapping also applies to the metadata.json.
        filesystem: File system of pyarrow or fsspec that holds the mapped folders and all
            unmapped locations. By default, the locations name it; for a store of a REST catalog it
            is opened with the settings of the catalog, and the credentials that the server vends.

    Raises:
        ValueError: The catalog has no such table.
        FormatError: The table's folder has newer versions than the catalog.
        IntegrityError: The metadata.json is not the one that the catalog has a hash of.
        ModcryptError, OSError: See `open_table`.
    """
    versions = versions_of(catalog, identifier, filesystem, location_map)
    resolver, expected = reader_of(
        kms, key_store, master_key_ids, require_encrypted=require_encrypted,
        table_uuid=table_uuid, at_least=at_least, read_restrictions=read_restrictions,
        signed_by=known_writers(signed_by), seal_at_least=seal_at_least, seal_needed=seal_needed,
        subjects=subjects,
    )  # fmt: skip
    table = open_located_table(
        versions.read, versions, resolver, expected, location_map, filesystem
    )
    return replace(table, signing_key=signing_key)


def versions_of(
    catalog: Any,
    identifier: Identifier,
    filesystem: Any = None,
    location_map: Mapping[str, Any] | None = None,
) -> CatalogVersions:
    """Return the versions of a table in a pyiceberg catalog; for the arguments see `load_table`."""
    kind: type[CatalogVersions] = CatalogVersions
    if _is_rest(catalog):
        from modcrypt.iceberg.tables.rest_versions import RestVersions

        kind = RestVersions
    return kind(catalog, identifier, filesystem, location_map or {})


def _is_rest(catalog: Any) -> TypeGuard[RestCatalog]:
    rest = sys.modules.get("pyiceberg.catalog.rest")  # importing it takes long
    return rest is not None and isinstance(catalog, rest.RestCatalog)


_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.][^.]*))(?:\.(?=.)|\Z)", re.DOTALL)


def parse_identifier(text: str) -> tuple[str, ...]:
    """Return the parts of an identifier; as in Spark, backticks quote a part that has dots.

    Raise ValueError if a part is empty or not completely in backticks.
    """
    parts, at = list[str](), 0
    while at < len(text):
        if (match := _PART.match(text, at)) is None:
            raise ValueError(
                f"{printable(text)} is not an identifier of a catalog: put names with dots into "
                "backticks, as in shop.`a.b`"
            )
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        at = match.end()
    return tuple(parts)


def format_identifier(parts: Iterable[str]) -> str:
    """Return the text of an identifier, which `parse_identifier` splits again."""
    return ".".join(
        "`{}`".format(part.replace("`", "``")) if "." in part or part.startswith("`") else part
        for part in parts
    )


def list_tables(
    catalog: Catalog,
    namespace: Identifier,
    unlisted: dict[tuple[str, ...], Exception] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the names of the tables in a namespace and in those within it; () is the whole catalog.

    Args:
        unlisted: Dictionary that receives the errors of the namespaces within it that cannot be
            listed, and whose tables are missing; None to raise the first of them.

    Raises:
        ValueError: The catalog has no such namespace.
        OSError: It cannot be listed.
    """
    top = Catalog.identifier_to_tuple(namespace)

    def find(names: Callable[..., Iterable[tuple[str, ...]]], parent: tuple[str, ...]) -> Any:
        try:
            return sorted(set(names(catalog, parent)))
        except Exception as error:
            failure = _listing_error(parent, error)
        if unlisted is None or parent == top:
            raise failure from None
        unlisted[parent] = failure
        return []

    waiting = [top]
    while waiting:
        parent = waiting.pop()
        yield from find(_tables_in, parent) if parent else ()
        inside = find(_namespaces_in, parent) if len(parent) < len(top) + MAX_DEPTH else []
        # Some catalogs list the namespace itself, and some all namespaces, whatever the parent.
        within = [n for n in inside if len(n) > len(parent) and n[: len(parent)] == parent]
        waiting += reversed(within)


def _tables_in(catalog: Catalog, namespace: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    if _is_rest(catalog):
        from modcrypt.iceberg.tables import rest_requests

        return rest_requests.list_tables(catalog, namespace)
    return catalog.list_tables(namespace)


def _namespaces_in(catalog: Catalog, parent: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    if _is_rest(catalog):
        from modcrypt.iceberg.tables import rest_requests

        return rest_requests.list_namespaces(catalog, parent)
    return catalog.list_namespaces(parent)


def _listing_error(namespace: tuple[str, ...], error: Exception) -> Exception:
    """Return the error for a namespace; texts of pyiceberg, requests and Thrift may have URIs."""
    name = format_identifier(namespace)
    if isinstance(error, NoSuchNamespaceError):
        return ValueError(f"the catalog has no namespace {name}")
    kind = type(error).__name__
    why = f"{kind}: {error}" if isinstance(error, ModcryptError) else kind
    where = f" in {name}" if namespace else ""
    return OSError(f"the catalog's tables{where} cannot be listed: {why}")
