"""Which files a dataset consists of, and what their places in folders say about their rows.

Folders are named as Hive names them (`country=NO/year=2026`), or as a pyarrow Partitioning says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from modcrypt.io.storage import Place, locate, naming_store
from modcrypt.parquet.crypto.write_notes import NOTES, WriteNote, note_place, read_note

__all__ = [
    "DataFile",
    "Dataset",
    "Folder",
    "as_arrow",
    "discover",
    "is_dataset",
    "list_complete",
    "list_files",
    "read_notes",
]

_STORES = frozenset({"s3", "gcs", "gs", "abfs", "az"})
"""Where folders are made by what is in them; as pyarrow and as fsspec name them."""

_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset: where it is, and what is known of all its rows."""

    path: str
    partition: pc.Expression


@dataclass(frozen=True)
class Dataset:
    """The files of a dataset, in order, and the fields that their folders spell."""

    files: list[DataFile]
    partition_schema: pa.Schema
    filesystem: Any  # that the paths are in; None for the local one
    root: Place | None  # the folder that was listed; None for a list of files


def is_dataset(source: Any, filesystem: Any) -> bool:
    """Tell whether a source is a list of files, or a folder."""
    if isinstance(source, list | tuple):
        return True
    if filesystem is None and not isinstance(source, str | os.PathLike):
        return False
    where, path = locate(source, filesystem)
    if where is None:  # PyArrow takes no names that are not UTF-8
        return os.path.isdir(path)
    return bool(as_arrow(where).get_file_info(path).type == pafs.FileType.Directory)


def discover(source: Any, filesystem: Any, partitioning: Any) -> Dataset:
    """Find the files of a folder, sorted by path, or take those of a list, in its order.

    Files and folders whose names begin with a dot or an underscore are none of the dataset's, nor
    are files of a write that is not complete or was replaced: see `write_notes`.

    Args:
        partitioning: "hive", a pyarrow.dataset.Partitioning with a schema, or None.

    Raises:
        ValueError: there are no files, or those of a list are in several file systems.
        FileNotFoundError: the folder is not there.
    """
    if isinstance(source, list | tuple):
        if not all(isinstance(one, str | os.PathLike) for one in source):
            raise TypeError("a dataset is a list of paths, or a folder")
        places = [locate(one, filesystem) for one in source]
        where, base = (places[0][0] if places else None), ""
        paths = [path for _, path in places]
        if any(place is not where for place, _ in places):
            raise ValueError("the files of a dataset are in one file system: give filesystem=")
    else:
        where, base = locate(source, filesystem)
        paths = _complete_files(where, base)
    if not paths:
        raise ValueError(f"there are no files in {os.fspath(base)!r}" if base else "no files given")
    inside = [path[len(base) :].lstrip("/") for path in paths]
    scheme = _scheme(partitioning, [os.path.dirname(path) for path in inside])
    files = [
        DataFile(path, pc.scalar(True) if scheme is None else _parsed(scheme, below))
        for path, below in zip(paths, inside, strict=True)
    ]
    root = None if isinstance(source, list | tuple) else Place(where, base)
    return Dataset(files, pa.schema([]) if scheme is None else scheme.schema, where, root)


def _parsed(scheme: Any, below: str) -> pc.Expression:
    try:
        return scheme.parse(below)
    except UnicodeError:
        raise ValueError(f"{below!r}: names of files and folders are to be UTF-8") from None


def list_complete(folder: Place) -> list[Place]:
    """List the files of a folder that count: none of a write that is not complete, or replaced."""
    paths = _complete_files(folder.filesystem, folder.path)
    return [Place(folder.filesystem, path, folder.path) for path in paths]


_TRIES = 5  # to list a folder while no write begins or ends


def _complete_files(filesystem: Any, base: str) -> list[str]:
    """List the files below a folder that count, sorted."""
    folder = Place(filesystem, base)
    before = read_notes(folder)
    for _ in range(_TRIES):
        # PyArrow lists no folder with a name in it that is not UTF-8.
        paths = _local_files(base) if filesystem is None else _files(filesystem, base)
        after = read_notes(folder)
        if before == after:
            break
        before = after
    hidden = {name for note in before.values() for name in note.hidden}
    return [path for path in paths if path[len(base) :].lstrip("/") not in hidden]


