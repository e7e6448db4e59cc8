"""Assignment of the files of a Spark job to tasks."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["assign_tasks"]

TASKS_PER_SLOT = 4
"""Minimum number of tasks per slot, so that the last tasks end at about the same time."""

MAX_TASKS = 100_000
"""Maximum number of tasks of a job, as Spark's driver keeps each in memory; beyond it, tasks become
larger."""

LEAST_FILES, LEAST_BYTES = 16, 8 << 20
"""Files and bytes that a task always accepts: less is not worth starting a task, about 30 ms."""


def assign_tasks(sizes: Sequence[int], *, files: int, size: int, slots: int) -> list[int]:
    """Return the task number of each file; the largest tasks come first, and so start first.

    Args:
        sizes: Sizes of the files; neighbours stay together.
        files: Maximum number of files of a task, exceeded only to keep to `MAX_TASKS`.
        size: Maximum number of bytes of a task; a larger file is a task of its own, and `MAX_TASKS`
            takes precedence.
        slots: Number of tasks that run concurrently.

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
