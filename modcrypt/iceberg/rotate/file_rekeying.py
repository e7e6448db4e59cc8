"""Give single files of a table fresh data keys, here or in tasks of Spark."""

from __future__ import annotations

import posixpath
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from modcrypt.ags1.reader import Ags1Reader
from modcrypt.ags1.writer import Ags1Writer
from modcrypt.errors import IntegrityError, TruncationError, UnsupportedFormatError
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import open_from_manifest, seal_for_manifest
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.parquet.rewrite.rekey import rekey_parquet

_COPIED = 4 << 20
"""Number of bytes of plaintext copied at a time."""


@dataclass(frozen=True, slots=True)
class RekeyItem:
    """A file to rewrite under another key; it can be pickled and contains no secret.

    Attributes:
        location: Location of the file.
        file_format: `PARQUET` or `AVRO`.
        size: Trusted length of the file in bytes.
        sealed: Key metadata of the file, encrypted under the KEK of the job.
    """

    location: str
    file_format: str
    size: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RekeyedFile:
    """A rewritten file; it can be pickled and contains no secret.

    Attributes:
        old: Location of the old file.
        location: Location of the new file.
        size: Stored length of the new file in bytes.
        sealed: Key metadata of the new file, encrypted under the KEK of the job.
    """

    old: str
    location: str
    size: int
    sealed: bytes = field(repr=False)


def rekey_file(
    locations: Locations, item: RekeyItem, job: OpenKey, name: str, key_length: int
) -> RekeyedFile:
    """Rewrite a file under a fresh key at a new location.

    Args:
        locations: Mapping of locations to places.
        item: The file.
        job: KEK of the job, which decrypts the file's key metadata.
        name: Name of the job, used as prefix of the new file's name.
        key_length: Length of the fresh key in bytes.

    Raises:
        UnsupportedFormatError: Iceberg does not encrypt the file's format.
        TruncationError: The file has another length.
        ModcryptError, OSError: The file is not authentic, or cannot be read or written.
    """
    old = open_from_manifest(item.sealed, job)
    new = StandardKeyMetadata.generate(key_length)
    folder, _, base = item.location.rpartition("/")
    # Drawn here, so that two attempts at the same file write to different locations.
    location = f"{folder}/{name}-{uuid.uuid4().hex}{posixpath.splitext(base)[1]}"
    source, target = locations.place(item.location), locations.place(location)
    with open_source_at(source) as opened:
        if opened.size != item.size:
            raise TruncationError(
                f"{item.location}: the file has {opened.size} bytes, "
                f"but its manifest says {item.size}"
            )
    if item.file_format == "PARQUET":
        size = _rekey_parquet(source, target, old, new)
    elif item.file_format == "AVRO":
        size = _rekey_ags1(source, target, old.with_length(item.size), new)
    else:
        raise _unsupported_error(item.location, item.file_format)
    (sealed,) = seal_for_manifest([new.with_length(size)], job)
    return RekeyedFile(item.location, location, size, sealed)


def match_results(items: Sequence[RekeyItem], done: Sequence[RekeyedFile]) -> Iterator[RekeyedFile]:
    """Return the rewritten files in the order of the requested items.

    Raises:
        IntegrityError: The results are not exactly one for each item.
    """
    by_old = {file.old: file for file in done}
    if len(by_old) != len(done) or by_old.keys() != {item.location for item in items}:
        raise IntegrityError(
            "the rewritten files are not exactly the requested ones; check the workers and retry"
        )
    return (by_old[item.location] for item in items)


def _rekey_parquet(
    source: Place, target: Place, old: StandardKeyMetadata, new: StandardKeyMetadata
) -> int:
    rekey_parquet(
        source.path,
        target,
        FileDecryptionProperties(footer_key=old.key, aad_prefix=old.aad_prefix or None),
        FileEncryptionProperties(
            footer_key=new.key, aad_prefix=new.aad_prefix, store_aad_prefix=False
        ),
        filesystem=source.filesystem,
        overwrite=False,
        threads=1,  # several files are rewritten concurrently
    )
    with open_source_at(target) as opened:
        return opened.size


def _rekey_ags1(
    source: Place, target: Place, old: StandardKeyMetadata, new: StandardKeyMetadata
) -> int:
    with (
        Ags1Reader(source.path, old, filesystem=source.filesystem) as reader,
        Ags1Writer(target, new, overwrite=False) as writer,
    ):
        shutil.copyfileobj(reader, writer, _COPIED)
    return writer.encrypted_length


def _unsupported_error(location: str, file_format: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{location}: Iceberg does not encrypt files in {file_format}")
