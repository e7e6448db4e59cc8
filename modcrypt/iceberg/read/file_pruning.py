"""Prune manifests and data files by their partitions and statistics, as pyiceberg's evaluators do.

These evaluators take pyiceberg's classes and assume its writers. Bounds and values of other writers
are converted or widened first, so that no file with matching rows is lost. Comparisons with the
bounds are bound once, and evaluated for many files before these become objects; pyiceberg evaluates
other predicates.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    Or,
)
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluationVisitor,
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    rewrite_not,
    visit,
)
from pyiceberg.manifest import ManifestFile as PyManifestFile
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from modcrypt.iceberg.format.avro_rows import read_decimal
from modcrypt.iceberg.format.manifest_rows.entry_plan import (
    LOWER,
    RECORDS,
    SLOTS,
    STATISTICS,
    UPPER,
    Values,
    find_statistic,
    find_statistics,
    lacks_values,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile


class SpecFilter:
    """The partitions of a spec, and the projection of a filter on them."""

    def __init__(self, spec: PartitionSpec, schema: Schema, row_filter: BooleanExpression) -> None:
        self._spec = spec
        self._type: StructType = spec.partition_type(schema)
        # In version 1, removed fields remain as `void`.
        transforms = [field.transform for field in spec.fields]
        self.is_unpartitioned = all(isinstance(each, VoidTransform) for each in transforms)
        try:
            projected = inclusive_projection(schema, spec)(row_filter)
        except OverflowError:  # beyond the range of Python's dates
            projected = AlwaysTrue()
        self._matches = expression_evaluator(Schema(*self._type.fields), projected, True)
        self._matches_in = manifest_evaluator(spec, schema, projected)
        sources = schema._lazy_id_to_field
        self._misplaced = {
            field.field_id: _misplaced_values(field.transform, sources.get(field.source_id))
            for field in spec.fields
        }

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Return whether a manifest may have matching files, by its partition summaries."""
        py_manifest = _as_manifest(manifest, self._type)
        may_be_misplaced = any(
            _overlaps(summary.lower_bound, summary.upper_bound, ranges)
            for summary, ranges in zip(
                py_manifest.partitions or (), self._misplaced.values(), strict=False
            )
        )
        return may_be_misplaced or self._matches_in(py_manifest)

    def partition_may_match(self, values: Mapping[int, Any]) -> bool:
        """Return whether the files of a partition may match; true if the partition is unknown.

        `values` are those of `FileEntry.partition_by_id`.
        """
        if any(field.field_id not in values for field in self._type.fields):
            return True
        for id_, ranges in self._misplaced.items():
            value = values[id_]  # to look for another type in a range is to try all its numbers
            if isinstance(value, int) and any(value in each for each in ranges):
                return True
        return self._matches(Record(*self._values(values)))

    def of(self, entry: FileEntry) -> Any:
        """Return a value that is equal for two files exactly if they are in the same partition.

        The text of a float equals that of the same NaN, and differs for 0.0 and -0.0.
        """
        values = self._values(entry.partition_by_id)
        return tuple(repr(value) if isinstance(value, float) else value for value in values)

    def _values(self, values: Mapping[int, Any]) -> list[Any]:
        return [_as_type(values.get(kind.field_id), kind.field_type) for kind in self._type.fields]

    def constants(self, values: Mapping[int, Any]) -> Mapping[int, Any]:
        """Return the values of a file's columns that its partition contains unchanged.

        `values` are those of `FileEntry.partition_by_id`.
        """
        return {
            field.source_id: _as_type(values.get(field.field_id), kind.field_type)
            for field, kind in zip(self._spec.fields, self._type.fields, strict=True)
            if isinstance(field.transform, IdentityTransform)
            and values.get(field.field_id) is not None
        }


def _misplaced_values(transform: Any, source: NestedField | None) -> tuple[range, ...]:
    """Return the values of the partitions of a column, if any, that may have rows of another one.

    The smallest numbers of a type have no multiple of the width below them: in Java the result
    wraps to the greatest number of the type, or one near it. A column of longs may have been one of
    ints. pyiceberg 0.12 puts the last second of a day before 1970 into the next day.
    """
    kind = None if source is None else source.field_type
    if isinstance(transform, DayTransform) and not isinstance(kind, DateType):
        return (range(-(1 << 31), 1),)
    if not isinstance(transform, TruncateTransform):
        return ()
    is_int, is_long = isinstance(kind, IntegerType), isinstance(kind, LongType)
    bits = [31, 63] if is_long else [31] if is_int else []
    return tuple(range((1 << each) - transform.width + 1, 1 << each) for each in bits)


