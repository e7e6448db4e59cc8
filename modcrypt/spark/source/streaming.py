"""Streams of encrypted files: new ones in a folder as a source, and a table as a sink.

    spark.readStream.format("modcrypt").option("policy", "lake.toml").load("inbox")
    rows.writeStream.format("modcrypt").option("policy", "lake.toml")
        .option("checkpointLocation", "checkpoints/people").start("people")

The source takes each file once, by its name: as it is when its batch reads it, in the order of the
times of change. One that is written again later (rekeyed, say) is not taken again; one that comes
late with an old time is. A file that is gone before its batch has read it fails the query, unless
`ignoreMissingFiles` is true. Offsets hold 12 bytes for each file that was ever taken, so the folder
of a stream is for thousands of files rather than millions; `maxFilesPerTrigger` limits a batch.

The sink writes each batch once, all of it or nothing: see `batches`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from modcrypt.io.storage import Place, locate
from modcrypt.parquet.datasets.discovery import is_dataset, list_complete
from modcrypt.spark.settings import Settings
from modcrypt.spark.source.arrow_types import demanded
from modcrypt.spark.source.options import ReadOptions, WriteOptions, read_options, write_options
from modcrypt.spark.source.reading import Found, Pieces, filter_terms, pack, read_pieces
from modcrypt.spark.source.stream_batches import check_query, drop_batch, publish_batch, staging
from modcrypt.spark.source.writing import Written, check_columns, new_job, write_task

__all__ = ["stream_reader", "stream_writer"]

READ_OPTIONS = ("maxFilesPerTrigger", "ignoreMissingFiles")
WRITE_OPTIONS = ("checkpointLocation", "queryName")  # Spark's own, which it passes on


def stream_reader(options: Mapping[str, str], schema: StructType) -> FolderStream:
    """Give what reads the files of a folder as they come.

    Args:
        options: as Spark gives them: those of a read, `maxFilesPerTrigger`, `ignoreMissingFiles`.
        schema: of the rows.

    Raises:
        ValueError: as `read_options`; more paths than one.
        NotADirectoryError: there is no such folder.
    """
    settings, read = read_options(options, READ_OPTIONS)
    if len(read.paths) > 1:
        raise ValueError("path: a stream reads one folder")
    given = {name.lower(): value.strip().lower() for name, value in options.items()}
    most = given.get("maxfilespertrigger")
    if most is not None and not re.fullmatch(r"[1-9][0-9]{0,8}", most, re.ASCII):
        raise ValueError("maxFilesPerTrigger is a whole number, at least 1")
    ignore = given.get("ignoremissingfiles", "false")
    if ignore not in ("true", "false"):
        raise ValueError("ignoreMissingFiles is true or false")
    limit = ReadAllAvailable() if most is None else ReadMaxFiles(int(most))
    return FolderStream(settings, read, schema, limit, ignore_missing=ignore == "true")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TableStream:
    """Give what writes a stream's batches into a table.

    Args:
        options: as Spark gives them: those of a write, and Spark's own.
        schema: of the rows.
        overwrite: whether each batch is the whole table, as in the output mode `complete`.

    Raises:
        ValueError: as `write_options` and `check_columns`; `overwrite`.
    """
    if overwrite:
        raise ValueError(
            "in the output mode complete each batch would replace the table: write it by "
            'foreachBatch and mode("overwrite"), or use the output mode append'
        )
    settings, write = write_options(options, WRITE_OPTIONS)
    given = {name.lower(): value for name, value in options.items()}
    return TableStream(settings, write, schema, given.get("checkpointlocation"))


# --- the source ----------------------------------------------------------------------------------

Offset: TypeAlias = "dict[str, Any]"
"""The names of the files of a batch, and marks of these and of all before."""

Status: TypeAlias = "tuple[int, int]"
"""When a file was changed, in nanoseconds, and its size in bytes."""

_MARK = 12  # characters of base64: 72 bits


class FolderStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads files as they come into a folder; pickled, it holds paths and references to keys."""

    def __init__(
        self,
        settings: Settings,
        options: ReadOptions,
        schema: StructType,
        limit: ReadLimit,
        *,
        ignore_missing: bool,
    ) -> None:
        (self._path,) = options.paths
        self._place = Place(*locate(self._path, None))
        if not is_dataset(self._path, None):
            raise NotADirectoryError(f"a stream reads a folder, and {self._path} is none")
        self._settings, self._options, self._schema = settings, options, schema
        self._terms = filter_terms(options.filters, demanded(schema))
        self._limit, self._ignore_missing = limit, ignore_missing
        self._until: frozenset[str] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Give the offset before the first file."""
        return {"files": [], "seen": ""}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Give the limit that the options say."""
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Take note of the files that are there now: later ones are left to a later run."""
        self._until = frozenset(self._names())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Choose the files of the next batch: the oldest that have not been taken."""
        seen = _marks(start["seen"])
        new = [name for name in self._names() if _mark(name) not in seen]
        if self._until is not None:
            new = [name for name in new if name in self._until]
        found = self._statuses(new)
        new = sorted(found, key=lambda name: (found[name][0], name))
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        if not new:
            return start
        return {"files": new, "seen": start["seen"] + "".join(map(_mark, new))}

    def partitions(self, start: Offset, end: Offset) -> list[Pieces]:
        """Divide the files of a batch among tasks.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        if start["seen"] == end["seen"]:
            return []
        if start["seen"] + "".join(map(_mark, end["files"])) != end["seen"]:
            raise ValueError("these offsets are not those of one batch of this source")
        statuses = self._statuses(end["files"])
        gone = [name for name in end["files"] if name not in statuses]
        if gone and not self._ignore_missing:
            raise FileNotFoundError(
                f"{gone[0]}, and {len(gone) - 1} more, were to be read in this batch, and are gone "
                f"from {self._path}: put them back, or give the option ignoreMissingFiles"
            )
        values = _folder_values(statuses, self._schema)
        files = [
            Found(self._at(name).full_name, size, values[name])
            for name, (_, size) in statuses.items()
        ]
        return pack(files, self._options.split_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task is to read; raises as `read_pieces`."""
        assert isinstance(partition, Pieces)
        return read_pieces(self._settings, partition.pieces, self._schema, self._terms)

    def _names(self) -> list[str]:
        """List the files of the folder by their paths in it."""
        start = len(self._place.path.rstrip("/")) + 1
        names = [place.path[start:] for place in list_complete(self._place)]
        for name in names:
            if name.encode(errors="ignore").decode() != name:
                raise ValueError(f"{name!r}: names of files and folders are to be UTF-8")
        return names

    def _at(self, name: str) -> Place:
        return Place(self._place.filesystem, f"{self._place.path.rstrip('/')}/{name}")

    def _statuses(self, names: Iterable[str]) -> dict[str, Status]:
        """Say of each file, in order, when it was changed, and its size; leave out what is gone."""
        filesystem, names = self._place.filesystem, list(names)
        if names and hasattr(filesystem, "invalidate_cache"):  # fsspec: it knows what it has listed
            filesystem.invalidate_cache()
            filesystem.find(self._place.path)
        found = {name: _status(self._at(name)) for name in names}
        return {name: status for name, status in found.items() if status is not None}


