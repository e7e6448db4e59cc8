"""Tables with values of the common types, written and read by PyArrow."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


def small_table(rows: int = 50) -> pa.Table:
    """Return flat, nested and null values of the common types."""
    numbers = range(rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"name-{n % 11}" for n in numbers]),
            "price": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
            "score": pa.array([n * 1.5 for n in numbers], pa.float64()),
            "day": pa.array([datetime.date(2026, 1, 1 + n % 28) for n in numbers]),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
            "address": pa.array(
                [{"zip": f"{n:05}", "city": None if n % 5 == 0 else "Ulm"} for n in numbers]
            ),
            "tags": pa.array([["a", "b"][: n % 3] for n in numbers], pa.list_(pa.string())),
        }
    )


def write_plain(path: Path, table: pa.Table | None = None, **options: Any) -> Path:
    """Write a plaintext Parquet file with PyArrow."""
    pq.write_table(small_table() if table is None else table, path, **options)
    return path


def read_with_pyarrow(path: Path, footer_key: bytes, aad_prefix: bytes | None = None) -> pa.Table:
    """Read a uniformly encrypted file with PyArrow's explicit keys."""
    properties = pe.create_decryption_properties(
        footer_key=footer_key, **({} if aad_prefix is None else {"aad_prefix": aad_prefix})
    )
    return pq.read_table(path, decryption_properties=properties)


#: Leaves of `small_table`, as Parquet names them.
SMALL_TABLE_LEAVES = (
    "id", "name", "price", "score", "day", "flag", "address.zip", "address.city",
    "tags.list.element",
)  # fmt: skip


def nested_table(rows: int = 60) -> pa.Table:
    """Return lists of structs with maps in them, with nulls and empties at every level."""
    item = pa.struct(
        [
            pa.field("k", pa.int32(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ]
    )

    def value(n: int) -> list[dict[str, Any] | None] | None:
        if n % 7 == 0:
            return None
        maps = [None, [], [("a", None)], [("a", []), ("b", [n, None, -n])]]
        return [None if k == 3 else {"k": k, "m": maps[(n + k) % 4]} for k in range(n % 5)]

    return pa.table({"id": range(rows), "deep": pa.array(map(value, range(rows)), pa.list_(item))})
