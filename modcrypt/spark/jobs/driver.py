"""Driver side of jobs on tables: plan a verb, check the settings, assign files to tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import pyarrow as pa

from modcrypt.errors import KmsUnavailableError, ModcryptError
from modcrypt.jobs.idempotence.shapes import read_decrypted_shape
from modcrypt.jobs.listing import File, Folder, MakeFilesystem, folders_of, list_tables, only_folder
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.kms.proof import Prove
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.file_work import RecordedJob, VerbJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_PER_TASK = 500
BYTES_PER_TASK = 256 << 20

TASKS_PER_SLOT = 4
"""Minimum number of tasks per slot, so that the last tasks end at about the same time."""

MAX_TASKS = 100_000
"""Maximum number of tasks of a job, as Spark's driver keeps each in memory; beyond it, tasks become
larger."""

SLOTS = 32  # number of concurrent tasks if Spark does not report it, as over Spark Connect

LEAST_FILES, LEAST_BYTES = 16, 8 << 20
"""Files and bytes that a task always accepts: less is not worth starting a task, about 30 ms."""

PROBED_FILES = 3  # number of files that are opened before a job, to check that the settings fit


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
    # Which new wraps are proved in each task, as in `modcrypt.jobs.rotate_keys`.
    prove: Prove


TablePlan: TypeAlias = tuple[VerbJob, Sequence[File]]
"""A job and its files, after the checks that need no executor."""


def run_table_job(
    spark: SparkSession, plan: Callable[..., TablePlan], *arguments: Any,
    files_per_task: int = FILES_PER_TASK, bytes_per_task: int = BYTES_PER_TASK, **options: Any,
) -> DataFrame:  # fmt: skip
    """Have Spark run the job that `plan(*arguments, **options)` returns, once.

    Return the report. Spark sends the names to the executors as rows, not within a closure, and the
    report stays on the executors, so the driver holds only the listing. If there are several, two
    have each part of it, because Spark cannot make it again when one is lost.
    """
    from pyspark import StorageLevel

    planned, files = plan(*arguments, **options)
    job = RecordedJob.of(planned)
    columns = name_columns((file.name, file.size) for file in files)
    frame = run_tasks(spark, columns, job.run, job.schema, files_per_task, bytes_per_task)
    if is_local(spark):
        return job.take_over(frame.localCheckpoint())
    level = StorageLevel.MEMORY_AND_DISK_2
    return job.take_over(frame.localCheckpoint(storageLevel=level))


def settings_under(settings: Settings | None, folders: Sequence[Folder]) -> Settings | None:
    """Return the settings for files of a single folder, or of several folders or files.

    Raise TypeError if keys are not given as `Settings`.
    """
    if settings is None:
        return None
    check_settings(settings)
    return settings if (root := only_folder(folders)) is None else settings.under(root)


def _check_reachable(settings: Settings, files: Sequence[File]) -> None:
    """Raise KmsUnavailableError if the key service does not answer for the keys of a file."""
    properties = settings.decryption()
    for file in files[:PROBED_FILES]:
        try:
            read_decrypted_shape(file.place, properties)
            return
        except KmsUnavailableError:
            raise
        except (ModcryptError, OSError):
            continue  # the task reports the error as a row


def plan_verb(
    verb: Verb, where: Any, settings: Settings | None, *,
    filesystem: MakeFilesystem | None = None, **arguments: Any,
) -> TablePlan:  # fmt: skip
    """Plan a verb on files, and check what needs no executor.

    `where` is the path or URL of a folder or file, or a list of them; one folder is the root of
    paths in AAD prefixes. Raise as `encrypt_table`.
    """
    prepared = verb.prepare(**arguments)
    if verb.needs_keys:
        check_settings(settings)
    folders = folders_of(where, filesystem)
    files = list_tables(folders)
    if (settings := settings_under(settings, folders)) is not None:
        if verb.check is not None:
            verb.check(settings, files, **prepared)
        _check_reachable(settings, files)
    names = tuple(folder.name for folder in folders)
    job = VerbJob(
        verb=verb, settings=settings, filesystem=filesystem, folders=names, arguments=prepared
    )
    return job, files


def assign_tasks(sizes: Sequence[int], *, files: int, size: int, slots: int) -> list[int]:
    """Return the task number of each file; the largest tasks come first, and so start first.

    Args:
        sizes: Sizes of the files; neighbours stay together.
        files: Maximum number of files of a task, exceeded only to keep to `MAX_TASKS`.
        size: Maximum number of bytes of a task; a larger file is a task of its own, and `MAX_TASKS`
            takes precedence.

    Returns:
        Numbers from 0, in the order of the files.
    """
    tasks = TASKS_PER_SLOT * slots
    files = min(files, max(LEAST_FILES, -(-len(sizes) // tasks)))
    size = min(size, max(LEAST_BYTES, -(-sum(sizes) // tasks)))
    tasks_of_files, weights = _fill_tasks(sizes, files, size)
    while len(weights) > MAX_TASKS:
        files, size = 2 * files, 2 * size
        tasks_of_files, weights = _fill_tasks(sizes, files, size)
    largest = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    number = {task: rank for rank, task in enumerate(largest)}
    return [number[task] for task in tasks_of_files]


def _fill_tasks(sizes: Sequence[int], files: int, size: int) -> tuple[list[int], list[int]]:
    """Fill one task after the other; return the task of each file and the bytes of each task."""
    tasks: list[int] = []
    weights: list[int] = []
    count = 0
    for file_size in sizes:
        if not weights or count == files or weights[-1] + file_size > size:
            weights.append(0)
            count = 0
        weights[-1] += file_size
        count += 1
        tasks.append(len(weights) - 1)
    return tasks, weights


def run_tasks(
    spark: SparkSession, columns: Mapping[str, pa.Array],
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: pa.Schema,
    files_per_task: int, bytes_per_task: int,
) -> DataFrame:  # fmt: skip
    """Have Spark run a function on rows of files, of which `size` is one column.

    `run` yields result rows, of `schema`, for the batches of a task.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if files_per_task < 1 or bytes_per_task < 1:
        raise ValueError("files_per_task and bytes_per_task must be at least 1")
    sizes, slots = columns["size"].to_pylist(), _count_slots(spark)
    tasks = assign_tasks(sizes, files=files_per_task, size=bytes_per_task, slots=slots)
    frame = spark.createDataFrame(pa.table({"task": pa.array(tasks, pa.int32()), **columns}))
    frame = frame.repartitionById(max(tasks) + 1, "task")
    return frame.mapInArrow(run, from_arrow_schema(schema))


def name_columns(files: Iterable[tuple[str, int]]) -> dict[str, pa.Array]:
    """Return the columns of tasks for files with names, which may be any bytes, and sizes."""
    pairs = list(files)
    return {
        "name": pa.array([os.fsencode(name) for name, _ in pairs], pa.binary()),
        "size": pa.array([size for _, size in pairs], pa.int64()),
    }


def _count_slots(spark: SparkSession) -> int:
    """Return the number of concurrent tasks, or a default if Spark does not report it."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:  # Spark Connect has no context
        return SLOTS


def is_local(spark: SparkSession) -> bool:
    """Return whether tasks run in the driver's process, as far as Spark reports it."""
    try:
        return str(spark.sparkContext.master).startswith("local[")
    except AttributeError:  # Spark Connect has no context
        return False
