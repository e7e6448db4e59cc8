"""Find the files of a dataset, and what their folders state about their rows.

Folders are named in Hive's form (`country=NO/year=2026`), or as a pyarrow Partitioning defines.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from modcrypt.errors import FormatError, KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.io.store_errors import add_url_to_errors
from modcrypt.io.stores import forget_listings, locate, open_stored
from modcrypt.parquet.datasets.write_notes import NOTES, WriteNote, note_place, read_note

if TYPE_CHECKING:  # takes a third of the time of importing PyArrow
    import pyarrow.compute as pc

    from modcrypt.parquet.signatures.signers import DatasetSeal

_STORES = frozenset({"s3", "gcs", "gs", "abfs", "az"})
"""Stores, as named by pyarrow and fsspec, in which folders exist only through their files."""

T = TypeVar("T")

_INT32 = range(-(2**31), 2**31)


class DataFile(NamedTuple):
    """One file of a dataset: its path, and a condition that holds for all its rows."""

    path: str
    partition: pc.Expression | None


class Dataset(NamedTuple):
    """The files of a dataset, in order, and the fields that their folders name."""

    files: list[DataFile]
    partition_schema: pa.Schema
    filesystem: Any  # filesystem of the paths; None for the local one
    root: Place | None  # folder that was listed; None for a list of files

    def check_complete(self, seal: DatasetSeal | None) -> None:
        """Raise IntegrityError if files of the folder are missing that a required seal names."""
        if seal is not None and self.root is not None:  # a list may leave out files
            places = (Place(self.filesystem, file.path) for file in self.files)
            inside = [str(place.inside(self.root)) for place in places]
            seal.with_root(self.root).check_complete(self.root, inside)

    def check_files(self) -> None:
        """Raise ValueError if there are no files."""
        if not self.files:
            raise ValueError(
                "there are no files: the list is empty"
                if self.root is None
                else f"there are no files in {self.root.address!r}"
            )


def leave_out_erased(dataset: Dataset, properties: Any) -> Dataset:
    """Return a dataset without the files that the keys' own declaration says are erased.

    Raise KeyNotFoundError if all files are erased, or one is and must not be left out.
    """
    find = getattr(getattr(properties, "key_retriever", None), "find_erased", None)
    if find is None:
        return dataset
    erased = find([Place(dataset.filesystem, file.path) for file in dataset.files])
    left = [file for file in dataset.files if file.path not in erased]
    if erased and not left:
        raise KeyNotFoundError(f"all {len(erased):,} files are erased")
    return dataset._replace(files=left)


def is_dataset(source: Any, filesystem: Any) -> bool:
    """Return whether a source is a list of files, or a folder."""
    if isinstance(source, list | tuple):
        return True
    if filesystem is None and not isinstance(source, str | os.PathLike):
        return False
    where, path = locate(source, filesystem)
    if where is None:  # PyArrow does not accept names that are not UTF-8.
        return os.path.isdir(path)
    return bool(as_arrow(where).get_file_info(path).type == pafs.FileType.Directory)


def discover(source: Any, filesystem: Any, partitioning: Any) -> Dataset:
    """Return the dataset of a folder's files, sorted by path, or of a list of files, in its order.

    Files and folders whose names begin with a dot or an underscore do not belong to the dataset,
    nor do files of an incomplete write, or files that a write replaced: see `write_notes`.
    `partitioning` is "hive", a pyarrow.dataset.Partitioning with a schema, or None. Raise
    ValueError if the listed files are in several file systems, and FileNotFoundError if the folder
    does not exist. There may be no files: callers compare a required seal before `check_files`.
    """
    if isinstance(source, list | tuple):
        if not all(isinstance(path, str | os.PathLike) for path in source):
            raise TypeError("a dataset must be a list of paths, or a folder")
        places = [locate(path, filesystem) for path in source]
        where, base = (places[0][0] if places else None), ""
        paths = [path for _, path in places]
        if any(place is not where for place, _ in places):
            raise ValueError("the files are in several file systems; pass filesystem=")
    else:
        where, base = locate(source, filesystem)
        paths = [place.path for place in list_complete(Place(where, base))]
    if where is None and not base:
        # AAD prefixes are made from normalised paths, so use those for folders too.
        inside = [os.path.normpath(path).lstrip("/") for path in paths]
    else:
        inside = [path_inside(path, base) for path in paths]
    scheme = _infer_partitioning(partitioning, [os.path.dirname(path) for path in inside])
    files = [
        DataFile(path, None if scheme is None else parse_partition(scheme, below))
        for path, below in zip(paths, inside, strict=True)
    ]
    root = None if isinstance(source, list | tuple) else Place(where, base)
    return Dataset(files, pa.schema([]) if scheme is None else scheme.schema, where, root)


def parse_partition(scheme: Any, below: str) -> pc.Expression:
    """Return the values in a path below a dataset's folder as an expression."""
    try:
        return scheme.parse(below)
    except UnicodeError:
        raise ValueError(f"{below!r}: names of files and folders must be UTF-8") from None


