"""One table on trial: the rows it must have, and the checks after each step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from modcrypt.errors import CommitConflictError, ModcryptError
from modcrypt.iceberg import IcebergTable, verify_table
from tests.support.iceberg.java_judge import JavaError
from tools.lake_judge.catalogs import Subject
from tools.lake_judge.model import FIRST_COLUMNS, Change, Row, State, count_wrong, states_after
from tools.lake_judge.operations import BRANCH, MODCRYPT, Operation
from tools.lake_judge.report import Report

DONE, REFUSED, OPEN = "done", "refused", "open"

REFUSALS = (
    "ValidationException", "CommitFailedException", "AnalysisException", "NotFoundException",
    "FileNotFoundException", "WaitingForLockException", "AlreadyExistsException",
    "Cannot fast-forward", "branch does not exist",
)  # fmt: skip
"""Java's answers to a writer that was too late."""


class WrongError(Exception):
    """Something that must not happen.

    Args:
        text: What is wrong.
        rows: Number of wrong rows.
    """

    def __init__(self, text: str, rows: int = 0) -> None:
        super().__init__(text)
        self.rows = rows


@dataclass(kw_only=True)
class Trial:
    """A table, its state, and the random numbers that choose what happens to it.

    Attributes:
        modcrypt: The operations of modcrypt to choose from.
        past: The states of snapshots, by their ids.
        row_ids: The `_row_id` of each row at the last check, by the row's id.
        stock_acted: Whether the stock engine has changed the table since.
        steps: What happened so far, the newest last.
    """

    subject: Subject
    dice: random.Random
    report: Report
    modcrypt: Sequence[Operation] = tuple(MODCRYPT)
    state: State = field(default_factory=State)
    past: dict[int, State] = field(default_factory=dict)
    row_ids: dict[int, int] = field(default_factory=dict)
    stock_acted: bool = False
    steps: list[str] = field(default_factory=list)

    # --- choosing --------------------------------------------------------------------------------

    def choose(
        self, operations: Sequence[Operation], *, racing: bool = False
    ) -> tuple[Operation, Change]:
        """Return an operation that can do something now, and its change."""
        possible = [one for one in operations if one.may_race or not racing]
        while True:
            operation = self.dice.choice(possible)
            if (change := operation.draw(self.state, self.dice)) is not None:
                return operation, change

    def actor(self, operation: Operation, table: IcebergTable | None = None) -> Any:
        """Return what an operation works on: a table of modcrypt or of the stock engine."""
        if operation in self.subject.operations:
            self.stock_acted = True
            return self.subject.stock
        return table or self.subject.load()

    # --- doing -----------------------------------------------------------------------------------

    def do(self, operation: Operation, change: Change, table: IcebergTable | None = None) -> None:
        """Carry out an operation that nothing disturbs."""
        self.steps.append(operation.name)
        operation.run(self.actor(operation, table), change)
        self.report.outcomes[f"{operation.name}: {DONE}"] += 1
        self.expect([self.state.after(change)])

    def attempt(
        self,
        operation: Operation,
        change: Change,
        table: IcebergTable | None = None,
        refusals: tuple[type[Exception], ...] = (CommitConflictError, ValueError),
    ) -> str:
        """Carry out an operation that others disturb; return `done`, `refused` or `open`.

        Args:
            operation, change: What is done.
            table: The version of the table that modcrypt changes.
            refusals: Errors by which modcrypt may refuse; others of its own are wrong.
        """
        self.steps.append(operation.name)
        outcome, reason = self._attempt(operation, change, table, refusals)
        self.report.outcomes[f"{operation.name}: {outcome} {reason}".rstrip()] += 1
        return outcome

    def _attempt(
        self,
        operation: Operation,
        change: Change,
        table: IcebergTable | None,
        refusals: tuple[type[Exception], ...],
    ) -> tuple[str, str]:
        try:
            operation.run(self.actor(operation, table), change)
        except JavaError as error:
            return _judge_java(operation, str(error.args), error)
        except AssertionError as error:  # Spark's
            return _judge_java(operation, str(error), error)
        except (ModcryptError, ValueError) as error:
            bad = isinstance(error, ModcryptError) and ValueError in type(error).__mro__
            if not isinstance(error, refusals) or (bad and ModcryptError not in refusals):
                raise
            return REFUSED, type(error).__name__
        except OSError as error:
            return OPEN, type(error).__name__
        return DONE, ""

    # --- checking --------------------------------------------------------------------------------

    def expect(self, legal: Sequence[State]) -> None:
        """Check that all readers find the same legal state, which becomes the current one."""
        table, before = self.subject.load(), self.state
        self.state = self._match("modcrypt", lambda branch: read_rows(table, branch), legal)
        if self.subject.read is not None:
            self._check_stock(self.subject.read, before)
        self._check_past(table)

    def _check_stock(self, read: Callable[[str | None], list[Row]], before: State) -> None:
        """Check what the stock engine reads, and that modcrypt has kept the ids of rows."""
        row_ids: dict[int, Any] = {}

        def read_without_row_ids(branch: str | None) -> list[Row]:
            rows = sorted(read(branch), key=_row_key)
            found = {row["id"]: row.pop("_row_id", None) for row in rows}
            row_ids.update({} if branch else found)
            return rows

        self._match("the stock engine", read_without_row_ids, [self.state])
        self._check_row_ids(row_ids, before)

    def _check_row_ids(self, row_ids: dict[int, Any], before: State) -> None:
        kept = [] if self.stock_acted else sorted(self.row_ids.keys() & row_ids.keys())
        same = [id_ for id_ in kept if before.rows.get(id_) == self.state.rows[id_]]
        if lost := [id_ for id_ in same if row_ids[id_] != self.row_ids[id_]]:
            raise WrongError(f"rows {lost[:3]} have other row ids", len(lost))
        if doubled := len(row_ids) - len(set(row_ids.values())):
            raise WrongError(f"{doubled} rows have row ids of others", doubled)
        self.row_ids, self.stock_acted = row_ids, False

    def expect_outcome(self, certain: Sequence[Change], possible: Sequence[Change] = ()) -> None:
        """Check the result of changes that came in any order."""
        self.expect(states_after(self.state, certain, possible))

    def _match(
        self, reader: str, read: Callable[[str | None], list[Row]], legal: Sequence[State]
    ) -> State:
        """Return the legal state that a reader finds in main, and in the branch if there is one."""
        found = self._match_rows(reader, read(None), legal)
        with_branch = [state for state in found if state.branch is not None]
        if not with_branch:
            return found[0]
        branches = [state.of_branch() for state in with_branch]
        matching = self._match_rows(f"{reader}, of the branch,", read(BRANCH), branches)
        return with_branch[branches.index(matching[0])]

    def _match_rows(self, reader: str, found: list[Row], legal: Sequence[State]) -> list[State]:
        self.report.rows += len(found)
        wrong = [count_wrong(found, state) for state in legal]
        if fewest := min(wrong):
            raise WrongError(f"{reader} reads {_differences(found, legal)}", fewest)
        return [state for state, count in zip(legal, wrong, strict=True) if not count]

    def _check_past(self, table: IcebergTable) -> None:
        """Record the current snapshot, and read one of the older ones again."""
        current = table.snapshot()
        if current is None:
            return
        self.past.setdefault(current.id, self.state)
        here = self.past.keys() & {snapshot.id for snapshot in table.metadata.snapshots}
        chosen = self.dice.choice(sorted(here))
        # A snapshot has the columns of its own time, which a race leaves open.
        rows, then = read_rows(table, chosen), self.past[chosen]
        columns = tuple(
            name for name in then.columns if name in (*FIRST_COLUMNS, *(rows or [{}])[0])
        )
        found = [{name: row[name] for name in columns} for row in rows]
        self._match_rows(
            f"modcrypt, of snapshot {chosen},", found, [replace(then, columns=columns)]
        )

    def verify(self) -> None:
        """Check every file of the table."""
        verified = verify_table(self.subject.load())
        if not verified.ok:
            raise WrongError(f"verify_table: {[str(f)[:300] for f in verified.findings][:3]}")


def read_rows(table: IcebergTable, snapshot: int | str | None = None) -> list[Row]:
    """Return all rows of a snapshot, branch or tag, by id."""
    rows: list[Row] = pa.table(table.scan(snapshot)).to_pylist()
    return sorted(rows, key=_row_key)


def _row_key(row: Row) -> int:
    return int(row["id"])


def _judge_java(operation: Operation, text: str, error: Exception) -> tuple[str, str]:
    if "CommitStateUnknown" in text:
        return OPEN, "CommitStateUnknown"
    for refusal in REFUSALS:
        if refusal in text:
            return REFUSED, refusal
    cause = text[max(0, text.find("pyspark.errors")) :]
    raise WrongError(f"{operation.name} fails: {cause[:1000]}") from error


def _differences(found: list[Row], legal: Sequence[State]) -> str:
    nearest = min(legal, key=lambda state: count_wrong(found, state)).listed()
    missing = [row for row in nearest if row not in found]
    surplus = [row for row in found if row not in nearest]
    return (
        f"{len(found)} rows in the place of {len(nearest)}; "
        f"missing {missing[:3]}, surplus {surplus[:3]}"
    )
