"""New AGS1 files of a table: each with a data key and an AAD prefix of its own."""

from __future__ import annotations

from modcrypt.ags1.writer import seal
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.parquet_files import make_folder
from modcrypt.key_metadata import StandardKeyMetadata

__all__ = ["write_sealed"]


def write_sealed(
    locations: Locations, location: str, data: bytes, key_length: int
) -> StandardKeyMetadata:
    """Write a file of a table that isn't there yet, sealed under a fresh key.

    Args:
        locations: say where that is.
        location: its name in the table.
        data: its plaintext.
        key_length: bytes of the key.

    Returns:
        Its key metadata, with the length of the file: what must be kept, and kept secret.

    Raises:
        FileExistsError: it is there.
        FormatError: the location is outside of the table.
        OSError: from the file system.
    """
    keys = StandardKeyMetadata.generate(key_length)
    sealed = seal(data, keys)
    place = locations.place(location)
    make_folder(place)
    with place.create(overwrite=False) as sink:
        sink.append(sealed)
    return keys.with_length(len(sealed))
