"""Plaintext Parquet to encrypted Parquet, pages never decoded.

One forward pass: every page, index and bloom filter is sealed as it stands and appended, in the
order of the source; what changes in the footer are offsets, sizes and the crypto metadata. A file
may take the row groups of several sources, one after the other: so Arrow tables are written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from os import urandom
from typing import Any, NamedTuple, Protocol

from modcrypt.aad import MAX_ORDINAL, ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import ChecksumError, FormatError
from modcrypt.io.buffers import Output, Window, check_threads, open_output
from modcrypt.io.storage import Destination, Place, Source, SourceLike, open_source, place_of
from modcrypt.parquet.crypto.bloom_filters import seal_bloom_filter
from modcrypt.parquet.crypto.ciphers import (
    ChunkCipher,
    ColumnKey,
    FileCipher,
    assign_keys,
    check_names,
)
from modcrypt.parquet.crypto.footer import build_tail, mark_absent, protect_chunk, read_plain
from modcrypt.parquet.crypto.plaintext_pages import copy_known, encoding_stats, read_page
from modcrypt.parquet.crypto.properties import (
    FILE_UNIQUE_SIZE,
    FileEncryptionProperties,
    check_encryption,
)
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.crypto.relocation import ChunkMove, Relocation
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, MAGIC_PLAINTEXT
from modcrypt.parquet.format.idl import (
    ThriftStruct,
    copy,
    decode,
    encode,
    known_bytes,
    without_unknown,
)
from modcrypt.parquet.format.modules import (
    STRUCTS,
    Part,
    Span,
    check_column_metadata,
    check_shape,
    file_spans,
    in_writing_order,
    names_dictionary,
    too_many_pages,
    unexpected_page,
)
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    UNCOMPRESSED,
    PageHeader,
    contradicts,
    scan,
    splice,
    v2_layout,
)
from modcrypt.parquet.format.schema import leaf_elements, leaf_paths

__all__ = [
    "Encryption",
    "Feed",
    "PageRules",
    "PlainFeed",
    "Plan",
    "assign",
    "clear_levels",
    "encrypt_parquet",
    "plan_encryption",
    "seal_body",
    "seal_pages",
]


def encrypt_parquet(
    source: SourceLike,
    destination: Destination,
    properties: EncryptionLike,
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep_unknown_fields: bool = False,
) -> None:
    """Encrypt a plaintext Parquet file page by page (PME 4, 5), without decoding a value.

    What the footer's known fields refer to is encrypted; bytes between those (Polars leaves a copy
    of the column metadata, statistics included) are left out.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        destination: path or fsspec URL, which appears complete or not at all, or a writable
            binary file object.
        properties: keys, footer mode, algorithm and AAD prefix; or what `KeyTools.encryption`
            gives, which makes fresh keys for the file.
        filesystem: of pyarrow or fsspec, in which both are paths.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads: 1 does everything in the calling thread, 2 writes in a thread of its own; None
            chooses by the file's size and the processors.
        progress: called now and then, in the calling thread, with the bytes written so far; the
            end is close to the source's size.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know where readers without
            the key of every column see them: in the footer, unless it is encrypted and all
            columns are under the footer key, and in plaintext columns. Newer writers may put
            statistics of any column there, so the default leaves them out.

    Raises:
        ValueError: the properties name columns that the file doesn't have, `threads` is below 1,
            or the destination is a file object on the source.
        TypeError: an argument is of another kind.
        UnsupportedFormatError: the source is encrypted already, or has pages of an unknown kind.
        FormatError: the source breaks the format.
        LimitError: more row groups, columns or pages than ordinals can number (PME 4.4.2): before
            the first byte is written, but for pages that the writer did not count in
            `encoding_stats`.
        ChecksumError: a page of the source does not fit its CRC.
        KeyExhaustedError: a key has done 2**32 seals.
        KeyRetrievalError: the key service wraps no key.
        FileExistsError, OSError: from the file system.
    """
    check_encryption(properties)
    check_threads(threads)
    with open_source(source, filesystem=filesystem) as opened:
        place = place_of(destination, filesystem)
        plan = plan_encryption(opened, properties, place=place, overwrite=overwrite)
        with (
            plan.properties.companion() as sealed,
            open_output(
                destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
            ) as out,
        ):
            out.progress = progress
            encryption = Encryption(out, plan.properties, keep_unknown_fields=keep_unknown_fields)
            encryption.add(PlainFeed(opened), plan)
            encryption.close(plan.metadata)
            if sealed is not None:
                sealed()


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known of a plaintext source, and checked, before a byte of it is written."""

    metadata: ThriftStruct
    leaves: list[tuple[str, ...]]
    columns: list[ColumnKey | None]
    spans: list[Span]
    properties: FileEncryptionProperties
    partial: bool = False  # whether columns of the source are left out or masked


