"""Verify the files of a folder, one by one and as a set: none missing, foreign or there twice.

Each file is verified by itself; what tells a set is the AAD prefix, by which the writer named each
file, and `aad_file_unique`, which no two files share.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

from modcrypt.errors import (
    AadPrefixError,
    KeyMaterialError,
    KeyRetrievalError,
    ModcryptError,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.io.buffers import check_threads, usable_cores
from modcrypt.io.storage import Place, Source
from modcrypt.parquet.crypto.footer import stored_prefix
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, check_decryption
from modcrypt.parquet.datasets.aad_prefixes import PrefixTemplate, identify_part, part_faults
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.framing import read_tail
from modcrypt.parquet.verify.file_verification import CheckedFile, check_expected, verify_source
from modcrypt.parquet.verify.findings import (
    FILE,
    DatasetVerification,
    Finding,
    Unauthenticated,
    Verification,
    list_names,
)

__all__ = ["verify_dataset"]

Decryption: TypeAlias = "FileDecryptionProperties | Callable[[str], FileDecryptionProperties]"
"""The properties of all files, or a function that gives those of the file with a path."""

MAX_FILES = 8
"""Files that are verified at the same time, by default."""

LISTED = 20
"""Names told in one message."""


def verify_dataset(
    where: Any,
    properties: Decryption | None = None,
    *,
    filesystem: Any = None,
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    expected_rows: int | None = None,
    shared_aad_prefix: bool = False,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
    each: Callable[[str, Verification], object] | None = None,
    regions: bool = False,
) -> DatasetVerification:
    """Check the Parquet files of a folder, as `verify_parquet` does, and that they are a whole set.

    Args:
        where: path or URL of a folder or file, or a list of them. Names that begin with a dot or
            an underscore are passed over.
        properties: keys, and what the caller insists on; a function gives them by path; None for
            no keys.
        filesystem: of pyarrow or fsspec, in which the paths are.
        aad_prefix_template: each file must have an AAD prefix of its own, which is this with a
            number in the place of `{i}`, stored in it or not.
        expected_parts: the set must have the parts 0 to `expected_parts` - 1 of the template.
        expected_rows: of all files together, known from elsewhere.
        shared_aad_prefix: Allow several files with the same AAD prefix where `properties` demand
            one. It is a warning then, as it is where no prefix is demanded.
        jobs: files verified at the same time; None chooses.
        progress: called now and then, in the calling thread, with the bytes checked so far.
        each: called, in the calling thread, with the path and result of each file when it is done.
        regions: as of `verify_parquet`.

    Returns:
        What was found in each file, and in the set.

    Raises:
        ValueError: there are no files, or arguments don't go together.
        TypeError: an argument is of another kind.
        OSError: from the file system: a file or folder that is named is not there. A file that
            is there and can't be read is a finding.
    """
    _check_arguments(properties, aad_prefix_template, expected_parts, jobs)
    check_expected(expected_rows)
    places = list_files(where, filesystem)
    if not places:
        raise ValueError(f"there are no files in {where!r}")
    template = None if aad_prefix_template is None else PrefixTemplate(aad_prefix_template)
    run = _Run(places, properties, template, expected_parts, regions)
    files = run.check(jobs, progress, each)
    found = _Set(places, files, run.parts)
    if template is None:
        found.compare_prefixes(fault=run.demands_prefix and not shared_aad_prefix)
    else:
        found.compare_parts(template, expected_parts)
        found.unidentified(run.unidentified)
    found.compare_uniques()
    found.count_rows(expected_rows)
    return DatasetVerification(
        files=tuple(file.verification for file in files),
        findings=tuple(found.findings),
        not_authenticated=tuple(found.notes),
    )


def _check_arguments(
    properties: Decryption | None, template: str | None, parts: int | None, jobs: int | None
) -> None:
    if isinstance(properties, FileDecryptionProperties):
        _check_prefix(properties, with_template=template is not None)
    elif properties is not None and not callable(properties):
        check_decryption(properties)
    if parts is not None and template is None:
        raise ValueError("expected_parts are counted by their aad_prefix_template")
    if parts is not None and parts < 1:
        raise ValueError("expected_parts is a number, at least 1")
    check_threads(jobs)


def _check_prefix(properties: FileDecryptionProperties, *, with_template: bool) -> None:
    check_decryption(properties)
    prefix = properties.aad_prefix or properties.aad_prefix_verifier
    if with_template and prefix is not None:
        raise ValueError("give aad_prefix_template, or a prefix or verifier, not both")


# --- the files -----------------------------------------------------------------------------------


@dataclass
class _Run:
    """The files on their way."""

    places: list[Place]
    properties: Decryption | None
    template: PrefixTemplate | None
    expected: int | None
    regions: bool
    parts: dict[int, int] = field(default_factory=dict)  # by file, which part it is
    unidentified: dict[int, str] = field(default_factory=dict)  # by file, why that is not known
    demands_prefix: bool = False  # of any file
    _done: Counter[int] = field(default_factory=Counter)  # by file, bytes
    _lock: threading.Lock = field(default_factory=lambda: fork_safe(threading.Lock()))

    def check(
        self,
        jobs: int | None,
        progress: Callable[[int], None] | None,
        each: Callable[[str, Verification], object] | None,
    ) -> list[CheckedFile]:
        """Verify all files, some at the same time; a file alone may have several threads."""
        count = len(self.places)
        jobs = min(usable_cores(), MAX_FILES) if jobs is None else jobs
        jobs = min(jobs, count)
        threads = None if count == 1 else 1
        pool = ThreadPoolExecutor(jobs, "modcrypt-verify-file")
        try:
            futures = [pool.submit(self._file, number, threads) for number in range(count)]
            paths = {future: place.path for future, place in zip(futures, self.places, strict=True)}
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    checked = future.result()  # an error ends it all
                    if each is not None:
                        each(paths[future], checked.verification)
                if progress is not None:
                    with self._lock:
                        total = self._done.total()
                    progress(total)
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _file(self, number: int, threads: int | None) -> CheckedFile:
        def note(done: int) -> None:
            with self._lock:
                self._done[number] = done

        place = self.places[number]
        properties = self._properties(place)
        try:
            with place.open() as source:
                if self.template is not None:
                    properties = self._identified(number, source, properties, self.template)
                return verify_source(
                    source, properties, threads=threads, progress=note, regions=self.regions
                )
        except OSError as error:  # of ten thousand files, one must not hide the others
            return _unreadable(place, error)

    def _properties(self, place: Place) -> FileDecryptionProperties | None:
        given = self.properties
        if callable(given):
            given = given(place.path)
            _check_prefix(given, with_template=self.template is not None)
        if given is not None and (given.aad_prefix or given.aad_prefix_verifier):
            self.demands_prefix = True
        return given

    def _identified(
        self,
        number: int,
        source: Source,
        properties: FileDecryptionProperties | None,
        template: PrefixTemplate,
    ) -> FileDecryptionProperties | None:
        """Find out which part a file is, and demand its prefix."""
        known = properties or FileDecryptionProperties()
        known = replace(known, check_footer_integrity=True, on_missing_key="drop")
        try:
            part, _ = identify_part(source, known, template, self._guesses(number))
        except KeyMaterialError as error:
            self.unidentified[number] = f"{type(error).__name__}: {error}"
            return properties
        except KeyRetrievalError:  # which verifying the file tells
            self._by_word(number, source, template)
            return properties
        except ModcryptError as error:
            self.unidentified[number] = f"{type(error).__name__}: {error}"
            return properties
        self.parts[number] = part
        return replace(known, aad_prefix=template.prefix(part))

    def _by_word(self, number: int, source: Source, template: PrefixTemplate) -> None:
        """Take the prefix that a file stores at its word: there is no key to check it with."""
        try:
            stored = stored_prefix(read_tail(source), source.name)
        except ModcryptError as error:
            self.unidentified[number] = str(error)
            return
        part = None if stored is None else template.part(stored)
        if part is not None:
            self.parts[number] = part
        elif stored is not None:
            self.unidentified[number] = str(_foreign(source.name, stored))
        else:
            self.unidentified[number] = ""  # it may be any

    def _guesses(self, number: int) -> list[int]:
        """Give the parts that a file may be, the likeliest first: those that its name tells."""
        count = len(self.places) if self.expected is None else self.expected
        likely = (*_numbers(self.places[number]), number)
        known = [part for part in likely if self.expected is None or part < self.expected]
        return list(dict.fromkeys((*known, *range(count))))


def _unreadable(place: Place, error: OSError) -> CheckedFile:
    """Give the verification of a file that could not be read."""
    reason = error.strerror or type(error).__name__
    finding = Finding(word=FILE, message=f"{place.path} could not be read: {reason}")
    note = Unauthenticated(what="file", path=None, why="it could not be read")
    verification = Verification(
        name=place.path,
        size=0,
        encrypted=False,
        footer_mode="none",
        algorithm=None,
        num_rows=None,
        row_groups=0,
        columns=(),
        modules=0,
        authenticated_bytes=0,
        findings=(finding,),
        not_authenticated=(note,),
    )
    return CheckedFile(verification, None, None)


def _foreign(name: str, prefix: bytes) -> AadPrefixError:
    return AadPrefixError(
        f"{name}: a foreign file: its AAD prefix {prefix[:200]!r} is not of the template"
    )


def _numbers(place: Place) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]{1,9}", place.name)]


# --- the set -------------------------------------------------------------------------------------


class _Set:
    """Holds the files against each other."""

    def __init__(
        self, places: Sequence[Place], files: Sequence[CheckedFile], parts: dict[int, int]
    ) -> None:
        self._places, self._files, self._parts = places, files, parts
        self.findings: list[Finding] = []
        self.notes: list[Unauthenticated] = []

    def _tell(self, word: str, message: str, severity: Severity = "fault") -> None:
        self.findings.append(Finding(word=word, message=message, severity=severity))

    def compare_parts(self, template: PrefixTemplate, expected: int | None) -> None:
        """Say which parts are missing, there twice or too many, and which names were exchanged."""
        named = [(self._places[number].path, part) for number, part in self._parts.items()]
        for fault in part_faults(sorted(named), expected, template):
            self._tell("aad-prefix", fault)
        if expected is None and self._parts:
            self._tell_gaps(template, set(self._parts.values()))
        if expected is None:
            self.notes.append(
                Unauthenticated(
                    what="parts",
                    path=None,
                    why="how many there must be is not known: the last ones may be missing; "
                    "expected_parts says it",
                )
            )
        self._compare_names(template)

    def _tell_gaps(self, template: PrefixTemplate, parts: set[int]) -> None:
        last = max(parts)  # of any size: a file may claim to be part 9,999,999,999
        if missing := last + 1 - len(parts):
            first = islice((part for part in range(last) if part not in parts), LISTED)
            names = ", ".join(repr(template.prefix(part)) for part in first)
            more = f" and {missing - LISTED} more" if missing > LISTED else ""
            message = f"{missing} parts before the last one are missing: {names}{more}"
            self._tell("aad-prefix", message, "warning")

    def _compare_names(self, template: PrefixTemplate) -> None:
        """Say which files have each other's names, where names tell the part."""
        place = self._number_in_name()
        if place is None:
            return
        by_name = {
            number: numbers[place]
            for number in self._parts
            if len(numbers := _numbers(self._places[number])) > place
        }
        parts = set(self._parts.values())
        for number, said in sorted(by_name.items()):
            part = self._parts[number]
            if said != part:
                severity: Severity = "fault" if said in parts else "warning"
                self._tell(
                    "aad-prefix",
                    f"{self._places[number].path} is {template.prefix(part)!r} by its AAD prefix, "
                    f"and part {said} by its name: files were exchanged or renamed",
                    severity,
                )

    def _number_in_name(self) -> int | None:
        """Find the number in file names that is the part's, in most files."""
        votes: Counter[int] = Counter()
        for number, part in self._parts.items():
            for place, said in enumerate(_numbers(self._places[number])):
                votes[place] += said == part
        if not votes:
            return None
        place, count = votes.most_common(1)[0]
        # Two files that were exchanged are none of them where they belong.
        numbers = [_numbers(self._places[number]) for number in self._parts]
        if 2 * count > len(self._parts):
            return place
        same = [
            place
            for place in range(min(map(len, numbers)))
            if sorted(row[place] for row in numbers) == sorted(self._parts.values())
        ]
        return same[-1] if same else None

    def unidentified(self, why: dict[int, str]) -> None:
        """Tell of files that are none of the parts, or may be any."""
        for number, reason in sorted(why.items()):
            path = self._places[number].path
            if reason:
                self._tell("aad-prefix", f"{path}: which part it is can't be told: {reason}")
            else:
                text = "it stores no AAD prefix, and there is no footer key to find out by"
                self.notes.append(Unauthenticated(what="parts", path=None, why=f"{path}: {text}"))
        for number in self._parts:
            if self._files[number].verification.modules == 0:
                self.notes.append(
                    Unauthenticated(
                        what="parts",
                        path=None,
                        why="AAD prefixes are taken at the files' word: there is no footer key",
                    )
                )
                return

    def compare_prefixes(self, *, fault: bool) -> None:
        """Report files with the same AAD prefix: each should have its own."""
        for prefix, paths in self._groups(lambda file: file.prefix):
            self._tell(
                "aad-prefix",
                f"{len(paths)} files have the same AAD prefix {prefix[:200]!r}, so that one can be "
                f"put in the place of another: {list_names(paths, LISTED)}",
                "fault" if fault else "warning",
            )

    def compare_uniques(self) -> None:
        """Say which files are copies of each other."""
        for _, paths in self._groups(lambda file: file.unique):
            self._tell(
                "integrity",
                f"{len(paths)} files have the same aad_file_unique, which is random: they are "
                f"copies of one file, or versions of it: {list_names(paths, LISTED)}",
            )

    def _groups(
        self, value: Callable[[CheckedFile], bytes | None]
    ) -> Iterator[tuple[bytes, list[str]]]:
        groups: defaultdict[bytes, list[str]] = defaultdict(list)
        for place, file in zip(self._places, self._files, strict=True):
            if found := value(file):
                groups[found].append(place.path)
        return ((found, paths) for found, paths in groups.items() if len(paths) > 1)

    def count_rows(self, expected: int | None) -> None:
        """Hold the number of all rows against what is known from elsewhere."""
        if expected is None:
            return
        counts = [file.verification.num_rows for file in self._files]
        rows = sum(count for count in counts if count is not None)
        if None in counts:
            why = f"{counts.count(None)} files don't tell how many rows they have"
            self.notes.append(Unauthenticated(what="rows", path=None, why=why))
        elif rows != expected:
            self._tell(
                "truncation",
                f"the files have {rows} rows, {expected} are expected: files or row groups were "
                "left out or added",
            )
