"""Encrypted Parquet to plaintext Parquet, pages never decoded.

The reverse of the encryptor: every module is opened and appended in the order of the source.
Nothing that a sealed header, a length prefix, a chunk size or an offset says is taken alone:
they must all agree, and no page is passed on before its tag has been verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.buffers import Output, Window, open_output
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    PlaintextError,
)
from modcrypt.keys import Key
from modcrypt.parquet.bloom import open_bloom_filter
from modcrypt.parquet.ciphers import ChunkCipher, find_key
from modcrypt.parquet.footer import (
    FOOTER,
    EncryptedFooter,
    open_column_metadata,
    read_encrypted,
    take_mark,
)
from modcrypt.parquet.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.idl import ThriftStruct, copy, decode, encode, struct_end
from modcrypt.parquet.modules import (
    Part,
    Span,
    check_column_metadata,
    check_shape,
    file_spans,
    in_writing_order,
)
from modcrypt.parquet.page_header import (
    UNCOMPRESSED,
    splice,
)
from modcrypt.parquet.pages import EncryptedPage, Page, open_body, open_checked, open_header
from modcrypt.parquet.projection import drop_columns
from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.parquet.relocation import ChunkMove, Relocation
from modcrypt.parquet.schema import covering_name, leaf_paths
from modcrypt.storage import Destination, Sink, Source, SourceLike, open_source

__all__ = ["ModuleSpan", "decrypt_parquet", "list_modules"]


def decrypt_parquet(
    source: SourceLike,
    destination: Destination,
    properties: FileDecryptionProperties,
    *,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[str, ...]:
    """Decrypt a Parquet file of any compliant writer, module by module, without decoding a value.

    A file that `encrypt_parquet` made comes back byte for byte where the plaintext file had no
    gaps and was spelt canonically, as those of PyArrow, parquet-java and DuckDB are; else module
    for module: the same pages, indexes and bloom filters in the same order, offsets set anew.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        destination: path or fsspec URL, which appears complete or not at all, or a writable
            binary file object, which gets authenticated bytes only, but perhaps not all.
        properties: keys, and what the caller insists on.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads: 1 does everything in the calling thread, 2 writes in a thread of its own; None
            chooses by the file's size and the processors.
        progress: called now and then, in the calling thread, with the bytes written so far; the
            end is close to the source's size.

    Returns:
        The columns that were left out for want of a key: none unless
        `properties.on_missing_key` is `"drop"`.

    Raises:
        PlaintextError: the file is not encrypted, or its footer signature was stripped.
        IntegrityError: something does not authenticate; its subclass and message say what.
        KeyRetrievalError: a key is missing or was refused.
        UnsupportedFormatError: the file's algorithm is not among `properties.algorithms`, or a
            layout is known but not handled.
        FormatError, LimitError: the bytes break the format, or a limit.
        ValueError: `threads` is below 1, or the destination is a file object on the source.
        TypeError: an argument is of another kind.
        FileExistsError, OSError: from the file system.
    """
    with open_source(source) as opened:
        plan = plan_decryption(opened, properties)
        with open_output(destination, opened, overwrite=overwrite, threads=threads) as out:
            out.progress = progress
            _Decryption(opened, out, plan).run()
    return tuple(
        ".".join(leaf) for leaf, kept in zip(plan.leaves, plan.keep, strict=True) if not kept
    )


@dataclass(frozen=True, slots=True)
class ModuleSpan:
    """One module and the bytes [start, end) that it takes in the file, framing included."""

    module: ModuleId
    start: int
    end: int


def list_modules(source: SourceLike, properties: FileDecryptionProperties) -> list[ModuleSpan]:
    """Open every module of a file that the keys allow, and say where it is, in file order.

    Modules inside the footer (column metadata) are not listed: they have no place of their own.

    Raises:
        ModcryptError: as `decrypt_parquet`.
    """
    found: list[ModuleSpan] = []

    def note(module: ModuleId, start: int, end: int) -> None:
        found.append(ModuleSpan(module, start, end))

    with open_source(source) as opened:
        plan = plan_decryption(opened, properties)
        out = Output(_Nowhere(), background=False)
        _Decryption(opened, out, plan, note).run()
        found.append(ModuleSpan(FOOTER, plan.footer.module_start, opened.size - 8))
    return sorted(found, key=lambda span: span.start)


class _Nowhere(Sink):
    def append(self, data: memoryview | bytes) -> None:
        pass


Trace: TypeAlias = Callable[[ModuleId, int, int], None]


# --- what is known before the first page ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known of a file, and checked, before its first page."""

    footer: EncryptedFooter
    leaves: list[tuple[str, ...]]
    keep: list[bool]
    ciphers: dict[tuple[int, int], ChunkCipher]  # of the encrypted chunks that are kept
    spans: list[Span]


