"""A stream's batches in a table, each of them once, whatever crashes in between.

    people/_tmp_<query>/...                    what tasks have written, until the batch is published
    people/_modcrypt_batches/<query>.json      the last batch, and what is still to be published

Spark runs a batch again if it was killed before its checkpoint has the batch, and the rows may then
be divided among files in another way. So the record is written first, and decides which files the
batch consists of; moving them can be taken up again. A batch that runs again completes what was
decided, and drops its own files. No file that readers have seen is ever replaced or removed.

The id of a query is kept in its checkpoint: with a new one, batches are new ones. Leave both of
these alone as long as a query may go on. While a batch is published, a note has modcrypt's readers
pass over it (`write_notes`); if the query is killed, until it runs again. Others see it grow.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.fs as pafs

from modcrypt.io.storage import Place, fsync_folder, locate
from modcrypt.parquet.datasets.discovery import Folder, as_arrow
from modcrypt.pkmt1.external import store_of
from modcrypt.spark.source.writing import Written, put_note, remove_job, remove_note

__all__ = ["check_query", "drop_batch", "publish_batch", "staging"]

RECORDS = "_modcrypt_batches"
MAX_RECORD = 64 << 20
"""Largest record, in bytes: some 300,000 files of one batch."""

_QUERY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AT_ONCE = 8  # files that a store is asked to move


@dataclass(frozen=True, slots=True)
class _Batch:
    """A decided batch, and its files that may not be published yet.

    Each is the folder of its task, in that of the table, and its path below both.
    """

    number: int
    pending: tuple[tuple[str, str], ...]


def check_query(query: object) -> str:
    """Give the id of a query, which becomes part of paths.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(query, str) or not _QUERY.fullmatch(query):
        raise ValueError("Spark names the query by no id: this is the sink of a streaming query")
    return query


def staging(base: str, query: str) -> str:
    """Give the folder that a query's tasks write below; readers of the table pass over it."""
    return f"{base.rstrip('/')}/_tmp_{query}"


def publish_batch(base: str, query: str, number: int, tasks: Iterable[Written]) -> None:
    """Publish what the tasks of a batch wrote, unless the batch was decided before.

    Args:
        base: folder of the table.
        query: id of the query.
        number: of the batch.
        tasks: what they wrote, below `staging(base, query)`.

    Raises:
        ValueError: a later batch was published before, or the record is none of ours.
        OSError: files can't be moved. Once they can, the same call completes the batch.
    """
    table, pending = Place(*locate(base, None)), tuple(_files(base, tasks))
    record = _record(table, query)
    if pending or _is_there(record):
        Folder(base, None).place(f"{RECORDS}/{record.name}")  # makes the folder
        with record.locked():
            last = _completed(table, record, query)
            if last is not None and last > number:
                raise ValueError(
                    f"the table has batch {number} of the query {query} since long, and those up "
                    f"to {last}: the checkpoint is older than the table. Set both back, or begin "
                    "with a new checkpoint"
                )
            if pending and last != number:
                batch = _Batch(number, pending)
                _write(record, batch)
                _complete(table, record, batch)
    remove_job(base, query)


def drop_batch(base: str, query: str) -> None:
    """Remove what the tasks of a batch wrote; what was decided before is published.

    Raises:
        ValueError, OSError: as `publish_batch`.
    """
    table = Place(*locate(base, None))
    record = _record(table, query)
    if _is_there(record):
        with record.locked():
            _completed(table, record, query)
    remove_job(base, query)


def _completed(table: Place, record: Place, query: str) -> int | None:
    """Give the number of the last batch that was decided, once all of it is published."""
    last = _read(record, query)
    if last is None:
        return None
    if last.pending:
        _complete(table, record, last)
    return last.number


def _complete(table: Place, record: Place, batch: _Batch) -> None:
    """Move what is pending of a batch, and note that nothing is."""
    query = record.name.removesuffix(".json")
    put_note(table, query, [name for _, name in batch.pending])
    with ThreadPoolExecutor(_AT_ONCE, "modcrypt-publish") as pool:
        moved = list(pool.map(lambda one: _settle(table, *one), batch.pending))
    for folder in {os.path.dirname(place.path) for place in moved if place.filesystem is None}:
        fsync_folder(folder)
    remove_note(table, query)  # before the record: without it, nobody would know what it hides
    _write(record, _Batch(batch.number, ()))


def _settle(table: Place, task: str, name: str) -> Place:
    """Move a file to its place in the table, and its key material before it, unless they are there.

    Raises:
        FileNotFoundError: it is neither here nor there.
    """
    source = Place(table.filesystem, posixpath.join(table.path, task, name))
    target = Folder(table.path, table.filesystem).place(name)
    for one, other in ((store_of(source), store_of(target)), (source, target)):
        if _is_there(one):
            _move(one, other)
    if not _is_there(target):
        raise FileNotFoundError(
            f"{target.path} is part of a batch that was published, and was lost from {source.path} "
            f"before it was moved. To have the batch written again, remove what there is of it, "
            f"which has the same query and batch in its names, and the record in {RECORDS}"
        )
    return target


def _is_there(place: Place) -> bool:
    if place.filesystem is None:
        return os.path.lexists(place.path)
    info = as_arrow(place.filesystem).get_file_info(place.path)
    return bool(info.type != pafs.FileType.NotFound)


def _move(source: Place, target: Place) -> None:
    """Move a file; names have the job and the attempt in them, so what is there is the same one."""
    if source.filesystem is None:
        os.replace(source.path, target.path)
    else:
        as_arrow(source.filesystem).move(source.path, target.path)


def _files(base: str, tasks: Iterable[Written]) -> Iterable[tuple[str, str]]:
    top = f"{base.rstrip('/')}/"
    for task in tasks:
        for name in task.files:
            yield task.folder.removeprefix(top), name


# --- the record ----------------------------------------------------------------------------------


def _record(table: Place, query: str) -> Place:
    name = f"{check_query(query)}.json"
    return table.below(posixpath.join(RECORDS, name))


def _write(record: Place, batch: _Batch) -> None:
    with record.create() as sink:
        sink.append(json.dumps({"batch": batch.number, "pending": batch.pending}).encode())


def _read(record: Place, query: str) -> _Batch | None:
    """Read the record; None where there is none."""
    try:
        with record.open() as source:
            if source.size > MAX_RECORD:
                raise ValueError(f"{record.path}: a record has at most {MAX_RECORD} bytes")
            data = source.read_at(0, source.size)
    except FileNotFoundError:
        return None
    try:
        return _decode(data, f"_tmp_{query}/")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{record.path} is no record of a stream's batches") from None


def _decode(data: bytes, staged: str) -> _Batch:
    """Decode a record, whose files are to be in the query's own folder, and to stay in the table.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    found = json.loads(data)
    number, pending = found["batch"], tuple((task, name) for task, name in found["pending"])
    paths = [path for one in pending for path in one]
    inside = all(posixpath.normpath(path) == path and path[:1] not in "./" for path in paths)
    if type(number) is not int or not inside:
        raise ValueError("not as it was written")
    if not all(task.startswith(staged) for task, _ in pending):
        raise ValueError("not below the folder of the query")
    return _Batch(number, pending)
