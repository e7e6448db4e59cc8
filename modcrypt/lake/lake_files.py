"""The files of a dataset, and the strays beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from modcrypt.jobs.listing import File, Folder, list_tables


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a dataset.

    Attributes:
        files: Files that belong to the dataset, sorted.
        strays: Paths of visible files in its folder that do not.
    """

    files: Sequence[File]
    strays: Sequence[str] = ()


def list_dataset(root: Folder, include: str | None) -> LakeFiles:
    """List the files of a dataset as its readers see them: without those of incomplete writes.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: There are no files.
    """
    files = list_tables([root], as_read=True)
    if include is None:
        return LakeFiles(sorted(files, key=lambda file: file.name))
    own, strays = [], []
    for file in sorted(files, key=lambda file: file.name):
        inside = root.inside(file.name)
        if not inside or PurePosixPath(inside).match(include):
            own.append(file)
        else:
            strays.append(inside)
    return LakeFiles(own, strays)
