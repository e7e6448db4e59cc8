"""Driver side of jobs on tables: list the files, check the settings and start the tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import pyarrow as pa

from modcrypt.errors import KmsUnavailableError, ModcryptError
from modcrypt.jobs.idempotence.shapes import read_decrypted_shape
from modcrypt.jobs.listing import File, Folder, MakeFilesystem, list_tables
from modcrypt.kms.proof import Prove
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.file_work import TableJob
from modcrypt.spark.jobs.recorded_jobs import RecordedJob
from modcrypt.spark.jobs.task_files import is_local, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_PER_TASK = 500
BYTES_PER_TASK = 256 << 20

PROBED_FILES = 3
"""Number of files that are opened before a job, to check that the settings fit."""


def check_settings(settings: object) -> None:
    """Raise TypeError unless keys are given by reference, as `Settings`."""
    if not isinstance(settings, Settings):
        raise TypeError(f"keys must be given as Settings, not {type(settings).__name__}")


class JobOptions(TypedDict, total=False):
    """Options of all jobs."""

    # Function that makes a pyarrow or fsspec filesystem in each process, in which the folders are
    # paths; so no credentials are sent to executors.
    filesystem: MakeFilesystem | None
    files_per_task: int  # maximum number of files of a task
    bytes_per_task: int  # maximum number of bytes of a task


class ConversionOptions(JobOptions, total=False):
    """Options of jobs that write files."""

    overwrite: bool  # whether to replace existing destinations that differ
    dry_run: bool  # whether to only report what would be done
    # Which new wraps are proved in each task, as in `modcrypt.rotate_keys`.
    prove: Prove


TablePlan: TypeAlias = tuple[TableJob, Sequence[File]]
"""A job and its files, after the checks that need no executor."""


def run_table_job(
    spark: SparkSession,
    plan: Callable[..., TablePlan],
    *arguments: Any,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
    **options: Any,
) -> DataFrame:
    """Have Spark run the job that `plan(*arguments, **options)` returns, once.

    Return the report. Spark sends the names to the executors as rows, not within a closure, and the
    report stays on the executors, so the driver holds only the listing. If there are several, two
    have each part of it, because Spark cannot make it again when one is lost.
    """
    from pyspark import StorageLevel

    planned, files = plan(*arguments, **options)
    job = RecordedJob.of(planned)
    names = [os.fsencode(file.name) for file in files]  # names may be any bytes
    columns = {
        "name": pa.array(names, pa.binary()),
        "size": pa.array([file.size for file in files], pa.int64()),
    }
    frame = run_tasks(spark, columns, job.run, job.schema, files_per_task, bytes_per_task)
    if is_local(spark):
        return job.take_over(frame.localCheckpoint())
    level = StorageLevel.MEMORY_AND_DISK_2
    return job.take_over(frame.localCheckpoint(storageLevel=level))


def plan_job(
    kind: Callable[..., TableJob], where: Any, settings: Settings | None, *,
    check: Callable[[Settings, Sequence[File]], object] = lambda settings, files: None,
    filesystem: MakeFilesystem | None = None, **how: Any,
) -> TablePlan:  # fmt: skip
    """Plan a job on files, and check what needs no executor.

    `where` is the path or URL of a folder or file, or a list of them; one folder is the root of
    paths in AAD prefixes. `check` is a further check of the settings and the files; `how` has
    further attributes of the job. Raise as `encrypt_table`.
    """
    folders = folders_of(where, filesystem)
    files = list_tables(folders)
    settings = settings_under(settings, folders)
    if settings is not None:
        check(settings, files)
        check_reachable(settings, files)
    return kind(settings=settings, filesystem=filesystem, **how), files


def settings_under(settings: Settings | None, folders: Sequence[Folder]) -> Settings | None:
    """Return the settings for files of a single folder, or of several folders or files.

    Raise TypeError if keys are not given as `Settings`.
    """
    if settings is None:
        return None
    check_settings(settings)
    single = len(folders) == 1 and folders[0].is_folder
    return settings.under(folders[0].name) if single else settings


def folders_of(where: Any, filesystem: MakeFilesystem | None) -> list[Folder]:
    """Return the folders that the caller names; raises as `Folder.at`."""
    several = where if isinstance(where, list | tuple) else [where]
    return [Folder.at(name, filesystem) for name in several]


def check_reachable(settings: Settings, files: Sequence[File]) -> None:
    """Check that the key service answers for the keys of a file.

    Raise KmsUnavailableError if the key service is unavailable.
    """
    properties = settings.decryption()
    for file in files[:PROBED_FILES]:
        try:
            read_decrypted_shape(file.place, properties)
            return
        except KmsUnavailableError:
            raise
        except (ModcryptError, OSError):
            continue  # the task reports the error as a row
