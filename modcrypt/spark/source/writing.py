"""Writing Spark's rows to encrypted Parquet files, atomically for each job.

    tasks    people/_tmp_4f1d.../00003-17/country=NO/part-00003-4f1d...-17-0.parquet
    commit   people/country=NO/part-00003-4f1d...-17-0.parquet

A task writes to a folder that readers skip, and reports its files to the driver; `commit` publishes
these files and no others. So a retried task, a concurrent second attempt and a failed job leave
nothing behind: the folder is removed with the job. Spark does not wait for attempts that it stops:
a file in the folder marks the job as running, and without it an attempt starts no file. File names
contain the job and the attempt; they never change, as AAD prefixes and key material are bound to
them.

Local files, on a filesystem that all executors share, are renamed; a store copies and deletes them.
Both take time, so a write note lists the files that do not count meanwhile (`write_notes`):
modcrypt's readers see all of a job or none of it, even if the driver is killed, and only one state
of an overwritten table. Other readers see files appear and disappear, and the leftovers of a killed
driver.

The next write removes the leftovers of a killed driver. On the same machine, modcrypt detects at
once that a driver is gone; on another, after a week without a change. The folder of a stream
stays: it belongs to the query and may hold files of a decided batch (see `stream_batches`).
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

from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.publication import fsync_folder, publish
from modcrypt.io.recorded_writes import note_moved
from modcrypt.io.stores import locate
from modcrypt.jobs.declared_changes import hand_over, note_changes, record_here, take_changes
from modcrypt.keys import Key
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.proof import WrapProof
from modcrypt.kms.settings import Settings
from modcrypt.parquet.arrow.writer import ParquetWriter
from modcrypt.parquet.crypto.properties import Encryption, FileEncryptionProperties
from modcrypt.parquet.datasets.dataset_writer import write_dataset
from modcrypt.parquet.datasets.discovery import DatasetFolder, as_arrow, list_complete, read_notes
from modcrypt.parquet.datasets.write_notes import NOTES, WriteNote, note_place, read_note
from modcrypt.pkmt1.external import store_of
from modcrypt.runtime.tracebacks import shorten_errors
from modcrypt.spark.source.abandoned_writes import (
    ABANDONED_AFTER,
    describe_driver,
    identify_host,
    is_gone,
)
from modcrypt.spark.source.arrow_types import conform, to_file_schema
from modcrypt.spark.source.options import WriteOptions

RUNNING = "_running"

_AT_ONCE = 8  # files that a store moves concurrently
_TRIES, _PAUSE = 40, 0.05  # attempts to remove or make a folder, and the pause in seconds


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The files that one task wrote: paths in `folder`, which is below the job's folder.

    `query` is the id of a stream's query; `changes` is what a seal states of the files, as JSON.
    """

    folder: str
    files: tuple[str, ...]
    query: str = ""
    changes: str = "[]"


