"""Choose rows of a table, and read them when they are needed, in the form of a library.

Arguments and methods have the names and meanings of pyiceberg's scans.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.row_filter import match_case, match_name, parse_filter
from modcrypt.parquet.arrow.scanning.file_scan import concatenate_tables
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.runtime.fork_safety import cached_property

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection

    from modcrypt.iceberg.format.table_metadata import Snapshot
    from modcrypt.iceberg.tables.table import IcebergTable

MAX_LIMIT = (1 << 63) - 1
"""Largest limit of rows: Arrow counts them with 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows and columns that a scan returns.

    Attributes:
        snapshot: Id of a snapshot, name of a branch or tag, or None for the current snapshot.
        columns: Names of the columns; None for all.
        row_filter: Condition on the rows.
        limit: Maximum number of rows; None for all.
        case_sensitive: Whether names of columns must have the table's case.
    """

    snapshot: int | str | None = None
    columns: tuple[str, ...] | None = None
    row_filter: BooleanExpression = AlwaysTrue()  # noqa: RUF009  # it has no state
    limit: int | None = None
    case_sensitive: bool = True

    def __post_init__(self) -> None:
        limit = self.limit
        if limit is not None and (type(limit) is not int or not 0 <= limit <= MAX_LIMIT):
            raise ValueError("limit must be a number of rows, or None for all")

    def matched(self, table: IcebergTable) -> Selection:
        """Return the selection with the table's case of names; raise ValueError if one is wrong."""
        if self.case_sensitive:
            return self
        found = table.snapshot(self.snapshot)
        schema_id = None if found is None else table.schema_id(found, self.snapshot)
        columns = self.columns
        schema = schema_of(table.metadata, schema_id, columns)
        if columns is not None:
            columns = tuple(match_name(schema, name) for name in columns)
        return replace(self, columns=columns, row_filter=match_case(self.row_filter, schema))


def select_rows(
    table: IcebergTable, snapshot: int | str | None, columns: Sequence[str] | None, filters: Any, *,
    row_filter: Any, selected_fields: Sequence[str], case_sensitive: bool, snapshot_id: int | None,
    as_of: datetime.datetime | int | None, limit: int | None,
) -> Selection:  # fmt: skip
    """Return the selection by arguments of `IcebergTable.scan`; raise ValueError if they conflict.

    modcrypt's own names of arguments and those of pyiceberg mean the same; each may be given once.
    """
    for value in (columns, selected_fields):
        if isinstance(value, str):  # a text would be taken for a list of its letters
            raise ValueError(f"columns must be a list of names; pass [{value!r}]")
    fields = None if "*" in selected_fields else selected_fields
    if as_of is not None:
        as_of = snapshot_at(table, as_of).id
    which = _only("snapshot, snapshot_id and as_of", snapshot, snapshot_id, as_of)
    names = _only("columns and selected_fields", columns, fields)
    names = None if names is None else tuple(names)
    if kinds := [type(name).__name__ for name in names or () if not isinstance(name, str)]:
        raise ValueError(f"columns must be names, not of type {kinds[0]}")
    expression = parse_filter(_only("filters and row_filter", filters, row_filter))
    return Selection(
        snapshot=which, columns=names, row_filter=expression,
        limit=limit, case_sensitive=case_sensitive,
    )  # fmt: skip


def snapshot_at(table: IcebergTable, when: datetime.datetime | int) -> Snapshot:
    """Return the snapshot that was the current one at a time; raise ValueError without one."""
    if (found := table.snapshot_as_of_timestamp(to_milliseconds(when))) is None:
        raise ValueError("the table's history has no snapshot as old as as_of")
    return found


def to_milliseconds(when: datetime.datetime | int) -> int:
    """Return a time in milliseconds since 1970; raise ValueError if it has no time zone."""
    if type(when) is int:
        return when
    if not isinstance(when, datetime.datetime) or when.tzinfo is None:
        raise ValueError(
            "as_of must be a datetime with a time zone, or milliseconds since 1970 as an int"
        )
    return (when - _EPOCH) // datetime.timedelta(milliseconds=1)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _only(names: str, *values: Any) -> Any:
    """Return the only value that is given; raise ValueError for several."""
    given = [value for value in values if value is not None]
    if len(given) > 1:
        raise ValueError(f"pass only one of {names}")
    return given[0] if given else None


