"""One data or delete file of a table: every tag, its length, its rows, and its deletion vectors.

Parquet files are verified page by page, others as AGS1 streams, block by block: no value is
decoded, and nothing is kept but a block. A fault ends nothing that can still be looked at.
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
from modcrypt.iceberg.read.inventory import Keys, Mark, ReachedFile, mark_of, sealing_key
from modcrypt.iceberg.read.position_deletes import read_vector
from modcrypt.iceberg.verify.table_findings import CheckedTableFile, TableFinding, TableReport
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED
from modcrypt.parquet.verify.file_verification import verify_source
from modcrypt.parquet.verify.findings import ALWAYS_OPEN

__all__ = ["FileCheck", "check_file"]

MAX_BLOCK_FINDINGS = 12
"""Most blocks told of one file: a wrong key would give all of them."""


_READ = ("PARQUET", "AVRO", "PUFFIN")


@dataclass
class FileCheck:
    """How a file was found.

    Attributes:
        reached: the file.
        report: what was found.
        tags: how many were verified.
        mark: of its data key; None if that could not be had.
    """

    reached: ReachedFile
    report: TableReport = field(default_factory=TableReport)
    tags: int = 0
    mark: Mark | None = field(default=None, repr=False)

    def result(self) -> CheckedTableFile:
        """Give it as it is told."""
        entry = self.reached.entry
        return CheckedTableFile(
            kind=self.reached.kind,
            location=entry.location,
            size=entry.size,
            records=sum(one.record_count for one in self.reached.entries),
            encrypted=entry.key_metadata is not None,
            tags=self.tags,
            ok=self.report.faults == 0,
        )


def check_file(keys: Keys, reached: ReachedFile, threads: int | None = 1) -> FileCheck:
    """Check a file that a snapshot reaches; whatever is wrong with it becomes a finding."""
    check = FileCheck(reached)
    entry = reached.entry
    try:
        if reached.error is not None:
            raise reached.error
        if entry.file_format not in _READ:
            message = f"files in {entry.file_format} are not read: only its length and tags are"
            check.report.tell("unsupported", message, entry.location, warning=True)
        found = _agreed(keys, check)
        if found is None:
            _check_plain(keys, check)
        elif entry.file_format == "PARQUET":
            _check_parquet(keys, check, found, threads)
        else:
            _check_ags1(keys, check, found)
    except (ModcryptError, OSError) as error:
        check.report.failed(error, entry.location, lost=_is_lost(keys, entry, error))
    return check


def _is_lost(keys: Keys, entry: FileEntry, error: Exception) -> bool:
    """Whether the key is missing that the table itself should have."""
    sealed = sealing_key(entry.key_metadata)
    if not isinstance(error, KeyNotFoundError):
        return False
    return sealed is None or keys.is_lost(sealed[0], single=sealed[1])


# --- keys ----------------------------------------------------------------------------------------


def _agreed(keys: Keys, check: FileCheck) -> StandardKeyMetadata | None:
    """Give the key metadata of a file, on which all manifests that name it should agree."""
    entries = check.reached.entries
    first = keys.of_file(entries[0])
    check.mark = None if first is None else mark_of(first)
    for other in entries[1:]:
        if other.size != entries[0].size:
            check.report.tell(
                "truncation",
                f"one manifest says that it has {entries[0].size} bytes, another {other.size}",
                other.location,
            )
        if _mark(keys, other, entries[0], check.mark) != check.mark:
            check.report.tell(
                "key-material", "two manifests give it different keys", other.location
            )
    if not _is_puffin(entries[0]) and len({one.record_count for one in entries}) > 1:
        check.report.tell(
            "format", "two manifests give it different numbers of rows", entries[0].location
        )
    return first


def _mark(keys: Keys, other: FileEntry, first: FileEntry, mark: Mark | None) -> Mark | None:
    if other.key_metadata == first.key_metadata:
        return mark
    found = keys.of_file(other)
    return None if found is None else mark_of(found)


def _is_puffin(entry: FileEntry) -> bool:
    return entry.file_format == "PUFFIN"


# --- formats -------------------------------------------------------------------------------------


def _check_plain(keys: Keys, check: FileCheck) -> None:
    """Look at a file that has no key metadata, where that is accepted."""
    entry = check.reached.entry
    check.report.plain(entry.location, expected=not keys.walk.metadata.is_encrypted)
    with keys.walk.opened(entry.location, entry.size) as source:
        if source.read_at(0, min(source.size, len(MAGIC))) in (MAGIC, MAGIC_ENCRYPTED):
            raise KeyNotFoundError("it is encrypted, and no key metadata is kept for it")
    if entry.file_format == "PARQUET":
        _check_parquet(keys, check, None, 1)


def _check_parquet(
    keys: Keys, check: FileCheck, found: StandardKeyMetadata | None, threads: int | None
) -> None:
    entry = check.reached.entry
    properties = None
    if found is not None:  # Java writes uniform encryption, the prefix not stored
        properties = FileDecryptionProperties(
            footer_key=found.key, aad_prefix=found.aad_prefix or None
        )
    with keys.walk.opened(entry.location, entry.size) as source:
        verified = verify_source(
            source, properties, threads=threads, expected_rows=entry.record_count
        ).verification
    check.tags += verified.modules
    for one in verified.findings:
        check.report.add(
            TableFinding(
                word=one.word,
                message=one.message,
                severity=one.severity,
                start=one.start,
                end=one.end,
                module=one.module,
                location=entry.location,
            )
        )
    for note in verified.not_authenticated:
        if note.what != ALWAYS_OPEN:
            where = f"{entry.location}: {note.path}" if note.path else entry.location
            check.report.note(note.what, where, note.why)


def _check_ags1(keys: Keys, check: FileCheck, found: StandardKeyMetadata) -> None:
    entry = check.reached.entry
    with keys.walk.reader(entry.location, found, entry.size) as reader:
        check.report.block_length(reader.block_length, entry.location)
        whole = _check_blocks(reader, check)
        if whole and entry.file_format == "AVRO":
            _check_records(reader, check)
        if whole and _is_puffin(entry):
            for vector in check.reached.entries:
                _check_vector(reader, check, vector)


def _check_blocks(reader: Ags1Reader, check: FileCheck) -> bool:
    """Open every block, also those after one that does not open."""
    location, bad = check.reached.entry.location, 0
    buffer = memoryview(bytearray(max(1, min(reader.size, reader.block_length))))
    for start in range(0, max(1, reader.size), reader.block_length):
        try:
            reader.seek(start)
            reader.readinto(buffer[: min(reader.block_length, reader.size - start)])
            check.tags += 1
        except TagMismatchError as error:
            bad += 1
            if bad <= MAX_BLOCK_FINDINGS:
                check.report.tell(error.word, str(error), location)
    if bad > MAX_BLOCK_FINDINGS:
        check.report.tell(
            TagMismatchError.word,
            f"{bad - MAX_BLOCK_FINDINGS:,} more blocks do not open",
            location,
        )
    if bad:
        check.report.note("file", location, f"{bad:,} of its blocks do not open")
    return not bad


def _check_records(reader: Ags1Reader, check: FileCheck) -> None:
    """Count the rows of an Avro file by its blocks, whose headers tell; none is decoded."""
    entry = check.reached.entry
    reader.seek(0)
    try:
        blocks: Any = fastavro.block_reader(cast(IO[bytes], reader))
        count = sum(block.num_records for block in blocks)
    except (ModcryptError, OSError):
        raise
    except Exception as error:  # fastavro lets through what its decoding runs into, and codecs
        raise FormatError(f"no Avro file, or a damaged one ({type(error).__name__})") from None
    if count != entry.record_count:
        check.report.tell(
            "truncation",
            f"the file has {count} rows, its manifest says {entry.record_count}",
            entry.location,
        )


def _check_vector(reader: Ags1Reader, check: FileCheck, entry: FileEntry) -> None:
    """Check the place, checksum and number of positions of a deletion vector."""
    start, size = entry.file.get("content_offset"), entry.file.get("content_size_in_bytes")
    try:
        if type(start) is not int or type(size) is not int or not 0 <= start <= reader.size - size:
            raise FormatError("a deletion vector that does not lie in its file")
        read_vector(reader.read_at(start, max(0, size)), entry)
    except FormatError as error:
        check.report.tell(error.word, str(error), entry.location)
