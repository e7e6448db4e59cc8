"""New Parquet files of a table, by PME as Iceberg's Java has it: each under a data key of its own.

Uniform encryption by AES_GCM_V1, the footer encrypted; the data key is the footer key. The AAD
prefix is not stored: it is in the key metadata alone, so that no other file can take this one's
place.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any

from modcrypt.iceberg.format.locations import Locations
from modcrypt.io.buffers import open_output
from modcrypt.io.storage import Place, Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.convert.encryptor import Encryption, PlainFeed, plan_encryption
from modcrypt.parquet.crypto.properties import FileEncryptionProperties

__all__ = ["SealedParquet", "make_folder", "write_parquet"]


@dataclass(frozen=True, slots=True)
class SealedParquet:
    """A Parquet file that was written.

    Attributes:
        location: of the file.
        keys: its key metadata, with its length: what must be kept, and kept secret.
        split_offsets: where its row groups begin, as the encrypted file has them.
        column_sizes: bytes of each column, by its path in the schema.
    """

    location: str
    keys: StandardKeyMetadata = field(repr=False)
    split_offsets: list[int]
    column_sizes: dict[tuple[str, ...], int]

    @property
    def size(self) -> int:
        """Bytes of the file as it is stored."""
        assert self.keys.file_length is not None
        return self.keys.file_length


def write_parquet(
    locations: Locations, location: str, source: Source, key_length: int
) -> SealedParquet:
    """Write a Parquet file of a table that isn't there yet, sealed page by page.

    Args:
        locations: say where that is.
        location: its name in the table.
        source: in plaintext; pages are not decoded.
        key_length: bytes of the key.

    Raises:
        FileExistsError: it is there.
        UnsupportedFormatError, FormatError, LimitError, ChecksumError: as `encrypt_parquet`; or
            the location is outside of the table.
        OSError: from the file system.
    """
    keys = StandardKeyMetadata.generate(key_length)
    properties = FileEncryptionProperties(
        footer_key=keys.key, aad_prefix=keys.aad_prefix, store_aad_prefix=False
    )
    plan = plan_encryption(source, properties)
    place = locations.place(location)
    make_folder(place)
    with open_output(place, source, overwrite=False, threads=None) as out:
        file = Encryption(out, plan.properties)
        file.add(PlainFeed(source), plan)
        file.close(plan.metadata)
        size = out.position
    return SealedParquet(
        location,
        keys.with_length(size),
        [_start(row_group) for row_group in file.row_groups if row_group.columns],
        _column_sizes(file.row_groups),
    )


def make_folder(place: Place) -> None:
    """Make the folder of a file that is to be written; in a store there are none."""
    if place.filesystem is None:
        place.make_folder()
        return
    from modcrypt.parquet.datasets.discovery import Folder

    Folder(posixpath.dirname(place.path), place.filesystem).place(place.name)


def _start(row_group: Any) -> int:
    first = row_group.columns[0].meta_data
    dictionary, data = first.dictionary_page_offset, int(first.data_page_offset)
    return data if dictionary is None else min(data, int(dictionary))


def _column_sizes(row_groups: list[Any]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for row_group in row_groups:
        for chunk in row_group.columns:
            path = tuple(part.decode() for part in chunk.meta_data.path_in_schema)
            found[path] = found.get(path, 0) + int(chunk.meta_data.total_compressed_size)
    return found
