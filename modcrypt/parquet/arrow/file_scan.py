"""One read of an encrypted file: choose its columns and rows, and decrypt them lot by lot.

    keys of the columns -> rows that may match -> lots of row groups -> chunks, or single pages

PyArrow judges the statistics, decodes, and applies the filter.

This module has more than 400 lines because choosing, decrypting and decoding share one scan's plan.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from modcrypt.errors import FormatError, IntegrityError, KeyNotFoundError, UnsupportedFormatError
from modcrypt.io.sources import Source
from modcrypt.io.threads import SharedResources, ThreadPool
from modcrypt.parquet.arrow.chunk_loading import load_chunks, load_pages
from modcrypt.parquet.arrow.decoding import Decoder, Loaded, is_fault_of_bytes
from modcrypt.parquet.arrow.filters import Filter, bind_filter, fit_filter, replace_views
from modcrypt.parquet.arrow.row_group_pruning import Ranges, find_candidate_rows
from modcrypt.parquet.arrow.schema_files import (
    SchemaFile,
    SchemaFiles,
    freeze_schema,
    make_schema_file,
    schemas_of,
)
from modcrypt.parquet.convert.plaintext_footer import copy_row_groups, plain_metadata
from modcrypt.parquet.crypto.bloom_filters import is_in_clear, open_part
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.index_checks import column_index_faults, missing_in_bloom
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.modules import STRUCTS, Part
from modcrypt.parquet.format.schema import Leaf, childless_fields, leaf_elements, leaves_of
from modcrypt.runtime.fork_safety import cached_property

_BATCH_ROWS = 1 << 17  # default number of rows in a batch, as in PyArrow

_SMALL_LOT = 1 << 20
"""Size in bytes up to which a table is decoded without PyArrow's scanner, whose preparation takes
longer than decoding."""

_ALWAYS = pc.scalar(True)
_NO_FIELDS = pa.schema([])


@dataclass(frozen=True, kw_only=True)
class Request:
    """A description of what to read from a file, and of what is known about it from outside."""

    # Names of columns or groups, in the order wanted; None for all.
    columns: Sequence[str] | None = None
    filter: Filter | None = None
    row_groups: Sequence[int] | None = None  # ordinals of row groups; None for all
    # Condition that holds for all rows, as for a file in a partitioned dataset.
    partition: pc.Expression = field(default_factory=lambda: _ALWAYS)
    partition_schema: pa.Schema = _NO_FIELDS
    # Types of all fields that are read, partition fields included, as in the dataset that the file
    # belongs to. None for the types of the file.
    schema: pa.Schema | None = None
    # Types of the fields that are returned; None unless `schema` is given.
    result: pa.Schema | None = None
    limit: int | None = None  # number of rows wanted from the start, without a filter; None for all


@dataclass(frozen=True)
class Session:
    """An open file and the resources that read it."""

    file: OpenFile
    format: ds.ParquetFileFormat
    decoder: Decoder
    pool: ThreadPool  # threads that decrypt chunks in parallel
    ahead: ThreadPool  # threads that decrypt the next lot while one is decoded
    lock: threading.Lock  # guards planning, because plans share ciphers
    shared: SharedResources  # resources to close after the last read

    @cached_property
    def frozen_schema(self) -> Hashable:
        """All parts of the footer that affect the schema, as a value to compare."""
        return freeze_schema(self.file.metadata)

    @cached_property
    def _schemas(self) -> SchemaFiles:
        return schemas_of(self.file.metadata)

    @cached_property
    def childless(self) -> frozenset[str]:
        """Names of the top-level groups without leaves, which PyArrow fills with nulls."""
        return frozenset(childless_fields(self.file.metadata.schema))

    def open_schema(
        self, columns: Collection[int], nullable: Collection[int] = (), *, keep_pairs: bool = True
    ) -> SchemaFile:
        """Return a file without rows that has the schema of some leaves.

        The arguments are those of `make_schema_file`.
        """
        wanted = frozenset(columns), frozenset(nullable)
        return self._schemas.get(
            (self.frozen_schema, wanted, keep_pairs, repr(self.decoder.options)),
            lambda: SchemaFile(
                make_schema_file(
                    self.file.metadata, self.file.leaf_count, *wanted, keep_pairs=keep_pairs
                ),
                self.format, self.decoder,
            ),
        )  # fmt: skip

    def select(self, columns: Sequence[int] | None, row_groups: Sequence[int] | None) -> ReadPlan:
        """Return a plan that omits missing parts of groups, which PyArrow fills."""
        with self.lock:
            return self.file.select(columns, row_groups, partial_groups=True)


_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


class Scan:
    """One read. Creating it finds the keys of the columns; the rows are chosen on first use."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session, self._request = session, request
        leaves = session.file.leaves
        if isinstance(request.columns, str):
            raise ValueError("columns must be a list of names, not one string")
        self._check_row_groups()
        self._check_partition_fields()
        names = self._select_names_in_file()
        wanted = list(range(len(leaves))) if names is None else self._find_leaves(names)
        self._filter = None if request.filter is None else self._bind_filter(request.filter)
        tested = [] if self._filter is None else self._find_filter_leaves(self._filter)
        self._leaves = sorted({*wanted, *tested})
        plan = session.select(self._leaves, request.row_groups)
        if unknown := sorted(set(tested) & set(plan.missing)):
            name = ".".join(leaves[unknown[0]])
            raise KeyNotFoundError(f"the filter reads column {name}, which has no key", name)
        on_missing_key = session.file.properties.on_missing_key
        if plan.missing and request.schema is not None and on_missing_key == "drop":
            raise KeyNotFoundError(
                f"no key for column {', '.join(plan.missing_names)}, which the dataset's first "
                'file has; pass on_missing_key="null" to fill it with nulls',
                plan.missing_names[0],
            )
        self.schema = request.schema or self._make_own_schema(plan, self._leaves)
        self.result = request.result or self._make_result_schema(plan, wanted)
        if self._filter is not None:
            self.schema = replace_views(self.schema)
            self._filter = fit_filter(self._filter, self.schema)
        self._plan = plan

    @cached_property
    def _project(self) -> dict[str, pc.Expression]:
        """The fields as the caller wants them, without the parts that only the filter reads."""
        columns = {name: pc.field(name) for name in self.result.names}
        return {
            name: column if self.schema.field(name).type == wanted else column.cast(wanted)
            for (name, column), wanted in zip(columns.items(), self.result.types, strict=True)
        }

    def read_batches(
        self, lot_bytes: int, *, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows in order, in batches, decoding only as far as the caller iterates.

        At most `lot_bytes` of the file, or one row group, are decrypted at once. While one lot is
        decoded, the next is decrypted.
        """
        limit = self._request.limit
        if limit is not None and self._request.filter is None:  # A filter may need many more rows.
            batch_size = min(batch_size, max(1, limit))
        for lot in self._load_lots(lot_bytes):
            yield from self._decode_lot(lot, batch_size, use_threads)

    def _decode_lot(
        self, lot: Loaded | pa.Table, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(lot, pa.Table):
            decoded = iter(lot.to_batches(batch_size))
        elif lot.rows <= batch_size and (table := self._decode_small(lot)) is not None:
            decoded = iter(table.to_batches())
        else:
            decoded = self._session.decoder.decode_batches(lot, batch_size, use_threads=use_threads)
        for batch in decoded:
            if self._request.filter is None and batch.schema.equals(self.result):
                if batch.num_rows:  # Skip the projection, which costs time.
                    yield self._set_metadata(batch)
                continue
            fragment = self._make_memory_fragment(pa.Table.from_batches([batch]))
            scanner = self._make_scanner(fragment, self._project, use_threads=False)
            yield from (result for result in scanner.to_batches() if result.num_rows)

    def _load_lots(self, lot_bytes: int) -> Iterator[Loaded | pa.Table]:
        session = self._session
        with session.shared.use():
            jobs = self._plan_jobs(lot_bytes)
        ready: Loaded | pa.Table | None = None
        for job in jobs:
            with session.shared.use():
                if ready is None:  # This is the first lot; nothing can be decoded meanwhile.
                    ready = job()
                    continue
                following = session.ahead.submit(job)
            yield ready
            with session.shared.use():
                ready = following.result()
        if ready is not None:
            yield ready

    def read_tables(self, lot_bytes: int, *, use_threads: bool) -> list[pa.Table]:
        """Read the rows in order, two lots at once, so that decoding never waits for decryption."""

        def read(job: Callable[[], Loaded | pa.Table]) -> pa.Table:
            return self._decode_table(job(), use_threads)

        session = self._session
        with session.shared.use():
            jobs = self._plan_jobs(lot_bytes)
            if len(jobs) < 2:
                return [read(job) for job in jobs]
            work = [session.ahead.submit(read, job) for job in jobs]
            try:
                return [future.result() for future in work]
            finally:
                for future in work:  # This cancels nothing unless a job failed.
                    future.cancel()

    def _decode_table(self, lot: Loaded | pa.Table, use_threads: bool) -> pa.Table:
        decoder = self._session.decoder
        if isinstance(lot, pa.Table):
            return self._read_fragment(self._make_memory_fragment(lot), use_threads)
        if decoder.repeats_long_values(lot):
            return pa.Table.from_batches(
                self._decode_lot(lot, _BATCH_ROWS, use_threads), self.result
            )
        if (small := self._decode_small(lot)) is not None:
            return small
        fragment = self._session.format.make_fragment(
            pa.BufferReader(lot.data), partition_expression=self._request.partition
        )
        try:
            table = self._read_fragment(fragment, use_threads)
        except Exception as error:
            # If the file is intact, the caller's filter does not fit the columns.
            if is_fault_of_bytes(error) and decoder.is_damaged(lot.data):
                raise decoder.translate_error(error, lot.data) from None
            raise
        if self._request.filter is None:
            decoder.check_rows(lot, table.num_rows)
        return table

    def _decode_small(self, lot: Loaded) -> pa.Table | None:
        """Return the rows of a small lot if decoding it yields the result; otherwise None."""
        decoder = self._session.decoder
        is_small = lot.data.size <= _SMALL_LOT and not decoder.repeats_long_values(lot)
        if not is_small or not self._needs_no_scanner:
            return None
        return self._set_metadata(decoder.decode_table(lot, use_threads=False))

    def _set_metadata(self, rows: _Rows) -> _Rows:
        """Return decoded rows with the metadata of the result: PyArrow shows more pairs in them."""
        if rows.schema.equals(self.result, check_metadata=True):
            return rows
        if not self.result.names:
            return replace_metadata(rows, self.result.metadata)
        return type(rows).from_arrays(rows.columns, schema=self.result)

    @cached_property
    def _needs_no_scanner(self) -> bool:
        """True if decoding yields the rows and columns of the result."""
        request = self._request
        if request.filter is not None or request.partition_schema.names or self._plan.missing:
            return False
        if self._session.childless.intersection(self.result.names):
            return False
        if request.schema is None and self.result is self.schema:
            return True
        own = self._make_own_schema(self._plan, self._leaves)
        return bool(self.result.equals(own, check_metadata=True))

    @cached_property
    def _constants(self) -> dict[str, Any]:
        """The columns with one value in all rows: from folder names, or filled with nulls."""
        known = ds.get_partition_keys(self._request.partition)
        nulls = {self._plan.leaves[c][0] for c in self._plan.nulls}
        there = {path[0] for path in self._session.file.leaves}
        return {
            field.name: pa.scalar(known.get(field.name), field.type)
            for field in self.result
            if not pa.types.is_nested(field.type)
            and not isinstance(field.type, pa.BaseExtensionType)
            if field.name in known or field.name in nulls or field.name not in there
        }

    def _read_fragment(self, fragment: ds.Fragment, use_threads: bool) -> pa.Table:
        """Read the result, adding constant columns, whose memory holds only a few rows."""
        constants = self._constants
        project = {n: column for n, column in self._project.items() if n not in constants}
        scanner = self._make_scanner(fragment, project, use_threads=use_threads)
        if project or not constants:
            table = scanner.to_table()
            rows = table.num_rows
        else:
            rows = scanner.count_rows()
        if not constants:
            return table
        columns = [
            _repeat_value(constants[name], rows) if name in constants else table[name]
            for name in self.result.names
        ]
        return pa.Table.from_arrays(columns, schema=self.result)

    @contextmanager
    def explain_cast_errors(self) -> Iterator[None]:
        """Replace PyArrow's cast errors by one that names the types, but not the values."""
        try:
            yield
        except pa.ArrowInvalid:
            own = replace_views(self._make_own_schema(self._plan, self._leaves))
            dataset = replace_views(self.schema)
            changed = [
                f"{field.name} is {field.type} in the file and {there} in the dataset"
                for field in own
                if field.type != (there := dataset.field(field.name).type)
            ]
            if not changed:
                raise
            raise ValueError(
                f"values do not fit the dataset's types: {'; '.join(changed)}"
            ) from None

    def _make_scanner(
        self, fragment: ds.Fragment, project: dict[str, pc.Expression], *, use_threads: bool
    ) -> ds.Scanner:
        return fragment.scanner(
            schema=self.schema,
            columns=project,
            filter=None if self._filter is None else self._filter.expression,
            batch_size=_BATCH_ROWS,
            use_threads=use_threads,
        )

    def _check_partition_fields(self) -> None:
        """Raise ValueError if a folder names a column, since anyone may rename a folder."""
        folders = frozenset(self._request.partition_schema.names)
        if both := folders.intersection(path[0] for path in self._session.file.leaves if folders):
            raise ValueError(
                f"{_join_names(both)}: both a column of the file and the name of a folder around "
                "it, which is not authenticated; pass partitioning=None to ignore folder names"
            )

    # --- columns ---------------------------------------------------------------------------------

    @cached_property
    def _here(self) -> set[str]:
        """Dotted names of all columns and groups."""
        paths = self._session.file.leaves
        return {name for path in paths for name in _iter_prefixes(path)} | self._session.childless

    def _find_leaves(self, names: Iterable[str]) -> list[int]:
        """Return the leaves that are named or belong to a named group, as `leaves_of`."""
        return leaves_of(self._session.file.leaves, set(names) - self._session.childless)

    def _check_row_groups(self) -> None:
        count = len(self._session.file.metadata.row_groups)
        wanted = self._request.row_groups or ()
        for r in wanted:
            if not 0 <= r < count:
                raise ValueError(f"row group {r} does not exist; the file has {count} row groups")
        if len(set(wanted)) < len(wanted):
            raise ValueError("row_groups lists a row group twice; list each one once")

    def _select_names_in_file(self) -> list[str] | None:
        """Return the requested names; for a file of a dataset, those that this file has."""
        request = self._request
        if request.schema is None or request.result is None:
            outside, names = request.partition_schema.names, request.columns
            return None if names is None else [name for name in names if name not in outside]
        requested = request.result.names if request.columns is None else request.columns
        return [name for name in requested if name in self._here]

    def _bind_filter(self, row_filter: Filter) -> Filter:
        """Return the filter with the fields that it reads."""
        if row_filter.alternatives:
            return row_filter
        file, schema = self._session.file, self._request.schema
        if schema is None:
            own = self._session.open_schema(range(file.leaf_count)).schema_arrow
            schema = pa.schema([*own, *self._request.partition_schema])
        return bind_filter(row_filter, replace_views(schema))

    def _find_filter_leaves(self, row_filter: Filter) -> list[int]:
        """Return the leaves that the filter reads; all of them if they are not known."""
        request, leaves = self._request, self._session.file.leaves
        if not row_filter.alternatives:
            return list(range(len(leaves)))
        names = {".".join(predicate.path) for predicate in row_filter.predicates}
        absent = names - self._here - set(request.partition_schema.names)
        if request.schema is None and absent:
            raise ValueError(f"the filter reads columns that do not exist: {_join_names(absent)}")
        return self._find_leaves(names & self._here)

    def _make_result_schema(self, plan: ReadPlan, wanted: Sequence[int]) -> pa.Schema:
        schema = self.schema if wanted == self._leaves else self._make_own_schema(plan, wanted)
        if self._request.columns is None:
            return schema
        names = _find_top_level_names(self._request.columns, self._session.file.leaves)
        if names == schema.names:
            return schema
        there = [schema.field(name) for name in names if name in schema.names]
        return pa.schema(there, schema.metadata)

    def _make_own_schema(self, plan: ReadPlan, leaves: Sequence[int]) -> pa.Schema:
        file = self._session.file
        filled = set(plan.missing) & set(leaves)
        if file.properties.on_missing_key != "null":
            filled = set()
        columns = {c for c in leaves if plan.keep[c] or c in filled}
        own = self._session.open_schema(columns, filled, keep_pairs=not plan.missing).schema_arrow
        if twice := {name for name, count in Counter(own.names).items() if count > 1}:
            raise UnsupportedFormatError(
                f"several columns have the same name: {_join_names(twice)}; read them with "
                "open_parquet"
            )
        folders = self._request.partition_schema
        return pa.schema([*own, *folders], own.metadata) if folders.names else own

    # --- rows ------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> dict[int, Ranges]:
        """The rows that may match, for each row group."""
        plan, request = self._plan, self._request
        row_groups = plan.footer.metadata.row_groups
        if self._filter is None:
            rows = {r: row_groups[r].num_rows for r in plan.row_groups}
            return _select_first_rows(
                {r: count for r, count in rows.items() if count}, request.limit
            )
        with self._session.lock:
            metadata, _ = plain_metadata(plan, copy_row_groups(plan), 0)
            candidates = find_candidate_rows(
                metadata,
                self._filter,
                _Parts(self._session.file.source, plan),
                row_groups=range(len(plan.row_groups)),
                partition=request.partition,
                schema=self.schema,
            )
        return {plan.row_groups[i]: ranges for i, ranges in candidates.items()}

    def _plan_jobs(self, lot_bytes: int) -> list[Callable[[], Loaded | pa.Table]]:
        """Divide the rows into lots, and return a function for each that decrypts it."""
        jobs: list[Callable[[], Loaded | pa.Table]] = []
        row_groups = self._session.file.metadata.row_groups
        sizes = dict.fromkeys(self._rows, 0)
        for (r, _), chunk in self._plan.chunks.items():
            if r in sizes:
                sizes[r] += chunk.meta_data.total_compressed_size
        lot: list[int] = []
        lot_size = 0
        for r, ranges in self._rows.items():
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
        plan = self._plan
        if columns or row_groups != plan.row_groups:
            plan = self._session.select(columns or self._leaves, row_groups)
        return load_chunks(self._session.file.source, plan, self._session.pool)

    def _load_rows(self, row_group: int, ranges: Ranges) -> Loaded | pa.Table:
        """Decrypt what holds some rows of a row group: single pages where they can be located.

        If a page is not what its offset index says, the ranges are wrong too. Then all rows are
        decrypted, which raises the error again if its cause is not the index.
        """
        session = self._session
        plan = session.select(self._leaves, [row_group])
        fields = Counter(plan.leaves[c][0] for c in plan.footer_leaves)
        rows = session.file.metadata.row_groups[row_group].num_rows
        indexes: dict[int, ThriftStruct] = {}
        with session.lock:
            parts = _Parts(session.file.source, plan)
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
            if self._filter is not None:
                return everything
            return session.decoder.decode_rows(everything, ranges)

    def _load_located_rows(
        self, row_group: int, ranges: Ranges, plan: ReadPlan, indexes: dict[int, ThriftStruct]
    ) -> pa.Table:
        """Return some rows, of which the offset indexes locate the pages of some columns."""
        session = self._session
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
        session = self._session
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

    def _make_memory_fragment(self, rows: pa.Table) -> ds.Fragment:
        for name, value in ds.get_partition_keys(self._request.partition).items():
            known = pa.scalar(value, self.schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(known, rows.num_rows))
        # PyArrow makes a fragment for each chunk; combining the chunks leaves one.
        (fragment,) = ds.dataset(rows.combine_chunks()).get_fragments()
        return fragment


class _Parts:
    """The indexes and bloom filters of a plan's chunks, decrypted on demand.

    Ordinals are those of the plan's plaintext footer. What cannot be used is ignored, as other
    readers do: what contradicts the chunk's statistics (in plaintext columns it can be altered
    while the statistics are encrypted), what is not encrypted although its column is, and what
    cannot be decoded.
    """

    def __init__(self, source: Source, plan: ReadPlan) -> None:
        self._source, self._plan = source, plan
        self._schema = plan.footer.metadata.schema
        self._spans = {(span.part, span.row_group, span.column): span for span in plan.spans}

    def read_column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        index, _ = self._read(Part.COLUMN_INDEX, row_group, column)
        if index is None:
            return None
        md, leaf, element = self._describe_chunk(row_group, column)
        faults = column_index_faults(index, None, md, leaf, element, None)
        return index if next(faults, None) is None else None

    def read_offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._read(Part.OFFSET_INDEX, row_group, column)[0]

    def read_bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        header, bitset = self._read(Part.BLOOM_FILTER, row_group, column)
        if header is None:
            return None
        md, _, element = self._describe_chunk(row_group, column)
        return None if missing_in_bloom(header, bitset, md, element) else (header, bitset)

    def _read(self, part: Part, row_group: int, column: int) -> tuple[ThriftStruct | None, bytes]:
        """Return the struct of a part, and the bytes after it: a bloom filter's bitset."""
        place = self._plan.row_groups[row_group], self._plan.footer_leaves[column]
        span = self._spans.get((part, *place))
        if span is None:
            return None, b""
        data = self._source.read_at(span.start, span.end - span.start)
        cipher = self._plan.ciphers.get(place)
        if cipher is not None:
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
    def _leaves(self) -> list[Leaf]:
        return leaf_elements(self._schema)


def concatenate_tables(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenate tables of this schema; return an empty table if there are none."""
    parts = list(tables)
    if not schema.names:  # PyArrow loses the number of rows if there are no columns.
        rows = sum(table.num_rows for table in parts)
        return replace_metadata(pa.table({"": pa.nulls(rows)}).select([]), schema.metadata)
    # PyArrow's `Schema.empty_table` fails if a type has an extension type inside.
    return pa.concat_tables(parts or [pa.Table.from_batches([], schema)])


def replace_metadata(rows: _Rows, metadata: Any) -> _Rows:
    """Return rows with other metadata; PyArrow would lose the rows of a table without columns."""
    if rows.num_columns or isinstance(rows, pa.RecordBatch):
        return rows.replace_schema_metadata(metadata)
    return pa.table({"": pa.nulls(rows.num_rows)}).replace_schema_metadata(metadata).select([])


def _repeat_value(value: Any, rows: int) -> pa.ChunkedArray:
    """Return a column of one value, whose chunks share memory."""
    chunk = pa.repeat(value, min(rows, _BATCH_ROWS))
    chunks = [chunk] * (rows // _BATCH_ROWS)
    if rest := rows % _BATCH_ROWS:
        chunks.append(chunk.slice(0, rest))
    return pa.chunked_array(chunks, value.type)


def _iter_prefixes(path: tuple[str, ...]) -> Iterator[str]:
    return (".".join(path[:length]) for length in range(1, len(path) + 1))


def _find_top_level_names(names: Sequence[str], leaves: list[tuple[str, ...]]) -> list[str]:
    """Return the top-level fields of the names, in their order, each once."""
    fields = {path[0] for path in leaves}
    if fields.issuperset(names):  # these take precedence over equal dotted names
        return list(dict.fromkeys(names))
    field_of = {name: path[0] for path in leaves for name in _iter_prefixes(path)}
    field_of |= {name: name for name in fields}
    return list(dict.fromkeys(field_of.get(name, name) for name in names))


def _has_empty_page(index: ThriftStruct, rows: int) -> bool:
    """Return whether a page of an offset index has no rows: PyArrow must not read it alone."""
    firsts = [location.first_row_index for location in index.page_locations]
    return any(first == second for first, second in pairwise([*firsts, rows]))


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _select_first_rows(counts: dict[int, int], limit: int | None) -> dict[int, Ranges]:
    """Return all rows of the row groups, or the first `limit` ones."""
    left = sum(counts.values()) if limit is None else limit
    ranges: dict[int, Ranges] = {}
    for r, count in counts.items():
        if left > 0:
            ranges[r] = [(0, min(count, left))]
        left -= count
    return ranges
