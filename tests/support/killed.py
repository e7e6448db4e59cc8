"""Jobs that are killed at each of their steps, in scripts that `tests.support.crash.run` starts."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def kill_at(last: int, names: Iterable[str]) -> None:
    """Have this process die at the call of that number of any of these functions of `os`.

    It dies in the middle of a call of `write`, and before any other.
    """
    calls = itertools.count()
    for name in names:
        setattr(os, name, _killing(getattr(os, name), name, calls, last))


def _killing(
    real: Callable[..., Any], name: str, calls: itertools.count[int], last: int
) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == last:
            if name == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    return call


def copy_folder(folder: Path, step: Path) -> None:
    """Copy a folder into the folder of a step."""
    shutil.copytree(folder, step / folder.name)


def kill_at_each_step(
    job: Callable[[Path], bool],
    prepare: Callable[[Path], None],
    steps: Path,
    names: list[str],
    stride: int = 1,
) -> list[int]:
    """Fork a process for one step after another, which dies in the job when it comes to that step.

    Args:
        job: The job, given the folder of a step; whether it did what it should.
        prepare: Called with the new folder of a step before.
        steps: Folder of the folders; that of a whole run, made first, is `first`.
        names: Functions of `os`, whose calls are the steps.
        stride: Of so many steps one is tried.

    Returns:
        How each process ended: the last one by itself.
    """
    prepare(steps / "first")
    assert job(steps / "first"), "what is imported on the way is there for all"
    ends: list[int] = []
    while not ends or ends[-1] == -signal.SIGKILL:
        last = stride * len(ends)
        prepare(steps / f"{last:04}")
        child = os.fork()
        if not child:
            kill_at(last, names)
            os._exit(not job(steps / f"{last:04}"))
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ends
