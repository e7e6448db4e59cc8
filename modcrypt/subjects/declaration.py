"""`Subjects`: columns whose values are under the keys of their subjects, and reads of them.

request -> request for cells and key columns -> batches as decoded -> values, as requested
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from modcrypt.errors import KeyNotFoundError, PlaintextError, UnsupportedFormatError
from modcrypt.io.places import Place
from modcrypt.io.store_errors import name_path_in_errors
from modcrypt.kms.key_tools import KeyTools
from modcrypt.lake.table_kind import load_table_kind
from modcrypt.parquet.arrow.arrow_streams import split_table
from modcrypt.parquet.arrow.filters import Filter, bind_filter
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.scanning.file_scan import Scan, concatenate_tables
from modcrypt.parquet.arrow.scanning.scan_session import Request, Session
from modcrypt.parquet.arrow.struct_leaves import stored_paths
from modcrypt.parquet.crypto.properties import AnyDecryption
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaf_paths
from modcrypt.runtime.fork_safety import cached_property, fork_safe
from modcrypt.runtime.log import LOGGER
from modcrypt.subjects.cells import (
    CellColumn,
    CellField,
    Owners,
    choose_fields,
    convert_batch,
    parse_cell_fields,
    parse_subject,
    replace_fields,
    select_leaves,
)
from modcrypt.subjects.vault import SubjectVault, open_vault

BATCH_BYTES = 256 << 20
"""Size limit of a batch that is converted at once: more rows need fewer expansions of keys."""

_METADATA = re.compile(r"(?:^|/)metadata/[^/]+\.metadata\.json(?:\.gz)?$")
"""End of the path of a version of an Iceberg table."""

_counting = fork_safe(threading.Lock())


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """The columns of a dataset whose values are under the keys of their subjects.

    To read, the vault suffices: files state their key column and dataset.

    Args:
        vault: `SubjectVault` with the keys, or a function that returns it, which is called before
            the first value.
        key: Name of the column with the subjects: integers, text or binary.
        columns: Names of the columns or groups whose values are encrypted one by one; `address.*`
            is the same as `address`. Numbers, text, binary, times, structs, lists and maps of them;
            a list or map is one value.
        dataset: Name of the dataset that values are bound to: in another one, they do not open.
        on_erased: `"null"` reads the values of erased subjects as nulls, `"raise"` fails.
        restored: Fields with cells, by name, that `restore` sets.
        decrypted, erased: Numbers of values that were decrypted, and that were read as nulls, by
            column; reads add to them.

    Raises:
        TypeError: `vault` is neither a vault nor a function.
        ValueError: Columns are given without `key`, or the reverse; or `on_erased` is unknown.
    """

    vault: SubjectVault | Callable[[], SubjectVault] = field(repr=False)
    key: str | None = None
    columns: Sequence[str] = ()
    dataset: str = ""
    on_erased: Literal["null", "raise"] = "null"
    restored: Mapping[str, CellField] = field(default_factory=dict, repr=False)
    decrypted: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    erased: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.vault, SubjectVault) or callable(self.vault)):
            raise TypeError("vault must be a SubjectVault, such as open_vault returns")
        if isinstance(self.columns, str):
            raise ValueError("columns must be a list of names, not one string")
        if (self.key is None) != (not self.columns):
            raise ValueError("pass both key and columns to write, or neither to read")
        if self.on_erased not in ("null", "raise"):
            raise ValueError('on_erased must be "null" or "raise"')

    def open_vault(self) -> SubjectVault:
        """Return the vault."""
        vault = self.vault
        return vault() if callable(vault) else vault

    def reader(self, session: Session) -> CellReader:
        """Return the reader of an open file's cells."""
        return CellReader(session, self)

    def restore(self, schema: pa.Schema) -> Subjects:
        """Return subjects that read their columns in files that lack the metadata of cells, too.

        `schema` has the types of the values. Without such columns, nothing is restored.
        """
        try:
            writer = self.writer(schema)
        except ValueError:
            return self
        return self if writer is None else replace(self, restored=writer.fields)

    def writer(self, schema: pa.Schema) -> CellWriter | None:
        """Return the writer of rows' cells; None without columns. Raise as `choose_fields`."""
        if self.key is None:
            return None
        fields = choose_fields(schema, self.dataset, self.key, self.columns)
        return CellWriter(fields, self.open_vault, schema)

    def check_cells(self, metadata: ThriftStruct) -> None:
        """Raise PlaintextError unless the columns are cells in the file of a footer."""
        known = parse_cell_fields(metadata).values() if self.columns else ()
        inner = {path: paths for each in known for path, paths in stored_paths(each.field).items()}
        mine = [cells for cells in known if (cells.key, cells.dataset) == (self.key, self.dataset)]
        cells = {leaf for field in mine for path in field.paths for leaf in inner[path]}
        stored = map(tuple, leaf_paths(metadata.schema))
        leaves = [leaf for path in stored for leaf in inner.get(path, [path])]
        chosen = select_leaves(leaves, self.columns)
        if missing := sorted(".".join(path) for path in chosen - cells):
            raise PlaintextError(
                f"column {missing[0]} is in subject_columns, but its values in this file are not "
                "encrypted under the keys of their subjects, and pages are encrypted without "
                "decoding a value; read the file as Arrow data, and write it with write_table, "
                "write_dataset or ParquetWriter"
            )


