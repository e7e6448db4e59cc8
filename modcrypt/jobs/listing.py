"""The files that a job works on: single files, and the visible files of folders.

`verify` lists a dataset once, and processes this listing in threads and on Spark: what it does not
name is not verified.

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
from typing import TYPE_CHECKING, Any, TypeAlias

from modcrypt.errors import list_names
from modcrypt.io.places import Place, place_of
from modcrypt.io.stores import is_same_store, locate
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # these load PyArrow, which listings for usage errors do not need
    from modcrypt.parquet.format.findings import Finding
    from modcrypt.parquet.signatures.signers import DatasetSeal

MAX_LISTED = 20
"""Maximum number of names listed in one message."""

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

    @property
    def inside(self) -> str:
        """The path inside the folder whose listing has the file; empty for a single file."""
        root = self.place.root
        return "" if root is None else self.place.path[len(root) :].lstrip("/")


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
            raise TypeError(f"a file or folder must be a path or URL, not {type(where).__name__}")
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
        members = tuple(folders_of(names, absolute=False))
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


def folders_of(
    where: Any, make: MakeFilesystem | None = None, *, absolute: bool = True
) -> list[Folder]:
    """Return the folders and files at a path or URL, or at several; raise as `Folder.at`."""
    several = where if isinstance(where, list | tuple) else [where]
    return [Folder.at(name, make, absolute=absolute) for name in several]


def only_folder(folders: Sequence[Folder]) -> str | None:
    """Return the name of the only folder, the root of its files; None for files and several."""
    return folders[0].name if len(folders) == 1 and folders[0].is_folder else None


def find_named_files(folders: Sequence[Folder], glob: str | None = None) -> list[File]:
    """Return the files of folders and single files, each once; `glob` is as in `list_tables`.

    Raise FileNotFoundError if a folder or file does not exist; and ValueError if a folder has no
    matching files.
    """
    listed = (file for folder in folders for file in list_tables([folder], glob=glob))
    return list({file.place.full_name: file for file in listed}.values())


def list_tables(
    folders: Sequence[Folder], *, as_read: bool = False, glob: str | None = None,
    without: Sequence[str | None] = (), links: list[Place] | None = None,
) -> list[File]:  # fmt: skip
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
            if glob is None or not file.inside or PurePosixPath(file.inside).match(glob):
                matching[file.name] = file
    names = ", ".join(folder.name for folder in folders)
    if not visible:
        raise ValueError(f"{names}: no files found; name a file, or a folder with files")
    if not matching:
        raise ValueError(f"{names}: none of {format_count(len(visible), 'file')} matches {glob}")
    return list(matching.values())


def _list_folder(folder: Folder, as_read: bool, links: list[Place] | None) -> list[File]:
    """Return the files of a folder or a single file, without a request per file of a store."""
    place = folder.place
    if place.filesystem is None and not os.path.isdir(place.path):
        return [File(folder.name, os.stat(place.path).st_size, place)]
    from modcrypt.parquet.datasets.discovery import find_hidden, list_sized_files  # slow to load

    sized = list_sized_files(place, None, every_link=links is not None, folder_links=links)
    hidden = {found.path for found in find_hidden([found for found, _ in sized])} if as_read else ()
    inside = [found.path[len(place.path) :].lstrip("/") for found, _ in sized]
    if not any(inside):  # the folder is a file, or empty
        return [File(folder.name, size, found) for found, size in sized]
    names = [posixpath.join(folder.name, path) for path in inside]
    if place.filesystem is not None:  # a path can't be appended to a URL with a query
        _, path = locate(names[0], folder.filesystem)
        if path.lstrip("/") != posixpath.join(place.path, inside[0]).lstrip("/"):
            raise ValueError(
                f"{folder.name}: the URL can't be extended by the paths of files; name the files"
            )
    return [
        File(name, size, found)
        for name, (found, size) in zip(names, sized, strict=True)
        if found.path not in hidden
    ]


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The files of folders, and single files, each listed once."""

    files: list[File]  # files that readers read, sorted by path
    hidden: list[Place]  # files that notes about writes hide from readers of their folder
    folders: list[Folder]  # folders and files that were named, without those that have no files
    # Findings about files that the required seal names, and that are not there.
    missing: list[Finding]
    links: list[Place]  # symbolic links to folders whose files are listed anyway

    @property
    def linked_files(self) -> list[Place]:
        """The files that are symbolic links to others: jobs that write process each file once."""
        linked = [file.place for file in self.files if file.place.is_linked]
        own = {file.place.resolve().path for file in self.files if file.place not in linked}
        return [place for place in linked if place.resolve().path in own]


def list_dataset(
    source: Any, seal: DatasetSeal | None = None, *, glob: str | None = None, filesystem: Any = None
) -> DatasetFiles:
    """List the files of folders without hidden files, and single files.

    Args:
        source: Path or URL of a folder or file, or several.
        seal: Seal that the caller requires: files that it names and that are missing are findings,
            even if nothing else is left of a folder.
        glob: Pattern that the paths of files inside their folder must match; None for all.

    Raises:
        FileNotFoundError: A folder or file does not exist, and the seal names nothing in it.
        ValueError: A folder has no matching files, and the seal names none; or notes hide all.
        FormatError: A note about a write is damaged.
    """
    from modcrypt.jobs.set_findings import compare_with_seal
    from modcrypt.parquet.datasets.discovery import find_hidden
    from modcrypt.parquet.datasets.write_notes import NOTES

    make = None if filesystem is None else lambda: filesystem
    if not (folders := folders_of(source, make, absolute=False)):
        raise ValueError("there are no files: the list is empty")
    files: dict[str, File] = {}
    found = DatasetFiles([], [], [], [], [])
    for folder in folders:
        try:
            listed, fault = list_tables([folder], glob=glob, links=found.links), None
        except (FileNotFoundError, ValueError) as error:
            listed, fault = [], error
        hidden = find_hidden([file.place for file in listed])
        names = {place.path for place in hidden}
        shown = [file for file in listed if file.place.path not in names]
        missing, place = [], folder.place
        if seal is not None and [file.place for file in shown] != [place]:
            paths = [file.inside for file in shown]
            missing = compare_with_seal(seal.with_root(place), place, paths, MAX_LISTED)
        if fault is not None and not missing:
            raise fault
        if shown or not missing:
            found.folders.append(folder)
        found.missing.extend(missing)
        found.hidden.extend(hidden)
        files |= {file.place.full_name: file for file in shown}
    found.files.extend(sorted(files.values(), key=lambda file: file.place.path))
    if not (files or found.missing):
        first = list_names([place.listed_name for place in found.hidden], MAX_LISTED)
        raise ValueError(f"notes in {NOTES} hide all files from readers: {first}")
    return found


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
