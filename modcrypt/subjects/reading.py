"""Read files with cells: their key columns are read too, and cells become values.

request -> request for cells and key columns -> batches as decoded -> values, as requested
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from modcrypt.errors import FormatError, KeyNotFoundError
from modcrypt.parquet.arrow import value_bytes as vb
from modcrypt.parquet.arrow.filters import Filter, bind_filter
from modcrypt.parquet.arrow.scanning.file_scan import Scan, concatenate_tables
from modcrypt.parquet.arrow.scanning.scan_session import Request, Session
from modcrypt.parquet.arrow.struct_leaves import Path, map_leaf_fields
from modcrypt.parquet.crypto.properties import CELLS
from modcrypt.runtime.fork_safety import cached_property, fork_safe
from modcrypt.runtime.log import LOGGER
from modcrypt.subjects.columns import CellField, convert_batch, parse_cell_fields
from modcrypt.subjects.values import CellColumn, Owners, cell_type
from modcrypt.subjects.vault import SubjectVault

_counting = fork_safe(threading.Lock())


@dataclass(frozen=True)
class CellReader:
    """A reader of the cells of one file; the arguments are those of `Subjects`, and the open file.

    Attributes:
        fields: The fields with cells, by name.
    """

    session: Session
    open_vault: Callable[[], SubjectVault]
    on_erased: str
    decrypted: Counter[str]
    erased: Counter[str]
    restored: Mapping[str, CellField]

    @cached_property
    def fields(self) -> dict[str, CellField]:  # noqa: D102
        lost = {name: f for name, f in self.restored.items() if name in self.stored.names}
        return lost | parse_cell_fields(self.session.file.metadata)

    @cached_property
    def stored(self) -> pa.Schema:
        """The schema of the file, with the types of cells."""
        return self.session.open_schema(range(self.session.file.leaf_count)).schema_arrow

    def scan(self, request: Request) -> Scan | CellScan:
        """Plan a read of values; raise as `Scan`, and ValueError if the filter reads cells."""
        return CellScan(self, request) if self.fields else Scan(self.session, request)

    def to_plain(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema of the file with the types of values."""
        return pa.schema(map(self._to_plain_field, schema), schema.metadata)

    def _to_plain_field(self, field: pa.Field) -> pa.Field:
        if (cells := self.fields.get(field.name)) is None:
            return field
        leaves = cells.leaf_types()
        plain = map_leaf_fields(field, lambda path, leaf: _plain_leaf(path, leaf, leaves))
        metadata = {k: v for k, v in (field.metadata or {}).items() if k != CELLS}
        return plain.with_metadata(metadata or None)

    def to_stored(self, schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
        """Return a dataset's schema with the types of this file's cells, and its key columns."""
        cells = self.fields
        fields = [cells[f.name].stored_field(f) if f.name in cells else f for f in schema]
        fields += [self.stored.field(name) for name in keys if name not in schema.names]
        return pa.schema(fields, schema.metadata)

    def decrypt(self, column: CellColumn, cells: pa.Array, owners: Owners) -> pa.Array:
        """Return the values of cells, and count them."""
        values = column.decrypt(cells, owners)
        nulls = values.null_count
        self._count(column.name, len(values) - nulls, nulls - cells.null_count)
        return values

    def _count(self, column: str, decrypted: int, erased: int) -> None:
        name = self.session.decoder.name
        if erased and self.on_erased == "raise":
            raise KeyNotFoundError(
                f"{name}: {erased} values of column {column} belong to erased subjects; pass "
                'on_erased="null" to read nulls',
                column,
            )
        if erased:
            LOGGER.info("%s: %d values of column %s are erased", name, erased, column)
        with _counting:
            self.decrypted[column] += decrypted
            self.erased[column] += erased


def _plain_leaf(path: Path, leaf: pa.Field, types: Mapping[Path, pa.DataType]) -> pa.Field:
    """Return the field of a leaf that was stored; values of erased subjects are null."""
    if (kind := types.get(path)) is None:
        return leaf
    cells, column = vb.storage_type(leaf.type), ".".join(path)
    if vb.binary_type(cells) is None or vb.is_text(cells):
        raise FormatError(f"column {column} is of {cells}, but its metadata says that it has cells")
    cell_type(kind, column)
    return leaf.with_type(kind).with_nullable(True)


def key_error(key: str, column: str) -> KeyNotFoundError:
    """Return the error that a column's key column is not there."""
    return KeyNotFoundError(
        f"column {key} names the subjects of column {column}, but cannot be read; get its key, or "
        "read other columns",
        key,
    )


class CellScan:
    """One read of a file with cells; it has the methods of `Scan`, whose batches it decrypts."""

    def __init__(self, reader: CellReader, request: Request) -> None:
        self._reader = reader
        request = request._replace(filter=self._check_filter(request))
        columns = request.columns
        if columns is None and request.result is not None:
            columns = request.result.names
        keys = [] if columns is None else self._find_keys(columns)
        inner = request if columns is None else request._replace(columns=[*columns, *keys])
        if request.schema is not None and request.result is not None:
            schema, result = (reader.to_stored(s, keys) for s in (request.schema, request.result))
            inner = inner._replace(schema=schema, result=result)
        self._scan = Scan(reader.session, inner)
        self._plain = plain = reader.to_plain(self._scan.result)
        self.schema = request.schema or reader.to_plain(self._scan.schema)
        own = pa.schema([field for field in plain if field.name not in keys], plain.metadata)
        self.result = request.result or own
        self._fields = {name: f for name, f in reader.fields.items() if name in plain.names}
        for name, field in self._fields.items():
            if field.key not in plain.names:
                raise key_error(field.key, name)

    def _check_filter(self, request: Request) -> Filter | None:
        """Return the filter with the fields that it reads; raise ValueError if it reads cells."""
        if request.filter is None:
            return None
        fields = [*self._reader.to_plain(self._reader.stored), *request.partition_schema]
        bound = bind_filter(request.filter, request.schema or pa.schema(fields))
        cells = [path for field in self._reader.fields.values() for path in field.paths]
        read = [p.path for p in bound.predicates] if bound.alternatives else cells
        for path in read:
            if any(path[: len(cell)] == cell or cell[: len(path)] == path for cell in cells):
                raise ValueError(
                    f"the filter reads column {'.'.join(path)}, or may do so: its values are "
                    "encrypted under the keys of their subjects; filter the rows after reading"
                )
        return bound

    def _find_keys(self, columns: Sequence[str]) -> list[str]:
        """Return the key columns that the columns need and do not include."""
        tops = {name: f"{name}." for name in self._reader.fields}
        needed = [
            self._reader.fields[top].key
            for top, prefix in tops.items()
            if any(name == top or name.startswith(prefix) for name in columns)
        ]
        stored = self._reader.stored.names
        return [key for key in dict.fromkeys(needed) if key not in columns and key in stored]

    def read_tables(self, lot_bytes: int, *, use_threads: bool) -> list[pa.Table]:
        """Read the rows in order as tables; see `Scan.read_tables`."""
        tables = self._scan.read_tables(lot_bytes, use_threads=use_threads)
        tables.reverse()  # each is freed when its values are decrypted
        return [self._decrypt_table(tables.pop()) for _ in range(len(tables))]

    def _decrypt_table(self, table: pa.Table) -> pa.Table:
        if not self._fields:
            return table.select(self.result.names)
        batches = table.combine_chunks().to_batches()  # each subject is looked up once
        made = [pa.Table.from_batches([self._decrypt(batch)]) for batch in batches]
        return concatenate_tables(made, self.result)

    def read_batches(
        self, lot_bytes: int, *, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows in order, in batches; see `Scan.read_batches`."""
        return map(
            self._decrypt,
            self._scan.read_batches(lot_bytes, batch_size=batch_size, use_threads=use_threads),
        )

    def _decrypt(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._fields:
            return batch.select(self.result.names)
        vault, decrypt = self._reader.open_vault(), self._reader.decrypt
        plain = convert_batch(batch, self._fields, vault, decrypt, self._plain)
        wanted = plain.select(self.result.names)
        if not wanted.schema.equals(self.result, check_metadata=True):
            pairs = zip(wanted.columns, self.result.types, strict=True)
            fitting = [c if c.type == kind else c.cast(kind) for c, kind in pairs]
            wanted = pa.RecordBatch.from_arrays(fitting, schema=self.result)
        return wanted

    def explain_cast_error(self) -> None:
        """Raise a ValueError for a cast error of PyArrow; see `Scan.explain_cast_error`."""
        self._scan.explain_cast_error()
