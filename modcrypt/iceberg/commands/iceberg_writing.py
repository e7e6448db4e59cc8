"""`modcrypt iceberg create`, `append` and `encrypt`: new encrypted tables, and their rows."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.kms_options import default_key, parse_pairs, refuse
from modcrypt.cli.options.signing_options import sign_options
from modcrypt.cli.shared import combine_options, key_length_option, print_json, print_line
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import FormatError, printable
from modcrypt.iceberg.commands.iceberg_options import (
    catalog_options,
    key_store_option,
    location_map_option,
    open_catalog,
    open_changing_table,
    open_key_store,
    open_service,
    parse_location_map,
    table_argument,
    table_options,
    tables_service,
)
from modcrypt.iceberg.commands.iceberg_policy import new_policy_members, policy_options
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec

    from modcrypt.iceberg.tables.table import IcebergTable

_CREATE_EXAMPLE = """\b
Examples: a table with the columns of a file; one in a catalog, with a KEK per partition
  modcrypt iceberg create --kms file:lake.keyring --master-key lake --like orders.parquet \\
      lake/orders
  modcrypt iceberg create --kms file:lake.keyring --master-key lake --like orders.parquet \\
      --partition-by country --partition-by "day(sold)" --kek-per partition \\
      --catalog sqlite:///lake/catalog.db --folder lake/sales shop.sales"""

_APPEND_EXAMPLE = """\b
Example: the rows of two files, as one snapshot
  modcrypt iceberg append --kms file:lake.keyring lake/orders monday.parquet tuesday.parquet"""

_ENCRYPT_EXAMPLE = """\b
Example: encrypt an existing plaintext table into a new folder
  modcrypt iceberg encrypt --kms file:lake.keyring --master-key lake old/orders lake/archive"""

_new_table_options = combine_options(
    option(
        "--master-key ID",
        help="Master key of the new table (property encryption.key-id). Default: the one in the "
        "URI, as in file:lake.keyring#ID.",
    ),
    option(
        "--folder PATH",
        help="With --catalog: folder of the new table. Default: chosen by the catalog's warehouse.",
    ),
    key_length_option,
    policy_options(new=True),
    option(
        "--property NAME=VALUE...",
        "properties",
        help="Property of the new table; the last = separates name and value. Repeatable.",
    ),
    tables_service,
    catalog_options,
    key_store_option,
)


def _new_table_arguments(where: str, options: dict[str, Any]) -> dict[str, Any]:
    """Remove `_new_table_options` from the options; return arguments of `create_table`."""
    from modcrypt.iceberg import KeyPolicy
    from modcrypt.iceberg.tables.catalogs import parse_identifier

    values = {name: options.pop(name) for name in _NEW_TABLE_PARAMETERS}
    if values["catalog"] is None:
        refuse({"folder"}, "without --catalog, TABLE is the table's folder")
    members = new_policy_members(options)
    if members["kek_per"] != "files":
        refuse({"files_per_kek"}, "this needs --kek-per files")
    store = "table" if values["key_store"] is None else "key-store"
    policy = KeyPolicy(**{"store": store, **members})
    kms = open_service(options)
    master_key = values["master_key"] or default_key(kms)
    if not master_key:
        why = "the URI names no master key for the table; name it by --master-key ID"
        raise click.UsageError(why)
    catalog = open_catalog(values["catalog"], values["catalog_name"], create=True)
    identifier = None if catalog is None else parse_identifier(where)
    if catalog is not None and identifier is not None:
        if not (namespace := identifier[:-1]):
            raise click.UsageError("in a catalog, TABLE is NAMESPACE.TABLE")
        catalog.create_namespace_if_not_exists(namespace)
    return {
        "destination": where if catalog is None else values["folder"],
        "kms": kms,
        "master_key_id": master_key,
        "properties": parse_pairs(values["properties"], "--property", "NAME=VALUE"),
        "policy": None if policy == KeyPolicy() else policy,
        "key_length": int(values["key_length"] or 16),
        "catalog": catalog,
        "identifier": identifier,
        "key_store": open_key_store(values["key_store"], create=True),
    }


_NEW_TABLE_PARAMETERS = (
    "master_key", "folder", "key_length", "properties", "catalog", "catalog_name", "key_store",
)  # fmt: skip