def plan_decryption(source: Source, properties: FileDecryptionProperties) -> Plan:
    """Open the footer, find the keys, open the column metadata; raises as `decrypt_parquet`."""
    if not isinstance(properties, FileDecryptionProperties):
        raise TypeError(f"properties are FileDecryptionProperties, not {type(properties).__name__}")
    footer = read_encrypted(source, properties)
    metadata = footer.metadata
    leaves = leaf_paths(metadata.schema)
    check_shape(metadata, len(leaves))
    _check_ordinals(metadata)
    keys = _Keys(footer, leaves, properties)
    for r, row_group in enumerate(metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            keys.resolve(chunk, r, c)
    keep = keys.kept()
    hint = (
        "Some versions of Arrow C++ wrote AES_GCM_V1 into plaintext footers of files whose pages "
        "are AES_GCM_CTR_V1"
        if footer.plaintext_footer
        else ""
    )
    ciphers = {
        (r, c): ChunkCipher(footer.cipher, key, r, c, ".".join(leaves[c]), hint)
        for (r, c), key in keys.found.items()
        if keep[c]
    }
    for r, row_group in enumerate(metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            _reveal(chunk, ciphers.get((r, c)), keep[c])
            if keep[c]:
                check_column_metadata(chunk.meta_data, leaves[c], r)
    spans = file_spans(metadata, footer.body_end, source)
    return Plan(footer, leaves, keep, ciphers, spans)


def _check_ordinals(metadata: ThriftStruct) -> None:
    """Hold RowGroup.ordinal against the position.

    parquet-java goes by the one, Arrow C++ by the other: only a file in which both agree means
    the same to all readers.
    """
    for r, row_group in enumerate(metadata.row_groups):
        if row_group.ordinal is not None and row_group.ordinal != r:
            raise FormatError(
                f"row group {r} says it has ordinal {row_group.ordinal}: row groups were reordered"
            )


class _Keys:
    """Finds the key of every encrypted chunk, asking the retriever once per key metadata."""

    def __init__(
        self,
        footer: EncryptedFooter,
        leaves: list[tuple[str, ...]],
        properties: FileDecryptionProperties,
    ) -> None:
        self._footer, self._leaves, self._properties = footer, leaves, properties
        self._asked: dict[tuple[Key | None, bytes | None], Key | None] = {}
        self.found: dict[tuple[int, int], Key] = {}
        self._missing: set[int] = set()
        self._kinds: dict[int, str] = {}

    def resolve(self, chunk: ThriftStruct, row_group: int, column: int) -> None:
        """Find the key of one chunk, or note that its column has none."""
        crypto = chunk.crypto_metadata
        path = ".".join(self._leaves[column])
        own = None if crypto is None else crypto.ENCRYPTION_WITH_COLUMN_KEY
        if crypto is not None and own is None and crypto.ENCRYPTION_WITH_FOOTER_KEY is None:
            raise FormatError(f"column {path}: its crypto metadata names no known kind of key")
        kind = "plaintext" if crypto is None else "footer key" if own is None else "column key"
        if self._kinds.setdefault(column, kind) != kind:
            raise FormatError(
                f"column {path}: {self._kinds[column]} in one row group and {kind} in row group "
                f"{row_group}: no writer does so"
            )
        if crypto is None:
            return
        key = (
            self._footer.footer_key
            if own is None
            else self._own_key(own, self._leaves[column], path)
        )
        if key is None:
            self._missing.add(column)
        else:
            self.found[row_group, column] = key

    def _own_key(self, own: ThriftStruct, leaf: tuple[str, ...], path: str) -> Key | None:
        if own.path_in_schema != [name.encode() for name in leaf]:
            raise FormatError(f"column {path}: its crypto metadata names another column")
        keys = self._properties.column_keys
        name = covering_name(leaf, keys)
        given = None if name is None else keys[name]
        assert given is None or isinstance(given, Key)
        question = given, own.key_metadata
        if question not in self._asked:
            self._asked[question] = find_key(
                self._properties, given, own.key_metadata, f"column {path}", path
            )
        return self._asked[question]

    def kept(self) -> list[bool]:
        """Say which columns can be read.

        Raises:
            KeyNotFoundError: some can't, and the caller did not ask to drop them; or none can.
            PlaintextError: a key was given for a column that is not encrypted.
        """
        self._check_given()
        if self._missing and self._properties.on_missing_key == "error":
            names = [".".join(self._leaves[c]) for c in sorted(self._missing)]
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            raise KeyNotFoundError(
                f"no key for column {', '.join(names[:20])}{more}; give it in column_keys, or "
                'leave such columns out with on_missing_key="drop"',
                names[0],
            )
        if self._leaves and len(self._missing) == len(self._leaves):
            raise KeyNotFoundError("no key for any of the columns", ".".join(self._leaves[0]))
        return [c not in self._missing for c in range(len(self._leaves))]

    def _check_given(self) -> None:
        """Refuse plaintext where a key says that an encrypted column is expected.

        A group's key may cover plaintext leaves, as long as something in the group is encrypted.
        """
        keys = self._properties.column_keys
        covered: dict[str, list[int]] = {}
        for c, leaf in enumerate(self._leaves):
            name = covering_name(leaf, keys)
            if name is not None:
                covered.setdefault(name, []).append(c)
        bare = sorted(
            name
            for name, columns in covered.items()
            if all(self._kinds.get(c) == "plaintext" for c in columns)
        )
        if bare:
            raise PlaintextError(
                f"a key is given for {', '.join(bare)}, but the file has it in plaintext; if that "
                "is meant to be so, leave the key out"
            )


def _reveal(chunk: ThriftStruct, cipher: ChunkCipher | None, keep: bool) -> None:
    """Put a chunk's ColumnMetaData in place, opened where it is sealed; None where dropped."""
    if not keep:
        chunk.meta_data = None
    elif cipher is not None and chunk.encrypted_column_metadata is not None:
        chunk.meta_data = open_column_metadata(chunk, cipher)
    elif cipher is not None and chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY is not None:
        # PME 5.3. Else a holder of the footer key alone could put forged metadata in its place.
        raise FormatError(
            f"row group {cipher.row_group}, column {cipher.path}: encrypted with a key of its own, "
            "but its column metadata is not"
        )


# --- the walk ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Decryption:
    """One file on its way from encrypted to plain."""

    source: Source
    out: Output
    plan: Plan
    trace: Trace | None = None
    moves: Relocation = field(default_factory=Relocation)

    def run(self) -> None:
        out = self.out
        window = Window(self.source)
        out.write(MAGIC_PLAINTEXT)
        for span in in_writing_order(self.plan.spans):
            start = out.position
            cipher = self.plan.ciphers.get((span.row_group, span.column))
            if span.part is Part.PAGES:
                self._write_pages(window, span, cipher)
            elif span.part is Part.OFFSET_INDEX:
                self._write_offset_index(span, cipher)
            elif cipher is None:
                out.copy_from(self.source, span.start, span.end)
            elif span.part is Part.COLUMN_INDEX:
                data = self._open(span, cipher, ModuleType.COLUMN_INDEX)
                out.write(data[: struct_end(data)])
            else:
                self._write_bloom_filter(span, cipher)
            self.moves.add(span, start, out.position)
        row_groups, _ = self.moves.row_groups(self.plan.footer.metadata.row_groups)
        metadata = plain_metadata(self.plan, row_groups)
        out.write(close_tail(encode(metadata), MAGIC_PLAINTEXT))

    def _write_pages(self, window: Window, span: Span, cipher: ChunkCipher | None) -> None:
        move = ChunkMove(span.start, self.out.position)
        if cipher is None:
            move.copied = True
            self.out.copy_from(self.source, span.start, span.end)
        else:
            chunk = self.plan.footer.metadata.row_groups[span.row_group].columns[span.column]
            move.keep_pages = chunk.offset_index_offset is not None
            open_pages(window, span, cipher, self.out, move, chunk.meta_data, self.trace)
        move.new_end = self.out.position
        self.moves.chunks[span.row_group, span.column] = move

    def _open(self, span: Span, cipher: ChunkCipher, module_type: ModuleType) -> bytes:
        """Open the module that fills a span."""
        if self.trace is not None:
            self.trace(cipher.id(module_type), span.start, span.end)
        return cipher.open(module_type, self.source.read_at(span.start, span.end - span.start))

    def _write_offset_index(self, span: Span, cipher: ChunkCipher | None) -> None:
        if cipher is None:
            data = self.source.read_at(span.start, span.end - span.start)
        else:
            data = self._open(span, cipher, ModuleType.OFFSET_INDEX)
        index, _ = decode("OffsetIndex", data)
        self.moves.relocate_index(span, index)
        self.out.write(encode(index))

    def _write_bloom_filter(self, span: Span, cipher: ChunkCipher) -> None:
        data = self.source.read_at(span.start, span.end - span.start)
        opened = open_bloom_filter(cipher, span, data)
        if self.trace is not None:
            border = span.start + opened.border
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_HEADER), span.start, border)
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_BITSET), border, span.end)
        self.out.write(opened.header)
        self.out.write(opened.bitset)


