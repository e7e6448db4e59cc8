"""Remove files of a table that the deletion rule allows."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from modcrypt.iceberg.format.table_versions import HINT, METADATA
from modcrypt.io.places import Place
from modcrypt.io.threads import in_threads
from modcrypt.kms.signing.ledger import is_of_seal

JOBS = 4
"""Number of files read or deleted concurrently."""


def is_protected(path: str) -> bool:
    """Return whether a path is that of a metadata.json, a version hint, or a seal of any number."""
    name = posixpath.basename(path)
    return METADATA.fullmatch(name) is not None or name == HINT or is_of_seal(path)


def remove_files(files: Iterable[tuple[str, Place]]) -> list[str]:
    """Delete files that the deletion rule allows; return the locations of remaining files."""

    def remove(file: tuple[str, Place]) -> str | None:
        try:
            file[1].remove()
        except OSError:
            return file[0]
        return None

    return [location for location in in_threads(remove, files, JOBS) if location is not None]