@verb(epilog=_CREATE_EXAMPLE)
@table_argument
@option("--like FILE", required=True, help="Parquet file that defines the columns.")
@option(
    "--partition-by COLUMN|TRANSFORM...",
    "partitions",
    help="Partition by a column c, or by year(c), month(c), day(c), hour(c), bucket(N, c) or "
    "truncate(N, c). Repeatable.",
)
@_new_table_options
def create(
    *, where: str, like: str, partitions: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Create an empty encrypted table.

    TABLE is its folder, or with --catalog its identifier. The key service is not called before the
    first append.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from modcrypt.iceberg import create_table
    from modcrypt.io.stores import locate
    from modcrypt.parquet.datasets.discovery import as_arrow

    filesystem, path = locate(like, None)
    try:
        schema = pq.read_schema(path, filesystem=as_arrow(filesystem))
    except pa.ArrowInvalid:
        raise FormatError(f"{like}: not a Parquet file") from None
    except UnicodeEncodeError:
        raise click.UsageError("--like: the path is not UTF-8, which Arrow needs") from None
    spec, arguments = _partition_spec(partitions, schema), _new_table_arguments(where, options)
    new_table = create_table(schema=schema, partition_spec=spec, **arguments)
    _print_table("created", new_table, as_json)


_TRANSFORM = re.compile(
    r"(?:(?P<time>year|month|day|hour)\(|(?P<cut>bucket|truncate)\(\s*(?P<n>[1-9]\d{0,8})\s*,)"
    r"\s*(?P<column>.+?)\s*\)"
)
_SUFFIXES = {"truncate": "trunc"}


def _partition_spec(partitions: Sequence[str], schema: pa.Schema) -> PartitionSpec | None:
    """Return the partition spec for these texts; fields are named as in Iceberg's Java code."""
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
                f"--partition-by: {printable(text)} is neither a column nor year(c), month(c), "
                "day(c), hour(c), bucket(N, c) or truncate(N, c) of one"
            )
        # The columns of a new table get the ids 1, 2, 3 ...
        source = schema.names.index(column) + 1
        fields.append(PartitionField(source, 1000 + number, parse_transform(transform), name))
    return PartitionSpec(*fields)


@verb(epilog=_APPEND_EXAMPLE)
@table_argument
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@option(
    "--branch NAME",
    help="Branch that gets the rows; a new one begins at the current snapshot. Default: main.",
)
@table_options
@sign_options
def append(
    *, where: str, files: tuple[str, ...], branch: str | None, as_json: bool, **options: Any
) -> None:
    """Append the rows of Parquet files to the table.

    FILE is a file, or a folder of files. All rows become one new snapshot. With --sign, the new
    version is sealed, as by `modcrypt iceberg seal`; pass --signed-by, too, so that only a sealed
    version is continued.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        rows = ds.dataset([_open_parquet(file) for file in files]).scanner().to_reader()
        done = open_changing_table(where, options).append(rows, branch=branch)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # their messages may hold values
        why = "the files are not all Parquet with the same columns, or one is damaged"
        raise FormatError(why) from None
    _print_table("appended", done, as_json)


def _open_parquet(file: str) -> Any:
    import pyarrow.dataset as ds

    from modcrypt.io.stores import locate
    from modcrypt.parquet.datasets.discovery import as_arrow

    filesystem, path = locate(file, None)
    try:
        return ds.dataset(path, filesystem=as_arrow(filesystem), format="parquet")
    except FileNotFoundError:  # PyArrow's message is only the path
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from None


@verb(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source", metavar="SOURCE")
@table_argument
@option(
    "--source-catalog URI|NAME",
    help="Catalog of SOURCE, which is then NAMESPACE.TABLE: URI of an SQL catalog, or a name "
    "from pyiceberg's configuration.",
)
@option("--history", help="Encrypt all snapshots, not only the current one.")
@location_map_option
@_new_table_options
def encrypt(
    *, source: str, where: str, source_catalog: str | None, history: bool,
    location_map: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Encrypt a plaintext table into a new one.

    SOURCE is its metadata.json or its folder, TABLE the new table. Files are encrypted page by
    page, without decoding. SOURCE stays unchanged: remove it yourself when it is no longer needed.
    """
    from pyiceberg.exceptions import NoSuchTableError

    from modcrypt.iceberg import encrypt_table
    from modcrypt.iceberg.tables.catalogs import parse_identifier

    catalog = open_catalog(source_catalog, None, option="--source-catalog")
    try:
        old = source if catalog is None else catalog.load_table(parse_identifier(source))
    except NoSuchTableError:
        raise click.UsageError(f"--source-catalog has no table {printable(source)}") from None
    mapped, arguments = parse_location_map(location_map), _new_table_arguments(where, options)
    new_table = encrypt_table(old, history=history, location_map=mapped, **arguments)
    _print_table("encrypted", new_table, as_json)


def _print_table(done: str, table: IcebergTable, as_json: bool) -> None:
    metadata, current = table.metadata, table.metadata.current
    summary = {} if current is None else current.document.get("summary") or {}
    fields: dict[str, Any] = {
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
        print_json("iceberg.write", fields)
        return
    rows = ""
    if current is not None:
        count = format_count(fields["added_records"], "row")
        files = format_count(fields["added_data_files"], "file")
        rows = f"{count} in {files}, snapshot {current.id}; "
    print_line(printable(f"{done}: {rows}{fields['metadata']}"))
