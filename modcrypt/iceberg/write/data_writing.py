"""Arrow tables as new data files of a table: partitioned and counted by pyiceberg, sealed here.

Each file is encoded in memory and sealed, page by page, into its place: plaintext is never in a
file.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    StatsAggregator,
    _get_parquet_writer_kwargs,
    bin_pack_arrow_table,
    bin_pack_record_batches,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata as PyTableMetadata
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType
from pyiceberg.utils.properties import property_as_int
from pyiceberg.utils.truncate import truncate_upper_bound_text_string

from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import DATA
from modcrypt.iceberg.format.parquet_files import write_parquet
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.partitions import by_partition
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.iceberg.write.manifest_writing import PartitionPaths
from modcrypt.iceberg.write.schema_fitting import check_fits, file_schema, fitted, for_file
from modcrypt.io.buffers import usable_cores
from modcrypt.io.storage import MemorySource
from modcrypt.key_metadata import StandardKeyMetadata

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = ["Data", "DataWriter", "NewFile"]

Data: TypeAlias = "pa.Table | pa.RecordBatchReader"

_PROPERTIES = (
    "write.parquet.", "write.metadata.metrics.", "write.target-file-size-bytes",
    "write.data.path", "write.object-storage.",
)  # fmt: skip
"""Table properties that pyiceberg is shown. Others name Python classes, which it would import."""
_UNUSED = ("write.parquet.row-group-size-bytes", "write.parquet.bloom-filter-")
"""Those of them that it only warns of."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that was written, and is in no manifest yet.

    Attributes:
        file: what a manifest says of it under the spec's names, but for its key metadata.
        keys: its key metadata, with its length; a secret.
        partition_path: its partition, as in the paths of files; empty without one.
    """

    file: Mapping[str, Any] = field(repr=False)
    keys: StandardKeyMetadata = field(repr=False)
    partition_path: str

    @property
    def location(self) -> str:
        """Where it is."""
        return str(self.file["file_path"])


class DataWriter:
    """Writes Arrow tables as data files of a table's current schema and partition spec.

    Args:
        table: at the version whose schema and spec count.
    """

    def __init__(self, table: IcebergTable) -> None:
        self._table = _shown(table.metadata)
        self._locations, self._key_length = table.walk.locations, table.metadata.key_length
        self._provider = load_location_provider(self._table.location, self._table.properties)
        self._uuid, self._numbers = uuid.uuid4(), itertools.count()
        self._written: list[str] = []
        self.spec_id = self._table.default_spec_id
        self._paths = PartitionPaths(table.metadata, self.spec_id)

    def check(self, data: Data) -> None:
        """Check that data fits the table.

        Raises:
            TypeError: it is neither an Arrow table nor a reader of record batches.
            ValueError: its columns are not those of the table.
        """
        if not isinstance(data, pa.Table | pa.RecordBatchReader):
            raise TypeError(
                f"data is a pyarrow.Table or RecordBatchReader, not {type(data).__name__}"
            )
        check_fits(data.schema, self._table.schema())

    def write(self, data: Data) -> list[NewFile]:
        """Write data that fits; a reader is held in memory by a file's worth.

        Raises:
            ModcryptError, OSError, pyarrow.ArrowException: a file can't be written; or what the
                reader raises. `abandon` removes those that are there.
        """
        files: list[NewFile] = []
        pool = ThreadPoolExecutor(min(usable_cores(), _MAX_THREADS))
        try:
            for lot in self._lots(data):
                files += pool.map(self._new_file, *self._parts(lot))
        finally:
            pool.shutdown(cancel_futures=True)  # and wait for those that are being written
        return files

    def abandon(self) -> None:
        """Remove all files that were written."""
        remove_written(self._locations, self._written)

    # --- what a file gets -----------------------------------------------------------------------

    def _lots(self, data: Data) -> Iterator[pa.Table]:
        """Give the data as tables of which each fits in memory."""
        if isinstance(data, pa.Table):
            lots: Iterator[pa.Table] = iter((data,))
        else:
            lots = map(pa.Table.from_batches, bin_pack_record_batches(data, self._target_size))
        return (fitted(lot, self._table.schema()) for lot in lots if lot.num_rows)

    def _parts(self, lot: pa.Table) -> tuple[list[pa.Table], list[PartitionKey | None]]:
        """Split a table into those of single files, each of one partition."""
        spec, schema = self._table.spec(), self._table.schema()
        if spec.is_unpartitioned():
            whole: list[tuple[pa.Table, PartitionKey | None]] = [(lot, None)]
        else:
            whole = list(by_partition(lot, spec, schema))
        parts = [
            (pa.Table.from_batches(batches), key)
            for table, key in whole
            # A table of nulls alone has no size to be divided by.
            for batches in (
                bin_pack_arrow_table(table, self._target_size)
                if table.nbytes
                else [table.to_batches()]
            )
        ]
        return [table for table, _ in parts], [key for _, key in parts]

    @property
    def _target_size(self) -> int:
        found = property_as_int(
            self._table.properties,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        return found or 1

    # --- files ----------------------------------------------------------------------------------

    def _new_file(self, rows: pa.Table, key: PartitionKey | None) -> NewFile:
        """Encode and seal a file; plaintext is in memory alone."""
        schema = file_schema(self._table.schema())
        data, statistics = _encoded(
            for_file(rows, self._table.schema()), schema, self._table.properties
        )
        name = f"{next(self._numbers):05}-0-{self._uuid}.parquet"
        location = self._provider.new_data_location(name, key)
        sealed = write_parquet(self._locations, location, MemorySource(data), self._key_length)
        self._written.append(location)
        ids = parquet_path_to_id_mapping(schema)
        sizes = {ids[".".join(path)]: size for path, size in sealed.column_sizes.items()}
        names = [make_compatible_name(one.name) for one in self._table.spec().fields]
        values = Record() if key is None else key.partition
        partition = {name: values[at] for at, name in enumerate(names)}
        told = {
            "content": DATA,
            "file_path": location,
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": rows.num_rows,
            "file_size_in_bytes": sealed.size,
            **{name: _pairs(statistics.get(name)) for name in _STATISTICS},
            "column_sizes": _pairs(sizes),
            "split_offsets": sealed.split_offsets,
            "sort_order_id": 0,
        }
        return NewFile(told, sealed.keys, self._paths.path(partition))


def _encoded(
    rows: pa.Table, schema: Schema, properties: dict[str, str]
) -> tuple[bytes, dict[str, Any]]:
    """Encode rows as Parquet, as the table's properties say; give the statistics of columns."""
    out = io.BytesIO()
    limit = property_as_int(
        properties,
        TableProperties.PARQUET_ROW_GROUP_LIMIT,
        TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT,
    )
    with pq.ParquetWriter(
        out, rows.schema, store_decimal_as_integer=True, **_get_parquet_writer_kwargs(properties)
    ) as writer:
        writer.write_table(rows, row_group_size=limit)
    metadata, ids = writer.writer.metadata, parquet_path_to_id_mapping(schema)
    try:
        found = data_file_statistics_from_parquet_metadata(
            metadata,
            stats_columns=compute_statistics_plan(schema, properties),
            parquet_column_mapping=ids,
        )
    except OverflowError:  # of Python's datetime, which pyiceberg counts with
        raise ValueError("the data has dates before year 1 or after year 9999") from None
    for number in range(metadata.num_columns):
        _bound(found.column_aggregates, ids[metadata.schema.column(number).path], metadata, number)
    return out.getvalue(), found.to_serialized_dict()


