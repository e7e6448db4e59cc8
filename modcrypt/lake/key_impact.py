"""Find what a master key, a version of it, or a KEK protects in the datasets of a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcrypt.errors import list_names
from modcrypt.lake.files.file_states import KeyUse
from modcrypt.lake.status import DatasetStatus
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # of an extra
    pass

SCHEMA = "modcrypt.lake.impact/1"
"""The name and version of the lines of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """The keys whose impact is asked for.

    Attributes:
        key: Id of a master key, or of a KEK in hex.
        version: Version of the master key; None for all.
    """

    key: str
    version: str | None = None

    def matches(self, use: KeyUse) -> bool:
        """Return whether a key of a file is wrapped under the chosen key."""
        if use.kek_id is not None and use.kek_id in (self.key, self.key.lower()):
            return True
        return use.master_key_id == self.key and self.version in (None, use.version)


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
    """

    dataset: str
    files: int
    rows: int
    bytes: int
    columns: Sequence[str]
    footers: int
    footer_columns: int
    hidden: int
    snapshots: Sequence[int] = ()
    lost: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            "schema": SCHEMA, "kind": "dataset", **values, "columns": list(self.columns),
            "snapshots": list(self.snapshots),
        }  # fmt: skip

    def describe(self) -> list[str]:
        """Return sentences about what leaks and what is lost."""
        if not self.files:
            lines = [f"{self.dataset}: the key protects no file"]
        else:
            size = format_size(self.bytes)
            files = format_count(self.files, "file")
            lines = [f"{self.dataset}: {files}, {format_count(self.rows, 'row')}, {size}"]
            if self.snapshots:
                ids = list_names(map(str, self.snapshots))
                lines.append(f"  {format_count(len(self.snapshots), 'snapshot')}: {ids}")
            lines.append(f"  if the key leaks: {self._leak()} can be read and forged")
            lines.append(f"  if the key is destroyed: {self._loss()}")
        if self.hidden:
            files = format_count(self.hidden, "file")
            what = "with closed footers may have columns under the key"
            if self.lost is not None:
                what = "that cannot be read may lead to files under the key"
            lines.append(f"  unknown: {files} {what}")
        return lines

    def _leak(self) -> str:
        if self.lost is not None:
            return "these files and snapshots"
        parts = [f"columns {', '.join(self.columns)}"] if self.columns else []
        if self.footers:
            columns = format_count(self.footer_columns, "column")
            parts.append(f"the footers and up to {columns} under the footer key")
        return " and ".join(parts)

    def _loss(self) -> str:
        if self.lost is not None:
            return f"{format_count(self.lost, 'file')} can no longer be opened by any key"
        if self.footers:
            return f"{format_count(self.footers, 'file')} can no longer be opened at all"
        return f"columns {', '.join(self.columns)} are lost, the others stay readable"


def find_impact(status: DatasetStatus, choice: KeyChoice) -> DatasetImpact:
    """Return the impact of a key on a dataset, given its status."""
    if status.find_impact is not None:
        found: DatasetImpact = status.find_impact(choice)
        return found
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
    )  # fmt: skip