def read_notes(folder: Place) -> dict[str, WriteNote]:
    """Read the notes in a folder, by the names of their writes.

    Raises:
        ValueError: As `read_note`; or their folder is a symbolic link.
    """
    notes = posixpath.join(folder.path, NOTES)
    if folder.filesystem is None:
        if os.path.islink(notes):
            raise ValueError(f"{notes} is a symbolic link, and notes are not looked for elsewhere")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return _notes_named(folder, os.listdir(notes))
        return {}
    if hasattr(folder.filesystem, "invalidate_cache"):
        folder.filesystem.invalidate_cache()
    selector = pafs.FileSelector(notes, allow_not_found=True)
    found = as_arrow(folder.filesystem).get_file_info(selector)
    return _notes_named(folder, [posixpath.basename(info.path) for info in found if info.is_file])


def _notes_named(folder: Place, names: Sequence[str]) -> dict[str, WriteNote]:
    writes = [name.removesuffix(".json") for name in names if re.fullmatch(r"[\w-]+\.json", name)]
    notes = {name: read_note(note_place(folder, name)) for name in sorted(writes)}
    return {name: note for name, note in notes.items() if note is not None}


def list_files(where: Any, filesystem: Any) -> list[Place]:
    """List a file, or the files in a folder or in several, but for hidden ones; sorted.

    Files of a folder have it as their `root`: they are read through links in it, and not written.

    Args:
        where: path or URL of a file or folder, or a list of them.

    Raises:
        FileNotFoundError: one of them is not there.
    """
    found: dict[str, Place] = {}
    for one in where if isinstance(where, list | tuple) else [where]:
        if not isinstance(one, str | os.PathLike | Place):
            raise TypeError(f"files are given by path or URL, not {type(one).__name__}")
        place = one if isinstance(one, Place) else Place(*locate(one, filesystem))
        for file in _places_at(place):
            # A link and what it leads to are one file: the one that can be written.
            real = file.real().path
            known = found.setdefault(real, file)
            if known is not file and known.is_linked and not file.is_linked:
                found[real] = file
    return sorted(found.values(), key=lambda place: place.path)


