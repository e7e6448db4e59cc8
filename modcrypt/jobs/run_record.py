"""Records of runs over many files: they list the finished files, so that a run can resume.

One record file can hold any number of runs; the fields in each line identify its run.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Self, TypeAlias, TypeVar

from modcrypt.errors import ModcryptError
from modcrypt.io.locks import lock
from modcrypt.io.places import Place
from modcrypt.jobs.engine import FileResult, Job, run_job
from modcrypt.pkmt1.external import store_of

F = TypeVar("F", bound=FileResult)

Stamps: TypeAlias = Sequence[Sequence[int | str] | None]
"""Stamps that identify versions of files; None for a file that does not exist."""


def has_unfinished_rotation(
    record: str | os.PathLike[str],
    what: str,
    new_master_keys: Mapping[str, str],
    double_wrapping: bool | None = None,
) -> bool:
    """Return whether a record contains an interrupted rotation."""
    done = read_record(record, rotation_fields(what, new_master_keys, double_wrapping))
    return any("ended" not in entry for entry in done.values())


def read_record(path: str | os.PathLike[str], run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the line of each finished file by path; `ended` is set if its run is complete."""
    done: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            # Skip lines that a crash truncated, or that do not belong to a record.
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                entry = json.loads(line)
                if {name: entry[name] for name in run} != run:
                    continue
                if entry.get("end") is True:
                    done = {name: {**file, "ended": True} for name, file in done.items()}
                else:
                    done[entry["path"]] = entry
    return done


