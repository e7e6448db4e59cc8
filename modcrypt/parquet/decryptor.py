"""Encrypted Parquet to plaintext Parquet, pages never decoded.

The reverse of the encryptor: every module is opened and appended in the order of the source.
Nothing that a sealed header, a length prefix, a chunk size or an offset says is taken alone:
they must all agree, and no page is passed on before its tag has been verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, TypeAlias

from modcrypt.aad import MAX_ORDINAL, ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD, CtrCipher, GcmCipher, TagError
from modcrypt.buffers import Output, Window, open_output
from modcrypt.errors import (
    ChecksumError,
    FormatError,
    KeyNotFoundError,
    PlaintextError,
    TagMismatchError,
    TruncationError,
)
from modcrypt.keys import Key
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
    MAX_PAGE_HEADER,
    Part,
    Span,
    check_column_metadata,
    check_shape,
    file_spans,
    in_writing_order,
    too_many_pages,
    unexpected_page,
)
from modcrypt.parquet.page_header import (
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
        plan = _plan(opened, properties)
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
        plan = _plan(opened, properties)
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
class _Plan:
    footer: EncryptedFooter
    leaves: list[tuple[str, ...]]
    keep: list[bool]
    ciphers: dict[tuple[int, int], ChunkCipher]  # of the encrypted chunks that are kept
    spans: list[Span]


def _plan(source: Source, properties: FileDecryptionProperties) -> _Plan:
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
    return _Plan(footer, leaves, keep, ciphers, spans)


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
    plan: _Plan
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
        out.write(close_tail(encode(self._new_metadata()), MAGIC_PLAINTEXT))

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
        """Open header module and bitset module, which follow each other directly."""
        data = memoryview(self.source.read_at(span.start, span.end - span.start))
        middle = 4 + int.from_bytes(data[:4], "little")
        if middle > len(data):
            raise TruncationError(f"{span}: its header module declares {middle} bytes")
        if self.trace is not None:
            border = span.start + middle
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_HEADER), span.start, border)
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_BITSET), border, span.end)
        header = cipher.open(ModuleType.BLOOM_FILTER_HEADER, data[:middle])
        bitset = cipher.open(ModuleType.BLOOM_FILTER_BITSET, data[middle:])
        decoded, end = decode("BloomFilterHeader", header)
        if decoded.numBytes != len(bitset):
            raise FormatError(
                f"{span}: its header declares {decoded.numBytes} bytes, not {len(bitset)}"
            )
        self.out.write(header[:end])
        self.out.write(bitset)

    def _new_metadata(self) -> ThriftStruct:
        """Give the footer of a plaintext file."""
        metadata = copy(self.plan.footer.metadata)
        absent = take_mark(metadata)
        metadata.row_groups, _ = self.moves.row_groups(metadata.row_groups)
        metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
        if not all(self.plan.keep):
            metadata = drop_columns(metadata, self.plan.keep)
        for row_group in metadata.row_groups:
            for name in absent & {"ordinal", "file_offset", "total_compressed_size"}:
                setattr(row_group, name, None)
            for chunk in row_group.columns:
                chunk.crypto_metadata = chunk.encrypted_column_metadata = None
                if "bloom_filter_length" in absent:
                    chunk.meta_data.bloom_filter_length = None
        return metadata


# --- the page loop -------------------------------------------------------------------------------


_length = Struct("<I").unpack_from


def open_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove,
    md: ThriftStruct, trace: Trace | None,
) -> None:  # fmt: skip
    """Open the pages of one chunk: header module, page module, for each.

    `move` learns where pages went and how much the headers shrank.
    """
    open_header, overhead = cipher.file.gcm(cipher.key).open, cipher.page.overhead
    # Whether the first page is a dictionary decides its AAD, so it must be known beforehand.
    is_dictionary = move.has_dictionary = bool(md.dictionary_page_offset)
    uncompressed = md.codec == UNCOMPRESSED
    position, end = span.start, span.end
    ordinal, grown = 0, 0
    while position < end:
        if is_dictionary:
            header_aad, page_aad = cipher.dictionary_header, cipher.dictionary
        else:
            if ordinal > MAX_ORDINAL:
                raise too_many_pages(str(span))
            suffix = ordinal.to_bytes(2, "little")
            header_aad, page_aad = cipher.data_header + suffix, cipher.data + suffix
        page = _Page(cipher, is_dictionary, ordinal)
        start, middle = _header_module(window, position, end, page)
        try:
            plain = open_header(window.view[start:middle], header_aad)
        except TagError:
            raise TagMismatchError(page.header_id(), cipher.tag_hint) from None
        header = scan(plain, 0, len(plain))
        kind, size = header[1], header[3]
        if kind != (DICTIONARY_PAGE if is_dictionary else DATA_PAGE) and (
            is_dictionary or kind != DATA_PAGE_V2
        ):
            raise unexpected_page(str(span), kind)
        total = middle - start + size
        if size < overhead or position + total > end:
            raise FormatError(
                f"{page.id()}: its header says {size} bytes; a module has at least {overhead}, "
                f"and its chunk has {end - position - middle + start} left"
            )
        if start + total > window.stop:
            window.fill(position, position + total, end)
            middle += position - window.base - start
        body = window.view[middle : middle + size]
        plain_size = size - overhead
        if contradicts(header, plain, plain_size, uncompressed):
            raise FormatError(
                f"{page.id()}: an uncompressed page of {header[2]} bytes opens to {plain_size}"
            )
        if not is_dictionary:
            if not ordinal:
                move.first_data_page = position, out.position
            ordinal += 1
        before = out.position
        new_header_size = _write_page(out, plain, header, body, page, page_aad)
        if trace is not None:
            border = position + total - size
            trace(page.header_id(), position, border)
            trace(page.id(), border, position + total)
        if move.keep_pages and not is_dictionary:
            move.pages.append((position, before, out.position - before))
        grown += new_header_size - (total - size)
        is_dictionary = False
        position += total
    move.header_growth = grown


class _Page(NamedTuple):
    """The address of a page, spelt out only when an error or a trace needs it."""

    cipher: ChunkCipher
    is_dictionary: bool
    ordinal: int

    def id(self) -> ModuleId:
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE)
        return self.cipher.id(ModuleType.DATA_PAGE, self.ordinal)

    def header_id(self) -> ModuleId:
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE_HEADER)
        return self.cipher.id(ModuleType.DATA_PAGE_HEADER, self.ordinal)


def _header_module(window: Window, position: int, end: int, page: _Page) -> tuple[int, int]:
    """Bring a page's header module into the window; give its span there."""
    if position + 4 > window.base + window.stop:
        window.fill(position, min(end, position + 4), end)
    start = position - window.base
    (length,) = _length(window.buffer, start) if end - position >= 4 else (0,)
    if length < GCM_OVERHEAD - 4 or length > MAX_PAGE_HEADER or position + 4 + length > end:
        raise TruncationError(
            f"{page.header_id()}: its length field says {length} bytes; a module has at least "
            f"{GCM_OVERHEAD - 4}, and its chunk has {end - position - 4} left"
        )
    if start + 4 + length > window.stop:
        window.fill(position, position + 4 + length, end)
        start = position - window.base
    return start, start + 4 + length


