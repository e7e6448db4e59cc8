"""Watch how local files are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modcrypt.io.sources import FileSource


def watch_reads(monkeypatch: pytest.MonkeyPatch, note: Callable[[int, int], object]) -> None:
    """Call a function with the offset and length of each read of a local file from now on."""
    into, at = FileSource.read_into, FileSource.read_at

    def read_into(self: FileSource, offset: int, view: memoryview) -> None:
        note(offset, len(view))
        into(self, offset, view)

    def read_at(self: FileSource, offset: int, length: int) -> bytes:
        note(offset, length)
        return at(self, offset, length)

    monkeypatch.setattr(FileSource, "read_into", read_into)
    monkeypatch.setattr(FileSource, "read_at", read_at)
