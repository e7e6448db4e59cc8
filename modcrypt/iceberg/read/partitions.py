"""Rows told apart by their partitions, with the transforms of pyiceberg.

Not by pyiceberg's own grouping, which compares values: 0.0 and -0.0, two partitions to Iceberg,
each got the rows of both, and NaN, unlike itself, those of none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import Record

from modcrypt.errors import FormatError
from modcrypt.fork_safety import cached_property
from modcrypt.iceberg.format.library_errors import as_format_errors

__all__ = ["by_partition", "comparable"]

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

    Raises:
        FormatError: the spec does not fit the schema, or has a transform that is not known.
    """
    values = [_transformed(rows, one, schema) for one in spec.fields]
    values = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in values]
    names = [f"k{number}" for number in range(len(values))]
    number = pa.array(range(rows.num_rows), pa.int64())
    keys = pa.table([*(comparable(one) for one in values), number], [*names, _ROW])
    grouped = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    stored = [_as_stored(one) for one in values]
    for taken in grouped.column(f"{_ROW}_list"):
        first = taken.values[0].as_py()
        told = [
            PartitionFieldValue(field, one[first].as_py())
            for field, one in zip(spec.fields, stored, strict=True)
        ]
        yield rows.take(taken.values).combine_chunks(), _Key(told, spec, schema)


class _Key(PartitionKey):
    """A partition by values as manifests have them.

    pyiceberg would convert them, but not nanoseconds nor buckets of times, and refuses a spec with
    two fields of one column.
    """

    @cached_property
    def partition(self) -> Record:
        """Its values, as manifests have them."""
        return Record(*(one.value for one in self.field_values))


_WIDTHS = range(1, 1 << 31)


def _transformed(rows: pa.Table, field: PartitionField, schema: Schema) -> Any:
    """Give the values of a partition field."""
    transform = field.transform
    width = getattr(transform, "num_buckets", getattr(transform, "width", 1))
    if width not in _WIDTHS:  # pyiceberg's Rust panics, which no `except Exception` ends
        raise FormatError(f"the table is partitioned by {transform}: there is no such transform")
    with as_format_errors("the table's partition spec"):
        kind, source = schema.find_type(field.source_id), _source(rows, schema, field.source_id)
        if isinstance(transform, HourTransform) and pa.types.is_timestamp(source.type):
            # pyiceberg's Rust has no hours of nanoseconds.
            source = pc.floor_temporal(source, unit="hour").cast(pa.timestamp("us", source.type.tz))
        return transform.pyarrow_transform(kind)(source)


def _source(rows: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """Give the column of a field, which may lie within structs: null where one of them is."""
    path = schema.accessor_for_field(field_id)
    column, accessor = rows.column(path.position), path.inner
    while accessor is not None:
        column = pc.struct_field(column, [accessor.position])
        accessor = accessor.inner
    return column


def _as_stored(values: pa.Array) -> pa.Array:
    """Give values as manifests have them: of times, what they count."""
    if isinstance(values, pa.ExtensionArray):  # uuid
        return values.storage
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values


def comparable(values: pa.Array) -> pa.Array:
    """Give what can be grouped, and is equal where Iceberg's Java takes values for equal."""
    if isinstance(values, pa.ExtensionArray):  # uuid
        values = values.storage
    bits = _BITS.get(values.type)
    if bits is None:
        return values
    one_nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), one_nan, values).view(bits)
