"""Find the lake of a command; without a declaration, nothing heavy is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modcrypt.lake.declarations.declaration_path import find_declaration, is_named

if TYPE_CHECKING:
    from modcrypt.lake.found_lake import FoundLake


def find_lake(file: str | None = None) -> FoundLake | None:
    """Return the lake of a declaration; None if there is none. It is an entry point.

    Args:
        file: Path that the user named; None for MODCRYPT_CONFIG, or the file in the working
            directory or a folder above it.
    """
    try:
        path = find_declaration(file)
    except OSError:  # the working directory was removed, or a folder above cannot be searched
        return None
    if path is None:
        return None
    from modcrypt.lake.found_lake import read_lake

    return read_lake(path, found=not is_named(file))