def plan_encryption(
    source: Source,
    encryption: EncryptionLike,
    first: int = 0,
    *,
    place: Place | None = None,
    overwrite: bool = True,
) -> Plan:
    """Read and check a plaintext footer whose first row group will be number `first`.

    Keys are made for the file at `place`, where `encryption` does so, when the columns' names have
    been checked.

    Raises:
        ValueError, UnsupportedFormatError, FormatError, LimitError, KeyRetrievalError: as
            `encrypt_parquet`.
    """
    footer = read_plain(source)
    metadata = footer.metadata
    elements = leaf_elements(metadata.schema)
    check_shape(metadata, len(elements), plain=True)
    for r, row_group in enumerate(metadata.row_groups, first):
        for c, chunk in enumerate(row_group.columns):
            check_column_metadata(chunk.meta_data, elements[c], r, row_group.num_rows)
    properties, columns = assign(metadata, encryption, first, place=place, overwrite=overwrite)
    leaves = [leaf.path for leaf in elements]
    spans = file_spans(metadata, footer.body_end, source)
    return Plan(metadata, leaves, columns, spans, properties)


def assign(
    metadata: ThriftStruct,
    encryption: EncryptionLike,
    first: int = 0,
    *,
    place: Place | None = None,
    overwrite: bool = True,
) -> tuple[FileEncryptionProperties, list[ColumnKey | None]]:
    """Give the properties of a file to be written, and how each of its leaves is encrypted.

    Raises:
        ValueError, LimitError, KeyRetrievalError: as `encrypt_parquet`.
    """
    leaves = leaf_paths(metadata.schema)
    properties = encryption
    if not isinstance(properties, FileEncryptionProperties):
        check_names(leaves, {*properties.column_keys, *properties.plaintext_columns})
        properties = properties.for_file(place, overwrite=overwrite)
    columns = assign_keys(leaves, properties, checked=properties is not encryption)
    for r, row_group in enumerate(metadata.row_groups, first):
        for c, chunk in enumerate(row_group.columns):
            if columns[c] is not None:
                _check_page_count(chunk.meta_data, r, c)
    return properties, columns


def _check_page_count(md: ThriftStruct, row_group: int, column: int) -> None:
    """Refuse too many pages before writing, where the writer counted them."""
    stats = md.encoding_stats or ()
    pages = sum(s.count for s in stats if s.page_type in (DATA_PAGE, DATA_PAGE_V2))
    if pages > MAX_ORDINAL + 1:
        raise too_many_pages(f"row group {row_group}, column {column} with {pages} data pages")


class Feed(Protocol):
    """Gives the parts of a file that is rewritten, as their plaintext."""

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Append the pages of a chunk, sealed by `cipher` or in plaintext; tell `move`."""

    def read(self, span: Span) -> bytes:
        """Give an index or a bloom filter."""


class PlainFeed:
    """The parts of a plaintext source."""

    def __init__(self, source: Source) -> None:
        self._source, self._window = source, Window(source)

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Seal the pages, or copy them."""
        if cipher is not None:
            seal_pages(self._window, span, cipher, out, move, rules)
            if rules.names_dictionary not in (None, move.has_dictionary):
                move.encoding_stats = encoding_stats(self._window, span)
        elif rules.known_only:
            copy_known(self._window, span, out, move)
        else:
            move.copied = True
            out.copy_from(self._source, span.start, span.end)

    def read(self, span: Span) -> bytes:
        """Give the bytes as they are."""
        return self._source.read_at(span.start, span.end - span.start)


