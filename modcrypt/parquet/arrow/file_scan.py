"""One read of an encrypted file: which columns and rows it needs, opened lot by lot.

    keys of the columns -> rows that may match -> lots of row groups -> chunks, or single pages

What is left to PyArrow: judging statistics, decoding, the filter itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from modcrypt.aad import ModuleType
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    UnsupportedFormatError,
)
from modcrypt.fork_safety import cached_property
from modcrypt.io.buffers import Shared, Threads
from modcrypt.io.storage import Source
from modcrypt.parquet.arrow.chunk_loading import footer_alone, load_chunks, load_pages
from modcrypt.parquet.arrow.decoding import Decoder, Loaded, is_fault_of_bytes
from modcrypt.parquet.arrow.expressions import referenced_fields
from modcrypt.parquet.arrow.row_group_pruning import Ranges, candidate_rows
from modcrypt.parquet.crypto.bloom_filters import open_bloom_filter
from modcrypt.parquet.crypto.column_projection import drop_columns
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.crypto.index_checks import column_index_faults, missing_in_bloom
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode
from modcrypt.parquet.format.modules import Part
from modcrypt.parquet.format.schema import Leaf, leaf_elements, leaves_of

__all__ = ["Request", "Scan", "Session", "joined", "schema_file"]

_OPTIONAL, _REQUIRED = 1, 0  # FieldRepetitionType of the IDL

_BATCH_ROWS = 1 << 17
"""Rows at once where the caller does not say, as in PyArrow."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be read of a file, and what is known about it from outside.

    Args:
        columns: names of columns or groups, in the order wanted; None for all.
        filter: only rows for which it is true.
        row_groups: ordinals; None for all.
        partition: what is known of all rows, as of a file in a partitioned dataset.
        partition_schema: the fields that `partition` says something about.
        schema: types of all that is read, partition fields included, as the dataset has them that
            the file belongs to. None for the file's own.
        result: types of what is given out; where `schema` is.
        limit: rows from the first on that are wanted, where there is no filter; None for all.
    """

    columns: Sequence[str] | None = None
    filter: pc.Expression | None = None
    row_groups: Sequence[int] | None = None
    partition: pc.Expression = field(default_factory=lambda: pc.scalar(True))
    partition_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    schema: pa.Schema | None = None
    result: pa.Schema | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Session:
    """An open file and what works on it. Planning shares ciphers, so the lock guards it."""

    file: OpenFile
    format: ds.ParquetFileFormat
    decoder: Decoder
    pool: Threads  # opens chunks side by side
    ahead: Threads  # opens the next lot while one is decoded
    lock: threading.Lock
    shared: Shared  # what is to be freed at the end

    def select(self, columns: Sequence[int] | None, row_groups: Sequence[int] | None) -> Plan:
        """Plan with the parts that are missing in groups left out: PyArrow fills them."""
        with self.lock:
            return self.file.select(columns, row_groups, partial_groups=True)


class Scan:
    """One read; keys are found, and rows chosen, when it is made."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session, self._request = session, request
        leaves = session.file.leaves
        if isinstance(request.columns, str):
            raise ValueError("columns takes several names, not one string")
        self._here = {name for path in leaves for name in _prefixes(path)}
        self._check_row_groups()
        self._check_partition_fields()
        names = self._names_in_file()
        wanted = list(range(len(leaves))) if names is None else leaves_of(leaves, names)
        tested = self._tested()
        self._leaves = sorted({*wanted, *tested})
        plan = session.select(self._leaves, request.row_groups)
        if unknown := sorted(set(tested) & set(plan.missing)):
            name = ".".join(leaves[unknown[0]])
            raise KeyNotFoundError(f"the filter reads column {name}, and there is no key", name)
        if plan.missing and request.schema is not None:
            self._check_dropped(plan)
        self.schema = request.schema or self._own_schema(plan, self._leaves)
        self.result = request.result or self._own_result(plan, wanted)
        if request.filter is not None:
            self.schema = _without_views(self.schema)
        self._project = {name: self._column(name) for name in self.result.names}
        self._plan = plan

    def batches(
        self, lot_bytes: int, *, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows, in order, in batches; decode no further than they are asked for.

        Of the file, `lot_bytes` or a single row group are opened at once. While they are decoded,
        the next ones are opened.
        """
        limit = self._request.limit
        if limit is not None and self._request.filter is None:  # else many may be looked at
            batch_size = min(batch_size, max(1, limit))
        for lot in self._lots(lot_bytes):
            yield from self._batches(lot, batch_size, use_threads)

    def _batches(
        self, lot: Loaded | pa.Table, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(lot, pa.Table):
            decoded = iter(lot.to_batches(batch_size))
        else:
            decoded = self._session.decoder.batches(lot, batch_size, use_threads=use_threads)
        for batch in decoded:
            fragment = self._in_memory(pa.Table.from_batches([batch]))
            for found in self._scanner(fragment, self._project, use_threads=False).to_batches():
                if found.num_rows:
                    yield found

    def _lots(self, lot_bytes: int) -> Iterator[Loaded | pa.Table]:
        session = self._session
        with session.shared.use():
            jobs = self._jobs(lot_bytes)
        ready: Loaded | pa.Table | None = None
        for job in jobs:
            with session.shared.use():
                if ready is None:  # there is nothing to do meanwhile
                    ready = job()
                    continue
                following = session.ahead.submit(job)
            yield ready
            with session.shared.use():
                ready = following.result()
        if ready is not None:
            yield ready

    def tables(self, lot_bytes: int, *, use_threads: bool) -> list[pa.Table]:
        """Read the rows, in order: two lots at once, so that decoding never waits for opening."""

        def read(job: Callable[[], Loaded | pa.Table]) -> pa.Table:
            return self._table(job(), use_threads)

        session = self._session
        with session.shared.use():
            jobs = self._jobs(lot_bytes)
            if len(jobs) < 2:
                return [read(job) for job in jobs]
            work = [session.ahead.submit(read, job) for job in jobs]
            try:
                return [done.result() for done in work]
            finally:
                for pending in work:  # none is, unless one failed
                    pending.cancel()

    def _table(self, lot: Loaded | pa.Table, use_threads: bool) -> pa.Table:
        decoder = self._session.decoder
        if not isinstance(lot, pa.Table) and decoder.repeats_long_values(lot):
            batches = list(self._batches(lot, _BATCH_ROWS, use_threads))
            return pa.Table.from_batches(batches) if batches else self.result.empty_table()
        project = {n: column for n, column in self._project.items() if n not in self._constants}
        if isinstance(lot, pa.Table):
            scanner = self._scanner(self._in_memory(lot), project, use_threads=use_threads)
            return self._with_constants(scanner)
        scanner = self._scanner(self._fragment(lot), project, use_threads=use_threads)
        try:
            table = self._with_constants(scanner)
        except Exception as error:
            # A filter that doesn't fit the columns is the caller's fault.
            if is_fault_of_bytes(error) and decoder.is_damaged(lot.data):
                raise decoder.error(error, lot.data) from None
            raise
        if self._request.filter is None:
            decoder.check_rows(lot, table.num_rows)
        return table

    @cached_property
    def _constants(self) -> dict[str, Any]:
        """The columns that have one value in all rows: those of folders, and those of nulls."""
        known = ds.get_partition_keys(self._request.partition)
        nulls = {self._plan.leaves[c][0] for c in self._plan.nulls}
        there = {path[0] for path in self._session.file.leaves}
        return {
            one.name: pa.scalar(known.get(one.name), one.type)
            for one in self.result
            if not pa.types.is_nested(one.type) and not isinstance(one.type, pa.BaseExtensionType)
            if one.name in known or one.name in nulls or one.name not in there
        }

    def _with_constants(self, scanner: ds.Scanner) -> pa.Table:
        """Read a table, with columns of one value, which is kept in memory for a few rows only."""
        constants = self._constants
        if not constants:
            return scanner.to_table()
        if len(constants) == len(self._project):
            table, rows = pa.table({}), scanner.count_rows()
        else:
            table = scanner.to_table()
            rows = table.num_rows
        names = self.result.names
        columns = [
            _repeated(constants[name], rows) if name in constants else table[name] for name in names
        ]
        return pa.Table.from_arrays(columns, schema=self.result)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say what PyArrow can't cast, without the values that it names."""
        try:
            yield
        except pa.ArrowInvalid:
            own = self._own_schema(self._plan, self._leaves)
            types = {one.name: (one.type, self.schema.field(one.name).type) for one in own}
            changed = [
                f"{name} is {here}, in the dataset {there}"
                for name, (here, there) in types.items()
                if here != there
            ]
            if not changed:
                raise
            raise ValueError(f"values that don't fit the dataset: {'; '.join(changed)}") from None

    def _scanner(
        self, fragment: ds.Fragment, project: dict[str, pc.Expression], *, use_threads: bool
    ) -> ds.Scanner:
        return fragment.scanner(
            schema=self.schema,
            columns=project,
            filter=self._request.filter,
            batch_size=_BATCH_ROWS,
            use_threads=use_threads,
        )

    def _check_dropped(self, plan: Plan) -> None:
        """Refuse to drop a column that other files of the dataset have."""
        if self._session.file.properties.on_missing_key == "drop":
            raise KeyNotFoundError(
                f"no key for column {', '.join(plan.missing_names)}, which the dataset's first "
                'file has: on_missing_key="null" fills it with nulls where there is no key',
                plan.missing_names[0],
            )

    def _check_partition_fields(self) -> None:
        """Refuse folders that name a column: anyone may rename a folder."""
        if both := {path[0] for path in self._session.file.leaves}.intersection(
            self._request.partition_schema.names
        ):
            raise ValueError(
                f"{_listed(both)}: a column of the file, and the name of a folder around it, which "
                "is not authenticated; partitioning=None reads the files alone"
            )

    # --- columns ---------------------------------------------------------------------------------

    def _check_row_groups(self) -> None:
        count = len(self._session.file.metadata.row_groups)
        wanted = self._request.row_groups or ()
        for r in wanted:
            if not 0 <= r < count:
                raise ValueError(f"there is no row group {r}: the file has {count}")
        if len(set(wanted)) < len(wanted):
            raise ValueError("a row group is named twice")

    def _names_in_file(self) -> list[str] | None:
        """Give the names asked for; of a dataset's, those that this file has."""
        request = self._request
        if request.schema is None or request.result is None:
            outside, names = request.partition_schema.names, request.columns
            return None if names is None else [name for name in names if name not in outside]
        asked = request.result.names if request.columns is None else request.columns
        return [name for name in asked if name in self._here]

    def _tested(self) -> list[int]:
        """Give the leaves that the filter reads."""
        request, leaves = self._request, self._session.file.leaves
        if request.filter is None:
            return []
        fields = referenced_fields(request.filter)
        if fields is None:
            return list(range(len(leaves)))
        names = {".".join(path) for path in fields}
        absent = names - self._here - set(request.partition_schema.names)
        if request.schema is None and absent:
            raise ValueError(f"the filter reads columns that are not there: {_listed(absent)}")
        return leaves_of(leaves, names & self._here)

    def _column(self, name: str) -> pc.Expression:
        """Give a field as the caller wants it: without the parts that the filter alone reads."""
        column, wanted = pc.field(name), self.result.field(name).type
        return column if self.schema.field(name).type == wanted else column.cast(wanted)

    def _own_result(self, plan: Plan, wanted: Sequence[int]) -> pa.Schema:
        schema = self.schema if wanted == self._leaves else self._own_schema(plan, wanted)
        if self._request.columns is None:
            return schema
        names = _top_level(self._request.columns, self._session.file.leaves)
        there = [schema.field(name) for name in names if name in schema.names]
        return pa.schema(there, schema.metadata)

    def _own_schema(self, plan: Plan, leaves: Sequence[int]) -> pa.Schema:
        file = self._session.file
        filled = set(plan.missing) & set(leaves)
        if file.properties.on_missing_key != "null":
            filled = set()
        columns = {c for c in leaves if plan.keep[c] or c in filled}
        data = schema_file(file.metadata, columns, filled)
        own = self._session.decoder.open(data).schema_arrow
        if twice := {name for name, count in Counter(own.names).items() if count > 1}:
            raise UnsupportedFormatError(
                f"there are several columns of one name: {_listed(twice)}; open_parquet shows them"
            )
        return pa.schema([*own, *self._request.partition_schema], own.metadata)

    # --- rows ------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> dict[int, Ranges]:
        """The rows that may match, by row group."""
        plan, request = self._plan, self._request
        row_groups = plan.footer.metadata.row_groups
        if request.filter is None:
            rows = {r: row_groups[r].num_rows for r in plan.row_groups}
            return _first_rows({r: count for r, count in rows.items() if count}, request.limit)
        with self._session.lock:
            metadata, _ = plain_metadata(plan, selected_row_groups(plan), 0)
            found = candidate_rows(
                metadata,
                request.filter,
                _Shown(_Parts(self._session.file.source, plan), plan),
                row_groups=range(len(plan.row_groups)),
                partition=request.partition,
                schema=self.schema,
            )
        return {plan.row_groups[i]: ranges for i, ranges in found.items()}

    def _jobs(self, lot_bytes: int) -> list[Callable[[], Loaded | pa.Table]]:
        """Cut the rows into lots, each of which a call opens."""
        jobs: list[Callable[[], Loaded | pa.Table]] = []
        row_groups = self._session.file.metadata.row_groups
        sizes = dict.fromkeys(self._rows, 0)
        for (r, _), chunk in self._plan.chunks.items():
            if r in sizes:
                sizes[r] += chunk.meta_data.total_compressed_size
        lot: list[int] = []
        for r, ranges in self._rows.items():
            whole = ranges == [(0, row_groups[r].num_rows)]
            if lot and (not whole or sum(sizes[q] for q in lot) + sizes[r] > lot_bytes):
                jobs.append(partial(self._load_row_groups, lot))
                lot = []
            if whole:
                lot.append(r)
            else:
                jobs.append(partial(self._load_rows, r, ranges))
        if lot:
            jobs.append(partial(self._load_row_groups, lot))
        return jobs

    def _load_row_groups(self, row_groups: list[int], columns: list[int] | None = None) -> Loaded:
        plan = self._session.select(columns or self._leaves, row_groups)
        return load_chunks(self._session.file.source, plan, self._session.pool)

    def _load_rows(self, row_group: int, ranges: Ranges) -> pa.Table:
        """Open what holds some rows of a row group: single pages where they can be found."""
        session = self._session
        plan = session.select(self._leaves, [row_group])
        shown = plan.shown
        levels = leaf_elements(session.file.metadata.schema)
        fields = Counter(plan.leaves[c][0] for c in shown)
        flat = [c for c in shown if not levels[c].max_repetition]
        alone = [c for c in flat if fields[plan.leaves[c][0]] == 1]
        with session.lock:
            parts = _Parts(session.file.source, plan)
            indexes = {c: index for c in alone if (index := parts.offset_index(row_group, c))}
        paged = {
            plan.leaves[c][0]: session.pool.submit(
                self._load_pages, row_group, c, index.page_locations, ranges
            )
            for c, index in indexes.items()
        }
        columns: dict[str, Any] = {}
        if whole := [c for c in shown if c not in indexes]:
            table = session.decoder.rows(self._load_row_groups([row_group], whole), ranges)
            columns |= dict(zip(table.column_names, table.columns, strict=True))
        columns |= {name: future.result() for name, future in paged.items()}
        rows = sum(stop - start for start, stop in ranges)
        return pa.table(columns) if columns else pa.table({"": pa.nulls(rows)}).select([])

    def _load_pages(
        self, row_group: int, column: int, locations: list[ThriftStruct], ranges: Ranges
    ) -> pa.ChunkedArray:
        """Open the pages of a column that hold some rows; give those rows."""
        session = self._session
        rows = session.file.metadata.row_groups[row_group].num_rows
        borders = [location.first_row_index for location in locations] + [rows]
        where = f"row group {row_group}, column {'.'.join(session.file.leaves[column])}"
        if borders[0] != 0 or not all(a < b for a, b in pairwise(borders)):
            raise FormatError(f"{where}: the rows of its offset index are out of order")
        rows_of: dict[int, int] = {}  # of the pages wanted
        kept, cuts = 0, []  # rows of those so far, and where among them the rows wanted are
        for start, stop in ranges:
            first, after = bisect_right(borders, start) - 1, bisect_left(borders, stop)
            begin = kept + start - borders[first]
            if first in rows_of:  # the last page of the range before
                begin -= rows_of[first]
            for page in range(first, after):
                if page not in rows_of:
                    rows_of[page] = borders[page + 1] - borders[page]
                    kept += rows_of[page]
            cuts.append((begin, begin + stop - start))
        plan = session.select([column], [row_group])
        data = load_pages(session.file.source, plan, locations, rows_of)
        return session.decoder.rows(data, cuts).column(0)

    def _fragment(self, lot: Loaded) -> ds.Fragment:
        return self._session.format.make_fragment(
            pa.BufferReader(lot.data), partition_expression=self._request.partition
        )

    def _in_memory(self, rows: pa.Table) -> ds.Fragment:
        for name, column in self._partition_columns(rows.num_rows).items():
            rows = rows.append_column(name, column)
        # A fragment for each chunk: there must be one.
        (fragment,) = ds.dataset(rows.combine_chunks()).get_fragments()
        return fragment

    def _partition_columns(self, rows: int) -> dict[str, pa.Array]:
        """Spell out what a dataset knows of all rows."""
        known = ds.get_partition_keys(self._request.partition)
        return {
            name: pa.repeat(pa.scalar(value, self.schema.field(name).type), rows)
            for name, value in known.items()
        }


_COPIED = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which PyArrow filters: version 26 has no filter for columns of views."""
    fields = [field.with_type(_COPIED.get(field.type, field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


class _Parts:
    """The indexes and bloom filters of a plan's chunks, opened when they are asked for.

    One that contradicts the chunk's statistics leaves nothing out: those of plaintext columns can
    be altered where the statistics are sealed.
    """

    def __init__(self, source: Source, plan: Plan) -> None:
        self._source, self._plan = source, plan
        self._schema = plan.footer.metadata.schema
        self._spans = {(span.part, span.row_group, span.column): span for span in plan.spans}

    def column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        index = self._index(Part.COLUMN_INDEX, "ColumnIndex", row_group, column)
        if index is None:
            return None
        leaf, md = self._leaves[column], self._plan.chunks[row_group, column].meta_data
        element = self._schema[leaf.element]
        faults = column_index_faults(index, None, md, leaf, element, None)
        return index if next(faults, None) is None else None

    def offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._index(Part.OFFSET_INDEX, "OffsetIndex", row_group, column)

    def _index(self, part: Part, struct: str, row_group: int, column: int) -> ThriftStruct | None:
        span = self._spans.get((part, row_group, column))
        if span is None:
            return None
        data = self._source.read_at(span.start, span.end - span.start)
        cipher = self._plan.ciphers.get((row_group, column))
        if cipher is not None:
            data = cipher.open(ModuleType[part.name], data)
        return decode(struct, data)[0]

    def bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        span = self._spans.get((Part.BLOOM_FILTER, row_group, column))
        if span is None:
            return None
        data = self._source.read_at(span.start, span.end - span.start)
        cipher = self._plan.ciphers.get((row_group, column))
        if cipher is None:
            header, size = decode("BloomFilterHeader", data)
            bitset = data[size:]
        else:
            opened = open_bloom_filter(cipher, span, data)
            header, bitset = decode("BloomFilterHeader", opened.header)[0], opened.bitset
        element = self._schema[self._leaves[column].element]
        md = self._plan.chunks[row_group, column].meta_data
        return None if missing_in_bloom(header, bitset, md, element) else (header, bitset)

    @cached_property
    def _leaves(self) -> list[Leaf]:
        return leaf_elements(self._schema)


class _Shown:
    """The same, numbered as row groups and columns of the plan's plaintext footer are."""

    def __init__(self, parts: _Parts, plan: Plan) -> None:
        self._parts, self._row_groups = parts, plan.row_groups
        self._columns = plan.shown

    def column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._parts.column_index(self._row_groups[row_group], self._columns[column])

    def offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._parts.offset_index(self._row_groups[row_group], self._columns[column])

    def bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        return self._parts.bloom_filter(self._row_groups[row_group], self._columns[column])


def joined(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Put tables of this schema one after the other: none give one of no rows."""
    found = list(tables)
    if not schema.names:  # PyArrow loses the number of rows where there are no columns
        rows = sum(table.num_rows for table in found)
        return pa.table({"": pa.nulls(rows)}).select([])
    return pa.concat_tables(found or [schema.empty_table()])


def schema_file(
    metadata: ThriftStruct, columns: Collection[int], nullable: Collection[int]
) -> pa.Buffer:
    """Give a Parquet file without rows that has the schema of some leaves.

    Args:
        columns: indexes of the leaves.
        nullable: those among them that are null, as are groups of nothing else.
    """
    new = copy(metadata)
    new.schema = list(metadata.schema)
    new.row_groups, new.num_rows = [], 0
    new.encryption_algorithm = new.footer_signing_key_metadata = None
    leaves = leaf_elements(metadata.schema)
    there = {i for c in columns if c not in nullable for i in leaves[c].elements}
    for index in {next(i for i in leaves[c].elements if i not in there) for c in nullable}:
        if new.schema[index].repetition_type == _REQUIRED:
            new.schema[index] = copy(new.schema[index])
            new.schema[index].repetition_type = _OPTIONAL
    keep = [c in columns for c in range(len(leaves))]
    return footer_alone(new if all(keep) else drop_columns(new, keep))


def _repeated(value: Any, rows: int) -> pa.ChunkedArray:
    """Return a column of one value, all of whose chunks share the memory of one."""
    chunk = pa.repeat(value, min(rows, _BATCH_ROWS))
    chunks = [chunk] * (rows // _BATCH_ROWS)
    if rest := rows % _BATCH_ROWS:
        chunks.append(chunk.slice(0, rest))
    return pa.chunked_array(chunks, value.type)


def _prefixes(path: tuple[str, ...]) -> Iterator[str]:
    return (".".join(path[:length]) for length in range(1, len(path) + 1))


def _top_level(names: Sequence[str], leaves: list[tuple[str, ...]]) -> list[str]:
    """Give the top-level fields that names mean, in their order, each once."""
    field_of = {name: path[0] for path in leaves for name in _prefixes(path)}
    field_of |= {path[0]: path[0] for path in leaves}  # though a group's part be spelt the same
    return list(dict.fromkeys(field_of.get(name, name) for name in names))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _first_rows(counts: dict[int, int], limit: int | None) -> dict[int, Ranges]:
    """Give all rows of row groups, or the first ones."""
    if limit is None:
        return {r: [(0, count)] for r, count in counts.items()}
    found: dict[int, Ranges] = {}
    for r, count in counts.items():
        if limit > 0:
            found[r] = [(0, min(count, limit))]
        limit -= count
    return found