def make_subjects(address: str, tools: KeyTools | None, **members: Any) -> Subjects:
    """Return subjects whose vault is opened on first use, once for each set of master keys.

    `members` are further arguments of `Subjects`. Without tools, only columns can be checked.
    """

    def open_once() -> Any:
        if tools is None:
            return None
        name = address, tools.keys_of_whole_files().of_whole_files
        if name not in tools.vaults:
            tools.vaults[name] = open_vault(address, tools)
        return tools.vaults[name]

    return Subjects(vault=open_once, **members)


def find_rows(
    paths: Sequence[str], decryption: AnyDecryption, tools: KeyTools, known: Subjects,
    subject: bytes,
) -> Iterator[tuple[str, pa.Table]]:  # fmt: skip
    """Yield the address of each file with the rows of a subject, for each of its key columns.

    Of an Iceberg table, these are the data files of all snapshots, also with deleted rows.
    `known` has the vault, and counts the values that are decrypted and erased; `subject` is in its
    canonical text. Raise KeyNotFoundError if the vault knows neither the subject nor its erasure,
    and as `read_table`.
    """
    for address, opening in _list_openings(paths, decryption, tools, known):
        with name_path_in_errors(address), opening() as file:
            if file is None:
                continue
            fields, types = file.cell_fields, file.schema_arrow
            for key, column in {cells.key: name for name, cells in fields.items()}.items():
                if key not in types.names:
                    raise _make_key_error(key, column)
                if (value := parse_subject(subject, types.field(key).type)) is not None:
                    yield address, file.read(filters=[(key, "=", value)])


def _list_openings(
    paths: Sequence[str], decryption: AnyDecryption, tools: KeyTools, known: Subjects
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[ParquetFile | None]]]]:
    """Yield the address of each file, also of the tables at the paths, and what opens it."""
    places, tables = list_files([*paths], None), dict[str, tuple[Place, Place]]()
    for place in places:
        if document := _METADATA.search(place.path):
            root = Place(place.filesystem, place.path[: document.start()] or ".")
            tables[root.address] = root, root if place.root else place
    read = set()
    for _, named in tables.values():
        for place, opening in load_table_kind().open_cell_files(named, tools, known):
            read.add(place.resolve().address)
            yield place.address, opening
    # A table's metadata, which anybody may have put there, leaves no other file of its folder out.
    for place in places:
        inside = {place.inside(root) or "" for root, _ in tables.values()}
        if place.resolve().address in read or any(name.startswith("metadata/") for name in inside):
            continue
        options = {"filesystem": place.filesystem, "subjects": known}
        yield place.address, partial(ParquetFile, place.path, decryption, **options)


def _make_key_error(key: str, column: str) -> KeyNotFoundError:
    return KeyNotFoundError(
        f"column {key} names the subjects of column {column}, but cannot be read; get its key, or "
        "read other columns",
        key,
    )


