"""Findings about the files of a set: shared prefixes, copies, links, and files that are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from modcrypt.errors import ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.parquet.datasets.discovery import list_files, split_hidden
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.signatures.signers import DatasetSeal

Groups: TypeAlias = Mapping[bytes, Sequence[str]]
"""Paths of several files, by a part of their AAD that they share."""

Shape: TypeAlias = tuple[int | None, int | None]
"""Size of a file in bytes, and its number of rows if that is authenticated."""

MAX_LISTED = 20
"""Maximum number of names listed in one message."""


def find_shared_prefixes(groups: Groups, *, fault: bool = False) -> list[Finding]:
    """Report files with the same AAD prefix, by default as a warning: each should have its own.

    `groups` has the paths of the files by their prefix.
    """
    return [
        Finding(
            word="aad-prefix",
            message=f"{len(paths)} files have the same AAD prefix {prefix[:200]!r}, so that one "
            f"can be put in the place of another: {list_names(paths)}",
            severity="fault" if fault else "warning",
        )
        for prefix, paths in groups.items()
    ]


def find_missing_files(
    seal: DatasetSeal | None, folder: Place, places: Iterable[Place]
) -> list[Finding]:
    """Report files below a folder that its seal names, if one is required, and that are missing."""
    if seal is None:
        return []
    paths = [str(place.inside(folder)) for place in places]
    return compare_with_seal(seal.with_root(folder), folder, paths, MAX_LISTED)


def find_missing_below(
    seal: DatasetSeal | None, paths: Sequence[str]
) -> tuple[list[Finding], list[str]]:
    """Return what is missing below paths according to a required seal, and which have files."""
    findings: list[Finding] = []
    left: list[str] = []
    for path in paths:
        place = Place(*locate(path, None))
        files = [] if seal is None else list_sealed_files(place, None, seal)
        is_file = [file.path for file in files] == [place.path]
        shown = split_hidden(files)[0]  # readers miss what a note hides
        lost = [] if is_file else find_missing_files(seal, place, shown)
        findings += lost
        left += [] if lost and not shown else [path]
    return findings, left


def compare_with_seal(
    seal: DatasetSeal, folder: Place, paths: Iterable[str], most: int
) -> list[Finding]:
    """Report files that a seal names and that are not among these paths; list at most `most`."""
    try:
        missing = seal.find_missing(folder, paths)
    except ModcryptError as error:
        return [Finding(word=error.word, message=str(error))]
    if not missing:
        return []
    message = f"files of the dataset's seal are missing: {list_names(missing, most)}"
    return [Finding(word="integrity", message=message)]


def find_links(paths: Sequence[str], most: int = MAX_LISTED) -> list[Finding]:
    """Report symbolic links to folders or files of the dataset itself; list at most `most`."""
    if not paths:
        return []
    message = (
        "symbolic links lead to what the dataset has anyway, so that other readers read rows "
        f"twice: {list_names(paths, most)}"
    )
    return [Finding(word="integrity", message=message)]


def find_links_below(paths: Sequence[str]) -> list[Finding]:
    """Report symbolic links in local folders that lead to what the same folder has anyway."""
    links: list[Place] = []
    for place in (Place(*locate(path, None)) for path in paths):
        if place.filesystem is None and os.path.isdir(place.path):
            files = list_files(place, None, every_link=True, folder_links=links)
            own = {os.path.realpath(file.path) for file in files if not file.is_linked}
            links += [f for f in files if f.is_linked and os.path.realpath(f.path) in own]
    return find_links([link.path for link in links])


def find_shared_unique(count: int, names: str, *, alike: bool, rows_differ: bool) -> Finding:
    """Return the finding about files that have the same `aad_file_unique`.

    PyArrow draws it once for a properties object, so files that were written with one object share
    it. Copies, and versions of a file that modcrypt rotated or re-keyed, have the same rows.

    Args:
        count: Number of the files.
        names: Their names.
        alike: Whether two of them have the same size and number of rows.
        rows_differ: Whether all have different numbers of rows, which are authenticated.
    """
    message = f"{count:,} files have the same aad_file_unique, which is random: {names}. "
    if rows_differ:
        message += (
            f"Their numbers of rows differ, so they are no copies: {_REUSED}, unless a holder of "
            "the footer key left out row groups of a copy"
        )
    else:
        kind = "copies of one file, or versions of it" if alike else "versions of one file"
        message += f"They are {kind}, or {_REUSED}; the files do not tell which"
    severity: Severity = "warning" if rows_differ else "fault"
    return Finding(word="integrity", message=f"{message}. {_CURE}", severity=severity)


_REUSED = (
    "their writer used one properties object for several files, as PyArrow does in "
    "write_to_dataset, in to_parquet(partition_cols=...) of pandas, and in loops over write_table"
)
_CURE = (
    "Such files, and their pages, can be exchanged for each other undetected: write each file with "
    "properties of its own, or re-key the files with modcrypt"
)


def find_copies(groups: Mapping[bytes, Sequence[tuple[str, Shape]]]) -> list[Finding]:
    """Report files with the same `aad_file_unique`, by which `groups` has paths and shapes."""
    return [
        find_shared_unique(
            len(files), list_names([path for path, _ in files]),
            alike=len({shape for _, shape in files}) < len(files),
            rows_differ=len({rows for _, (_, rows) in files} - {None}) == len(files),
        )
        for files in groups.values()
    ]  # fmt: skip


def list_sealed_files(
    where: Any, filesystem: Any, seal: DatasetSeal | None, links: list[Place] | None = None
) -> list[Place]:
    """List files; none if the only folder does not exist, and a required seal is to tell so."""
    try:
        return list_files(where, filesystem, every_link=True, folder_links=links)
    except FileNotFoundError:
        if seal is None or isinstance(where, list | tuple):
            raise
        return []
