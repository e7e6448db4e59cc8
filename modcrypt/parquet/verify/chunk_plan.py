"""Find the keys and places of the column chunks in a file under verification.

A fault does not end the search. Chunks that cannot be located are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, UnsupportedFormatError
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.crypto.chunk_opening import Chunk, ChunkOpening
from modcrypt.parquet.crypto.ciphers import FileCipher
from modcrypt.parquet.crypto.column_kinds import (
    COLUMN_KEY,
    FOOTER_KEY,
    declares_plaintext,
    find_kinds,
    given_key_faults,
    requirement_faults,
)
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.compact import UNKNOWN
from modcrypt.parquet.format.findings import MAX_FINDINGS
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy, new, set_fields
from modcrypt.parquet.format.kept_place import KeptPlace, find_place
from modcrypt.parquet.format.modules import (
    MAX_COLUMNS,
    MAX_ROW_GROUPS,
    locate_parts,
    ordinal_faults,
    shape_faults,
)
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import Leaf, leaf_elements, leaves_of
from modcrypt.parquet.verify.diagnosis import Detective

MAX_EXPLAINED = 200
"""Number of findings in a file after which faults in column metadata are no longer diagnosed."""

_NOWHERE = new("ColumnMetaData", total_compressed_size=0, data_page_offset=0)
"""Metadata that stands in for hidden metadata: the indexes of the chunk can be located."""

MAX_GAPS = 8
"""Maximum number of gaps listed: Polars leaves one after each chunk of a plaintext file."""


@dataclass(slots=True)
class ChunkPlan:
    """The chunks of a file to check, after its footer was read."""

    source: Source
    properties: FileDecryptionProperties
    footer: Footer
    report: Report
    leaves: list[Leaf] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    listed: list[Chunk] = field(default_factory=list)  # all chunks, by row group and column
    chunks: list[Chunk] = field(default_factory=list)  # chunks whose place is known
    keys: dict[int, Key] = field(default_factory=dict)  # by column, from its first row group
    kept: KeptPlace | None = None  # place of the module that restores the file
    names_keys: bool = True  # whether chunks get the names of their keys, which take time to read
    all_known: bool = True  # whether every chunk's place is known
    _detective: Detective | None = None
    opening: ChunkOpening = field(init=False)

    def find_chunks(self) -> None:
        """Check the footer's consistency, find keys, open column metadata, and locate chunks."""
        metadata = self.footer.metadata
        if not self._check_shape(metadata):
            note = "its modules could not be checked: its schema is invalid"
            self.report.add_note("file", None, note)
            return
        self.paths = [".".join(leaf.path) for leaf in self.leaves]
        self.opening = ChunkOpening(self.footer, self.properties, self.leaves, self.report)
        for r, row_group in enumerate(metadata.row_groups):
            columns = min(len(row_group.columns), len(self.leaves))
            self.listed += [self.opening.chunk(r, c) for c in range(columns)]
            if len(row_group.columns) != len(self.leaves):
                self.all_known = False
        for chunk in self.listed:  # the diagnosis of one chunk tries other chunks' keys
            self._find_key(chunk)
        if self.footer.has_cipher:
            self._detective = self.make_detective(self.footer.cipher)
        for chunk in self.listed:
            if self._open_metadata(chunk):
                self.chunks.append(chunk)
            else:
                self.all_known = False
                chunk.struct = copy(chunk.stored)
                chunk.struct.meta_data = _NOWHERE
        self._check_kinds()
        self._check_places()

    def _check_shape(self, metadata: ThriftStruct) -> bool:
        """Check that schema and row groups fit together; return whether chunks can be listed."""
        try:
            self.leaves = leaf_elements(metadata.schema)
        except FormatError as error:
            self.report.add_error(error, *self.footer.inside)
            return False
        plain = not self.footer.encrypted
        shape = shape_faults(metadata, len(self.leaves), plain=plain)
        for fault in chain(shape, ordinal_faults(metadata)):
            self.report.add_error(fault, *self.footer.inside)
        fits = len(self.leaves) <= MAX_COLUMNS and len(metadata.row_groups) <= MAX_ROW_GROUPS
        return fits or plain

    def make_detective(self, cipher: FileCipher) -> Detective:
        """Return a new Detective that knows the file's keys."""
        rows = len(self.footer.metadata.row_groups)
        return Detective(cipher, self.keys, self.footer.footer_key, self.paths, rows)

    def _add_footer_fault(self, word: str, message: str) -> None:
        self.report.add_fault(word, message, *self.footer.inside)

    def _find_key(self, out: Chunk) -> None:
        """Look for a chunk's key, and note the reason if there is none."""
        footer, path = self.footer, out.path
        if not out.encrypted:
            if footer.encrypted and footer.signed is None:
                declared = declares_plaintext(self.properties, out.leaf.path)
                why = "it is in plaintext" + (", as the policy allows" if declared else "")
                self.report.add_note("column", path, why, by_design=declared)
            return
        if self.names_keys:
            self.opening.name_key(out)
        answer = self.opening.find_key(out.row_group, out.column)
        if answer.key is None or (out.kind == FOOTER_KEY and not footer.has_cipher):
            out.key_works = False
        if not footer.has_cipher:
            self.report.add_note("column", path, footer.locked, footer.answer.word)
        elif answer.key is None:
            self.report.add_note("column", path, answer.why, answer.word)
        else:
            out.key = answer.key
            self.keys.setdefault(out.column, answer.key)

    def _open_metadata(self, out: Chunk) -> bool:
        """Open a chunk's metadata; return whether its place is known."""
        stored = out.stored
        if stored.file_path is not None:
            return False
        self.opening.open(out, self._add_metadata_fault)
        if out.key_works and stored.encrypted_column_metadata is not None:
            # The bytes of a verified footer are counted already, and contain this module.
            size = 0 if self.footer.is_verified else len(stored.encrypted_column_metadata)
            self.report.count_verified(size)
            self._compare_legacy(out)
        elif stored.encrypted_column_metadata is not None:
            self.all_known = False  # the copy for old readers locates no bloom filter
            if out.key is not None:
                self.report.add_note("column", out.path, "its column metadata did not open")
        elif out.kind == COLUMN_KEY:
            self.all_known = False
        md = out.metadata
        if md is None or min(md.total_compressed_size, md.data_page_offset, md.num_values) < 0:
            return False
        if md.num_values and not md.total_compressed_size:
            message = f"{out.where}: it has {md.num_values} values, but no pages"
            self._add_footer_fault("format", message)
        return True

    def _add_metadata_fault(self, out: Chunk, error: ModcryptError) -> None:
        cipher, stored = out.cipher, out.stored.encrypted_column_metadata
        assert cipher is not None
        module, cause = cipher.id(ModuleType.COLUMN_METADATA), None
        start, end = self.footer.inside
        known = len(self.report.findings)
        if isinstance(error, TagMismatchError) and known < MAX_EXPLAINED:
            assert self._detective is not None
            cause = self._detective.explain(cipher, module, memoryview(stored))
        if self.footer.plaintext_footer and known < MAX_FINDINGS:
            offset = self.footer.tail.data.find(stored)
            if offset >= 0:
                start, end = start + offset, start + offset + len(stored)
        message = f"{module}: {error}" if isinstance(error, FormatError) else str(error)
        hint = "" if cause is None else f". {cause.hint}"
        self.report.add_fault(error.word, message + hint, start, end, module)

    def _compare_legacy(self, out: Chunk) -> None:
        """Compare the copy for readers without the key with the encrypted metadata."""
        if out.stored.meta_data is None:
            return
        legacy, true = set_fields(out.stored.meta_data), set_fields(out.metadata)
        differing = sorted(n for n, value in legacy.items() if true.get(n) != value)
        unknown = getattr(out.stored.meta_data, UNKNOWN)
        if unknown and unknown != getattr(out.metadata, UNKNOWN):
            differing.append("fields that modcrypt does not know")
        if differing:
            self._add_footer_fault(
                "integrity",
                f"{out.where}: the column metadata for legacy readers differs from the encrypted "
                f"metadata in {', '.join(differing)}: readers without the key are misled",
            )

    def _check_kinds(self) -> None:
        """Add faults about columns that are not encrypted as they must be."""
        metadata, properties = self.footer.metadata, self.properties
        paths = [leaf.path for leaf in self.leaves]
        row_groups = range(len(metadata.row_groups))
        kinds = find_kinds(metadata, paths, range(len(paths)), row_groups, self.report)
        if not self.footer.encrypted:
            return
        if not isinstance(properties.require_encrypted, bool):
            try:
                leaves_of(paths, properties.require_encrypted)
            except ValueError as error:
                message = f"{error}; required columns must exist and be encrypted"
                self._add_footer_fault("plaintext", message)
        given = given_key_faults(properties, paths, kinds)
        for fault in chain(given, requirement_faults(properties, paths, kinds)):
            self.report.add_error(fault, *self.footer.inside)

    def _check_places(self) -> None:
        """Report overlapping parts, and bytes between parts that nothing refers to."""
        chunks = {(chunk.row_group, chunk.column): chunk for chunk in self.listed}
        structs = {place: c.struct for place, c in chunks.items() if c.stored.file_path is None}
        footer = self.footer
        spans, overlapping, misplaced = locate_parts(
            structs, footer.body_end, self.source, self.report, footer.inside,
            # Nothing authenticates the places in a plaintext file, and readers ignore such parts.
            "fault" if footer.encrypted else "warning",
        )  # fmt: skip
        for span in spans:
            chunk = chunks[span.row_group, span.column]
            chunk.spans = *chunk.spans, span
            chunk.size += span.end - span.start
            if span in overlapping:
                chunk.overlapping |= {span.part}
        self.all_known = self.all_known and not misplaced
        self._check_kept()
        places = [(span.start, span.end) for span in spans]
        places += [] if self.kept is None else [(self.kept.start, self.kept.end)]
        gaps = list(_find_gaps(places, self.footer.body_end))
        if not gaps or not self.all_known:  # chunks whose place is unknown may lie in the gaps
            return
        if self.footer.signed is not None:
            start, end = gaps[0]
            message = f"{end - start} bytes at byte {start} are not covered by the signature"
            self.report.add_fault("writer-signature", message, start, end)
        for start, end in gaps[:MAX_GAPS]:
            message = f"{end - start} bytes at byte {start} belong to no module"
            self.report.add_warning("format", message, start, end)
        unused = sum(end - start for start, end in gaps)
        if len(gaps) > MAX_GAPS:
            more = len(gaps) - MAX_GAPS
            message = f"{more} more runs of bytes belong to no module: {unused} bytes in all"
            self.report.add_warning("format", message)
        note = f"{unused} bytes between the modules belong to no module"
        self.report.add_note("bytes", None, note)

    def _check_kept(self) -> None:
        """Find the module that restores the file, and check it."""
        footer, report = self.footer, self.report
        try:
            self.kept = place = find_place(footer.absent, footer.body_end)
            if place is None:
                return
            place.read(self.source)
        except ModcryptError as error:
            newer = isinstance(error, UnsupportedFormatError)
            report.add_error(error, *footer.inside, severity="warning" if newer else "fault")
            return
        state: State = "unchecked"
        if footer.is_verified:
            report.count_verified(place.end - place.start)
            state = "authentic"
        if report.regions is not None:  # the name of a key takes time to decode
            report.add_region(place.start, place.end, "restoration", state, key=footer.key_name)


def _find_gaps(places: list[tuple[int, int]], body_end: int) -> Iterator[tuple[int, int]]:
    reached = MAGIC_SIZE
    for start, end in [*sorted(places), (body_end, body_end)]:
        if start > reached:
            yield reached, start
        reached = max(reached, end)
