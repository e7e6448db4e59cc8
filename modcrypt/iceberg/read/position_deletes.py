"""Read the positions of deleted rows: deletion vectors (Puffin) and position delete files.

Spec, "Deletion Vectors" and "Position Delete Files". `scan_planning` finds those of a data file.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import open_avro
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.read.data_files import RowBatch, open_parquet_file
from modcrypt.iceberg.read.schema_projection import field_id
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.runtime.fork_safety import fork_safe

_DV_MAGIC = b"\xd1\xd3\x39\x64"
_PATH_ID, _POS_ID = 2147483546, 2147483545  # spec, "Reserved Field IDs"
_PATH, _POS = "file_path", "pos"

_LAST_POSITION = 1 << 63

MAX_POSITIONS, MAX_RATIO = 64 << 20, 16
"""Maximum size in bytes of the positions of a position delete file; and per byte of the file.

Bitmaps hold the positions: neighbouring positions take a bit each, distant ones 100 bytes.
"""

_CONTAINER = 100  # overhead in bytes of a bitmap for each 65,536 positions
_BITMAP = 500  # size in bytes of a path and an empty bitmap
_CHECKED_AFTER = 1 << 18  # positions between checks, because counting all containers is slow
_ROWS = 1 << 17  # rows of a position delete file that are decoded at once


class Positions:
    """The positions of deleted rows in the delete files of a scan; thread-safe.

    Each position delete file is read once, although it may name many data files.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._lock = fork_safe(threading.Lock())
        self._files: dict[str, Mapping[str, BitMap64]] = {}

    def of(self, data: FileEntry, deletes: Sequence[FileEntry]) -> BitMap64:
        """Return the positions of a data file's deleted rows."""
        bitmaps = [self._of(entry, data) for entry in deletes]
        return bitmaps[0] if len(bitmaps) == 1 else BitMap64.union(*bitmaps)

    def _of(self, entry: FileEntry, data: FileEntry) -> BitMap64:
        with as_format_errors(entry.location):
            if entry.file_format == "PUFFIN":
                return _read_data_file_vector(self._walk, entry, data)
            key = self._walk.locations.key(data.location)
            with self._lock:
                if entry.location not in self._files:
                    self._files[entry.location] = _read_position_deletes(self._walk, entry)
            return self._files[entry.location].get(key, BitMap64())


def drop_positions(batch: RowBatch, deleted: BitMap64) -> pa.RecordBatch:
    """Return a batch without the rows at deleted positions."""
    rows, start = batch.rows, batch.start
    if not (gone := (deleted & BitMap64(range(start, start + rows.num_rows))).to_array()):
        return rows
    keep = bytearray(b"\x01") * rows.num_rows
    for position in gone:
        keep[position - start] = 0
    bits = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(keep)])
    return rows.filter(bits.cast(pa.bool_()))


def _read_data_file_vector(walk: Walk, entry: FileEntry, data: FileEntry) -> BitMap64:
    """Read the deletion vector of a data file: only its part of the Puffin file."""
    start, size = place_of_vector(entry)
    if entry.record_count > data.record_count:
        raise FormatError(f"{entry.location}: more rows are deleted than {data.location} has")
    keys = walk.file_keys(entry)
    blob = walk.read(entry.location, keys, entry.size, start=start, size=size)
    return read_vector(blob, entry)


def place_of_vector(entry: FileEntry) -> tuple[int, int]:
    """Return a deletion vector's offset and size; raise FormatError unless both are ints >= 0."""
    start, size = entry.file.get("content_offset"), entry.file.get("content_size_in_bytes")
    if type(start) is not int or type(size) is not int or start < 0 or size < 0:
        raise FormatError(f"{entry.location}: a deletion vector lies outside its file")
    return start, size


def read_vector(blob: bytes, entry: FileEntry) -> BitMap64:
    """Decode the part of a Puffin file that an entry names (spec, `deletion-vector-v1`)."""
    name, length = entry.location, int.from_bytes(blob[:4], "big")
    if len(blob) < 20 or length != len(blob) - 8 or blob[4:8] != _DV_MAGIC:
        raise FormatError(f"{name}: the place that its manifest names holds no deletion vector")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise FormatError(f"{name}: the checksum of the deletion vector does not match")
    try:
        bitmap = BitMap64.deserialize(blob[8:-4])
    except ValueError:
        raise FormatError(f"{name}: the deletion vector is not a bitmap") from None
    if len(bitmap) != entry.record_count or (bitmap and bitmap.max() >= _LAST_POSITION):
        raise FormatError(
            f"{name}: the deletion vector has {len(bitmap)} positions, its manifest says "
            f"{entry.record_count}"
        )
    return bitmap