def _bound(
    bounds: dict[int, StatsAggregator], id_: int, metadata: pq.FileMetaData, number: int
) -> None:
    """Mend the bounds of a column, as pyiceberg finds them: readers leave out files by them."""
    if id_ not in bounds:
        return
    groups = range(metadata.num_row_groups)
    found = [metadata.row_group(one).column(number).statistics for one in groups]
    told = [one for one in found if one.has_min_max]
    column = bounds[id_]
    if any(_is_untold(one) for one in found):
        del bounds[id_]
    elif told and isinstance(column.primitive_type, TimestampNanoType | TimestamptzNanoType):
        # Python's datetime, which pyiceberg has them by, is of microseconds.
        column.current_min = min(one.min_raw for one in told)
        column.current_max = max(one.max_raw for one in told)
    elif isinstance(column.current_max, str):
        # A text that is cut has to be text as an upper bound: what follows U+D7FF is none.
        bound = truncate_upper_bound_text_string(column.current_max, column.trunc_length)
        if bound is not None and "\ud800" in bound:
            column.current_max = bound.replace("\ud800", "\ue000")


def _is_untold(found: pq.Statistics) -> bool:
    """Tell whether a row group has values, and no bounds: of long texts it has none."""
    is_float = found.physical_type in ("FLOAT", "DOUBLE")  # NaN counts for nothing
    return not is_float and not found.has_min_max and found.num_values > 0


_STATISTICS = (
    "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds",
)  # fmt: skip
_MAX_THREADS = 4
"""Files that are encoded at once: each is in memory."""


def _pairs(values: Mapping[int, Any] | None) -> list[dict[str, Any]]:
    """Give a map by column as Avro has it: a list of pairs, in order."""
    return [{"key": key, "value": value} for key, value in sorted((values or {}).items())]


def _shown(metadata: TableMetadata) -> PyTableMetadata:
    """Give what pyiceberg needs of a table to write files: schemas and specs, without history."""
    properties = {
        name: value
        for name, value in metadata.properties.items()
        if name.startswith(_PROPERTIES) and not name.startswith(_UNUSED)
    }
    document = {
        **metadata.document,
        "location": metadata.location,
        "properties": properties,
        "current-snapshot-id": None,
        "snapshots": [],
        "refs": {},
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    with as_format_errors(metadata.name):
        return TableMetadataUtil.parse_obj(document)
