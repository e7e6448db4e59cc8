"""Rows told apart by their partitions, with the transforms of pyiceberg.

Not by pyiceberg's own grouping, which compares values: 0.0 and -0.0, two partitions to Iceberg,
each got the rows of both, and NaN, unlike itself, those of none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

__all__ = ["by_partition"]

_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_ROW = "row"


def by_partition(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[pa.Table, PartitionKey]]:
    """Split rows into those of each partition.

    Args:
        rows: with the columns of the schema, in its order.
        spec: of partitions.
        schema: of the table.
    """
    values = [
        one.transform.pyarrow_transform(schema.find_type(one.source_id))(
            _source(rows, schema, one.source_id)
        )
        for one in spec.fields
    ]
    values = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in values]
    names = [f"k{number}" for number in range(len(values))]
    number = pa.array(range(rows.num_rows), pa.int64())
    keys = pa.table([*(_comparable(one) for one in values), number], [*names, _ROW])
    grouped = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for taken in grouped.column(f"{_ROW}_list"):
        first = taken.values[0].as_py()
        told = [
            PartitionFieldValue(field, one[first].as_py())
            for field, one in zip(spec.fields, values, strict=True)
        ]
        yield rows.take(taken.values).combine_chunks(), _Key(told, spec, schema)


class _Key(PartitionKey):
    """A partition, where pyiceberg refuses a spec with two fields of one column."""

    @cached_property
    def partition(self) -> Record:
        """Its values, as manifests have them."""
        return Record(
            *(
                partition_record_value(one.field, one.value, self.schema)
                for one in self.field_values
            )
        )


def _source(rows: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """Give the column of a field, which may lie within structs: null where one of them is."""
    path = schema.accessor_for_field(field_id)
    column, accessor = rows.column(path.position), path.inner
    while accessor is not None:
        column = pc.struct_field(column, [accessor.position])
        accessor = accessor.inner
    return column


def _comparable(values: pa.Array) -> pa.Array:
    """Give what can be grouped, and is equal where partitions are."""
    if isinstance(values, pa.ExtensionArray):  # uuid
        values = values.storage
    bits = _BITS.get(values.type)
    if bits is None:
        return values
    one_nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), one_nan, values).view(bits)