def _places_at(place: Place) -> list[Place]:
    """Return the places of a file, or of the files in a folder."""
    if place.filesystem is None:
        is_folder = stat.S_ISDIR(os.stat(place.path).st_mode)  # raises for what is not there
        paths = _local_files(place.path) if is_folder else []
    else:
        info = as_arrow(place.filesystem).get_file_info(place.path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
        is_folder = info.type == pafs.FileType.Directory
        paths = _files(place.filesystem, place.path) if is_folder else []
    if not is_folder:
        return [place]
    return [Place(place.filesystem, path, place.path) for path in paths]


def _local_files(folder: str) -> list[str]:
    """List the files below a folder, each folder once, though links may lead to it again.

    Raises:
        OSError: a folder can't be listed.
    """
    found: list[str] = []
    seen = {os.path.realpath(folder)}
    for base, folders, names in os.walk(folder, onerror=_raised, followlinks=True):
        visible = [os.path.join(base, name) for name in sorted(folders) if name[0] not in "._"]
        folders.clear()
        for below in visible:
            if (real := os.path.realpath(below)) not in seen:
                seen.add(real)
                folders.append(os.path.basename(below))
        paths = [os.path.join(base, name) for name in names if name[0] not in "._"]
        found += [path for path in paths if os.path.isfile(path)]
    return sorted(found)


def _raised(error: OSError) -> None:
    raise error


class Folder:
    """A folder that a dataset is written into."""

    def __init__(self, base: Any, filesystem: Any) -> None:
        self.root = Place(*locate(base, filesystem))
        self.filesystem, self._base = self.root.filesystem, self.root.path
        self._arrow = as_arrow(self.filesystem)
        names = getattr(self.filesystem, "protocol", self._arrow.type_name)
        self._has_folders = _STORES.isdisjoint((names,) if isinstance(names, str) else names)

    def check_empty(self) -> None:
        """Refuse a folder with files in it, hidden ones aside.

        Raises:
            FileExistsError: there are some.
        """
        if _files(self.filesystem, self._base, may_be_absent=True):
            raise FileExistsError(
                errno.EEXIST, "the folder has files in it; they are kept", self._base
            )

    def check_visible(self, path: str) -> None:
        """Refuse the path of a file in the folder that readers of the dataset pass over.

        Raises:
            ValueError: a name in it begins with a dot or an underscore.
        """
        if _is_hidden(path, ""):
            raise ValueError(
                'files and folders whose names begin with "." or "_" are none of a dataset\'s: '
                "change basename_template, the column's name or its value"
            )

    def place(self, path: str) -> Place:
        """Return the place of a file in the folder, and make the folders above it.

        Raises:
            OSError: from the file system; ELOOP if there is a symbolic link in `path`.
        """
        place = self.root.below(path)
        if self.filesystem is None:
            place.make_folder()
        elif self._has_folders:
            self._arrow.create_dir(posixpath.dirname(place.path))
        return place

    def file(self, path: str) -> Place:
        """Return the place of a file in the folder."""
        return self.root.below(path)

    def remove(self, path: str) -> None:
        """Remove a file from the folder, if it is there."""
        self.root.below(path).remove()


def as_arrow(filesystem: Any) -> pafs.FileSystem:
    """Give a file system as one of pyarrow's, for listing; None is the local one."""
    if filesystem is None:
        return pafs.LocalFileSystem()
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    return pafs.PyFileSystem(_NamingHandler(filesystem))


class _NamingHandler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """fsspec's file systems for PyArrow; what goes wrong there names the URL."""

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        with naming_store(self.fs, paths[0] if paths else ""):
            return list(super().get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        with naming_store(self.fs, selector.base_dir):
            return list(super().get_file_info_selector(selector))

    def open_input_file(self, path: str) -> pa.PythonFile:
        with naming_store(self.fs, path):  # pyarrow's own takes every failure for an absent file
            return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")


def _files(filesystem: Any, base: str, *, may_be_absent: bool = False) -> list[str]:
    """Give the paths of the files below a folder, sorted, but for hidden ones."""
    if hasattr(filesystem, "invalidate_cache"):  # fsspec: what it listed before may be old
        filesystem.invalidate_cache()
    selector = pafs.FileSelector(base, allow_not_found=may_be_absent, recursive=True)
    found = as_arrow(filesystem).get_file_info(selector)
    paths = sorted(info.path for info in found if info.is_file)
    # Stores have empty objects that stand for folders; fsspec takes them for files.
    return [path for path in paths if not path.endswith("/") and not _is_hidden(path, base)]


def _is_hidden(path: str, base: str) -> bool:
    return any(name[:1] in ("_", ".") for name in path[len(base) :].split("/"))


def _scheme(partitioning: Any, folders: Sequence[str]) -> Any:
    """Give the partitioning with its schema; None for none."""
    if partitioning is None or isinstance(partitioning, ds.Partitioning):
        return partitioning
    if partitioning != "hive":
        raise ValueError('partitioning is "hive", a pyarrow.dataset.Partitioning or None')
    names: dict[str, None] = {}
    for folder in folders:
        names |= dict.fromkeys(re.findall(r"(?:^|/)([^/=]+)=", folder))
    if not names:
        return None
    texts = ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor="hive")
    values: dict[str, set[str]] = {name: set() for name in names}
    for folder in set(folders):
        for name, value in ds.get_partition_keys(texts.parse(folder + "/")).items():
            if value is not None:
                values[name].add(value)
    fields = [(name, _type_of(values[name])) for name in names]
    return ds.partitioning(pa.schema(fields), flavor="hive")


def _type_of(values: set[str]) -> pa.DataType:
    """Guess as pyarrow does: int32 where every value is one, else a string."""
    whole = all(re.fullmatch(r"-?[0-9]{1,10}", value) and int(value) in _INT32 for value in values)
    return pa.int32() if values and whole else pa.string()