def list_complete(folder: Place) -> list[Place]:
    """List the valid files of a folder, without those of incomplete writes and replaced ones."""
    where, base = folder.filesystem, folder.path
    # PyArrow cannot list a folder that contains a name that is not UTF-8.
    read = partial(read_hidden, folder)
    paths, hidden = list_steadily(read, lambda: list_sizes(where, base))
    return [Place(where, path, base) for path in paths if path_inside(path, base) not in hidden]


def list_steadily(read: Callable[[], set[str]], list_files: Callable[[], T]) -> tuple[T, set[str]]:
    """Return what a function lists while no write begins or ends, and what notes hide of it.

    `read` reads the notes, as `read_hidden`.
    """
    hidden = read()
    for _ in range(_TRIES):
        found, before = list_files(), hidden
        hidden = read()
        if before == hidden:
            break
    return found, hidden


_TRIES = 5  # attempts to list a folder while no write begins or ends


def path_inside(path: str, folder: str) -> str:
    """Return the path inside a folder of what was listed there."""
    return path[len(folder) :].lstrip("/")


def read_hidden(folder: Place) -> set[str]:
    """Return the paths inside a folder of the files that notes hide from its readers.

    A folder in Hive's form, `year=2026`, is part of a dataset, whose notes are above it.
    """
    hidden = {name for note in read_notes(folder).values() for name in note.hidden}
    above, name = posixpath.split(folder.path.rstrip("/"))
    if "=" in name:
        start, notes = f"{name}/", read_hidden(Place(folder.filesystem, above))
        hidden |= {path.removeprefix(start) for path in notes if path.startswith(start)}
    return hidden


def read_notes(folder: Place) -> dict[str, WriteNote]:
    """Return the notes in a folder, by the names of their writes."""
    notes, names = posixpath.join(folder.path, NOTES), list[str]()
    if folder.filesystem is not None:
        selector = pafs.FileSelector(notes, allow_not_found=True)
        infos = as_arrow(folder.filesystem).get_file_info(selector)
        names = [posixpath.basename(info.path) for info in infos if info.is_file]
    elif os.path.islink(notes):
        raise FormatError(f"{notes} is a symbolic link; replace it by a folder")
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(notes)
    writes = [name.removesuffix(".json") for name in names if re.fullmatch(r"[\w-]+\.json", name)]
    found = {name: read_note(note_place(folder, name)) for name in sorted(writes)}
    return {name: note for name, note in found.items() if note is not None}


def list_files(where: Any, filesystem: Any, *, every_link: bool = False) -> list[Place]:
    """List a file, or the visible files in one or several folders, as `list_sized_files`."""
    return [place for place, _ in list_sized_files(where, filesystem, every_link=every_link)]


