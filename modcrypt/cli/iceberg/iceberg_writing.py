"""`modcrypt iceberg create`, `append` and `encrypt`: new encrypted tables, and rows for them."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.iceberg.iceberg_policy import policy_members, policy_options
from modcrypt.cli.options.iceberg_options import (
    catalog_options,
    counted,
    key_store_at,
    key_store_option,
    lines_option,
    location_map_option,
    locations_of,
    open_catalog,
    service_of,
    table_argument,
    table_of,
    table_options,
    tables_service,
)
from modcrypt.cli.options.kms_options import default_key, pairs, refuse
from modcrypt.cli.output.failures import printable
from modcrypt.cli.shared import print_line, together
from modcrypt.errors import FormatError

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec

    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = ["append", "create", "encrypt"]

_CREATE_EXAMPLE = """\b
Examples: with the columns of a file; in a catalog, a KEK for each partition
  modcrypt iceberg create --kms file:lake.keyring --master-key lake --like orders.parquet \\
      lake/orders
  modcrypt iceberg create --kms file:lake.keyring --master-key lake --like orders.parquet \\
      --partition-by country --partition-by "day(sold)" --kek-per partition \\
      --catalog sqlite:///lake/catalog.db --folder lake/sales shop.sales"""

_APPEND_EXAMPLE = """\b
Example: the rows of two files, as one snapshot
  modcrypt iceberg append --kms file:lake.keyring lake/orders monday.parquet tuesday.parquet"""

_ENCRYPT_EXAMPLE = """\b
Example: a table that is there, in plaintext
  modcrypt iceberg encrypt --kms file:lake.keyring --master-key lake old/orders lake/archive"""

_new_table_options = together(
    click.option(
        "--master-key",
        metavar="ID",
        help="The master key that the table is to be under: its property encryption.key-id. "
        "Default: that of --kms, as in file:lake.keyring#ID.",
    ),
    click.option(
        "--folder",
        metavar="PATH",
        help="With --catalog: the folder of the new table. Default: where the catalog's warehouse "
        "has it.",
    ),
    click.option(
        "--key-length",
        type=click.Choice(["16", "24", "32"]),
        default="16",
        show_default=True,
        help="Bytes of data keys and KEKs.",
    ),
    policy_options(new=True),
    click.option(
        "--property",
        "properties",
        metavar="NAME=VALUE",
        multiple=True,
        help="A property of the table. The last = counts. Repeatable.",
    ),
    tables_service,
    catalog_options,
    key_store_option,
)


