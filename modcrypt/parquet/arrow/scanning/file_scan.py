"""One read of an encrypted file: choose its columns and rows, and decrypt them lot by lot.

    keys of the columns -> rows that may match -> lots of row groups -> chunks, or single pages

PyArrow judges the statistics, decodes, and applies the filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from modcrypt.errors import KeyNotFoundError, UnsupportedFormatError
from modcrypt.parquet.arrow.decoding import Loaded, is_fault_of_bytes
from modcrypt.parquet.arrow.filters import Filter, bind_filter, fit_filter, replace_views
from modcrypt.parquet.arrow.scanning.lot_loading import Decrypt, LotLoader
from modcrypt.parquet.arrow.scanning.plan_parts import PlanParts
from modcrypt.parquet.arrow.scanning.scan_session import Request, Session
from modcrypt.parquet.convert.plaintext_footer import plain_metadata
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.idl import new
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.runtime.collector import paused_collector

if TYPE_CHECKING:  # slow to import; datasets import pandas where it is installed
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from modcrypt.parquet.arrow.scanning.row_group_pruning import Ranges

_BATCH_ROWS = 1 << 17  # default number of rows in a batch, as in PyArrow

_SMALL_ROW_GROUP = 1 << 20
"""Mean size in bytes up to which row groups are decoded without PyArrow's scanner, whose work for
each of them takes longer than decoding."""

_NO_FIELDS = pa.schema([])


_Rows = TypeVar("_Rows", bound="pa.Table | pa.RecordBatch")


class Scan:
    """One read. Creating it finds the keys of the columns; the rows are chosen on first use."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session, self._request = session, request
        leaves = session.file.leaves
        self._check_row_groups()
        self._check_partition_fields()
        # What is made when it is needed.
        self._projection: dict[str, pc.Expression] | None = None
        self._is_direct: bool | None = None
        self._known_values: dict[str, Any] | None = None
        self._repeated: dict[str, Any] | None = None
        names = self._select_names_in_file()
        wanted = list(range(len(leaves))) if names is None else self._find_leaves(names)
        self._filter = None if request.filter is None else self._bind_filter(request.filter)
        tested = [] if self._filter is None else self._find_filter_leaves(self._filter)
        self._leaves = sorted({*wanted, *tested}) if tested else wanted
        fields = {leaves[c][0] for c in tested}
        # All leaves of their fields, since types need them.
        self._tested = [c for c in self._leaves if leaves[c][0] in fields] if tested else []
        # With a filter, chunks are opened when it has chosen row groups.
        opened = None if self._filter is None else ()
        plan = session.select(self._leaves, request.row_groups, opened)
        if plan.missing and (unknown := sorted(set(tested) & set(plan.missing))):
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
        self._tested_schema = self._select_tested_fields()
        self._plan = plan

    def _plan_jobs(self, lot_bytes: int) -> list[Decrypt]:
        session, plan, match, rows = self._session, self._plan, None, self._find_rows()
        if self._filter is not None:
            plan = session.select(self._leaves, list(rows))
            match = partial(self._match_rows, self._filter.expression)
        # No attribute, which would be a cycle: the plan would stay until a full collection.
        loader = LotLoader(session, plan, self._leaves, self._tested, match)
        return loader.plan_jobs(rows, lot_bytes)

    @property
    def _project(self) -> dict[str, pc.Expression]:
        """The fields as the caller wants them, without the parts that only the filter reads."""
        if self._projection is None:
            import pyarrow.compute as pc

            columns = {name: pc.field(name) for name in self.result.names}
            self._projection = {
                name: column if self.schema.field(name).type == wanted else column.cast(wanted)
                for (name, column), wanted in zip(columns.items(), self.result.types, strict=True)
            }
        return self._projection

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
        elif lot.rows <= batch_size and (table := self._decode_small(lot, use_threads)) is not None:
            yield from (batch for batch in table.to_batches() if batch.num_rows)
            return
        else:
            decoded = self._session.decoder.decode_batches(lot, batch_size, use_threads=use_threads)
        for batch in decoded:
            if self._request.filter is None and batch.schema.equals(self.result):
                if batch.num_rows:  # Skip the projection, which costs time.
                    yield self._set_metadata(batch)
                continue
            for fragment in self._make_memory_fragments(pa.Table.from_batches([batch])):
                scanner = self._make_scanner(fragment, self._project, use_threads=False)
                for result in scanner.to_batches():  # mypyc would make a list of a generator
                    if result.num_rows:
                        yield self._set_metadata(result)

    def _load_lots(self, lot_bytes: int) -> Iterator[Loaded | pa.Table]:
        session = self._session
        with session.shared:
            jobs = self._plan_jobs(lot_bytes)
            if not jobs:
                return
            ready = jobs[0]()  # nothing can be decoded meanwhile
        for job in jobs[1:]:
            with session.shared:
                following = session.ahead.submit(job)
            yield ready
            with session.shared:
                ready = following.result()
        yield ready

    def read_tables(self, lot_bytes: int, *, use_threads: bool) -> list[pa.Table]:
        """Read the rows in order, two lots at once, so that decoding never waits for decryption."""

        def read(job: Decrypt) -> pa.Table:
            return self._decode_table(job(), use_threads)

        session = self._session
        with session.shared:
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
            fragments = self._make_memory_fragments(lot)
            read = [self._read_fragment(fragment, use_threads) for fragment in fragments]
            return concatenate_tables(read, self.result)
        if decoder.repeats_long_values(lot):
            return pa.Table.from_batches(
                self._decode_lot(lot, _BATCH_ROWS, use_threads), self.result
            )
        if (small := self._decode_small(lot, use_threads)) is not None:
            return small
        fragment = decoder.format.make_fragment(
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

    def _decode_small(self, lot: Loaded, use_threads: bool) -> pa.Table | None:
        """Return the rows of the result if small row groups hold all its columns; else None."""
        decoder = self._session.decoder
        is_small = lot.data.size <= _SMALL_ROW_GROUP * len(lot.metadata.row_groups)
        if not is_small or not self._needs_no_scanner or decoder.repeats_long_values(lot):
            return None
        if self._filter is None:
            use_threads = use_threads and lot.data.size > _SMALL_ROW_GROUP
            return self._set_metadata(decoder.decode_table(lot, use_threads=use_threads))
        if lot.rows > _BATCH_ROWS:  # All would be in memory, however few match.
            return None
        table = decoder.decode_table(lot, use_threads=False)
        names = {self._plan.leaves[c][0] for c in self._tested}
        tested = table.select([name for name in table.column_names if name in names])
        matches = self._match_rows(self._filter.expression, tested)
        return self._set_metadata(table.filter(matches).select(self.result.names))

    def _set_metadata(self, rows: _Rows) -> _Rows:
        """Return rows with the metadata of the result: decoding shows more, and casts lose some."""
        if rows.schema.equals(self.result, check_metadata=True):
            return rows
        if not self.result.names:
            return replace_metadata(rows, self.result.metadata)
        renamed: _Rows = type(rows).from_arrays(rows.columns, schema=self.result)
        return renamed

    @property
    def _needs_no_scanner(self) -> bool:
        """True if decoding yields all columns of the result, and those that the filter reads."""
        if self._is_direct is None:
            self._is_direct = self._decodes_to_result()
        return self._is_direct

    def _decodes_to_result(self) -> bool:
        request = self._request
        if request.partition_schema.names or self._plan.missing:
            return False
        if self._filter is not None and not self._tested:
            return False
        if (childless := self._session.childless) and childless.intersection(self.result.names):
            return False
        if request.schema is None and self.result is self.schema:
            return True
        own = self._make_own_schema(self._plan, self._leaves)
        if self._filter is None:
            return bool(self.result.equals(own, check_metadata=True))
        # Without views, which PyArrow does not filter, and with whole structs.
        return bool(self.schema.equals(own)) and (
            self.result.equals(own)
            or all(
                own.get_field_index(field.name) >= 0 and own.field(field.name).equals(field)
                for field in self.result
            )
        )

    @property
    def _known(self) -> dict[str, Any]:
        """The fields whose value is known for all rows, from folder names."""
        if self._request.partition is None:
            return {}
        if self._known_values is None:
            from pyarrow.dataset import get_partition_keys

            self._known_values = get_partition_keys(self._request.partition)
        return self._known_values

    @property
    def _constants(self) -> dict[str, Any]:
        """The columns with one value in all rows: from folder names, or filled with nulls."""
        if self._repeated is None:
            self._repeated = self._make_constants()
        return self._repeated

    def _make_constants(self) -> dict[str, Any]:
        known = self._known
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
            return self._set_metadata(table)
        columns = [
            _repeat_value(constants[name], rows) if name in constants else table[name]
            for name in self.result.names
        ]
        return pa.Table.from_arrays(columns, schema=self.result)

    def explain_cast_error(self) -> None:
        """Raise a ValueError that names the types, but no values, if the dataset has others.

        For the handler of PyArrow's error, whose text may contain values.
        """
        own = replace_views(self._make_own_schema(self._plan, self._leaves))
        dataset = replace_views(self.schema)
        changed = [
            f"{field.name} is {field.type} in the file and {there} in the dataset"
            for field in own
            if field.type != (there := dataset.field(field.name).type)
        ]
        if changed:
            raise ValueError(
                f"values do not fit the dataset's types: {'; '.join(changed)}"
            ) from None

    def _match_rows(self, condition: pc.Expression, columns: pa.Table) -> pa.Array:
        """Return whether each of some rows matches the filter, given what the filter reads."""
        (fragment,) = self._make_memory_fragments(columns)
        scanner = fragment.scanner(self._tested_schema, {"": condition}, use_threads=False)
        return scanner.to_table().column(0).combine_chunks()

    def _select_tested_fields(self) -> pa.Schema:
        """Return the fields that the filter reads: PyArrow fills others with nulls."""
        if self._filter is None or not self._filter.alternatives:
            return self.schema
        names = {predicate.path[0] for predicate in self._filter.predicates}
        return pa.schema([field for field in self.schema if field.name in names])

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
        if not folders:
            return
        if both := folders.intersection(path[0] for path in self._session.file.leaves):
            raise ValueError(
                f"{_join_names(both)}: both a column of the file and the name of a folder around "
                "it, which is not authenticated; pass partitioning=None to ignore folder names"
            )

    # --- columns ---------------------------------------------------------------------------------

    def _list_names(self) -> set[str]:
        """Return the dotted names of all columns and groups."""
        paths = self._session.file.leaves
        flat = {path[0] for path in paths}
        nested = {name for path in paths if len(path) > 1 for name in _iter_prefixes(path)}
        return flat | nested | self._session.childless

    def _find_leaves(self, names: Iterable[str]) -> list[int]:
        """Return the leaves that are named or belong to a named group, as `leaves_of`."""
        return leaves_of(self._session.file.leaves, set(names) - self._session.childless)

    def _check_row_groups(self) -> None:
        wanted = self._request.row_groups
        if not wanted:
            return
        count = len(self._session.file.metadata.row_groups)
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
        here = self._list_names()
        return [name for name in requested if name in here]

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
        here = self._list_names()
        absent = names - here - set(request.partition_schema.names)
        if request.schema is None and absent:
            raise ValueError(f"the filter reads columns that do not exist: {_join_names(absent)}")
        return self._find_leaves(names & here)

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
        columns, filled = frozenset(leaves), frozenset[int]()
        if plan.missing:
            if self._session.file.properties.on_missing_key == "null":
                filled = columns.intersection(plan.missing)
            columns = filled.union([c for c in leaves if plan.keep[c]])
        own = self._session.open_schema(columns, filled, keep_pairs=not plan.missing).schema_arrow
        if len(set(names := own.names)) < len(names):
            twice = {name for name, count in Counter(names).items() if count > 1}
            raise UnsupportedFormatError(
                f"several columns have the same name: {_join_names(twice)}; read them with "
                "open_parquet"
            )
        folders = self._request.partition_schema
        return pa.schema([*own, *folders], own.metadata) if folders.names else own

    # --- rows ------------------------------------------------------------------------------------

    def _find_rows(self) -> dict[int, Ranges]:
        """Return the rows that may match, for each row group."""
        plan, request = self._plan, self._request
        row_groups = plan.footer.metadata.row_groups
        if self._filter is None:
            rows = {r: row_groups[r].num_rows for r in plan.row_groups}
            return _select_first_rows(
                {r: count for r, count in rows.items() if count}, request.limit
            )
        from modcrypt.parquet.arrow.scanning.row_group_pruning import find_candidate_rows

        # A footer of all columns, or a copy of these chunks, would be made for nothing.
        judged = self._session.select(self._tested, plan.row_groups)
        with self._session.lock, paused_collector():
            metadata, _ = plain_metadata(self._session.file.select(self._tested, ()), [], 0)
            leaves = judged.footer_leaves
            metadata.row_groups = [
                new(
                    "RowGroup",
                    columns=[judged.chunks[r, c] for c in leaves],
                    num_rows=row_groups[r].num_rows,
                )
                for r in plan.row_groups
            ]
            candidates = find_candidate_rows(
                metadata,
                self._filter,
                PlanParts(self._session.file.source, judged),
                row_groups=range(len(plan.row_groups)),
                partition=request.partition,
                schema=self.schema,
            )
        return {plan.row_groups[i]: ranges for i, ranges in candidates.items()}

    def _make_memory_fragments(self, rows: pa.Table) -> list[ds.Fragment]:
        """Return the rows as fragments: one, or several if a column has more than 2 GiB."""
        for name, value in self._known.items():
            known = pa.scalar(value, self.schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(known, rows.num_rows))
        # PyArrow makes a fragment for each chunk; combining the chunks leaves few.
        import pyarrow.dataset as ds

        return list(ds.dataset(rows.combine_chunks()).get_fragments())


def concatenate_tables(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenate tables of this schema; return an empty table if there are none."""
    parts = [table for table in tables if table.num_rows]
    if len(parts) == 1 and parts[0].num_columns:
        return parts[0]
    if not schema.names:  # PyArrow loses the number of rows if there are no columns.
        rows = sum(table.num_rows for table in parts)
        return replace_metadata(pa.table({"": pa.nulls(rows)}).select([]), schema.metadata)
    if parts:
        return pa.concat_tables(parts)
    # As PyArrow's readers do: it cannot make a pandas column of every type without a chunk. Its
    # `Schema.empty_table` fails if a type has an extension type inside.
    return pa.table([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def replace_metadata(rows: _Rows, metadata: Any) -> _Rows:
    """Return rows with other metadata; PyArrow would lose the rows of a table without columns."""
    changed: _Rows
    if rows.num_columns or isinstance(rows, pa.RecordBatch):
        changed = rows.replace_schema_metadata(metadata)
    else:
        bare = pa.table({"": pa.nulls(rows.num_rows)})
        changed = bare.replace_schema_metadata(metadata).select([])
    return changed


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