class Encryption:
    """One encrypted file: begun, given the row groups of its sources, closed by a footer.

    Args:
        out: where it goes.
        properties: keys and modes.
        unique: its `aad_file_unique`; fresh, unless modules of another version of the file stay.
        keep_unknown_fields: as of `encrypt_parquet`.
    """

    def __init__(
        self,
        out: Output,
        properties: FileEncryptionProperties,
        unique: bytes | None = None,
        *,
        keep_unknown_fields: bool = False,
    ) -> None:
        self.out, self.properties = out, properties
        self.keep_unknown_fields = keep_unknown_fields
        self.unique = urandom(FILE_UNIQUE_SIZE) if unique is None else unique
        file_aad = (properties.aad_prefix or b"") + self.unique
        self.cipher = FileCipher(file_aad, properties.encryption_algorithm)
        self.row_groups: list[ThriftStruct] = []  # as the footer will have them
        self.absent: set[str] = set()  # fields that the sources lacked
        self.held: dict[Part, list[tuple[ThriftStruct, bytes]]] = {
            Part.COLUMN_INDEX: [], Part.OFFSET_INDEX: []
        }  # fmt: skip
        out.write(MAGIC_PLAINTEXT if properties.plaintext_footer else MAGIC_ENCRYPTED)

    def add(self, feed: Feed, plan: Plan, *, hold_indexes: bool = False) -> None:
        """Seal a source's row groups and append them, with its bloom filters and indexes.

        `hold_indexes` keeps the sealed indexes in memory until `close`, so that those of all
        sources lie together: readers fetch them by one request (arrow-rs). Then bloom filters
        follow their row group, too.
        """
        addition = Addition(self, feed, plan)
        addition.write(hold_indexes=hold_indexes)
        self.row_groups += addition.row_groups()

    def close(self, metadata: ThriftStruct) -> None:
        """Write the indexes that were held, and the footer: `metadata` with all row groups."""
        out = self.out
        for chunk, data in self.held[Part.COLUMN_INDEX]:
            chunk.column_index_offset, chunk.column_index_length = out.position, len(data)
            out.write(data)
        for chunk, data in self.held[Part.OFFSET_INDEX]:
            chunk.offset_index_offset, chunk.offset_index_length = out.position, len(data)
            out.write(data)
        footer = copy(metadata)
        footer.row_groups = self.row_groups
        rows = sum(row_group.num_rows for row_group in self.row_groups)
        if footer.num_rows != rows:
            footer.num_rows = rows
            self.absent.add("num_rows")
        if not (self.keep_unknown_fields or self._has_one_key):
            footer = without_unknown(footer)
        mark_absent(footer, frozenset(self.absent))
        out.write(build_tail(footer, self.cipher, self.properties, self.unique))

    @property
    def _has_one_key(self) -> bool:
        """True if the footer is encrypted, and all columns with the same key."""
        properties = self.properties
        return not (
            properties.plaintext_footer or properties.column_keys or properties.plaintext_columns
        )


