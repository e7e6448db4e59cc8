"""Verify the files of a dataset, and compare them with each other and with other datasets."""

from __future__ import annotations

import datetime
import hashlib
import posixpath
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from modcrypt.errors import MAX_NAMES, AadPrefixError, list_names
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.leaks.scan import ValueLeak
from modcrypt.jobs.set_findings import compare_with_seal, find_links, find_shared_unique
from modcrypt.kms.signing.required_seal import RequiredSeal
from modcrypt.lake.dataset_leaks import find_dataset_leaks
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.lake_files import LakeFile, LakeFiles
from modcrypt.lake.spool import Spool, take_batches
from modcrypt.lake.state_cache import CorrectFile, StateCache
from modcrypt.lake.verification.erased_check import check_erased
from modcrypt.lake.verification.file_check import NO_AAD, CheckedFile, CheckFiles, FileCheck
from modcrypt.lake.verification.results import LakeVerification, VerifiedFile
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.verify.file_verification import FileAad, identify_source
from modcrypt.report.text import format_count

IsUnchanged: TypeAlias = Callable[[LakeFile, CorrectFile | None], bool]
"""Function that returns whether a file need not be verified: with what is known of it if it was
found correct as it is now, otherwise None."""


Since: TypeAlias = datetime.datetime | Literal["last"]
"""A time of change, or `"last"` for the last verification that found a file correct."""


def choose_unchanged(since: Since | None, resumed: float | None) -> IsUnchanged:
    """Return the function that decides which files `verify` skips.

    `resumed` is when an interrupted verification began; without it and `since`, nothing is skipped,
    whatever the cache contains.
    """

    def is_unchanged(file: LakeFile, known: CorrectFile | None) -> bool:
        if isinstance(since, datetime.datetime):
            return file.modified is not None and file.modified < since.timestamp()
        if known is None:
            return False
        return since == "last" or (resumed is not None and known.time >= resumed)

    return is_unchanged


BATCH = 500
"""Number of files after which results are cached: an interrupted run loses those of a batch."""

FILES_ELSEWHERE = 100_000
"""Number of files that are verified elsewhere at once; this process holds their names."""

MAX_GROUPS = 1000
"""Maximum number of groups of files that are reported; further ones are counted."""


