"""Versions of writers, by the name that a file gives."""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(
    rb"(parquet-mr|parquet-cpp-arrow|parquet-cpp) version (\d+)\.(\d+)\.(\d+)"
)


def is_older(created_by: bytes, application: bytes, version: tuple[int, int, int]) -> bool:
    """Return whether an application before a version wrote a file, according to the file."""
    known = _VERSION.match(created_by)
    if known is None or known[1] != application:
        return False
    return (int(known[2]), int(known[3]), int(known[4])) < version


def is_of(created_by: bytes, application: bytes) -> bool:
    """Return whether a file names an application as its writer."""
    return created_by.lower().startswith(application)