def _overlaps(lower: bytes | None, upper: bytes | None, ranges: tuple[range, ...]) -> bool:
    """Return whether values within bounds may be in one of some ranges."""
    if not (ranges and lower and upper):
        return False
    first, last = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
    return any(first < each.stop and last >= each.start for each in ranges)


Test = Callable[[list[Values]], list[bool]]
"""A function that returns which files may have matching rows, by the values of their entries."""


def bind_test(schema: Schema, row_filter: BooleanExpression) -> Test:
    """Return a test of files that agrees with pyiceberg's evaluator of inclusive metrics."""
    test = _make_test(schema, bind(schema, rewrite_not(row_filter), True))

    def may_match(rows: list[Values]) -> list[bool]:
        if 0 not in [values[RECORDS] for values in rows]:
            return test(rows)
        return [values[RECORDS] > 0 and test([values])[0] for values in rows]

    return may_match


def statistics_of(entry: FileEntry) -> Values:
    """Return the values of an entry that tests need."""
    values: Values = [None] * SLOTS
    values[RECORDS] = entry.record_count
    for name, slot in STATISTICS.items():
        values[slot] = entry.file.get(name)
    return values


def _make_test(schema: Schema, bound: BooleanExpression) -> Test:
    if isinstance(bound, And | Or):
        left, right = _make_test(schema, bound.left), _make_test(schema, bound.right)
        # Both are evaluated: damaged bounds are always an error.
        both = operator.and_ if isinstance(bound, And) else operator.or_
        return lambda rows: list(map(both, left(rows), right(rows)))
    kind = type(bound)
    if isinstance(bound, BoundLiteralPredicate) and kind in _REFUSED:
        column, value = bound.term.ref().field, bound.literal.value
        if not isinstance(column.field_type, FloatType | DoubleType):  # these may be NaN
            return _Comparison(column.field_id, column.field_type, value, _REFUSED[kind])
    visitor: Callable[[Any], Any] = _InclusiveMetricsEvaluationVisitor
    return lambda rows: [
        bool(visit(bound, visitor(FileStatistics(values, schema)))) for values in rows
    ]


_REFUSED: dict[Any, tuple[tuple[int, Callable[[Any, Any], bool]], ...]] = {
    BoundLessThan: ((LOWER, operator.ge),),
    BoundLessThanOrEqual: ((LOWER, operator.gt),),
    BoundGreaterThan: ((UPPER, operator.le),),
    BoundGreaterThanOrEqual: ((UPPER, operator.lt),),
    BoundEqualTo: ((LOWER, operator.gt), (UPPER, operator.lt)),
}
"""Relations of bounds to the literal of a comparison that no row of a file can then satisfy."""


class _Comparison:
    """A test of a comparison of a column with a literal."""

    def __init__(
        self, column: int, kind: IcebergType, literal: Any,
        refused: tuple[tuple[int, Callable[[Any, Any], bool]], ...],
    ) -> None:  # fmt: skip
        self._column, self._kind, self._literal, self._refused = column, kind, literal, refused
        self._read: Callable[[Any, bytes], Any] = from_bytes.dispatch(type(kind))

    def __call__(self, rows: list[Values]) -> list[bool]:
        column = self._column
        try:
            refused = self._are_refused(rows)
        except Exception:  # perhaps by bounds that do not count: those of a column without values
            return [
                not lacks_values(values, column) and not self._are_refused([values])[0]
                for values in rows
            ]
        return [
            not by_bounds and not lacks_values(values, column)
            for values, by_bounds in zip(rows, refused, strict=True)
        ]

    def _are_refused(self, rows: list[Values]) -> list[bool]:
        """Return which files have bounds that no matching row can have."""
        read, kind, literal = self._read, self._kind, self._literal
        refused = [False] * len(rows)
        for slot, refuses in self._refused:
            bounds = find_statistics(rows, slot, self._column)
            if (numbers := _unpack_numbers(bounds, kind)) is not None:
                by_slot = map(refuses, numbers, itertools.repeat(literal))
                refused = list(map(operator.or_, refused, by_slot))
                continue
            refused = [
                known or (bound is not None and refuses(read(kind, _widen(bound, kind)), literal))
                for known, bound in zip(refused, bounds, strict=True)
            ]
        return refused