class Addition:
    """The row groups of one source on their way into an encrypted file."""

    def __init__(self, file: Encryption, feed: Feed, plan: Plan) -> None:
        self.file, self.feed, self.plan = file, feed, plan
        self.out = file.out
        self.first = len(file.row_groups)  # ordinal of the first row group
        self.ciphers: dict[tuple[int, int], ChunkCipher] = {}  # of the chunks met so far
        self.moves = Relocation()
        self.held: list[tuple[Span, bytes]] = []

    def write(self, *, hold_indexes: bool) -> None:
        """Seal and append what the spans hold."""
        out, spans = self.out, in_writing_order(self.plan.spans)
        for span in sorted(spans, key=attrgetter("row_group")) if hold_indexes else spans:
            start = out.position
            cipher = self._chunk_cipher(span.row_group, span.column)
            if span.part is Part.PAGES:
                self._write_pages(span, cipher)
            elif span.part is Part.BLOOM_FILTER:
                bloom = self._read(span, cipher)
                out.write(bloom if cipher is None else seal_bloom_filter(cipher, span, bloom))
            else:
                index = self._sealed_index(span, cipher)
                if hold_indexes:
                    self.held.append((span, index))
                    continue
                out.write(index)
            self.moves.add(span, start, out.position)

    def row_groups(self) -> list[ThriftStruct]:
        """Give the footer's row groups: offsets moved, column metadata sealed, ordinals set."""
        row_groups, absent = self.moves.row_groups(self.plan.metadata.row_groups)
        plaintext_footer = self.file.properties.plaintext_footer
        for r, row_group in enumerate(row_groups):
            if row_group.ordinal is None:
                absent.add("ordinal")
            row_group.ordinal = self.first + r
            for c, chunk in enumerate(row_group.columns):
                cipher = self._chunk_cipher(r, c)
                protect_chunk(chunk, self.plan.columns[c], cipher, plaintext_footer)
        self.file.absent |= absent
        for span, index in self.held:
            chunk = row_groups[span.row_group].columns[span.column]
            self.file.held[span.part].append((chunk, index))
        return row_groups

    def _chunk_cipher(self, row_group: int, column: int) -> ChunkCipher | None:
        """Give the cipher of a chunk of the source, by its row group's number there."""
        rule = self.plan.columns[column]
        if rule is None:
            return None
        cipher = self.ciphers.get((row_group, column))
        if cipher is None:
            path = ".".join(self.plan.leaves[column])
            cipher = ChunkCipher(self.file.cipher, rule.key, self.first + row_group, column, path)
            self.ciphers[row_group, column] = cipher
        return cipher

    def _write_pages(self, span: Span, cipher: ChunkCipher | None) -> None:
        chunk = self.plan.metadata.row_groups[span.row_group].columns[span.column]
        move = ChunkMove(span.start, self.out.position)
        move.keep_pages = chunk.offset_index_offset is not None
        rules = PageRules(
            uncompressed=chunk.meta_data.codec == UNCOMPRESSED,
            levels_plain=self.file.properties.data_page_v2_levels == "plaintext",
            known_only=self._known_only(cipher),
            names_dictionary=names_dictionary(chunk.meta_data),
        )
        self.feed.write_pages(span, cipher, self.out, move, rules)
        move.new_end = self.out.position
        self.moves.chunks[span.row_group, span.column] = move

    def _known_only(self, cipher: ChunkCipher | None) -> bool:
        """Return whether a chunk's pages and indexes lose the fields that the IDL lacks.

        Where they are encrypted, a reader who can open them may read their column.
        """
        return (cipher is None or self.plan.partial) and not self.file.keep_unknown_fields

    def _read(self, span: Span, cipher: ChunkCipher | None) -> bytes:
        data = self.feed.read(span)
        return known_bytes(STRUCTS[span.part], data) if self._known_only(cipher) else data

    def _sealed_index(self, span: Span, cipher: ChunkCipher | None) -> bytes:
        data = self._read(span, cipher)
        if span.part is Part.OFFSET_INDEX:
            index, end = decode("OffsetIndex", data)
            _check_filled(span, end, data)
            self.moves.relocate_index(span, index)
            data = encode(index)
        elif cipher is not None:
            _check_filled(span, decode("ColumnIndex", data)[1], data)
        return data if cipher is None else cipher.seal(ModuleType[span.part.name], data)


def _check_filled(span: Span, size: int, data: bytes) -> None:
    """Refuse what would be lost or refused on the way back."""
    if size != len(data):
        raise FormatError(f"{span}: {len(data) - size} bytes stand after its end")


# --- the page loop -------------------------------------------------------------------------------


class PageRules(NamedTuple):
    """What the page loop must know of a chunk's codec and the caller's wishes."""

    uncompressed: bool
    levels_plain: bool  # whether the levels of data pages V2 stay in clear
    known_only: bool  # whether fields that the IDL doesn't know are left out of page headers
    names_dictionary: bool | None  # as the function of this name has it


