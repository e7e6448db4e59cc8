"""Plan a scan: prune files by partitions and statistics, and find the deletes of each file.

pyiceberg's own planning does not support format version 3 or keys; `file_pruning` uses its
evaluators.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.entry_plan import (
    CONTENT,
    PARTITION,
    PATH,
    STATUS,
    Values,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
)
from modcrypt.iceberg.format.manifests import DELETES, Choose, ManifestFile
from modcrypt.iceberg.format.pyiceberg_schemas import spec_of
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.keys.key_resolver import is_encrypted_metadata
from modcrypt.iceberg.read.file_pruning import SpecFilter, Test, bind_test, statistics_of
from modcrypt.iceberg.read.row_filter import fit_filter
from modcrypt.iceberg.read.table_walk import KEYS_AHEAD, Walk
from modcrypt.runtime.fork_safety import cached_property

_MAX_KNOWN = 1000  # partitions whose constants are kept


@dataclass(slots=True)  # nobody changes it, but a frozen one takes three times as long to make
class PlannedFile:
    """A data file to read."""

    data: FileEntry
    deletes: Sequence[FileEntry]
    equality: Sequence[EqualityDeletes]
    constants: Mapping[int, Any]  # values of columns that are the same in all its rows, by field id
    first_row_id: int | None = None  # id of its first row, where the reader needs it


class Planner:
    """A planner that finds the files of a snapshot that may have rows for a filter.

    It prunes manifests by the summaries in the manifest list, then data files by their partition
    and statistics. Only a spec of a manifest that was read is known to be genuine, so one manifest
    of each spec by which all were pruned is read too. Delete files are pruned by manifests alone.
    """

    def __init__(self, walk: Walk, schema: Schema, row_filter: BooleanExpression) -> None:
        self._walk, self._schema = walk, schema
        self._filter = fit_filter(schema, row_filter)
        self._specs: dict[int, SpecFilter] = {}
        # Constants by the identity of partitions, which files share.
        self._known: dict[int, tuple[Mapping[str, Any], Mapping[int, Any]]] = {}

    def files(self, snapshot: Snapshot) -> Iterator[PlannedFile]:
        """Yield the data files in the order of the manifests, each of which is read when needed.

        The manifest list is read at once, and manifests of delete files before the first data file
        is yielded. With equality deletes, all manifests are.
        """
        manifests = self.choose_manifests(self._walk.manifests(snapshot))
        data = (
            entry
            for manifest in manifests
            if manifest.content == DATA
            for entry in self._live(manifest, self._choose_of(manifest))
            if _is_data(entry)
        )
        # Pruning manifests of delete files is safe: a delete file has the partition of its data
        # files, or an unpartitioned spec, which is never pruned. Its statistics are not used: they
        # describe positions, or only some columns of the deleted rows.
        deletes = [manifest for manifest in manifests if manifest.content == DELETES]
        if not deletes:
            planned = (PlannedFile(file, (), (), self._constants(file)) for file in data)
            return self._with_keys(planned)
        found = (entry for manifest in deletes for entry in self._live(manifest))
        return self._with_keys(self.with_deletes(map(_Shortening(), data), found))

    def _with_keys(self, files: Iterator[PlannedFile]) -> Iterator[PlannedFile]:
        """Yield files after their keys were requested together, if manifests have wrapped keys."""
        for first in files:
            if not is_encrypted_metadata(first.data.key_metadata or b""):
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

    def with_deletes(
        self, data: Iterable[FileEntry], found: Iterable[FileEntry]
    ) -> Iterator[PlannedFile]:
        """Yield data files with the delete files among those found that apply to them."""
        files: Iterator[FileEntry] = iter(data)
        oldest = 0
        if (first := next(files, None)) is None:
            return  # without reading the delete files
        files, every = itertools.chain((first,), files), list(found)
        if any(file.content == EQUALITY_DELETES for file in every):
            files = iter(held := list(files))  # to read no deletes that are older than all of them
            oldest = min(file.sequence_number or 0 for file in held)
        deletes = DeleteIndex(self._walk, self._spec, every, oldest)
        for file in files:
            positions, equality = deletes.of(file), deletes.equality_of(file)
            yield PlannedFile(file, positions, equality, self._constants(file))

    def _check_pruned(self, every: list[ManifestFile], kept: list[ManifestFile]) -> None:
        """Check the specs by which manifests were pruned; other specs are checked when read."""
        # Nothing signs metadata.json: a forged spec could hide rows.
        checked = {manifest.spec_id for manifest in kept if manifest.content == DATA}
        read = {manifest.location for manifest in kept}
        self._walk.check_specs(
            manifest
            for manifest in every
            if manifest.location not in read and manifest.spec_id not in checked
        )

    def _live(self, manifest: ManifestFile, choose: Choose | None = None) -> Iterator[FileEntry]:
        entries, leaves_out = self._walk.entries_where(manifest, choose), self._walk.leaves_out
        live = (entry for entry in entries if entry.status != DELETED)
        return live if leaves_out is None else itertools.filterfalse(leaves_out, live)

    def _may_match(self, manifest: ManifestFile) -> bool:
        if self._is_all:
            return True
        with as_format_errors(manifest.location):
            return self._spec(manifest.spec_id).manifest_may_match(manifest)

    def _choose_of(self, manifest: ManifestFile) -> Choose | None:
        """Return a function for the rows of a manifest that excludes files; None for no filter."""
        # It is called for whole blocks, before a row becomes an entry.
        if self._is_all:
            return None
        partitions: dict[int, tuple[Any, bool]] = {}  # by identity: rows share equal partitions

        def choose(rows: list[Values], names: Mapping[int, str]) -> list[Values]:
            live = [values for values in rows if values[STATUS] != DELETED]
            for id_, values in {id(values[PARTITION]): values for values in live}.items():
                if id_ not in partitions:
                    matches = self._partition_matches(manifest, values, names)
                    partitions[id_] = values[PARTITION], matches
            found = [
                values for values in live if partitions[id(values[PARTITION])][1] or values[CONTENT]
            ]
            matching = zip(found, self._matches(found), strict=True)
            # Other content is refused as an entry.
            return [values for values, matches in matching if matches or values[CONTENT]]

        return choose

    def _partition_matches(
        self, manifest: ManifestFile, values: Values, names: Mapping[int, str]
    ) -> bool:
        """Return whether the partition of a row may have matching rows."""
        partition = {id_: values[PARTITION].get(name) for id_, name in names.items()}
        with as_format_errors(values[PATH]):
            return self._spec(manifest.spec_id).partition_may_match(partition)

    def _matches(self, rows: list[Values]) -> list[bool]:
        """Return which files may have matching rows by their statistics; name one with damage."""
        try:
            return self._test(rows)
        except Exception:
            for values in rows:
                with as_format_errors(values[PATH]):
                    self._test([values])
            raise

    def file_may_match(self, entry: FileEntry) -> bool:
        """Return whether a data file may have matching rows, by its partition and statistics."""
        if not _is_data(entry) or self._is_all:
            return True
        with as_format_errors(entry.location):
            spec = self._spec(entry.spec_id)
            if not spec.partition_may_match(entry.partition_by_id):
                return False
            return self._test([statistics_of(entry)])[0]

    def _constants(self, entry: FileEntry) -> Mapping[int, Any]:
        partition = entry.partition
        if (known := self._known.get(id(partition))) is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            with as_format_errors(entry.location):
                constants = self._spec(entry.spec_id).constants(entry.partition_by_id)
            known = self._known[id(partition)] = partition, constants
        return known[1]

    @property
    def _is_all(self) -> bool:
        return isinstance(self._filter, AlwaysTrue)

    @cached_property
    def _test(self) -> Test:
        return bind_test(self._schema, self._filter)

    def _spec(self, spec_id: int) -> SpecFilter:
        if spec_id not in self._specs:
            spec = spec_of(self._walk.metadata, spec_id)
            self._specs[spec_id] = SpecFilter(spec, self._schema, self._filter)
        return self._specs[spec_id]


def _is_data(entry: FileEntry) -> bool:
    """Return true; raise FormatError if the entry of a data manifest is not a data file."""
    if entry.content != DATA:
        message = "a data manifest has a file that is not a data file"
        raise FormatError(f"{entry.location}: {message}")
    return True


class _Shortening:
    """A function that drops what is no longer needed of data files: a table may have a million.

    Files of one partition share what is left, their partition values.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[int, str], Mapping[str, Any]] = {}

    def __call__(self, entry: FileEntry) -> FileEntry:
        # Not the values themselves: 0.0 equals -0.0, and 1 equals True. Specs may use a name for
        # several columns.
        key = entry.spec_id, repr(entry.partition)
        partition = self._shared.setdefault(key, entry.partition)
        return entry.shorten(partition)


