"""The files of a dataset, listed one by one in the order of their paths, and its undeclared files.

A listing holds one local folder, or one folder below the dataset's in a store, in memory. It
follows symbolic links for reading, except to what it lists anyway.
"""

from __future__ import annotations

import datetime
import fnmatch
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from modcrypt.io.places import Place
from modcrypt.io.stores import forget_listings, is_arrow
from modcrypt.jobs.listing import Folder
from modcrypt.lake.spool import BLOCK, Spool
from modcrypt.parquet.datasets.discovery import as_arrow, is_hidden, read_hidden
from modcrypt.pkmt1.material import STORE_NAME, external_name

CLOCK_TICK = 10_000_000
"""Nanoseconds within which two changes of a local file may have the same time."""

STORE_TICK = 2_000_000_000
"""The same for objects in stores whose listings contain only full seconds."""

_MATERIAL = external_name("").removesuffix(".json")


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a dataset, as listed."""

    path: str  # path inside the dataset; the name of the file if it is the dataset
    size: int  # size in bytes
    # Text that changes with the file or its external key material; empty if unknown.
    stamp: str = field(compare=False)
    # Time of change in seconds since 1970; None if the file system keeps none.
    modified: float | None = field(default=None, compare=False)


class LakeFiles:
    """The files of a dataset and of its source folder. Each iteration lists them again.

    Args:
        include: Pattern that the paths of its files match; None for all visible files.
        source: Folder whose plaintext files are encrypted into the dataset; None for none.
        parts: Paths inside the dataset of the files and folders to list; none for all.
        may_be_empty: Whether the dataset needs no files, as with a source.
        is_claimed: Function that returns whether a file that `include` does not match is of another
            dataset, or of the declaration, by its path inside the dataset.
    """

    def __init__(
        self, root: Folder, include: str | None = None, source: Folder | None = None,
        parts: Sequence[str] = (), *, may_be_empty: bool = False,
        is_claimed: Callable[[str], bool] = lambda path: False,
    ) -> None:  # fmt: skip
        self.root, self.source, self.parts = root, source, parts
        self.is_claimed = is_claimed
        self._may_be_empty = may_be_empty or source is not None
        is_file = source is None and not root.is_folder
        self._matches = None if include is None or is_file else make_matcher(include)
        self.strays: Spool[str] = Spool()
        """Paths of visible files that `include` does not match, after an iteration."""
        self.claimed: Spool[str] = Spool()
        """Paths of those that are claimed, which are not undeclared."""
        self.links: Spool[str] = Spool()
        """Paths of links to what is listed anyway, so that other readers read it twice."""
        self.absent: Spool[str] = Spool()
        """Paths of files that are not there, while their key material is."""

    def __iter__(self) -> Iterator[LakeFile]:
        """Yield the files of the dataset.

        Raises:
            FileNotFoundError: The folder does not exist, and files must.
            ValueError: There are no files, and must be.
            OSError: A folder cannot be listed.
        """
        self.strays, self.links, self.absent = Spool(), Spool(), Spool()
        self.claimed = Spool()
        found = False
        try:
            for file in self._list_parts():
                found = True
                if self._is_included(file.path):
                    yield file
                else:
                    is_claimed = self.is_claimed(file.path)
                    (self.claimed if is_claimed else self.strays).append(file.path)
        except FileNotFoundError:
            if found or not self._may_be_empty:
                raise
        if not (found or self._may_be_empty):
            name = self.root.name
            raise ValueError(f"{name}: no files found; name a file, or a folder with files")

    def _list_parts(self) -> Iterator[LakeFile]:
        if not self.parts:
            yield from list_folder(self.root, self._note_link, self.absent.append)
        seen = set[str]()
        for part in self.parts:
            folder = Folder.at(self.root.file(part))
            above = part if folder.is_folder else posixpath.dirname(part)
            for file in list_folder(folder):
                path = posixpath.join(above, file.path)
                if path not in seen:
                    seen.add(path)
                    yield replace(file, path=path)

    def _note_link(self, path: str) -> None:
        if self._is_included(path) or os.path.isdir(os.path.join(self.root.place.path, path)):
            self.links.append(path)

    def _is_included(self, path: str) -> bool:
        return self._matches is None or bool(self._matches(path))

    def list_waiting(self) -> Iterator[tuple[LakeFile, bool]]:
        """Yield the files of the source folder whose encrypted copy is missing or older.

        With each, yield whether it has changed since it was encrypted. Raise FileNotFoundError or
        OSError as iterating.
        """
        if self.source is None:
            return
        for file in list_folder(self.source):
            copy = self.root.place.below(file.path)
            if not self._is_included(file.path):
                continue
            if not copy.exists():
                yield file, False
            elif _is_older(copy, self.source.place.below(file.path)):
                yield file, True


def _is_older(copy: Place, original: Place) -> bool:
    before, after = original.modified(), copy.modified()
    return before is not None and after is not None and after < before


def make_matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that matches the ends of paths with a pattern, like `PurePath.match`."""
    if "/" in pattern:
        return lambda path: PurePosixPath(path).match(pattern)
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda path: match(path.rpartition("/")[2])


