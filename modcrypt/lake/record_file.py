"""Records beside a declaration: files of lines that no other user may be able to change."""

from __future__ import annotations

import os
from pathlib import Path

from modcrypt.errors import KeyMaterialError
from modcrypt.io.places import Place
from modcrypt.io.private_files import end_line, read_unalterable, replace_private


def read_lines(path: Path, limit: int) -> list[bytes]:
    """Return the lines of a record; none if there is no record.

    Raises:
        ValueError: It is longer than `limit` bytes.
        KeyRetrievalError: Another user may change it.
        OSError: It cannot be read.
    """
    data = _read(path, limit)
    if len(data) > limit:
        raise ValueError(f"{path} is longer than {limit} bytes")
    return data.splitlines()


def append_lines(
    path: Path, lines: bytes, limit: int, *, most: int | None = None, mode: int = 0o600
) -> None:
    """Add lines to a record, which appears as a whole or not at all, also beside other processes.

    Args:
        path: Path of the record.
        lines: The lines, each with its end.
        limit: Size limit of the record in bytes.
        most: Largest number of lines; None for any.
        mode: Mode of the file.

    Raises:
        KeyMaterialError: The record would exceed a limit.
        KeyRetrievalError: Another user may change it.
        OSError: It cannot be written.
    """
    with Place(None, str(path)).lock():
        data = end_line(_read(path, limit)) + lines
        if len(data) > limit:
            raise KeyMaterialError(f"{path} would be longer than {limit} bytes")
        if most is not None and data.count(b"\n") > most:
            raise KeyMaterialError(f"{path} would have more than {most:,} lines")
        replace_private(path, data, check=lambda temporary: os.chmod(temporary, mode))


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_unalterable(path, limit + 1)
    except FileNotFoundError:
        return b""
