"""Spark's rows to encrypted Parquet files, all of a job or none.

    tasks    people/_tmp_4f1d.../00003-17/country=NO/part-00003-4f1d...-17-0.parquet
    commit   people/country=NO/part-00003-4f1d...-17-0.parquet

A task writes below a folder that readers pass over, and tells the driver what it wrote; `commit`
publishes that and nothing else. So a retried task, a second attempt beside the first and a job that
fails leave nothing: that folder goes with the job. Spark doesn't wait for attempts that it stops: a
file in the folder says that the job is running, and where it is gone, an attempt begins no file.
File names, to which AAD prefixes and key material are bound, have the job and the attempt in them,
and stay as they are.

Local files, on a file system that all executors share, are renamed. In a store they are copied
there and deleted here by the store itself. Both take a while, so a note says which files do not
count meanwhile (`write_notes`): modcrypt's readers see all of a job or none of it, even where the
driver is killed, and of two states of an overwritten table just one. Other readers see files come
and go, and after a driver was killed, what it left.

What a killed driver leaves, the next write removes. That a driver is gone, the machine that it ran
on knows at once; elsewhere it counts as gone after a week without a change. (A stream's folder is
left: it may hold files of a batch that was decided, and is the query's own. See `batches`.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from modcrypt.io.storage import Place, fsync_folder, locate, publish
from modcrypt.keys import Key
from modcrypt.parquet.arrow.writer import ParquetWriter
from modcrypt.parquet.crypto.properties import Encryption, FileEncryptionProperties
from modcrypt.parquet.crypto.write_notes import NOTES, WriteNote, note_place, read_note
from modcrypt.parquet.datasets.dataset_writer import write_dataset
from modcrypt.parquet.datasets.discovery import Folder, as_arrow, list_complete, read_notes
from modcrypt.pkmt1.external import store_of
from modcrypt.spark.settings import Settings
from modcrypt.spark.source.abandoned_writes import ABANDONED_AFTER, is_gone, this_driver, this_host
from modcrypt.spark.source.arrow_types import conform, written
from modcrypt.spark.source.options import WriteOptions

__all__ = [
    "Writer",
    "Written",
    "check_columns",
    "new_job",
    "publish_files",
    "put_note",
    "remove_abandoned",
    "remove_job",
    "remove_note",
    "write_task",
]

RUNNING = "_running"

_AT_ONCE = 8  # files that a store is asked to move
_TRIES, _PAUSE = 40, 0.05  # to remove a folder, or to make one; in seconds


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote: paths in `folder`, which is below that of the job."""

    folder: str
    files: tuple[str, ...]


def new_job() -> str:
    """Give a job a name that no other one has."""
    return secrets.token_hex(8)


def check_columns(settings: Settings, options: WriteOptions, schema: StructType) -> None:
    """Check, without a key, that rows of a schema can be written so.

    Raises:
        ValueError: keys or partitions for columns that there are not, or for both; a type that
            can't be written, or an option that PyArrow doesn't take.
    """
    target, policy = written(schema), settings.policy
    if wrong := sorted(set(options.partition_by) - set(target.names)):
        raise ValueError(f"partitionBy: there is no column {', '.join(wrong)}")
    keyed, plaintext = settings.column_keys.keys(), settings.plaintext_columns
    if policy is not None and settings.footer_key is None:
        keyed, plaintext = policy.key_of_column.keys(), tuple(policy.plaintext_columns)
    if public := sorted({*keyed, *plaintext} & set(options.partition_by)):
        raise ValueError(
            "no key and no declaration is for columns whose values stand in the names of "
            f"folders, readable to all: {', '.join(public)}"
        )
    in_files = [field for field in target if field.name not in options.partition_by]
    if not in_files:
        raise ValueError("no columns are left to write: all are in the names of folders")
    throw_away = FileEncryptionProperties(
        footer_key=Key.generate(),
        column_keys={name: Key.generate() for name in keyed},
        plaintext_columns=plaintext,
    )
    nowhere = io.BytesIO()
    ParquetWriter(
        nowhere, pa.schema(in_files), throw_away, threads=1, compression=options.compression
    )


# --- on the executors ----------------------------------------------------------------------------