def list_folder(
    folder: Folder, note_link: Callable[[str], object] = str,
    note_absent: Callable[[str], object] = str,
) -> Iterator[LakeFile]:  # fmt: skip
    """Yield the visible files of a folder as its readers see them, or a single file; sorted.

    `note_link` is called with the path of each link to what is listed anyway, `note_absent` with
    that of each file which only its key material names.

    Raises:
        FileNotFoundError: The folder does not exist.
        OSError: A folder cannot be listed.
        FormatError: A note about a write is damaged.
    """
    place = folder.place
    if not folder.is_folder:
        yield _describe_file(place)
        return
    is_local = place.filesystem is None
    listing: _LocalListing | _StoreListing = _StoreListing(place, note_absent)
    if is_local:
        listing = _LocalListing(place, note_link, note_absent)
    for files in listing.list_folders():  # notes hide files while a write is in progress
        hidden = read_hidden(place)
        yield from (file for file in files if file.path not in hidden)


def _find_absent(materials: Collection[str], known: Collection[str]) -> Iterator[str]:
    """Yield the paths of files that are not known, but named by the paths of key material."""
    for path in sorted(materials):
        folder, name = posixpath.split(path)
        match = STORE_NAME.fullmatch(name)
        data = posixpath.join(folder, match[1]) if match else path
        if data not in known:
            yield data


def _describe_file(place: Place) -> LakeFile:
    if place.filesystem is None:
        status = os.stat(place.path)
        beside = _stat_or_none(os.path.join(os.path.dirname(place.path), external_name(place.name)))
        return _describe_local(place.name, status, beside)
    info = as_arrow(place.filesystem).get_file_info(place.path)
    if not info.is_file:
        raise FileNotFoundError(2, os.strerror(2), place.full_name)
    stamp = place.stamp()
    text = "" if stamp is None else str(stamp)
    return LakeFile(place.name, info.size or 0, text, place.modified())


def make_stamp(status: os.stat_result, beside: os.stat_result | None = None) -> str:
    """Return the stamp of a local file and of the external key material beside it."""
    # It contains the time of the last change of the inode, which nobody can set, unlike the time of
    # the last change of the contents. A file that changed just now may change again within the same
    # tick of the clock, so this waits for the next one.
    stamp = _stamp_inode(status)
    return stamp if beside is None else _join_stamps(stamp, _stamp_inode(beside))


def _join_stamps(stamp: str, other: str) -> str:
    """Return the stamp of a file and its material; empty, which is unknown, if one is."""
    return f"{stamp} {other}" if stamp and other else ""


def _stamp_inode(status: os.stat_result) -> str:
    now, changed = time.time_ns(), status.st_ctime_ns
    if changed > now - CLOCK_TICK:
        if changed > now:  # the clocks differ, so the next change may have the same time
            return ""
        time.sleep(CLOCK_TICK / 1e9)
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {changed}"


def _describe_local(path: str, status: os.stat_result, beside: os.stat_result | None) -> LakeFile:
    return LakeFile(path, status.st_size, make_stamp(status, beside), status.st_mtime)


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


class _LocalListing:
    """The listing of a local folder."""

    def __init__(
        self, place: Place, note_link: Callable[[str], object], note_absent: Callable[[str], object]
    ) -> None:
        self._note_link, self._note_absent = note_link, note_absent
        self._root = place.path.rstrip("/") or "/"
        self._real = os.path.join(os.path.realpath(self._root), "")
        self._linked: list[str] = []  # real paths of folders that links lead to

    def list_folders(self) -> Iterator[list[LakeFile]]:
        """Yield lists of files of one folder each."""
        yield from self._list_below(self._root, "")

    def _list_below(self, folder: str, prefix: str) -> Iterator[list[LakeFile]]:
        with os.scandir(folder) as found:
            entries = list(found)
        materials = {entry.name for entry in entries if entry.name.startswith(_MATERIAL)}
        for name in _find_absent(materials, {entry.name for entry in entries} if materials else ()):
            self._note_absent(prefix + name)
        named = [(entry, self._is_folder(entry)) for entry in entries if entry.name[0] not in "._"]
        named.sort(key=lambda pair: f"{pair[0].name}/" if pair[1] else pair[0].name)
        files: list[LakeFile] = []
        for entry, is_folder in named:
            if not is_folder:
                files += self._describe(entry, prefix, materials)
            if files and (is_folder or len(files) == BLOCK):
                yield files
                files = []
            if is_folder and entry.is_symlink() and self._is_known_folder(entry.path):
                self._note_link(prefix + entry.name)
            elif is_folder:
                yield from self._list_below(entry.path, f"{prefix}{entry.name}/")
        yield files

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError:
            return False

    def _describe(
        self, entry: os.DirEntry[str], prefix: str, materials: set[str]
    ) -> list[LakeFile]:
        """Return the description of a regular file in a list; nothing for others."""
        try:
            status = entry.stat()
        except (OSError, ValueError):  # a link that leads nowhere
            return []
        if not stat.S_ISREG(status.st_mode):
            return []
        if entry.is_symlink() and self._is_listed(os.path.realpath(entry.path)):
            self._note_link(prefix + entry.name)
            return []
        beside = None
        if materials and (material := external_name(entry.name)) in materials:
            beside = _stat_or_none(os.path.join(os.path.dirname(entry.path), material))
        return [_describe_local(prefix + entry.name, status, beside)]

    def _is_listed(self, real: str) -> bool:
        """Return whether a path is that of a visible file or folder of the dataset."""
        return real.startswith(self._real) and not is_hidden(real, self._real)

    def _is_known_folder(self, link: str) -> bool:
        """Return whether a link leads to a folder that is listed anyway, or around the dataset."""
        real = os.path.join(os.path.realpath(link), "")
        known = self._is_listed(real[:-1]) or self._real.startswith(real)
        if known or any(real.startswith(other) for other in self._linked):
            return True
        self._linked.append(real)
        return False


