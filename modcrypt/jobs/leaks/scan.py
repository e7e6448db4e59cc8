"""Find values of encrypted columns outside the ciphertext: `find_leaks`."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from modcrypt.errors import LimitError, PlaintextError, list_names
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.jobs.leaks.exposure import (
    REMEDIES,
    Columns,
    Contents,
    Exposure,
    ObservedColumns,
    Secrecy,
    expose,
)
from modcrypt.jobs.leaks.file_contents import describe_file, describe_partitions
from modcrypt.kms.policy import Policy
from modcrypt.kms.settings import Settings
from modcrypt.parquet.datasets.discovery import as_arrow, is_dataset, list_sizes
from modcrypt.parquet.format.findings import Finding
from modcrypt.report.json_fields import JsonFields
from modcrypt.runtime.former_names import accept_former_names

MAX_FILES = 1_000_000
"""Largest number of files in a folder that is searched."""

MAX_COLUMNS = 100
"""Largest number of columns that a leak names."""

Progress: TypeAlias = Callable[[int], object]

_THREADS = 8  # files examined concurrently: stores take a request for each


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLeak(JsonFields):
    """Values of secret columns that anyone who can read the folder can read.

    Attributes:
        kind: Stable word for the kind: a key of `REMEDIES`, such as `"delta-log"`.
        path: Path of the file; or of the folder, for table logs and names of partitions.
        columns: Names of the secret columns, as far as they are known; never their values.
        what: What is readable there.
        remedy: What to do about it.
        files: Number of files that this leak stands for.
    """

    kind: str
    path: str
    columns: tuple[str, ...] = ()
    what: str
    remedy: str
    files: int = 1

    def as_fault(self) -> Finding:
        """Return the leak as a fault of the verification of its folder."""
        return Finding(word=PlaintextError.word, message=str(self))

    def __str__(self) -> str:
        """Return the leak in a sentence."""
        columns = f"; columns: {list_names(self.columns)}" if self.columns else ""
        return f"{self.path}: {self.what} ({self.kind}{columns}): {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class LeakReport(JsonFields):
    """The result of `find_leaks`.

    Attributes:
        leaks: Leaks in the order of their paths.
        files: Number of files that were examined.
        encrypted: Number of these that are encrypted.
    """

    leaks: tuple[ValueLeak, ...]
    files: int = 0
    encrypted: int = 0

    _first = ("ok",)

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.leaks


@accept_former_names(where="source")
def find_leaks(
    source: Any,
    settings: Settings | Policy | None = None,
    *,
    filesystem: Any = None,
    progress: Progress | None = None,
) -> LeakReport:
    """Find values of encrypted columns that lie beside the encrypted files in plaintext.

    Every file of the folder is examined, hidden ones too: summaries of footers, logs and statistics
    of table formats, plaintext copies, leftovers of programs, and names of partitions. Files of
    unknown formats are not reported, nor is text in documents and logs.

    Args:
        source: Path or URL of a folder, or of a file.
        settings: Settings with a policy, or a policy, that names the secret columns; those that it
            does not list as plaintext are secret, too, also in names of partitions. None for those
            that any encrypted file of the folder encrypts; all, if its footer is encrypted.
        filesystem: PyArrow or fsspec file system that contains the path.
        progress: Function called after each file with the number of all files.

    Returns:
        What was found; values are not repeated.

    Raises:
        ValueError: No file is encrypted, and no policy tells which columns are secret.
        LimitError: The folder has more than `MAX_FILES` files.
        OSError: The path does not exist, or a folder cannot be listed.

    Examples:
        >>> import pathlib, modcrypt
        >>> folder = pathlib.Path("people")
        >>> folder.mkdir()
        >>> _ = (folder / "people.csv").write_text("name,ssn")
        >>> policy = modcrypt.Policy(footer_key="footer", column_keys={"pii": ["ssn"]})
        >>> [(leak.kind, leak.columns) for leak in modcrypt.jobs.find_leaks(folder, policy).leaks]
        [('plaintext-data', ('ssn',))]
    """
    report = search_folder(Place(*locate(source, filesystem)), settings, progress)
    if report is None:
        raise ValueError(
            f"no file in {source} is encrypted, so nothing tells which columns are secret; "
            "pass a policy"
        )
    return report


def search_folder(
    folder: Place, settings: Settings | Policy | None, progress: Progress | None = None, *,
    partitions: bool = True,
) -> LeakReport | None:  # fmt: skip
    """Return the result of `find_leaks` for a folder; None if nothing tells what is secret.

    `partitions` tells whether a policy covers partitions that it does not name.
    """
    found = Folder.scan(folder, progress=progress)
    policy = settings.policy if isinstance(settings, Settings) else settings
    if policy is not None:
        return found.judge(replace(Secrecy.of_policy(policy), partitions=partitions))
    named = settings.column_keys if isinstance(settings, Settings) else ()
    if not found.encrypted and not named:
        return None
    return found.judge(found.observed.secrecy(named))


def find_leak_faults(sources: Iterable[str], settings: Settings | None) -> list[Finding]:
    """Return the leaks of those sources that are folders as faults of their verification."""
    folders = (Place(*locate(source, None)) for source in sources if is_dataset(source, None))
    # Encryption accepts these partitions, so verification does, too.
    reports = (search_folder(folder, settings, partitions=False) for folder in folders)
    return [leak.as_fault() for report in reports if report is not None for leak in report.leaks]


@dataclass(kw_only=True)
class Folder:
    """The contents that the files of a folder show, whichever columns are secret."""

    exposures: list[Exposure] = field(default_factory=list)
    # What encrypted files encrypt, as far as it shows without keys.
    observed: ObservedColumns = field(default_factory=ObservedColumns)
    files: int = 0
    encrypted: int = 0
    # Number of folders with values in their names, by what they show.
    partitions: Counter[Exposure] = field(default_factory=Counter)
    _last: str = ""  # folder of the file before
    _columns: dict[Columns, Columns] = field(default_factory=dict)  # equal sets, once

    @classmethod
    def scan(
        cls, root: Place, *, skip: Callable[[str], bool] = lambda _inside: False,
        progress: Progress | None = None,
    ) -> Folder:  # fmt: skip
        """Examine the files of a folder, except those for whose path in it `skip` is true."""
        found = cls()
        threads = _THREADS if root.filesystem is not None else min(_THREADS, usable_cores())
        for contents in in_threads(_examine, found._take_files(root, skip), threads):
            found._add(contents)
            if progress is not None:
                progress(found.files)
        return found

    def _take_files(
        self, root: Place, skip: Callable[[str], bool]
    ) -> Iterator[tuple[Place, str, bool]]:
        """Yield the files to examine, and note the folders of all."""
        number = 0
        for place, is_closed in list_all_files(root):
            inside = place.path[len(root.path) :].lstrip("/") or place.name
            folder = posixpath.dirname(inside)
            if folder != self._last and "=" in folder:
                self.partitions.update(describe_partitions(root.path, folder))
            self._last = folder
            if not posixpath.basename(inside) or skip(inside):
                continue
            number += 1
            if number > MAX_FILES:
                raise LimitError(f"the folder has more than {MAX_FILES} files; name folders in it")
            yield place, inside, is_closed

    def _add(self, contents: Contents) -> None:
        self.files += 1
        self.encrypted += contents.is_encrypted
        self.observed.add(contents)
        for shown in contents.exposures:
            columns = self._columns.setdefault(shown.columns, shown.columns)
            self.exposures.append(replace(shown, columns=columns))

    def judge(self, secrecy: Secrecy) -> LeakReport:
        """Return the leaks of secret columns."""
        merged: dict[tuple[str, str], tuple[set[str], Exposure, int]] = {}
        counted = [*((shown, 1) for shown in self.exposures), *self.partitions.items()]
        for exposure, files in counted:
            if (columns := secrecy.find_columns(exposure)) is None:
                continue
            place = exposure.path, exposure.kind
            names, first, count = merged.get(place, (set(), exposure, 0))
            merged[place] = names | set(columns), first, count + files
        leaks = [
            ValueLeak(
                kind=kind, path=path, columns=tuple(sorted(names)[:MAX_COLUMNS]), what=first.what,
                remedy=REMEDIES[kind], files=count,
            )
            for (path, kind), (names, first, count) in sorted(
                merged.items(), key=lambda item: item[0]
            )
        ]  # fmt: skip
        return LeakReport(leaks=tuple(leaks), files=self.files, encrypted=self.encrypted)


def _examine(file: tuple[Place, str, bool]) -> Contents:
    place, inside, is_closed = file
    if is_closed:
        what = "a folder that cannot be listed, or a link to one elsewhere, which is not followed"
        return expose("unread", place.path, what, anything=True)
    return describe_file(place, inside)


def list_all_files(root: Place) -> Iterator[tuple[Place, bool]]:
    """Yield files, also hidden ones, and folders that are closed; and whether it is such a folder.

    Links to folders elsewhere, and folders that cannot be listed, are closed. Empty local folders,
    whose names may have values, are yielded with a slash at the end.
    """
    if root.filesystem is None:
        yield from _walk(root)
        return
    if not is_dataset(root.path, root.filesystem):
        if not as_arrow(root.filesystem).get_file_info(root.path).is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root.full_name)
        yield root, False
        return
    for path in list_sizes(root.filesystem, root.path, hidden=True):
        yield Place(root.filesystem, path, root.path), False


def _walk(root: Place) -> Iterator[tuple[Place, bool]]:
    if not stat.S_ISDIR(os.stat(root.path).st_mode):
        yield root, False
        return
    top = os.path.join(os.path.realpath(root.path), "")
    closed = list[str]()
    os.listdir(root.path)  # raises if the folder itself cannot be listed
    for base, folders, names in os.walk(
        root.path, onerror=lambda error: closed.append(os.fsdecode(error.filename))
    ):
        folders.sort()
        for name in sorted(names) if names or folders else [""]:
            yield Place(None, os.path.join(base, name), root.path), False
        for name in folders:
            path = os.path.join(base, name)
            if os.path.islink(path):
                real = os.path.join(os.path.realpath(path), "")
                if not real.startswith(top):
                    yield Place(None, path, root.path), True

    yield from ((Place(None, path, root.path), True) for path in closed)
