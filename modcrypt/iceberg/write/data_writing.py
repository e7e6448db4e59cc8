"""Write Arrow tables as encrypted data files of a table.

pyiceberg partitions the rows and computes the statistics. Each file is encoded in memory and
encrypted page by page into its destination: plaintext is never written to a file.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
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

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.encrypted_files import write_parquet
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.format.table_metadata import EMPTY_HISTORY, TableMetadata
from modcrypt.iceberg.read.cell_notes import declared_ids, find_notes, set_notes
from modcrypt.iceberg.read.row_lineage import with_lineage
from modcrypt.iceberg.write.cell_columns import (
    check_cells,
    check_declared,
    find_cells,
    leave_out_bounds,
    plan_cells,
)
from modcrypt.iceberg.write.manifest_writing import PartitionPaths
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.partitions import split_by_partition
from modcrypt.iceberg.write.schema_fitting import check_fits, file_schema, fit_rows, rows_for_file
from modcrypt.io.sources import MemorySource
from modcrypt.io.threads import usable_cores
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.arrow.field_metadata import leave_out_statistics

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion

Data: TypeAlias = "pa.Table | pa.RecordBatchReader"

_PROPERTIES = (
    "write.parquet.", "write.metadata.metrics.", "write.target-file-size-bytes",
    "write.data.path", "write.object-storage.",
)  # fmt: skip
"""Table properties passed to pyiceberg. Others name Python classes, which it would import."""
_UNUSED = ("write.parquet.row-group-size-bytes", "write.parquet.bloom-filter-")
"""Properties among them about which pyiceberg only warns."""


@dataclass(frozen=True, slots=True)
class NewDataFile:
    """A data file that was written and is in no manifest yet."""

    # Members of its manifest entry under the spec's names, without the key metadata.
    file: Mapping[str, Any] = field(repr=False)
    # Its key metadata, with the file's length; a secret.
    keys: StandardKeyMetadata = field(repr=False)
    partition_path: str  # its partition as in the paths of files; empty in an unpartitioned table


class DataWriter:
    """A writer of data files with a table's current schema and partition spec.

    With `lineage`, the rows have the columns of `with_lineage`, which are stored.
    """

    def __init__(self, table: TableVersion, files: NewFiles, *, lineage: bool = False) -> None:
        self._files, self._subjects = files, table.resolver.subjects
        self._declared = declared_ids(table.metadata)
        self._table = _minimal_metadata(table.metadata, lineage=lineage)
        self._row_limit, self._options = _writer_options(
            self._table.properties, table.metadata.name
        )
        columns = file_schema(self._table.schema())
        with as_format_errors(f"{table.metadata.name}: write.metadata.metrics properties"):
            self._statistics = compute_statistics_plan(columns, self._table.properties)
        with as_format_errors(f"{table.metadata.name}: write.target-file-size-bytes"):
            size = property_as_int(
                self._table.properties,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
            )
            self._target_size = size or 1
        self._locations, self._key_length = table.walk.locations, table.metadata.key_length
        self._provider = load_location_provider(self._table.location, self._table.properties)
        self._uuid, self._numbers = uuid.uuid4(), itertools.count()
        self.spec_id = self._table.default_spec_id
        self._paths = PartitionPaths(table.metadata, self.spec_id)

    def check(self, schema: pa.Schema) -> None:
        """Raise ValueError if the columns of data do not fit the table.

        Raise PlaintextError if the table declares cells that would not be encrypted.
        """
        if (cells := plan_cells(self._subjects, schema)) is not None:
            check_cells(cells, self._table.schema(), self._table.spec())
        check_declared(self._declared, self._table.schema(), cells)
        if cells is None:
            check_fits(schema, self._table.schema())

    def write(self, data: Data) -> list[NewDataFile]:
        """Write checked data; of a reader, the rows of one file are in memory at a time."""
        cells = plan_cells(self._subjects, data.schema)
        return self._write(data, cells, {} if cells is None else find_notes(cells.schema))

    def copy(self, rows: pa.Table) -> list[NewDataFile]:
        """Write rows of another file; cells stay as they are, with the notes in the schema."""
        return self._write(rows, None, find_notes(rows.schema))

    def _write(self, data: Data, cells: Any, notes: Mapping[str, bytes]) -> list[NewDataFile]:
        files: list[NewDataFile] = []
        pool = ThreadPoolExecutor(min(usable_cores(), _MAX_THREADS))
        try:
            for lot in self._read_lots(data, cells):
                files += pool.map(partial(self._write_file, notes), *self._split_lot(lot))
        finally:
            pool.shutdown(cancel_futures=True)  # waits for files that are being written
        return files

    def _read_lots(self, data: Data, cells: Any) -> Iterator[pa.Table]:
        """Yield the data, in cells if they have a writer, as tables that each fit in memory."""
        if isinstance(data, pa.Table):
            lots: Iterator[pa.Table] = iter((data,))
        else:
            lots = map(pa.Table.from_batches, bin_pack_record_batches(data, self._target_size))
        for lot in lots:
            if lot.num_rows:
                stored = lot if cells is None else cells.encrypt(lot)
                yield fit_rows(stored, self._table.schema())

    def _split_lot(self, lot: pa.Table) -> tuple[list[pa.Table], list[PartitionKey | None]]:
        """Split a table into the tables of single files, each with one partition."""
        spec, schema = self._table.spec(), self._table.schema()
        if spec.is_unpartitioned():
            whole: list[tuple[pa.Table, PartitionKey | None]] = [(lot, None)]
        else:
            whole = list(split_by_partition(lot, spec, schema))
        parts = [
            (pa.Table.from_batches(batches), key)
            for table, key in whole
            # A table that has only nulls has size 0, which bin_pack_arrow_table divides by.
            for batches in (
                bin_pack_arrow_table(table, self._target_size)
                if table.nbytes
                else [table.to_batches()]
            )
        ]
        return [table for table, _ in parts], [key for _, key in parts]

    def _write_file(
        self, notes: Mapping[str, bytes], rows: pa.Table, key: PartitionKey | None
    ) -> NewDataFile:
        """Encode and encrypt a file; the plaintext exists only in memory."""
        schema = file_schema(self._table.schema())
        stored = rows_for_file(rows, self._table.schema())
        noted = pa.Table.from_arrays(stored.columns, schema=set_notes(stored.schema, notes))
        data, statistics = self._encode_rows(noted, schema)
        name = f"{next(self._numbers):05}-0-{self._uuid}.parquet"
        location = self._provider.new_data_location(name, key)
        self._files.note(location, once=True)
        encrypted = write_parquet(self._locations, location, MemorySource(data), self._key_length)
        ids = parquet_path_to_id_mapping(schema)
        sizes = {ids[".".join(path)]: size for path, size in encrypted.column_sizes.items()}
        names = [make_compatible_name(field.name) for field in self._table.spec().fields]
        values = Record() if key is None else key.partition
        partition = {name: values[at] for at, name in enumerate(names)}
        entry = {
            "content": DATA,
            "file_path": location,
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": rows.num_rows,
            "file_size_in_bytes": encrypted.size,
            **{name: _pairs(statistics.get(name)) for name in _STATISTICS},
            "column_sizes": _pairs(sizes),
            "split_offsets": encrypted.split_offsets,
            "sort_order_id": 0,
        }
        return NewDataFile(entry, encrypted.keys, self._paths.path(partition))

    def _encode_rows(self, rows: pa.Table, schema: Schema) -> tuple[bytes, dict[str, Any]]:
        """Encode rows as Parquet by the table's properties; return the file and its statistics."""
        out, options, plan = io.BytesIO(), self._options, self._statistics
        ids = parquet_path_to_id_mapping(schema)
        if cells := find_cells(rows.schema):
            options = leave_out_statistics(options, rows.schema, cells)
            plan = leave_out_bounds(plan, {ids[".".join(path)] for path in cells})
        with pq.ParquetWriter(out, rows.schema, store_decimal_as_integer=True, **options) as writer:
            writer.write_table(rows, row_group_size=self._row_limit)
        metadata = writer.writer.metadata
        try:
            statistics = data_file_statistics_from_parquet_metadata(
                metadata, stats_columns=plan, parquet_column_mapping=ids
            )
        except OverflowError:  # from datetime, which pyiceberg uses for bounds
            raise ValueError("the data has dates before year 1 or after year 9999") from None
        bounds = statistics.column_aggregates
        for number in range(metadata.num_columns):
            _correct_bounds(bounds, ids[metadata.schema.column(number).path], metadata, number)
        return out.getvalue(), statistics.to_serialized_dict()