class _StoreListing:
    """The listing of a folder in a store, with one request for a thousand objects.

    Stores list all objects below a folder. To bound the memory, each folder directly below the
    dataset's is listed by itself.
    """

    def __init__(self, place: Place, note_absent: Callable[[str], object]) -> None:
        self._note_absent = note_absent
        self._filesystem, self._base = place.filesystem, place.path.rstrip("/")
        find = _find_arrow if is_arrow(place.filesystem) else _find_fsspec
        self._find: Callable[[Any, str, bool], Iterator[_Object]] = find

    def list_folders(self) -> Iterator[list[LakeFile]]:
        """Yield the files of each folder directly below the dataset's, and those between."""
        forget_listings(self._filesystem)
        top = list(self._find(self._filesystem, self._base, False))
        folders = {found.path.rstrip("/") for found in top if found.is_folder}
        named = {**dict.fromkeys(folders), **{found.path: found for found in top if found.is_file}}
        files: list[_Object] = []
        materials = {found.path: found for found in top if found.is_file}
        self._note_materials(materials)
        for path in sorted(named, key=lambda path: f"{path}/" if path in folders else path):
            if posixpath.basename(path)[:1] in ("_", "."):
                continue
            if (found := named[path]) is not None:
                files.append(found)
                continue
            yield self._describe(files, materials)
            files = []
            below = [entry for entry in self._find(self._filesystem, path, True) if entry.is_file]
            self._note_materials(named_below := {entry.path: entry for entry in below})
            yield self._describe(below, named_below)
        yield self._describe(files, materials)

    def _note_materials(self, known: Collection[str]) -> None:
        """Note the files that only key material names."""
        materials = {path for path in known if posixpath.basename(path).startswith(_MATERIAL)}
        for path in _find_absent(materials, known):
            self._note_absent(path[len(self._base) :].lstrip("/"))

    def _describe(self, found: list[_Object], known: dict[str, _Object]) -> list[LakeFile]:
        files = []
        for entry in sorted(found, key=lambda entry: entry.path):
            if is_hidden(entry.path, self._base):
                continue
            path = entry.path[len(self._base) :].lstrip("/")
            folder, name = posixpath.split(entry.path)
            beside = known.get(posixpath.join(folder, external_name(name)))
            stamp = entry.stamp if beside is None else _join_stamps(entry.stamp, beside.stamp)
            files.append(LakeFile(path, entry.size, stamp, entry.modified))
        return files


@dataclass(frozen=True, slots=True)
class _Object:
    """An object, or a folder, in the listing of a store."""

    path: str
    is_folder: bool
    size: int
    stamp: str
    modified: float | None

    @property
    def is_file(self) -> bool:
        """True for a file: stores represent folders by empty objects."""
        return not self.is_folder and self.path[-1:] != "/"


def _find_arrow(filesystem: Any, folder: str, deep: bool) -> Iterator[_Object]:
    import pyarrow.fs as pafs

    now = time.time_ns()
    for info in filesystem.get_file_info(pafs.FileSelector(folder, recursive=deep)):
        changed = info.mtime_ns
        # PyArrow does not show ETags, so an object that changed just now may change unnoticed.
        known = changed is not None and now - changed > STORE_TICK
        stamp = f"{info.size} {changed}" if known else ""
        is_folder = info.type == pafs.FileType.Directory
        modified = None if changed is None else changed / 1e9
        yield _Object(info.path, is_folder, info.size or 0, stamp, modified)


def _find_fsspec(filesystem: Any, folder: str, deep: bool) -> Iterator[_Object]:
    found = filesystem.find(folder, detail=True).values() if deep else filesystem.ls(folder, True)
    names = ("ETag", "etag", "mtime", "LastModified", "created")
    for info in found:
        path = info["name"]
        if path.rstrip("/") == folder.rstrip("/"):
            continue
        values = [str(info[name]) for name in names if name in info]
        size = info.get("size") or 0
        stamp = " ".join([str(size), *values]) if values else ""
        times = (info.get(name) for name in ("LastModified", "mtime", "created"))
        modified = next((t.timestamp() for t in times if isinstance(t, datetime.datetime)), None)
        yield _Object(path, info["type"] == "directory", size, stamp, modified)
