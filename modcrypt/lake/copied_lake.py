"""The declaration of a lake for a folder with copies of its datasets, such as a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from modcrypt.io.addresses import is_url
from modcrypt.jobs.listing import Folder
from modcrypt.lake.declarations.declaration import (
    DatasetDeclaration,
    LakeDeclaration,
    TableDeclaration,
)

Each = TypeVar("Each", DatasetDeclaration, TableDeclaration)


def declare_copies(declaration: LakeDeclaration, folder: str) -> LakeDeclaration:
    """Return a declaration of the copies of datasets that a folder has.

    A copy has the path of the dataset below the declaration, or the name of its folder; if the
    folder has neither of any dataset, it is itself taken for a copy of each. Nothing seals a copy,
    and tables in catalogs are looked for nowhere. Raise FileNotFoundError if the folder does not
    exist.
    """
    if not _exists(folder):
        raise FileNotFoundError(2, os.strerror(2), folder)
    base = os.path.dirname(declaration.path)
    tables = {name: each for name, each in declaration.tables.items() if each.catalog is None}
    datasets = _find_copies(declaration.datasets, base, folder)
    copied = _find_copies(tables, base, folder)
    if not (datasets or copied):
        datasets = {n: replace(d, location=folder) for n, d in declaration.datasets.items()}
        copied = {name: replace(table, location=folder) for name, table in tables.items()}
    return replace(
        declaration,
        datasets={name: replace(each, source=None) for name, each in datasets.items()},
        tables={name: _open_copy(each, folder) for name, each in copied.items()},
    )


def _find_copies(declared: Mapping[str, Each], base: str, folder: str) -> dict[str, Each]:
    found = {}
    for name, each in declared.items():
        for inside in _list_places(each.location, base):
            location = f"{folder.rstrip('/')}/{inside}"
            if _exists(location):
                found[name] = replace(each, location=location)
                break
    return found


def _list_places(location: str, base: str) -> Iterator[str]:
    """Yield where a copy of a dataset may be inside a folder of copies."""
    inside = "" if is_url(location) else os.path.relpath(location, base)
    if inside and not inside.startswith(".."):
        yield inside
    yield location.rstrip("/").rpartition("/")[2]


def _exists(where: str) -> bool:
    folder = Folder.at(where)
    return folder.is_folder or folder.place.stamp() is not None


def _open_copy(table: TableDeclaration, folder: str) -> TableDeclaration:
    """Return the declaration of a copy of a table, with a copy of its key store if there is one."""
    store = table.key_store
    if store is not None and os.path.exists(
        beside := os.path.join(folder, os.path.basename(store))
    ):
        store = beside
    return replace(table, key_store=store, location_map={}, signed_by=())
