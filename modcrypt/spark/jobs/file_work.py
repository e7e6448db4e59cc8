"""The job of Spark that does what a verb declares: tasks run it on their files, on an executor.

Spark pickles a job to the executors, so it holds only references to keys. Keys are opened once per
task and the key service once per process; data keys are generated, wrapped and used here. A file
that fails becomes a row; if keys can't be retrieved here, every file becomes such a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.declared_changes import list_sealed, note_changes, record_here, take_changes
from modcrypt.jobs.engine import Job, run_job
from modcrypt.jobs.listing import File, MakeFilesystem, place_at
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.ledger import Seen
from modcrypt.spark.report_schemas import report_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ON_DISK, IN_STORE = 2, 4
"""Number of files that a task processes concurrently, on disk and in a store: one file waits for IO
while another is processed."""


@dataclass(frozen=True, kw_only=True)
class VerbJob:
    """A verb with its arguments, for any files; picklable, so without keys."""

    verb: Verb
    settings: Settings | None = None
    # Function that makes the filesystem of the files; None if names are enough.
    filesystem: MakeFilesystem | None = None
    folders: tuple[str, ...] = ()  # folders or files that the caller named
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows of the report; other values of a row are left out."""
        return report_schema(self.verb)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the report for rows of (name, size), and what else a verb needs."""
        worker = f"{socket.gethostname()}/{os.getpid()}"
        for batch in batches:
            files = [_take_file(row) for row in batch.to_pylist()]
            rows = [{**row, "worker": worker} for row in self._make_rows(files)]
            try:
                yield pa.RecordBatch.from_pylist(rows, self.schema)
            except UnicodeEncodeError:  # a name is not UTF-8
                yield pa.RecordBatch.from_pylist([_as_text(row) for row in rows], self.schema)

    def _make_rows(self, files: Sequence[File]) -> list[Row]:
        """Return the rows of files, whose places are known once their filesystem is made."""
        try:
            filesystem = None if self.filesystem is None else self.filesystem()
            located = [replace(file, place=place_at(file.name, filesystem)) for file in files]
            return list(self.rows(located, filesystem))
        except Exception as error:  # keys or stores are not available on this executor
            return [self.make_failed_row(file, error) for file in files]

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return the rows of the files, which share the keys of the task."""
        verb = self.verb
        job = verb.open(self.settings, filesystem, **self.arguments)
        if verb.together:
            rows: Iterable[Row] = job.process(files)
            return rows
        if verb.writes:
            files = [_restrict_to_folders(file, self.folders) for file in files]
        rows = self._process_each(files, job)
        if verb.end is not None:
            verb.end(self.settings, **self.arguments)
        return rows

    def _process_each(self, files: Sequence[File], job: Job[File, Any]) -> list[Row]:
        verb = self.verb
        work: Job[File, list[Row]] = Job(
            lambda file: verb.rows(file, job.process(file)),
            lambda file, error: [self.make_failed_row(file, error)],
        )

        def measure(file: File) -> list[Row]:
            started = time.perf_counter()
            rows = work.run(file)
            seconds = time.perf_counter() - started
            return [{"bytes_in": file.size, **row, "seconds": seconds} for row in rows]

        on_disk = files[0].place.filesystem is None and not verb.waits
        threads = ON_DISK if on_disk else IN_STORE
        return [row for rows in run_job(Job(measure), files, jobs=threads) for row in rows]

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that failed."""
        return self.verb.fail(self.verb, file, error, **self.arguments)


def _take_file(row: dict[str, Any]) -> File:
    name = os.fsdecode(row.pop("name"))
    row.pop("task", None)
    return File(name, row.pop("size"), Place(None, name), row)


def _restrict_to_folders(file: File, folders: Iterable[str]) -> File:
    """Return a file to write to, so that no symbolic link below the given folders is followed."""
    place = file.place
    roots = [folder for folder in folders if place.path.startswith(posixpath.join(folder, ""))]
    if place.filesystem is not None or not roots:
        return file
    return replace(file, place=Place(None, place.path, max(roots, key=len)))


def _as_text(value: Any) -> Any:
    """Return a row or value in which names that are not UTF-8 are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _as_text(item) for name, item in value.items()}
    return type(value)(map(_as_text, value)) if isinstance(value, list | tuple) else value


WRITTEN = "_written"
"""Column of a report that has what a task wrote, as JSON, in the first row of a batch."""


@dataclass(frozen=True)
class RecordedJob:
    """A job whose report says what its tasks wrote below some folders."""

    job: VerbJob
    # Folders that `sealing` records in this process: their paths or URLs, the newest seal, and
    # whether files may be read that it does not state.
    folders: tuple[tuple[str, Seen | None, bool], ...]

    @classmethod
    def of(cls, job: VerbJob) -> RecordedJob:
        """Return a job with the folders that are recorded now; none if nothing is sealed."""
        return cls(job, tuple(list_sealed()))

    @property
    def schema(self) -> pa.Schema:
        """Schema of the report."""
        schema = self.job.schema
        return schema.append(pa.field(WRITTEN, pa.string())) if self.folders else schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the report of a task."""
        if not self.folders:
            yield from self.job.run(batches)
            return
        with contextlib.ExitStack() as stack:
            records = [stack.enter_context(record_here(*folder)) for folder in self.folders]
            for rows in self.job.run(batches):
                written: list[str | None] = [None] * rows.num_rows
                if written:
                    written[0] = json.dumps([take_changes(record) for record in records])
                yield rows.append_column(WRITTEN, pa.array(written, pa.string()))

    def take_over(self, frame: DataFrame) -> DataFrame:
        """Hand over to `sealing` what the tasks wrote, and return the report without it."""
        if not self.folders:
            return frame
        for row in frame.filter(f"{WRITTEN} is not null").select(WRITTEN).toLocalIterator():
            for (folder, *_), text in zip(self.folders, json.loads(row[0]), strict=True):
                note_changes(Place(*locate(folder, None)), text)
        return frame.drop(WRITTEN)
