"""Check one data or delete file of a table: tags, length, number of rows and deletion vectors.

Parquet files are verified page by page, others as AGS1 streams block by block. No value is decoded,
and at most one block is in memory. Verification continues after a fault as far as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

from modcrypt.ags1.layout import MAGIC
from modcrypt.ags1.reader import Ags1Reader
from modcrypt.errors import FormatError, KeyNotFoundError, ModcryptError, TagMismatchError
from modcrypt.iceberg.format.avro_files import open_avro
from modcrypt.iceberg.format.encrypted_files import decryption_properties
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.read.inventory import Keys, ReachedFile, mark_of
from modcrypt.iceberg.read.position_deletes import place_of_vector, read_vector
from modcrypt.iceberg.verify.table_findings import TableFinding
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED
from modcrypt.parquet.format.report import ALWAYS_OPEN
from modcrypt.parquet.verify.file_verification import verify_source

MAX_BLOCK_FINDINGS = 12
"""Maximum number of blocks reported per file: with a wrong key, all blocks fail."""


_READ = ("PARQUET", "AVRO", "PUFFIN")


def check_file(keys: Keys, reached: ReachedFile, threads: int | None = 1) -> TableReport:
    """Check a file that a snapshot reaches, and report every fault as a finding.

    The number of tags verified and the mark of its key are noted in `reached`.
    """
    check = _FileCheck(keys, reached, threads)
    try:
        check.run()
    except (ModcryptError, OSError) as error:
        lost = isinstance(error, KeyNotFoundError) and keys.is_lost(reached.encrypted_by)
        check.report.add_failure(error, reached.location, lost=lost)
    return check.report


class _FileCheck:
    def __init__(self, keys: Keys, reached: ReachedFile, threads: int | None) -> None:
        self._keys, self._reached, self._threads = keys, reached, threads
        self._entry, self._location = reached.entry, reached.location
        self.report = TableReport()

    def run(self) -> None:
        """Check the file as far as possible; raise the error that ends the check."""
        if self._reached.error is not None:
            raise self._reached.error
        file_format = self._entry.file_format
        if file_format not in _READ:
            message = f"only length and tags are checked of files in {file_format}"
            self.report.note("unsupported", message, self._location, warning=True)
        if (key_metadata := self._read_agreed_keys()) is None:
            self._check_plain()
        elif file_format == "PARQUET":
            self._check_parquet(key_metadata, self._threads)
        else:
            self._check_ags1(key_metadata)

    def _tell(self, word: str, message: str) -> None:
        self.report.note(word, message, self._location)

    def _read_agreed_keys(self) -> StandardKeyMetadata | None:
        """Return the key metadata of the file; report if the manifests that name it disagree."""
        entry, entries = self._entry, self._reached.entries
        found = self._keys.of_file(entry)
        mark = self._reached.mark = None if found is None else mark_of(found)
        for other in entries[1:]:
            if other.size != entry.size:
                sizes = f"{entry.size} and {other.size} bytes"
                message = f"manifests disagree about its size: {sizes}"
                self.report.note("truncation", message, other.location)
            same = other.key_metadata == entry.key_metadata
            own = found if same else self._keys.of_file(other)
            if (None if own is None else mark_of(own)) != mark:
                message = "two manifests have different keys for it"
                self.report.note("key-material", message, other.location)
        if entry.file_format != "PUFFIN" and len({each.record_count for each in entries}) > 1:
            self._tell("format", "two manifests have different numbers of rows for it")
        return found

    def _check_plain(self) -> None:
        """Check a file without key metadata, where plaintext is accepted."""
        walk = self._keys.walk
        self.report.add_plaintext(self._location, expected=not walk.metadata.is_encrypted)
        with walk.open_stored(self._location, self._entry.size) as source:
            if source.read_at(0, min(source.size, len(MAGIC))) in (MAGIC, MAGIC_ENCRYPTED):
                why = "the file is encrypted, but its manifest has no key metadata for it"
                raise KeyNotFoundError(why)
        if self._entry.file_format == "PARQUET":
            self._check_parquet(None, 1)

    def _check_parquet(self, keys: StandardKeyMetadata | None, threads: int | None) -> None:
        properties = None if keys is None else decryption_properties(keys)
        with self._keys.walk.open_stored(self._location, self._entry.size) as source:
            verified = verify_source(
                source, properties, threads=threads, expected_rows=self._entry.record_count
            ).verification
        self._reached.tags += verified.modules
        for finding in verified.findings:
            self.report.add(TableFinding.of(finding, self._location))
        for note in verified.not_authenticated:
            if note.what != ALWAYS_OPEN:
                where = f"{self._location}: {note.path}" if note.path else self._location
                self.report.add_note(note.what, where, note.why)

    def _check_ags1(self, keys: StandardKeyMetadata) -> None:
        entry = self._entry
        with self._keys.walk.reader(self._location, keys, entry.size) as reader:
            self.report.check_block_length(reader.block_length, self._location)
            whole = self._check_blocks(reader)
            if whole and entry.file_format == "AVRO":
                self._check_records(reader)
            if whole and entry.file_format == "PUFFIN":
                for vector in self._reached.entries:
                    self._check_vector(reader, vector)

    def _check_blocks(self, reader: Ags1Reader) -> bool:
        """Decrypt every block, also after one that fails; return whether all succeeded."""
        bad = 0
        buffer = memoryview(bytearray(max(1, min(reader.size, reader.block_length))))
        for start in range(0, max(1, reader.size), reader.block_length):
            try:
                reader.seek(start)
                reader.readinto(buffer[: min(reader.block_length, reader.size - start)])
                self._reached.tags += 1
            except TagMismatchError as error:
                bad += 1
                if bad <= MAX_BLOCK_FINDINGS:
                    self._tell(error.word, str(error))
        if bad > MAX_BLOCK_FINDINGS:
            more = bad - MAX_BLOCK_FINDINGS
            self._tell(TagMismatchError.word, f"{more:,} more blocks cannot be decrypted")
        if bad:
            why = f"{bad:,} of its blocks cannot be decrypted"
            self.report.add_note("file", self._location, why)
        return not bad

    def _check_records(self, reader: Ags1Reader) -> None:
        """Count the rows of an Avro file as scans find its blocks, without decoding a row."""
        avro = open_avro(_Plaintext(reader), self._location)
        count = sum(rows for rows, _ in avro.blocks)
        if count != self._entry.record_count:
            listed = self._entry.record_count
            self._tell("truncation", f"the file has {count} rows, but its manifest says {listed}")

    def _check_vector(self, reader: Ags1Reader, entry: FileEntry) -> None:
        try:
            start, size = place_of_vector(entry)
            if start > reader.size - size:
                raise FormatError("the deletion vector is outside of its file")
            read_vector(reader.read_at(start, size), entry)
        except FormatError as error:
            self.report.note(error.word, str(error), entry.location)


@dataclass(frozen=True)
class _Plaintext:
    """The plaintext of a stream in the form of bytes, of which only the slices asked for are read.

    This keeps only one block of an Avro file in memory.
    """

    reader: Ags1Reader

    def __len__(self) -> int:
        return self.reader.size

    def __getitem__(self, where: slice, /) -> bytes:
        start, stop, _ = where.indices(self.reader.size)
        return self.reader.read_at(start, max(0, stop - start))
