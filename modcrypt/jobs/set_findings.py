"""Findings from comparing the files of a set: shared prefixes, parts, copies, and rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from modcrypt.errors import ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.jobs.listing import MAX_LISTED
from modcrypt.parquet.datasets.aad_prefixes import PrefixTemplate, find_numbers, find_part_faults
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.findings import Finding, Unauthenticated
from modcrypt.parquet.signatures.signers import DatasetSeal
from modcrypt.parquet.verify.file_verification import CheckedFile, FileAad
from modcrypt.report.text import format_count

Groups: TypeAlias = Mapping[bytes, Sequence[str]]
"""Paths of several files, by a part of their AAD that they share."""

Shape: TypeAlias = tuple[int | None, int | None]
"""Size of a file in bytes, and its number of rows if that is authenticated."""


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


def find_shared_unique(count: int, names: str, *, alike: bool, rows_differ: bool) -> Finding:
    """Return the finding about files that have the same `aad_file_unique`.

    PyArrow draws it once for a properties object, so files that were written with one object share
    it. Copies, and versions of a file that modcrypt rotated or re-keyed, have the same rows.

    Args:
        alike: Whether two of them have the same size and number of rows.
        rows_differ: Whether all have different numbers of rows, which are authenticated.
    """
    message = f"{count:,} files have the same aad_file_unique, which is random: {names}. "
    if rows_differ:
        message += (
            f"Their numbers of rows differ, so they are not copies: {_REUSED}, unless a holder of "
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


_Item = TypeVar("_Item")


def _group(items: Iterable[tuple[bytes | None, _Item]]) -> dict[bytes, list[_Item]]:
    """Return the items that share their first part."""
    groups: defaultdict[bytes, list[_Item]] = defaultdict(list)
    for content, item in items:
        if content:
            groups[content].append(item)
    return {content: several for content, several in groups.items() if len(several) > 1}


class FileSet:
    """The files of a set, and what comparing them with each other finds."""

    def __init__(
        self, places: Sequence[Place], files: Sequence[CheckedFile], parts: dict[int, int],
        earlier: Sequence[tuple[Place, FileAad]],
    ) -> None:  # fmt: skip
        self._places, self._files, self._parts = places, files, parts
        self._aads = [*zip(places, (file.aad for file in files), strict=True), *earlier]
        self.findings: list[Finding] = []
        self.notes: list[Unauthenticated] = []

    def _add_finding(self, word: str, message: str, severity: Severity = "fault") -> None:
        self.findings.append(Finding(word=word, message=message, severity=severity))

    def _add_note(self, what: str, why: str) -> None:
        self.notes.append(Unauthenticated(what=what, path=None, why=why))

    def compare_parts(self, template: PrefixTemplate, expected: int | None) -> None:
        """Report missing, duplicate and surplus parts, and exchanged names."""
        named = [(self._places[number].path, part) for number, part in self._parts.items()]
        for fault in find_part_faults(sorted(named), expected, template):
            self._add_finding("aad-prefix", fault)
        if expected is None and self._parts:
            self._warn_about_gaps(template, set(self._parts.values()))
        if expected is None:
            why = "their number is not known, so the last ones may be missing; pass expected_parts"
            self._add_note("parts", why)
        self._compare_names(template)

    def _warn_about_gaps(self, template: PrefixTemplate, parts: set[int]) -> None:
        last = max(parts)  # unbounded: a file may claim to be part 9,999,999,999
        if missing := last + 1 - len(parts):
            first = islice((part for part in range(last) if part not in parts), MAX_LISTED)
            names = ", ".join(repr(template.prefix(part)) for part in first)
            more = f" and {missing - MAX_LISTED} more" if missing > MAX_LISTED else ""
            message = f"{format_count(missing, 'part')} missing before the last one: {names}{more}"
            self._add_finding("aad-prefix", message, "warning")

    def _compare_names(self, template: PrefixTemplate) -> None:
        """Report files that have each other's names, if names contain the part number."""
        if (position := self._find_part_in_names()) is None:
            return
        by_name = {
            number: numbers[position]
            for number in self._parts
            if len(numbers := find_numbers(self._places[number].path)) > position
        }
        parts = set(self._parts.values())
        for number, named_part in sorted(by_name.items()):
            part = self._parts[number]
            if named_part != part:
                severity: Severity = "fault" if named_part in parts else "warning"
                self._add_finding(
                    "aad-prefix",
                    f"{self._places[number].path} is {template.prefix(part)!r} by its AAD prefix, "
                    f"and part {named_part} by its name: files were exchanged or renamed",
                    severity,
                )

    def _find_part_in_names(self) -> int | None:
        """Return which of the numbers in a file name is the part number, in most files."""
        votes: Counter[int] = Counter()
        for number, part in self._parts.items():
            for position, named_part in enumerate(find_numbers(self._places[number].path)):
                votes[position] += named_part == part
        if not votes:
            return None
        position, count = votes.most_common(1)[0]
        # If two files were exchanged, neither has its own number in its name.
        numbers = [find_numbers(self._places[number].path) for number in self._parts]
        if 2 * count > len(self._parts):
            return position
        same = [
            position
            for position in range(min(map(len, numbers)))
            if sorted(row[position] for row in numbers) == sorted(self._parts.values())
        ]
        return same[-1] if same else None

    def report_unidentified(self, why: dict[int, str]) -> None:
        """Report files that are none of the parts, or may be any part."""
        for number, reason in sorted(why.items()):
            path = self._places[number].path
            if reason:
                self._add_finding("aad-prefix", f"{path}: cannot tell which part it is: {reason}")
            else:
                text = "it stores no AAD prefix, and there is no footer key to identify the part"
                self._add_note("parts", f"{path}: {text}")
        if any(self._files[number].verification.modules == 0 for number in self._parts):
            self._add_note("parts", "stored AAD prefixes are unverified: there is no footer key")

    def group_by_prefix(self) -> Groups:
        """Return the paths of the files that share an AAD prefix."""
        return _group((aad.prefix, place.path) for place, aad in self._aads)

    def group_by_unique(self) -> Mapping[bytes, Sequence[tuple[str, Shape]]]:
        """Return the paths and shapes of the files that share their `aad_file_unique`."""
        return _group((aad.unique, (place.path, (aad.size, aad.rows))) for place, aad in self._aads)

    def check_row_count(self, expected: int | None) -> None:
        """Compare the number of rows of all files with the expected number."""
        if expected is None:
            return
        counts = [file.verification.num_rows for file in self._files]
        rows = sum(count for count in counts if count is not None)
        if None in counts:
            why = f"number of rows unknown in {format_count(counts.count(None), 'file')}"
            self._add_note("rows", why)
        elif rows != expected:
            self._add_finding(
                "truncation",
                f"the files have {rows} rows, but {expected} are expected: files or row groups "
                "were dropped or added",
            )

    def note_hidden_files(self, places: Sequence[Place]) -> None:
        """Note the files that notes about writes hide from readers; anyone can write such notes."""
        if places:
            names = list_names([place.path for place in places], MAX_LISTED)
            why = (
                f"notes in {NOTES} hide {names} from readers, as while a write is in progress; "
                "nothing authenticates notes"
            )
            self._add_note("files", why)