def check_reports(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the reports of all tasks; raise ValueError if one is missing."""
    reports = [message for message in messages if isinstance(message, Written)]
    if len(reports) < len(messages):
        raise ValueError("a task did not report the files that it wrote")
    return reports


def new_job() -> str:
    """Return a unique name for a job."""
    return secrets.token_hex(8)


def check_columns(settings: Settings, options: WriteOptions, schema: StructType) -> None:
    """Check, without a key, that rows of a schema can be written with these settings."""
    target, policy = to_file_schema(schema), settings.policy
    if wrong := sorted(set(options.partition_by) - set(target.names)):
        raise ValueError(f"partitionBy: there is no column {', '.join(wrong)}")
    keyed, plaintext = settings.column_keys.keys(), settings.plaintext_columns
    if policy is not None and settings.footer_key is None:
        keyed, plaintext = policy.key_of_column.keys(), tuple(policy.plaintext_columns)
    if public := sorted({*keyed, *plaintext} & set(options.partition_by)):
        raise ValueError(
            "columns of partitionBy can't be encrypted, as folder names show their values; remove "
            f"them from partitionBy, or from the keys and plaintext columns: {', '.join(public)}"
        )
    in_files = [field for field in target if field.name not in options.partition_by]
    if not in_files:
        raise ValueError("no columns are left to write; remove columns from partitionBy")
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
    replaces: bool = False,
) -> Written:
    """Write the rows of the current task; generates and wraps keys in this process.

    `is_running` returns whether the job is still running; it is called before each file.
    `replaces` says whether the job removes files of the table, so that new wraps are proved.

    Raises:
        InterruptedError: The job is no longer running.
        ModcryptError, ValueError, OSError: As in `write_dataset`; the task then leaves no files.
    """
    context = TaskContext.get()
    assert context is not None
    number, attempt = f"{context.partitionId():05}", context.taskAttemptId()
    folder = f"{job_folder(options.folder, job)}/{number}-{attempt}"
    target = to_file_schema(schema)
    rows = (conform(batch, target) for batch in batches if batch.num_rows)
    first = list(itertools.islice(rows, 1))
    if not first and (options.partition_by or context.partitionId()):
        return Written(folder, ())  # one empty file is enough to store the schema
    encryption = settings.encryption()
    if replaces and isinstance(encryption, KeyedEncryption):
        encryption = encryption.with_proof(WrapProof(), replaces=True)

    def get_encryption(path: str) -> Encryption:
        if not is_running():
            raise InterruptedError("the job has ended; this attempt of a task is stopped")
        return encryption

    seals = settings.signing_key is not None and settings.required_seal is not None
    recording = record_here(folder) if seals else contextlib.nullcontext()
    with recording as record:
        files = write_dataset(
            itertools.chain(first, rows),
            folder,
            get_encryption,
            schema=target,
            partitioning=options.partition_by or None,
            basename_template=f"part-{number}-{job}-{attempt}-{{i}}.parquet",
            shared_aad_prefix=settings.shared_aad_prefix,
            max_rows_per_file=options.max_rows_per_file,
            threads=1,  # Spark gives a task one core
            row_group_size=options.row_group_rows,
            compression=options.compression,
        )
    return Written(folder, tuple(files), changes=take_changes(record) if record else "[]")


def job_folder(base: str, job: str) -> str:
    """Return the folder for the files of a job, or of a stream's query; readers skip it."""
    return f"{base.rstrip('/')}/_tmp_{job}"


def _running_mark(base: str, job: str) -> Place:
    return Place(*locate(f"{job_folder(base, job)}/{RUNNING}", None))


# --- on the driver -------------------------------------------------------------------------------


def publish_files(
    base: str, messages: Iterable[Written], *, overwrite: bool, clean: bool = True
) -> list[str]:
    """Move the files of a job's tasks into the table, and return their paths in it.

    With `overwrite`, remove the files that the table had, after publishing. `clean` is False if
    what abandoned jobs left was removed just now.

    Raises:
        OSError: A file can't be published, then none is; or an old file can't be removed, then
            readers skip it. With `overwrite`, ELOOP if a file of the table is reached by a symbolic
            link; then nothing is published.
    """
    if clean:
        remove_abandoned(base)
    table = Place(*locate(base, None))
    present = _list_present(base) if overwrite else []
    for place in present:  # a file that can't be removed would stay beside the new rows
        place.check_writable()
    old = [place.path[len(table.path) :].lstrip("/") for place in present]
    moves = [
        (Place(*locate(f"{message.folder.rstrip('/')}/{name}", None)), name)
        for message in messages
        for name in message.files
    ]
    job = _job_of(base, moves)
    with _lock_job(table, job) as has_lock:
        if has_lock is False:
            raise OSError(errno.EBUSY, "another process is publishing the job", base)
        _publish_all(table, job, moves)
        if old:  # from here on readers see the new files and skip the old ones
            put_note(table, job, old)
            _remove_hidden(table, old)
        remove_note(table, job)
    return [name for _, name in moves]


def _publish_all(table: Place, job: str, moves: Sequence[tuple[Place, str]]) -> None:
    """Move files into the table, still hidden by a note; on an error remove them again."""
    folder = DatasetFolder(table.path, table.filesystem)
    targets = [folder.place(name) for _, name in moves]
    _check_absent(targets)
    put_note(table, job, [name for _, name in moves])
    published: list[Place] = []

    def move(pair: tuple[tuple[Place, str], Place]) -> None:
        (source, _), target = pair
        _publish(source, target)
        published.append(target)

    try:
        with ThreadPoolExecutor(_AT_ONCE, "modcrypt-publish") as pool:
            for _ in pool.map(move, zip(moves, targets, strict=True)):
                pass
    except BaseException:
        with contextlib.suppress(OSError):  # the note still hides files that can't be removed
            for place in published:
                _remove(place)
            remove_note(table, job)
        raise
    for parent in {os.path.dirname(place.path) for place in published if place.filesystem is None}:
        fsync_folder(parent)


def _check_absent(targets: Sequence[Place]) -> None:
    """Raise FileExistsError if a target exists, as a note must only hide files of the job."""
    if targets and targets[0].filesystem is not None:
        paths = [place.path for place in targets]
        infos = as_arrow(targets[0].filesystem).get_file_info(paths)
        taken = [info.path for info in infos if info.type != FileType.NotFound]
    else:
        taken = [place.path for place in targets if os.path.lexists(place.path)]
    if taken:
        raise FileExistsError(
            errno.EEXIST, "a file of this name exists and is not replaced", taken[0]
        )


def _job_of(base: str, moves: Sequence[tuple[Place, str]]) -> str:
    """Return the name of the job that wrote these files, by the folder that they are in."""
    top = Place(*locate(base, None)).path.rstrip("/")
    for place, _ in moves:
        if found := re.match(r"/_tmp_(\w+)/", place.path.removeprefix(top)):
            return found[1]
    return new_job()  # no task has written a file


def _remove_hidden(table: Place, names: Sequence[str]) -> None:
    """Remove hidden files, and folders that become empty."""
    places = [place for name in names if not (place := table.below(name)).is_linked]
    for place in places:
        _remove(place)
    if table.filesystem is None:
        _remove_empty_folders(table.path, places)


def put_note(table: Place, job: str, hidden: Iterable[str]) -> None:
    """Write the note of a job or of a stream's query, which lists the files that readers skip."""
    note = WriteNote(tuple(hidden), identify_host(), time.time())
    place = note_place(table, job)
    for number in range(_TRIES):
        # This makes the folder.
        DatasetFolder(table.path, table.filesystem).place(f"{NOTES}/{place.name}")
        try:
            note.put(place)
        except FileNotFoundError:  # another write has removed the empty folder meanwhile
            if number == _TRIES - 1:
                raise
        else:
            return


def remove_note(table: Place, job: str) -> None:
    """Remove a note durably: a note that reappears after a crash would hide published files."""
    note = note_place(table, job)
    note.remove()
    if note.filesystem is None:
        folder = posixpath.dirname(note.path)
        fsync_folder(folder)
        with contextlib.suppress(OSError):  # there are others
            os.rmdir(folder)


def remove_job(base: str, job: str) -> None:
    """Remove the files of a job's tasks; the mark that it is running goes first."""
    _running_mark(base, job).remove()
    place = Place(*locate(job_folder(base, job), None))
    if place.filesystem is not None:
        with contextlib.suppress(FileNotFoundError):
            as_arrow(place.filesystem).delete_dir(place.path)
        return
    for _ in range(_TRIES):
        shutil.rmtree(place.path, ignore_errors=True)
        time.sleep(_PAUSE)  # a stopped attempt may still be writing
        if not os.path.exists(place.path):
            return


# --- leftovers of killed drivers -----------------------------------------------------------------


def remove_abandoned(base: str) -> None:
    """Remove the leftovers of ended drivers from the folder of a table; skip errors of removal.

    Raise ValueError if a note is damaged.
    """
    table = Place(*locate(base, None))
    for job in read_notes(table):
        if not job.isalnum():  # a decided batch of a stream, which its query completes
            continue
        with contextlib.suppress(OSError), _lock_job(table, job) as has_lock:
            note = read_note(note_place(table, job))  # read again under the lock
            if note is None or has_lock is False:
                continue
            here = has_lock and note.host == identify_host()
            if here or time.time() - note.time > ABANDONED_AFTER:
                _remove_hidden(table, note.hidden)
                remove_note(table, job)
                remove_job(base, job)
    _remove_unfinished_notes(table)
    for job in _jobs_left(table):
        with contextlib.suppress(OSError):
            if is_gone(_running_mark(base, job), Place(*locate(job_folder(base, job), None))):
                remove_job(base, job)


def _remove_unfinished_notes(table: Place) -> None:
    """Remove unfinished local notes; a concurrent writer of one of them starts again."""
    folder = posixpath.join(table.path, NOTES)
    if table.filesystem is None and os.path.isdir(folder):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith("."):
                    os.unlink(posixpath.join(folder, name))
            os.rmdir(folder)


def _jobs_left(table: Place) -> list[str]:
    """List the jobs that have left folders, without those that are publishing."""
    if table.filesystem is None:
        names = os.listdir(table.path) if os.path.isdir(table.path) else []
    else:
        selector = FileSelector(table.path, allow_not_found=True)
        infos = as_arrow(table.filesystem).get_file_info(selector)
        names = [posixpath.basename(info.path.rstrip("/")) for info in infos]
    # Folders of streams have other names.
    jobs = [name[5:] for name in names if re.fullmatch("_tmp_[0-9a-f]{16}", name)]
    return [job for job in jobs if note_place(table, job).stamp() is None]


@contextlib.contextmanager
def _lock_job(table: Place, job: str) -> Iterator[bool | None]:
    """Lock the folder of a job while it is published, or while its leftovers are removed.

    Yield True if this process has the lock or the folder does not exist, False if another process
    has it, None in a store and on a filesystem without locks, where this is unknown.
    """
    with contextlib.ExitStack() as stack:
        yield None if table.filesystem is not None else _try_lock(table, job, stack)


def _try_lock(table: Place, job: str, stack: contextlib.ExitStack) -> bool | None:
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


def _list_present(base: str) -> list[Place]:
    """List the files of a table without those of other incomplete writes."""
    try:
        return list_complete(Place(*locate(base, None)))
    except FileNotFoundError:
        return []


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
    note_moved(source, target)


def _remove(place: Place) -> None:
    """Remove a file, and its key material after it."""
    place.remove()
    if store_of(place).stamp() is not None:
        store_of(place).remove()


def _remove_empty_folders(base: str, old: Iterable[Place]) -> None:
    """Remove the local folders of a table that became empty."""
    root = os.path.abspath(base)
    for folder in {posixpath.dirname(os.path.abspath(place.path)) for place in old}:
        below = folder
        with contextlib.suppress(OSError):  # the folder is not empty
            while below.startswith(f"{root}/"):
                os.rmdir(below)
                below = posixpath.dirname(below)


class Writer(DataSourceArrowWriter):
    """A writer of rows into a table; picklable, it holds only paths and references to keys.

    Spark makes one writer per job, so all tasks and the commit use the same job name. Raise
    ValueError as in `check_columns`, and NotADirectoryError if the folder of the table is a file.
    """

    def __init__(
        self, settings: Settings, options: WriteOptions, schema: StructType, overwrite: bool
    ) -> None:
        check_columns(settings, options, schema)
        place = Place(*locate(options.folder, None))
        if place.filesystem is None and os.path.isfile(place.path):
            raise NotADirectoryError(f"a table must be a folder; {place.address} is a file")
        self._settings, self._options, self._schema = settings, options, schema
        self._overwrite, self._job = overwrite, new_job()
        remove_abandoned(options.folder)
        self._replaces = overwrite and bool(_list_present(options.folder))
        # This makes the folder.
        DatasetFolder(job_folder(options.folder, self._job), None).place(RUNNING)
        with open_sink_at(_running_mark(options.folder, self._job)) as sink:
            sink.append(describe_driver().encode())

    @shorten_errors
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
                replaces=self._replaces,
            )
        finally:
            if not self._is_running():
                remove_job(self._options.folder, self._job)

    def _is_running(self) -> bool:
        return _running_mark(self._options.folder, self._job).stamp() is not None

    @shorten_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the files that the tasks reported; raises as `publish_files`."""
        reports, folder, settings = check_reports(messages), self._options.folder, self._settings
        remove_abandoned(folder)  # what unsigned notes name is not removed by the writer
        how = {"replace_all": self._overwrite}
        with hand_over(folder, settings.writer_key, settings.required_seal, **how):
            for report in reports:
                note_changes(Place(*locate(report.folder, None)), report.changes)
            publish_files(folder, reports, overwrite=self._overwrite, clean=False)
        remove_job(self._options.folder, self._job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks."""
        remove_job(self._options.folder, self._job)
