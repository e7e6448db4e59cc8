"""The same work on each of many files, some at once: what rotation and shredding have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from modcrypt.errors import ModcryptError
from modcrypt.io.storage import Place
from modcrypt.parquet.datasets.discovery import list_files

__all__ = ["THREADS", "each_file", "files_but", "told"]

THREADS = 4
"""Files at once where the caller says nothing: a disk or store is waited for most of the time."""

T = TypeVar("T")


def files_but(record: str | os.PathLike[str] | None, where: Any, filesystem: Any) -> list[Place]:
    """List files as `list_files` does, but for the record of the run.

    Raises:
        ValueError: the record is no file.
        FileNotFoundError: `where` is not there.
    """
    own = None if record is None else os.path.realpath(record)
    if own is not None and os.path.exists(own) and not os.path.isfile(own):
        raise ValueError(f"the record is no file: {own}")
    return [place for place in list_files(where, filesystem) if place.real().path != own]


def each_file(
    places: list[Place],
    work: Callable[[Place], T],
    *,
    name: str,
    threads: int | None,
    progress: Callable[[T, int], object] | None,
) -> list[T]:
    """Give what `work` makes of each file, in their order; what `progress` raises ends it early.

    Args:
        places: of the files.
        work: raises nothing that is the fault of a file.
        name: of the threads.
        threads: files at once.
        progress: called, in the calling thread, with each result and the number of files.
    """
    results: list[T] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads or THREADS, name))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for done in pool.map(work, places):
            results.append(done)
            if progress is not None:
                progress(done, len(places))
    return results


def told(error: Exception) -> tuple[str, str]:
    """Give the word and the message of what went wrong with one file.

    Raises:
        Exception: it is no fault of a file, and passed on.
    """
    if isinstance(error, ModcryptError):
        return error.word, str(error)
    if isinstance(error, OSError):
        return "file", str(error)
    if isinstance(error, ValueError):  # what a file's names make of a policy
        return "format", str(error)
    raise error
