"""Streams of encrypted files: a folder of new files as a source, and a table as a sink.

    spark.readStream.format("modcrypt").option("policy", "lake.toml").load("inbox")
    rows.writeStream.format("modcrypt").option("policy", "lake.toml")
        .option("checkpointLocation", "checkpoints/people").start("people")

The source reads each file name once, in the order of the times of change, with the contents at the
time of its batch. It does not read a file again that is rewritten later, for example re-keyed, but
does read a file that arrives late with an old time. A file that is removed before its batch has
read it fails the query, unless `ignoreMissingFiles` is true. Offsets hold 12 bytes for each file
ever read, so the folder of a stream is for thousands of files rather than millions;
`maxFilesPerTrigger` limits a batch.

The sink writes each batch exactly once, completely or not at all: see `stream_batches`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.stores import forget_listings, locate
from modcrypt.kms.settings import Settings
from modcrypt.parquet.datasets.discovery import is_dataset, list_complete
from modcrypt.runtime.tracebacks import shorten_errors
from modcrypt.spark.source.job_publication import Written, job_folder, new_job
from modcrypt.spark.source.options import (
    ReadOptions,
    ReadSettings,
    WriteOptions,
    read_options,
    write_options,
)
from modcrypt.spark.source.reading import (
    PieceReader,
    Pieces,
    TableFile,
    assign_pieces,
    parse_folder_values,
)
from modcrypt.spark.source.stream_batches import check_query, drop_batch, publish_batch
from modcrypt.spark.source.writing import check_columns, check_reports, write_task

READ_OPTIONS = ("maxFilesPerTrigger", "ignoreMissingFiles")
WRITE_OPTIONS = ("checkpointLocation", "queryName")  # options of Spark, which it passes to the sink


def stream_reader(options: Mapping[str, str], schema: StructType) -> FolderStream:
    """Return a stream of the new files of a folder.

    The options are those of a read, `maxFilesPerTrigger` and `ignoreMissingFiles`.

    Raises:
        ValueError: As in `read_options`; or several paths are given.
        NotADirectoryError: The path is not an existing folder.
    """
    settings, read = read_options(options, READ_OPTIONS)
    if len(read.paths) > 1:
        raise ValueError("path must be one folder to read a stream")
    return FolderStream(settings, read, schema)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TableStream:
    """Return a writer for a stream's batches into a table.

    The options are those of a write, and Spark's own. With `overwrite`, each batch would replace
    the table, as in the output mode `complete`.
    """
    if overwrite:
        raise ValueError(
            "in the output mode complete each batch would replace the table; use "
            'foreachBatch with mode("overwrite"), or the output mode append'
        )
    settings, write = write_options(options, WRITE_OPTIONS)
    given = {name.lower(): value for name, value in options.items()}
    return TableStream(settings, write, schema, given.get("checkpointlocation"))


Offset: TypeAlias = "dict[str, Any]"
"""The names of the files of a batch, and short hashes of these and of all earlier names."""

Status: TypeAlias = "tuple[int, int]"
"""Time of change of a file in nanoseconds, and its size in bytes."""

_MARK = 12  # characters of base64: 72 bits


class FolderStream(PieceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of new files in a folder."""

    def __init__(self, settings: ReadSettings, options: ReadOptions, schema: StructType) -> None:
        (self._path,) = options.paths
        self._place = Place(*locate(self._path, None))
        if not is_dataset(self._path, None):
            raise NotADirectoryError(f"a stream reads a folder; {self._path} is not one")
        super().__init__(settings, options, schema)
        self._until: frozenset[str] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset before the first file."""
        return {"files": [], "seen": ""}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of the options."""
        most = self._options.max_files
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember the current files; a later run reads later files."""
        self._until = frozenset(self._list_names())

    @shorten_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Choose the files of the next batch: the oldest that have not been read."""
        marks = start["seen"]
        seen = {marks[at : at + _MARK] for at in range(0, len(marks), _MARK)}
        new = [name for name in self._list_names() if _hash_name(name) not in seen]
        if self._until is not None:
            new = [name for name in new if name in self._until]
        statuses = self._read_statuses(new)
        new = sorted(statuses, key=lambda name: (statuses[name][0], name))
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        if not new:
            return start
        return {"files": new, "seen": start["seen"] + "".join(map(_hash_name, new))}

    @shorten_errors
    def partitions(self, start: Offset, end: Offset) -> list[Pieces]:
        """Divide a batch's files among tasks; raise FileNotFoundError if one no longer exists."""
        if start["seen"] == end["seen"]:
            return []
        if start["seen"] + "".join(map(_hash_name, end["files"])) != end["seen"]:
            raise ValueError("these offsets do not belong to one batch of this source")
        statuses = self._read_statuses(end["files"])
        gone = [name for name in end["files"] if name not in statuses]
        if gone and not self._options.ignore_missing:
            raise FileNotFoundError(
                f"{gone[0]} and {len(gone) - 1} more files of this batch no longer exist in "
                f"{self._path}; restore them, or set the option ignoreMissingFiles"
            )
        if self._restrictions is not None:
            paths = [self._place_at(name).full_name for name in self._list_names()]
            self._restrictions.check_known(self._settings, paths)
        values = parse_folder_values(statuses, self._schema)
        files = [
            TableFile(self._place_at(name).full_name, size, values[name])
            for name, (_, size) in statuses.items()
        ]
        return assign_pieces(files, self._options.split_bytes, self._options.fewest_tasks)

    def _list_names(self) -> list[str]:
        start = len(self._place.path.rstrip("/")) + 1
        names = [place.path[start:] for place in list_complete(self._place)]
        for name in names:
            if name.encode(errors="ignore").decode() != name:
                raise ValueError(f"{name!r}: names of files and folders must be UTF-8; rename it")
        return names

    def _place_at(self, name: str) -> Place:
        return Place(self._place.filesystem, f"{self._place.path.rstrip('/')}/{name}")

    def _read_statuses(self, names: Iterable[str]) -> dict[str, Status]:
        """Return the status of each file, in order, without files that no longer exist."""
        filesystem, names = self._place.filesystem, list(names)
        if names and hasattr(filesystem, "find"):  # fsspec's, which then knows the statuses
            forget_listings(filesystem)
            filesystem.find(self._place.path)
        statuses = {name: _read_status(self._place_at(name)) for name in names}
        return {name: status for name, status in statuses.items() if status is not None}


