"""List the files of a dataset once, and find out which its seal names besides.

`verify` processes this listing in threads and on Spark: what it does not name is not verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modcrypt.errors import ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.jobs.listing import File, Folder, list_tables
from modcrypt.parquet.datasets.discovery import find_hidden
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.signatures.signers import DatasetSeal

MAX_LISTED = 20
"""Maximum number of names listed in one message."""


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The files of folders, and single files, each listed once.

    Attributes:
        files: Files that readers read, sorted by path.
        hidden: Files that notes about writes hide from readers of their folder.
        folders: Folders and files that were named, without those that have no files.
        missing: Findings about files that the required seal names, and that are not there.
        links: Symbolic links to folders whose files are listed anyway.
    """

    files: list[File]
    hidden: list[Place]
    folders: list[Folder]
    missing: list[Finding]
    links: list[Place]

    @property
    def findings(self) -> list[Finding]:
        """The findings about missing files and links."""
        return [*self.missing, *find_links([link.path for link in self.links])]

    @property
    def linked_files(self) -> list[Place]:
        """The files that are symbolic links to others: jobs that write process each file once."""
        linked = [file.place for file in self.files if file.place.is_linked]
        own = {file.place.resolve().path for file in self.files if file.place not in linked}
        return [place for place in linked if place.resolve().path in own]


def list_dataset(
    folders: Sequence[Folder], seal: DatasetSeal | None = None, glob: str | None = None
) -> DatasetFiles:
    """List the files of folders without hidden files, and single files.

    Args:
        folders: Folders and files.
        seal: Seal that the caller requires: files that it names and that are missing are findings,
            even if nothing else is left of a folder.
        glob: Pattern that the paths of files inside their folder must match; None for all.

    Raises:
        FileNotFoundError: A folder or file does not exist, and the seal names nothing in it.
        ValueError: A folder has no matching files, and the seal names none; or notes hide all.
        FormatError: A note about a write is damaged.
    """
    if not folders:
        raise ValueError("there are no files: the list is empty")
    files: dict[str, File] = {}
    found = DatasetFiles([], [], [], [], [])
    for folder in folders:
        shown, hidden, lost = _list_folder(folder, seal, glob, found.links)
        if shown or not lost:
            found.folders.append(folder)
        found.missing.extend(lost)
        found.hidden.extend(hidden)
        files |= {file.place.full_name: file for file in shown}
    found.files.extend(sorted(files.values(), key=lambda file: file.place.path))
    if not (files or found.missing):
        names = list_names([place.listed_name for place in found.hidden], MAX_LISTED)
        raise ValueError(f"notes in {NOTES} hide all files from readers: {names}")
    return found


def _list_folder(
    folder: Folder, seal: DatasetSeal | None, glob: str | None, links: list[Place]
) -> tuple[list[File], list[Place], list[Finding]]:
    """Return the files of a folder or a single file, its hidden files, and what is missing."""
    try:
        listed = list_tables([folder], glob=glob, links=links)
    except (FileNotFoundError, ValueError):
        if lost := find_missing_files(seal, folder.place, ()):
            return [], [], lost
        raise
    hidden = find_hidden([file.place for file in listed])
    paths = {place.path for place in hidden}
    shown = [file for file in listed if file.place.path not in paths]
    places = [file.place for file in shown]
    is_file = places == [folder.place]
    return shown, hidden, [] if is_file else find_missing_files(seal, folder.place, places)


def find_missing_files(
    seal: DatasetSeal | None, folder: Place, places: Iterable[Place]
) -> list[Finding]:
    """Report files below a folder that its seal names, if one is required, and that are missing."""
    if seal is None:
        return []
    paths = [str(place.inside(folder)) for place in places]
    return compare_with_seal(seal.with_root(folder), folder, paths, MAX_LISTED)


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
