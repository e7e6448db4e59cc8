"""Delete files of positions, for data files that have moved: plaintext in, plaintext out.

Position deletes name their data files row by row, in Parquet or Avro; a deletion vector in the
footer of its Puffin file. Whoever gives data files other locations gives deletes other ones, too.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import FileEntry

__all__ = ["MovedDeletes", "moved_bounds", "moved_deletes"]

Rename = Callable[[str], str]
"""Gives the new location of a data file by the old one; those that stay, as they are."""

_FILE_PATH_ID = 2147483546
"""Field id of the column that names data files (spec, "Reserved Field IDs")."""

_PATH, _POS = "file_path", "pos"
_PUFFIN = b"PFA1"
_TAIL = 12  # size of the footer's payload, flags, magic


@dataclass(frozen=True, slots=True)
class MovedDeletes:
    """A delete file that names other locations.

    Attributes:
        data: the file in plaintext.
        bounds: least and greatest location, of a file that names them row by row.
    """

    data: bytes = field(repr=False)
    bounds: tuple[str, str] | None = None


def moved_deletes(data: bytes, file_format: str, rename: Rename, name: str) -> MovedDeletes:
    """Give a delete file of positions with other locations of data files.

    Args:
        data: the file in plaintext.
        file_format: `PARQUET`, `AVRO` or `PUFFIN`; in the latter blobs stay where they are.
        rename: as above.
        name: of the file, for messages.

    Raises:
        FormatError: it is no such file.
        UnsupportedFormatError: another format, or a footer of Puffin that is compressed.
    """
    with as_format_errors(name):
        if file_format == "PARQUET":
            return _parquet(data, rename, name)
        if file_format == "AVRO":
            return _avro(data, rename, name)
        if file_format == "PUFFIN":
            return MovedDeletes(_puffin(data, rename, name))
        raise UnsupportedFormatError(f"{name}: deletes in {file_format}")


def moved_bounds(entry: FileEntry, bounds: tuple[str, str] | None) -> dict[str, Any]:
    """Give the bounds in the manifest of a file of position deletes, for those of the paths.

    Args:
        entry: of the file, as it was.
        bounds: as `MovedDeletes` has them.

    Returns:
        The members `lower_bounds` and `upper_bounds` of its entry.
    """
    changes = {}
    for name, path in zip(("lower_bounds", "upper_bounds"), bounds or (), strict=False):
        changes[name] = [
            {**one, "value": path.encode()} if one["key"] == _FILE_PATH_ID else one
            for one in entry.file.get(name) or ()
        ]
    return changes


def _parquet(data: bytes, rename: Rename, name: str) -> MovedDeletes:
    try:
        table = pq.read_table(io.BytesIO(data))
        paths = table.column(_PATH).cast(pa.string()).to_pylist()
        nulls = paths.count(None) + table.column(_POS).null_count
    except (pa.ArrowException, OSError, KeyError):
        raise FormatError(f"{name}: no file of position deletes in Parquet") from None
    if nulls:
        raise FormatError(f"{name}: a position delete that names no position")
    at = table.schema.get_field_index(_PATH)
    moved = pa.array([rename(path) for path in paths], pa.string())
    kind = table.schema.field(at).with_type(pa.string())
    # Sorted, as the spec demands: the new locations may be in another order.
    table = table.set_column(at, kind, moved).sort_by([(_PATH, "ascending"), (_POS, "ascending")])
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", store_schema=False)
    return MovedDeletes(out.getvalue(), _bounds(moved.to_pylist()))


def _avro(data: bytes, rename: Rename, name: str) -> MovedDeletes:
    avro = read_avro(data, name)
    if not all(isinstance(row.get(_PATH), str) for row in avro.records):
        raise FormatError(f"{name}: no file of position deletes in Avro")
    rows = [{**row, _PATH: rename(row[_PATH])} for row in avro.records]
    rows.sort(key=lambda row: (row[_PATH], row[_POS]))
    return MovedDeletes(
        write_avro(avro.schema, rows, avro.metadata), _bounds([row[_PATH] for row in rows])
    )


def _bounds(paths: list[str]) -> tuple[str, str] | None:
    return (min(paths), max(paths)) if paths else None


def _puffin(data: bytes, rename: Rename, name: str) -> bytes:
    """Rewrite the footer: magic | payload (JSON) | its size (4, little-endian) | flags | magic."""
    size = int.from_bytes(data[-_TAIL : -_TAIL + 4], "little")
    start = len(data) - _TAIL - size
    if start < 2 * len(_PUFFIN) or not (
        data.startswith(_PUFFIN)
        and data.endswith(_PUFFIN)
        and data[start - len(_PUFFIN) : start] == _PUFFIN
    ):
        raise FormatError(f"{name}: no Puffin file")
    if any(data[-8:-4]):
        raise UnsupportedFormatError(f"{name}: a Puffin file with a compressed footer")
    footer: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        footer = json.loads(data[start:-_TAIL])
    blobs = footer.get("blobs") if isinstance(footer, dict) else None
    if not isinstance(blobs, list) or not all(isinstance(one, dict) for one in blobs):
        raise FormatError(f"{name}: the footer of the Puffin file has no blobs")
    for blob in blobs:
        properties = blob.get("properties") or {}
        if isinstance(target := properties.get("referenced-data-file"), str):
            properties["referenced-data-file"] = rename(target)
    payload = json.dumps(footer, separators=(",", ":")).encode()
    return data[:start] + payload + len(payload).to_bytes(4, "little") + data[-8:]