def _mark(name: str) -> str:
    return urlsafe_b64encode(sha256(name.encode()).digest()[: _MARK * 6 // 8]).decode()


def _marks(seen: str) -> set[str]:
    return {seen[at : at + _MARK] for at in range(0, len(seen), _MARK)}


def _status(place: Place) -> Status | None:
    """Say when a file was changed, 0 where its store doesn't tell, and its size; None if gone."""
    filesystem, path = place.filesystem, place.path
    if isinstance(filesystem, pafs.FileSystem):
        told = filesystem.get_file_info(path)
        return (told.mtime_ns or 0, told.size) if told.is_file else None
    with contextlib.suppress(FileNotFoundError):
        if filesystem is None:
            status = os.stat(path)
            return status.st_mtime_ns, status.st_size
        size, time = filesystem.info(path)["size"], 0
        with contextlib.suppress(NotImplementedError):
            time = int(filesystem.modified(path).timestamp() * 1e9)
        return time, size
    return None


def _folder_values(names: Iterable[str], schema: StructType) -> dict[str, dict[str, Any]]:
    """Give what the folders of each file say, in the types of the schema."""
    types = {one.name: one.type for one in demanded(schema)}
    folders = {name: os.path.dirname(name) for name in names}
    spelt = {key for folder in set(folders.values()) for key in re.findall(_HIVE, folder)}
    fields = [(key, types.get(key, pa.string())) for key in sorted(spelt)]
    scheme = ds.partitioning(pa.schema(fields), flavor="hive")
    values = {
        folder: ds.get_partition_keys(scheme.parse(f"{folder}/")) for folder in folders.values()
    }
    return {name: values[folder] for name, folder in folders.items()}


_HIVE = r"(?:^|/)([^/=]+)="


# --- the sink ------------------------------------------------------------------------------------

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # as Spark tells tasks


@dataclass(frozen=True)
class Part(WriterCommitMessage):
    """What one task of a batch wrote, and for which query."""

    query: str
    written: Written


class TableStream(DataSourceStreamArrowWriter):
    """Writes batches into a table; pickled, it holds paths and references to keys.

    Spark makes another one to commit or abort a batch than to write it.

    Raises:
        ValueError: as `check_columns`.
    """

    def __init__(
        self,
        settings: Settings,
        options: WriteOptions,
        schema: StructType,
        checkpoint: str | None,
    ) -> None:
        check_columns(settings, options, schema)
        self._settings, self._options, self._schema = settings, options, schema
        self._checkpoint, self._job = checkpoint, new_job()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Write the rows of one task; raises as `write_task`."""
        context = TaskContext.get()
        assert context is not None
        query = check_query(context.getLocalProperty(_QUERY_ID))
        job = f"{query}-{context.getLocalProperty(_BATCH_ID)}-{self._job}"
        rows = (batch for batch in iterator if batch.num_rows)
        first = list(itertools.islice(rows, 1))
        if not first:  # many batches have none, and need no file to say so
            return Part(query, Written("", ()))
        staged = replace(self._options, folder=staging(self._options.folder, query))
        both = itertools.chain(first, rows)
        return Part(query, write_task(self._settings, staged, self._schema, both, job))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish what the tasks of a batch wrote, once; raises as `publish_batch`."""
        told = [message for message in messages if isinstance(message, Part)]
        if len(told) < len(messages):
            raise ValueError("a task did not tell what it wrote")
        for query in {part.query for part in told}:  # there is one
            tasks = [part.written for part in told]
            publish_batch(self._options.folder, query, batchId, tasks)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove what the tasks of a batch wrote; raises as `drop_batch`.

        Where no task has told for which query, and the checkpoint doesn't either, that is left to
        the next run of the batch.
        """
        queries = {message.query for message in messages if isinstance(message, Part)}
        for query in queries or self._of_checkpoint():
            drop_batch(self._options.folder, query)

    def _of_checkpoint(self) -> set[str]:
        """Give the id of the query, as Spark keeps it in the checkpoint; nothing if it can't be."""
        if self._checkpoint is None:
            return set()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            place = Place(*locate(f"{self._checkpoint}/metadata", None))
            with place.open() as source:
                return {check_query(json.loads(source.read_at(0, min(source.size, 4096)))["id"])}
        return set()
