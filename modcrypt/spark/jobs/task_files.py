"""Assignment of the files of a Spark job to tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_PER_SLOT = 4
"""Minimum number of tasks per slot, so that the last tasks end at about the same time."""

MAX_TASKS = 100_000
"""Maximum number of tasks of a job, as Spark's driver keeps each in memory; beyond it, tasks become
larger."""

SLOTS = 32
"""Number of concurrent tasks if Spark does not report it, as over Spark Connect."""

LEAST_FILES, LEAST_BYTES = 16, 8 << 20
"""Files and bytes that a task always accepts: less is not worth starting a task, about 30 ms."""


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
    spark: SparkSession,
    columns: Mapping[str, pa.Array],
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    files_per_task: int,
    bytes_per_task: int,
) -> DataFrame:
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