def _write_page(
    out: Output, plain: bytes, header: PageHeader, body: memoryview, page: _Page, aad: bytes
) -> int:
    """Open a page module and append the page; give its new header's size."""
    cipher = page.cipher.page
    plain_size = len(body) - cipher.overhead
    if header[6] is not None:
        return _write_checked(out, plain, header, body, page, aad)
    new_header = splice(plain, 0, header, plain_size)
    header_size = len(new_header)
    room = plain_size + cipher.slack
    if out.at + header_size + room > len(out.view):
        out.reserve(header_size + room)
    at, view = out.at, out.view
    view[at : at + header_size] = new_header
    at += header_size
    _open_body(plain, header[1], body, page, aad, view[at : at + room])
    out.at = at + plain_size
    return header_size


def _write_checked(
    out: Output, plain: bytes, header: PageHeader, body: memoryview, page: _Page, aad: bytes
) -> int:
    """Do the same for a page with a CRC.

    A CRC is over the stored bytes, so the plain page needs one of its own. Under CTR it is all
    there is to notice damage by. It is no tag: whoever alters a page on purpose can keep its CRC.
    """
    cipher = page.cipher.page
    if cipher.overhead != GCM_OVERHEAD and zlib.crc32(body) != header.crc:
        raise ChecksumError(f"{page.id()}: the CRC in its header does not fit its stored bytes")
    plain_size = len(body) - cipher.overhead
    opened = memoryview(bytearray(plain_size + cipher.slack))
    _open_body(plain, header.type, body, page, aad, opened)
    new_header = splice(plain, 0, header, plain_size, zlib.crc32(opened[:plain_size]))
    out.write(new_header)
    out.write(opened[:plain_size])
    return len(new_header)


def _open_body(
    plain: bytes, kind: int, body: memoryview, page: _Page, aad: bytes, into: memoryview
) -> None:
    """Open a page module in either layout.

    Data pages V2 come whole (Arrow C++, arrow-rs, Polars, arrow-go) or as parquet-java writes
    them, levels in clear before the module of the values. Length fields tell which; where both
    could be, the tag does.
    """
    cipher, stored = page.cipher.page, len(body) - 4
    whole = _length(body)[0] == stored
    if whole and _opens(cipher, body, aad, into):
        return
    clear = v2_layout(plain).levels_size if kind == DATA_PAGE_V2 else 0
    if not clear and not whole:
        raise TruncationError(
            f"{page.id()}: its length field says {_length(body)[0]} bytes, its header {stored}"
        )
    values = body[clear:]
    fits = len(values) >= cipher.overhead and _length(values)[0] == stored - clear
    if not (clear and fits and _opens(cipher, values, aad, into[clear:])):
        raise TagMismatchError(page.id(), page.cipher.tag_hint)
    into[:clear] = body[:clear]


def _opens(cipher: GcmCipher | CtrCipher, module: memoryview, aad: bytes, into: memoryview) -> bool:
    try:
        cipher.open_into(module, aad, into)
    except TagError:
        return False
    return True
