"""Find what a master key, a version of it, or a KEK protects in the datasets of a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import list_names
from modcrypt.lake.compromise.leak_judgement import LeakJudge
from modcrypt.lake.compromise.leak_reach import LeakReach, ReachSearch
from modcrypt.lake.files.file_states import EXPOSED, KeyUse
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.status import DatasetStatus
from modcrypt.report.json_fields import json_fields
from modcrypt.report.text import format_count, format_size

SCHEMA = "modcrypt.lake.impact/1"  # the name and version of the lines of JSON


@dataclass(frozen=True, kw_only=True)
class DatasetImpact:
    """The protection by the key in one dataset.

    Attributes:
        dataset: Name of the dataset.
        files: Number of files that the key protects in part or as a whole.
        rows: Number of rows in these files.
        bytes: Size of these files.
        columns: Names of the columns whose own keys it wraps.
        footers: Number of files whose footer key it wraps; without it, they are lost as a whole.
        footer_columns: Largest number of columns in a file that are under the footer key.
        hidden: Number of files whose column keys are hidden by a footer that did not open; they may
            be protected, too.
        snapshots: Ids of the snapshots of an Iceberg table that need it, the newest first.
        lost: Number of files of an Iceberg table that no other key opens.
        place: Folder of copies; empty for the dataset itself.
        opened: Number of these files whose keys could be used.
        not_erased: Paths of files that are declared as erased, but open, under any key.
        rewrapped: Number of files that are under a later key, but whose data keys the key may have
            wrapped before: anyone who had it then may read and forge them.
        rewrapped_snapshots: Ids of the snapshots of a table that lead to such files.
        recipients: Ids, in hex, of the recipients who open these files, too.
        gone: Paths of files that had such data keys and are gone; copies of them would open.
        error: Why the dataset could not be examined, so that all of it is unknown; empty if it was.
        code: Exit code for the error.
    """

    dataset: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    columns: Sequence[str] = ()
    footers: int = 0
    footer_columns: int = 0
    hidden: int = 0
    snapshots: Sequence[int] = ()
    lost: int | None = None
    rewrapped: int = 0
    rewrapped_snapshots: Sequence[int] = ()
    recipients: Sequence[str] = ()
    gone: Sequence[str] = ()
    error: str = ""
    code: int = 0
    place: str = ""
    opened: int = 0
    not_erased: Sequence[str] = ()

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values for JSON."""
        return {"schema": SCHEMA, "kind": "dataset", **json_fields(self, without=("code",))}

    def describe(self) -> list[str]:
        """Return sentences about what leaks and what is lost."""
        name = f"{self.dataset} in {self.place}" if self.place else self.dataset
        if self.error:
            return [f"{name}: not examined: {self.error}"]
        if not self.files:
            other = "no other file" if self.rewrapped else "no file"
            lines = [f"{name}: the key protects {other}"]
        else:
            size = format_size(self.bytes)
            files = format_count(self.files, "file")
            lines = [f"{name}: {files}, {format_count(self.rows, 'row')}, {size}"]
            if self.place:
                lines.append(f"  {self.opened:,} of these copies still open")
            if self.snapshots:
                ids = list_names(map(str, self.snapshots))
                lines.append(f"  {format_count(len(self.snapshots), 'snapshot')}: {ids}")
            lines.append(f"  if the key leaks: {self._leak()} can be read and forged")
            lines.append(f"  if the key is destroyed: {self._loss()}")
        if self.rewrapped:
            files = format_count(self.rewrapped, "file")
            lines.insert(
                0, f"{name}: {files} under later keys may keep data keys that the key "
                "wrapped before: if it leaked, name it in compromised, and apply replaces them"
            )  # fmt: skip
        if self.not_erased:
            files = format_count(len(self.not_erased), "file")
            shown = list_names(self.not_erased)
            lines.append(f"  declared as erased, but open: {files}: {shown}")
        if self.hidden:
            files = format_count(self.hidden, "file")
            what = "with closed footers may have columns under the key"
            if self.lost is not None:
                what = "that cannot be read may lead to files under the key"
            lines.append(f"  unknown: {files} {what}")
        reach = LeakReach(
            recipients=self.recipients, gone=self.gone, snapshots=self.rewrapped_snapshots
        )
        return lines + [f"  {line}" for line in reach.describe()]

    def _leak(self) -> str:
        if self.lost is not None:
            return "these files and snapshots"
        parts = [self._names()] if self.columns else []
        if self.footers:
            columns = format_count(self.footer_columns, "column")
            parts.append(f"the footers and up to {columns} under the footer key")
        return " and ".join(parts)

    def _loss(self) -> str:
        if self.lost is not None:
            return f"{format_count(self.lost, 'file')} can no longer be opened by any key"
        if self.footers:
            return f"{format_count(self.footers, 'file')} can no longer be opened at all"
        verb = "is" if len(self.columns) == 1 else "are"
        return f"{self._names()} {verb} lost, the others stay readable"

    def _names(self) -> str:
        return f"column{'s' * (len(self.columns) > 1)} {', '.join(self.columns)}"


