"""Jobs in which one step fails: a call of the file system, of a key service or of a hook."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from modcrypt import Key
from modcrypt.kms import pacing
from tests.support.frame_watch import find_secrets
from tests.support.secret_watch import spellings

CALLS = (
    "open",
    "write",
    "pread",
    "preadv",
    "fsync",
    "link",
    "rename",
    "replace",
    "unlink",
    "mkdir",
)
"""Functions of `os` that fail."""


@dataclass
class Steps:
    """Counts calls and makes one of them fail.

    Attributes:
        left: Number of calls before the one that fails; None while nothing fails.
    """

    left: int | None = None

    def take(self, error: BaseException) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left == -1:
            raise error

    def failing(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.take(OSError(errno.EIO, f"{name} failed"))
            return real(*arguments, **options)

        return call

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count calls of the file system from now on, and retry those of a key service at once."""
        monkeypatch.setattr(os, "fsync", lambda fd: None)  # no run outlives this process
        monkeypatch.setattr(pacing, "FIRST_WAIT", 0.0)
        for name in CALLS:
            monkeypatch.setattr(os, name, self.failing(getattr(os, name), name))

    def run(self, job: Callable[[], object], step: int) -> tuple[bool, BaseException | None]:
        """Run a job one step of which fails; return whether it came to that, and its error."""
        self.left, error = step, None
        try:
            job()
        except Exception as raised:
            error = raised
        was_met, self.left = self.left < 0, None
        return was_met, error


def record_keys(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Return a set to which every key is added that modcrypt holds from now on."""
    found: set[bytes] = set()
    real = Key.__init__

    def note(self: Key, value: bytes) -> None:
        found.add(bytes(value))
        real(self, value)

    monkeypatch.setattr(Key, "__init__", note)
    return found


def check_failing_runs(
    job: Callable[[], object],
    steps: Steps,
    folder: Path,
    keys: set[bytes],
    caplog: pytest.LogCaptureFixture,
    numbers: Iterable[int],
) -> None:
    """Fail one step of a job after another; no error carries a key, and no run logs one.

    Args:
        job: The job, which works in a folder.
        steps: The steps of the job, already watched.
        folder: The folder, put back after each run.
        keys: What `record_keys` returned.
        caplog: pytest's fixture.
        numbers: The steps that fail, one in each run; ends with the first the job does not have.
    """
    copy = folder.with_name("before")
    shutil.copytree(folder, copy)
    failures, before = 0, frozenset(keys)
    for step in numbers:
        keys.clear()
        keys |= before
        with caplog.at_level(logging.DEBUG):
            was_met, error = steps.run(job, step)
        if not was_met:
            break
        if error is not None:
            failures += 1
            assert find_secrets(error, *keys) == [], f"step {step}: {error!r}"
        logged = caplog.text.encode()
        assert not any(form in logged for key in keys for form in spellings(key))
        caplog.clear()
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
    assert failures > 1
