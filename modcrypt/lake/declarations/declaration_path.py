"""Find `modcrypt.toml`; importing this module loads nothing else."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "modcrypt.toml"

NO_DECLARATION = "none"  # value of MODCRYPT_CONFIG that lets no declaration be found


def find_declaration(config: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the path of the declaration; None if there is none.

    It is `config`, the value of MODCRYPT_CONFIG, or the first `modcrypt.toml` in the working
    directory or a folder above it.
    """
    named = config or os.environ.get("MODCRYPT_CONFIG")
    if named:
        return None if named == NO_DECLARATION and not config else Path(named)
    here = Path.cwd()
    found = (folder / FILE_NAME for folder in (here, *here.parents))
    return next((path for path in found if path.is_file()), None)


def is_named(config: str | os.PathLike[str] | None) -> bool:
    """Return whether the user named the declaration, by its path or MODCRYPT_CONFIG."""
    return bool(config or os.environ.get("MODCRYPT_CONFIG"))
