"""An open file with the resources that read it, and the request that a scan answers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from modcrypt.io.threads import SharedResources, ThreadPool
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.filters import Filter
from modcrypt.parquet.arrow.schema_files import (
    SchemaFile,
    SchemaFiles,
    freeze_schema,
    make_schema_file,
    schemas_of,
)
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.properties import check_name_list
from modcrypt.parquet.format.schema import childless_fields
from modcrypt.runtime.fork_safety import cached_property, fork_safe

if TYPE_CHECKING:  # takes a third of the time of importing PyArrow
    import pyarrow.compute as pc

_NO_FIELDS = pa.schema([])


def as_columns(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the columns of a request, None for all; raise as `check_name_list`."""
    return None if columns is None else check_name_list(columns, "columns")


class Request(NamedTuple):
    """A description of what to read from a file, and of what is known about it from outside."""

    # Names of columns or groups, in the order wanted; None for all.
    columns: Sequence[str] | None = None
    filter: Filter | None = None
    row_groups: Sequence[int] | None = None  # ordinals of row groups; None for all
    # Condition that holds for all rows, as for a file in a partitioned dataset; None without one.
    partition: pc.Expression | None = None
    partition_schema: pa.Schema = _NO_FIELDS
    # Types of all fields that are read, partition fields included, as in the dataset that the file
    # belongs to. None for the types of the file.
    schema: pa.Schema | None = None
    # Types of the fields that are returned; None unless `schema` is given.
    result: pa.Schema | None = None
    limit: int | None = None  # number of rows wanted from the start, without a filter; None for all


class Session:
    """An open file and the resources that read it.

    Attributes:
        pool: Threads that decrypt chunks in parallel.
        ahead: Threads that decrypt the next lot while one is decoded.
        shared: Resources to close after the last read.
        lock: Guards planning, because plans share ciphers.
    """

    def __init__(
        self, file: OpenFile, decoder: Decoder, pool: ThreadPool, ahead: ThreadPool,
        shared: SharedResources,
    ) -> None:  # fmt: skip
        self.file, self.decoder = file, decoder
        self.pool, self.ahead, self.shared = pool, ahead, shared
        self.lock = fork_safe(threading.Lock())

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
                self.decoder,
            ),
        )  # fmt: skip

    def select(
        self,
        columns: Sequence[int] | None,
        row_groups: Sequence[int] | None,
        opened: Sequence[int] | None = None,
    ) -> ReadPlan:
        """Return a plan that omits missing parts of groups, which PyArrow fills."""
        with self.lock:
            return self.file.select(columns, row_groups, partial_groups=True, opened=opened)