def list_sized_files(
    where: Any, filesystem: Any, *, every_link: bool = False,
    folder_links: list[Place] | None = None,
) -> list[tuple[Place, int]]:  # fmt: skip
    """List a file, or the visible files in one or several folders, with their sizes; sorted.

    The files of a folder have it as their `root`: links in it are followed for reading, but not for
    writing. With `every_link`, a link is a file of its own, besides its target, as for readers.
    `folder_links` receives the links to folders whose files are listed anyway, and which are not
    followed: other readers read such rows twice. Raise FileNotFoundError if a file or folder does
    not exist.
    """
    by_path: dict[str, tuple[Place, int]] = {}
    for source in where if isinstance(where, list | tuple) else [where]:
        if not isinstance(source, str | os.PathLike | Place):
            raise TypeError(f"a file must be a path or URL, not {type(source).__name__}")
        place = source if isinstance(source, Place) else Place(*locate(source, filesystem))
        for file, size in _list_place(place, folder_links):
            # A link and its target are one file; the target is listed, as it can be written.
            local = file.filesystem is None and not every_link
            real = os.path.realpath(file.path) if local else file.path
            known, _ = by_path.setdefault(real, (file, size))
            if known is not file and known.is_linked and not file.is_linked:
                by_path[real] = file, size
    return sorted(by_path.values(), key=lambda sized: sized[0].path)


def find_hidden(places: Sequence[Place]) -> list[Place]:
    """Return those of the listed files that notes hide from readers of their folder."""
    names: dict[str, set[str]] = {}  # by folder
    hidden: list[Place] = []
    for place in places:
        if (root := place.root) is not None and root not in names:
            names[root] = read_hidden(Place(place.filesystem, root))
        if root is not None and path_inside(place.path, root) in names[root]:
            hidden.append(place)
    return hidden


def _list_place(place: Place, folder_links: list[Place] | None) -> list[tuple[Place, int]]:
    if place.filesystem is None:
        status = os.stat(place.path)  # raises if the path does not exist
        is_folder, size = stat.S_ISDIR(status.st_mode), status.st_size
    else:
        info = as_arrow(place.filesystem).get_file_info(place.path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.address)
        is_folder, size = info.type == pafs.FileType.Directory, info.size or 0
    if not is_folder:
        return [(place, size)]
    links: list[str] = []
    sizes = list_sizes(place.filesystem, place.path, folder_links=links)
    if folder_links is not None:
        folder_links += [Place(None, path, place.path) for path in links]
    return [(Place(place.filesystem, path, place.path), size) for path, size in sizes.items()]


