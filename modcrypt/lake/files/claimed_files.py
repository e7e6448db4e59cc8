"""Files in the folder of a dataset that are not undeclared, although its pattern excludes them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from pathlib import Path

from modcrypt.io.addresses import find_inside, is_url
from modcrypt.lake.declarations.declaration import DatasetDeclaration, LakeDeclaration
from modcrypt.lake.files.lake_files import make_matcher

_RECORDS = (".erased.jsonl", ".evidence.jsonl", ".leaks.jsonl")
"""Ends of the names of the records beside a declaration."""


def find_claims(lake: LakeDeclaration, name: str) -> Callable[[str], bool]:
    """Return a function that returns whether a file is of another dataset, or of the declaration.

    It takes paths inside the dataset, and compares them by their text: a link claims nothing.
    """
    root = lake.datasets[name].location
    declaration = Path(os.path.abspath(lake.path))
    own = {str(declaration), *(str(declaration.with_suffix(end)) for end in _RECORDS)}
    others = [_make_test(each) for each in lake.datasets.values() if each.name != name]

    def is_claimed(path: str) -> bool:
        where = _normalize(posixpath.join(root, path))
        return where in own or any(has(where) for has in others)

    return is_claimed


def _normalize(location: str) -> str:
    return location if is_url(location) else os.path.normpath(location)


def _make_test(dataset: DatasetDeclaration) -> Callable[[str], bool]:
    """Return a function that returns whether an address is that of a dataset's file."""
    location = _normalize(dataset.location)
    folder = posixpath.join(location, "")
    matches = None if dataset.include is None else make_matcher(dataset.include)

    def has(where: str) -> bool:
        inside = find_inside(where, location)
        if where.startswith(folder):
            inside = where[len(folder) :]
        if inside is None or matches is None:
            return inside is not None or where == location
        return bool(matches(inside))

    return has
