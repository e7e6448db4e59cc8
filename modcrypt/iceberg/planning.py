"""What a scan has to read: pruning by partitions and statistics, and the deletes of each file.

pyiceberg's evaluators decide; its own planning reads no format version 3, and knows no keys.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
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
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType, StructType, UUIDType

from modcrypt.errors import FormatError
from modcrypt.iceberg.deletes import DeleteIndex
from modcrypt.iceberg.foreign import as_format_errors
from modcrypt.iceberg.manifests import DATA, DELETES, FileEntry, ManifestFile
from modcrypt.iceberg.shapes import spec_of
from modcrypt.iceberg.table_metadata import Snapshot
from modcrypt.iceberg.walk import Walk

__all__ = ["PlannedFile", "Planner", "as_data_file", "internal_value"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file that is to be read.

    Attributes:
        data: the file.
        deletes: the delete files that apply to it.
        constants: values of columns that are the same in all its rows, by field id.
    """

    data: FileEntry
    deletes: list[FileEntry]
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
        manifests = [one for one in self._walk.manifests(snapshot) if self._may_match(one)]
        data = [
            entry
            for one in manifests
            if one.content == DATA
            for entry in self._live(one)
            if self._file_may_match(entry)
        ]
        if not data:
            return []
        # A delete file has the partition of the data files that it applies to, so that pruning
        # its manifest is safe. Its statistics are of positions.
        deletes = DeleteIndex(
            self._walk,
            (entry for one in manifests if one.content == DELETES for entry in self._live(one)),
        )
        return [PlannedFile(one, deletes.of(one), self._constants(one)) for one in data]

    def _live(self, manifest: ManifestFile) -> Iterator[FileEntry]:
        return (entry for entry in self._walk.entries(manifest) if entry.is_live)

    # --- pruning --------------------------------------------------------------------------------

    def _may_match(self, manifest: ManifestFile) -> bool:
        if self._is_all:
            return True
        with as_format_errors(manifest.location):
            return self._spec(manifest.spec_id).manifest_may_match(_as_manifest(manifest))

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
    """A filter, as far as it is one of the partitions of a spec."""

    def __init__(self, spec: PartitionSpec, schema: Schema, row_filter: BooleanExpression) -> None:
        self._spec = spec
        self._type: StructType = spec.partition_type(schema)
        projected = inclusive_projection(schema, spec)(row_filter)
        partition_schema = Schema(*self._type.fields)
        self._matches: Callable[[Record], bool] = expression_evaluator(
            partition_schema, projected, True
        )
        self.manifest_may_match: Callable[[PyManifestFile], bool] = manifest_evaluator(
            spec, schema, projected
        )

    def file_may_match(self, entry: FileEntry) -> bool:
        """Tell by the partition of a file; one that is not told may match."""
        values = entry.partition_by_id
        if any(one.field_id not in values for one in self._type.fields):
            return True
        return self._matches(
            Record(*(_as_type(values[one.field_id], one.field_type) for one in self._type.fields))
        )

    def constants(self, entry: FileEntry) -> Mapping[int, Any]:
        """Give the values of a file's columns that its partition is made of as they are."""
        values = entry.partition_by_id
        return {
            one.source_id: _as_type(values.get(one.field_id), kind.field_type)
            for one, kind in zip(self._spec.fields, self._type.fields, strict=True)
            if isinstance(one.transform, IdentityTransform) and values.get(one.field_id) is not None
        }


# --- as pyiceberg has them -----------------------------------------------------------------------


def _as_manifest(manifest: ManifestFile) -> PyManifestFile:
    row = manifest.row
    summaries = [
        PartitionFieldSummary.from_args(**{name: one.get(name) for name in _SUMMARY})
        for one in row.get("partitions") or ()
    ]
    return PyManifestFile.from_args(
        manifest_path=manifest.location,
        partition_spec_id=manifest.spec_id,
        partitions=summaries or None,
    )


_SUMMARY = ("contains_null", "contains_nan", "lower_bound", "upper_bound")
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
