"""Files without rows, from which PyArrow reads the Arrow schema of some columns.

The files of a dataset have the same schema, so the last files are kept for the next file that is
opened: encoding and opening one takes a tenth of the time to read a small file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.parquet.arrow.chunk_loading import make_footer_file
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.crypto.column_projection import drop_columns
from modcrypt.parquet.format.chunk_notes import drop_hidden
from modcrypt.parquet.format.idl import ThriftStruct, copy, encode, restore_field
from modcrypt.parquet.format.schema import leaf_elements, make_optional
from modcrypt.runtime.fork_safety import cached_property, fork_safe

_SCHEMA_FIELDS = "schema", "key_value_metadata", "column_orders", "created_by"
"""The fields of a footer that affect its schema."""

_KEPT = 16  # number of files that are kept

_SMALL_SCHEMA = 32 << 10
"""Size in bytes up to which `pq.ParquetFile` reads the Arrow schema. It also lists the paths of all
columns, which takes longer than the import of pyarrow.dataset if they are many."""

_MOST_ELEMENTS = 200
"""Largest number of schema elements for which files are compared: comparing wide ones takes as long
as opening one."""


class SchemaFile:
    """A file without rows, which PyArrow opens when its schema is wanted; see `Decoder.open`."""

    def __init__(self, data: pa.Buffer, decoder: Decoder) -> None:
        self.data, self.decoder = data, decoder

    @cached_property
    def schema(self) -> pq.ParquetSchema:
        """The Parquet schema."""
        return self.decoder.open(self.data).schema

    @cached_property
    def schema_arrow(self) -> pa.Schema:
        """The Arrow schema."""
        if self.data.size <= _SMALL_SCHEMA:
            return self.decoder.open(self.data).schema_arrow
        with self.decoder.translate_errors(self.data):
            return self.decoder.format.inspect(pa.BufferReader(self.data))

    @property
    def pairs(self) -> dict[bytes, bytes] | None:
        """The metadata that PyArrow gives to rows that it decodes without a schema."""
        metadata: dict[bytes, bytes] | None = self.decoder.open(self.data).read().schema.metadata
        return metadata


class SchemaFiles:
    """The last `count` files without rows."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._files: OrderedDict[Hashable, SchemaFile] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def get(self, schema: Hashable, make: Callable[[], SchemaFile]) -> SchemaFile:
        """Return the file of a schema, which `make` creates if it is not among the last ones."""
        with self._lock:
            if (file := self._files.get(schema)) is not None:
                self._files.move_to_end(schema)
                return file
        file = make()
        with self._lock:
            self._files[schema] = file
            if len(self._files) > self._count:
                self._files.popitem(last=False)
        return file


_SCHEMAS = SchemaFiles(_KEPT)


def schemas_of(metadata: ThriftStruct) -> SchemaFiles:
    """Return the files without rows for a footer: those of this process, unless it is wide."""
    return _SCHEMAS if len(metadata.schema) <= _MOST_ELEMENTS else SchemaFiles(1)


def freeze_schema(metadata: ThriftStruct) -> Hashable:
    """Return all parts of a footer that affect its schema; a wide one equals no other."""
    if len(metadata.schema) > _MOST_ELEMENTS:
        return object()
    return encode(copy(metadata, keep=_SCHEMA_FIELDS))


def make_schema_file(
    metadata: ThriftStruct, leaves: int, columns: Collection[int], nullable: Collection[int],
    *, keep_pairs: bool,
) -> pa.Buffer:  # fmt: skip
    """Return a Parquet file without rows that has the schema of some of a file's leaves.

    `leaves` is the number of all leaves. Leaves that are `nullable` become optional, as do groups
    that contain no others. `keep_pairs` is that of `drop_columns`.
    """
    new = copy(metadata)
    new.row_groups, new.num_rows = [], 0
    new.encryption_algorithm = new.footer_signing_key_metadata = None
    drop_hidden(new)
    if nullable:
        new.schema = list(metadata.schema)
        _make_optional(new.schema, columns, nullable)
    if len(columns) == leaves:
        if not nullable:
            restore_field(new, "schema")
        return make_footer_file(new)
    keep = [c in columns for c in range(leaves)]
    return make_footer_file(drop_columns(new, keep, keep_pairs=keep_pairs))


def _make_optional(
    schema: list[ThriftStruct], columns: Collection[int], nullable: Collection[int]
) -> None:
    leaves = leaf_elements(schema)
    there = {i for c in columns if c not in nullable for i in leaves[c].elements}
    for index in {next(i for i in leaves[c].elements if i not in there) for c in nullable}:
        make_optional(schema, index)
