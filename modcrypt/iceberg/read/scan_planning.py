"""What a scan has to read: pruning by partitions and statistics, and the deletes of each file.

pyiceberg's evaluators decide; its own planning reads no format version 3, and knows no keys.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, PartitionFieldSummary
from pyiceberg.manifest import ManifestFile as PyManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StructType,
    UUIDType,
)

from modcrypt.errors import FormatError
from modcrypt.fork_safety import cached_property
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import DATA, DELETES, FileEntry, ManifestFile
from modcrypt.iceberg.format.pyiceberg_schemas import spec_of
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.read.position_deletes import DeleteIndex, EqualityDeletes
from modcrypt.iceberg.read.table_walk import Walk

__all__ = ["PlannedFile", "Planner", "as_data_file", "internal_value"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file that is to be read.

    Attributes:
        data: the file.
        deletes: the delete files of positions that apply to it.
        equality: the equality deletes of which some apply to it.
        constants: values of columns that are the same in all its rows, by field id.
    """

    data: FileEntry
    deletes: list[FileEntry]
    equality: list[EqualityDeletes]
    constants: Mapping[int, Any]


class Planner:
    """Finds the files of a snapshot that may have rows for a filter.

    Args:
        walk: through the table.
        schema: that the filter is for.
        row_filter: an expression, not bound yet.
    """

    def __init__(self, walk: Walk, schema: Schema, row_filter: BooleanExpression) -> None:
        self._walk, self._schema, self._filter = walk, schema, row_filter
        self._specs: dict[int, _SpecFilter] = {}

    def files(self, snapshot: Snapshot) -> list[PlannedFile]:
        """Give the data files, in the order of the manifests.

        Raises:
            ModcryptError: a manifest can't be had, or is not what was written.
            OSError: from the file system.
        """
        every = self._walk.manifests(snapshot)
        manifests = [one for one in every if self._may_match(one)]
        self._check_pruned(every, manifests)
        data = [
            entry
            for one in manifests
            if one.content == DATA
            for entry in self._live(one)
            if self._file_may_match(entry)
        ]
        if not data:
            return []
        # A delete file has the partition of the data files that it applies to, or an unpartitioned
        # spec, of which nothing is pruned: so pruning its manifest is safe. Its statistics are of
        # positions, or of what rows were when they were deleted by only some of their columns.
        deletes = DeleteIndex(
            self._walk,
            self._spec,
            (entry for one in manifests if one.content == DELETES for entry in self._live(one)),
            oldest=min(one.sequence_number or 0 for one in data),
        )
        return [
            PlannedFile(one, deletes.of(one), deletes.equality_of(one), self._constants(one))
            for one in data
        ]

    def _check_pruned(self, every: list[ManifestFile], kept: list[ManifestFile]) -> None:
        """Check the specs by which manifests were pruned; those of manifests are when it is read.

        metadata.json, which nothing signs, could have another one, for rows to be missing.
        """
        checked = {one.spec_id for one in kept if one.content == DATA}
        pruned = {one.location for one in every} - {one.location for one in kept}
        self._walk.check_specs(
            one for one in every if one.location in pruned and one.spec_id not in checked
        )

    def _live(self, manifest: ManifestFile) -> Iterator[FileEntry]:
        return (entry for entry in self._walk.entries(manifest) if entry.is_live)

    # --- pruning --------------------------------------------------------------------------------

    def _may_match(self, manifest: ManifestFile) -> bool:
        if self._is_all:
            return True
        with as_format_errors(manifest.location):
            return self._spec(manifest.spec_id).manifest_may_match(manifest)

    def _file_may_match(self, entry: FileEntry) -> bool:
        if entry.content != DATA:
            raise FormatError(f"{entry.location}: a data manifest has a file that is no data file")
        if self._is_all:
            return True
        with as_format_errors(entry.location):
            spec = self._spec(entry.spec_id)
            return spec.file_may_match(entry) and self._metrics.eval(as_data_file(entry))

    def _constants(self, entry: FileEntry) -> Mapping[int, Any]:
        with as_format_errors(entry.location):
            return self._spec(entry.spec_id).constants(entry)

    @property
    def _is_all(self) -> bool:
        return isinstance(self._filter, AlwaysTrue)

    @cached_property
    def _metrics(self) -> _InclusiveMetricsEvaluator:
        return _InclusiveMetricsEvaluator(self._schema, self._filter)

    def _spec(self, spec_id: int) -> _SpecFilter:
        if spec_id not in self._specs:
            spec = spec_of(self._walk.metadata, spec_id)
            self._specs[spec_id] = _SpecFilter(spec, self._schema, self._filter)
        return self._specs[spec_id]