class Record:
    """A record of the finished files of a run: a line of JSON for each, and one at its end.

    A file has its line only after it was published; a line has the stamps of the file, so that a
    file that has changed since counts as unfinished. Work that must not be done twice also calls
    `begin` before the file is replaced, and `check_unprocessed` before that. Lines are appended
    whole, and broken ones are skipped: a crash costs at most the work on one file.

    Args:
        run: JSON fields that identify the run among others in the record.
        is_done: Function that takes a line and returns whether its file needs no more work; by
            default, it needs none.
        alone: Whether to refuse a record that another run writes to. Needs `write`.

    Raises:
        BlockingIOError: Another run writes to the record.
        ValueError: The path holds another kind of file.
        OSError: The record can't be read or written.
    """

    def __init__(
        self, path: str | os.PathLike[str], run: Mapping[str, Any],
        is_done: Callable[[dict[str, Any]], bool] = lambda entry: True, *, write: bool,
        alone: bool = False,
    ) -> None:  # fmt: skip
        self._run, self._is_done = dict(run), is_done
        # A Parquet file or an AGS1 stream may be one of the files of the run.
        with suppress(FileNotFoundError), open(path, "rb") as file:
            if file.read(4) in (b"PAR1", b"PARE", b"AGS1"):
                raise ValueError(f"{os.fspath(path)} exists and is not the record of a run")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) if write else None
        try:
            if self._file is not None and alone:
                _lock(self._file.fileno(), os.fspath(path))
            self._done = read_record(path, self._run)
            self._of_command = {}
            if "command" in run:  # with any options
                self._of_command = read_record(path, {"command": run["command"]})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the record and release its lock."""
        if self._file is not None:
            self._file.close()

    def find(self, place: Place, source: Place | None = None) -> dict[str, Any] | None:
        """Return the line of a file that is finished and has not changed since; otherwise None.

        `source` is the file that it was made from, which must not have changed either.
        """
        stamps, entry = _stamps_of(place, source), self._done.get(place.full_name)
        if entry is None or None in stamps[:-1] or entry.get("stamps") != stamps:
            return None
        if entry.get("source") != (None if source is None else source.full_name):
            return None
        try:
            return entry if self._is_done(entry) else None
        except (ModcryptError, KeyError, TypeError, ValueError):
            return None

    def add_file(self, place: Place, source: Place | None = None, **fields: Any) -> None:
        """Write that a file is finished, made from `source`, with further fields.

        Raise OSError if the line could not be written completely.
        """
        if source is not None:
            fields["source"] = source.full_name
        self._write({"path": place.full_name, **fields, "stamps": _stamps_of(place, source)})

    def begin(self, place: Place) -> None:
        """Write that a file is about to be replaced, on disk before this method returns."""
        name = place.full_name
        self._write({"path": name, "begun": name, "was": _stamps(place)[0], "stamps": None})
        if self._file is not None:
            os.fdatasync(self._file.fileno())

    def check_unprocessed(self, place: Place) -> None:
        """Check that no run of the command has replaced a file: hashes must not be hashed again."""
        if (noted := self._of_command.get(place.full_name)) is None:
            return
        now = _stamps(place)[0]
        if noted["was"] != now if "begun" in noted else noted["stamps"][1] == now:
            raise OSError(
                errno.ESTALE,
                "according to the record, an interrupted run or a run with other options has "
                "already processed this file; it was left as it is, so that hashes are not hashed "
                "again: inspect it",
                place.address,
            )

    def end(self) -> None:
        """Write that the run is complete; the next run starts from the beginning."""
        self._write({"end": True})

    def _write(self, fields: dict[str, Any]) -> None:
        if self._file is not None:
            line = json.dumps({**fields, **self._run}).encode()
            data = b"\n" + line + b"\n"  # the first newline ends a line that a crash truncated
            while data:  # a full disk accepts a part, then raises
                data = data[self._file.write(data) :]


def _lock(fd: int, path: str) -> None:
    try:
        lock(fd, wait=False)
    except BlockingIOError:
        raise BlockingIOError(
            errno.EWOULDBLOCK, "another run writes to this record", path
        ) from None
    except OSError:  # the file system does not support locks
        pass


def _stamps_of(place: Place, source: Place | None) -> Stamps:
    return _stamps(*(() if source is None else (source,)), place, store_of(place))


def rotation_fields(
    what: str, new_master_keys: Mapping[str, str], double_wrapping: bool | None = None
) -> dict[str, Any]:
    """Return the fields that identify the runs of a rotation in a record."""
    fields = {"what": what, "new_master_keys": dict(new_master_keys)}
    return fields if double_wrapping is None else {**fields, "double_wrapping": double_wrapping}


def run_recorded(
    places: list[Place], work: Callable[[Place], tuple[F, Mapping[str, Any] | None]], kind: type[F],
    *, record: Record | None,
    restore: Callable[[dict[str, Any]], dict[str, Any]] = lambda entry: {}, jobs: int | None,
    progress: Callable[[F, int], object] | None,
) -> list[F]:  # fmt: skip
    """Return the result of each file; skip files that the record lists as finished.

    `work` returns the result of a file and the fields to record; None instead of fields if the file
    is not finished. `restore` returns the attributes of a finished file by its recorded fields.
    `progress` is called with each result and the number of files.
    """

    def process(place: Place) -> F:
        entry = None if record is None else record.find(place)
        if entry is not None:
            return kind(path=place.listed_name, result="current", **restore(entry))
        file, fields = Job(work, fail).run(place)
        if record is not None and fields is not None:
            record.add_file(place, result=file.result, **fields)  # an error ends the run
        return file

    def fail(place: Place, error: Exception) -> tuple[F, None]:
        return kind.of_failure(place, error), None

    with record or nullcontext():
        files = list(run_job(Job(process), places, jobs=jobs, progress=progress))
        if record is not None and not any(file.failed for file in files):
            record.end()
    return files


def list_files_except(
    record: str | os.PathLike[str] | None, where: Any, filesystem: Any
) -> list[Place]:
    """Return the files of `list_files` without the record of the run.

    Raise ValueError if the record is not a regular file.
    """
    from modcrypt.parquet.datasets.discovery import list_files

    record_path = None if record is None else os.path.realpath(record)
    if record_path is not None and os.path.exists(record_path) and not os.path.isfile(record_path):
        raise ValueError(f"record is not a regular file: {record_path}")
    return [place for place in list_files(where, filesystem) if place.resolve().path != record_path]


def _stamps(*places: Place) -> list[list[int | str] | None]:
    return [None if (stamp := place.stamp()) is None else list(stamp) for place in places]
