"""The files of a dataset, and the strays beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from modcrypt.jobs.listing import File, Folder, list_tables


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a dataset.

    Attributes:
        files: Files that belong to the dataset, sorted.
        strays: Paths of visible files in its folder that do not.
        waiting: Files of the source folder, by path, whose encrypted copy is missing or older.
    """

    files: Sequence[File]
    strays: Sequence[str] = ()
    waiting: Mapping[str, File] = field(default_factory=dict)


def list_lake_files(root: Folder, include: str | None, source: Folder | None) -> LakeFiles:
    """List the files of a dataset, and those that wait in its source folder.

    Raises:
        OSError, ValueError: As `list_dataset`. With a source, the dataset may not exist yet.
    """
    if source is None:
        return list_dataset(root, include)
    try:
        files = list_dataset(root, include)
    except (FileNotFoundError, ValueError):
        files = LakeFiles(())
    listed = list_dataset(source, include).files
    waiting = {source.inside(file.name): file for file in listed if _waits(file, source, root)}
    return replace(files, waiting=waiting)


def _waits(file: File, source: Folder, root: Folder) -> bool:
    """Return whether the copy of a file is missing, or older than the file."""
    copy = root.place.below(source.inside(file.name))
    if copy.stamp() is None:
        return True
    before, after = file.place.modified(), copy.modified()
    return before is not None and after is not None and after < before


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
