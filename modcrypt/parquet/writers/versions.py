"""Versions of writers, by the name that a file gives."""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = rb" version (\d+)\.(\d+)\.(\d+)"


def is_older(created_by: bytes, application: bytes, version: tuple[int, int, int]) -> bool:
    """Return whether an application before a version wrote a file, according to the file."""
    # Early releases of parquet-mr write no version, so that a name without one is old, as it is for
    # parquet-java (`CorruptStatistics`, `CorruptDeltaByteArrays`).
    end = created_by[len(application) :][:1]
    if not created_by.startswith(application) or end not in (b"", b" "):
        return False
    known = re.match(_VERSION, created_by[len(application) :])
    return known is None or (int(known[1]), int(known[2]), int(known[3])) < version


def is_of(created_by: bytes, application: bytes) -> bool:
    """Return whether a file names an application as its writer."""
    return created_by.lower().startswith(application)
