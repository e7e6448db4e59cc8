"""Plan a scan: prune files by partitions and statistics, and find the deletes of each file.

pyiceberg's evaluators prune; its own planning does not support format version 3 or keys.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from modcrypt.iceberg.format.avro_rows import read_decimal
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import DATA, DELETES, FileEntry, ManifestFile
from modcrypt.iceberg.format.pyiceberg_schemas import spec_of
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.keys.key_resolver import is_sealed_metadata
from modcrypt.iceberg.read.position_deletes import DeleteIndex, EqualityDeletes
from modcrypt.iceberg.read.table_walk import KEYS_AHEAD, Walk
from modcrypt.runtime.fork_safety import cached_property


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file to read."""

    data: FileEntry
    deletes: Sequence[FileEntry]
    equality: Sequence[EqualityDeletes]
    constants: Mapping[int, Any]  # values of columns that are the same in all its rows, by field id
    first_row_id: int | None = None  # id of its first row, where the reader needs it


class Planner:
    """A planner that finds the files of a snapshot that may have rows for a filter."""

    def __init__(self, walk: Walk, schema: Schema, row_filter: BooleanExpression) -> None:
        self._walk, self._schema, self._filter = walk, schema, row_filter
        self._specs: dict[int, SpecFilter] = {}

    def files(self, snapshot: Snapshot) -> Iterator[PlannedFile]:
        """Yield the data files in the order of the manifests, each of which is read when needed.

        The manifest list is read at once. With manifests of delete files, all manifests are read
        before the first data file is yielded.
        """
        manifests = self.choose_manifests(self._walk.manifests(snapshot))
        data = self._data_files(manifest for manifest in manifests if manifest.content == DATA)
        # Pruning manifests of delete files is safe: a delete file has the partition of its data
        # files, or an unpartitioned spec, which is never pruned. Its statistics are not used: they
        # describe positions, or only some columns of the deleted rows.
        deletes = [manifest for manifest in manifests if manifest.content == DELETES]
        if not deletes:
            planned = (PlannedFile(file, (), (), self._constants(file)) for file in data)
            return self._with_keys(planned)
        found = (entry for manifest in deletes for entry in self._live(manifest))
        return self._with_keys(self.with_deletes(list(map(_Shortening(), data)), found))

    def _with_keys(self, files: Iterator[PlannedFile]) -> Iterator[PlannedFile]:
        """Yield files after their keys were requested together, if manifests have wrapped keys."""
        for first in files:
            if not is_sealed_metadata(first.data.key_metadata or b""):
                yield first
                continue
            group = [first, *itertools.islice(files, KEYS_AHEAD - 1)]
            self._walk.fetch_file_keys(file.data for file in group)
            yield from group

    def choose_manifests(self, every: list[ManifestFile]) -> list[ManifestFile]:
        """Return the manifests that may have matching files, or deletes of their rows."""
        manifests = [manifest for manifest in every if self._may_match(manifest)]
        self._check_pruned(every, manifests)
        return manifests

    def _data_files(self, manifests: Iterable[ManifestFile]) -> Iterator[FileEntry]:
        """Yield the data files of manifests that may have matching rows."""
        for manifest in manifests:
            for entry in self._live(manifest):
                if self.file_may_match(entry):
                    yield entry

    def with_deletes(
        self, data: Sequence[FileEntry], found: Iterable[FileEntry]
    ) -> Iterator[PlannedFile]:
        """Yield data files with the delete files among those found that apply to them."""
        if not data:
            return
        oldest = min(file.sequence_number or 0 for file in data)
        deletes = DeleteIndex(self._walk, self._spec, found, oldest)
        for file in data:
            yield PlannedFile(
                file, deletes.of(file), deletes.equality_of(file), self._constants(file)
            )

    def _check_pruned(self, every: list[ManifestFile], kept: list[ManifestFile]) -> None:
        """Check the specs by which manifests were pruned; other specs are checked when read.

        Nothing signs metadata.json: a forged spec could hide rows.
        """
        checked = {manifest.spec_id for manifest in kept if manifest.content == DATA}
        pruned = {manifest.location for manifest in every} - {
            manifest.location for manifest in kept
        }
        self._walk.check_specs(
            manifest
            for manifest in every
            if manifest.location in pruned and manifest.spec_id not in checked
        )

    def _live(self, manifest: ManifestFile) -> Iterator[FileEntry]:
        return (entry for entry in self._walk.entries(manifest) if entry.is_live)

    # --- pruning --------------------------------------------------------------------------------

    def _may_match(self, manifest: ManifestFile) -> bool:
        if self._is_all:
            return True
        with as_format_errors(manifest.location):
            return self._spec(manifest.spec_id).manifest_may_match(manifest)

    def file_may_match(self, entry: FileEntry) -> bool:
        """Return whether a data file may have matching rows, by its partition and statistics."""
        if entry.content != DATA:
            raise FormatError(
                f"{entry.location}: a data manifest has a file that is not a data file"
            )
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

    def _spec(self, spec_id: int) -> SpecFilter:
        if spec_id not in self._specs:
            spec = spec_of(self._walk.metadata, spec_id)
            self._specs[spec_id] = SpecFilter(spec, self._schema, self._filter)
        return self._specs[spec_id]


