"""Publication of the files that the tasks of a job wrote, on Spark's driver.

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
import os
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyarrow.fs import FileSelector, FileType
from pyspark.sql.datasource import WriterCommitMessage

from modcrypt.io.places import Place
from modcrypt.io.publication import fsync_folder, publish
from modcrypt.io.recorded_writes import note_moved
from modcrypt.io.stores import locate
from modcrypt.parquet.datasets.discovery import DatasetFolder, as_arrow, list_complete, read_notes
from modcrypt.parquet.datasets.write_notes import NOTES, WriteNote, note_place, read_note
from modcrypt.pkmt1.external import store_of
from modcrypt.spark.source.abandoned_writes import ABANDONED_AFTER, identify_host, is_gone

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


def new_job() -> str:
    """Return a unique name for a job."""
    return secrets.token_hex(8)


def job_folder(base: str, job: str) -> str:
    """Return the folder for the files of a job, or of a stream's query; readers skip it."""
    return f"{base.rstrip('/')}/_tmp_{job}"


def running_mark(base: str, job: str) -> Place:
    """Return the place of the file whose presence tells attempts of tasks that the job runs."""
    return Place(*locate(f"{job_folder(base, job)}/{RUNNING}", None))


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
    present = list_present(base) if overwrite else []
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
    running_mark(base, job).remove()
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
            if is_gone(running_mark(base, job), Place(*locate(job_folder(base, job), None))):
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
    return [job for job in jobs if not note_place(table, job).exists()]


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


def list_present(base: str) -> list[Place]:
    """List the files of a table without those of other incomplete writes."""
    try:
        return list_complete(Place(*locate(base, None)))
    except FileNotFoundError:
        return []


def _publish(source: Place, target: Place) -> None:
    """Move a file, and its key material before it."""
    material = store_of(source)
    if not material.exists():
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
    if store_of(place).exists():
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
