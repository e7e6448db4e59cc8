"""Mistakes in a declaration, each with its line and a suggestion."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from modcrypt.errors import MAX_MESSAGE, MAX_NAME, printable
from modcrypt.report.suggestions import suggest as find_similar
from modcrypt.settings.strict_toml import STRING_OR_COMMENT

MemberPath: TypeAlias = tuple[str, ...]
"""The names that lead to a member, such as `("dataset", "orders", "location")`."""

MAX_FAULTS = 100
"""Largest number of mistakes that are described: each needs a search for its line."""

MAX_SUGGESTIONS = 20
"""Largest number of misspelt names that are compared with the known ones, which takes long."""


@dataclass(frozen=True, slots=True)
class DeclarationFault:
    """A mistake in a declaration."""

    line: int | None  # number of its line; None if it belongs to no line
    message: str  # the mistake, and what to do

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


_PART = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[\w-]+)"
_NAMES = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_NAMES})[ \t]*\]")
_MEMBER = re.compile(rf"[ \t]*({_NAMES})[ \t]*=")


@dataclass(frozen=True, slots=True)
class TomlLines:
    """The lines of a TOML text.

    Attributes:
        numbers: Number of the line in which each table or member begins, counted from 1.
    """

    lines: tuple[str, ...]
    numbers: dict[MemberPath, int]  # in the order of the lines

    def find(self, path: MemberPath, text: str = "") -> int | None:
        """Return the line of a member, or of the table around it; None if neither is known.

        With a text, return the first line of the member that contains it, if there is one.
        """
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.numbers), None)
        if known is None:
            return None
        first = self.numbers[known]
        text = text or (path[-1] if known != path else "")
        starts = list(self.numbers.values())
        after = bisect_right(starts, first)
        last = starts[after] if after < len(starts) else len(self.lines) + 1
        inside = range(first, last) if text else ()
        return next((n for n in inside if text in self.lines[n - 1]), first)


def find_lines(text: str) -> TomlLines:
    """Return the lines of the tables and members of valid TOML text."""
    numbers: dict[MemberPath, int] = {}
    table: MemberPath = ()
    for number, line in _list_statements(text):
        if header := _HEADER.match(line):
            table = _split_names(header[1])
            numbers.setdefault(table, number)
        elif member := _MEMBER.match(line):
            numbers.setdefault((*table, *_split_names(member[1])), number)
    return TomlLines(tuple(text.splitlines()), numbers)


def _list_statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines at which a header or member may begin: not inside a string or a list."""
    bare = STRING_OR_COMMENT.sub(lambda match: re.sub(r"[^\n]", "s", match[0]), text)
    inside = {
        match.start() + offset.end()
        for match in STRING_OR_COMMENT.finditer(text)
        for offset in re.finditer(r"\n", match[0])
    }
    depth = start = 0
    for number, (line, shown) in enumerate(zip(text.split("\n"), bare.split("\n"), strict=True), 1):
        if depth == 0 and start not in inside:
            yield number, line
        depth += len(re.findall(r"[\[{]", shown)) - len(re.findall(r"[\]}]", shown))
        start += len(line) + 1


def _split_names(dotted: str) -> MemberPath:
    return tuple(name.strip("\"'") for name in re.findall(_PART, dotted))
