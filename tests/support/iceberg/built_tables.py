"""Tables of `Builder`, opened; their rows and position deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.builder import Builder, arrow
from tests.support.iceberg.sample_kms import SampleKms


def open_built(builder: Builder, **options: Any) -> IcebergTable:
    return open_table(builder.write(), SampleKms(), **options)


def ids(table: pa.Table) -> list[int]:
    return sorted(table.column("id").to_pylist())


def arrow_schema(schema: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of an Iceberg schema, with field ids."""
    return schema_to_pyarrow(Schema.model_validate(schema))


def spec(transform: str, source: int = 1) -> list[dict[str, Any]]:
    return [{"name": "part", "transform": transform, "source-id": source, "field-id": 1000}]


POSITIONS_ARROW = arrow([(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())])
POSITIONS_AVRO = {
    "type": "record", "name": "deletes", "fields": [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545}]}  # fmt: skip


def position_deletes(
    builder: Builder, name: str, rows: Sequence[tuple[str, int]], form: str, **file: Any
) -> dict[str, Any]:
    if form == "parquet":
        columns = [[path for path, _ in rows], [position for _, position in rows]]
        table = pa.table(columns, schema=POSITIONS_ARROW)
        return builder.parquet(name, table, content=1, **file)
    as_dicts = [{"file_path": path, "pos": position} for path, position in rows]
    return builder.avro(name, POSITIONS_AVRO, as_dicts, content=1, **file)