def write_task(
    settings: Settings,
    options: WriteOptions,
    schema: StructType,
    batches: Iterable[pa.RecordBatch],
    job: str,
    *,
    is_running: Callable[[], bool] = lambda: True,
) -> Written:
    """Write the rows of the task that runs here; keys are made and wrapped here.

    Args:
        is_running: tells whether the job is wanted still, before a file is begun.

    Raises:
        InterruptedError: it is not.
        ModcryptError, ValueError, OSError: as `write_dataset`; there are no files of it then.
    """
    context = TaskContext.get()
    assert context is not None
    task = f"{context.partitionId():05}-{context.taskAttemptId()}"
    folder = _join(_job_folder(options.folder, job), task)
    number, _, attempt = task.partition("-")
    target = written(schema)
    rows = (conform(batch, target) for batch in batches if batch.num_rows)
    first = list(itertools.islice(rows, 1))
    if not first and (options.partition_by or context.partitionId()):
        return Written(folder, ())  # one file without rows is enough to say what the columns are
    encryption = settings.encryption()

    def of_file(path: str) -> Encryption:
        if not is_running():
            raise InterruptedError("the job has ended without this attempt of a task")
        return encryption

    files = write_dataset(
        itertools.chain(first, rows),
        folder,
        of_file,
        schema=target,
        partitioning=options.partition_by or None,
        basename_template=f"part-{number}-{job}-{attempt}-{{i}}.parquet",
        shared_aad_prefix=settings.shared_aad_prefix,
        max_rows_per_file=options.max_rows_per_file,
        threads=1,  # a task has a core
        row_group_size=options.row_group_rows,
        compression=options.compression,
    )
    return Written(folder, tuple(files))


def _job_folder(base: str, job: str) -> str:
    return _join(base, f"_tmp_{job}")


def _mark(base: str, job: str) -> Place:
    """Give the place of the file that is there while a job is running."""
    return Place(*locate(_join(_job_folder(base, job), RUNNING), None))


def _join(base: str, name: str) -> str:
    return f"{base.rstrip('/')}/{name}"


# --- on the driver -------------------------------------------------------------------------------


def publish_files(base: str, messages: Iterable[Written], *, overwrite: bool) -> list[str]:
    """Give the files of a job's tasks their places in the table; give their paths in it.

    Args:
        base: folder of the table.
        messages: what each task wrote.
        overwrite: whether the files that are in the table now are to be removed, last of all.

    Raises:
        OSError: a file can't be published, and none is; or one can't be removed, and doesn't count.
            To overwrite, ELOOP if files are in the table by a symbolic link: nothing is published.
    """
    remove_abandoned(base)
    table = Place(*locate(base, None))
    present = _present(base) if overwrite else []
    for place in present:  # one that can't be removed would be in the table with the new rows
        place.check_writable()
    old = [_inside(table, place) for place in present]
    moves = [(_place(message.folder, name), name) for message in messages for name in message.files]
    job = _job_of(base, moves)
    with _locked(table, job) as is_locked:
        if is_locked is False:
            raise OSError(errno.EBUSY, "the job is being published by another process", base)
        _publish_all(table, job, moves)
        if old:  # from here on the new files count, and these don't
            put_note(table, job, old)
            _remove_hidden(table, old)
        remove_note(table, job)
    return [name for _, name in moves]


def _publish_all(table: Place, job: str, moves: Sequence[tuple[Place, str]]) -> None:
    """Move files to their places, where they don't count yet; on an error take them back."""
    folder = Folder(table.path, table.filesystem)
    targets = [folder.place(name) for _, name in moves]
    _check_absent(targets)
    put_note(table, job, [name for _, name in moves])
    done: list[Place] = []

    def move(one: tuple[tuple[Place, str], Place]) -> None:
        (source, _), target = one
        _publish(source, target)
        done.append(target)

    try:
        with ThreadPoolExecutor(_AT_ONCE, "modcrypt-publish") as pool:
            for _ in pool.map(move, zip(moves, targets, strict=True)):
                pass
    except BaseException:
        with contextlib.suppress(OSError):  # those that are left go on not to count
            for place in done:
                _remove(place)
            remove_note(table, job)
        raise
    for parent in {os.path.dirname(place.path) for place in done if place.filesystem is None}:
        fsync_folder(parent)


