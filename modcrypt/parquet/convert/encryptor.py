"""Encrypt plaintext Parquet files without decoding pages.

The encryptor makes one forward pass: it encrypts and appends every page, index and bloom filter in
the order of the source. In the footer, only offsets, sizes and the crypto metadata change. A file
may receive the row groups of several sources, one after the other; Arrow tables are written this
way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from os import urandom
from typing import TYPE_CHECKING, Any, Final

from modcrypt.io.buffers import Output, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.places import place_of
from modcrypt.io.sources import Source, SourceLike, open_source
from modcrypt.io.threads import check_threads
from modcrypt.keys import Key, hide_keys
from modcrypt.parquet.convert.encryption_plan import EncryptionPlan, plan_encryption, repair_plan
from modcrypt.parquet.convert.optional_parts import OptionalParts
from modcrypt.parquet.convert.page_encryption import PageRules
from modcrypt.parquet.convert.plain_feed import PlainFeed, SourceParts
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey, FileCipher
from modcrypt.parquet.crypto.footer import (
    build_tail,
    crypto_metadata,
    mark_absent,
    protect_metadata,
)
from modcrypt.parquet.crypto.properties import (
    FILE_UNIQUE_SIZE,
    AnyEncryption,
    FileEncryptionProperties,
    as_encryption,
)
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.crypto.relocation import ChunkMove, Relocation
from modcrypt.parquet.format.chunk_notes import note_added
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, MAGIC_PLAINTEXT
from modcrypt.parquet.format.idl import ThriftStruct, copy, without_unknown
from modcrypt.parquet.format.levels import Levels
from modcrypt.parquet.format.modules import Part, Span, names_dictionary, sort_for_writing
from modcrypt.parquet.format.page_header import page_compression
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData
from modcrypt.parquet.signatures.leaf_list import LeafHasher, LeafPlace, commit_to_keys, encode_list
from modcrypt.runtime.collector import paused_collector
from modcrypt.runtime.former_names import accept_former_names

if TYPE_CHECKING:  # few files are restored or repaired
    from modcrypt.parquet.convert.restoration import Kept
    from modcrypt.parquet.writers.quirk import FoundQuirk


@hide_keys
@accept_former_names(properties="encryption")
@paused_collector()
def encrypt_parquet(
    source: SourceLike,
    destination: Destination,
    encryption: AnyEncryption,
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep_unknown_fields: bool = False,
    exact: bool = True,
    repair: bool = False,
) -> tuple[FoundQuirk, ...]:
    """Encrypt a plaintext Parquet file page by page (PME 4, 5), without decoding a value.

    Everything that known fields of the footer refer to is encrypted. Other bytes (Polars leaves a
    copy of the column metadata, statistics included), and what modcrypt would spell in another way,
    go into one more encrypted module, by which `decrypt_parquet` restores every byte.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        destination: Path or fsspec URL, at which the file appears complete or not at all; or a
            writable binary file object.
        encryption: `Key`, its bytes or hex text, `Recipient` or several, `Policy` or its path, or
            `Settings`; `FileEncryptionProperties` with keys, footer mode, algorithm and AAD prefix;
            or the result of `KeyTools.encryption`, which makes fresh keys for the file.
        filesystem: Filesystem of pyarrow or fsspec in which source and destination are paths.
        overwrite: Replace an existing destination; if False, raise FileExistsError.
        threads: Number of threads: 1 does everything in the calling thread, 2 writes in a second
            thread; None chooses by the size of the file and the number of processors.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            written so far; the final number is close to the source's size.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know where readers without
            the key of every column can see them: in the footer, unless it is encrypted and all
            columns are under the footer key, and in plaintext columns. Newer writers may put
            statistics of any column there, so they are removed by default.
        exact: Keep what decryption needs to restore every byte of the source, under all keys of
            the file. Files that modcrypt restores anyway have no such module.
        repair: Repair what misleads other readers, see the reference about writers: drop bounds,
            counts and indexes that may be wrong, and correct sizes. With `exact`, decryption
            restores the source as it was before.

    Returns:
        The bugs of the source's writer that were repaired; without `repair`, none.

    Raises:
        ValueError: The properties name columns that the file does not have, `threads` is below 1,
            or the destination is a file object on the source.
        TypeError: An argument has the wrong type.
        UnsupportedFormatError: The source is already encrypted, or has pages of an unknown kind.
        FormatError: The source breaks the format.
        LimitError: There are more row groups, columns or pages than ordinals can number (PME
            4.4.2). This is raised before the first byte is written, unless the writer did not count
            pages in `encoding_stats`.
        ChecksumError: A page of the source does not match its CRC.
        KeyExhaustedError: A key has been used for 2**32 encryptions.
        KeyRetrievalError: The key service does not wrap a key.
        FileExistsError, OSError: The file system reports an error.
    """
    encryption = as_encryption(encryption)
    check_threads(threads)
    with open_source(source, filesystem=filesystem) as opened:
        return encrypt_source(
            opened, destination, encryption, filesystem=filesystem, overwrite=overwrite,
            threads=threads, progress=progress, keep_unknown_fields=keep_unknown_fields,
            exact=exact, repair=repair,
        )  # fmt: skip


def encrypt_source(
    source: Source, destination: Destination, encryption: EncryptionLike, *, filesystem: Any,
    overwrite: bool, threads: int | None, progress: Callable[[int], None] | None = None,
    keep_unknown_fields: bool = False, exact: bool = False, hold_indexes: bool = False,
    repair: bool = False,
) -> tuple[FoundQuirk, ...]:  # fmt: skip
    """Encrypt an open source; arguments and errors are those of `encrypt_parquet`.

    `hold_indexes` puts the indexes of all row groups side by side, see `Encryption.add`.
    """
    place = place_of(destination, filesystem)
    plan = plan_encryption(
        source, encryption, place=place, overwrite=overwrite, exact=exact,
        keep_unknown_fields=keep_unknown_fields,
    )  # fmt: skip
    repaired: tuple[FoundQuirk, ...] = ()
    if repair:
        repaired = repair_plan(source, plan)
    with (
        plan.properties.companion() as complete_companion,
        open_output(
            destination, source, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as out,
    ):
        out.progress = progress
        file = Encryption(out, plan.properties, keep_unknown_fields=keep_unknown_fields)
        addition = file.add(PlainFeed(source), plan, hold_indexes=hold_indexes, keeps=exact)
        if exact:
            file.keep_rest(source, addition)
        file.close(plan.metadata)
        if complete_companion is not None:
            complete_companion()
    return repaired


_PAGES: Final = Part.PAGES  # reading it of the enum takes longer than a comparison


class NewFile:
    """A file that receives the row groups of its sources; without a cipher, it is plaintext.

    With `levels_plain`, the levels of data pages V2 stay in plaintext.
    """

    def __init__(
        self, out: Output, magic: bytes, cipher: FileCipher | None = None, *,
        keep_unknown_fields: bool, levels_plain: bool = False,
    ) -> None:  # fmt: skip
        self.out, self.cipher = out, cipher
        self.keep_unknown_fields, self.levels_plain = keep_unknown_fields, levels_plain
        self.hasher: LeafHasher | None = None  # hashes the parts of a file that will be signed
        self.row_groups: list[ThriftStruct] = []  # row groups of the new footer
        out.write(magic)


class Encryption(NewFile):
    """An encrypted file that receives the row groups of its sources and ends with a footer.

    `unique` is the file's `aad_file_unique`, by default a fresh one; pass the old one to keep
    modules of another version of the file. First `add` each source, then `close` once: the footer
    needs the offsets, the ordinals and the absent fields of all of them.
    """

    def __init__(
        self, out: Output, properties: FileEncryptionProperties, unique: bytes | None = None, *,
        keep_unknown_fields: bool = False,
    ) -> None:  # fmt: skip
        self.properties = properties
        self.unique = urandom(FILE_UNIQUE_SIZE) if unique is None else unique
        file_aad = (properties.aad_prefix or b"") + self.unique
        self._cipher = FileCipher(file_aad, properties.encryption_algorithm)
        super().__init__(
            out,
            MAGIC_PLAINTEXT if properties.plaintext_footer else MAGIC_ENCRYPTED,
            self._cipher,
            keep_unknown_fields=keep_unknown_fields,
            levels_plain=properties.data_page_v2_levels == "plaintext",
        )
        self._own_keys: dict[int, Key] = {}  # by column, for the commitments of a signature
        if properties.signing_key is not None:
            self.hasher = LeafHasher()
            out.tap(self.hasher)
        self.absent: set[str] = set()  # fields that the sources lack
        # Under a plaintext footer, the first encrypted chunk: its metadata will list them.
        self._noted: tuple[ColumnChunk, ColumnMetaData, ChunkCipher] | None = None
        self.held: dict[Part, list[tuple[ThriftStruct, bytes, LeafPlace]]] = {
            Part.COLUMN_INDEX: [], Part.OFFSET_INDEX: []
        }  # fmt: skip

    def add(
        self, feed: PlainFeed, plan: EncryptionPlan, *, hold_indexes: bool = False,
        keeps: bool = False,
    ) -> Addition:  # fmt: skip
        """Encrypt a source's row groups and append them, with their bloom filters and indexes.

        `hold_indexes` keeps the encrypted indexes in memory until `close`, so that the indexes of
        all sources are adjacent and readers fetch them with one request (arrow-rs). Bloom filters
        then follow their row group. `keeps` is to be true if `keep_rest` follows.
        """
        addition = Addition(self, feed, plan, keeps=keeps)
        addition.write(hold_indexes=hold_indexes)
        self.row_groups += self.finish_row_groups(addition)
        return addition

    def keep_rest(self, source: Source, addition: Addition) -> None:
        """Append what decryption needs to restore the only source byte for byte, if anything."""
        plan = addition.plan
        assert isinstance(plan, EncryptionPlan)
        rows = sum(row_group.num_rows for row_group in self.row_groups)
        is_exact = (
            plan.is_canonical and addition.moves.is_exact and plan.metadata.num_rows in (0, rows)
        )
        from modcrypt.parquet.convert.restoration import find_kept

        kept = find_kept(
            source, addition.moves, addition.parts.respelt, plan.body_end,
            keeps_footer=not is_exact,
        )  # fmt: skip
        if kept is not None:
            self.keep(kept, plan.columns)

    def keep(self, kept: Kept, columns: Sequence[ColumnKey | None]) -> None:
        """Append the module that restores the file, under all keys of the file."""
        from modcrypt.parquet.convert.restoration import encrypt_kept
        from modcrypt.parquet.format.kept_place import name_place

        footer_key = self.properties.footer_key
        assert isinstance(footer_key, Key)
        own = [rule.key for rule in columns if rule is not None and rule.own and self.row_groups]
        module = encrypt_kept(kept, [footer_key, *own], self._cipher.file_aad)
        self.absent.add(name_place(module, self.out.position))
        if self.hasher is not None:
            self.hasher.end(self.out.position)
        self.out.write(module)

    def finish_row_groups(self, addition: Addition) -> list[ThriftStruct]:
        """Return a source's row groups with new offsets, ordinals and encrypted column metadata."""
        plan = addition.plan
        row_groups: list[ThriftStruct] = plan.metadata.row_groups
        self.absent |= addition.moves.update(row_groups)
        addition.parts.hide_misleading()
        crypto = list(map(crypto_metadata, plan.columns, plan.leaves))
        plaintext_footer = self.properties.plaintext_footer
        for r, row_group in enumerate(row_groups):
            if row_group.ordinal is None:
                self.absent.add("ordinal")
            addition.moves.is_exact &= row_group.ordinal in (addition.first + r, None)
            row_group.ordinal = addition.first + r
            chunks: Sequence[ColumnChunk] = row_group.columns
            for c, chunk in enumerate(chunks):
                chunk.crypto_metadata = crypto[c]
                rule = plan.columns[c]
                if rule is None or not (rule.own or plaintext_footer):
                    continue
                if (cipher := addition.chunk_cipher(r, c)) is not None:
                    if plaintext_footer and self._noted is None:
                        self._noted = chunk, chunk.meta_data, cipher
                    protect_metadata(chunk, cipher, plaintext_footer)
        for span, index in addition.held:
            chunk = row_groups[span.row_group].columns[span.column]
            self.held[span.part].append((chunk, index, addition.place_of(span)))
        if self.hasher is not None:
            keys = enumerate(plan.columns)
            self._own_keys |= {c: rule.key for c, rule in keys if rule is not None and rule.own}
        return row_groups

    def close(self, metadata: ThriftStruct) -> None:
        """Write the held indexes and the footer: `metadata` with all row groups."""
        out = self.out
        properties = self.properties
        for chunk, data, place in self.held[Part.COLUMN_INDEX]:
            chunk.column_index_offset, chunk.column_index_length = out.position, len(data)
            self.write_part(place, data)
        for chunk, data, place in self.held[Part.OFFSET_INDEX]:
            chunk.offset_index_offset, chunk.offset_index_length = out.position, len(data)
            self.write_part(place, data)
        footer = copy(metadata)
        footer.row_groups = self.row_groups
        rows = sum(row_group.num_rows for row_group in self.row_groups)
        if footer.num_rows != rows:
            footer.num_rows = rows
            self.absent.add("num_rows")
        absent = frozenset(self.absent)
        if properties.plaintext_footer:
            from modcrypt.parquet.format.kept_place import is_place

            places = frozenset(filter(is_place, absent))
            absent -= places
            if places:
                note_added(footer, places)
        if self._noted is not None:
            chunk, chunk.meta_data, cipher = self._noted
            mark_absent(chunk.meta_data, absent)
            protect_metadata(chunk, cipher, plaintext_footer=True)
        elif properties.plaintext_footer and absent:
            first: Sequence[ColumnChunk] = self.row_groups[0].columns if self.row_groups else ()
            note_added(first[0].meta_data if first else footer, absent)
        if not (self.keep_unknown_fields or properties.has_one_key):
            footer = without_unknown(footer)
        mark_absent(footer, frozenset() if properties.plaintext_footer else absent)
        out.write(build_tail(footer, self._cipher, properties, self.unique, self._list_hashes()))

    def write_part(self, place: LeafPlace, data: bytes) -> None:
        """Append a part that is complete in memory."""
        if self.hasher is not None:
            self.hasher.begin(place, self.out.position)
        self.out.write(data)

    def _list_hashes(self) -> bytes:
        """Return the list that the writer signs; empty if the file is not signed."""
        if self.hasher is None:
            return b""
        self.hasher.end(self.out.position)
        self.out.settle()
        footer_key = self.properties.footer_key
        assert isinstance(footer_key, Key)
        keys = [(None, footer_key), *self._own_keys.items()]
        return encode_list(self.hasher.finish() | commit_to_keys(keys, self._cipher.file_aad))