class _SpecFilter:
    """A spec's partitions, and a filter, as far as it is one of them."""

    def __init__(self, spec: PartitionSpec, schema: Schema, row_filter: BooleanExpression) -> None:
        self._spec = spec
        self._type: StructType = spec.partition_type(schema)
        # Whose fields were removed in version 1 has them still, as `void`.
        self.is_unpartitioned = all(isinstance(one.transform, VoidTransform) for one in spec.fields)
        try:
            projected = inclusive_projection(schema, spec)(row_filter)
        except OverflowError:  # of Python's dates: the day before the first, or after the last
            projected = AlwaysTrue()
        partition_schema = Schema(*self._type.fields)
        self._matches: Callable[[Record], bool] = expression_evaluator(
            partition_schema, projected, True
        )
        self._matches_in: Callable[[PyManifestFile], bool] = manifest_evaluator(
            spec, schema, projected
        )
        self._wrapped = {
            one.field_id: _wrapped_from(one.transform, kind.field_type)
            for one, kind in zip(spec.fields, self._type.fields, strict=True)
        }

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Tell by what a manifest's row says of the partitions of its files."""
        told = _as_manifest(manifest, self._type)
        for one, least in zip(told.partitions or (), self._wrapped.values(), strict=False):
            if least is None or not one.upper_bound:
                continue
            if int.from_bytes(one.upper_bound, "little", signed=True) >= least:
                return True
        return self._matches_in(told)

    def file_may_match(self, entry: FileEntry) -> bool:
        """Tell by the partition of a file; one that is not told may match."""
        values = entry.partition_by_id
        if any(one.field_id not in values for one in self._type.fields):
            return True
        for id_, least in self._wrapped.items():
            if least is not None and isinstance(values[id_], int) and values[id_] >= least:
                return True
        return self._matches(
            Record(*(_as_type(values[one.field_id], one.field_type) for one in self._type.fields))
        )

    def of(self, entry: FileEntry) -> Any:
        """Give what is equal of two files in one partition, and of no others."""
        values = entry.partition_by_id
        return tuple(
            _comparable(_as_type(values.get(one.field_id), one.field_type))
            for one in self._type.fields
        )

    def constants(self, entry: FileEntry) -> Mapping[int, Any]:
        """Give the values of a file's columns that its partition is made of as they are."""
        values = entry.partition_by_id
        return {
            one.source_id: _as_type(values.get(one.field_id), kind.field_type)
            for one, kind in zip(self._spec.fields, self._type.fields, strict=True)
            if isinstance(one.transform, IdentityTransform) and values.get(one.field_id) is not None
        }


def _wrapped_from(transform: Any, kind: IcebergType) -> int | None:
    """Give from where on a partition's value may stand for the least numbers of its type.

    These have no multiple below them: to Java it is the greatest number of the type, or one near.
    """
    if not isinstance(transform, TruncateTransform) or not isinstance(kind, IntegerType | LongType):
        return None
    return (1 << (31 if isinstance(kind, IntegerType) else 63)) - transform.width + 1


# --- as pyiceberg has them -----------------------------------------------------------------------


