"""Decrypt the rows that a scan has chosen, lot by lot: whole row groups, or single pages.

Where the columns of the filter are a small part of a row group, they are decrypted first, and of
the other columns only what holds rows that match.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.parquet.arrow.chunk_loading import (
    load_chunks,
    load_pages,
    locate_pages,
    measure_chunks,
)
from modcrypt.parquet.arrow.decoding import Loaded
from modcrypt.parquet.arrow.scanning.plan_parts import PlanParts
from modcrypt.parquet.arrow.scanning.scan_session import Session
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.idl import ThriftStruct

if TYPE_CHECKING:
    from modcrypt.parquet.arrow.scanning.row_group_pruning import Ranges  # only filters need it

Decrypt: TypeAlias = Callable[[], Loaded | pa.Table]
"""Decrypts a lot; rows of single pages are decoded on the way."""

Match: TypeAlias = "Callable[[pa.Table], pa.Array]"
"""Returns whether each row matches the filter, given the columns that the filter reads."""

_WORTH_MATCHING = 1 << 20
"""Least size in bytes of the columns beside the filter's for which the filter's are decrypted
first: finding the pages of a row group takes as long as decrypting and decoding a few MiB."""

_WORTH_LOCATING = 1 << 20
"""Least size in bytes of a chunk without an offset index whose page headers are read."""

_SHARE = 2
"""How many times as large as the filter's columns the others must be: the filter's are decrypted
twice where most rows match."""

_BATCH_ROWS = 1 << 16  # rows of the filter's columns that are decoded at once

_MOST_RANGES = 1024
"""Most ranges of matching rows in a row group. Rows between two that match are filtered again."""


class LotLoader:
    """The work of decrypting a scan's columns.

    Attributes:
        plan: Plan of the columns in all row groups of the scan.
        leaves: Columns to decrypt.
        tested: Those of them that the filter reads.
        match: The filter, which the caller applies to the decrypted rows again; None without one.
    """

    def __init__(
        self, session: Session, plan: ReadPlan, leaves: Sequence[int], tested: Sequence[int],
        match: Match | None,
    ) -> None:  # fmt: skip
        self.session, self.plan, self.match = session, plan, match
        self.leaves, self.tested = leaves, tested

    def plan_jobs(self, rows: Mapping[int, Ranges], lot_bytes: int) -> list[Decrypt]:
        """Divide the rows into lots, and return a function for each that decrypts it."""
        jobs: list[Decrypt] = []
        sizes = measure_chunks(self.plan.chunks, rows, self.leaves)
        tested = measure_chunks(self.plan.chunks, rows, self.tested) if self.tested else {}
        lot: list[int] = []
        lot_size = 0
        for r, ranges in rows.items():
            tested_size = tested.get(r, 0)
            job = self._choose_job(r, ranges, tested_size, sizes[r] - tested_size)
            if lot and (job is not None or lot_size + sizes[r] > lot_bytes):
                jobs.append(partial(self._load_row_groups, lot))
                lot, lot_size = [], 0
            if job is None:
                lot.append(r)
                lot_size += sizes[r]
            else:
                jobs.append(job)
        if lot:
            jobs.append(partial(self._load_row_groups, lot))
        return jobs

    def _choose_job(
        self, row_group: int, ranges: Ranges, tested_size: int, other_size: int
    ) -> Decrypt | None:
        """Return what decrypts some rows of a row group; None if it is decrypted as a whole."""
        # The sizes in bytes are those of the columns that the filter reads, and of the others.
        if self.match is not None and self._is_worth_matching(tested_size, other_size):
            return partial(self._load_matching, self.match, row_group, ranges)
        if ranges == [(0, self.session.file.metadata.row_groups[row_group].num_rows)]:
            return None
        return partial(self._load_rows, row_group, ranges)

    def _is_worth_matching(self, tested_size: int, other_size: int) -> bool:
        # In an object store, each column takes requests for its offset index and its pages.
        others = len(self.leaves) - len(self.tested)
        least = max(_WORTH_MATCHING, others * self.session.file.source.least_read)
        return tested_size > 0 and other_size >= max(least, _SHARE * tested_size)

    def _load_matching(self, match: Match, row_group: int, ranges: Ranges) -> Loaded | pa.Table:
        """Decrypt the filter's columns for some rows, and the others for those that match."""
        session = self.session
        everything = [(0, session.file.metadata.row_groups[row_group].num_rows)]
        if ranges == everything:
            lot: Loaded | pa.Table = self._load_row_groups([row_group], self.tested)
        else:
            lot = self._load_rows(row_group, ranges, self.tested)
        if isinstance(lot, Loaded):
            batches = session.decoder.decode_batches(lot, _BATCH_ROWS)
            ranges = everything
        else:
            batches = iter(lot.to_batches())
        # No generator: mypyc makes a list of it, which would keep all batches.
        found = [match(pa.Table.from_batches([batch])) for batch in batches]
        matches = pa.chunked_array(found, pa.bool_())
        matching = _find_ranges(matches, ranges)
        if matching == everything:
            return self._load_row_groups([row_group])
        return self._load_rows(row_group, matching) if matching else pa.table({})

    def _load_row_groups(
        self, row_groups: list[int], columns: Sequence[int] | None = None
    ) -> Loaded:
        plan = self.plan
        if columns or row_groups != plan.row_groups:
            plan = self.session.select(columns or self.leaves, row_groups)
        return load_chunks(self.session.file.source, plan, self.session.pool)

    def _load_rows(
        self, row_group: int, ranges: Ranges, columns: Sequence[int] | None = None
    ) -> Loaded | pa.Table:
        """Decrypt what holds some rows of a row group: single pages where they can be located."""
        # If a page is not what its offset index says, the ranges are wrong too. Then all rows are
        # decrypted, which raises the error again if its cause is not the index.
        session = self.session
        plan = session.select(columns or self.leaves, [row_group])
        try:
            indexes = self._find_offset_indexes(row_group, plan)
            return self._load_located_rows(row_group, ranges, plan, indexes)
        except (FormatError, IntegrityError):
            everything = self._load_row_groups([row_group], columns)
            if self.match is not None:
                return everything
            return session.decoder.decode_rows(everything, ranges)

    def _find_offset_indexes(self, row_group: int, plan: ReadPlan) -> dict[int, ThriftStruct]:
        """Return the offset indexes of the columns whose pages can be read one by one."""
        # The pages of a large chunk without an offset index are located by their headers, except in
        # a remote file, where each header takes a request.
        source, elements = self.session.file.source, self.session.file.elements
        rows = self.session.file.metadata.row_groups[row_group].num_rows
        fields = Counter(plan.leaves[c][0] for c in plan.footer_leaves)
        flat = {
            n: c
            for n, c in enumerate(plan.footer_leaves)
            if not elements[c].max_repetition and fields[plan.leaves[c][0]] == 1
        }
        with self.session.lock:
            parts = PlanParts(source, plan)
            indexes = {c: parts.read_offset_index(0, n) for n, c in flat.items()}
        for c, index in indexes.items():
            chunk = plan.chunks.get((row_group, c))
            size = 0 if chunk is None else chunk.meta_data.total_compressed_size
            if index is None and size >= _WORTH_LOCATING and not source.least_read:
                indexes[c] = locate_pages(source, plan, row_group, c)
        return {
            c: index
            for c, index in indexes.items()
            if index is not None and not _has_empty_page(index, rows)
        }

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


def _find_ranges(matches: pa.ChunkedArray, ranges: Ranges) -> Ranges:
    """Return ranges with all rows that match; `matches` has a flag for each row of `ranges`."""
    import pyarrow.compute as pc  # takes a third of the time of importing PyArrow

    rows = ranges[-1][1]
    step = 1 if pc.sum(matches, min_count=0).as_py() <= _MOST_RANGES else -(-rows // _MOST_RANGES)
    found: Ranges = []
    at = 0
    for start, stop in ranges:
        numbers = pc.add(pc.indices_nonzero(matches.slice(at, stop - start)), start)
        for part in pc.unique(pc.divide(numbers, step)).to_pylist():
            first, after = max(start, part * step), min(stop, part * step + step)
            joins = bool(found) and found[-1][1] == first
            found.append((found.pop()[0] if joins else first, after))
        at += stop - start
    return found


def _has_empty_page(index: ThriftStruct, rows: int) -> bool:
    """Return whether a page of an offset index has no rows: PyArrow must not read it alone."""
    firsts = [location.first_row_index for location in index.page_locations]
    return any(first == second for first, second in pairwise([*firsts, rows]))