def _writer_options(properties: dict[str, str], name: str) -> tuple[int, dict[str, Any]]:
    """Return the rows of a row group, and PyArrow's options, by a table's properties."""
    # Nothing signs the properties. Without rows in a batch, PyArrow would write forever. Raise
    # FormatError if PyArrow cannot write with them.
    with as_format_errors(f"{name}: write.parquet properties"):
        options = _get_parquet_writer_kwargs(properties)
        limit = property_as_int(
            properties,
            TableProperties.PARQUET_ROW_GROUP_LIMIT,
            TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT,
        )
        if limit is None or min(limit, options["write_batch_size"]) < 1:
            raise FormatError("a limit of rows is not positive")
        pq.write_table(pa.table({"": [0]}), io.BytesIO(), row_group_size=limit, **options)
    return limit, options


def _correct_bounds(
    bounds: dict[int, StatsAggregator], id_: int, metadata: pq.FileMetaData, number: int
) -> None:
    """Correct the bounds that pyiceberg computes for a column: readers skip files by them."""
    if id_ not in bounds:
        return
    groups = range(metadata.num_row_groups)
    statistics = [metadata.row_group(group).column(number).statistics for group in groups]
    bounded = [group for group in statistics if group.has_min_max]
    column = bounds[id_]
    if any(_lacks_bounds(group) for group in statistics):
        del bounds[id_]
    elif bounded and isinstance(column.primitive_type, TimestampNanoType | TimestamptzNanoType):
        # pyiceberg computes them with datetime, which truncates to microseconds.
        column.current_min = min(group.min_raw for group in bounded)
        column.current_max = max(group.max_raw for group in bounded)
    elif isinstance(column.current_max, str):
        # A truncated upper bound must stay valid text: U+D800, after U+D7FF, is a surrogate.
        bound = truncate_upper_bound_text_string(column.current_max, column.trunc_length)
        if bound is not None and "\ud800" in bound:
            column.current_max = bound.replace("\ud800", "\ue000")


