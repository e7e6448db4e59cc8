"""Find the keys and places of the column chunks in a file under verification.

A fault does not end the search. Chunks that cannot be located are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from modcrypt.aad import MAX_ORDINAL, ModuleType
from modcrypt.errors import (
    FormatError,
    ModcryptError,
    TagMismatchError,
)
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.column_kinds import (
    COLUMN_KEY,
    FOOTER_KEY,
    check_metadata_key,
    chunk_kind,
    declares_plaintext,
    find_kinds,
    given_key_faults,
    requirement_faults,
)
from modcrypt.parquet.crypto.footer_opening import Footer, open_column_metadata
from modcrypt.parquet.crypto.key_lookup import ColumnKeys, KeyAnswer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.findings import MAX_FINDINGS, Report
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.modules import (
    MAX_COLUMNS,
    MAX_ROW_GROUPS,
    Part,
    Span,
    check_column_metadata,
    chunk_spans,
    ordinal_faults,
    shape_faults,
)
from modcrypt.parquet.format.schema import Leaf, leaf_elements, leaves_of
from modcrypt.parquet.verify.chunk_report import Chunk
from modcrypt.parquet.verify.diagnosis import Detective
from modcrypt.pkmt1.key_info import key_name

__all__ = ["ChunkPlan"]

MAX_EXPLAINED = 200
"""Number of findings in a file after which faults in column metadata are no longer diagnosed."""

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
    chunks: list[Chunk] = field(default_factory=list)
    keys: dict[int, Key] = field(default_factory=dict)  # by column, from its first row group
    all_known: bool = True  # whether every chunk's place is known
    _names: dict[object, str] = field(default_factory=dict)  # names of keys, for people
    _detective: Detective | None = None
    _column_keys: ColumnKeys = field(init=False)
    _footer_key_name: str = field(init=False)

    def find_chunks(self) -> None:
        """Check the footer's consistency, find keys, open column metadata, and locate chunks."""
        metadata = self.footer.metadata
        if not self._check_shape(metadata):
            note = "its modules could not be checked: its schema is invalid"
            self.report.add_note("file", None, note)
            return
        paths = [leaf.path for leaf in self.leaves]
        self.paths = [".".join(path) for path in paths]
        self._footer_key_name = self.footer.key_name
        self._column_keys = ColumnKeys(self.properties, paths, self.report, self.footer.inside)
        chunks = [
            chunk
            for r, row_group in enumerate(metadata.row_groups)
            for chunk in self._list_chunks(r, row_group)
        ]
        for chunk in chunks:  # all keys first: the diagnosis of one chunk tries other chunks' keys
            self._find_key(chunk)
        if self.footer.has_cipher:
            self._detective = self.make_detective(self.footer.cipher)
        for chunk in chunks:
            if self._locate_chunk(chunk):
                self.chunks.append(chunk)
            else:
                self.all_known = False
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
        return len(self.leaves) <= MAX_COLUMNS and len(metadata.row_groups) <= MAX_ROW_GROUPS

    def make_detective(self, cipher: FileCipher) -> Detective:
        """Return a new Detective that knows the file's keys."""
        rows = len(self.footer.metadata.row_groups)
        return Detective(cipher, self.keys, self.footer.footer_key, self.paths, rows)

    def _add_footer_fault(self, word: str, message: str) -> None:
        """Add a fault about a statement in the footer."""
        self.report.add_fault(word, message, *self.footer.inside)

    # --- row groups ------------------------------------------------------------------------------

    def _list_chunks(self, r: int, row_group: ThriftStruct) -> Iterator[Chunk]:
        """Yield the chunks of a row group."""
        declared, ordinal, rows = row_group.ordinal, r, row_group.num_rows
        if declared is not None and 0 <= declared <= MAX_ORDINAL:
            ordinal = declared  # the writer most likely encrypted with it
        if len(row_group.columns) != len(self.leaves):
            self.all_known = False
        for c, chunk in enumerate(row_group.columns[: len(self.leaves)]):
            leaf = self.leaves[c]
            element = self.footer.metadata.schema[leaf.element]
            encrypted = chunk.crypto_metadata is not None
            yield Chunk(r, c, leaf, element, self.paths[c], rows, copy(chunk), ordinal, encrypted)

    # --- keys ------------------------------------------------------------------------------------

    def _find_key(self, out: Chunk) -> None:
        """Look for a chunk's key, and note the reason if there is none."""
        crypto, footer, path = out.chunk.crypto_metadata, self.footer, out.path
        if crypto is None:
            if footer.encrypted:
                declared = declares_plaintext(self.properties, out.leaf.path)
                why = (
                    "it is in plaintext, as the policy allows" if declared else "it is in plaintext"
                )
                self.report.add_note("column", path, why, by_design=declared)
            return
        out.kind = out.key_name = chunk_kind(out.chunk)
        if out.kind == COLUMN_KEY:
            own = crypto.ENCRYPTION_WITH_COLUMN_KEY
            out.key_name = self._name_key(out, own.key_metadata)
            answer = self._column_keys.find(out.column, own)
        elif out.kind == FOOTER_KEY:
            out.key_name, answer = self._footer_key_name, footer.answer
        else:
            answer = KeyAnswer(None, "the kind of its key is unknown")
        if not footer.has_cipher:
            self.report.add_note("column", path, footer.locked, footer.answer.word)
        elif answer.key is None:
            self.report.add_note("column", path, answer.why, answer.word)
        else:
            out.key = answer.key
            self.keys.setdefault(out.column, answer.key)

    def _name_key(self, out: Chunk, metadata: bytes | None) -> str:
        """Name a column's key by its master key's id, or by the first column that uses it."""
        known = metadata or self._column_keys.given(out.column) or out.path
        if known not in self._names:
            self._names[known] = key_name(metadata, f"column key of {out.path}")
        return self._names[known]

    # --- column metadata -------------------------------------------------------------------------

    def _locate_chunk(self, out: Chunk) -> bool:
        """Find the place of a chunk; return whether it is known."""
        if out.chunk.file_path is not None:
            return False
        if out.encrypted:
            self._open_metadata(out)
        md = out.metadata
        if out.chunk.encrypted_column_metadata is not None and not out.key_works:
            self.all_known = False  # the copy for old readers locates no bloom filter
            if out.key is not None:
                self.report.add_note("column", out.path, "its column metadata did not open")
        if md is None:
            if not out.encrypted:
                self._add_footer_fault("format", f"{out.where}: the column metadata is missing")
            return False
        try:
            check_column_metadata(md, out.leaf, out.row_group, out.rows)
        except FormatError as error:
            self._add_footer_fault(error.word, str(error))
        if min(md.total_compressed_size, md.data_page_offset, md.num_values) < 0:
            return False
        if md.num_values and not md.total_compressed_size:
            self._add_footer_fault(
                "format", f"{out.where}: it has {md.num_values} values, but no pages"
            )
        out.spans = self._find_spans(out)
        return True

    def _open_metadata(self, out: Chunk) -> None:
        """Open a chunk's encrypted ColumnMetaData; plaintext footers also have a legacy copy."""
        chunk = out.chunk
        encrypted_metadata, legacy = chunk.encrypted_column_metadata, chunk.meta_data
        if encrypted_metadata is None:
            try:
                check_metadata_key(chunk, out.where)
            except FormatError as error:
                self.all_known = False
                self.report.add_error(error, *self.footer.inside)
            return
        if out.key is None:
            return
        cipher = ChunkCipher(self.footer.cipher, out.key, out.ordinal, out.column, out.path)
        try:
            decrypted = open_column_metadata(chunk, cipher)
        except ModcryptError as error:
            self._add_metadata_fault(error, cipher, encrypted_metadata)
            return
        out.key_works = True
        # The bytes of a verified footer are counted already, and contain this module.
        self.report.count_verified(0 if self.footer.is_verified else len(encrypted_metadata))
        self._compare_legacy(out, legacy, decrypted)
        chunk.meta_data = decrypted

    def _add_metadata_fault(
        self, error: ModcryptError, cipher: ChunkCipher, encrypted_metadata: bytes
    ) -> None:
        module, cause = cipher.id(ModuleType.COLUMN_METADATA), None
        start, end = self.footer.inside
        known = len(self.report.findings)
        if isinstance(error, TagMismatchError) and known < MAX_EXPLAINED:
            assert self._detective is not None
            cause = self._detective.explain(cipher, module, memoryview(encrypted_metadata))
        if self.footer.plaintext_footer and known < MAX_FINDINGS:
            offset = self.footer.tail.data.find(encrypted_metadata)
            if offset >= 0:
                start, end = start + offset, start + offset + len(encrypted_metadata)
        message = f"{module}: {error}" if isinstance(error, FormatError) else str(error)
        hint = "" if cause is None else f". {cause.hint}"
        self.report.add_fault(error.word, message + hint, start, end, module)

    def _compare_legacy(
        self, out: Chunk, legacy: ThriftStruct | None, decrypted: ThriftStruct
    ) -> None:
        """Compare the copy for readers without the key with the encrypted metadata."""
        if legacy is None:
            return
        true = decrypted.__dict__
        differing = sorted(n for n, value in legacy.__dict__.items() if true.get(n) != value)
        if differing:
            self._add_footer_fault(
                "integrity",
                f"{out.where}: the column metadata for legacy readers differs from the encrypted "
                f"metadata in {', '.join(differing)}: readers without the key are misled",
            )

    def _find_spans(self, out: Chunk) -> list[Span]:
        """Return where a chunk's parts are, without those at impossible places."""
        ordinals, body_end = (out.row_group, out.column), self.footer.body_end
        try:
            return chunk_spans({ordinals: out.chunk}, body_end, self.source)
        except FormatError:
            pass
        spans: list[Span] = []
        for part in Part:
            try:
                spans += chunk_spans(
                    {ordinals: _copy_with_part(out.chunk, part)}, body_end, self.source
                )
            except FormatError as error:
                self.all_known = False
                self._add_footer_fault(error.word, str(error))
        return sorted(spans)

    # --- requirements of the caller --------------------------------------------------------------

    def _check_kinds(self) -> None:
        """Add faults about columns that are not encrypted as they must be."""
        metadata, properties = self.footer.metadata, self.properties
        paths = [leaf.path for leaf in self.leaves]
        row_groups = range(len(metadata.row_groups))
        kinds = find_kinds(metadata, paths, range(len(paths)), row_groups, self.report)
        if not self.footer.encrypted:
            return
        if not isinstance(properties.require_encrypted, bool):
            self._check_names(properties.require_encrypted)
        given = given_key_faults(properties, paths, kinds)
        for fault in chain(given, requirement_faults(properties, paths, kinds)):
            self.report.add_error(fault, *self.footer.inside)

    def _check_names(self, names: Collection[str]) -> None:
        """Add a fault if the file lacks columns that must be encrypted."""
        try:
            leaves_of([leaf.path for leaf in self.leaves], names)
        except ValueError as error:
            self._add_footer_fault(
                "plaintext", f"{error}: required columns must exist and be encrypted"
            )

    # --- places ----------------------------------------------------------------------------------

    def _check_places(self) -> None:
        """Report overlapping parts, and bytes between parts that nothing refers to."""
        reached, last = MAGIC_SIZE, None
        gaps: list[tuple[int, int]] = []
        places = ((span, chunk) for chunk in self.chunks for span in chunk.spans)
        for span, chunk in sorted(places, key=itemgetter(0)):
            if last is not None and span.start < reached and span.end > span.start:
                message = f"{span} starts at byte {span.start}, inside {last}"
                self.report.add_fault("format", message, span.start, min(span.end, reached))
                chunk.overlapping.add(span.part)
            if span.start > reached:
                gaps.append((reached, span.start))
            if span.end > reached:
                reached, last = span.end, span
        if reached < self.footer.body_end:
            gaps.append((reached, self.footer.body_end))
        if not gaps or not self.all_known:  # chunks whose place is unknown may lie in the gaps
            return
        for start, end in gaps[:MAX_GAPS]:
            message = f"{end - start} bytes at byte {start} belong to no module"
            self.report.add_warning("format", message, start, end)
        unused = sum(end - start for start, end in gaps)
        if len(gaps) > MAX_GAPS:
            more = len(gaps) - MAX_GAPS
            message = f"{more} more runs of bytes belong to no module: {unused} bytes in all"
            self.report.add_warning("format", message)
        self.report.add_note(
            "bytes", None, f"{unused} bytes between the modules belong to no module"
        )


def _copy_with_part(chunk: ThriftStruct, part: Part) -> ThriftStruct:
    """Return a copy of a chunk that has only one of its parts."""
    out = copy(chunk)
    md = out.meta_data = copy(chunk.meta_data)
    if part is not Part.PAGES:
        md.total_compressed_size = 0
    if part is not Part.BLOOM_FILTER:
        md.bloom_filter_offset = None
    if part is not Part.COLUMN_INDEX:
        out.column_index_offset = out.column_index_length = None
    if part is not Part.OFFSET_INDEX:
        out.offset_index_offset = out.offset_index_length = None
    return out
