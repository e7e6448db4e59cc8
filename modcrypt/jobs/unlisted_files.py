"""What lies around the files of a dataset, and is none of it: hidden files, stray key material."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import Any

import pyarrow.fs as pafs

from modcrypt.io.storage import Place, locate
from modcrypt.parquet.datasets.discovery import as_arrow

__all__ = ["files_around"]


def files_around(where: Any, filesystem: Any) -> tuple[list[Place], list[Place]]:
    """List all files in folders, hidden ones too; and those in the same folders as single files.

    Args:
        where: path or URL of a file or folder, or a list of them.
        filesystem: of pyarrow or fsspec, in which `where` is.

    Returns:
        Files within the folders that are given, and files beside those that are; sorted.

    Raises:
        OSError: a folder can't be listed.
    """
    within: dict[str, Place] = {}
    beside: dict[str, Place] = {}
    for one in where if isinstance(where, list | tuple) else [where]:
        place = Place(*locate(one, filesystem))
        is_folder = _is_folder(place)
        folder = place.path if is_folder else posixpath.dirname(place.real().path)
        for path in _paths(place.filesystem, folder, deep=is_folder):
            found = Place(place.filesystem, path)
            (within if is_folder else beside).setdefault(found.real().path, found)
    sorted_ones = [sorted(some.values(), key=lambda one: one.path) for some in (within, beside)]
    return sorted_ones[0], [one for one in sorted_ones[1] if one.real().path not in within]


def _is_folder(place: Place) -> bool:
    if place.filesystem is None:
        return os.path.isdir(place.path)
    found = as_arrow(place.filesystem).get_file_info(place.path)
    return bool(found.type == pafs.FileType.Directory)


def _paths(filesystem: Any, folder: str, *, deep: bool) -> Iterator[str]:
    if filesystem is None:
        yield from _local_paths(folder or ".", deep)
        return
    if hasattr(filesystem, "invalidate_cache"):  # fsspec: what it listed before may be old
        filesystem.invalidate_cache()
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=deep)
    for found in as_arrow(filesystem).get_file_info(selector):
        if found.is_file and not found.path.endswith("/"):  # stores' empty objects for folders
            yield found.path


def _local_paths(folder: str, deep: bool) -> Iterator[str]:
    """Walk a folder, each below it once, though links may lead to it again."""
    seen = {os.path.realpath(folder)}
    for base, folders, names in os.walk(folder, onerror=_raised, followlinks=True):
        below = [os.path.join(base, name) for name in folders] if deep else []
        folders.clear()
        for one in below:
            if (real := os.path.realpath(one)) not in seen:
                seen.add(real)
                folders.append(os.path.basename(one))
        for name in names:
            path = os.path.join(base, name)
            if os.path.isfile(path):
                yield path


def _raised(error: OSError) -> None:
    raise error
