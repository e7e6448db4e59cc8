"""The files that a command works on: a single file, or the visible files of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import click

from modcrypt.cli.shared import combine_options

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.io.places import Place

__all__ = ["File", "Files", "files_options", "join_name", "size_of"]

files_options = combine_options(
    click.option(
        "--glob",
        metavar="PATTERN",
        help='For folders: process only files whose path matches PATTERN, for example "*.parquet".',
    ),
    click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        help="For folders: number of files processed concurrently. Default: number of processors.",
    ),
)


@dataclass(frozen=True, slots=True)
class File:
    """A single file, or a file of a folder.

    Attributes:
        name: Path or URL, as the library takes it.
        place: Location of the file.
        inside: Path within the folder; empty for a single file.
    """

    name: str
    place: Place
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Files:
    """The files at a path or URL: one file, or the visible files of a folder.

    Attributes:
        where: The path or URL.
        folder: Whether it is a folder.
        members: The files, sorted by path.
    """

    where: str
    folder: bool
    members: tuple[File, ...]

    @classmethod
    def find(
        cls,
        where: str,
        glob: str | None,
        without: Sequence[str | None] = (),
        *,
        as_read: bool = False,
    ) -> Files:
        """Find the files.

        Args:
            where: Path or URL.
            glob: Pattern that files of a folder must match; None for all.
            without: Paths of files that the run itself writes to, which are skipped.
            as_read: Whether to skip files of incomplete writes, as readers of the folder do.

        Raises:
            FileNotFoundError: The path does not exist.
            click.UsageError: A folder has no matching files.
        """
        from modcrypt.io.places import Place
        from modcrypt.io.stores import locate

        place = Place(*locate(where, None))
        if not _is_folder(where, place):
            return cls(where, False, (File(where, place),))
        from modcrypt.parquet.datasets.discovery import list_files, split_hidden

        places = list_files(where, None)
        if as_read:
            places, _ = split_hidden(places)
        own = {os.path.realpath(path) for path in without if path is not None}
        members = [_make_file(where, place, entry) for entry in places]
        visible = [file for file in members if file.place.resolve().path not in own]
        if not visible:
            raise click.UsageError(f"{where}: no files found; name a file, or a folder with files")
        matching = [file for file in visible if _matches(file.inside, glob)]
        if not matching:
            raise click.UsageError(f"none of the {len(visible)} files in {where} matches {glob}")
        return cls(where, True, tuple(matching))


def _is_folder(where: str, place: Place) -> bool:
    if place.filesystem is None:
        return os.path.isdir(place.path)
    from modcrypt.parquet.datasets.discovery import is_dataset

    return is_dataset(where, None)


def _make_file(where: str, folder: Place, place: Place) -> File:
    inside = place.path[len(folder.path) :].lstrip("/")
    return File(join_name(where, folder, inside), place, inside)


def join_name(where: str, folder: Place, inside: str) -> str:
    """Return a path within a folder as the library takes it: as a path or a URL."""
    if folder.filesystem is None:
        return os.path.join(folder.path, inside)
    from modcrypt.io.stores import locate

    name = f"{where.rstrip('/')}/{inside}"
    path = f"{folder.path.rstrip('/')}/{inside}"
    if locate(name, None)[1].lstrip("/") != path.lstrip("/"):
        raise click.UsageError(
            f"{where}: paths of files cannot be appended to this URL; name the files themselves"
        )
    return name


def _matches(inside: str, glob: str | None) -> bool:
    return glob is None or PurePosixPath(inside).match(glob)


def size_of(place: Place) -> int | None:
    """Return the size of a local file; None for remote files, which would cost a request each."""
    if place.filesystem is not None:
        return None
    try:
        return os.stat(place.path).st_size
    except OSError:
        return None