class _Shortening:
    """A function that drops what is no longer needed of data files: a table may have a million.

    Files of one partition share what is left, their partition values.
    """

    def __init__(self) -> None:
        self._shared: dict[str, Mapping[str, Any]] = {}

    def __call__(self, entry: FileEntry) -> FileEntry:
        # Not the values themselves: 0.0 equals -0.0, and 1 equals True.
        key = repr(entry.partition)
        return replace(entry, file=self._shared.setdefault(key, {"partition": entry.partition}))


class SpecFilter:
    """The partitions of a spec, and the projection of a filter on them."""

    def __init__(self, spec: PartitionSpec, schema: Schema, row_filter: BooleanExpression) -> None:
        self._spec = spec
        self._type: StructType = spec.partition_type(schema)
        # In version 1, removed fields remain as `void`.
        self.is_unpartitioned = all(
            isinstance(field.transform, VoidTransform) for field in spec.fields
        )
        try:
            projected = inclusive_projection(schema, spec)(row_filter)
        except OverflowError:  # beyond the range of Python's dates
            projected = AlwaysTrue()
        partition_schema = Schema(*self._type.fields)
        self._matches: Callable[[Record], bool] = expression_evaluator(
            partition_schema, projected, True
        )
        self._matches_in: Callable[[PyManifestFile], bool] = manifest_evaluator(
            spec, schema, projected
        )
        self._wrapped = {
            field.field_id: _first_wrapped(field.transform, kind.field_type)
            for field, kind in zip(spec.fields, self._type.fields, strict=True)
        }

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        """Return whether a manifest may have matching files, by its partition summaries."""
        py_manifest = _as_manifest(manifest, self._type)
        for summary, least in zip(
            py_manifest.partitions or (), self._wrapped.values(), strict=False
        ):
            if least is None or not summary.upper_bound:
                continue
            if int.from_bytes(summary.upper_bound, "little", signed=True) >= least:
                return True
        return self._matches_in(py_manifest)

    def file_may_match(self, entry: FileEntry) -> bool:
        """Return whether a file may match by its partition; true if the partition is unknown."""
        values = entry.partition_by_id
        if any(field.field_id not in values for field in self._type.fields):
            return True
        for id_, least in self._wrapped.items():
            if least is not None and isinstance(values[id_], int) and values[id_] >= least:
                return True
        return self._matches(
            Record(
                *(_as_type(values[field.field_id], field.field_type) for field in self._type.fields)
            )
        )

    def of(self, entry: FileEntry) -> Any:
        """Return a value that is equal for two files exactly if they are in the same partition."""
        values = entry.partition_by_id
        return tuple(
            _comparable(_as_type(values.get(field.field_id), field.field_type))
            for field in self._type.fields
        )

    def constants(self, entry: FileEntry) -> Mapping[int, Any]:
        """Return the values of a file's columns that its partition contains unchanged."""
        values = entry.partition_by_id
        return {
            field.source_id: _as_type(values.get(field.field_id), kind.field_type)
            for field, kind in zip(self._spec.fields, self._type.fields, strict=True)
            if isinstance(field.transform, IdentityTransform)
            and values.get(field.field_id) is not None
        }


def _first_wrapped(transform: Any, kind: IcebergType) -> int | None:
    """Return the first value of a partition that may stand for the smallest numbers of its type.

    These have no multiple of the width below them: in Java the result wraps to the greatest number
    of the type, or one near it.
    """
    if not isinstance(transform, TruncateTransform) or not isinstance(kind, IntegerType | LongType):
        return None
    return (1 << (31 if isinstance(kind, IntegerType) else 63)) - transform.width + 1


# --- pyiceberg's classes -------------------------------------------------------------------------


def _as_manifest(manifest: ManifestFile, partition: StructType) -> PyManifestFile:
    kinds = (field.field_type for field in partition.fields)
    summaries = []
    for summary, kind in zip(manifest.row.get("partitions") or (), kinds, strict=False):
        lower, upper = _bounds(summary.get("lower_bound"), summary.get("upper_bound"), kind)
        counts = {
            "contains_null": summary.get("contains_null"),
            "contains_nan": summary.get("contains_nan"),
        }
        summaries.append(
            PartitionFieldSummary.from_args(**counts, lower_bound=lower, upper_bound=upper)
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


_MAPS = (
    "column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds",
    "upper_bounds",
)  # fmt: skip


def as_data_file(entry: FileEntry) -> DataFile:
    """Return a file as pyiceberg's class, without its key."""
    maps: dict[str, Any] = {
        name: {pair["key"]: pair["value"] for pair in pairs}
        for name in _MAPS
        if (pairs := entry.file.get(name)) is not None
    }
    file = DataFile.from_args(
        content=DataFileContent(entry.content),
        file_path=entry.location,
        file_format=FileFormat(entry.file_format),
        partition=Record(*entry.partition.values()),
        record_count=entry.record_count,
        file_size_in_bytes=entry.size,
        **maps,
    )
    file.spec_id = entry.spec_id
    return file


def _as_type(value: Any, kind: IcebergType) -> Any:
    """Convert a value of Avro, which has no logical types here, to pyiceberg's form."""
    if isinstance(value, bytes) and isinstance(kind, DecimalType):
        return read_decimal(value, kind.scale)
    if isinstance(value, str) and isinstance(kind, UUIDType):
        return bytes.fromhex(value.replace("-", ""))
    return value


def _comparable(value: Any) -> Any:
    """Return a value that is equal for equal partitions: NaN equals itself, 0.0 is not -0.0."""
    return repr(value) if isinstance(value, float) else value