def _lacks_bounds(statistics: pq.Statistics) -> bool:
    """Return whether a row group has values but no bounds, as with long texts."""
    is_float = statistics.physical_type in ("FLOAT", "DOUBLE")  # NaNs have no bounds and need none
    return not is_float and not statistics.has_min_max and statistics.num_values > 0


_STATISTICS = (
    "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds",
)  # fmt: skip
_MAX_THREADS = 4  # number of files encoded concurrently; each is held in memory


def _pairs(values: Mapping[int, Any] | None) -> list[dict[str, Any]]:
    """Return a map by column as Avro stores it: a list of pairs in order."""
    return [{"key": key, "value": value} for key, value in sorted((values or {}).items())]


def _minimal_metadata(metadata: TableMetadata, *, lineage: bool) -> PyTableMetadata:
    """Return the metadata that pyiceberg needs to write files: schema and specs, no history."""
    properties = {
        name: value
        for name, value in metadata.properties.items()
        if name.startswith(_PROPERTIES) and not name.startswith(_UNUSED)
    }
    schema = schema_of(metadata)
    if lineage:
        schema = with_lineage(schema, metadata.name)
    document = {
        **metadata.document,
        "location": metadata.location,
        "properties": properties,
        "schemas": [schema.model_dump(mode="json", by_alias=True)],
        **EMPTY_HISTORY,
    }
    with as_format_errors(metadata.name):
        return TableMetadataUtil.parse_obj(document)
