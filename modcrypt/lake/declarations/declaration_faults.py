"""Mistakes in a declaration, each with its line and a suggestion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from modcrypt.errors import MAX_MESSAGE, MAX_NAME, printable
from modcrypt.lake.declarations.toml_lines import MemberPath, TomlLines
from modcrypt.report.suggestions import suggest as find_similar

MAX_FAULTS = 100
"""Largest number of mistakes that are described: each needs a search for its line."""

MAX_SUGGESTIONS = 20
"""Largest number of misspelt names that are compared with the known ones, which takes long."""


@dataclass(frozen=True, slots=True)
class DeclarationFault:
    """A mistake in a declaration.

    Attributes:
        line: Number of its line; None if it belongs to no line.
        message: The mistake, and what to do.
    """

    line: int | None
    message: str

    def __str__(self) -> str:
        """Return the line and the message."""
        return self.message if self.line is None else f"line {self.line}: {self.message}"


@dataclass(slots=True)
class FaultList:
    """The mistakes found so far: the first `MAX_FAULTS`, and the number of all."""

    lines: TomlLines
    faults: list[DeclarationFault] = field(default_factory=list)
    total: int = 0

    def add(self, path: MemberPath, message: str, text: str = "") -> None:
        """Add a mistake about a member; `text` occurs in the line if the member has several."""
        self.total += 1
        if self.total <= MAX_FAULTS:
            line = self.lines.find(path, text)
            self.faults.append(DeclarationFault(line, printable(message, MAX_MESSAGE)))

    def suggest(self, name: str, known: Collection[str]) -> str:
        """Return `suggest` for the message of the next mistake; empty if no one will see it."""
        return find_similar(name, known) if self.total < MAX_SUGGESTIONS else ""

    def check_names(self, path: MemberPath, given: Collection[str], known: Collection[str]) -> None:
        """Add a mistake for each member of a table that has an unknown name."""
        for name in given:
            if name not in known:
                shown = printable(name, MAX_NAME)
                self.add((*path, name), f"unknown member {shown}{self.suggest(name, known)}", name)

    def sort(self) -> list[DeclarationFault]:
        """Return the mistakes in the order of their lines, and the number of those left out."""
        found = sorted(self.faults, key=lambda fault: fault.line or 0)
        more = self.total - len(found)
        return found + [DeclarationFault(None, f"and {more:,} more mistakes")] * (more > 0)
