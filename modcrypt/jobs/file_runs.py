"""Helpers to process many files in threads, shared by key rotation, shredding and its proof."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from modcrypt.io.places import Place
from modcrypt.parquet.datasets.discovery import list_files

__all__ = ["THREADS", "list_files_except", "process_files"]

THREADS = 4
"""Default number of files processed concurrently; most of the time is spent waiting for IO."""

T = TypeVar("T")


def list_files_except(
    record: str | os.PathLike[str] | None, where: Any, filesystem: Any
) -> list[Place]:
    """Return the files of `list_files` without the record of the run.

    Raises:
        ValueError: The record is not a regular file.
        FileNotFoundError: `where` does not exist.
    """
    record_path = None if record is None else os.path.realpath(record)
    if record_path is not None and os.path.exists(record_path) and not os.path.isfile(record_path):
        raise ValueError(f"record is not a regular file: {record_path}")
    return [place for place in list_files(where, filesystem) if place.resolve().path != record_path]


def process_files(
    places: list[Place],
    work: Callable[[Place], T],
    *,
    name: str,
    threads: int | None,
    progress: Callable[[T, int], object] | None,
) -> list[T]:
    """Return the result of `work` for each file, in order; an exception in `progress` ends it.

    Args:
        places: Places of the files.
        work: Function that processes one file; it returns errors of a file as results.
        name: Name prefix of the threads.
        threads: Number of files processed concurrently; None for `THREADS`.
        progress: Function called in the calling thread with each result and the number of files.
    """
    results: list[T] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads or THREADS, name))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for result in pool.map(work, places):
            results.append(result)
            if progress is not None:
                progress(result, len(places))
    return results
