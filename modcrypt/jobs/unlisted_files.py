"""Files around a dataset that are not part of it: hidden files and leftover key material."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import Any

import pyarrow.fs as pafs

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.parquet.datasets.discovery import as_arrow, walk_local_paths


def list_surrounding_files(where: Any, filesystem: Any) -> tuple[list[Place], list[Place]]:
    """List all files in folders, including hidden files, and all files beside single files.

    Args:
        where: Path or URL of a file or folder, or a list of them.
        filesystem: The pyarrow or fsspec filesystem of `where`.

    Returns:
        Files within the given folders, and files in the same folders as given files; both sorted.

    Raises:
        OSError: A folder can't be listed.
    """
    within: dict[str, Place] = {}
    beside: dict[str, Place] = {}
    for path_or_url in where if isinstance(where, list | tuple) else [where]:
        place = Place(*locate(path_or_url, filesystem))
        is_folder = _is_folder(place)
        folder = place.path if is_folder else posixpath.dirname(place.resolve().path)
        for path in _walk_paths(place.filesystem, folder, deep=is_folder):
            file = Place(place.filesystem, path)
            (within if is_folder else beside).setdefault(file.resolve().path, file)
    lists = [sorted(files.values(), key=lambda file: file.path) for files in (within, beside)]
    return lists[0], [file for file in lists[1] if file.resolve().path not in within]


def _is_folder(place: Place) -> bool:
    if place.filesystem is None:
        return os.path.isdir(place.path)
    info = as_arrow(place.filesystem).get_file_info(place.path)
    return bool(info.type == pafs.FileType.Directory)


def _walk_paths(filesystem: Any, folder: str, *, deep: bool) -> Iterator[str]:
    if filesystem is None:
        yield from walk_local_paths(folder or ".", hidden=True, deep=deep)
        return
    if hasattr(filesystem, "invalidate_cache"):  # fsspec may cache an old listing
        filesystem.invalidate_cache()
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=deep)
    for info in as_arrow(filesystem).get_file_info(selector):
        if info.is_file and not info.path.endswith("/"):  # empty objects that stand for folders
            yield info.path
