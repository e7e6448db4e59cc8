"""Verify a lake against its declaration with Spark's executors: `verify`.

    driver      lists the files and, with `since` or `resume`, leaves out those that did not change
    executors   verify their files as the declaration says
    driver      compares the files with each other, and caches which are correct

Spark gets paths and references to keys; the results hold no keys.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modcrypt.jobs.listing import File
from modcrypt.lake.lake import Lake
from modcrypt.lake.lake_files import LakeFile
from modcrypt.lake.verification.dataset_check import Since
from modcrypt.lake.verification.file_check import CheckedFile, FileCheck, report_failure
from modcrypt.lake.verification.results import LakeVerification, VerifiedFile
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.format.findings import Finding, Unauthenticated
from modcrypt.parquet.verify.file_verification import FileAad
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.spark.jobs.driver import BYTES_PER_TASK, FILES_PER_TASK
from modcrypt.spark.jobs.file_work import Row, TableJob
from modcrypt.spark.jobs.task_files import run_tasks
from modcrypt.spark.lake_reference import LakeReference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    spark: SparkSession,
    lake: Lake,
    dataset: str | None = None,
    *,
    since: Since | None = None,
    resume: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> list[LakeVerification]:
    """Verify files against the declaration as `Lake.verify` does, with Spark's executors.

    Iceberg tables are verified by the driver.

    Args:
        spark, files_per_task, bytes_per_task: As in `apply`.
        lake: The lake.
        dataset: Name of a dataset; None for all.
        since, resume: As in `Lake.verify`, by the driver's cache.

    Raises:
        ValueError: The dataset is not declared.
        KeyRetrievalError: The key service cannot be opened.
    """

    def check(name: str, files: Sequence[LakeFile]) -> Iterator[CheckedFile]:
        job = LakeVerificationJob(reference=LakeReference.of(lake, name))
        columns = {
            "name": pa.array([os.fsencode(file.path) for file in files], pa.binary()),
            "size": pa.array([file.size for file in files], pa.int64()),
        }
        frame = run_tasks(spark, columns, job.run, job.schema, files_per_task, bytes_per_task)
        done = {
            os.fsdecode(bytes(row["name"])): bytes(row["result"]) for row in frame.toLocalIterator()
        }
        return (_load_result(done.pop(file.path)) for file in files)

    return lake.verify(dataset, since=since, resume=resume, check=check)


@dataclass(frozen=True, kw_only=True)
class LakeVerificationJob(TableJob):
    """A job that verifies files of a dataset as `Lake.verify` does.

    Attributes:
        reference: The dataset.
    """

    reference: LakeReference
    filesystem = None

    schema = pa.schema([("name", pa.binary()), ("result", pa.binary())])

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Yield a row for each file."""
        listed = [LakeFile(file.name, file.size, "") for file in files]
        for file, result in zip(
            files, FileCheck(self.reference.policies).verify(listed), strict=True
        ):
            yield _make_row(file, result)

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that could not be verified here."""
        return _make_row(file, report_failure(LakeFile(file.name, file.size, ""), error))


def _make_row(file: File, result: CheckedFile) -> Row:
    return {"name": os.fsencode(file.name), "result": pickle.dumps(tuple(result))}


_RESULTS = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        FileAad, Finding, ModuleId, ModuleType, Unauthenticated, Verification, VerifiedFile,
    )
}  # fmt: skip


class _ResultUnpickler(pickle.Unpickler):
    """An unpickler of results alone, so that what executors return runs no code here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _RESULTS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a result")
        return _RESULTS[module, name]


def _load_result(data: bytes) -> CheckedFile:
    aad, result = _ResultUnpickler(io.BytesIO(data)).load()
    return CheckedFile(aad, result)