def _hash_name(name: str) -> str:
    return urlsafe_b64encode(sha256(name.encode()).digest()[: _MARK * 6 // 8]).decode()


def _read_status(place: Place) -> Status | None:
    """Return a file's time of change, 0 if unknown, and its size; None if it does not exist."""
    filesystem, path = place.filesystem, place.path
    if isinstance(filesystem, pafs.FileSystem):
        info = filesystem.get_file_info(path)
        return (info.mtime_ns or 0, info.size) if info.is_file else None
    with contextlib.suppress(FileNotFoundError):
        if filesystem is None:
            status = os.stat(path)
            return status.st_mtime_ns, status.st_size
        size, time = filesystem.info(path)["size"], 0
        with contextlib.suppress(NotImplementedError):
            time = int(filesystem.modified(path).timestamp() * 1e9)
        return time, size
    return None


# Properties that Spark sets for tasks.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class TableStream(DataSourceStreamArrowWriter):
    """A writer of batches into a table; picklable, it holds only paths and references to keys.

    Spark uses different instances to write a batch and to commit or abort it.
    """

    def __init__(
        self, settings: Settings, options: WriteOptions, schema: StructType, checkpoint: str | None
    ) -> None:
        check_columns(settings, options, schema)
        self._settings, self._options, self._schema = settings, options, schema
        self._checkpoint, self._job = checkpoint, new_job()

    @shorten_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; raises as `write_task`."""
        context = TaskContext.get()
        assert context is not None
        query = check_query(context.getLocalProperty(_QUERY_ID))
        job = f"{query}-{context.getLocalProperty(_BATCH_ID)}-{self._job}"
        rows = (batch for batch in iterator if batch.num_rows)
        first = list(itertools.islice(rows, 1))
        if not first:  # many batches have no rows and need no file
            return Written("", (), query)
        options = replace(self._options, folder=job_folder(self._options.folder, query))
        all_rows = itertools.chain(first, rows)
        written = write_task(self._settings, options, self._schema, all_rows, job)
        return replace(written, query=query)

    @shorten_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish the files of a batch once; raises as `publish_batch`."""
        reports = check_reports(messages)
        for query in {report.query for report in reports}:  # there is only one
            publish_batch(self._options.folder, query, batchId, reports)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove the files of a batch; raises as `drop_batch`.

        If neither a task nor the checkpoint names the query, the next run of the batch removes
        them.
        """
        queries = {message.query for message in messages if isinstance(message, Written)}
        for query in queries or self._read_query_ids():
            drop_batch(self._options.folder, query)

    def _read_query_ids(self) -> set[str]:
        """Return the id of the query from Spark's checkpoint; an empty set if it is unknown."""
        if self._checkpoint is None:
            return set()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            place = Place(*locate(f"{self._checkpoint}/metadata", None))
            with open_source_at(place) as source:
                return {check_query(json.loads(source.read_at(0, min(source.size, 4096)))["id"])}
        return set()