def seal_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove, rules: PageRules
) -> None:
    """Seal the pages of one chunk: header module, page module, for each.

    `move` learns where pages went and how much the headers grew.
    """
    seal_header, seal_page = cipher.header.seal_into, cipher.page.seal_into
    overhead, slack = cipher.page.overhead, cipher.page.slack
    uncompressed, levels_plain, known_only, _ = rules
    position, end = span.start, span.end
    ordinal, grown = 0, 0
    keep = move.keep_pages
    place = cipher.row_group, cipher.path
    while position < end:
        start, header = read_page(window, position, end, place)
        body, kind, size = header[0], header[1], header[3]
        raw, at_raw = window.buffer, start
        if known_only:
            raw, at_raw = known_bytes("PageHeader", bytes(window.view[start:body])), 0
            header = scan(raw, 0, len(raw))
        if kind in (DATA_PAGE, DATA_PAGE_V2):
            if ordinal > MAX_ORDINAL:
                raise too_many_pages(f"row group {cipher.row_group}, column {cipher.path}")
            suffix = ordinal.to_bytes(2, "little")
            header_aad, page_aad = cipher.data_header + suffix, cipher.data + suffix
            if not ordinal:
                move.first_data_page = position, out.position
            ordinal += 1
        elif kind == DICTIONARY_PAGE and position == span.start:
            move.has_dictionary = True
            header_aad, page_aad = cipher.dictionary_header, cipher.dictionary
        else:
            raise unexpected_page(f"row group {cipher.row_group}, column {cipher.path}", kind)
        if size != header[2] and contradicts(header, window.view[start:body], size, uncompressed):
            raise FormatError(
                f"row group {cipher.row_group}, column {cipher.path}: an uncompressed page of "
                f"{size} bytes, its header says {header[2]}"
            )
        if header[6] is not None or (levels_plain and kind == DATA_PAGE_V2):
            new_header, module = _seal_apart(
                raw, at_raw, header, window.view[body : body + size], cipher, page_aad, levels_plain
            )
        else:
            new_header, module = splice(raw, at_raw, header, size + overhead), None
        header_size = len(new_header)
        total = GCM_OVERHEAD + header_size + overhead + size
        if out.at + total + slack > len(out.view):
            out.reserve(total + slack)
        at = out.at
        view = out.view
        after_header = seal_header(view, at, new_header, header_size, header_aad)
        if module is None:
            out.at = seal_page(view, after_header, window.view[body : body + size], size, page_aad)
        else:
            view[after_header : at + total] = module
            out.at = at + total
        if keep and kind != DICTIONARY_PAGE:
            move.pages.append((position, out.position - total, total))
        grown += GCM_OVERHEAD + header_size - (body - start)
        position += body - start + size
    move.header_growth = grown


def _seal_apart(
    raw: bytes | bytearray, start: int, header: PageHeader, body: memoryview, cipher: ChunkCipher,
    aad: bytes, levels_plain: bool,
) -> tuple[bytes | bytearray, memoryview]:  # fmt: skip
    """Seal a page before its header; give the new header and what takes the page's place.

    For pages whose header needs the sealed bytes' CRC, and for data pages V2 in parquet-java's
    layout: [levels in clear][module of the values].
    """
    if header.crc is not None and zlib.crc32(body) != header.crc:
        raise ChecksumError(
            f"row group {cipher.row_group}, column {cipher.path}: the CRC of a page does not fit "
            "its bytes: the source is damaged, and encrypting it would hide that"
        )
    clear = 0
    if levels_plain and header.type == DATA_PAGE_V2:
        clear = clear_levels(raw[start : header.end], len(body))
    module = seal_body(cipher, body, clear, aad)
    crc = None if header.crc is None else zlib.crc32(module)
    return splice(raw, start, header, len(module), crc), module


def clear_levels(header: bytes | bytearray | memoryview, size: int) -> int:
    """Give how many of a data page V2's `size` plain bytes are levels, by its header.

    Raises:
        FormatError: more than there are.
    """
    clear = v2_layout(header).levels_size
    if clear > size:
        raise FormatError(f"a data page V2 declares {clear} bytes of levels in {size} bytes")
    return clear


def seal_body(cipher: ChunkCipher, body: memoryview, clear: int, aad: bytes) -> memoryview:
    """Give what takes a page's place: its first `clear` bytes as they are, and the rest sealed."""
    page, size = cipher.page, len(body)
    out = memoryview(bytearray(size + page.overhead + page.slack))
    out[:clear] = body[:clear]
    page.seal_into(out, clear, body[clear:], size - clear, aad)
    return out[: size + page.overhead]
