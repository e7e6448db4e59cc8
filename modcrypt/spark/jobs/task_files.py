"""Which files a job of Spark is for, and which of them a task takes.

The driver lists; a task gets names. A name is what the library takes in any process: an absolute
path, a URL, or a path in the file system that the caller's function makes.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow.fs as pafs

from modcrypt.io.storage import Place, locate
from modcrypt.parquet.datasets.discovery import as_arrow, is_dataset, list_files

__all__ = ["Folder", "Listing", "MakeFilesystem", "list_tables", "packed"]

MakeFilesystem: TypeAlias = Callable[[], Any]
"""Makes a file system of pyarrow or fsspec, in each process that needs it: it finds its credentials
there, and none is sent."""

TASKS_PER_SLOT = 4
"""Least tasks for each that can run at once, so that the last ones end at about the same time."""

MAX_TASKS = 100_000
"""Most tasks of a job: Spark's driver keeps each in memory. Of more, tasks are made larger."""

LEAST_FILES, LEAST_BYTES = 16, 8 << 20
"""What a task takes in any case: less is not worth its start, of some 30 ms."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A place by its name, in a process; how `Listing` spells the files in it.

    Attributes:
        name: an absolute path, a URL, or a path in `filesystem`.
        filesystem: made in this process, None where the name tells it.
    """

    name: str
    filesystem: Any = None

    @classmethod
    def at(cls, where: Any, make: MakeFilesystem | None) -> Folder:
        """Take what the caller names.

        Raises:
            TypeError: no path or URL.
        """
        if not isinstance(where, str | os.PathLike):
            raise TypeError(f"tables are given by path or URL, not {type(where).__name__}")
        filesystem = None if make is None else make()
        found, path = locate(where, filesystem)
        if found is None:
            return cls(os.path.abspath(path))
        return cls(os.fspath(where).rstrip("/"), filesystem)

    @property
    def place(self) -> Place:
        """Where that is."""
        return Place(*locate(self.name, self.filesystem))

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and there."""
        if self.place.filesystem is None:
            return os.path.isdir(self.name)
        return is_dataset(self.name, self.filesystem)

    def file(self, inside: str) -> str:
        """Give the name of a file by its path within the folder."""
        return posixpath.join(self.name, inside) if inside else self.name


@dataclass(frozen=True, slots=True)
class Listing:
    """Files by name, with their sizes in bytes."""

    names: list[str]
    sizes: list[int]


def list_tables(folders: Sequence[Folder]) -> Listing:
    """List the files of folders, or those that are named themselves, but for hidden ones.

    Raises:
        FileNotFoundError: one of them is not there.
        ValueError: there are no files; or a URL that takes no paths of files after it.
    """
    found: dict[str, int] = {}
    for folder in folders:
        place = folder.place
        listed = _local(folder) if place.filesystem is None else _stored(folder, place)
        found.update(listed)
    if not found:
        raise ValueError(f"there are no files in {', '.join(one.name for one in folders)}")
    return Listing(list(found), list(found.values()))


def _local(folder: Folder) -> dict[str, int]:
    places = list_files(folder.name, None)
    return {place.path: os.stat(place.path).st_size for place in places}


def _stored(folder: Folder, place: Place) -> dict[str, int]:
    """List with sizes, for which a store is not to be asked once more for each file."""
    filesystem, base = place.filesystem, place.path
    if not folder.is_folder:
        only = list_files(folder.name, folder.filesystem)[0]  # raises for what is not there
        return {folder.name: as_arrow(filesystem).get_file_info(only.path).size or 0}
    if hasattr(filesystem, "invalidate_cache"):  # fsspec: what it listed before may be old
        filesystem.invalidate_cache()
    infos = as_arrow(filesystem).get_file_info(pafs.FileSelector(base, recursive=True))
    inside = {info.path[len(base) :].lstrip("/"): info.size or 0 for info in infos if info.is_file}
    # Stores have empty objects that stand for folders; fsspec takes them for files.
    names = [name for name in sorted(inside) if not name.endswith("/") and not _is_hidden(name)]
    if names:
        _check_spelling(folder, place, names[0])
    return {folder.file(name): inside[name] for name in names}


def _is_hidden(inside: str) -> bool:
    return any(name[:1] in ("_", ".") for name in inside.split("/"))


def _check_spelling(folder: Folder, place: Place, inside: str) -> None:
    """Check that a path after the name leads into the folder: of a URL with a query it doesn't."""
    found = Folder(folder.file(inside), folder.filesystem).place.path
    if found.lstrip("/") != posixpath.join(place.path, inside).lstrip("/"):
        raise ValueError(f"{folder.name}: it takes no paths of files after it: give the files")


# --- tasks ---------------------------------------------------------------------------------------


def packed(sizes: Sequence[int], *, files: int, size: int, slots: int) -> list[int]:
    """Give each file the number of its task; the largest tasks come first, and so start first.

    Args:
        sizes: of the files, in their order; neighbours stay together.
        files, size: most files and bytes of a task, but that one file is a task however large, and
            that there are no more than `MAX_TASKS`.
        slots: tasks that run at once, as far as is known.

    Returns:
        Numbers from 0, in the order of the files.
    """
    tasks = TASKS_PER_SLOT * slots
    files = min(files, max(LEAST_FILES, -(-len(sizes) // tasks)))
    size = min(size, max(LEAST_BYTES, -(-sum(sizes) // tasks)))
    taken, weights = _filled(sizes, files, size)
    while len(weights) > MAX_TASKS:
        files, size = 2 * files, 2 * size
        taken, weights = _filled(sizes, files, size)
    largest = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    number = {task: rank for rank, task in enumerate(largest)}
    return [number[task] for task in taken]


def _filled(sizes: Sequence[int], files: int, size: int) -> tuple[list[int], list[int]]:
    """Fill one task after the other; give the task of each file, and what each task weighs."""
    taken: list[int] = []
    weights: list[int] = []
    count = 0
    for one in sizes:
        if not weights or count == files or weights[-1] + one > size:
            weights.append(0)
            count = 0
        weights[-1] += one
        count += 1
        taken.append(len(weights) - 1)
    return taken, weights