def _check_absent(targets: Sequence[Place]) -> None:
    """Raise if one of the places is taken: what a note hides must be the job's own.

    Raises:
        FileExistsError: It is.
    """
    if targets and targets[0].filesystem is not None:
        paths = [place.path for place in targets]
        infos = as_arrow(targets[0].filesystem).get_file_info(paths)
        taken = [info.path for info in infos if info.type != FileType.NotFound]
    else:
        taken = [place.path for place in targets if os.path.lexists(place.path)]
    if taken:
        raise FileExistsError(errno.EEXIST, "a file of this name exists, and is kept", taken[0])


def _job_of(base: str, moves: Sequence[tuple[Place, str]]) -> str:
    """Return the name of the job that wrote these files, by the folder that they are in."""
    top = Place(*locate(base, None)).path.rstrip("/")
    for place, _ in moves:
        if found := re.match(r"/_tmp_(\w+)/", place.path.removeprefix(top)):
            return found[1]
    return new_job()  # which has written nothing


def _inside(table: Place, place: Place) -> str:
    """Return the path of a file in the folder of a table."""
    return place.path[len(table.path) :].lstrip("/")


def _remove_hidden(table: Place, names: Sequence[str]) -> None:
    """Remove files that don't count, and folders that they were the last ones in."""
    places = [place for name in names if not (place := table.below(name)).is_linked]
    for place in places:
        _remove(place)
    _remove_empty_folders(table.path if table.filesystem is None else "", places)


def _folder(place: Place) -> str:
    return posixpath.dirname(place.path)


def put_note(table: Place, job: str, hidden: Iterable[str]) -> None:
    """Write the note of a job, or of a stream's query, which says which files do not count.

    Raises:
        OSError: From the file system.
    """
    note = WriteNote(tuple(hidden), this_host(), time.time())
    place = note_place(table, job)
    for number in range(_TRIES):
        Folder(table.path, table.filesystem).place(f"{NOTES}/{place.name}")  # makes the folder
        try:
            note.put(place)
        except FileNotFoundError:  # another write has tidied the folder up meanwhile
            if number == _TRIES - 1:
                raise
        else:
            return


def remove_note(table: Place, job: str) -> None:
    """Remove a note for good: one that came back after a crash would hide files that count."""
    note = note_place(table, job)
    note.remove()
    if note.filesystem is None:
        fsync_folder(_folder(note))
        with contextlib.suppress(OSError):  # there are others
            os.rmdir(_folder(note))


def remove_job(base: str, job: str) -> None:
    """Remove what is left of a job's tasks; what says that it is running first of all."""
    _mark(base, job).remove()
    place = Place(*locate(_job_folder(base, job), None))
    if place.filesystem is not None:
        with contextlib.suppress(FileNotFoundError):
            as_arrow(place.filesystem).delete_dir(place.path)
        return
    for _ in range(_TRIES):
        shutil.rmtree(place.path, ignore_errors=True)
        time.sleep(_PAUSE)  # an attempt that was told to stop may be at work still
        if not os.path.exists(place.path):
            return


# --- what killed drivers leave -------------------------------------------------------------------


def remove_abandoned(base: str) -> None:
    """Remove what drivers that are gone have left in the folder of a table; what can't be, stays.

    Raises:
        ValueError: There is a damaged note.
    """
    table = Place(*locate(base, None))
    for job in read_notes(table):
        if not job.isalnum():  # a stream's batch, which was decided: its query completes it
            continue
        with contextlib.suppress(OSError), _locked(table, job) as is_locked:
            note = read_note(note_place(table, job))  # as it is when nobody else may change it
            if note is None or is_locked is False:
                continue
            here = is_locked and note.host == this_host()
            if here or time.time() - note.time > ABANDONED_AFTER:
                _remove_hidden(table, note.hidden)
                remove_note(table, job)
                remove_job(base, job)
    _remove_unfinished_notes(table)
    for job in _jobs_left(table):
        with contextlib.suppress(OSError):
            if is_gone(_mark(base, job), Place(*locate(_job_folder(base, job), None))):
                remove_job(base, job)


def _remove_unfinished_notes(table: Place) -> None:
    """Remove local notes that did not get their names. One in the making is then made again."""
    folder = posixpath.join(table.path, NOTES)
    if table.filesystem is None and os.path.isdir(folder):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith("."):
                    os.unlink(posixpath.join(folder, name))
            os.rmdir(folder)


