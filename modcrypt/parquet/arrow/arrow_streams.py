"""Arrow data of any library, by the protocol of Arrow's C streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import pyarrow as pa

if TYPE_CHECKING:
    import polars


_MOST_ROWS, _SHARED_ROWS = 1 << 20, 1 << 16


def split_table(table: pa.Table, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches of limited size; a single row may exceed it.

    A dictionary, or the buffers of views, may exceed it, too: all parts of a batch refer to it.
    """
    waiting = table.to_batches(max_chunksize=_MOST_ROWS)[::-1]
    while waiting:
        batch = waiting.pop()
        half, size = batch.num_rows // 2, batch.nbytes
        parts = [batch.slice(half), batch.slice(0, half)]
        is_worth = half > _SHARED_ROWS or sum(part.nbytes for part in parts) < 1.5 * size
        if half and size > most_bytes and is_worth:
            waiting += parts
        else:
            yield batch


class ArrowStream(Protocol):
    """Data of any library that provides an Arrow stream: pandas, Polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the stream."""


def is_frame(table: object) -> TypeGuard[polars.DataFrame]:
    """Return whether `table` is a `polars.DataFrame`, without importing Polars."""
    frame_type = getattr(sys.modules.get("polars"), "DataFrame", None)
    return frame_type is not None and isinstance(table, frame_type)


_TO_TABLE = ("toArrow", "to_arrow_reader", "to_table", "collect", "to_frame")
"""Methods that make a table of Spark, DuckDB, PyArrow's datasets, Polars' queries and columns."""


def open_stream(data: Any) -> pa.RecordBatchReader:
    """Return a reader of the batches of any provider of an Arrow stream."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    is_column = hasattr(data, "to_frame") and not hasattr(data, "columns")
    hint = next((f"; call its {name}() first" for name in _TO_TABLE if hasattr(data, name)), "")
    if not hasattr(data, "__arrow_c_stream__") or is_column:
        raise TypeError(
            "data must be a pyarrow.Table or provide an Arrow stream, as frames of pandas and "
            f"polars.DataFrame do, not {type(data).__name__}{hint}"
        )
    return pa.RecordBatchReader.from_stream(data)


def as_table(data: Any) -> pa.Table:
    """Return data as a table; raise as `open_stream`."""
    return data if isinstance(data, pa.Table) else open_stream(data).read_all()
