"""Delete and overwrite the rows of a table that a filter chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.row_filter import match_case, parse_filter
from modcrypt.iceberg.read.scan_planning import PlannedFile
from modcrypt.iceberg.write.append import check_properties
from modcrypt.iceberg.write.commit import Table
from modcrypt.iceberg.write.data_writing import Data
from modcrypt.iceberg.write.row_changes import Choice, change_rows
from modcrypt.iceberg.write.row_selection import ALL_ROWS, Candidates, Matching
from modcrypt.iceberg.write.snapshot_writing import MAIN, branch_head
from modcrypt.parquet.arrow.arrow_streams import ArrowStream, open_stream

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion


def delete(
    table: Table,
    delete_filter: str | BooleanExpression,
    snapshot_properties: Mapping[str, str] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN,
) -> Table:
    """Delete the rows that a scan with a filter returns, as a new snapshot on a branch.

    Files all of whose rows match are dropped; others are written again without these rows, and the
    rest keeps its row ids and cells. Rows for which the filter is null stay.

    Args:
        table: Any version of the table; rows of its current version are deleted.
        delete_filter: Condition on rows, as for `IcebergTable.scan`.
        snapshot_properties: Further members of the snapshot's summary.
        case_sensitive: Whether names of columns must have the table's case.
        branch: Name of the branch; one that does not exist begins at the current snapshot.

    Returns:
        The table without the rows; its current version if no row matches.

    Raises:
        ValueError: The filter is invalid, or the branch is a tag.
        UnsupportedFormatError: Read restrictions apply to the table, it has no encryption, or cells
            depend on a column that was renamed or dropped.
        ModcryptError, OSError: As `modcrypt.iceberg.append`.
    """
    choose = _chooser(delete_filter, case_sensitive)
    branch, properties = branch or MAIN, check_properties(snapshot_properties)
    return change_rows(table, choose, branch=branch, properties=properties)[0]


def overwrite(
    table: Table,
    data: Data | ArrowStream,
    overwrite_filter: str | BooleanExpression = ALL_ROWS,
    snapshot_properties: Mapping[str, str] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN,
) -> Table:
    """Replace the rows that a filter chooses by others, in one snapshot.

    Args:
        table: Any version of the table; rows of its current version are replaced.
        data: The new rows, as for `modcrypt.iceberg.append`; they need not match the filter.
        overwrite_filter: Condition on the rows to delete; by default all rows.
        snapshot_properties, case_sensitive, branch: As for `delete`.

    Raises:
        TypeError, ValueError: The data or the filter does not fit the table.
        ModcryptError, OSError: As `delete`.
    """
    choose = _chooser(overwrite_filter, case_sensitive)
    branch, properties = branch or MAIN, check_properties(snapshot_properties)
    rows = data if isinstance(data, pa.Table) else open_stream(data)
    return change_rows(table, choose, branch=branch, properties=properties, data=rows)[0]


def _chooser(condition: str | BooleanExpression, case_sensitive: bool) -> Any:
    if condition is None:
        raise ValueError("a filter is missing; pass 'true' for all rows")
    return partial(_FilteredRows.find, parse_filter(condition), case_sensitive)


@dataclass(frozen=True)
class _FilteredRows:
    """The rows that a filter chooses, as they are removed."""

    candidates: Candidates
    matching: Matching

    @classmethod
    def find(
        cls, condition: BooleanExpression, case_sensitive: bool, table: TableVersion, branch: str
    ) -> Choice:
        """Find the files that may have such rows in a version."""
        if not case_sensitive:
            condition = match_case(condition, schema_of(table.metadata))
        head = branch_head(table.metadata, branch)
        matching = Matching(table.walk, head, condition)
        candidates = Candidates.find(table.walk, head, condition)
        return cls(candidates, matching)

    def others(self, file: PlannedFile) -> tuple[pa.Table | None, None]:
        """Return the rows of a file that stay."""
        return self.matching.others(file), None

    def additions(self, notes: Sequence[Any]) -> None:
        """Add no rows."""
