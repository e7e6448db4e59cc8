"""The files that a job works on: single files, and the visible files of folders.

A name is valid in any process if the folder's name is: an absolute path, a URL, or a path in the
filesystem that the caller's function makes.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeAlias

from modcrypt.io.places import Place, place_of
from modcrypt.io.stores import is_same_store, locate
from modcrypt.report.text import format_count

MakeFilesystem: TypeAlias = Callable[[], Any]
"""Function that makes a pyarrow or fsspec filesystem in each process that needs it, so that no
credentials are sent between processes."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a job."""

    name: str  # name that the library accepts
    size: int
    place: Place  # place of the file in this process
    # What else a task on Spark is given for the file, by name.
    details: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def place_at(name: str, filesystem: Any = None) -> Place:
    """Return the place of a file by its name."""
    place = place_of(name, filesystem)
    assert place is not None  # names are never file objects
    return place


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder or a file by its name, in one process."""

    name: str  # path, URL, or path in `filesystem`
    filesystem: Any = None  # filesystem made in this process; None if the name implies it
    _located: Place | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, where: Any, make: MakeFilesystem | None = None, *, absolute: bool = True) -> Folder:
        """Return the folder at a path or URL.

        If `absolute`, make a local name absolute, so that other processes find it.
        """
        if not isinstance(where, str | os.PathLike):
            raise TypeError(f"a table must be a path or URL, not {type(where).__name__}")
        filesystem = None if make is None else make()
        resolved, path = locate(where, filesystem)
        if resolved is None:
            path = os.path.abspath(path) if absolute else path
            return cls(path, None, Place(None, path))
        return cls(os.fspath(where).rstrip("/"), filesystem)

    @property
    def place(self) -> Place:
        """The place of the folder."""
        return self._located or Place(*locate(self.name, self.filesystem))

    @property
    def members(self) -> tuple[Folder, ...]:
        """The folder itself; several for a `SourceSet`."""
        return (self,)

    @property
    def is_folder(self) -> bool:
        """True if the folder exists and is a folder."""
        place = self.place
        if place.filesystem is None:
            return os.path.isdir(place.path)
        from modcrypt.parquet.datasets.discovery import is_dataset

        return is_dataset(self.name, self.filesystem)

    def file(self, inside: str) -> str:
        """Return the name of a file by its path within the folder; an empty path is the folder."""
        return posixpath.join(self.name, inside) if inside else self.name

    def inside(self, name: str) -> str:
        """Return the path of a file within the folder; empty for the folder itself."""
        return name[len(self.name) :].lstrip("/")

    def place_of(self, name: str) -> Place:
        """Return the place of a file to replace; writing follows no link below the folder."""
        inside = self.inside(name)
        return self.place.below(inside) if inside else self.place


@dataclass(frozen=True, slots=True)
class SourceSet(Folder):
    """Files and folders that a command converts in place, or into a folder under their names."""

    _members: tuple[Folder, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> SourceSet:
        """Return the sources with these names, which are paths or URLs."""
        members = tuple(Folder.at(name, absolute=False) for name in names)
        return cls(", ".join(names), _members=members)

    @property
    def members(self) -> tuple[Folder, ...]:
        """The named files and folders."""
        return self._members

    def inside(self, name: str) -> str:
        """Return the path that a file has within a destination."""
        member = self._find_member(name)
        return posixpath.join(posixpath.basename(member.name), member.inside(name)).rstrip("/")

    def place_of(self, name: str) -> Place:
        """Return the place of a file in its source."""
        return self._find_member(name).place_of(name)

    def _find_member(self, name: str) -> Folder:
        return next(
            member
            for member in self._members
            if name == member.name or name.startswith(f"{member.name.rstrip('/')}/")
        )


class NamedFiles(NamedTuple):
    """The files at paths that a caller names."""

    files: list[File]
    root: str | None  # path of the only folder that is named; None for files and several folders


def find_named_files(
    paths: Sequence[str], glob: str | None, links: list[Place] | None = None
) -> NamedFiles:
    """Return the files at paths, and those in folders whose paths there match `glob`, if given.

    `links` is as in `list_tables`.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: A folder has no matching files.
    """
    folders = [Folder.at(path, absolute=False) for path in paths]
    if len(folders) == 1:
        root = paths[0] if folders[0].is_folder else None
        return NamedFiles(list_tables(folders, glob=glob, links=links), root)
    unique: dict[str, File] = {}
    for folder in folders:
        for file in list_tables([folder], glob=glob, links=links):
            unique.setdefault(file.place.full_name, file)
    return NamedFiles(list(unique.values()), None)


def list_tables(
    folders: Sequence[Folder],
    *,
    as_read: bool = False,
    glob: str | None = None,
    without: Sequence[str | None] = (),
    links: list[Place] | None = None,
) -> list[File]:
    """List the files of folders without hidden files, and single files.

    With `as_read`, skip files of an incomplete write, too, as readers of a folder do. The paths of
    files within their folder must match `glob`, unless it is None. `without` has the local paths of
    files to skip, which the run itself writes to. `links` receives links to folders that are listed
    anyway; with it, links to files are files of their own, as for readers.

    Raises:
        FormatError: A write note is damaged.
        FileNotFoundError: A folder or file does not exist.
        ValueError: There are no files, or a URL can't be extended by the paths of files.
    """
    own = {os.path.realpath(path) for path in without if path is not None}
    visible: dict[str, File] = {}
    matching: dict[str, File] = {}
    for folder in folders:
        for file in _list_folder(folder, as_read, links):
            if own and os.path.realpath(file.name) in own:
                continue
            visible[file.name] = file
            inside = folder.inside(file.name)
            if glob is None or not inside or PurePosixPath(inside).match(glob):
                matching[file.name] = file
    names = ", ".join(folder.name for folder in folders)
    if not visible:
        raise ValueError(f"{names}: no files found; name a file, or a folder with files")
    if not matching:
        raise ValueError(f"{names}: none of {format_count(len(visible), 'file')} matches {glob}")
    return list(matching.values())


def _list_folder(folder: Folder, as_read: bool, links: list[Place] | None) -> list[File]:
    place, is_local = folder.place, folder.place.filesystem is None
    files = _list_local(folder, place, links) if is_local else _list_store(folder, place)
    if as_read and folder.is_folder:
        from modcrypt.parquet.datasets.discovery import read_notes

        hidden = {folder.file(name) for note in read_notes(place).values() for name in note.hidden}
        files = [file for file in files if file.name not in hidden]
    return files


def _list_local(folder: Folder, place: Place, links: list[Place] | None) -> list[File]:
    if not os.path.isdir(place.path):
        return [File(folder.name, os.stat(place.path).st_size, place)]
    from modcrypt.parquet.datasets.discovery import list_files  # not to be loaded for a file

    files = list_files(place, None, every_link=links is not None, folder_links=links)
    paths = [file.path for file in files]
    return [File(path, os.stat(path).st_size, Place(None, path)) for path in paths]


def _list_store(folder: Folder, place: Place) -> list[File]:
    """Return the files in a store, without a request per file."""
    from modcrypt.parquet.datasets.discovery import as_arrow, list_files, list_sizes

    filesystem, base = place.filesystem, place.path
    if not folder.is_folder:
        only = list_files(place, None)[0]  # raises if the file does not exist
        return [File(folder.name, as_arrow(filesystem).get_file_info(only.path).size or 0, only)]
    files = [
        File(folder.file(path[len(base) :].lstrip("/")), size, Place(filesystem, path))
        for path, size in list_sizes(filesystem, base).items()
    ]
    for file in files[:1]:
        _check_spelling(folder, place, folder.inside(file.name))
    return files


def _check_spelling(folder: Folder, place: Place, inside: str) -> None:
    """Raise ValueError if a path can't be appended to the name, as for a URL with a query."""
    path = Folder(folder.file(inside), folder.filesystem).place.path
    if path.lstrip("/") != posixpath.join(place.path, inside).lstrip("/"):
        raise ValueError(
            f"{folder.name}: the URL can't be extended by the paths of files; name the files"
        )


def check_apart(source: Folder, destination: Folder) -> None:
    """Check that a folder may receive the converted files of another."""
    origin, target = source.place, destination.place
    if target.filesystem is None and os.path.isfile(target.path):
        raise NotADirectoryError(
            errno.ENOTDIR, "the source is a folder, so the destination must be one", target.path
        )
    if not is_same_store(origin.filesystem, target.filesystem):
        return
    inner, outer = (place.resolve().path.rstrip("/") for place in (target, origin))
    if inner == outer:
        raise ValueError(
            "source and destination are the same folder; to replace the files, work in place "
            "(destination=None)"
        )
    if inner.startswith(f"{outer}/"):
        raise ValueError(
            "the destination lies within the source, so the next run would convert its files again;"
            " choose a folder outside the source"
        )
