"""Check one data or delete file of a table: tags, length, number of rows and deletion vectors.

Parquet files are verified page by page, others as AGS1 streams block by block. No value is decoded,
and at most one block is in memory. Verification continues after a fault as far as possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any, cast

import fastavro

from modcrypt.ags1.layout import MAGIC
from modcrypt.ags1.reader import Ags1Reader
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    ModcryptError,
    TagMismatchError,
)
from modcrypt.iceberg.format.manifests import FileEntry
from modcrypt.iceberg.format.parquet_files import decryption_properties
from modcrypt.iceberg.read.inventory import Keys, Mark, ReachedFile, mark_of
from modcrypt.iceberg.read.position_deletes import place_of_vector, read_vector
from modcrypt.iceberg.verify.table_findings import TableFinding, TableReport
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.format.findings import ALWAYS_OPEN
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED
from modcrypt.parquet.verify.file_verification import verify_source

MAX_BLOCK_FINDINGS = 12
"""Maximum number of blocks reported per file: with a wrong key, all blocks fail."""


_READ = ("PARQUET", "AVRO", "PUFFIN")


@dataclass
class _FileCheck:
    """The check of one file: the file, and findings about it."""

    reached: ReachedFile
    report: TableReport = field(default_factory=TableReport)


def check_file(keys: Keys, reached: ReachedFile, threads: int | None = 1) -> TableReport:
    """Check a file that a snapshot reaches, and report every fault as a finding.

    The number of tags verified and the mark of its key are noted in `reached`.
    """
    check = _FileCheck(reached)
    entry = reached.entry
    try:
        if reached.error is not None:
            raise reached.error
        if entry.file_format not in _READ:
            message = f"only length and tags are checked of files in {entry.file_format}"
            check.report.tell("unsupported", message, entry.location, warning=True)
        key_metadata = _read_agreed_keys(keys, check)
        if key_metadata is None:
            _check_plain(keys, check)
        elif entry.file_format == "PARQUET":
            _check_parquet(keys, check, key_metadata, threads)
        else:
            _check_ags1(keys, check, key_metadata)
    except (ModcryptError, OSError) as error:
        lost = isinstance(error, KeyNotFoundError) and keys.is_lost(reached.sealed_by)
        check.report.add_failure(error, entry.location, lost=lost)
    return check.report


# --- keys ----------------------------------------------------------------------------------------


def _read_agreed_keys(keys: Keys, check: _FileCheck) -> StandardKeyMetadata | None:
    """Return the key metadata of a file; report if the manifests that name it disagree."""
    entries = check.reached.entries
    first = keys.of_file(entries[0])
    mark = check.reached.mark = None if first is None else mark_of(first)
    for other in entries[1:]:
        if other.size != entries[0].size:
            check.report.tell(
                "truncation",
                f"manifests disagree about its size: {entries[0].size} and {other.size} bytes",
                other.location,
            )
        if _mark_of_entry(keys, other, entries[0], mark) != mark:
            check.report.tell(
                "key-material", "two manifests have different keys for it", other.location
            )
    if not _is_puffin(entries[0]) and len({entry.record_count for entry in entries}) > 1:
        check.report.tell(
            "format", "two manifests have different numbers of rows for it", entries[0].location
        )
    return first


def _mark_of_entry(
    keys: Keys, other: FileEntry, first: FileEntry, mark: Mark | None
) -> Mark | None:
    if other.key_metadata == first.key_metadata:
        return mark
    key_metadata = keys.of_file(other)
    return None if key_metadata is None else mark_of(key_metadata)


def _is_puffin(entry: FileEntry) -> bool:
    return entry.file_format == "PUFFIN"


# --- formats -------------------------------------------------------------------------------------


def _check_plain(keys: Keys, check: _FileCheck) -> None:
    """Check a file without key metadata, where plaintext is accepted."""
    entry = check.reached.entry
    check.report.add_plaintext(entry.location, expected=not keys.walk.metadata.is_encrypted)
    with keys.walk.open_stored(entry.location, entry.size) as source:
        if source.read_at(0, min(source.size, len(MAGIC))) in (MAGIC, MAGIC_ENCRYPTED):
            raise KeyNotFoundError(
                "the file is encrypted, but its manifest has no key metadata for it"
            )
    if entry.file_format == "PARQUET":
        _check_parquet(keys, check, None, 1)


def _check_parquet(
    keys: Keys, check: _FileCheck, keys_of_file: StandardKeyMetadata | None, threads: int | None
) -> None:
    entry = check.reached.entry
    properties = None if keys_of_file is None else decryption_properties(keys_of_file)
    with keys.walk.open_stored(entry.location, entry.size) as source:
        verified = verify_source(
            source, properties, threads=threads, expected_rows=entry.record_count
        ).verification
    check.reached.tags += verified.modules
    for finding in verified.findings:
        check.report.add(TableFinding.of(finding, entry.location))
    for note in verified.not_authenticated:
        if note.what != ALWAYS_OPEN:
            where = f"{entry.location}: {note.path}" if note.path else entry.location
            check.report.add_note(note.what, where, note.why)


def _check_ags1(keys: Keys, check: _FileCheck, keys_of_file: StandardKeyMetadata) -> None:
    entry = check.reached.entry
    with keys.walk.reader(entry.location, keys_of_file, entry.size) as reader:
        check.report.check_block_length(reader.block_length, entry.location)
        whole = _check_blocks(reader, check)
        if whole and entry.file_format == "AVRO":
            _check_records(reader, check)
        if whole and _is_puffin(entry):
            for vector in check.reached.entries:
                _check_vector(reader, check, vector)


def _check_blocks(reader: Ags1Reader, check: _FileCheck) -> bool:
    """Decrypt every block, also after one that fails; return whether all succeeded."""
    location, bad = check.reached.entry.location, 0
    buffer = memoryview(bytearray(max(1, min(reader.size, reader.block_length))))
    for start in range(0, max(1, reader.size), reader.block_length):
        try:
            reader.seek(start)
            reader.readinto(buffer[: min(reader.block_length, reader.size - start)])
            check.reached.tags += 1
        except TagMismatchError as error:
            bad += 1
            if bad <= MAX_BLOCK_FINDINGS:
                check.report.tell(error.word, str(error), location)
    if bad > MAX_BLOCK_FINDINGS:
        check.report.tell(
            TagMismatchError.word,
            f"{bad - MAX_BLOCK_FINDINGS:,} more blocks cannot be decrypted",
            location,
        )
    if bad:
        check.report.add_note("file", location, f"{bad:,} of its blocks cannot be decrypted")
    return not bad


def _check_records(reader: Ags1Reader, check: _FileCheck) -> None:
    """Count the rows of an Avro file from its block headers, without decoding a row."""
    entry = check.reached.entry
    reader.seek(0)
    try:
        blocks: Any = fastavro.block_reader(cast(IO[bytes], reader))
        count = sum(block.num_records for block in blocks)
    except (ModcryptError, OSError):
        raise
    except Exception as error:  # fastavro passes on errors of decoding and of codecs
        raise FormatError(f"not an Avro file, or a damaged one ({type(error).__name__})") from None
    if count != entry.record_count:
        check.report.tell(
            "truncation",
            f"the file has {count} rows, but its manifest says {entry.record_count}",
            entry.location,
        )


def _check_vector(reader: Ags1Reader, check: _FileCheck, entry: FileEntry) -> None:
    """Check the place, checksum and number of positions of a deletion vector."""
    try:
        start, size = place_of_vector(entry)
        if start > reader.size - size:
            raise FormatError("the deletion vector is outside of its file")
        read_vector(reader.read_at(start, size), entry)
    except FormatError as error:
        check.report.tell(error.word, str(error), entry.location)