@dataclass(frozen=True)
class CellWriter:
    """A writer of the cells of one file."""

    fields: Mapping[str, CellField]  # the fields with cells, by name
    open_vault: Callable[[], SubjectVault]
    plain: pa.Schema  # schema of the rows

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows with cells."""
        vault = self.open_vault()
        name = vault.id if vault else ""  # Spark's driver checks columns without one
        fields = {column: replace(cells, vault=name) for column, cells in self.fields.items()}
        return replace_fields(self.plain, fields, CellField.stored_field)

    def encrypt(self, rows: pa.Table) -> pa.Table:
        """Return rows with cells; raise as `CellColumn.encrypt`."""
        vault, convert = self.open_vault(), CellColumn.encrypt
        made = [
            convert_batch(batch, self.fields, vault, convert, self.schema, create=True)
            for batch in split_table(rows, BATCH_BYTES)
        ]
        return pa.Table.from_batches(made, self.schema)


@dataclass(frozen=True)
class CellReader:
    """A reader of the cells of one file."""

    session: Session
    subjects: Subjects

    @cached_property
    def fields(self) -> dict[str, CellField]:
        """The fields with cells, by name."""
        restored, names = self.subjects.restored, self.stored.names
        lost = {name: restored[name] for name in restored if name in names}
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
        return replace_fields(schema, self.fields, CellField.plain_field)

    def to_stored(self, schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
        """Return a dataset's schema with the types of this file's cells, and its key columns."""
        stored = replace_fields(schema, self.fields, CellField.stored_field)
        more = [self.stored.field(name) for name in keys if name not in schema.names]
        return pa.schema([*stored, *more], schema.metadata)

    def decrypt(self, column: CellColumn, cells: pa.Array, owners: Owners) -> pa.Array:
        """Return the values of cells, and count them."""
        values, subjects = column.decrypt(cells, owners), self.subjects
        erased, name = values.null_count - cells.null_count, self.session.decoder.name
        if erased and subjects.on_erased == "raise":
            raise KeyNotFoundError(
                f"{name}: {erased} values of column {column.name} belong to erased subjects; pass "
                'on_erased="null" to read nulls',
                column.name,
            )
        if erased:
            LOGGER.info("%s: %d values of column %s are erased", name, erased, column.name)
        with _counting:
            subjects.decrypted[column.name] += len(values) - values.null_count
            subjects.erased[column.name] += erased
        return values


class CellScan:
    """One read of a file with cells; it has the methods of `Scan`, whose batches it decrypts."""

    def __init__(self, reader: CellReader, request: Request) -> None:
        self._reader = reader
        request = request._replace(filter=self._check_filter(request))
        if (columns := request.columns) is None and request.result is not None:
            columns = request.result.names
        keys = [] if columns is None else self._find_keys(columns)
        inner = request if columns is None else request._replace(columns=[*columns, *keys])
        if request.schema is not None and request.result is not None:
            schema, result = (reader.to_stored(s, keys) for s in (request.schema, request.result))
            inner = inner._replace(schema=schema, result=result)
        self._scan = Scan(reader.session, inner)
        self.explain_cast_error = self._scan.explain_cast_error
        self._plain = plain = reader.to_plain(self._scan.result)
        self.schema = request.schema or reader.to_plain(self._scan.schema)
        own = pa.schema([field for field in plain if field.name not in keys], plain.metadata)
        self.result = request.result or own
        self._fields = {name: f for name, f in reader.fields.items() if name in plain.names}
        for name, cells in self._fields.items():
            if cells.key not in plain.names:
                raise _make_key_error(cells.key, name)
            if cells.field.name != name:
                raise UnsupportedFormatError(
                    f"column {name} has the cells of column {cells.field.name}, which open under "
                    "that name only; give the column its name back, or read other columns"
                )

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
        cells, stored = self._reader.fields.items(), self._reader.stored.names
        keys = [c.key for top, c in cells if any(f"{n}.".startswith(f"{top}.") for n in columns)]
        return [key for key in dict.fromkeys(keys) if key not in columns and key in stored]

    def read_tables(self, lot_bytes: int, *, use_threads: bool) -> list[pa.Table]:
        """Read the rows in order as tables; see `Scan.read_tables`."""
        tables = self._scan.read_tables(lot_bytes, use_threads=use_threads)
        tables.reverse()  # each is freed when its values are decrypted
        return [self._decrypt_table(tables.pop()) for _ in range(len(tables))]

    def _decrypt_table(self, table: pa.Table) -> pa.Table:
        whole = table.combine_chunks() if self._fields else table  # each subject is looked up once
        parts = map(self._decrypt, split_table(whole, BATCH_BYTES))
        return concatenate_tables([pa.Table.from_batches([part]) for part in parts], self.result)

    def read_batches(
        self, lot_bytes: int, *, batch_size: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows in order, in batches; see `Scan.read_batches`."""
        batches = self._scan.read_batches(lot_bytes, batch_size=batch_size, use_threads=use_threads)
        return map(self._decrypt, batches)

    def _decrypt(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._fields:
            return batch.select(self.result.names)
        vault, decrypt = self._reader.subjects.open_vault(), self._reader.decrypt
        plain = convert_batch(batch, self._fields, vault, decrypt, self._plain)
        pairs = zip(plain.select(self.result.names).columns, self.result.types, strict=True)
        fitting = [c if c.type == kind else c.cast(kind) for c, kind in pairs]
        return pa.RecordBatch.from_arrays(fitting, schema=self.result)