_FORMS: dict[type[IcebergType], tuple[str, int]] = {
    IntegerType: ("i", 4), DateType: ("i", 4), LongType: ("q", 8), TimestampType: ("q", 8),
    TimestamptzType: ("q", 8),
}  # fmt: skip
"""Forms of numbers for `struct`, and their sizes in bytes."""


def _unpack_numbers(bounds: list[Any], kind: IcebergType) -> tuple[int, ...] | None:
    """Return the numbers of all bounds at once; None if one is none of the usual size."""
    form, size = _FORMS.get(type(kind), ("", 0))
    if not form or None in bounds or set(map(len, bounds)) != {size}:
        return None
    return struct.unpack(f"<{len(bounds)}{form}", b"".join(bounds))


_DAY = 86_400_000_000  # a day in microseconds


def _widen(bound: bytes, kind: IcebergType) -> bytes:
    """Return a bound in the type of its column; dates may have become timestamps since."""
    # pyiceberg widens bounds of other types.
    if not isinstance(kind, TimestampType) or len(bound) != 4:
        return bound
    days = int.from_bytes(bound, "little", signed=True)
    return min(max(days * _DAY, -1 << 63), (1 << 63) - 1).to_bytes(8, "little", signed=True)


class FileStatistics:
    """The statistics of a file under pyiceberg's names, by the entry's values."""

    def __init__(self, values: Values, schema: Schema) -> None:
        self.record_count = values[RECORDS]
        for name, slot in STATISTICS.items():
            setattr(self, name, None if values[slot] is None else _ByColumn(values, slot, schema))


class _ByColumn:
    """A statistic by the ids of columns."""

    def __init__(self, values: Values, slot: int, schema: Schema) -> None:
        self._values, self._slot, self._schema = values, slot, schema

    def get(self, column: int) -> Any:
        found = find_statistic(self._values, self._slot, column)
        return _widen(found, self._schema.find_type(column)) if isinstance(found, bytes) else found

    def __contains__(self, column: int) -> bool:
        return self.get(column) is not None


def _as_manifest(manifest: ManifestFile, partition: StructType) -> PyManifestFile:
    kinds = (field.field_type for field in partition.fields)
    summaries = []
    for summary, kind in zip(manifest.row.get("partitions") or (), kinds, strict=False):
        lower, upper = _bounds(summary.get("lower_bound"), summary.get("upper_bound"), kind)
        nulls = {name: summary.get(name) for name in ("contains_null", "contains_nan")}
        summaries.append(
            PartitionFieldSummary.from_args(**nulls, lower_bound=lower, upper_bound=upper)
        )
    return PyManifestFile.from_args(
        manifest_path=manifest.location,
        partition_spec_id=manifest.spec_id,
        partitions=summaries or None,
    )


def _bounds(lower: Any, upper: Any, kind: IcebergType) -> tuple[Any, Any]:
    """Return bounds by which pyiceberg may safely prune a manifest."""
    is_uuid = isinstance(kind, UUIDType) and isinstance(lower, bytes) and isinstance(upper, bytes)
    if not is_uuid:
        return _narrow(lower, kind), _narrow(upper, kind)
    # Java compares a uuid as two signed numbers of 64 bits, others compare its bytes: if the first
    # numbers have the same sign, the orders differ only in the second number.
    first, last = lower[:8], upper[:8]
    return (first + bytes(8), last + _LAST) if first <= last else (bytes(16), 2 * _LAST)


_LAST = b"\xff" * 8


def _narrow(bound: Any, kind: IcebergType) -> Any:
    """Return a bound in the type of an older snapshot's schema, before the type was widened."""
    if isinstance(bound, bytes) and len(bound) == 8:
        if isinstance(kind, IntegerType):
            return bound[:4]
        if isinstance(kind, FloatType):
            return struct.pack("<f", *struct.unpack("<d", bound))
    return bound


def _as_type(value: Any, kind: IcebergType) -> Any:
    """Convert a value of Avro, which has no logical types here, to pyiceberg's form."""
    if isinstance(value, bytes) and isinstance(kind, DecimalType):
        return read_decimal(value, kind.scale)
    if isinstance(value, str) and isinstance(kind, UUIDType):
        return bytes.fromhex(value.replace("-", ""))
    return value