class DataScan(FactSheet):
    """Rows of a table that are read when they are needed, as `IcebergTable.scan` returns it.

    The methods `to_…` read the rows. Everything else that a `pyarrow.Table` has, such as
    `num_rows`, `schema` or `scan["id"]`, reads them once and keeps them. Libraries that take
    Arrow streams (Polars, DuckDB, `pyarrow.table`) take a scan itself.
    """

    def __init__(self, table: IcebergTable, selection: Selection) -> None:
        self._source, self._selection = table, selection
        self._matched = matched = selection.matched(table)
        self._scan = table.make_scan(matched.snapshot, matched.columns, matched.row_filter)

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts that represent the scan in a terminal or notebook; it reads no rows."""
        limit = self._selection.limit
        return [
            ("Metadata", self._source.metadata.name),
            ("Columns", ", ".join(self.schema.names)),
            ("Limit", "none" if limit is None else str(limit)),
        ]

    def use_ref(self, name: str) -> DataScan:
        """Return a scan of a branch or tag; raise ValueError if a snapshot is already chosen."""
        if self._selection.snapshot is not None:
            raise ValueError("the scan already has a snapshot")
        return self._changed(snapshot=name)

    def select(self, *names: Any) -> DataScan:
        """Return a scan of fewer columns; names are single arguments, or one list.

        `"*"` stands for all columns of the scan.
        """
        wanted = [name for part in names for name in ([part] if isinstance(part, str) else part)]
        if "*" in wanted:
            return self
        chosen = replace(self._selection, columns=tuple(wanted)).matched(self._source).columns
        known = self._matched.columns
        unknown = [name for name in chosen or () if known is not None and name not in known]
        if unknown:
            raise ValueError(f"the scan has no columns {', '.join(map(repr, unknown))}")
        return self._changed(columns=chosen)

    def filter(self, condition: Any) -> Any:
        """Return a scan with a further condition on rows.

        Args:
            condition: A filter as for `IcebergTable.scan`. A mask or an expression of pyarrow
                filters rows that are read, as in `pyarrow.Table.filter`.
        """
        if isinstance(condition, str | BooleanExpression):
            both = And(self._selection.row_filter, parse_filter(condition))
            return self._changed(row_filter=both)
        return self._table.filter(condition)

    def _changed(self, **members: Any) -> DataScan:
        return DataScan(self._source, replace(self._selection, **members))

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows; no file of rows is read for it."""
        return self._scan.schema

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def to_batches(self, max_chunksize: int | None = None) -> list[pa.RecordBatch]:
        """Read all rows as record batches of at most `max_chunksize` rows."""
        return list(self._table.to_batches(max_chunksize=max_chunksize))

    def to_arrow(self) -> pa.Table:
        """Read all rows as an Arrow table; raise as `IcebergTable.scan`."""
        return self._table

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a reader of record batches, which reads files while it is iterated."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Read all rows as a frame of pandas; the options are those of `pyarrow.Table`."""
        return self._table.to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Read all rows as a frame of Polars."""
        import polars as pl

        frame = pl.from_arrow(self._table)
        return frame.to_frame() if isinstance(frame, pl.Series) else frame

    def to_duckdb(
        self, table_name: str, connection: DuckDBPyConnection | None = None
    ) -> DuckDBPyConnection:
        """Register the rows as a table of DuckDB; return the connection, by default a new one."""
        import duckdb

        connection = connection or duckdb.connect(database=":memory:")
        connection.register(table_name, self._table)
        return connection

    def count(self) -> int:
        """Return the number of rows; without a condition or deletes, from the manifests alone."""
        chosen, limit, scan = self._matched, self._selection.limit, self._scan
        if not self._source.read_restrictions:  # which need columns that they filter by
            scan = self._source.make_scan(chosen.snapshot, (), chosen.row_filter)
        counted = scan.count()
        return counted if limit is None else min(limit, counted)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if (left := self._selection.limit) == 0:
            return
        for batch in self._scan.to_batches():
            yield batch if left is None else batch.slice(0, left)
            if left is not None and (left := left - batch.num_rows) <= 0:
                return

    @cached_property
    def _table(self) -> pa.Table:
        rows = pa.Table.from_batches(self._batches(), self.schema)
        return concatenate_tables([rows], self.schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as a stream of Arrow's C interface."""
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a scan has no attribute {name!r}")
        if not hasattr(pa.Table, name):
            raise AttributeError(f"neither a scan nor a pyarrow.Table has an attribute {name!r}")
        return getattr(self._table, name)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __eq__(self, other: object) -> bool:
        rows = other._table if isinstance(other, DataScan) else other
        return bool(self._table == rows) if isinstance(rows, pa.Table) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a pyarrow.Table