def _read_position_deletes(walk: Walk, entry: FileEntry) -> Mapping[str, BitMap64]:
    """Read a position delete file: positions by the key of their data file's location."""
    if entry.file_format == "AVRO":
        parts = _read_avro_positions(walk, entry)
    elif entry.file_format == "PARQUET":
        parts = _read_parquet_positions(walk, entry)
    else:
        raise UnsupportedFormatError(
            f"{entry.location}: deletes in {entry.file_format} are not supported"
        )
    bitmaps: dict[str, BitMap64] = defaultdict(BitMap64)
    added = 0
    for paths, positions in parts:
        if paths.null_count or positions.null_count:
            raise FormatError(f"{entry.location}: a position delete has no path or no position")
        for path, unsigned in _group_by_path(paths, positions):  # two spellings may name one file
            bitmaps[walk.locations.key(path)].update(unsigned)
        added += len(positions)
        if added >= _CHECKED_AFTER:
            _check_size(bitmaps, entry)
            added = 0
    return bitmaps


def _group_by_path(paths: pa.Array, positions: pa.Array) -> Iterator[tuple[str, array[int]]]:
    """Group positions by their dictionary-encoded paths; yield each path once."""
    names = paths.dictionary.cast(pa.string())
    table = pa.table([paths.indices, positions], ["path", "position"])
    grouped = table.group_by("path", use_threads=False).aggregate([("position", "list")])
    for group in grouped.to_batches():
        for path, of_path in zip(*group.columns, strict=True):
            unsigned = array("Q")  # a negative position becomes a position beyond any file
            unsigned.frombytes(of_path.values.cast(pa.int64()).to_numpy().tobytes())
            yield names[path.as_py()].as_py(), unsigned


def _check_size(bitmaps: Mapping[str, BitMap64], entry: FileEntry) -> None:
    """Raise a LimitError if positions far from each other take more memory than is allowed."""
    held = _BITMAP * len(bitmaps)
    for positions in bitmaps.values():
        sizes = positions.get_statistics()
        held += sizes["n_bytes_array_containers"] + sizes["n_bytes_bitset_containers"]
        held += sizes["n_bytes_run_containers"] + _CONTAINER * sizes["n_containers"]
    if held > max(MAX_POSITIONS, MAX_RATIO * entry.size):
        raise LimitError(
            f"{entry.location}: a file of {entry.size} bytes deletes so many rows that their "
            f"positions take more than {MAX_POSITIONS} bytes: compact the table"
        )


def _read_avro_positions(walk: Walk, entry: FileEntry) -> Iterator[tuple[pa.Array, pa.Array]]:
    data = walk.read(entry.location, walk.file_keys(entry), entry.size)
    avro = open_avro(data, entry.location)
    names = {field.get("field-id"): field["name"] for field in avro.schema["fields"]}
    path, position = names.get(_PATH_ID, _PATH), names.get(_POS_ID, _POS)
    for rows in avro.lots:
        paths = pa.array((row.get(path) for row in rows), pa.string())
        yield paths.dictionary_encode(), pa.array((row.get(position) for row in rows), pa.int64())


def _read_parquet_positions(walk: Walk, entry: FileEntry) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield positions with paths as a dictionary: a page can repeat a long path for a few bits."""
    with open_parquet_file(walk, entry) as plaintext:
        schema = pq.read_schema(plaintext)
        names = {field_id(column): column.name for column in schema}
        path, position = names.get(_PATH_ID, _PATH), names.get(_POS_ID, _POS)
        plaintext.seek(0)
        file = pq.ParquetFile(plaintext, read_dictionary=[path])
        for batch in file.iter_batches(_ROWS, columns=[path, position]):
            paths = batch.column(path)
            if not pa.types.is_dictionary(paths.type):
                paths = paths.cast(pa.string()).dictionary_encode()
            yield paths, batch.column(position).cast(pa.int64())
