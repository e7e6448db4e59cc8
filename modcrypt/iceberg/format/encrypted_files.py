"""Write new files of a table, each with its own data key: Parquet with PME, others as AGS1.

Parquet files use uniform encryption with AES_GCM_V1 and an encrypted footer, as Iceberg's Java
does; the data key is the footer key. The AAD prefix is stored only in the key metadata, not in the
file, so that no other file can take its place.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from dataclasses import dataclass, field

from modcrypt.ags1.writer import encrypt
from modcrypt.iceberg.format.locations import Locations
from modcrypt.io.buffers import open_output
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.convert.encryption_plan import plan_encryption
from modcrypt.parquet.convert.encryptor import Encryption
from modcrypt.parquet.convert.plain_feed import PlainFeed
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.parquet.format.modules import chunk_start
from modcrypt.runtime.tracebacks import hide_frames


@dataclass(frozen=True, slots=True)
class EncryptedParquet:
    """A Parquet file that was written."""

    # Key metadata of the file, including its length. The caller must keep it, and keep it secret.
    keys: StandardKeyMetadata = field(repr=False)
    split_offsets: list[int]  # offsets of the row groups in the encrypted file
    column_sizes: dict[tuple[str, ...], int]  # bytes of each column, by its path in the schema

    @property
    def size(self) -> int:
        """Size of the file as stored, in bytes."""
        assert self.keys.file_length is not None
        return self.keys.file_length


def write_parquet(
    locations: Locations, location: str, source: Source, key_length: int
) -> EncryptedParquet:
    """Encrypt a new Parquet file of a table with a fresh key of `key_length` bytes, page by page.

    The pages of `source`, which is in plaintext, are not decoded.

    Raises:
        FileExistsError: The file exists already.
        UnsupportedFormatError, FormatError, LimitError, ChecksumError: The source is invalid, as
            for `encrypt_parquet`; or the location is outside the table.
    """
    keys = StandardKeyMetadata.generate(key_length)
    plan = plan_encryption(source, encryption_properties(keys))
    place = locations.place(location)
    make_folder(place)
    with open_output(place, source, overwrite=False, threads=None) as out:
        file = Encryption(out, plan.properties)
        file.add(PlainFeed(source), plan)
        file.close(plan.metadata)
        size = out.position
    sizes = Counter[tuple[str, ...]]()
    for row_group in file.row_groups:
        for chunk in row_group.columns:
            path = tuple(part.decode() for part in chunk.meta_data.path_in_schema)
            sizes[path] += int(chunk.meta_data.total_compressed_size)
    groups = [row_group for row_group in file.row_groups if row_group.columns]
    starts = [chunk_start(row_group.columns[0].meta_data) for row_group in groups]
    return EncryptedParquet(keys.with_length(size), starts, dict(sizes))


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
    encrypted = encrypt(data, keys)
    place = locations.place(location)
    make_folder(place)
    with open_sink_at(place, overwrite=False) as sink:
        sink.append(encrypted)
    return keys.with_length(len(encrypted))


def encryption_properties(keys: StandardKeyMetadata) -> FileEncryptionProperties:
    """Return properties for a new file, whose AAD prefix is not stored in it."""
    return FileEncryptionProperties(
        footer_key=keys.key, aad_prefix=keys.aad_prefix, store_aad_prefix=False
    )


def decryption_properties(keys: StandardKeyMetadata) -> FileDecryptionProperties:
    """Return properties that open a file with uniform encryption."""
    return FileDecryptionProperties(footer_key=keys.key, aad_prefix=keys.aad_prefix)


def make_folder(place: Place) -> None:
    """Create the folder of a new file; object stores have none."""
    if place.filesystem is None:
        place.make_folder()
        return
    from modcrypt.parquet.datasets.discovery import DatasetFolder

    DatasetFolder(posixpath.dirname(place.path), place.filesystem).place(place.name)
