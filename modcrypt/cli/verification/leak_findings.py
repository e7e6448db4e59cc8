"""Values beside the files of a folder, which `verify --strict` reports as faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.cli.engines import is_any_typed
from modcrypt.cli.options.parquet_options import decryption_settings

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.format.findings import Finding


def find_leaks_below(paths: Sequence[str], reading: dict[str, Any]) -> list[Finding]:
    """Return the leaks in those of the paths that are folders, by options that name keys."""
    from modcrypt.jobs.leaks.scan import find_leak_faults
    from modcrypt.jobs.listing import Folder

    settings = decryption_settings(reading) if is_any_typed(reading) else None
    folders = [Folder.at(path, absolute=False) for path in paths]
    return [
        finding
        for folder in folders
        if folder.is_folder
        for finding in find_leak_faults(folder.place, settings)
    ]
