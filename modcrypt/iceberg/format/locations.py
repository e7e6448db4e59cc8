"""Where the files of a table are: locations that its metadata names, and places that may be read.

A location comes from a file, and files may lie. None is opened because it is named: it has to begin
with a prefix that the caller has mapped to a folder, and to stay in that folder. Without a map, the
table's own `location` stands for the folder that its metadata was found in. A local folder is the
same as `/x`, `file:///x` and `file:/x`, which Hadoop, Hive and Spark write.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.io.storage import Place, locate

__all__ = ["Locations", "find_place", "plain_location"]


@dataclass(frozen=True, slots=True)
class Locations:
    """Prefixes of locations, and the folders that they stand for; the longest that fits counts.

    Attributes:
        folders: prefix, without a slash at its end, to place; local ones without links in them.
    """

    folders: Mapping[str, Place]

    @classmethod
    def of(
        cls, mapped: Mapping[str, Any] | None, location: str, folder: Place, filesystem: Any = None
    ) -> Locations:
        """Take the caller's map, and the table's own location, unless the map has that.

        Args:
            mapped: prefixes to paths, URLs, or paths in `filesystem`.
            location: that the metadata names.
            folder: that the metadata was found in.
            filesystem: of pyarrow or fsspec.

        Raises:
            FormatError: the table's location is none.
            ValueError: a prefix of the map is none.
        """
        if not location.strip("/"):
            raise FormatError("the location of the table is empty: it would stand for all of them")
        folders = {_trimmed(location): folder}
        for prefix, where in (mapped or {}).items():
            if not prefix.strip("/"):
                raise ValueError("a prefix of locations is empty: it would stand for all of them")
            folders[_trimmed(prefix)] = find_place(where, filesystem)
        # Two ways to one folder are one, or a deletion vector that names its file by one prefix
        # would not be found by the other.
        return cls({prefix: where.real() for prefix, where in folders.items()})

    def place(self, location: str) -> Place:
        """Give the place that a location stands for.

        Raises:
            FormatError: it is under no prefix, or leads out of the folder.
        """
        prefix = self.prefix(location)
        if prefix is None:
            raise FormatError(
                f"the location {location!r} is outside of the table, and nothing from a file is "
                f"followed: map its beginning to a folder by location_map"
            )
        folder = self.folders[prefix]
        inside = plain_location(location)[len(plain_location(prefix)) :]
        inside = inside if prefix.endswith("/") else inside[1:]
        if any(part in ("", ".", "..") for part in inside.split("/")) or "\x00" in inside:
            raise FormatError(f"the location {location!r} leads out of its folder, or to none")
        return folder.below(inside)

    def location(self, place: Place) -> str | None:
        """Give the location that stands for a place: by the first prefix whose folder has it."""
        where = Place(place.filesystem, posixpath.dirname(place.path) or ".").real()
        path = posixpath.join(where.path, place.name)
        for prefix, folder in self.folders.items():
            base = folder.path.rstrip("/") + "/"
            if folder.filesystem is place.filesystem and path.startswith(base):
                return f"{prefix.removesuffix('/')}/{path[len(base) :]}"
        return None

    def key(self, location: str) -> str:
        """Give what two spellings of one location have in common, to find one by the other."""
        return self.place(location).path

    def prefix(self, location: str) -> str | None:
        """Return the longest prefix that a location begins with; None if there is none."""
        plain = plain_location(location)
        found = [
            prefix
            for prefix, known in ((one, plain_location(one)) for one in self.folders)
            if plain.startswith(known) and (known.endswith("/") or plain[len(known) :][:1] in _END)
        ]
        return max(found, key=lambda one: len(plain_location(one)), default=None)


_END = ("/", "")
"""A prefix must be followed by one of these, or end the location."""


def find_place(where: Any, filesystem: Any = None) -> Place:
    """Return the place that a path, a URL or a location names; raises as `locate`.

    A location with one slash (`file:/x`) is not percent-encoded: Hadoop's paths aren't.
    """
    text = where if filesystem is None and isinstance(where, str) else ""
    return Place(*locate(plain_location(where) if _ONE_SLASH.match(text) else where, filesystem))


_ONE_SLASH = re.compile(r"file:/(?!/)")
_LOCAL = re.compile(r"file:(//)?(?=/(?!/))")


def plain_location(location: str) -> str:
    """Return a location as it is compared: of a local file its path."""
    return _LOCAL.sub("", location, count=1) if location.startswith("file:/") else location


def _trimmed(prefix: str) -> str:
    """Leave out the slashes at the end of a prefix, but those of a bare scheme."""
    return prefix if prefix.endswith("://") else prefix.rstrip("/")
