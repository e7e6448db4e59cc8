"""Jobs that are killed, fail or are not alone, at each of their steps."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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


_KILLED_AT_EVERY_STEP = """
import shutil, sys
from functools import partial
from pathlib import Path
from tests.support.crash import WRITING
from tests.support.killed import copy_folder, kill_at_each_step

lake, steps, stride, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
{}
print(*kill_at_each_step(job, partial(copy_folder, lake), steps, WRITING, int(stride)))
shutil.rmtree(steps / "first")
"""


def kill_at_every_step(
    script: str, lake: Path, *arguments: object, stride: int = 1, least: int = 10
) -> Iterator[Path]:
    """Kill a job at each of its steps, and last let it end; yield the copies of a folder.

    Args:
        script: Definition of `job`, which takes the folder that the copy is in, and returns
            whether it did what it should; it knows the further arguments as `arguments`.
        lake: The folder.
        arguments: Arguments of the script.
        stride: Of so many steps one is tried.
        least: Number of steps that the job has at least.
    """
    steps = lake.parent / "steps"
    process = run(_KILLED_AT_EVERY_STEP.format(script), lake, steps, stride, *arguments)
    ends = process.communicate(timeout=600)[0].split()
    assert process.returncode == 0
    assert (ends[-1], set(ends[:-1])) == ("0", {"-9"})
    assert len(ends) > least, ends
    for step in sorted(steps.iterdir()):
        yield step / lake.name
        shutil.rmtree(step)


def run_together(script: str, *arguments: Sequence[object]) -> list[Any]:
    """Run a script once for each arguments, at the same time; return the JSON that each prints.

    The scripts print a line and wait for one before they begin.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(run(script, *each)) for each in arguments]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=600)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(text) for text in printed]


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
