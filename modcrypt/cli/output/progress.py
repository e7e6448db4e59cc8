"""A progress bar on stderr, shown for long work and on a terminal only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOW_AFTER = 1.0  # seconds of work before a bar is worth showing
REFRESH_EVERY = 0.1  # seconds between two drawings of the bar


@contextmanager
def progress_bar(verb: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the number of bytes done, or None if no bar is wanted.

    No bar is wanted if stderr is not a terminal, or NO_COLOR is set and not empty (no-color.org).
    """
    with _open_bar(verb, total) as bar:
        yield None if bar is None else bar.update


@contextmanager
def files_bar(verb: str) -> Iterator[Callable[[int], object]]:
    """Yield a function to call after each file with the number of all files.

    The bar appears under the conditions of `progress_bar`.
    """
    with _open_bar(verb, None, files=True) as bar:
        done = count(1)
        yield lambda total: None if bar is None else bar.update(next(done), total)


@contextmanager
def batch_bar(verb: str, files: int, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the numbers of bytes and files done.

    The bar appears under the conditions of `progress_bar`. `verb` is the name of the work, such as
    "Encrypting"; `total` is the number of bytes in all files, None if it is unknown.
    """
    with _open_bar(verb, total, of_files=files) as bar:
        yield lambda done, files_done: None if bar is None else bar.update(done, None, files_done)


@contextmanager
def _open_bar(verb: str, total: int | None, **kind: Any) -> Iterator[_Bar | None]:
    """Yield a bar, which is closed at the end; None if no bar is wanted."""
    is_wanted = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    bar = _Bar(verb, total, **kind) if is_wanted else None
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()


class _Bar:
    def __init__(
        self, verb: str, total: int | None, *, files: bool = False, of_files: int | None = None
    ) -> None:
        self._verb, self._total = verb, total
        self._files, self._of_files = files, of_files
        self._start = time.monotonic()
        self._next = self._start + SHOW_AFTER
        self._shown: tuple[Progress, TaskID] | None = None

    def update(self, done: int, total: int | None = None, files_done: int = 0) -> None:
        self._total = self._total if total is None else total
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + REFRESH_EVERY
        if self._shown is None:
            self._shown = self._show()
        bar, task = self._shown
        rate = done / max(now - self._start, REFRESH_EVERY)
        bar.update(
            task, completed=done, total=self._total, rate=rate, files=files_done, refresh=True
        )

    def _show(self) -> tuple[Progress, TaskID]:
        from rich import progress
        from rich.console import Console

        counts: tuple[progress.ProgressColumn, ...] = (
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
        )
        if self._files:
            rate = progress.TextColumn("{task.fields[rate]:.0f} files/s")
            counts = progress.MofNCompleteColumn(), rate
        if self._of_files is not None:
            files = progress.TextColumn(f"{{task.fields[files]}}/{self._of_files} files")
            counts = files, *counts
        bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(), *counts,
            progress.TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False,
            transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        task = bar.add_task(self._verb, total=self._total, rate=0.0, files=0)
        bar.start()
        return bar, task

    def close(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()
