"""Re-key single files of a table, in this process or in tasks of Spark."""

from __future__ import annotations

import posixpath
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from modcrypt.ags1.reader import Ags1Reader
from modcrypt.ags1.writer import Ags1Writer
from modcrypt.errors import IntegrityError, TruncationError
from modcrypt.iceberg.format.encrypted_files import decryption_properties, encryption_properties
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import KeyResolver, encrypt_for_manifest, open_from_manifest
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.tables.table_copying import unsupported_error
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.threads import usable_cores
from modcrypt.jobs.engine import Job, run_job
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.rewrite.rekey import rekey_parquet

_COPIED = 4 << 20  # number of bytes of plaintext copied at a time

FileToRewrite: TypeAlias = tuple[str, str, int, StandardKeyMetadata]
"""Location, format, trusted length and key metadata of a file."""


@dataclass(frozen=True, slots=True)
class RekeyItem:
    """A file to rewrite under another key; it can be pickled and contains no secret."""

    location: str
    file_format: str  # `PARQUET` or `AVRO`; manifests are in Avro
    size: int  # trusted length of the file in bytes
    # Key metadata of the file, encrypted under the KEK of the job.
    encrypted: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RekeyedFile:
    """A rewritten file; it can be pickled and contains no secret."""

    old: str
    location: str
    size: int
    # Key metadata of the new file, encrypted under the KEK of the job.
    encrypted: bytes = field(repr=False)


Rewrite: TypeAlias = Callable[[Locations, RekeyItem, OpenKey, KeyResolver], RekeyedFile]
"""Rewrites a file at a new location, in any process; it can be pickled and contains no secret.

It gets the KEK of the job, which decrypts the file's key metadata, and a resolver of other keys.
"""

Run: TypeAlias = Callable[
    [IcebergTable, IcebergKey, Rewrite, Sequence[RekeyItem]], Iterable[RekeyedFile]
]
"""Rewrites files of a table, in any process; gets the KEK of the job."""


def make_job(
    rewrite: Rewrite, locations: Locations, job: IcebergKey, resolver: KeyResolver
) -> Job[RekeyItem, RekeyedFile]:
    """Return the job that rewrites files with the KEK of the job, in this process."""
    opened = resolver.open_key(job)
    return Job(lambda item: rewrite(locations, item, opened, resolver))


def run_in_threads(
    table: IcebergTable, job: IcebergKey, rewrite: Rewrite, items: Sequence[RekeyItem]
) -> Iterable[RekeyedFile]:
    """Rewrite files of a table in threads of this process."""
    rewriting = make_job(rewrite, table.walk.locations, job, table.resolver)
    return run_job(rewriting, items, jobs=usable_cores())


def rewrite_files(
    run: Run, table: IcebergTable, job: OpenKey, rewrite: Rewrite, files: Sequence[FileToRewrite]
) -> list[tuple[str, StandardKeyMetadata]]:
    """Have files rewritten; return the location and key metadata of each new file."""
    encrypted = encrypt_for_manifest([keys for *_, keys in files], job)
    items = [RekeyItem(*file[:3], data) for file, data in zip(files, encrypted, strict=True)]
    done = list(run(table, job.key, rewrite, items)) if items else []
    by_old = {file.old: file for file in done}
    if len(by_old) != len(done) or by_old.keys() != {item.location for item in items}:
        raise IntegrityError(
            "the rewritten files are not exactly the requested ones; check the workers and retry"
        )
    new = [by_old[item.location] for item in items]
    return [
        (file.location, open_from_manifest(file.encrypted, job).with_length(file.size))
        for file in new
    ]


@dataclass(frozen=True, kw_only=True)
class FreshDataKeys:
    """A `Rewrite` of data files and equality delete files under fresh data keys."""

    name: str
    key_length: int

    def __call__(
        self, locations: Locations, item: RekeyItem, job: OpenKey, resolver: KeyResolver
    ) -> RekeyedFile:
        """Rewrite a file; see `Rewrite`.

        Raises:
            UnsupportedFormatError: Iceberg does not encrypt the file's format.
            TruncationError: The file has another length.
            ModcryptError: The file is not authentic.
        """
        del resolver  # the job's KEK decrypts all that is needed
        old = open_from_manifest(item.encrypted, job)
        new = StandardKeyMetadata.generate(self.key_length)
        folder, _, base = item.location.rpartition("/")
        # Drawn here, so that two attempts at the same file write to different locations.
        location = f"{folder}/{self.name}-{uuid.uuid4().hex}{posixpath.splitext(base)[1]}"
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
            raise unsupported_error(item.location, item.file_format)
        (encrypted,) = encrypt_for_manifest([new.with_length(size)], job)
        return RekeyedFile(item.location, location, size, encrypted)


def _rekey_parquet(
    source: Place, target: Place, old: StandardKeyMetadata, new: StandardKeyMetadata
) -> int:
    rekey_parquet(
        source.path,
        target,
        decryption_properties(old),
        encryption_properties(new),
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
