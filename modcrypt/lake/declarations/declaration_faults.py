"""Mistakes in a declaration, each with its line and a suggestion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from modcrypt.errors import MAX_NAME, printable
from modcrypt.lake.declarations.toml_lines import MemberPath, TomlLines
from modcrypt.report.suggestions import suggest


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
    """The mistakes found so far."""

    lines: TomlLines
    faults: list[DeclarationFault] = field(default_factory=list)

    def add(self, path: MemberPath, message: str, text: str = "") -> None:
        """Add a mistake about a member; `text` occurs in the line if the member has several."""
        self.faults.append(DeclarationFault(self.lines.find(path, text), message))

    def check_names(self, path: MemberPath, given: Iterable[str], known: Iterable[str]) -> None:
        """Add a mistake for each member of a table that has an unknown name."""
        names = list(known)
        for name in given:
            if name not in names:
                shown = printable(name, MAX_NAME)
                self.add((*path, name), f"unknown member {shown}{suggest(name, names)}", name)

    def sort(self) -> list[DeclarationFault]:
        """Return the mistakes in the order of their lines."""
        return sorted(self.faults, key=lambda fault: fault.line or 0)
