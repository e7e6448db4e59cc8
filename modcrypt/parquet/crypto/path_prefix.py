"""AAD prefixes that contain a file's path inside its dataset, or its name.

    people/{path}    people/tenant=acme/part-0.parquet
    people/{name}    people/part-0.parquet, in any folder

`{path}` is relative to the dataset's root folder and uses "/" in every file system, so a dataset
can move as a whole, but none of its files can replace another. With `{name}`, files of the same
name in two folders can be swapped undetected.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

from modcrypt.io.places import Place, Root

NAME, PATH = "{name}", "{path}"
_NAME, _PATH = NAME.encode(), PATH.encode()


def require_place(place: Place | None) -> Place:
    """Return the place of a file on whose name an AAD prefix depends; raise ValueError for None."""
    if place is None:
        raise ValueError("the AAD prefix depends on the file's name; pass a path or URL")
    return place


class PathPrefix(NamedTuple):
    """A template of AAD prefixes, which inserts each file's path or name."""

    template: bytes  # the prefix, which may contain `{path}` or `{name}`
    # The dataset's folder, to which `{path}` is relative. None for the folder whose listing
    # contained the file.
    root: Root | None = None

    def with_root(self, root: Root) -> PathPrefix:
        """Return the template with a root, unless it has one."""
        return self if self.root is not None else self._replace(root=root)

    def __call__(self, path: str) -> bytes:
        """Return the prefix of the file with this path inside the dataset."""
        values = {_PATH: path, _NAME: posixpath.basename(path)}
        # File names may be any bytes, and may contain text that looks like a placeholder.
        return re.sub(
            rb"\{(?:path|name)\}",
            lambda match: values[match[0]].encode("utf-8", "surrogateescape"),
            self.template,
        )

    def of(self, place: Place | None) -> bytes:
        """Return the prefix of the file at a place; None stands for bytes and file objects.

        Raise ValueError if the prefix depends on the file's place, and the place or the root is
        unknown, or the file is outside the root.
        """
        if _PATH not in self.template and _NAME not in self.template:
            return self.template
        place = require_place(place)
        return self(self._path_inside_root(place) if _PATH in self.template else place.name)

    def _path_inside_root(self, place: Place) -> str:
        if (root := self.root) is None and place.root is not None:
            root = Place(place.filesystem, place.root)
        if root is None:
            raise ValueError(
                f'the AAD prefix contains "{PATH}", a path inside a dataset, but the dataset of '
                f"{place.name!r} is unknown; pass root=, the dataset's folder"
            )
        if (inside := place.inside(root)) is None:
            raise ValueError(f"{place.address!r} is not inside root, the dataset's folder")
        return inside


def check_distinct(prefix: PathPrefix | bytes | None, paths: Iterable[str]) -> None:
    """Raise ValueError if two files would have the same AAD prefix: one could replace the other.

    The paths are distinct and inside the dataset. A prefix of None binds no file to its name.
    """
    if prefix is None or (isinstance(prefix, PathPrefix) and _PATH in prefix.template):
        return
    seen: dict[bytes, str] = {}
    for path in paths:
        value = prefix(path) if isinstance(prefix, PathPrefix) else prefix
        if value in seen:
            raise shared_prefix_error(seen[value], path)
        seen[value] = path


def shared_prefix_error(path: str, other: str) -> ValueError:
    """Return the error for two files with the same AAD prefix."""
    return ValueError(
        f"{path!r} and {other!r} would have the same AAD prefix, so that either could replace the "
        f'other undetected; use "{PATH}" in aad_prefix, or pass shared_aad_prefix=True'
    )
