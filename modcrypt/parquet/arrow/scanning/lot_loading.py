"""Decrypt the rows that a scan has chosen, lot by lot: whole row groups, or single pages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.parquet.arrow.chunk_loading import load_chunks, load_pages
from modcrypt.parquet.arrow.decoding import Loaded
from modcrypt.parquet.arrow.scanning.plan_parts import PlanParts
from modcrypt.parquet.arrow.scanning.scan_session import Session
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.idl import ThriftStruct

if TYPE_CHECKING:
    from modcrypt.parquet.arrow.row_group_pruning import Ranges  # only filters need it

Decrypt: TypeAlias = Callable[[], Loaded | pa.Table]
"""Decrypts a lot; rows of single pages are decoded on the way."""


@dataclass(frozen=True)
class LotLoader:
    """The work of decrypting a scan's columns.

    Attributes:
        session: The open file.
        plan: Plan of the columns in all row groups of the scan.
        leaves: Columns to decrypt.
        is_filtered: Whether the caller chooses among the rows that are decrypted.
    """

    session: Session
    plan: ReadPlan
    leaves: Sequence[int]
    is_filtered: bool

    def plan_jobs(self, rows: Mapping[int, Ranges], lot_bytes: int) -> list[Decrypt]:
        """Divide the rows into lots, and return a function for each that decrypts it."""
        jobs: list[Decrypt] = []
        row_groups = self.session.file.metadata.row_groups
        sizes = dict.fromkeys(rows, 0)
        for (r, _), chunk in self.plan.chunks.items():
            if r in sizes:
                sizes[r] += chunk.meta_data.total_compressed_size
        lot: list[int] = []
        lot_size = 0
        for r, ranges in rows.items():
            whole = ranges == [(0, row_groups[r].num_rows)]
            if lot and (not whole or lot_size + sizes[r] > lot_bytes):
                jobs.append(partial(self._load_row_groups, lot))
                lot, lot_size = [], 0
            if whole:
                lot.append(r)
                lot_size += sizes[r]
            else:
                jobs.append(partial(self._load_rows, r, ranges))
        if lot:
            jobs.append(partial(self._load_row_groups, lot))
        return jobs

    def _load_row_groups(self, row_groups: list[int], columns: list[int] | None = None) -> Loaded:
        plan = self.plan
        if columns or row_groups != plan.row_groups:
            plan = self.session.select(columns or self.leaves, row_groups)
        return load_chunks(self.session.file.source, plan, self.session.pool)

    def _load_rows(self, row_group: int, ranges: Ranges) -> Loaded | pa.Table:
        """Decrypt what holds some rows of a row group: single pages where they can be located.

        If a page is not what its offset index says, the ranges are wrong too. Then all rows are
        decrypted, which raises the error again if its cause is not the index.
        """
        session = self.session
        plan = session.select(self.leaves, [row_group])
        fields = Counter(plan.leaves[c][0] for c in plan.footer_leaves)
        rows = session.file.metadata.row_groups[row_group].num_rows
        indexes: dict[int, ThriftStruct] = {}
        with session.lock:
            parts = PlanParts(session.file.source, plan)
            for n, c in enumerate(plan.footer_leaves):
                if session.file.elements[c].max_repetition or fields[plan.leaves[c][0]] > 1:
                    continue
                index = parts.read_offset_index(0, n)
                if index is not None and not _has_empty_page(index, rows):
                    indexes[c] = index
        try:
            return self._load_located_rows(row_group, ranges, plan, indexes)
        except (FormatError, IntegrityError):
            everything = self._load_row_groups([row_group])
            if self.is_filtered:
                return everything
            return session.decoder.decode_rows(everything, ranges)

    def _load_located_rows(
        self, row_group: int, ranges: Ranges, plan: ReadPlan, indexes: dict[int, ThriftStruct]
    ) -> pa.Table:
        """Return some rows, of which the offset indexes locate the pages of some columns."""
        session = self.session
        paged = {
            plan.leaves[c][0]: session.pool.submit(
                self._load_pages, row_group, c, index.page_locations, ranges
            )
            for c, index in indexes.items()
        }
        columns: dict[str, Any] = {}
        if whole := [c for c in plan.footer_leaves if c not in indexes]:
            table = session.decoder.decode_rows(self._load_row_groups([row_group], whole), ranges)
            columns |= dict(zip(table.column_names, table.columns, strict=True))
        columns |= {name: future.result() for name, future in paged.items()}
        rows = sum(stop - start for start, stop in ranges)
        return pa.table(columns) if columns else pa.table({"": pa.nulls(rows)}).select([])

    def _load_pages(
        self, row_group: int, column: int, locations: list[ThriftStruct], ranges: Ranges
    ) -> pa.ChunkedArray:
        """Decrypt the pages of a column that hold some rows, and return those rows."""
        session = self.session
        rows = session.file.metadata.row_groups[row_group].num_rows
        borders = [location.first_row_index for location in locations] + [rows]
        where = f"row group {row_group}, column {'.'.join(session.file.leaves[column])}"
        if borders[0] != 0 or not all(a < b for a, b in pairwise(borders)):
            raise FormatError(f"{where}: the rows of the offset index are out of order")
        rows_of: dict[int, int] = {}  # number of rows of each wanted page
        total, cuts = 0, []  # their rows so far, and the positions of the wanted rows among them
        for start, stop in ranges:
            first, after = bisect_right(borders, start) - 1, bisect_left(borders, stop)
            begin = total + start - borders[first]
            if first in rows_of:  # It is the last page of the previous range.
                begin -= rows_of[first]
            for page in range(first, after):
                if page not in rows_of:
                    rows_of[page] = borders[page + 1] - borders[page]
                    total += rows_of[page]
            cuts.append((begin, begin + stop - start))
        plan = session.select([column], [row_group])
        data = load_pages(session.file.source, plan, locations, rows_of)
        return session.decoder.decode_rows(data, cuts).column(0)


def _has_empty_page(index: ThriftStruct, rows: int) -> bool:
    """Return whether a page of an offset index has no rows: PyArrow must not read it alone."""
    firsts = [location.first_row_index for location in index.page_locations]
    return any(first == second for first, second in pairwise([*firsts, rows]))
