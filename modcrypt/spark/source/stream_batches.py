"""Exactly-once publication of a stream's batches in a table, even after crashes.

    people/_tmp_<query>/...                    files of tasks, until the batch is published
    people/_modcrypt_batches/<query>.json      the last batch, and its files still to be published

If Spark is killed before its checkpoint has a batch, it runs the batch again and may divide the
rows among files differently. modcrypt therefore writes a record first, which decides the files of
the batch; moving them can resume later. A batch that runs again completes the decided files and
drops its own. Files that readers have seen are never replaced or removed.

The checkpoint stores the id of the query: a new checkpoint starts new batches. Keep checkpoint and
record as long as the query may continue. While a batch is being published, a write note makes
modcrypt's readers skip it (`write_notes`); if the query is killed, until it runs again. Other
readers see the batch grow.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.publication import fsync_folder
from modcrypt.io.stores import locate
from modcrypt.parquet.datasets.discovery import DatasetFolder, as_arrow
from modcrypt.parquet.datasets.write_notes import read_record
from modcrypt.pkmt1.external import store_of
from modcrypt.spark.source.job_publication import Written, put_note, remove_job, remove_note

RECORDS = "_modcrypt_batches"
_QUERY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AT_ONCE = 8  # files that a store moves concurrently


@dataclass(frozen=True, slots=True)
class _Batch:
    """A decided batch."""

    number: int
    # Files that may not be published yet: pairs of the task's folder in the table, and the path of
    # the file within it.
    pending: tuple[tuple[str, str], ...]


def check_query(query: object) -> str:
    """Return the id of a query, a part of paths; raise ValueError if it is invalid."""
    if not isinstance(query, str) or not _QUERY.fullmatch(query):
        raise ValueError("Spark gave no query id; use this sink only in a streaming query")
    return query


def publish_batch(base: str, query: str, number: int, tasks: Iterable[Written]) -> None:
    """Publish the files of a batch's tasks, unless the batch was decided before.

    Raises:
        ValueError: A later batch was published before.
        FormatError, LimitError: The record is damaged or too long.
        OSError: Files can't be moved. The same call later completes the batch.
    """
    table, top = Place(*locate(base, None)), f"{base.rstrip('/')}/"
    pending = tuple((task.folder.removeprefix(top), name) for task in tasks for name in task.files)
    record = _record_place(table, query)
    if pending or record.exists():
        DatasetFolder(base, None).place(f"{RECORDS}/{record.name}")  # makes the folder
        with record.lock():
            last = _complete_last(table, record, query)
            if last is not None and last > number:
                raise ValueError(
                    f"the table already has batches up to {last} of the query {query}, but this is "
                    f"batch {number}: the checkpoint is older than the table. Restore both, or "
                    "start with a new checkpoint"
                )
            if pending and last != number:
                batch = _Batch(number, pending)
                _write_record(record, batch)
                _complete(table, record, batch)
    remove_job(base, query)


def drop_batch(base: str, query: str) -> None:
    """Remove the files of a batch's tasks; files that were decided before are published."""
    table = Place(*locate(base, None))
    record = _record_place(table, query)
    if record.exists():
        with record.lock():
            _complete_last(table, record, query)
    remove_job(base, query)


def _complete_last(table: Place, record: Place, query: str) -> int | None:
    """Publish the rest of the last decided batch, and return its number."""
    decode = partial(_decode, staged=f"_tmp_{query}/")
    if (last := read_record(record, decode, "record of a stream's batches")) is None:
        return None
    if last.pending:
        _complete(table, record, last)
    return last.number


def _complete(table: Place, record: Place, batch: _Batch) -> None:
    """Move the pending files of a batch, and record that none are pending."""
    query = record.name.removesuffix(".json")
    put_note(table, query, [name for _, name in batch.pending])
    with ThreadPoolExecutor(_AT_ONCE, "modcrypt-publish") as pool:
        moved = list(pool.map(lambda file: _settle(table, *file), batch.pending))
    for folder in {os.path.dirname(place.path) for place in moved if place.filesystem is None}:
        fsync_folder(folder)
    remove_note(table, query)  # before the record, which alone explains the note
    _write_record(record, _Batch(batch.number, ()))


def _settle(table: Place, task: str, name: str) -> Place:
    """Move a file's key material and then the file to the table, unless they are there already."""
    source = Place(table.filesystem, posixpath.join(table.path, task, name))
    target = DatasetFolder(table.path, table.filesystem).place(name)
    for origin, destination in ((store_of(source), store_of(target)), (source, target)):
        if origin.exists():
            _move(origin, destination)
    if not target.exists():
        raise FileNotFoundError(
            f"{target.address} is part of a published batch, but was lost from {source.address} "
            "before it was moved. To write the batch again, remove its other files, which have the "
            f"same query and batch in their names, and the record in {RECORDS}"
        )
    return target


def _move(source: Place, target: Place) -> None:
    """Move a file; names contain the job and attempt, so an existing target is the same file."""
    if source.filesystem is None:
        os.replace(source.path, target.path)
    else:
        as_arrow(source.filesystem).move(source.path, target.path)


def _record_place(table: Place, query: str) -> Place:
    name = f"{check_query(query)}.json"
    return table.below(posixpath.join(RECORDS, name))


def _write_record(record: Place, batch: _Batch) -> None:
    with open_sink_at(record) as sink:
        sink.append(json.dumps({"batch": batch.number, "pending": batch.pending}).encode())


def _decode(found: Any, staged: str) -> _Batch:
    """Decode a record, and check that its files are in the query's folder within the table.

    Raise ValueError, TypeError or KeyError if the record is invalid.
    """
    number, pending = found["batch"], tuple((task, name) for task, name in found["pending"])
    paths = [path for file in pending for path in file]
    inside = all(posixpath.normpath(path) == path and path[:1] not in "./" for path in paths)
    if type(number) is not int or not inside:
        raise ValueError("the record is not as modcrypt writes it")
    if not all(task.startswith(staged) for task, _ in pending):
        raise ValueError("a file is not below the folder of the query")
    return _Batch(number, pending)
