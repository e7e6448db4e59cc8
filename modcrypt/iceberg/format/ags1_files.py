"""Write new AGS1 files of a table, each with its own data key and AAD prefix."""

from __future__ import annotations

from modcrypt.ags1.writer import seal
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.parquet_files import make_folder
from modcrypt.io.destinations import open_sink_at
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames


@hide_frames  # a manifest in plaintext holds data keys
def write_ags1(
    locations: Locations, location: str, data: bytes, key_length: int
) -> StandardKeyMetadata:
    """Encrypt a new file with a fresh key of `key_length` bytes; return its key metadata.

    The result includes the length of the file; the caller must keep it, and keep it secret. Keep
    the plaintext of a manifest out of local variables, because tracebacks hold them. Raise
    FileExistsError if the file exists already, and FormatError if the location is outside the
    table.
    """
    keys = StandardKeyMetadata.generate(key_length)
    encrypted = seal(data, keys)
    place = locations.place(location)
    make_folder(place)
    with open_sink_at(place, overwrite=False) as sink:
        sink.append(encrypted)
    return keys.with_length(len(encrypted))
