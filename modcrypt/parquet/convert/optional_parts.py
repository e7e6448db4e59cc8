"""Make the indexes and bloom filters of a new file from those of its source.

Readers do without them, so those that cannot be used are left out, and column indexes by which
readers would lose rows are hidden.
"""

from __future__ import annotations

from itertools import accumulate

from modcrypt.errors import FormatError, list_names
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.convert.plain_feed import PlainFeed, SourceParts, Supplied
from modcrypt.parquet.crypto.bloom_filters import encrypt_bloom_filter
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.index_checks import misleads_readers, offset_index_faults
from modcrypt.parquet.crypto.relocation import Relocation
from modcrypt.parquet.format.chunk_notes import hide_bounds, hide_index
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, is_usual, known_bytes
from modcrypt.parquet.format.modules import STRUCTS, Part, Span
from modcrypt.parquet.format.schema import Leaf, leaf_elements
from modcrypt.runtime.log import LOGGER, log_ignored


class OptionalParts:
    """The indexes and bloom filters of one source on their way to a new file.

    All pages of a chunk are written, and recorded in `moves`, before its indexes are made.
    """

    def __init__(
        self, feed: PlainFeed, plan: SourceParts, moves: Relocation, *, encrypts: bool,
        keeps: bool,
    ) -> None:  # fmt: skip
        self._feed, self._plan, self._moves, self._encrypts = feed, plan, moves, encrypts
        self._keeps = keeps  # whether to note in `respelt` what decryption would not restore
        self._row_groups: list[ThriftStruct] = plan.metadata.row_groups
        self._misleading: dict[tuple[int, int], None] = {}  # row groups and columns
        self._unusable: list[FormatError] = []  # why parts were left out
        self.respelt: list[Span] = []  # parts that decryption would spell in another way
        self._moved: dict[tuple[int, int], bytes] = {}  # offset indexes that wait for their turn
        self._spans: dict[tuple[Part, int, int], Span] = {}  # made when they are needed
        self._elements: list[Leaf] = []

    @property
    def are_whole(self) -> bool:
        """Whether no part, and no field of one, was left out."""
        return not (self._unusable or self.respelt)

    def misleads(self, span: Span) -> bool:
        """Return whether readers would lose rows by the column index of a part's chunk."""
        return (span.row_group, span.column) in self._misleading

    def hide_misleading(self) -> None:
        """Hide such column indexes in the new row groups, and the bounds of their chunks.

        Where an index contradicts the bounds, either may be wrong, in a file of any writer.
        """
        for r, c in self._misleading:
            chunk = self._row_groups[r].columns[c]
            is_written = chunk.column_index_offset is not None
            hide_bounds(chunk.meta_data, keep=is_written)
            if is_written:
                hide_index(chunk)

    def log(self) -> None:
        """Log what was left out or hidden."""
        log_ignored(self._feed.name, self._unusable)
        if self._misleading and self._encrypts:
            paths = dict.fromkeys(".".join(self._plan.leaves[c]) for _, c in self._misleading)
            LOGGER.warning(
                "%s: column indexes that contradict themselves are hidden from readers, who would "
                "lose rows by them (Polars 1.28 to 2.0 writes such indexes for pages with NaN): %s",
                self._feed.name, list_names(paths),
            )  # fmt: skip

    def make(self, span: Span, cipher: ChunkCipher | None, known_only: bool) -> bytes | None:
        """Return an index or a bloom filter for the new file; None to leave it out.

        `known_only` removes fields that the IDL lacks. Readers ignore a part that they cannot use,
        so a source without tags may have one.
        """
        if span.part is Part.OFFSET_INDEX:
            moved = self._moved.pop((span.row_group, span.column), None)
            if moved is not None and not known_only:
                return moved if cipher is None else cipher.encrypt(ModuleType.OFFSET_INDEX, moved)
        supplied = self._feed.read(span)
        if supplied.is_refused:
            self._unusable.append(FormatError(f"{span} is not encrypted although its column is"))
            return None
        try:
            return self._convert(span, cipher, supplied, known_only)
        except FormatError as error:
            if supplied.authentic:
                raise
            self._unusable.append(error)
            return None

    def _convert(
        self, span: Span, cipher: ChunkCipher | None, supplied: Supplied, known_only: bool
    ) -> bytes:
        data, part = supplied.data, span.part
        if known_only:
            data = known_bytes(STRUCTS[part], data)
        if len(data) != len(supplied.data):
            self.respelt.append(span)
        if part is Part.BLOOM_FILTER:
            return data if not self._encrypts else encrypt_bloom_filter(cipher, span, data)
        if part is Part.OFFSET_INDEX:
            data = encode(self._move_locations(span, data, authentic=supplied.authentic))
        elif self._encrypts:
            self._check_column_index(span, data, authentic=supplied.authentic)
        return data if cipher is None else cipher.encrypt(ModuleType[part.name], data)

    def _move_locations(self, span: Span, data: bytes, *, authentic: bool) -> ThriftStruct:
        """Return an offset index with the new places of the pages."""
        index = self._decode(span, data)
        if self._keeps and not (is_usual(index, data) and self._moves.has_sizes(span, index)):
            self.respelt.append(span)
        self._moves.relocate_index(span, index, corrects_sizes=self._encrypts)
        if not authentic:
            self._check_rows(span, index)
        return index

    def _check_rows(self, span: Span, index: ThriftStruct) -> None:
        """Raise FormatError if pages do not begin with the rows that an index states."""
        # @dsnp/parquetjs gives all pages row 0.
        leaf = self.find_leaf(span.column)
        rows = self._row_groups[span.row_group].num_rows
        move = self._moves.chunks[span.row_group].get(span.column)
        values = [] if move is None or leaf.max_repetition else move.values
        firsts = [location.first_row_index for location in index.page_locations]
        counted = list(accumulate(values, initial=0))
        if (values and firsts != counted[:-1]) or firsts[:1] not in ([], [0]):
            raise FormatError(f"{span}: its pages do not begin with the rows that it states")
        for fault in offset_index_faults(index, None, leaf, rows, None):
            raise FormatError(f"{span}: {fault}")

    def _check_column_index(self, span: Span, data: bytes, *, authentic: bool) -> None:
        """Note whether a column index misleads readers; raise FormatError if it is unusable."""
        index = self._decode(span, data)
        place = span.row_group, span.column
        if not authentic:
            offsets = self._find_span(Part.OFFSET_INDEX, place)
            if offsets is None:
                raise FormatError(f"{span}: the chunk has no offset index")
            moved = self._move_locations(offsets, self._feed.read(offsets).data, authentic=False)
            if len(moved.page_locations) != len(index.null_pages):
                raise FormatError(f"{span}: it does not have the pages of the offset index")
            self._moved[place] = encode(moved)
        leaf = self.find_leaf(span.column)
        element = self._plan.metadata.schema[leaf.element]
        md = self._row_groups[span.row_group].columns[span.column].meta_data
        if misleads_readers(index, md, leaf, element, lambda: self._count_values(place)):
            self._misleading[place] = None

    def _count_values(self, place: tuple[int, int]) -> list[int]:
        move = self._moves.chunks[place[0]].get(place[1])
        if move is not None and move.values:
            return move.values
        pages = self._find_span(Part.PAGES, place)
        return [] if pages is None else self._feed.count_values(pages)

    def _find_span(self, part: Part, place: tuple[int, int]) -> Span | None:
        if not self._spans:
            self._spans = {(s.part, s.row_group, s.column): s for s in self._plan.spans}
        return self._spans.get((part, *place))

    def find_leaf(self, column: int) -> Leaf:
        """Return a leaf of the schema."""
        if not self._elements:
            self._elements = leaf_elements(self._plan.metadata.schema)
        return self._elements[column]

    def _decode(self, span: Span, data: bytes) -> ThriftStruct:
        """Decode an index; raise FormatError for bytes after it, which decryption would lose."""
        index, size = decode(STRUCTS[span.part], data)
        if size != len(data) and self._encrypts:
            raise FormatError(f"{span}: {len(data) - size} extra bytes after its end")
        return index
