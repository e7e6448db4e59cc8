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
    others = [each for each in lake.datasets.values() if each.name != name]

    def is_claimed(path: str) -> bool:
        where = _normalize(posixpath.join(root, path))
        return where in own or any(_has(each, where) for each in others)

    return is_claimed


def _normalize(location: str) -> str:
    return location if is_url(location) else os.path.normpath(location)


def _has(dataset: DatasetDeclaration, where: str) -> bool:
    location = _normalize(dataset.location)
    inside = find_inside(where, location)
    if where.startswith(posixpath.join(location, "")):
        inside = where[len(posixpath.join(location, "")) :]
    if inside is None or dataset.include is None:
        return inside is not None or where == location
    return bool(make_matcher(dataset.include)(inside))
