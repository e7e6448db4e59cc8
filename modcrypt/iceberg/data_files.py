"""Data files of a table as plaintext Parquet, whatever they are stored as."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.avro_files import read_avro
from modcrypt.iceberg.manifests import FileEntry
from modcrypt.iceberg.walk import Walk
from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.parquet.view import open_parquet

__all__ = ["open_data_file", "open_parquet_file"]


def open_data_file(walk: Walk, entry: FileEntry) -> Any:
    """Open a data file as a file object in which there is plaintext Parquet.

    Raises:
        UnsupportedFormatError: it is ORC, which Iceberg does not encrypt.
        ModcryptError: its key can't be had, or it is not what was written.
    """
    if entry.file_format == "PARQUET":
        return open_parquet_file(walk, entry)
    if entry.file_format == "AVRO":
        return io.BytesIO(_as_parquet(walk, entry))
    raise UnsupportedFormatError(f"{entry.location}: data files in {entry.file_format} aren't read")


def open_parquet_file(walk: Walk, entry: FileEntry) -> Any:
    """Open a Parquet file; raises as `open_data_file`."""
    keys = walk.file_keys(entry)
    if keys is None:
        return io.BytesIO(walk.read(entry.location, None, entry.size))
    # Java writes uniform encryption, the prefix not stored.
    properties = FileDecryptionProperties(footer_key=keys.key, aad_prefix=keys.aad_prefix or None)
    place = walk.place(entry.location)
    with walk.opened(entry.location, entry.size):
        pass  # it has the length that it should have
    return open_parquet(place.path, properties, filesystem=place.filesystem)


def _as_parquet(walk: Walk, entry: FileEntry) -> bytes:
    """Decode an Avro file, and encode its rows with the field ids of its schema."""
    avro = read_avro(walk.read(entry.location, walk.file_keys(entry), entry.size), entry.location)
    schema = schema_to_pyarrow(AvroSchemaConversion().avro_to_iceberg(avro.schema))
    rows = pa.Table.from_pylist(avro.records, schema=schema)
    out = io.BytesIO()
    pq.write_table(rows, out, compression="none", store_schema=False)
    return out.getvalue()
