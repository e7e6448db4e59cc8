"""Jobs whose executors report what they write to datasets that the driver seals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.declared_changes import list_sealed, note_changes, record_here, take_changes
from modcrypt.kms.signing.ledger import Seen
from modcrypt.spark.jobs.file_work import TEXT, TableJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN = "_written"
"""Column of a report that has what a task wrote, as JSON, in the first row of a batch."""


@dataclass(frozen=True)
class RecordedJob:
    """A job whose report says what its tasks wrote below some folders.

    Attributes:
        job: The job.
        folders: Folders that `sealing` records in this process: their paths or URLs, the newest
            seal, and whether files may be read that it does not state.
    """

    job: TableJob
    folders: tuple[tuple[str, Seen | None, bool], ...]

    @classmethod
    def of(cls, job: TableJob) -> RecordedJob:
        """Return a job with the folders that are recorded now; none if nothing is sealed."""
        return cls(job, tuple(list_sealed()))

    @property
    def schema(self) -> pa.Schema:
        """Schema of the report."""
        return self.job.schema.append(pa.field(WRITTEN, TEXT)) if self.folders else self.job.schema

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
                yield rows.append_column(pa.field(WRITTEN, TEXT), pa.array(written, TEXT))

    def take_over(self, frame: DataFrame) -> DataFrame:
        """Hand over to `sealing` what the tasks wrote, and return the report without it."""
        if not self.folders:
            return frame
        for row in frame.filter(f"{WRITTEN} is not null").select(WRITTEN).toLocalIterator():
            for (folder, *_), text in zip(self.folders, json.loads(row[0]), strict=True):
                note_changes(Place(*locate(folder, None)), text)
        return frame.drop(WRITTEN)