def _new_table(where: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `_new_table_options` out of the options: arguments of `create_table`."""
    from modcrypt.iceberg import KeyPolicy

    taken = {name: options.pop(name) for name in _TAKEN}
    if taken["catalog"] is None:
        refuse({"folder"}, "without --catalog, TABLE is the table's folder")
    members = policy_members(options)
    if members["kek_per"] != "files":
        refuse({"files_per_kek"}, "that is of --kek-per files")
    policy = KeyPolicy(store="table" if taken["key_store"] is None else "key-store", **members)
    kms = service_of(options)
    master_key = taken["master_key"] or default_key(kms)
    if not master_key:
        raise click.UsageError("--master-key ID says which master key the table is to be under")
    catalog = open_catalog(taken["catalog"], taken["catalog_name"], create=True)
    if catalog is not None:
        namespace = where.rpartition(".")[0]
        if not namespace:
            raise click.UsageError("in a catalog, TABLE is NAMESPACE.TABLE")
        catalog.create_namespace_if_not_exists(namespace)
    return {
        "where": where if catalog is None else taken["folder"],
        "kms": kms,
        "master_key_id": master_key,
        "properties": pairs(taken["properties"], "--property", "NAME=VALUE"),
        "policy": None if policy == KeyPolicy() else policy,
        "key_length": int(taken["key_length"]),
        "catalog": catalog,
        "identifier": None if catalog is None else where,
        "key_store": key_store_at(taken["key_store"], create=True),
    }


_TAKEN = (
    "master_key", "folder", "key_length", "properties", "catalog", "catalog_name", "key_store",
)  # fmt: skip


# --- create --------------------------------------------------------------------------------------


@click.command(epilog=_CREATE_EXAMPLE)
@table_argument
@click.option(
    "--like", metavar="FILE", required=True, help="A Parquet file with the columns of the table."
)
@click.option(
    "--partition-by",
    "partitions",
    metavar="COLUMN|TRANSFORM",
    multiple=True,
    help="A column; or year(c), month(c), day(c), hour(c), bucket(N, c) or truncate(N, c) of one. "
    "Repeatable.",
)
@_new_table_options
@lines_option
def create(
    *, where: str, like: str, partitions: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Make an empty encrypted table, in the folder TABLE or in a catalog.

    The key service is asked when rows are appended first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from modcrypt.iceberg import create_table
    from modcrypt.io.storage import locate
    from modcrypt.parquet.datasets.discovery import as_arrow

    filesystem, path = locate(like, None)
    try:
        schema = pq.read_schema(path, filesystem=as_arrow(filesystem))
    except pa.ArrowInvalid:
        raise FormatError(f"{like}: no Parquet file") from None
    spec = _partition_spec(partitions, schema)
    made = create_table(schema=schema, partition_spec=spec, **_new_table(where, options))
    _print_table("created", made, as_json)


_TRANSFORM = re.compile(
    r"(?:(?P<time>year|month|day|hour)\(|(?P<cut>bucket|truncate)\(\s*(?P<n>[1-9]\d{0,8})\s*,)"
    r"\s*(?P<column>.+?)\s*\)"
)
_SUFFIXES = {"truncate": "trunc"}


def _partition_spec(partitions: Sequence[str], schema: pa.Schema) -> PartitionSpec | None:
    """Give the partition spec that is spelt, its fields named as Iceberg's Java names them."""
    if not partitions:
        return None
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields = []
    for number, text in enumerate(partitions):
        match = None if text in schema.names else _TRANSFORM.fullmatch(text.strip())
        column, transform, name = text, "identity", text
        if match is not None:
            column, kind = match["column"], match["time"] or match["cut"]
            transform = kind if match["n"] is None else f"{kind}[{match['n']}]"
            name = f"{column}_{_SUFFIXES.get(kind, kind)}"
        if column not in schema.names:
            raise click.UsageError(
                f"--partition-by: {printable(text)} is no column, and no year(c), month(c), "
                "day(c), hour(c), bucket(N, c) or truncate(N, c) of one"
            )
        # The columns of a new table get the ids 1, 2, 3 ...
        source = schema.names.index(column) + 1
        fields.append(PartitionField(source, 1000 + number, parse_transform(transform), name))
    return PartitionSpec(*fields)


# --- append --------------------------------------------------------------------------------------


@click.command(epilog=_APPEND_EXAMPLE)
@table_argument
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@table_options
@lines_option
def append(*, where: str, files: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Append the rows of Parquet files, or of folders of them, to the table: one new snapshot."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        rows = ds.dataset([_parquet(file) for file in files]).scanner().to_reader()
        done = table_of(where, options).append(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # whose texts may have values
        raise FormatError(
            "the files are not all Parquet of the same columns, or one is damaged"
        ) from None
    _print_table("appended", done, as_json)


def _parquet(file: str) -> Any:
    import pyarrow.dataset as ds

    from modcrypt.io.storage import locate
    from modcrypt.parquet.datasets.discovery import as_arrow

    filesystem, path = locate(file, None)
    try:
        return ds.dataset(path, filesystem=as_arrow(filesystem), format="parquet")
    except FileNotFoundError:  # PyArrow's, whose text is the path alone
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from None


# --- encrypt -------------------------------------------------------------------------------------


@click.command(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source", metavar="SOURCE")
@table_argument
@click.option(
    "--source-catalog",
    metavar="URI|NAME",
    help="SOURCE is an identifier in this catalog; as --catalog.",
)
@click.option("--history", is_flag=True, help="All snapshots, not the current one alone.")
@location_map_option
@_new_table_options
@lines_option
def encrypt(
    *,
    source: str,
    where: str,
    source_catalog: str | None,
    history: bool,
    location_map: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Make an encrypted table of one in plaintext: SOURCE is its metadata.json, or its folder.

    Files are sealed as they are, page by page; nothing is decoded. SOURCE is left as it is: remove
    it yourself when nobody needs it.
    """
    from pyiceberg.exceptions import NoSuchTableError

    from modcrypt.iceberg import encrypt_table

    catalog = open_catalog(source_catalog, None, option="--source-catalog")
    try:
        old = source if catalog is None else catalog.load_table(source)
    except NoSuchTableError:
        raise click.UsageError(f"the source's catalog has no table {printable(source)}") from None
    made = encrypt_table(
        old,
        history=history,
        location_map=locations_of(location_map),
        **_new_table(where, options),
    )
    _print_table("encrypted", made, as_json)


def _print_table(done: str, table: IcebergTable, as_json: bool) -> None:
    metadata, current = table.metadata, table.metadata.current
    summary = {} if current is None else current.document.get("summary") or {}
    told: dict[str, Any] = {
        "metadata": table.place.full_name,
        "table_uuid": metadata.uuid,
        "master_key_id": metadata.master_key_id,
        "last_sequence_number": metadata.last_sequence_number,
        "snapshot_id": None if current is None else current.id,
        "added_records": int(summary.get("added-records", 0)),
        "added_data_files": int(summary.get("added-data-files", 0)),
        "total_records": int(summary.get("total-records", 0)),
    }
    if as_json:
        print_line(json.dumps(told))
        return
    rows = ""
    if current is not None:
        rows = (
            f"{counted(told['added_records'], 'row')} in "
            f"{counted(told['added_data_files'], 'file')}, snapshot {current.id}; "
        )
    print_line(printable(f"{done}: {rows}{told['metadata']}"))
