"""Rotate the master keys of all tables of a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcrypt.errors import PlaintextError
from modcrypt.iceberg.keys.master_keys import format_wrapped_key
from modcrypt.iceberg.keys.wrapping_keys import wrapped_part
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.tables.catalogs import format_identifier, list_tables, load_table
from modcrypt.iceberg.verify.key_checks import master_key_version
from modcrypt.jobs.failures import describe_failure
from modcrypt.kms.calls import is_current
from modcrypt.kms.client import KmsClient
from modcrypt.kms.proof import Prove
from modcrypt.report.json_fields import JsonFields

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.kms.key_tools import KeyTools


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedTable(JsonFields):
    """The result of a rotation for one table of a catalog.

    Attributes:
        table: Name of the table; backticks quote parts with dots, as on the command line.
        result: `"rotated"`; `"current"`, nothing to do; `"plaintext"`, a table that has no keys;
            `"catalog"`, `table` names a namespace whose tables cannot be listed; or the error code.
        message: Message of the error.
        master_key_id: Id of the master key that the table is under now.
        versions: Versions of the master key under which its KEKs are, if wrapped keys name them.
        keks: Number of KEKs wrapped again, or to be.
    """

    table: str
    result: str
    message: str = ""
    master_key_id: str | None = None
    versions: Sequence[str] = ()
    keks: int = 0

    @property
    def failed(self) -> bool:
        """True if the table is not as it should be."""
        return bool(self.message)


def rotate_catalog(
    catalog: Any,
    kms: KmsClient | KeyTools | str,
    *,
    namespace: str | tuple[str, ...] = (),
    new_master_key_id: str | None = None,
    dry_run: bool = False,
    prove: Prove = "first",
    **options: Any,
) -> Iterator[RotatedTable]:
    """Rotate the master key (MEK) of each table of a catalog; yield each result.

    A table whose KEKs are all under the newest version of the requested master key is left as it
    is, so a run resumes an interrupted one. Where the key service does not tell whether a version
    is the newest one, that holds for tables under `new_master_key_id`, and others are rotated.

    Args:
        catalog: Catalog of pyiceberg, as for `load_table`.
        kms: Client of the key service, its URI, or key tools, as for `load_table`.
        namespace: Namespace whose tables are rotated, with those in it; by default all.
        new_master_key_id: Id of the new master key; by default each table's own.
        dry_run: Whether to change nothing.
        prove: Which new wraps of each table are proved, as in `rotate_table`.
        options: Other options of `load_table`, for each table.

    Raises:
        OSError: The catalog, or `namespace`, cannot be listed. An error about one table, or about
            a namespace within it, is its result.
        ValueError: The catalog has no such namespace.

    Example:
        >>> for done in rotate_catalog(catalog, kms, new_master_key_id="lake-2"):
        ...     print(done.table, done.result, done.master_key_id)  # doctest: +SKIP
    """
    unlisted: dict[tuple[str, ...], Exception] = {}
    for identifier in list_tables(catalog, namespace, unlisted):
        name = format_identifier(identifier)
        try:
            if (table := _load(catalog, identifier, kms, options)) is None:
                yield RotatedTable(table=name, result="plaintext")
            else:
                yield _rotate(name, table, new_master_key_id, dry_run, prove)
        except Exception as error:
            word, message = describe_failure(error)
            yield RotatedTable(table=name, result=word, message=message)
    for parent, failure in unlisted.items():
        name = format_identifier(parent)
        yield RotatedTable(table=name, result="catalog", message=str(failure))


def _load(
    catalog: Any, identifier: tuple[str, ...], kms: Any, options: dict[str, Any]
) -> IcebergTable | None:
    """Open a table; return None if it has no keys. Raises the errors of `load_table`."""
    # A table with keys and without a master key is no plaintext table: the property was removed.
    try:
        return load_table(catalog, identifier, kms, **options)
    except PlaintextError:
        accepting = {**options, "require_encrypted": False, "master_key_ids": None}
        if load_table(catalog, identifier, kms, **accepting).metadata.is_encrypted:
            raise
        return None


def _rotate(
    name: str, table: IcebergTable, new_master_key_id: str | None, dry_run: bool, prove: Prove
) -> RotatedTable:
    if _is_done(table, new_master_key_id):
        return _describe(name, "current", table, 0)
    done = rotate_table(
        table, "mek", new_master_key_id=new_master_key_id, dry_run=dry_run, prove=prove
    )
    return _describe(name, "rotated", done.table, done.keks)


def _is_done(table: IcebergTable, new_master_key_id: str | None) -> bool:
    """Return whether the table and all its KEKs are under the newest master key."""
    target = new_master_key_id or table.metadata.master_key_id
    if target is None or target != table.metadata.master_key_id:
        return False
    client = table.resolver.masters.client
    for wrapped, master_key_id in _wrapped_keys(table):
        if wrapped is None or master_key_id != target:
            return False
        newest = is_current(client, format_wrapped_key(wrapped), target)
        if not (new_master_key_id is not None if newest is None else newest):
            return False
    return True


def _wrapped_keys(table: IcebergTable) -> Iterator[tuple[bytes | None, str]]:
    """Yield what master keys wrap, and their ids: KEKs, and with single wrapping keys of lists.

    Keys of files in manifests are not read: a rotation of the KEKs wraps them with those of lists.
    """
    for kek in table.resolver.keks(table.metadata).values():
        yield kek.wrapped, kek.master_key_id
    for entry in table.metadata.keys.values():
        if entry.is_single:
            yield wrapped_part(entry.encrypted), entry.encrypted_by


def _describe(name: str, result: str, table: IcebergTable, keks: int) -> RotatedTable:
    found = table.resolver.keks(table.metadata).values()
    named = (master_key_version(kek.wrapped) for kek in found if kek.wrapped is not None)
    return RotatedTable(
        table=name, result=result, master_key_id=table.metadata.master_key_id,
        versions=sorted({version for version in named if version is not None}), keks=keks,
    )  # fmt: skip