def plain_metadata(plan: Plan, row_groups: list[ThriftStruct]) -> ThriftStruct:
    """Give the footer of a plaintext file with these row groups, which are changed."""
    metadata = copy(plan.footer.metadata)
    absent = take_mark(metadata)
    metadata.row_groups = row_groups
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    if not all(plan.keep):
        metadata = drop_columns(metadata, plan.keep)
    for row_group in metadata.row_groups:
        for name in absent & {"ordinal", "file_offset", "total_compressed_size"}:
            setattr(row_group, name, None)
        for chunk in row_group.columns:
            chunk.crypto_metadata = chunk.encrypted_column_metadata = None
            if "bloom_filter_length" in absent:
                chunk.meta_data.bloom_filter_length = None
    return metadata


# --- the page loop -------------------------------------------------------------------------------


def open_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove,
    md: ThriftStruct, trace: Trace | None,
) -> None:  # fmt: skip
    """Open the pages of one chunk: header module, page module, for each.

    `move` learns where pages went and how much the headers shrank.
    """
    # Whether the first page is a dictionary decides its AAD, so it must be known beforehand.
    is_dictionary = move.has_dictionary = bool(md.dictionary_page_offset)
    uncompressed = md.codec == UNCOMPRESSED
    position, end = span.start, span.end
    ordinal, grown = 0, 0
    while position < end:
        page = Page(cipher, is_dictionary, ordinal)
        sealed = open_header(window, position, end, page, uncompressed)
        total = sealed[5]
        before = out.position
        if not is_dictionary:
            if not ordinal:
                move.first_data_page = position, before
            ordinal += 1
        border = total - len(sealed[3])
        grown += _write_page(out, sealed) - border
        if trace is not None:
            trace(page.header_id(), position, position + border)
            trace(page.id(), position + border, position + total)
        if move.keep_pages and not is_dictionary:
            move.pages.append((position, before, out.position - before))
        is_dictionary = False
        position += total
    move.header_growth = grown


def _write_page(out: Output, sealed: EncryptedPage) -> int:
    """Open a page's body and append the page; give its new header's size."""
    page, plain, header, body, _, _ = sealed
    cipher = page.cipher.page
    plain_size = len(body) - cipher.overhead
    if header[6] is not None:
        return _write_checked(out, sealed, plain_size)
    new_header = splice(plain, 0, header, plain_size)
    header_size = len(new_header)
    room = plain_size + cipher.slack
    if out.at + header_size + room > len(out.view):
        out.reserve(header_size + room)
    at, view = out.at, out.view
    view[at : at + header_size] = new_header
    at += header_size
    open_body(sealed, view[at : at + room])
    out.at = at + plain_size
    return header_size


def _write_checked(out: Output, sealed: EncryptedPage, plain_size: int) -> int:
    """Do the same for a page with a CRC."""
    opened = open_checked(sealed)
    new_header = splice(sealed.plain, 0, sealed.header, plain_size, zlib.crc32(opened))
    out.write(new_header)
    out.write(opened)
    return len(new_header)
