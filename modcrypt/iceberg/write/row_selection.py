"""Find the rows that a change removes, and the other rows of their files (copy-on-write)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.file_pruning import FileStatistics, statistics_of
from modcrypt.iceberg.read.row_filter import RowFilter, fit_filter, null_with_parents
from modcrypt.iceberg.read.scan_planning import PlannedFile, Planner
from modcrypt.iceberg.read.schema_projection import Projection
from modcrypt.iceberg.read.table_scan import TableScan
from modcrypt.iceberg.write.manifest_writing import LiveEntry, live_entries
from modcrypt.runtime.fork_safety import cached_property

if TYPE_CHECKING:
    from modcrypt.iceberg.format.table_metadata import Snapshot
    from modcrypt.iceberg.read.table_walk import Walk


@dataclass(frozen=True)
class ListedManifest:
    """A manifest and its live entries."""

    manifest: ManifestFile
    live: Sequence[LiveEntry] = field(repr=False)


@dataclass(frozen=True)
class Candidates:
    """The files of a snapshot that may have rows for a filter."""

    # Data files, with the deletes that apply to them.
    files: Sequence[PlannedFile] = field(repr=False)
    # The manifests that name these files, and those of delete files.
    manifests: Sequence[ListedManifest] = field(repr=False)
    others: Sequence[ManifestFile] = field(repr=False)  # all other manifests

    @classmethod
    def find(
        cls, walk: Walk, snapshot: Snapshot | None, row_filter: BooleanExpression
    ) -> Candidates:
        """Read the manifests of a snapshot that the filter does not exclude; raise as a scan."""
        if snapshot is None:
            return cls((), (), ())
        planner = Planner(walk, null_with_parents(schema_of(walk.metadata)), row_filter)
        every = walk.manifests(snapshot)
        chosen = planner.choose_manifests(every)
        listed = [ListedManifest(each, live_entries(each, walk.entries(each))) for each in chosen]
        data, deletes = list[LiveEntry](), list[FileEntry]()
        for each in listed:
            for live in each.live:
                if each.manifest.content != DATA:
                    deletes.append(live.entry)
                elif planner.file_may_match(live.entry):
                    data.append(live)
        planned = planner.with_deletes([entry for entry, _ in data], deletes)
        files = [
            replace(file, first_row_id=first)
            for file, (_, first) in zip(planned, data, strict=True)
        ]
        read = {manifest.location for manifest in chosen}
        return cls(files, listed, [other for other in every if other.location not in read])


class Matching:
    """The rows of files for which a filter is true, with the meaning that it has in a scan."""

    def __init__(
        self, walk: Walk, snapshot: Snapshot | None, row_filter: BooleanExpression
    ) -> None:
        schema = null_with_parents(schema_of(walk.metadata))
        self._expression, self._schema = fit_filter(schema, row_filter), schema
        self._filter = RowFilter(schema, row_filter)
        self._matching = TableScan(walk, snapshot, None, (), row_filter)
        self._others = TableScan(
            walk, snapshot, None, None, row_filter, rewriting=True, decrypting=False
        )

    def others(self, file: PlannedFile) -> pa.Table | None:
        """Return the rows of a file that do not match, with their lineage; None if all do not.

        Columns that the filter does not need are read only if some rows match and others do not.
        """
        none = pa.Table.from_batches([], self._others.schema)
        if self._matches_whole(file):
            return none
        with as_format_errors(file.data.location):
            if not self._matching.count_rows(file):
                return None
            return self._others.read(file)

    def _matches_whole(self, file: PlannedFile) -> bool:
        """Return whether a file needs not be opened: all its rows are known to match."""
        if self._filter.is_all:
            return True
        with as_format_errors(file.data.location):
            return self._partition_matches(file) or self._statistics_match(file.data)

    def _partition_matches(self, file: PlannedFile) -> bool:
        """Return whether the filter needs only columns that the partition has, and is true."""
        # pyiceberg adds files to the partition of their bounds, which leave out nulls and NaN: such
        # columns need a count of nulls, which is that of no column that the file lacks.
        columns, nulls = self._filter.schema, _by_column(file.data, "null_value_counts")
        stored = {id_ for name in _OF_STORED for id_ in _by_column(file.data, name)}
        if not all(
            isinstance(column.field_type, PrimitiveType)
            and column.field_id in file.constants
            and (
                column.field_id not in stored
                or (nulls.get(column.field_id) == 0 and not isinstance(column.field_type, _FLOATS))
            )
            for column in columns.fields
        ):
            return False
        row = pa.record_batch([pa.nulls(1)], names=["none"]).select([])
        needed = Projection(pa.schema([]), columns, file.constants, "a partition").rows(row)
        return bool(self._filter.apply(needed, needed).num_rows)

    def _statistics_match(self, entry: FileEntry) -> bool:
        """Return whether the statistics of a file prove that all its rows match."""
        # pyiceberg takes missing numbers of nulls for none, and others disagree about the order of
        # some types, or shorten bounds: such statistics prove nothing.
        nulls = _by_column(entry, "null_value_counts")
        proven = all(
            isinstance(column.field_type, _ORDERED) and nulls.get(column.field_id) == 0
            for column in self._filter.schema.fields
        )
        if not proven:
            return False
        statistics: Any = FileStatistics(statistics_of(entry), self._schema)
        return bool(self._strict.eval(statistics))

    @cached_property
    def _strict(self) -> _StrictMetricsEvaluator:
        return _StrictMetricsEvaluator(self._schema, self._expression)


def _by_column(entry: FileEntry, statistic: str) -> Mapping[int, int]:
    """Return a statistic by the ids of columns; a column that the file lacks has none."""
    return {pair["key"]: pair["value"] for pair in entry.file.get(statistic) or ()}


_OF_STORED = "column_sizes", "value_counts", "null_value_counts", "lower_bounds"
"""Statistics that are of columns that a file has."""

_FLOATS = FloatType, DoubleType

_ORDERED = (
    IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType, DecimalType,
)  # fmt: skip
"""Types whose values all writers order alike, and whose bounds are values."""

ALL_ROWS: BooleanExpression = AlwaysTrue()


def is_top_level(schema: Schema, name: str) -> bool:
    """Return whether a schema has a column of this name that is not within another one."""
    return any(field.name == name for field in schema.fields)
