"""Deletes of a table: which delete files apply to a data file, and the positions that they name.

Spec, "Scan Planning" and "Deletion Vectors". A deletion vector (Puffin) takes the place of position
delete files of its data file. What equality deletes name is found by `equality_deletes`.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.avro_files import read_avro
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import EQUALITY_DELETES, POSITION_DELETES, FileEntry
from modcrypt.iceberg.read.data_files import open_parquet_file
from modcrypt.iceberg.read.schema_projection import field_id
from modcrypt.iceberg.read.table_walk import Walk

__all__ = [
    "DeleteIndex", "EqualityDeletes", "Partitions", "Positions", "deleted_positions", "read_vector",
]  # fmt: skip

_DV_MAGIC = b"\xd1\xd3\x39\x64"
_PATH_ID, _POS_ID = 2147483546, 2147483545  # spec, "Reserved Field IDs"
_PATH, _POS = "file_path", "pos"

_LAST_POSITION = 1 << 63

MAX_DELETED = 1 << 28
"""Most deleted rows of a data file: as positions they take 2 GiB, as a bitmap a few bytes."""


class Partitions(Protocol):
    """Partitions of one spec."""

    is_unpartitioned: bool

    def of(self, entry: FileEntry) -> Any:
        """Give what is equal of two files in one partition, and of no others."""


@dataclass(eq=False, slots=True)
class EqualityDeletes:
    """Files of equality deletes that go by the same columns, and apply to the same partitions.

    Attributes:
        ids: of the columns, ascending.
        files: each deletes the rows of older data files that have, in all of these columns, the
            values of one of its own.
        newest: the greatest of their sequence numbers.
    """

    ids: tuple[int, ...]
    files: list[FileEntry] = field(default_factory=list)
    newest: int = 0

    def add(self, file: FileEntry) -> None:
        """Add a file."""
        self.files.append(file)
        self.newest = max(self.newest, _number(file))


class DeleteIndex:
    """The delete files of a snapshot, to be found by the data files that they apply to.

    Args:
        walk: which tells spellings of one location for the same.
        partitions: those of a spec, by its id.
        deletes: live entries of delete manifests.
        oldest: the least sequence number of the data files that will be asked for.

    Raises:
        FormatError: what is no delete file is, equality deletes name no columns, or a location is
            outside of the table.
    """

    def __init__(
        self,
        walk: Walk,
        partitions: Callable[[int], Partitions],
        deletes: Iterable[FileEntry],
        oldest: int,
    ) -> None:
        self._walk, self._partitions, self._oldest = walk, partitions, oldest
        self._vectors: dict[str, FileEntry] = {}
        self._of_file: dict[str, list[FileEntry]] = defaultdict(list)
        self._of_partition: dict[Any, list[FileEntry]] = defaultdict(list)
        self._equality: dict[Any, dict[tuple[int, ...], EqualityDeletes]] = defaultdict(dict)
        for one in deletes:
            self._add(one)

    def _add(self, one: FileEntry) -> None:
        if one.content == EQUALITY_DELETES:
            self._add_equality(one)
            return
        if one.content != POSITION_DELETES:
            raise FormatError(f"{one.location}: a delete manifest has a file that is none")
        target = one.file.get("referenced_data_file")
        if one.file_format == "PUFFIN":
            if target is None:
                raise FormatError(f"{one.location}: a deletion vector that names no data file")
            key = self._walk.locations.key(target)
            if key in self._vectors:
                raise FormatError(f"{target}: two deletion vectors apply to it")
            self._vectors[key] = one
        elif target is not None:
            self._of_file[self._walk.locations.key(target)].append(one)
        else:
            self._of_partition[self._partition(one)].append(one)

    def _add_equality(self, one: FileEntry) -> None:
        ids = one.file.get("equality_ids")
        if not (isinstance(ids, list) and ids and all(type(id_) is int for id_ in ids)):
            raise FormatError(f"{one.location}: equality deletes that name no columns")
        if _number(one) <= self._oldest:
            return
        with as_format_errors(one.location):
            is_global = self._partitions(one.spec_id).is_unpartitioned
        found = self._equality[None if is_global else self._partition(one)]
        key = tuple(sorted(set(ids)))
        found.setdefault(key, EqualityDeletes(key)).add(one)

    def of(self, data: FileEntry) -> list[FileEntry]:
        """Give the delete files of positions that apply to a data file."""
        if not (self._vectors or self._of_file or self._of_partition):
            return []
        key = self._walk.locations.key(data.location)
        vector = self._vectors.get(key)
        if vector is not None and _applies(vector, data):
            return [vector]
        found = self._of_file.get(key, [])
        if self._of_partition:
            found = found + self._of_partition.get(self._partition(data), [])
        return [one for one in found if _applies(one, data)]

    def equality_of(self, data: FileEntry) -> list[EqualityDeletes]:
        """Give the equality deletes of which some apply to a data file."""
        if not self._equality:
            return []
        return [
            one
            for scope in (None, self._partition(data))
            for one in self._equality.get(scope, {}).values()
            if _number(data) < one.newest
        ]

    def _partition(self, entry: FileEntry) -> Any:
        with as_format_errors(entry.location):
            return entry.spec_id, self._partitions(entry.spec_id).of(entry)


def _applies(delete: FileEntry, data: FileEntry) -> bool:
    """Deletes of positions apply to data of their own commit and of those before."""
    return _number(data) <= _number(delete)


def _number(entry: FileEntry) -> int:
    return entry.sequence_number or 0  # none in tables of version 1


class Positions:
    """Positions of deleted rows, as the delete files of a scan name them.

    Each position delete file is read once, though it may name many data files. Any number of
    threads may ask.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._lock = fork_safe(threading.Lock())
        self._files: dict[str, Mapping[str, pa.Array]] = {}

    def of(self, data: FileEntry, deletes: Sequence[FileEntry]) -> memoryview:
        """Give the positions of a data file's deleted rows: as int64, ascending, each once.

        Raises:
            ModcryptError: a delete file can't be had, or is not what was written.
            OSError: from the file system.
        """
        found = [self._of(one, data) for one in deletes]
        if len(found) != 1 or deletes[0].file_format != "PUFFIN":
            positions = pc.unique(pa.concat_arrays([pa.array([], pa.int64()), *found]))
            found = [positions.take(pc.array_sort_indices(positions))]
        values = pa.concat_arrays(found)  # one without an offset
        buffer = values.buffers()[1]
        return memoryview(buffer or b"")[: 8 * len(values)].cast("q")

    def _of(self, entry: FileEntry, data: FileEntry) -> pa.Array:
        with as_format_errors(entry.location):
            if entry.file_format == "PUFFIN":
                return _of_vector(self._walk, entry, data)
            key = self._walk.locations.key(data.location)
            return self._of_file(entry).get(key, pa.array([], pa.int64()))

    def _of_file(self, entry: FileEntry) -> Mapping[str, pa.Array]:
        with self._lock:
            if entry.location not in self._files:
                self._files[entry.location] = _by_file(self._walk, entry)
            return self._files[entry.location]


