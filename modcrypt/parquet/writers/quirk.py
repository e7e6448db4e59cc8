"""The table of writers' bugs, as data, and what an examination finds of it in a file."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count

Harm: TypeAlias = Literal["wrong results", "unreadable", "forgery", "leak", "slow", "none"]
"""The harm of such a file: other readers return wrong rows or values, or refuse it; an attacker can
change it, or see data; readers take longer than they need; or nothing."""

TABLES = ("footers", "statistics", "types", "pages", "encrypted")
"""The files of the table, in the order of the documentation."""

MAX_PLACES = 5
"""Largest number of places of one bug that are listed; further ones are counted."""


class Quirk(NamedTuple):
    """A row of the table."""

    name: str  # name of the row
    writer: str  # writers and versions
    fault: str  # what they write, as a noun phrase
    harm: Harm  # what it does to other readers
    action: str  # what modcrypt does with such a file
    source: str  # where it was measured or reported
    risk: str = ""  # the harm as a sentence; empty if there is none
    repair: str = ""  # what `--repair` does; empty if it does nothing more than encryption does
    mend: str = ""  # name of the function that repairs it
    # Whether the evidence lies in the file; else only the writer's version suggests it.
    certain: bool = True


@cache
def load_table(table: str) -> tuple[Quirk, ...]:
    """Return the rows of one of `TABLES`."""
    import tomllib  # not for each result of a verification

    data = pkgutil.get_data(__package__, f"{table}.toml") or b""  # perhaps in a zip
    rows = tomllib.loads(data.decode())
    return tuple(Quirk(name=name, **row) for name, row in rows.items())


@cache
def load_quirks() -> dict[str, Quirk]:
    """Return all rows by name, in the order of the documentation."""
    return {quirk.name: quirk for table in TABLES for quirk in load_table(table)}


class Place(NamedTuple):
    """A place in a file where a bug was found, and details in words, which hold no value."""

    row_group: int | None = None
    column: int | None = None
    path: str | None = None
    detail: str = ""

    def __str__(self) -> str:
        group = None if self.row_group is None else f"row group {self.row_group}"
        column = None if self.path is None else f"column {self.path}"
        where = ", ".join(part for part in (group, column) if part) or "file"
        return f"{where}: {self.detail}" if self.detail else where


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundQuirk(JsonFields):
    """A bug of a writer that was found in a file.

    Attributes:
        quirk: Name of the row in the table.
        writer: Writers and versions that are known to have it.
        certain: Whether the file itself shows it; else only the version of its writer suggests it.
        harm: "wrong results", "unreadable", "forgery", "leak", "slow" or "none".
        fault: What the file has.
        risk: What other readers do with it, as a sentence; empty if there is no harm.
        action: What modcrypt does with it.
        repair: What `encrypt --repair` does in addition; empty for nothing.
        source: Where it was measured or reported.
        count: Number of places.
        places: The first places.
    """

    quirk: str
    writer: str
    certain: bool
    harm: Harm
    fault: str
    risk: str
    action: str
    repair: str
    source: str
    count: int
    places: tuple[str, ...]

    @classmethod
    def of(cls, quirk: Quirk, places: list[Place]) -> FoundQuirk:
        """Return the finding of a row at places."""
        return cls(
            quirk=quirk.name, writer=quirk.writer, certain=quirk.certain, harm=quirk.harm,
            fault=quirk.fault, risk=quirk.risk, action=quirk.action, repair=quirk.repair,
            source=quirk.source, count=len(places),
            places=tuple(str(place) for place in places[:MAX_PLACES]),
        )  # fmt: skip

    def __str__(self) -> str:
        """Return a sentence about the bug."""
        return " ".join(self.sentences()).replace("`", "")

    def sentences(self) -> Iterator[str]:
        """Yield what the file has and who writes it, where, and what follows for readers."""
        known = "" if self.certain else "possible by the version of the writer: "
        more = self.count - len(self.places)
        rest = f"; and {format_count(more, 'more place')}" if more > 0 else ""
        yield f"{self.quirk}: {known}{self.fault}, as of {self.writer}."
        yield f"Found in {'; '.join(self.places)}{rest}."
        if self.risk:
            yield self.risk
