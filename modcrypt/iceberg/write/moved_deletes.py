"""Replace the locations of data files in position delete files; input and output are plaintext.

Position deletes in Parquet or Avro name their data file in every row; a deletion vector names it in
the footer of its Puffin file. When data files move, these names must change too.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import POSITION_DELETES, FileEntry
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.io.sources import MemorySource
from modcrypt.keys.metadata import StandardKeyMetadata

Bounds = tuple[str, str]

Rename = Callable[[str], str]
"""Returns the new location of a data file for its old one; an unmoved location is unchanged."""

_FILE_PATH_ID = 2147483546
"""Field id of the column that names data files (spec, "Reserved Field IDs")."""

_PATH, _POS = "file_path", "pos"
_PUFFIN = b"PFA1"
_TAIL = 12  # size of the footer's payload (4), flags (4), magic (4)


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A file that was written again at another location."""

    location: str
    keys: StandardKeyMetadata = field(repr=False)  # its new key metadata, with the file's length
    # Changed members of its entry, except location and size.
    changes: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def members(self) -> dict[str, Any]:
        """The changed members of its entry."""
        size = self.keys.file_length
        return {**self.changes, "file_path": self.location, "file_size_in_bytes": size}


def write_moved(
    files: NewFiles, location: str, entry: FileEntry, data: bytes, rename: Rename, key_length: int
) -> MovedFile:
    """Write a position delete file with new locations of data files.

    `data` is the old file in plaintext, `key_length` is in bytes; `rename` returns the new location
    for an old one. Raise as `move_deletes` and `NewFiles.write` do.
    """
    moved, bounds = move_deletes(data, entry.file_format, rename, entry.location)
    source = MemorySource(moved, entry.location)
    keys, changes = files.write(location, entry.file_format, source, key_length)
    return MovedFile(location, keys, {**_move_bounds(entry, bounds), **changes})


def encrypt_file(
    files: NewFiles, walk: Walk, entry: FileEntry, location: str, rename: Rename, key_length: int
) -> MovedFile:
    """Encrypt a plaintext data or delete file at another location; see `write_moved`."""
    if entry.content == POSITION_DELETES:
        data = walk.read(entry.location, None, entry.size)
        return write_moved(files, location, entry, data, rename, key_length)
    with walk.open_stored(entry.location, entry.size) as source:
        return MovedFile(location, *files.write(location, entry.file_format, source, key_length))


def move_deletes(
    data: bytes, file_format: str, rename: Rename, name: str
) -> tuple[bytes, Bounds | None]:
    """Return a position delete file, in plaintext, with new locations of data files.

    The second result is the least and greatest location in a Parquet or Avro file that has rows,
    otherwise None. The blobs of a Puffin file keep their offsets. Raise FormatError if the data is
    not a position delete file, and UnsupportedFormatError if the format is not `PARQUET`, `AVRO` or
    `PUFFIN`, or a Puffin footer is compressed.
    """
    with as_format_errors(name):
        if file_format == "PARQUET":
            return _move_parquet(data, rename, name)
        if file_format == "AVRO":
            return _move_avro(data, rename, name)
        if file_format == "PUFFIN":
            return _move_puffin(data, rename, name), None
        raise UnsupportedFormatError(f"{name}: delete files in {file_format} are not supported")


def _move_bounds(entry: FileEntry, bounds: Bounds | None) -> dict[str, Any]:
    """Return the bounds in the entry of a position delete file, with new bounds of the paths."""
    changes = {}
    for name, path in zip(("lower_bounds", "upper_bounds"), bounds or (), strict=False):
        changes[name] = [
            {**bound, "value": path.encode()} if bound["key"] == _FILE_PATH_ID else bound
            for bound in entry.file.get(name) or ()
        ]
    return changes


def _move_parquet(data: bytes, rename: Rename, name: str) -> tuple[bytes, Bounds | None]:
    try:
        table = pq.read_table(io.BytesIO(data))
        paths = table.column(_PATH).cast(pa.string()).to_pylist()
        nulls = paths.count(None) + table.column(_POS).null_count
    except (pa.ArrowException, OSError, KeyError):
        raise FormatError(f"{name}: not a Parquet file of position deletes") from None
    if nulls:
        raise FormatError(f"{name}: a position delete has no file path or no position")
    at = table.schema.get_field_index(_PATH)
    new_paths = pa.array([rename(path) for path in paths], pa.string())
    kind = table.schema.field(at).with_type(pa.string())
    # The spec demands sorted rows, and the new locations may have another order.
    table = table.set_column(at, kind, new_paths).sort_by(
        [(_PATH, "ascending"), (_POS, "ascending")]
    )
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", store_schema=False)
    return out.getvalue(), _bounds(new_paths.to_pylist())


def _move_avro(data: bytes, rename: Rename, name: str) -> tuple[bytes, Bounds | None]:
    avro = read_avro(data, name)
    if not all(isinstance(row.get(_PATH), str) for row in avro.records):
        raise FormatError(f"{name}: not an Avro file of position deletes")
    rows = [{**row, _PATH: rename(row[_PATH])} for row in avro.records]
    rows.sort(key=lambda row: (row[_PATH], row[_POS]))
    bounds = _bounds([row[_PATH] for row in rows])
    return write_avro(avro.schema, rows, avro.metadata), bounds


def _bounds(paths: list[str]) -> Bounds | None:
    return (min(paths), max(paths)) if paths else None


def _move_puffin(data: bytes, rename: Rename, name: str) -> bytes:
    """Rewrite the footer: magic | payload (JSON) | its size (4, little-endian) | flags | magic."""
    size = int.from_bytes(data[-_TAIL : -_TAIL + 4], "little")
    start = len(data) - _TAIL - size
    if start < 2 * len(_PUFFIN) or not (
        data.startswith(_PUFFIN)
        and data.endswith(_PUFFIN)
        and data[start - len(_PUFFIN) : start] == _PUFFIN
    ):
        raise FormatError(f"{name}: not a Puffin file")
    if any(data[-8:-4]):
        raise UnsupportedFormatError(
            f"{name}: Puffin files with a compressed footer are not supported"
        )
    footer: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        footer = json.loads(data[start:-_TAIL])
    blobs = footer.get("blobs") if isinstance(footer, dict) else None
    if not isinstance(blobs, list) or not all(isinstance(blob, dict) for blob in blobs):
        raise FormatError(f"{name}: the footer of the Puffin file has no blobs")
    for blob in blobs:
        properties = blob.get("properties") or {}
        if isinstance(target := properties.get("referenced-data-file"), str):
            properties["referenced-data-file"] = rename(target)
    payload = json.dumps(footer, separators=(",", ":")).encode()
    return data[:start] + payload + len(payload).to_bytes(4, "little") + data[-8:]