def deleted_positions(walk: Walk, data: FileEntry, deletes: Sequence[FileEntry]) -> pa.Array:
    """Give the positions of the deleted rows of a data file, as int64; raises as `Positions.of`."""
    positions = Positions(walk).of(data, deletes)
    return pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])


# --- deletion vectors ----------------------------------------------------------------------------


def _of_vector(walk: Walk, entry: FileEntry, data: FileEntry) -> pa.Array:
    """Read the deletion vector of a data file: its part of the Puffin file alone."""
    start, size = entry.file.get("content_offset"), entry.file.get("content_size_in_bytes")
    if type(start) is not int or type(size) is not int or start < 0 or size < 0:
        raise FormatError(f"{entry.location}: a deletion vector that does not lie in its file")
    if entry.record_count > data.record_count:
        raise FormatError(f"{entry.location}: more rows are deleted than {data.location} has")
    if entry.record_count > MAX_DELETED:
        raise LimitError(f"{entry.location}: more than {MAX_DELETED} deleted rows of one file")
    keys = walk.file_keys(entry)
    blob = walk.read(entry.location, keys, entry.size, start=start, size=size)
    return pa.array(read_vector(blob, entry).to_array(), pa.int64())


def read_vector(blob: bytes, entry: FileEntry) -> BitMap64:
    """Read a deletion vector (Puffin spec, `deletion-vector-v1`).

    Args:
        blob: the bytes of its Puffin file that its entry names.
        entry: of its manifest.

    Raises:
        FormatError: it is none, is damaged, or has other than `record_count` positions.
    """
    name, length = entry.location, int.from_bytes(blob[:4], "big")
    if len(blob) < 20 or length != len(blob) - 8 or blob[4:8] != _DV_MAGIC:
        raise FormatError(f"{name}: no deletion vector where its manifest says")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise FormatError(f"{name}: the checksum of the deletion vector does not fit")
    try:
        bitmap = BitMap64.deserialize(blob[8:-4])
    except ValueError:
        raise FormatError(f"{name}: the deletion vector is no bitmap") from None
    if len(bitmap) != entry.record_count or (bitmap and bitmap.max() >= _LAST_POSITION):
        raise FormatError(
            f"{name}: the deletion vector has {len(bitmap)} positions, its manifest says "
            f"{entry.record_count}"
        )
    return bitmap


# --- position delete files -----------------------------------------------------------------------


def _by_file(walk: Walk, entry: FileEntry) -> Mapping[str, pa.Array]:
    """Read a position delete file: positions by the key of their data file's location."""
    if entry.file_format == "AVRO":
        paths, positions = _of_avro(walk, entry)
    elif entry.file_format == "PARQUET":
        paths, positions = _of_parquet(walk, entry)
    else:
        raise UnsupportedFormatError(f"{entry.location}: deletes in {entry.file_format}")
    if paths.null_count or positions.null_count:
        raise FormatError(f"{entry.location}: a position delete that names no position")
    found: dict[str, list[pa.Array]] = defaultdict(list)
    for path in pc.unique(paths).to_pylist():  # two spellings may stand for one file
        found[walk.locations.key(path)].append(positions.filter(pc.equal(paths, path)))
    return {key: pa.concat_arrays(parts) for key, parts in found.items()}


def _of_avro(walk: Walk, entry: FileEntry) -> tuple[pa.Array, pa.Array]:
    data = walk.read(entry.location, walk.file_keys(entry), entry.size)
    avro = read_avro(data, entry.location)
    names = {one.get("field-id"): one["name"] for one in avro.schema["fields"]}
    path, position = names.get(_PATH_ID, _PATH), names.get(_POS_ID, _POS)
    return (
        pa.array((row.get(path) for row in avro.records), pa.string()),
        pa.array((row.get(position) for row in avro.records), pa.int64()),
    )


def _of_parquet(walk: Walk, entry: FileEntry) -> tuple[pa.Array, pa.Array]:
    with open_parquet_file(walk, entry) as opened:
        file = pq.ParquetFile(opened)
        names = {field_id(one): one.name for one in file.schema_arrow}
        path, position = names.get(_PATH_ID, _PATH), names.get(_POS_ID, _POS)
        table = file.read([path, position])
    paths = table.column(path).cast(pa.string()).combine_chunks()
    return paths, table.column(position).cast(pa.int64()).combine_chunks()
