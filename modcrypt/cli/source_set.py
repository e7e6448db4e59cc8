"""The sources of a command that are several files and folders, and their names in a destination."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import click

from modcrypt.io.places import Place
from modcrypt.jobs.listing import Folder


@dataclass(frozen=True, slots=True)
class SourceSet(Folder):
    """Files and folders that a command converts in place, or into a folder under their names."""

    members: tuple[Folder, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> SourceSet:
        """Return the sources with these names, which are paths or URLs."""
        members = tuple(Folder.at(name, absolute=False) for name in names)
        return cls(", ".join(names), members=members)

    def inside(self, name: str) -> str:
        """Return the path that a file has within a destination."""
        member = self._find_member(name)
        return posixpath.join(posixpath.basename(member.name), member.inside(name)).rstrip("/")

    def place_of(self, name: str) -> Place:
        """Return the place of a file in its source."""
        return self._find_member(name).place_of(name)

    def _find_member(self, name: str) -> Folder:
        return next(member for member in self.members if _contains(member.name, name))

    def check_distinct(self, names: Sequence[str]) -> None:
        """Raise click.UsageError if two files would have the same name in a destination."""
        sources: dict[str, str] = {}
        for name in names:
            other = sources.setdefault(self.inside(name), name)
            if other != name:
                raise click.UsageError(
                    f"{other} and {name} would be the same file of DESTINATION; convert them in "
                    "two runs"
                )


def _contains(folder: str, name: str) -> bool:
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")