def _jobs_left(table: Place) -> list[str]:
    """List the jobs of which there are folders, but for those that are publishing."""
    if table.filesystem is None:
        names = os.listdir(table.path) if os.path.isdir(table.path) else []
    else:
        selector = FileSelector(table.path, allow_not_found=True)
        infos = as_arrow(table.filesystem).get_file_info(selector)
        names = [posixpath.basename(info.path.rstrip("/")) for info in infos]
    # A stream's are named otherwise.
    jobs = [name[5:] for name in names if re.fullmatch("_tmp_[0-9a-f]{16}", name)]
    return [job for job in jobs if note_place(table, job).stamp() is None]


@contextlib.contextmanager
def _locked(table: Place, job: str) -> Iterator[bool | None]:
    """Lock the folder of a job while it is published, or what it has left is removed.

    Yields:
        True; or False if another process has locked it. None in a store and on a file system
        without locks, where nobody can tell. A job without a folder does nothing: True.
    """
    with contextlib.ExitStack() as stack:
        yield None if table.filesystem is not None else _lock(table, job, stack)


def _lock(table: Place, job: str, stack: contextlib.ExitStack) -> bool | None:
    folder = posixpath.join(table.path, f"_tmp_{job}")
    try:
        fd = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        stack.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    except OSError:
        return None
    return True


# --- files and their key material ----------------------------------------------------------------


def _present(base: str) -> list[Place]:
    """List the files of a table that count: others are some other write's."""
    try:
        return list_complete(Place(*locate(base, None)))
    except FileNotFoundError:
        return []


def _place(folder: str, name: str) -> Place:
    return Place(*locate(_join(folder, name), None))


def _publish(source: Place, target: Place) -> None:
    """Move a file, and its key material before it."""
    material = store_of(source)
    if material.stamp() is None:
        _move(source, target)
        return
    _move(material, store_of(target))
    try:
        _move(source, target)
    except BaseException:
        store_of(target).remove()
        raise


def _move(source: Place, target: Place) -> None:
    if source.filesystem is None:
        publish(source.path, target.path, overwrite=False)
    else:
        as_arrow(source.filesystem).move(source.path, target.path)


def _remove(place: Place) -> None:
    """Remove a file, and its key material after it."""
    place.remove()
    if store_of(place).stamp() is not None:
        store_of(place).remove()


def _remove_empty_folders(base: str, old: Iterable[Place]) -> None:
    """Remove the local folders of a table that the removed files were the last ones in."""
    if not base:
        return
    root = os.path.abspath(base)
    for folder in {posixpath.dirname(os.path.abspath(place.path)) for place in old}:
        below = folder
        with contextlib.suppress(OSError):  # there are others in it
            while below.startswith(f"{root}/"):
                os.rmdir(below)
                below = posixpath.dirname(below)


class Writer(DataSourceArrowWriter):
    """Writes rows into a table; pickled, it holds paths and references to keys.

    Made once for a job: so its name is the same in all tasks, and when they are done.

    Raises:
        ValueError: as `check_columns`.
        NotADirectoryError: the table's folder is a file.
    """

    def __init__(
        self, settings: Settings, options: WriteOptions, schema: StructType, overwrite: bool
    ) -> None:
        check_columns(settings, options, schema)
        place = Place(*locate(options.folder, None))
        if place.filesystem is None and os.path.isfile(place.path):
            raise NotADirectoryError(f"a table is written to a folder; {place.path} is a file")
        self._settings, self._options, self._schema = settings, options, schema
        self._overwrite, self._job = overwrite, new_job()
        remove_abandoned(options.folder)
        Folder(_job_folder(options.folder, self._job), None).place(RUNNING)  # which makes it
        with _mark(options.folder, self._job).create() as sink:
            sink.append(this_driver().encode())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; raises as `write_task`."""
        try:
            return write_task(
                self._settings,
                self._options,
                self._schema,
                iterator,
                self._job,
                is_running=self._is_running,
            )
        finally:
            if not self._is_running():
                remove_job(self._options.folder, self._job)

    def _is_running(self) -> bool:
        return _mark(self._options.folder, self._job).stamp() is not None

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks wrote, and nothing else; raises as `publish_files`."""
        told = [message for message in messages if isinstance(message, Written)]
        if len(told) < len(messages):
            raise ValueError("a task did not tell what it wrote")
        publish_files(self._options.folder, told, overwrite=self._overwrite)
        remove_job(self._options.folder, self._job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks wrote."""
        remove_job(self._options.folder, self._job)
