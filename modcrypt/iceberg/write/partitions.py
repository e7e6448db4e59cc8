"""Split rows by their partitions, with the transforms of pyiceberg.

pyiceberg's own grouping compares values and is therefore wrong for some: 0.0 and -0.0, which are
two partitions in Iceberg, each got the rows of both, and NaN, which is unlike itself, got no rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TimeTransform, Transform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.read.equality_deletes import comparable
from modcrypt.runtime.fork_safety import cached_property

_ROW = "row"


def split_by_partition(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[pa.Table, PartitionKey]]:
    """Yield the rows of each partition, and the partition; the columns are in the schema's order.

    Raise FormatError if the spec does not fit the schema, or has an unknown transform.
    """
    values = [_transform(rows, field, schema) for field in spec.fields]
    values = [
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for column in values
    ]
    names = [f"k{number}" for number in range(len(values))]
    number = pa.array(range(rows.num_rows), pa.int64())
    keys = pa.table([*(comparable(column) for column in values), number], [*names, _ROW])
    grouped = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    stored = [_as_stored(column) for column in values]
    for taken in grouped.column(f"{_ROW}_list"):
        first = taken.values[0].as_py()
        field_values = [
            PartitionFieldValue(field, column[first].as_py())
            for field, column in zip(spec.fields, stored, strict=True)
        ]
        yield rows.take(taken.values).combine_chunks(), _Key(field_values, spec, schema)


class _Key(PartitionKey):
    """A partition with values in the form of manifests.

    pyiceberg would convert them, but it cannot convert nanoseconds or buckets of times, and it
    rejects a spec with two fields of one column.
    """

    @cached_property
    def partition(self) -> Record:
        """The partition values in the form of manifests."""
        return Record(*(field.value for field in self.field_values))


_WIDTHS = range(1, 1 << 31)


def _transform(rows: pa.Table, field: PartitionField, schema: Schema) -> Any:
    """Return the values of a partition field; the column of a `void` one may be dropped."""
    transform = field.transform
    if isinstance(transform, VoidTransform):
        return pa.nulls(rows.num_rows)
    width = getattr(transform, "num_buckets", getattr(transform, "width", 1))
    if width not in _WIDTHS:  # pyiceberg's Rust panics, which `except Exception` does not catch
        raise FormatError(
            f"the table is partitioned by {transform}, which is not a valid transform"
        )
    with as_format_errors("the table's partition spec"):
        kind = schema.find_type(field.source_id)
        source = _source_column(rows, schema, field.source_id)
        if pa.types.is_timestamp(source.type) and not isinstance(transform, IdentityTransform):
            source = _floor(source, transform)
        values = transform.pyarrow_transform(kind)(source)
    if isinstance(kind, DecimalType):
        _check_digits(values, field, kind)
    return values


def _check_digits(values: Any, field: PartitionField, kind: DecimalType) -> None:
    """Raise ValueError if a value, truncated to a multiple below it, has too many digits."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:  # its message contains the value
        raise ValueError(
            f"the partition {field.name} has a value whose {field.transform} has more digits than "
            f"{kind}; widen the column, or change the partitioning"
        ) from None


def _floor(times: pa.ChunkedArray, transform: Transform[Any, Any]) -> pa.ChunkedArray:
    """Return times in microseconds, and in whole hours if the transform ignores fractions of them.

    pyiceberg's Rust rounds fractions of times before 1970 up: to another bucket, or the next day.
    """
    floored = pc.floor_temporal(times, unit="microsecond").cast(pa.timestamp("us", times.type.tz))
    return (
        pc.floor_temporal(floored, unit="hour") if isinstance(transform, TimeTransform) else floored
    )


def _source_column(rows: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """Return the column of a field, which may be within structs: null if one of them is null."""
    path = schema.accessor_for_field(field_id)
    column, accessor = rows.column(path.position), path.inner
    while accessor is not None:
        column = pc.struct_field(column, [accessor.position])
        accessor = accessor.inner
    return column


def _as_stored(values: pa.Array) -> pa.Array:
    """Return values in the form of manifests: dates and times become numbers."""
    if isinstance(values, pa.ExtensionArray):  # uuid
        return values.storage
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values
