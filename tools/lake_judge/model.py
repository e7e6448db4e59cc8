"""The rows that a table must have, and what a change makes of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

FIRST_COLUMNS = ("id", "country", "price")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an operation does to the rows: removes some, then adds others; plain JSON.

    Attributes:
        removes: Which rows go: `{"ids": [...]}`, `{"country": ...}` or `{"all": True}`.
        adds: New rows, by column.
        new_column, old_column: Name of a column that is added or dropped.
        branch: Whether it changes the rows of the branch, and not those of main.
        makes_branch, drops_branch: Whether the branch begins with the rows of main, or ends.
        publishes_branch: Whether main gets the rows of the branch.
        number: A random number, for names that must be new.
    """

    removes: Mapping[str, Any] = field(default_factory=dict)
    adds: Sequence[Row] = ()
    new_column: str | None = None
    old_column: str | None = None
    branch: bool = False
    makes_branch: bool = False
    drops_branch: bool = False
    publishes_branch: bool = False
    number: int = 0

    def hits(self, row: Row) -> bool:
        """Return whether a row is removed."""
        country = self.removes.get("country")
        return (
            "all" in self.removes
            or row["id"] in self.removes.get("ids", ())
            or (country is not None and row["country"] == country)
        )

    @property
    def condition(self) -> str:
        """The condition of the removed rows, as SQL and pyiceberg spell it."""
        if "ids" in self.removes:
            return f"id IN ({', '.join(map(str, self.removes['ids']))})"
        return f"country = '{self.removes['country']}'" if "country" in self.removes else "true"


@dataclass(frozen=True, kw_only=True)
class State:
    """Columns and rows of a table at one time; `branch` has the rows of its branch, if any."""

    columns: tuple[str, ...] = FIRST_COLUMNS
    rows: Mapping[int, Row] = field(default_factory=dict)
    branch: Mapping[int, Row] | None = None

    def after(self, change: Change) -> State:
        """Return the state that a change leads to."""
        columns = [name for name in self.columns if name != change.old_column]
        columns += [change.new_column] if change.new_column else []
        state = replace(self, columns=tuple(columns))
        if change.drops_branch or change.makes_branch:
            return replace(state, branch=self.rows if change.makes_branch else None)
        if change.publishes_branch:
            return state if self.branch is None else replace(state, rows=self.branch)
        if not change.branch:
            return replace(state, rows=_change(self.rows, change))
        return state if self.branch is None else replace(state, branch=_change(self.branch, change))

    def listed(self) -> list[Row]:
        """Return the rows of main with all columns, by id."""
        rows = sorted(self.rows.values(), key=lambda row: int(row["id"]))
        return [{name: row.get(name) for name in self.columns} for row in rows]

    def of_branch(self) -> State:
        """Return the state that the branch is in."""
        return replace(self, rows=self.branch or {}, branch=None)


def _change(rows: Mapping[int, Row], change: Change) -> Mapping[int, Row]:
    kept = {id_: row for id_, row in rows.items() if not change.hits(row)}
    return kept | {row["id"]: dict(row) for row in change.adds}


def states_after(
    state: State, certain: Sequence[Change], possible: Sequence[Change] = ()
) -> list[State]:
    """Return the states that concurrent changes may lead to, in any order.

    Args:
        state: The state before them.
        certain: Changes that were reported as done.
        possible: Changes whose outcome is unknown.
    """
    return [
        _apply(state, order)
        for happened in _subsets(possible)
        for order in itertools.permutations([*certain, *happened])
    ]


def _apply(state: State, changes: Iterable[Change]) -> State:
    for change in changes:
        state = state.after(change)
    return state


def _subsets(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    for number in range(len(changes) + 1):
        yield from itertools.combinations(changes, number)


def count_wrong(found: Sequence[Row], expected: State) -> int:
    """Return how many rows are missing, surplus, doubled or have other values."""
    left = sorted(map(_spell, found))
    missing = 0
    for row in map(_spell, expected.listed()):
        if row in left:
            left.remove(row)
        else:
            missing += 1
    return max(missing, len(left))


def _spell(row: Row) -> str:
    return json.dumps(row, sort_keys=True)