def verify_files(
    files: LakeFiles, policies: DatasetPolicies, cache: StateCache, *, is_unchanged: IsUnchanged,
    check: CheckFiles | None = None, jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LakeVerification:  # fmt: skip
    """Verify the files of a dataset against its declaration, and cache which are correct.

    Args:
        is_unchanged: Function that returns whether a file need not be verified; it is only
            compared with the others.
        check: Function that verifies files elsewhere; None to verify them here.
        progress: Function called with the number of bytes checked here so far.

    Raises:
        OSError, ValueError: The files cannot be listed.
    """
    name = policies.dataset.name
    size = BATCH if check is None else FILES_ELSEWHERE
    check = check_erased(policies, check or FileCheck(policies, jobs, progress).verify)
    erasures = policies.dataset.erasures
    results: Spool[VerifiedFile] = Spool()
    seal, present = policies.required_seal, set[str]()
    skipped, emptied = 0, list[Exception]()
    with closing(FileSet()) as file_set:
        for batch in take_batches(_list_files(files, seal, emptied), size):
            known = cache.load_correct(name, batch)
            if seal is not None:  # which has all paths in memory as well
                present.update(file.path for file in batch)
            unchanged = [
                file for file in batch
                if is_unchanged(file, known.get(file.path)) and not erasures.names(file.path)
            ]  # fmt: skip
            for file in unchanged:
                file_set.add(file.path, _identify_file(policies, file, known.get(file.path)))
            skipped += len(unchanged)
            skip = {file.path for file in unchanged}
            fresh = [file for file in batch if file.path not in skip]
            done = zip(fresh, check(fresh) if fresh else (), strict=True)
            for checked in take_batches(done, BATCH):
                for _, (aad, result) in checked:
                    file_set.add(result.path, aad)
                    results.append(result)
                _note_results(cache, name, checked)
        findings = [*_compare_files(file_set, policies), *_report_strays(files.strays, policies)]
        findings += find_links(files.links, MAX_NAMES)
        if not (results or skipped or files.parts or seal):
            findings.append(_report_empty(erasures.emptied))
        if not files.parts:
            findings += map(ValueLeak.as_fault, find_dataset_leaks(policies, files.is_claimed))
    if seal is not None:
        present.update(files.strays, files.claimed)
        missing = [
            finding
            for part in files.parts or [""]
            if part not in present
            for finding in _find_missing(seal, policies.root.place, part, present)
        ]
        if emptied and not missing:
            raise emptied[0]
        findings += missing
    return LakeVerification(
        dataset=name, location=policies.dataset.location, files=results, findings=findings,
        strays=files.strays, skipped=skipped,
    )  # fmt: skip


def _find_missing(
    seal: RequiredSeal, root: Place, part: str, present: Collection[str]
) -> list[Finding]:
    """Report files in a part of a dataset that its seal names and that are not present."""
    start = posixpath.join(part, "")
    paths = (path.removeprefix(start) for path in present if path.startswith(start))
    return compare_with_seal(seal, root.below(part) if part else root, paths, MAX_NAMES)


def _report_empty(is_erased: bool) -> Finding:
    if is_erased:
        message = "the dataset has no files: all were erased, and removed"
        return Finding(word="empty", message=message, severity="warning")
    return Finding(word="empty", message="the dataset has no files")


def _list_files(
    files: LakeFiles, seal: RequiredSeal | None, emptied: list[Exception]
) -> Iterator[LakeFile]:
    """Yield files; if there are none, and a seal is to tell whether they are lost, note why."""
    listed = iter(files)
    try:
        first = next(listed, None)
    except (FileNotFoundError, ValueError) as error:
        if seal is None:
            raise
        emptied.append(error)
        return
    if first is not None:
        yield first
    yield from listed


def _identify_file(policies: DatasetPolicies, file: LakeFile, known: CorrectFile | None) -> FileAad:
    """Return the AAD that identifies a file that is not verified, without a key."""
    if known is not None:
        return FileAad(known.prefix, known.unique, file.size, known.rows)
    try:
        with open_source_at(policies.place_of(file.path)) as source:
            return identify_source(source, None)
    except OSError:
        return NO_AAD


def _note_results(
    cache: StateCache, name: str, checked: Sequence[tuple[LakeFile, CheckedFile]]
) -> None:
    now = time.time()
    correct = (
        (file, CorrectFile(now, aad.prefix, aad.unique, aad.rows))
        for file, (aad, result) in checked
        if result.ok and file.stamp
    )
    cache.save_correct(name, correct)
    cache.forget_correct(name, [file.path for file, (_, result) in checked if not result.ok])


def _compare_files(file_set: FileSet, policies: DatasetPolicies) -> Iterator[Finding]:
    """Yield findings about prefixes and copies."""
    # All repeated AAD prefixes are one line. Under `{path}` no two files can share a prefix unless
    # one replaces the other.
    shared = list(file_set.find_shared("prefix"))
    severity: Severity = "fault" if policies.dataset.binds_paths else "warning"
    if len(shared) == 1:
        (only,) = shared
        message = (
            f"{only.count:,} files have the same AAD prefix {only.value!r}, so that one can be put "
            f"in the place of another: {only.list_paths()}"
        )
        yield Finding(word=AadPrefixError.word, message=message, severity=severity)
    elif shared:
        number = f"{len(shared):,}" + " or more" * (len(shared) == MAX_GROUPS)
        message = (
            f"{number} AAD prefixes are shared by several files, so that one can be put in the "
            "place of another; use {path} in aad_prefix"
        )
        yield Finding(word=AadPrefixError.word, message=message, severity=severity)
    for files in file_set.find_shared("unique"):
        yield find_shared_unique(
            files.count, files.list_paths(), alike=files.alike, rows_differ=files.rows_differ
        )


def _report_strays(strays: Sequence[str], policies: DatasetPolicies) -> list[Finding]:
    if not strays:
        return []
    first = list_names(strays[:MAX_NAMES])
    more = f" and {len(strays) - MAX_NAMES:,} more" * (len(strays) > MAX_NAMES)
    message = f"{format_count(len(strays), 'file')} in the folder without a dataset: {first}"
    severity: Severity = "fault" if policies.dataset.strict else "warning"
    return [Finding(word="stray", message=message + more, severity=severity)]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Files that share a part of their AAD."""

    value: bytes  # what they share; its beginning if it is long
    count: int  # number of the files
    paths: tuple[str, ...]  # first paths
    alike: bool  # whether two of the files have the same size and number of rows
    rows_differ: bool  # whether all have different numbers of rows

    def list_paths(self) -> str:
        """Return the paths for a message."""
        more = f" and {self.count - len(self.paths):,} more" * (self.count > len(self.paths))
        return ", ".join(self.paths) + more


class FileSet:
    """The files of a set, by the parts of their AAD, which should identify each.

    The set may have any number of files: they are compared in a temporary database on disk.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a temporary file without a name
        columns = "kind TEXT, digest BLOB, value BLOB, path BLOB, size INTEGER, rows INTEGER"
        self._database.execute(f"CREATE TABLE aads ({columns})")

    def add(self, path: str, aad: FileAad) -> None:
        """Add a file."""
        rows = [
            (
                kind,
                hashlib.sha256(value).digest()[:16],
                value[:200],
                path.encode("utf-8", "replace"),
                aad.size,
                aad.rows,
            )
            for kind, value in (("prefix", aad.prefix), ("unique", aad.unique))
            if value
        ]
        self._database.executemany("INSERT INTO aads VALUES (?, ?, ?, ?, ?, ?)", rows)

    def find_shared(self, kind: str) -> Iterator[Sharing]:
        """Yield the values that several files share: of `"prefix"` or `"unique"`."""
        self._database.execute("CREATE INDEX IF NOT EXISTS by_digest ON aads (kind, digest)")
        groups = self._database.execute(
            "SELECT digest, count(*), count(DISTINCT ifnull(size, '') || ' ' || ifnull(rows, '')), "
            "count(DISTINCT rows) FROM aads WHERE kind = ? GROUP BY digest "
            "HAVING count(*) > 1 ORDER BY min(rowid) LIMIT ?",
            [kind, MAX_GROUPS],
        ).fetchall()
        for digest, count, shapes, row_counts in groups:
            rows = self._database.execute(
                "SELECT value, path FROM aads WHERE kind = ? AND digest = ? ORDER BY rowid LIMIT ?",
                [kind, digest, MAX_NAMES],
            ).fetchall()
            paths = tuple(path.decode("utf-8", "replace") for _, path in rows)
            yield Sharing(rows[0][0], count, paths, shapes < count, row_counts == count)

    def close(self) -> None:
        """Remove the database."""
        self._database.close()


def find_overlaps(
    policies: DatasetPolicies, others: Iterable[DatasetPolicies], tables: Mapping[str, Place]
) -> Iterator[Finding]:
    """Yield a fault for each other dataset that claims files of a dataset, too.

    Args:
        tables: Folders of the tables, by their names.
    """
    root = policies.root.place.resolve()
    for other in others:
        place = other.root.place.resolve()
        if place.inside(root) is None and root.inside(place) is None and place != root:
            continue
        claimed = {each.resolve().path for each in _list_places(other)}
        both = (at for at in _list_places(policies) if at.resolve().path in claimed)
        yield from _report_overlap(other.dataset.name, map(policies.path_of, both))
    for name, folder in ((name, folder.resolve()) for name, folder in tables.items()):
        if folder.inside(root) is not None or root.inside(folder) is not None or folder == root:
            places = _list_places(policies)
            both = (at for at in places if at.resolve().inside(folder) is not None)
            yield from _report_overlap(name, map(policies.path_of, both))


def _report_overlap(name: str, both: Iterator[str]) -> Iterator[Finding]:
    if first := list(islice(both, MAX_NAMES)):
        more = ", and more" * (next(both, None) is not None)
        message = f"the dataset {name} claims files, too: {list_names(first)}{more}"
        yield Finding(word="overlap", message=message)


def _list_places(policies: DatasetPolicies) -> Iterator[Place]:
    with suppress(OSError, ValueError):  # the verification of that dataset reports it
        for file in LakeFiles(policies.root, policies.dataset.include):
            yield policies.place_of(file.path)