def _as_manifest(manifest: ManifestFile, partition: StructType) -> PyManifestFile:
    kinds = (one.field_type for one in partition.fields)
    summaries = []
    for one, kind in zip(manifest.row.get("partitions") or (), kinds, strict=False):
        lower, upper = _bounds(one.get("lower_bound"), one.get("upper_bound"), kind)
        told = {"contains_null": one.get("contains_null"), "contains_nan": one.get("contains_nan")}
        summaries.append(
            PartitionFieldSummary.from_args(**told, lower_bound=lower, upper_bound=upper)
        )
    return PyManifestFile.from_args(
        manifest_path=manifest.location,
        partition_spec_id=manifest.spec_id,
        partitions=summaries or None,
    )


def _bounds(lower: Any, upper: Any, kind: IcebergType) -> tuple[Any, Any]:
    """Give bounds by which pyiceberg, too, may leave out a manifest."""
    is_uuid = isinstance(kind, UUIDType) and isinstance(lower, bytes) and isinstance(upper, bytes)
    if not is_uuid:
        return _narrowed(lower, kind), _narrowed(upper, kind)
    # To Java a uuid is two signed numbers of 64 bits, to others its bytes: within one half of the
    # first number's range the orders differ in the second number alone.
    first, last = lower[:8], upper[:8]
    return (first + bytes(8), last + _LAST) if first <= last else (bytes(16), 2 * _LAST)


_LAST = b"\xff" * 8


def _narrowed(bound: Any, kind: IcebergType) -> Any:
    """Give a bound of a type as it is in the schema of an older snapshot, before it was widened."""
    if isinstance(bound, bytes) and len(bound) == 8:
        if isinstance(kind, IntegerType):
            return bound[:4]
        if isinstance(kind, FloatType):
            return struct.pack("<f", *struct.unpack("<d", bound))
    return bound


_MAPS = (
    "column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds",
    "upper_bounds",
)  # fmt: skip


def as_data_file(entry: FileEntry) -> DataFile:
    """Give a file as pyiceberg has it, without its key."""
    maps: dict[str, Any] = {name: _as_map(entry.file.get(name)) for name in _MAPS}
    file = DataFile.from_args(
        content=DataFileContent(entry.content),
        file_path=entry.location,
        file_format=FileFormat(entry.file_format),
        partition=Record(*(internal_value(one) for one in entry.partition.values())),
        record_count=entry.record_count,
        file_size_in_bytes=entry.size,
        **maps,
    )
    file.spec_id = entry.spec_id
    return file


def _as_map(pairs: list[Mapping[str, Any]] | None) -> dict[int, Any] | None:
    return None if pairs is None else {one["key"]: one["value"] for one in pairs}


def _as_type(value: Any, kind: IcebergType) -> Any:
    """Give a value of Avro, which has no logical types there, as pyiceberg keeps it."""
    if isinstance(value, bytes) and isinstance(kind, DecimalType):
        unscaled = int.from_bytes(value, "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-kind.scale, decimal.Context(prec=80))
    if isinstance(value, str) and isinstance(kind, UUIDType):
        return bytes.fromhex(value.replace("-", ""))
    return value


def _comparable(value: Any) -> Any:
    """Give what is equal where partitions are: NaN equals itself, 0.0 is another than -0.0."""
    return repr(value) if isinstance(value, float) else value


_EPOCH = datetime.date(1970, 1, 1)


def internal_value(value: Any) -> Any:
    """Give a partition's value as pyiceberg keeps it: days and microseconds, not dates."""
    if isinstance(value, datetime.datetime):
        return _micros(value)
    if isinstance(value, datetime.date):
        return (value - _EPOCH).days
    if isinstance(value, datetime.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1_000_000 + value.microsecond
    return value


def _micros(value: datetime.datetime) -> int:
    zone = value.tzinfo or datetime.UTC
    since = value.replace(tzinfo=zone) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)
