"""What a scan has to read: pruning by partitions and statistics, and the deletes of each file.

pyiceberg's evaluators decide; its own planning reads no format version 3, and knows no keys.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
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
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata as PyTableMetadata
from pyiceberg.typedef import Record

from modcrypt.errors import FormatError
from modcrypt.iceberg.deletes import DeleteIndex
from modcrypt.iceberg.manifests import FileEntry, ManifestFile
from modcrypt.iceberg.table_metadata import Snapshot
from modcrypt.iceberg.walk import Walk

__all__ = ["PlannedFile", "Planner", "as_data_file"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file that is to be read, and the delete files that apply to it."""

    data: FileEntry
    deletes: list[FileEntry]


class Planner:
    """Finds the files of a snapshot that may have rows for a filter.

    Args:
        walk: through the table.
        table: its metadata, as pyiceberg has it, with the schema that the filter is for.
        row_filter: an expression, not bound yet.
    """

    def __init__(self, walk: Walk, table: PyTableMetadata, row_filter: BooleanExpression) -> None:
        self._walk, self._table, self._filter = walk, table, row_filter
        self._partition_filters: dict[int, BooleanExpression] = {}

    def files(self, snapshot: Snapshot) -> list[PlannedFile]:
        """Give the data files, in the order of the manifests.

        Raises:
            ModcryptError: a manifest can't be had, or is not what was written.
        """
        manifests = self._walk.manifests(snapshot)
        data = [
            entry
            for one in manifests
            if one.content == 0 and self._may_match(one)
            for entry in self._live(one)
            if self._file_may_match(entry)
        ]
        if not data:
            return []
        deletes = DeleteIndex(
            self._walk,
            (entry for one in manifests if one.content == 1 for entry in self._live(one)),
        )
        return [PlannedFile(entry, deletes.of(entry)) for entry in data]

    def _live(self, manifest: ManifestFile) -> Iterator[FileEntry]:
        return (entry for entry in self._walk.entries(manifest) if entry.is_live)

    # --- pruning --------------------------------------------------------------------------------

    def _may_match(self, manifest: ManifestFile) -> bool:
        if self._is_all:
            return True
        spec = self._spec(manifest.spec_id)
        evaluate = manifest_evaluator(spec, self._schema, self._partition_filter(manifest.spec_id))
        return evaluate(_as_manifest(manifest))

    def _file_may_match(self, entry: FileEntry) -> bool:
        if self._is_all:
            return True
        file = as_data_file(entry)
        partition_type = self._spec(entry.spec_id).partition_type(self._schema)
        evaluate = expression_evaluator(
            Schema(*partition_type.fields), self._partition_filter(entry.spec_id), True
        )
        return evaluate(file.partition) and self._metrics.eval(file)

    @property
    def _is_all(self) -> bool:
        return isinstance(self._filter, AlwaysTrue)

    @property
    def _schema(self) -> Schema:
        return self._table.schema()

    @cached_property
    def _metrics(self) -> _InclusiveMetricsEvaluator:
        return _InclusiveMetricsEvaluator(self._schema, self._filter)

    def _partition_filter(self, spec_id: int) -> BooleanExpression:
        if spec_id not in self._partition_filters:
            project = inclusive_projection(self._schema, self._spec(spec_id))
            self._partition_filters[spec_id] = project(self._filter)
        return self._partition_filters[spec_id]

    def _spec(self, spec_id: int) -> Any:
        spec = self._table.specs().get(spec_id)
        if spec is None:
            raise FormatError(f"{self._walk.metadata.name}: there is no partition spec {spec_id}")
        return spec


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


def as_data_file(
    entry: FileEntry, location: str | None = None, file_format: str | None = None
) -> DataFile:
    """Give a file as pyiceberg has it, without its key.

    Args:
        entry: the file.
        location, file_format: to be used in the place of its own.
    """
    maps: dict[str, Any] = {name: _as_map(entry.file.get(name)) for name in _MAPS}
    file = DataFile.from_args(
        content=DataFileContent(entry.content),
        file_path=entry.location if location is None else location,
        file_format=FileFormat(file_format or entry.file_format),
        partition=Record(*(_internal(one) for one in entry.partition.values())),
        record_count=entry.record_count,
        file_size_in_bytes=entry.size,
        **maps,
    )
    file.spec_id = entry.spec_id
    return file


def _as_map(pairs: list[Mapping[str, Any]] | None) -> dict[int, Any] | None:
    return None if pairs is None else {one["key"]: one["value"] for one in pairs}


_EPOCH = datetime.date(1970, 1, 1)


def _internal(value: Any) -> Any:
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
