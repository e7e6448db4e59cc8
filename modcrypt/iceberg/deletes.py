"""Deletes of a table: which delete files apply to a data file, and the positions that they name.

Spec, "Scan Planning" and "Deletion Vectors". Equality deletes are refused: no reader in Python has
them. A deletion vector (Puffin) takes the place of position delete files of its data file.
"""

from __future__ import annotations

import io
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.avro_files import read_avro
from modcrypt.iceberg.data_files import open_parquet_file
from modcrypt.iceberg.manifests import EQUALITY_DELETES, FileEntry
from modcrypt.iceberg.walk import Walk

__all__ = ["DeleteIndex", "deleted_positions", "positions_file"]

_DV_MAGIC = b"\xd1\xd3\x39\x64"
_PATH, _POS = "file_path", "pos"


class DeleteIndex:
    """The delete files of a snapshot, to be found by the data files that they apply to.

    Args:
        walk: which tells spellings of one location for the same.
        deletes: live entries of delete manifests.

    Raises:
        UnsupportedFormatError: equality deletes are among them.
    """

    def __init__(self, walk: Walk, deletes: Iterable[FileEntry]) -> None:
        self._walk = walk
        self._vectors: dict[str, FileEntry] = {}
        self._of_file: dict[str, list[FileEntry]] = defaultdict(list)
        self._of_partition: dict[Any, list[FileEntry]] = defaultdict(list)
        for one in deletes:
            self._add(one)

    def _add(self, one: FileEntry) -> None:
        if one.content == EQUALITY_DELETES:
            raise UnsupportedFormatError(
                f"{one.location}: equality deletes, as Flink writes them, are not read: have the "
                "table compacted"
            )
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
            self._of_partition[_partition(one)].append(one)

    def of(self, data: FileEntry) -> list[FileEntry]:
        """Give the delete files that apply to a data file."""
        key = self._walk.locations.key(data.location)
        vector = self._vectors.get(key)
        if vector is not None and _applies(vector, data):
            return [vector]
        found = self._of_file.get(key, []) + self._of_partition.get(_partition(data), [])
        return [one for one in found if _applies(one, data)]


def _partition(entry: FileEntry) -> Any:
    return entry.spec_id, tuple(sorted((k, repr(v)) for k, v in entry.partition.items()))


def _applies(delete: FileEntry, data: FileEntry) -> bool:
    """Deletes of positions apply to data of their own commit and of those before."""
    return (data.sequence_number or 0) <= (delete.sequence_number or 0)


def deleted_positions(walk: Walk, data: FileEntry, deletes: Sequence[FileEntry]) -> pa.Array:
    """Give the positions of the deleted rows of a data file, as int64.

    Raises:
        ModcryptError: a delete file can't be had, or is not what was written.
    """
    found = [
        _of_vector(walk, one) if one.file_format == "PUFFIN" else _of_file(walk, one, data)
        for one in deletes
    ]
    return pa.concat_arrays([one.cast(pa.int64()) for one in found])


def _of_vector(walk: Walk, entry: FileEntry) -> pa.Array:
    """Read a deletion vector (spec, "Deletion Vectors"; Puffin spec, `deletion-vector-v1`)."""
    data = walk.read(entry.location, walk.file_keys(entry), entry.size)
    start, size = entry.file.get("content_offset"), entry.file.get("content_size_in_bytes")
    name = entry.location
    if type(start) is not int or type(size) is not int or not 0 <= start <= len(data) - size:
        raise FormatError(f"{name}: a deletion vector that does not lie in its file")
    blob = data[start : start + size]
    length = int.from_bytes(blob[:4], "big")
    if size < 12 or length != size - 8 or blob[4:8] != _DV_MAGIC:
        raise FormatError(f"{name}: no deletion vector at byte {start}")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise FormatError(f"{name}: the checksum of the deletion vector does not fit")
    try:
        bitmap = BitMap64.deserialize(blob[8:-4])
    except ValueError:
        raise FormatError(f"{name}: the deletion vector is no bitmap") from None
    if len(bitmap) != entry.record_count:
        raise FormatError(
            f"{name}: the deletion vector has {len(bitmap)} positions, its manifest says "
            f"{entry.record_count}"
        )
    return pa.array(bitmap, pa.int64())


def _of_file(walk: Walk, entry: FileEntry, data: FileEntry) -> pa.Array:
    if entry.file_format == "AVRO":
        avro = read_avro(
            walk.read(entry.location, walk.file_keys(entry), entry.size), entry.location
        )
        paths = pa.array((row.get(_PATH) for row in avro.records), pa.string())
        positions = pa.array((row.get(_POS) for row in avro.records), pa.int64())
    elif entry.file_format == "PARQUET":
        with open_parquet_file(walk, entry) as file:
            table = pq.read_table(file, columns=[_PATH, _POS])
        paths, positions = (table.column(name).combine_chunks() for name in (_PATH, _POS))
    else:
        raise UnsupportedFormatError(f"{entry.location}: deletes in {entry.file_format}")
    key = walk.locations.key(data.location)
    same = [path for path in pc.unique(paths).to_pylist() if walk.locations.key(path) == key]
    return positions.filter(pc.is_in(paths, pa.array(same, paths.type)))


def positions_file(location: str, positions: pa.Array) -> bytes:
    """Give a Parquet file of positions of one data file, as pyiceberg reads position deletes."""
    out = io.BytesIO()
    path = pa.DictionaryArray.from_arrays(pa.array([0] * len(positions), pa.int32()), [location])
    table = pa.table({_PATH: path, _POS: positions})
    pq.write_table(table, out, compression="none", use_dictionary=[_PATH])
    return out.getvalue()
