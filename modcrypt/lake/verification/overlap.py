"""Find files that two datasets claim: what one declares of them, the other contradicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from modcrypt.errors import MAX_NAMES, list_names
from modcrypt.io.places import Place
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.lake_files import LakeFiles
from modcrypt.parquet.format.findings import Finding


def find_overlaps(
    policies: DatasetPolicies, others: Iterable[DatasetPolicies], tables: Mapping[str, Place]
) -> Iterator[Finding]:
    """Yield a fault for each other dataset that claims files of a dataset, too.

    Args:
        policies: Policies of the dataset.
        others: Policies of the other datasets of files.
        tables: Folders of the tables, by their names.
    """
    root = policies.root.place.resolve()
    for other in others:
        place = other.root.place.resolve()
        if place.inside(root) is None and root.inside(place) is None and place != root:
            continue
        claimed = {each.resolve().path for each in _list_places(other)}
        both = (at for at in _list_places(policies) if at.resolve().path in claimed)
        yield from _report(other.dataset.name, map(policies.path_of, both))
    for name, folder in ((name, folder.resolve()) for name, folder in tables.items()):
        if folder.inside(root) is not None or root.inside(folder) is not None or folder == root:
            places = _list_places(policies)
            both = (at for at in places if at.resolve().inside(folder) is not None)
            yield from _report(name, map(policies.path_of, both))


def _report(name: str, both: Iterator[str]) -> Iterator[Finding]:
    first = list(islice(both, MAX_NAMES))
    if first:
        more = ", and more" * (next(both, None) is not None)
        message = f"the dataset {name} claims files, too: {list_names(first)}{more}"
        yield Finding(word="overlap", message=message)


def _list_places(policies: DatasetPolicies) -> Iterator[Place]:
    with suppress(OSError, ValueError):  # the verification of that dataset reports it
        for file in LakeFiles(policies.root, policies.dataset.include):
            yield policies.place_of(file.path)
