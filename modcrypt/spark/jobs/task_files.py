"""Listing of the files of a Spark job, and their assignment to tasks.

The driver lists files; a task receives names. A name is valid in any process: an absolute path, a
URL, or a path in the filesystem that the caller's function makes.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow.fs as pafs

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.parquet.datasets.discovery import as_arrow, is_dataset, list_files, read_notes

__all__ = ["Folder", "Listing", "MakeFilesystem", "assign_tasks", "list_tables"]

MakeFilesystem: TypeAlias = Callable[[], Any]
"""Function that makes a pyarrow or fsspec filesystem in each process that needs it; it finds its
credentials there, so that none are sent."""

TASKS_PER_SLOT = 4
"""Minimum number of tasks per slot, so that the last tasks end at about the same time."""

MAX_TASKS = 100_000
"""Maximum number of tasks of a job, as Spark's driver keeps each in memory; beyond it, tasks become
larger."""

LEAST_FILES, LEAST_BYTES = 16, 8 << 20
"""Files and bytes that a task always accepts: less is not worth starting a task, about 30 ms."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder or file by its name, in one process; it names the files of a `Listing`.

    Attributes:
        name: Absolute path, URL, or path in `filesystem`.
        filesystem: Filesystem made in this process; None if the name implies it.
    """

    name: str
    filesystem: Any = None

    @classmethod
    def at(cls, where: Any, make: MakeFilesystem | None) -> Folder:
        """Return the folder at a path or URL.

        Raises:
            TypeError: `where` is not a path or URL.
        """
        if not isinstance(where, str | os.PathLike):
            raise TypeError(f"name a table by path or URL, not {type(where).__name__}")
        filesystem = None if make is None else make()
        resolved, path = locate(where, filesystem)
        if resolved is None:
            return cls(os.path.abspath(path))
        return cls(os.fspath(where).rstrip("/"), filesystem)

    @property
    def place(self) -> Place:
        """The place of the folder."""
        return Place(*locate(self.name, self.filesystem))

    @property
    def is_folder(self) -> bool:
        """Whether the folder exists and is a folder."""
        if self.place.filesystem is None:
            return os.path.isdir(self.name)
        return is_dataset(self.name, self.filesystem)

    def file(self, inside: str) -> str:
        """Return the name of a file by its path within the folder."""
        return posixpath.join(self.name, inside) if inside else self.name


@dataclass(frozen=True, slots=True)
class Listing:
    """Files by name, with their sizes in bytes."""

    names: list[str]
    sizes: list[int]


def list_tables(folders: Sequence[Folder], *, as_read: bool = False) -> Listing:
    """List the files of folders without hidden files, and single files.

    Args:
        folders: Folders or files.
        as_read: Whether to skip files that readers of a folder skip, too: those of an incomplete
            write.

    Raises:
        FormatError: A write note is damaged.
        FileNotFoundError: A folder or file does not exist.
        ValueError: There are no files, or a URL can't be extended by the paths of files.
    """
    sizes: dict[str, int] = {}
    for folder in folders:
        place = folder.place
        files = _list_local(folder) if place.filesystem is None else _list_store(folder, place)
        if as_read and folder.is_folder:
            hidden = (name for note in read_notes(place).values() for name in note.hidden)
            for name in hidden:
                files.pop(folder.file(name), None)
        sizes.update(files)
    if not sizes:
        raise ValueError(f"no files in {', '.join(folder.name for folder in folders)}")
    return Listing(list(sizes), list(sizes.values()))


def _list_local(folder: Folder) -> dict[str, int]:
    places = list_files(folder.name, None)
    return {place.path: os.stat(place.path).st_size for place in places}


def _list_store(folder: Folder, place: Place) -> dict[str, int]:
    """Return the sizes of files in a store by name, without a request per file."""
    filesystem, base = place.filesystem, place.path
    if not folder.is_folder:
        only = list_files(folder.name, folder.filesystem)[0]  # raises if the file does not exist
        return {folder.name: as_arrow(filesystem).get_file_info(only.path).size or 0}
    if hasattr(filesystem, "invalidate_cache"):  # fsspec may cache an old listing
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
    """Raise ValueError if a path can't be appended to the name, as for a URL with a query."""
    path = Folder(folder.file(inside), folder.filesystem).place.path
    if path.lstrip("/") != posixpath.join(place.path, inside).lstrip("/"):
        raise ValueError(
            f"{folder.name}: the URL can't be extended by the paths of files; name the files"
        )


# --- tasks ---------------------------------------------------------------------------------------


def assign_tasks(sizes: Sequence[int], *, files: int, size: int, slots: int) -> list[int]:
    """Return the task number of each file; the largest tasks come first, and so start first.

    Args:
        sizes: Sizes of the files; neighbours stay together.
        files: Maximum number of files of a task, exceeded only to keep to `MAX_TASKS`.
        size: Maximum number of bytes of a task; a larger file is a task of its own, and `MAX_TASKS`
            takes precedence.
        slots: Number of tasks that run concurrently.

    Returns:
        Numbers from 0, in the order of the files.
    """
    tasks = TASKS_PER_SLOT * slots
    files = min(files, max(LEAST_FILES, -(-len(sizes) // tasks)))
    size = min(size, max(LEAST_BYTES, -(-sum(sizes) // tasks)))
    tasks_of_files, weights = _fill_tasks(sizes, files, size)
    while len(weights) > MAX_TASKS:
        files, size = 2 * files, 2 * size
        tasks_of_files, weights = _fill_tasks(sizes, files, size)
    largest = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    number = {task: rank for rank, task in enumerate(largest)}
    return [number[task] for task in tasks_of_files]


def _fill_tasks(sizes: Sequence[int], files: int, size: int) -> tuple[list[int], list[int]]:
    """Fill one task after the other; return the task of each file and the bytes of each task."""
    tasks: list[int] = []
    weights: list[int] = []
    count = 0
    for file_size in sizes:
        if not weights or count == files or weights[-1] + file_size > size:
            weights.append(0)
            count = 0
        weights[-1] += file_size
        count += 1
        tasks.append(len(weights) - 1)
    return tasks, weights
