"""Write new AGS1 files of a table, each with its own data key and AAD prefix."""

from __future__ import annotations

from modcrypt.ags1.writer import seal
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.parquet_files import make_folder
from modcrypt.io.destinations import open_sink_at
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.tracebacks import hide_frames


@hide_frames  # a manifest in plaintext holds data keys
def write_ags1(
    locations: Locations, location: str, data: bytes, key_length: int
) -> StandardKeyMetadata:
    """Encrypt a new file of a table with a fresh key and write it.

    Args:
        locations: Mapping from locations to places.
        location: Location of the new file in the table.
        data: Plaintext of the file. Keep that of a manifest out of local variables, because
            tracebacks hold them.
        key_length: Length of the key in bytes.

    Returns:
        The key metadata of the file, including its length. The caller must keep it, and keep it
        secret.

    Raises:
        FileExistsError: The file exists already.
        FormatError: The location is outside the table.
        OSError: The file system reports an error.
    """
    keys = StandardKeyMetadata.generate(key_length)
    sealed = seal(data, keys)
    place = locations.place(location)
    make_folder(place)
    with open_sink_at(place, overwrite=False) as sink:
        sink.append(sealed)
    return keys.with_length(len(sealed))