def _run_ends(spans: list[Span], feed: PlainFeed) -> list[int]:
    """Return, for each span, where those end that follow without a gap and are walked too."""
    ends: list[int] = []
    following, end = -1, 0  # start of the walked span after this one, and the end of its run
    for span in reversed(spans):
        start, stop, _, _, _ = span
        walked = feed.walks(span)
        end = end if walked and stop == following else stop
        following = start if walked else -1
        ends.append(end)
    return ends[::-1]


class Addition:
    """The row groups of one source that are being added to a file."""

    def __init__(
        self, file: NewFile, feed: PlainFeed, plan: SourceParts, *, keeps: bool = False,
        kept: Kept | None = None,
    ) -> None:  # fmt: skip
        self.file, self.feed, self.plan = file, feed, plan
        self._kept = kept  # what is kept for the parts, if the source is to be restored
        self.out = file.out
        self.first = len(file.row_groups)  # ordinal of the first row group
        self._row_groups: list[ThriftStruct] = plan.metadata.row_groups
        self._names = [".".join(leaf) for leaf in plan.leaves]
        # By row group and column, those of the chunks visited so far.
        self._ciphers: list[list[ChunkCipher | None]] = [
            [None] * len(plan.leaves) for _ in self._row_groups
        ]
        self.moves = Relocation(len(self._row_groups))
        self.held: list[tuple[Span, bytes]] = []
        encrypts = file.cipher is not None
        self.parts = OptionalParts(feed, plan, self.moves, encrypts=encrypts, keeps=keeps)

    def write(self, *, hold_indexes: bool = False) -> None:
        """Encrypt or decrypt, and append, the parts in the plan's spans."""
        out, spans = self.out, sort_for_writing(self.plan.spans)
        if hold_indexes:
            spans = sorted(spans, key=attrgetter("row_group"))
        for span, end in zip(spans, _run_ends(spans, self.feed), strict=True):
            kept = None if self._kept is None else self._kept.part(span)
            if kept is not None:
                out.write(kept.before)
            start, self.feed.window.ahead = out.position, end
            _, _, part, row_group, column = span
            cipher = self.chunk_cipher(row_group, column)
            data: bytes | None = b""
            if part is not _PAGES:
                data = self.parts.make(span, cipher, self._drops_unknown_fields(cipher))
            if data is None:
                continue
            if kept is not None and kept.instead is not None:
                data = kept.instead
            if hold_indexes and part in (Part.COLUMN_INDEX, Part.OFFSET_INDEX):
                if part is Part.OFFSET_INDEX or not self.parts.misleads(span):
                    self.held.append((span, data))
                continue
            if self.file.hasher is not None:
                self.file.hasher.begin(self.place_of(span), start)
            if part is _PAGES:
                self._write_pages(span, cipher, {} if kept is None else kept.headers)
            else:
                out.write(data)
            self.moves.add(span, start, out.position)
        self.parts.log()

    def place_of(self, span: Span) -> LeafPlace:
        """Return the place of a part in the new file, for its signature."""
        return LeafPlace(self.first + span.row_group, span.column, int(span.part))

    def chunk_cipher(self, row_group: int, column: int) -> ChunkCipher | None:
        """Return the cipher of a chunk, given the number of its row group in the source."""
        rule = self.plan.columns[column]
        if rule is None or self.file.cipher is None:
            return None
        ciphers = self._ciphers[row_group]
        cipher = ciphers[column]
        if cipher is None:
            ordinal, name = self.first + row_group, self._names[column]
            cipher = ciphers[column] = ChunkCipher(
                self.file.cipher, rule.key, ordinal, column, name
            )
        return cipher

    def _write_pages(
        self, span: Span, cipher: ChunkCipher | None, headers: Mapping[int, bytes]
    ) -> None:
        start, end, _, row_group, column = span
        chunk: ColumnChunk = self._row_groups[row_group].columns[column]
        move = ChunkMove(start, end, self.out.position, chunk.offset_index_offset is not None)
        md: ColumnMetaData = chunk.meta_data
        levels = Levels.of(self.parts.find_leaf(column), md) if self.file.levels_plain else None
        known_only = self._drops_unknown_fields(cipher)
        compression = page_compression(md.codec, self.plan.metadata.created_by)
        rules = PageRules(compression, levels, known_only, names_dictionary(md), headers)
        self.feed.write_pages(span, cipher, self.out, move, rules)
        move.new_end = self.out.position
        self.moves.chunks[row_group][column] = move

    def _drops_unknown_fields(self, cipher: ChunkCipher | None) -> bool:
        """Return whether fields that the IDL lacks are removed from a chunk's pages and indexes.

        They stay if they are encrypted, because a reader who can decrypt them may read the column.
        """
        return (cipher is None or self.plan.partial) and not self.file.keep_unknown_fields
