"""The indexes and bloom filters by which a scan chooses rows, and locates them."""

from __future__ import annotations

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.bloom_filters import is_in_clear, missing_in_bloom, open_part
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.crypto.index_checks import column_index_faults
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.modules import STRUCTS, Part, Span
from modcrypt.parquet.format.schema import Leaf, leaf_elements
from modcrypt.runtime.fork_safety import cached_property


class PlanParts:
    """The indexes and bloom filters of a plan's chunks, decrypted on demand.

    Ordinals are those of the plan's plaintext footer. What cannot be used is ignored, as other
    readers do: what contradicts the chunk's statistics (in plaintext columns it can be altered
    while the statistics are encrypted), what is not encrypted although its column is, and what
    cannot be decoded.
    """

    def __init__(self, source: Source, plan: ReadPlan) -> None:
        self._source, self._plan = source, plan
        self._schema = plan.footer.metadata.schema

    def read_column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Return a column index that the chunk's statistics do not contradict."""
        index, _ = self._read(Part.COLUMN_INDEX, row_group, column)
        if index is None:
            return None
        md, leaf, element = self._describe_chunk(row_group, column)
        faults = column_index_faults(index, None, md, leaf, element, None)
        return index if next(faults, None) is None else None

    def read_offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Return the offset index of a chunk."""
        return self._read(Part.OFFSET_INDEX, row_group, column)[0]

    def read_bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        """Return the header and the bitset of a bloom filter."""
        header, bitset = self._read(Part.BLOOM_FILTER, row_group, column)
        if header is None:
            return None
        md, _, element = self._describe_chunk(row_group, column)
        return None if missing_in_bloom(header, bitset, md, element) else (header, bitset)

    def _read(self, part: Part, row_group: int, column: int) -> tuple[ThriftStruct | None, bytes]:
        """Return the struct of a part, and the bytes after it: a bloom filter's bitset."""
        place = self._plan.row_groups[row_group], self._plan.footer_leaves[column]
        if (span := self._spans.get((part, *place))) is None:
            return None, b""
        data = self._source.read_at(span.start, span.end - span.start)
        if (cipher := self._plan.ciphers.get(place)) is not None:
            if is_in_clear(span, data):
                return None, b""
            data = b"".join(open_part(cipher, span, data))
        try:
            struct, size = decode(STRUCTS[part], data)
        except FormatError:
            return None, b""
        return struct, data[size:]

    def _describe_chunk(
        self, row_group: int, column: int
    ) -> tuple[ThriftStruct, Leaf, ThriftStruct]:
        """Return a chunk's metadata, and the leaf and schema element of its column."""
        place = self._plan.row_groups[row_group], self._plan.footer_leaves[column]
        leaf = self._leaves[place[1]]
        return self._plan.chunks[place].meta_data, leaf, self._schema[leaf.element]

    @cached_property
    def _spans(self) -> dict[tuple[Part, int, int], Span]:
        return {(span.part, span.row_group, span.column): span for span in self._plan.spans}

    @cached_property
    def _leaves(self) -> list[Leaf]:
        return leaf_elements(self._schema)
