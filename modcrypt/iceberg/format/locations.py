"""Map the locations that a table's metadata names to places that may be read.

A location comes from a file, and files may lie. modcrypt does not open a location merely because a
file names it: the location must begin with a prefix that the caller has mapped to a folder, and
must stay in that folder. Without a map, the table's own `location` stands for the folder in which
its metadata was found. A local folder has several equal spellings: `/x`, `file:///x` and
`file:/x`, which Hadoop, Hive and Spark write.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.io.places import Place
from modcrypt.io.stores import locate


@dataclass(frozen=True, slots=True)
class Locations:
    """A map from prefixes of locations to folders; the longest matching prefix applies."""

    # Places by prefix without a trailing slash; local ones have no symbolic links.
    folders: Mapping[str, Place]
    # The prefixes with the forms in which locations are compared, the longest first.
    _prefixes: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)
    # The beginnings of keys by those of locations, up to the file's name.
    _folders: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plain = [(prefix, plain_location(prefix)) for prefix in self.folders]
        plain.sort(key=lambda pair: len(pair[1]), reverse=True)
        object.__setattr__(self, "_prefixes", tuple(plain))

    @classmethod
    def of(
        cls, mapped: Mapping[str, Any] | None, location: str, folder: Place, filesystem: Any = None
    ) -> Locations:
        """Return the locations of a table from the caller's map and the table's own location.

        The map has paths, URLs, or paths in `filesystem`, by prefix. `location`, as the table's
        metadata names it, is added unless the map contains it; the metadata was found in `folder`.
        """
        if not location.strip("/"):
            raise FormatError(f"the location of the table {_MATCHES_ALL}")
        folders: dict[str, Place] = {}
        for prefix, where in (mapped or {}).items():
            if not prefix.strip("/"):
                raise ValueError(f"a prefix of the location map {_MATCHES_ALL}")
            folders[_strip_slashes(prefix)] = find_place(where, filesystem)
        own = _strip_slashes(location)
        folders.setdefault(own, cls(folders)._own_folder(own, folder))
        # Resolve links: a deletion vector may name its file by another prefix for the same folder.
        # The table's own location comes first because new files are named by it.
        ordered = {own: folders[own], **folders}
        return cls({prefix: where.resolve() for prefix, where in ordered.items()})

    def _own_folder(self, location: str, folder: Place) -> Place:
        """Return the folder that a table's location stands for: the table's folder."""
        # If the map covers the location and leads to a folder that contains the table's folder, the
        # map applies instead: nobody signs the location, and a forged one would separate files from
        # references that name them by another prefix.
        covering = self.prefix(location)
        if covering is None or plain_location(covering) == plain_location(location):
            return folder
        outer, own = self.folders[covering].resolve(), folder.resolve()
        is_within, mapped = own == outer or own.inside(outer) is not None, self.place(location)
        return mapped if is_within and mapped.resolve() != own else folder

    def place(self, location: str) -> Place:
        """Return the place that a location stands for."""
        folder, inside = self._find(location)
        return folder.below(inside)

    def _find(self, location: str) -> tuple[Place, str]:
        """Return the folder of a location, and the path in that folder."""
        if (prefix := self.prefix(location)) is None:
            raise FormatError(
                f"the location {location!r} is outside of the table, and modcrypt does not follow "
                f"locations from files: map its beginning to a folder with location_map"
            )
        inside = plain_location(location)[len(plain_location(prefix)) :]
        inside = inside if prefix.endswith("/") else inside[1:]
        if _LEADS_OUT.search(inside):
            why = "leads out of its folder, or names no file"
            raise FormatError(f"the location {location!r} {why}")
        return self.folders[prefix], inside

    def location(self, place: Place) -> str | None:
        """Return the location of a place by the first prefix whose folder contains it, or None."""
        where = Place(place.filesystem, posixpath.dirname(place.path) or ".").resolve()
        path = posixpath.join(where.path, place.name)
        for prefix, folder in self.folders.items():
            base = folder.path.rstrip("/") + "/"
            if folder.filesystem is place.filesystem and path.startswith(base):
                return f"{prefix.removesuffix('/')}/{path[len(base) :]}"
        return None

    def key(self, location: str) -> str:
        """Return a key that is equal for all spellings of one location."""
        start, _, name = location.rpartition("/")
        if len(name) > len("..") and "\0" not in name and (known := self._folders.get(start)):
            return known + name
        folder, inside = self._find(location)
        key = posixpath.join(folder.path, inside)
        within = plain_location(start) + "/"
        if not any(prefix.startswith(within) for _, prefix in self._prefixes):
            if len(self._folders) >= _MAX_FOLDERS:
                self._folders.clear()
            self._folders[start] = key.removesuffix(name)
        return key

    def keys(self, locations: Iterable[str]) -> list[str]:
        """Return the keys of locations; a table may have a million in few folders."""
        folders, keys = self._folders, list[str]()
        for location in locations:
            start, _, name = location.rpartition("/")
            known = folders.get(start) if len(name) > len("..") and "\0" not in name else None
            keys.append(known + name if known else self.key(location))
        return keys

    def prefix(self, location: str) -> str | None:
        """Return the longest prefix that matches a location, or None."""
        plain = plain_location(location)
        for prefix, known in self._prefixes:
            end = len(known)
            if plain.startswith(known) and (known.endswith("/") or plain[end : end + 1] in _END):
                return prefix
        return None


_MATCHES_ALL = "is empty, so that it would match every location"

_END = ("/", "")  # texts that may follow a prefix in a location: a slash, or nothing
_MAX_FOLDERS = 1 << 12  # number of folders whose keys are kept

_LEADS_OUT = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|\x00")
"""A part of a path that is empty, `.` or `..`; or a NUL."""


def find_place(where: Any, filesystem: Any = None) -> Place:
    """Return the place that a path, a URL or a location names. Raises the errors of `locate`."""
    # A location with one slash (`file:/x`) is not percent-encoded, because Hadoop's paths are not.
    text = where if filesystem is None and isinstance(where, str) else ""
    return Place(*locate(plain_location(where) if _ONE_SLASH.match(text) else where, filesystem))


_ONE_SLASH = re.compile(r"file:/(?!/)")
_LOCAL = re.compile(r"file:(//)?(?=/(?!/))")


def plain_location(location: str) -> str:
    """Return the form in which locations are compared: the path, for a local file."""
    return _LOCAL.sub("", location, count=1) if location.startswith("file:/") else location


def _strip_slashes(prefix: str) -> str:
    """Remove the slashes at the end of a prefix, except those of a bare scheme."""
    return prefix if prefix.endswith("://") else prefix.rstrip("/")
