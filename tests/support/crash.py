"""Jobs that are killed, fail or are not alone, at each of their steps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.paths import ROOT

WRITING = (
    "open", "write", "copy_file_range", "fsync", "fchmod", "replace", "link", "unlink", "close",
)  # fmt: skip
"""Functions of `os` that change files, and those around them."""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python on a script, at the top of the checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def failing(monkeypatch: pytest.MonkeyPatch, name: str, error: int, after: int) -> None:
    real, calls = getattr(os, name), 0

    def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail)


@dataclass
class Meanwhile:
    """The result of `meanwhile`."""

    steps: list[str] = field(default_factory=list)
    waited: bool = False  # the action, for a lock that the job had


@contextlib.contextmanager
def meanwhile(
    job: str, step: int, action: Callable[[], object], without: tuple[str, ...] = ()
) -> Iterator[Meanwhile]:
    """Let an action run in a thread before one of the steps of a job, whose threads are named so.

    It runs to its end, or until it waits for a lock; then the job goes on.
    """
    seen, waiting = Meanwhile(), threading.Event()
    other = threading.Thread(target=action, name="meanwhile")
    lock = fcntl.flock

    def is_job() -> bool:
        return threading.current_thread().name.startswith(job)

    def stepping(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if is_job():
                seen.steps.append(name)
                if len(seen.steps) == step + 1:
                    other.start()
                    while other.is_alive() and not waiting.wait(0.002):
                        pass
            return real(*arguments, **options)

        return call

    def flock(fd: int, operation: int) -> None:
        try:
            lock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_job():
                seen.waited = True
                waiting.set()
            lock(fd, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        for name in (*WRITING, "stat"):
            if name not in without:
                patch.setattr(os, name, stepping(name))
        yield seen
    if other.ident is not None:
        other.join()


def every_step(attempt: Callable[[int], list[str]]) -> list[str]:
    """Try each step until none is left; return the steps of the last attempt."""
    for step in range(200):
        steps = attempt(step)
        if len(steps) <= step:
            return steps
    raise AssertionError("the job never ends")
