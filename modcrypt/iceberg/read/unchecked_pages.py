"""Check the pages of Parquet files that are stored in plaintext, before PyArrow decodes them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.arrow.decoding import count_fitting_rows
from modcrypt.parquet.arrow.page_sizes import Longest, check_pages
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import chunk_start


class UncheckedPages:
    """The pages of a plaintext file, whose declared sizes nobody vouches for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._footer: ThriftStruct | None = None

    def check(self) -> None:
        """Check the pages of all columns; raise as `check_pages` does."""
        for number, group in enumerate(self._metadata().row_groups):
            for column in range(len(group.columns)):
                self._check_chunk(number, column)

    def rows_at_once(
        self, parquet: pq.ParquetFile, number: int, names: Sequence[str] | None
    ) -> int:
        """Check the pages of a row group; return how many of its rows may be decoded at once.

        Only the columns with these names are read and checked; None for all. Raise FormatError or
        LimitError if a page is malformed or too large, as for `check_pages`.
        """
        paths = [parquet.schema.column(n).path for n in range(parquet.metadata.num_columns)]
        wanted = [
            column
            for column, path in enumerate(paths)
            if names is None or any(path == name or path.startswith(f"{name}.") for name in names)
        ]
        chunks = (self._check_chunk(number, column) for column in wanted)
        return count_fitting_rows(self._metadata(), chunks)

    def _metadata(self) -> ThriftStruct:
        if self._footer is None:
            self._footer = read_plain(self._source).metadata
        return self._footer

    def _check_chunk(self, number: int, column: int) -> tuple[int, Longest, pa.Buffer]:
        where = f"{self._source.name}: row group {number}, column {column}"
        chunks = self._metadata().row_groups[number].columns
        md = chunks[column].meta_data if column < len(chunks) else None
        if md is None:
            raise FormatError(f"{where}: the footer has no metadata for the column chunk")
        start, size = chunk_start(md), md.total_compressed_size
        if not 0 <= start <= self._source.size or not 0 <= size <= self._source.size - start:
            raise FormatError(f"{where}: the column chunk lies outside the file")
        data = pa.py_buffer(self._source.read_at(start, size))
        return column, check_pages(memoryview(data).cast("B"), 0, size, md, where), data
