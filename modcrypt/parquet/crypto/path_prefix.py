"""AAD prefixes made from a file's path inside its dataset, or from its name.

    people/{path}    people/tenant=acme/part-0.parquet
    people/{name}    people/part-0.parquet, whatever folder the file is in

`{path}` is relative to the dataset's root folder and separated by "/" in every file system, so a
dataset may move as a whole, and no file of it may take another's place. Under `{name}`, files of
equal names in two folders can be swapped unnoticed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from modcrypt.io.storage import Place, Root

__all__ = ["NAME", "PATH", "PathPrefix", "check_distinct", "shared_prefix_error"]

NAME, PATH = "{name}", "{path}"
_NAME, _PATH = NAME.encode(), PATH.encode()


@dataclass(frozen=True, slots=True)
class PathPrefix:
    """A template of AAD prefixes, which takes up each file's path or name.

    Attributes:
        template: The prefix, with `{path}` or `{name}` in it, or neither.
        root: The dataset's folder, which `{path}` is relative to. None for the folder by which a
            listing found the file.
    """

    template: bytes
    root: Root | None = None

    def under(self, root: Root) -> PathPrefix:
        """Return the template with a root, unless it has one."""
        return self if self.root is not None else replace(self, root=root)

    def __call__(self, path: str) -> bytes:
        """Return the prefix of the file with this path inside the dataset."""
        values = {_PATH: path, _NAME: posixpath.basename(path)}
        # Names of files may be any bytes, and hold what looks like a placeholder.
        return re.sub(
            rb"\{(?:path|name)\}",
            lambda found: values[found[0]].encode("utf-8", "surrogateescape"),
            self.template,
        )

    def of(self, place: Place | None) -> bytes:
        """Return the prefix of the file at a place, None for bytes and file objects.

        Raises:
            ValueError: The prefix depends on the file's place, and the place or the root is
                unknown, or the file is outside the root.
        """
        if not self._varies:
            return self.template
        if place is None:
            raise ValueError("the AAD prefix depends on the file's name: give a path or URL")
        return self(self._inside(place) if _PATH in self.template else place.name)

    @property
    def _varies(self) -> bool:
        return _PATH in self.template or _NAME in self.template

    def _inside(self, place: Place) -> str:
        found = self.root
        if found is None and place.root is not None:
            found = Place(place.filesystem, place.root)
        if found is None:
            raise ValueError(
                f'the AAD prefix has "{PATH}", a path inside a dataset, and {place.name!r} is '
                "named by itself: pass root=, the dataset's folder"
            )
        inside = place.inside(found)
        if inside is None:
            raise ValueError(f"{place.path!r} is not inside root, the dataset's folder")
        return inside


def check_distinct(prefix: PathPrefix | bytes | None, paths: Iterable[str]) -> None:
    """Raise if two files would be written under one AAD prefix: one could replace the other.

    Args:
        prefix: Of all files; None for no prefix, which binds a file to no name.
        paths: Paths of the files inside their dataset, each different from the others.

    Raises:
        ValueError: Two files have the same prefix.
    """
    if prefix is None or (isinstance(prefix, PathPrefix) and _PATH in prefix.template):
        return
    seen: dict[bytes, str] = {}
    for path in paths:
        found = prefix(path) if isinstance(prefix, PathPrefix) else prefix
        if found in seen:
            raise shared_prefix_error(seen[found], path)
        seen[found] = path


def shared_prefix_error(path: str, other: str) -> ValueError:
    """Return the error for two files under one AAD prefix."""
    return ValueError(
        f"{path!r} and {other!r} would have the same AAD prefix, so that either could replace the "
        f'other unnoticed: use "{PATH}" in aad_prefix, or pass shared_aad_prefix=True'
    )
