"""A progress bar on stderr for work that takes a while, and only where somebody sees it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["progress_bar"]

SHOW_AFTER = 1.0
"""Seconds of work before a bar is worth showing."""

REFRESH_EVERY = 0.1
"""Seconds between two drawings of the bar."""


@contextmanager
def progress_bar(verb: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Give what the library calls with the bytes done, or None where no bar is wanted.

    That is: stderr is no terminal, or NO_COLOR is set (no-color.org: and not empty).
    """
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        yield None
        return
    bar = _Bar(verb, total)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, verb: str, total: int | None) -> None:
        self._verb, self._total = verb, total
        self._next = time.monotonic() + SHOW_AFTER
        self._shown: tuple[Progress, TaskID] | None = None

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REFRESH_EVERY
        if self._shown is None:
            self._shown = self._show()
        bar, task = self._shown
        bar.update(task, completed=done, refresh=True)

    def _show(self) -> tuple[Progress, TaskID]:
        from rich import progress
        from rich.console import Console

        bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = bar.add_task(self._verb, total=self._total)
        bar.start()
        return bar, task

    def close(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()