def list_sizes(
    filesystem: Any, folder: str, *, hidden: bool = False, deep: bool = True,
    may_be_absent: bool = False, folder_links: list[str] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Return the sizes of the files below a folder by path, sorted.

    `hidden` includes files and folders whose names begin with a dot or an underscore; `deep`
    includes the files in its folders. With `may_be_absent`, an absent folder has no files. Without
    a file system, the folder is local. `folder_links` is as for `list_files`. Raise OSError if a
    folder cannot be listed.
    """
    if filesystem is None:
        absent = may_be_absent and not os.path.lexists(folder)
        links: list[str] = [] if folder_links is None else folder_links
        return {} if absent else dict(sorted(_walk_local_files(folder, hidden, deep, links)))
    selector = pafs.FileSelector(folder, allow_not_found=may_be_absent, recursive=deep)
    infos = as_arrow(filesystem).get_file_info(selector)
    # Stores represent folders by empty objects, which fsspec lists as files.
    files = {info.path: info.size or 0 for info in infos if info.is_file and info.path[-1:] != "/"}
    return {path: files[path] for path in sorted(files) if hidden or not is_hidden(path, folder)}


def _walk_local_files(
    folder: str, hidden: bool, deep: bool, links: list[str]
) -> Iterator[tuple[str, int]]:
    """Yield path and size of files, each folder once, even if links lead to it again.

    A folder has its own path and never that of a link, which would give its rows other partitions.
    """
    root = os.path.realpath(folder)
    seen = {root}
    for base, folders, names in os.walk(folder, onerror=_raise_error, followlinks=True):
        below = [name for name in sorted(folders) if deep and (hidden or name[0] not in "._")]
        folders.clear()
        for name in below:
            path = os.path.join(base, name)
            real = os.path.realpath(path)
            if real in seen or (os.path.islink(path) and _is_walked(real, root, hidden=hidden)):
                links.append(path)
            else:
                seen.add(real)
                folders.append(name)
        for path in (os.path.join(base, name) for name in names if hidden or name[0] not in "._"):
            with contextlib.suppress(OSError, ValueError):  # a link that leads nowhere
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    yield path, status.st_size


def _is_walked(real: str, root: str, *, hidden: bool) -> bool:
    """Return whether a path without links is listed with a folder anyway, or leads around it."""
    inner, outer = (os.path.join(path, "") for path in (real, root))
    if outer.startswith(inner):
        return True
    return inner.startswith(outer) and (hidden or not is_hidden(real, root))


def _raise_error(error: OSError) -> None:
    raise error


class DatasetFolder:
    """A folder into which a dataset is written."""

    def __init__(self, base: Any, filesystem: Any) -> None:
        self.root = Place(*locate(base, filesystem))
        self.filesystem, self._base = self.root.filesystem, self.root.path
        self._arrow = as_arrow(self.filesystem)
        names = getattr(self.filesystem, "protocol", self._arrow.type_name)
        self._has_folders = _STORES.isdisjoint((names,) if isinstance(names, str) else names)

    def check_empty(self) -> None:
        """Raise FileExistsError if the folder contains files that are not hidden."""
        if list_sizes(self.filesystem, self._base, may_be_absent=True):
            raise FileExistsError(
                errno.EEXIST, "the folder contains files, which were kept", self.root.address
            )

    def check_visible(self, path: str) -> None:
        """Raise ValueError if readers would ignore the file, by the beginning of a name."""
        if is_hidden(path, ""):
            raise ValueError(
                'readers ignore files and folders whose names begin with "." or "_"; '
                "change basename_template, the column's name or its value"
            )

    def place(self, path: str) -> Place:
        """Return the place of a file in the folder, and make the folders above it."""
        place = self.root.below(path)
        if self.filesystem is None:
            place.make_folder()
        elif self._has_folders:
            self._arrow.create_dir(posixpath.dirname(place.path))
        return place


def as_arrow(filesystem: Any) -> pafs.FileSystem:
    """Return a file system as one of pyarrow's, for listing; None is the local one."""
    if filesystem is None:
        return pafs.LocalFileSystem()
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    return pafs.PyFileSystem(_NamingHandler(filesystem))


class _NamingHandler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """An adapter of fsspec's file systems for PyArrow, whose errors name the URL."""

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        with add_url_to_errors(self.fs, paths[0] if paths else ""):
            infos = list(super().get_file_info(paths))
            absent = any(info.type == pafs.FileType.NotFound for info in infos)
            if absent and forget_listings(self.fs):
                return list(super().get_file_info(paths))
            return infos

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        with add_url_to_errors(self.fs, selector.base_dir):
            forget_listings(self.fs)
            return list(super().get_file_info_selector(selector))

    def open_input_file(self, path: str) -> pa.PythonFile:
        with add_url_to_errors(self.fs, path):  # PyArrow's method reports every error as absence
            return pa.PythonFile(open_stored(self.fs, path), mode="r")


def is_hidden(path: str, base: str) -> bool:
    """Return whether readers skip a file below a folder, as a name begins with a dot or "_"."""
    return any(name[:1] in ("_", ".") for name in path[len(base) :].split("/"))


def list_hive_fields(folders: Iterable[str]) -> list[str]:
    """Return the names of the fields in folders in Hive's form, where they are percent-encoded."""
    found = (name for folder in folders for name in re.findall(r"(?:^|/)([^/=]+)=", folder))
    return list(dict.fromkeys(map(unquote, found)))


def _infer_partitioning(partitioning: Any, folders: Sequence[str]) -> Any:
    if partitioning is None:
        return None
    if not isinstance(partitioning, str):
        from pyarrow.dataset import Partitioning

        if isinstance(partitioning, Partitioning):
            return partitioning
    if partitioning != "hive":
        raise ValueError('partitioning must be "hive", a pyarrow.dataset.Partitioning or None')
    if not (names := list_hive_fields(folders)):
        return None
    import pyarrow.dataset as ds  # imports pandas where it is installed

    texts = ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor="hive")
    values: dict[str, set[str]] = {name: set() for name in names}
    for folder in set(folders):
        for name, value in ds.get_partition_keys(texts.parse(folder + "/")).items():
            if value is not None:
                values[name].add(value)
    fields = [
        (name, pa.int32() if given and all(map(_is_int32, given)) else pa.string())
        for name, given in values.items()
    ]
    return ds.partitioning(pa.schema(fields), flavor="hive")


def _is_int32(value: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,10}", value) is not None and int(value) in _INT32
