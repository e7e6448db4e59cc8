"""Jobs in which one step fails: a call of the file system, of a key service or of a hook."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from modcrypt import Key

CALLS = ("open", "write", "preadv", "fsync", "link", "rename", "replace", "unlink", "mkdir")
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
        """Count calls of the file system from now on."""
        monkeypatch.setattr(os, "fsync", lambda fd: None)  # no run outlives this process
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


def keys_made(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Return a set to which every key is added that modcrypt holds from now on."""
    found: set[bytes] = set()
    real = Key.__init__

    def note(self: Key, value: bytes) -> None:
        found.add(bytes(value))
        real(self, value)

    monkeypatch.setattr(Key, "__init__", note)
    return found