@dataclass(eq=False, slots=True)
class EqualityDeletes:
    """Equality delete files with the same columns that apply to the same partitions."""

    ids: tuple[int, ...]  # ids of the columns, ascending
    # Delete files. Each deletes the rows of older data files that have, in all of these columns,
    # the values of one of its rows.
    files: list[FileEntry] = field(default_factory=list)
    newest: int = 0  # greatest sequence number of the files

    def add(self, file: FileEntry) -> None:
        """Add a delete file."""
        self.files.append(file)
        self.newest = max(self.newest, _number(file))


class DeleteIndex:
    """An index of a snapshot's delete files by the data files that they apply to.

    Spec, "Scan Planning": a deletion vector replaces all position delete files of its data file. A
    position delete file applies to the file that it names, or else to its partition. Equality
    deletes apply to older files of their partition, or of the table if their spec is unpartitioned.
    `oldest` is the smallest sequence number of the data files that are looked up. Raise FormatError
    if an entry is not a delete file, equality deletes name no columns, or a location is outside the
    table.
    """

    def __init__(
        self, walk: Walk, partitions: Callable[[int], SpecFilter], deletes: Iterable[FileEntry],
        oldest: int,
    ) -> None:  # fmt: skip
        self._walk, self._partitions, self._oldest = walk, partitions, oldest
        self._vectors: dict[str, FileEntry] = {}
        self._of_file: dict[str, list[FileEntry]] = defaultdict(list)
        self._of_partition: dict[Any, list[FileEntry]] = defaultdict(list)
        self._equality: dict[Any, dict[tuple[int, ...], EqualityDeletes]] = defaultdict(dict)
        for file in deletes:
            self._add(file)

    def _add(self, file: FileEntry) -> None:
        if file.content == EQUALITY_DELETES:
            self._add_equality(file)
            return
        if file.content != POSITION_DELETES:
            message = "a delete manifest has a file that is not a delete file"
            raise FormatError(f"{file.location}: {message}")
        target = file.file.get("referenced_data_file")
        if file.file_format == "PUFFIN":
            if target is None:
                raise FormatError(f"{file.location}: a deletion vector names no data file")
            key = self._walk.locations.key(target)
            if key in self._vectors:
                raise FormatError(f"{target}: two deletion vectors apply to it")
            self._vectors[key] = file
        elif target is not None:
            self._of_file[self._walk.locations.key(target)].append(file)
        else:
            self._of_partition[self._partition(file)].append(file)

    def _add_equality(self, file: FileEntry) -> None:
        ids = file.file.get("equality_ids")
        if not (isinstance(ids, list) and ids and all(type(id_) is int for id_ in ids)):
            raise FormatError(f"{file.location}: equality deletes name no columns")
        if _number(file) <= self._oldest:
            return
        with as_format_errors(file.location):
            is_global = self._partitions(file.spec_id).is_unpartitioned
        by_ids = self._equality[None if is_global else self._partition(file)]
        key = tuple(sorted(set(ids)))
        by_ids.setdefault(key, EqualityDeletes(key)).add(file)

    def of(self, data: FileEntry) -> list[FileEntry]:
        """Return the position delete files and deletion vectors that apply to a data file."""
        if not (self._vectors or self._of_file or self._of_partition):
            return []
        key = self._walk.locations.key(data.location)
        vector = self._vectors.get(key)
        if vector is not None and _applies(vector, data):
            return [vector]
        files = self._of_file.get(key, [])
        if self._of_partition:
            files = files + self._of_partition.get(self._partition(data), [])
        return [file for file in files if _applies(file, data)]

    def equality_of(self, data: FileEntry) -> list[EqualityDeletes]:
        """Return the groups of equality deletes that may apply to a data file."""
        if not self._equality:
            return []
        return [
            deletes
            for scope in (None, self._partition(data))
            for deletes in self._equality.get(scope, {}).values()
            if _number(data) < deletes.newest
        ]

    def _partition(self, entry: FileEntry) -> Any:
        with as_format_errors(entry.location):
            return entry.spec_id, self._partitions(entry.spec_id).of(entry)


def _applies(delete: FileEntry, data: FileEntry) -> bool:
    """Return whether position deletes apply to data of their own commit, or of an earlier one."""
    return _number(data) <= _number(delete)


def _number(entry: FileEntry) -> int:
    return entry.sequence_number or 0  # tables of version 1 have none
