"""Find plaintext that no snapshot names in the folder of an encrypted table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from modcrypt.errors import PlaintextError
from modcrypt.lake.files.file_states import FileState

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.iceberg.verify.key_trees import KeyTree

_WHAT = (
    "no snapshot names it: see where it comes from, and remove it with modcrypt iceberg admin "
    "remove-orphans --foreign"
)


def find_plaintext_orphans(table: IcebergTable, tree: KeyTree) -> Iterator[FileState]:
    """Yield the plaintext files in a table's folder that nothing in it names.

    Raise OSError if the folder cannot be listed.
    """
    from modcrypt.iceberg.verify.orphan_files import judge_strays, list_stored

    folder = table.walk.locations.folders.get(table.metadata.location)
    if folder is None or not tree.whole:
        return
    locations = [each.location for each in tree.lists]
    locations += [each.location for each in tree.manifests]
    locations += [each.location for each in tree.files]
    paths = (table.walk.place(location).path for location in locations)
    reached = set(map(os.path.realpath, paths) if folder.filesystem is None else paths)
    for stray in judge_strays(folder, list_stored(folder), reached):
        if stray.state == "plaintext":
            base = os.path.realpath(folder.path) if folder.filesystem is None else folder.path
            yield FileState(
                path=stray.path.removeprefix(f"{base.rstrip('/')}/"), state="plaintext",
                reason=PlaintextError.word, message=_WHAT, size=stray.size,
            )  # fmt: skip