def find_impact(
    status: DatasetStatus, choice: KeyChoice, judge: LeakJudge, place: str = ""
) -> DatasetImpact:
    """Return the impact of a key on a dataset, or on its copy in a folder, given its status.

    `judge` finds the files that the key, which it takes for compromised, may open by old data keys.
    """
    if status.error:
        return DatasetImpact(
            dataset=status.dataset.name, error=status.error, code=status.code, place=place
        )
    found = _find_protected(status, choice, judge)
    opened = sum(
        file.state not in _CLOSED and any(map(choice.matches, file.keys)) for file in status.files
    )
    not_erased = [file.path for file in status.files if file.state == "not-erased"]
    return replace(found, place=place, opened=opened, not_erased=not_erased)


_CLOSED = ("unreadable", "other-keys", "erased")  # states of files whose keys were refused


def _find_protected(status: DatasetStatus, choice: KeyChoice, judge: LeakJudge) -> DatasetImpact:
    rewrapped = sum(
        judge.find_exposure(choice, file, 0.0 if file.state in EXPOSED else None)
        in ("rewrapped", "unknown-age")
        for file in status.files
    )
    if status.find_impact is not None:
        found: DatasetImpact = status.find_impact(choice)
        return replace(found, rewrapped=rewrapped)
    counts: Counter[str] = Counter()
    columns: set[str] = set()
    footer_columns = 0
    for file in status.files:
        matching = [key for key in file.keys if choice.matches(key)]
        if not matching:
            counts["hidden"] += file.rows is None and bool(file.keys)
            continue
        counts.update(files=1, rows=file.rows or 0, bytes=file.size)
        columns.update(key.column for key in matching if key.column is not None)
        if any(key.column is None for key in matching):
            counts["footers"] += 1
            own = sum(key.column is not None for key in file.keys)
            footer_columns = max(footer_columns, (file.encrypted_columns or 0) - own)
    return DatasetImpact(
        dataset=status.dataset.name, files=counts["files"], rows=counts["rows"],
        bytes=counts["bytes"], columns=sorted(columns), footers=counts["footers"],
        footer_columns=footer_columns, hidden=counts["hidden"],
        rewrapped=rewrapped,
    )  # fmt: skip


def add_reach(
    impact: DatasetImpact, status: DatasetStatus, judge: LeakJudge,
    absent: Iterable[tuple[str, Sequence[KeyUse]]],
) -> DatasetImpact:  # fmt: skip
    """Return the impact of a key with what else keeps data keys that it opens.

    Args:
        judge: Judge that takes this key alone for compromised.
        absent: Files that only key material names, with the keys in it.
    """
    snapshots = set[int]()
    (choice,), search = judge.choices, ReachSearch(judge, is_table=status.find_impact is not None)
    for file in status.files:
        modified = 0.0 if file.state in EXPOSED else None
        exposure = judge.find_exposure(choice, file, modified)
        search.add(file, is_exposed=exposure is not None)
        if exposure in ("rewrapped", "unknown-age"):
            snapshots.update(status.snapshots.get(file.path, ()))
    reach = search.finish(absent)
    return replace(
        impact, recipients=reach.recipients, gone=reach.gone,
        rewrapped_snapshots=tuple(sorted(snapshots, reverse=True)),
    )  # fmt: skip
