"""Rules that select columns: by name, by pattern, or by the metadata of their fields.

A name covers a column, or all columns of a group. A pattern contains `*` (any characters) or `?`
(one character) and is matched with the dotted name of a column and of the groups around it. Field
metadata, such as `{ pii = true }`, selects the columns of fields that carry it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from modcrypt.errors import list_names
from modcrypt.runtime.fork_safety import cached_property

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """The columns of a file; two objects are never equal."""

    leaves: tuple[Path, ...]
    metadata: Mapping[Path, Mapping[str, str]]

    def metadata_of(self, leaf: Path) -> Iterable[Mapping[str, str]]:
        """Yield the metadata of the field of a leaf, and of the fields around it."""
        for length in range(1, len(leaf) + 1):
            if (values := self.metadata.get(leaf[:length])) is not None:
                yield values


@dataclass(frozen=True)
class ColumnRule:
    """A rule that selects columns."""

    text: str = ""  # the rule as declared: a name or a pattern; empty for field metadata
    metadata: tuple[tuple[str, str], ...] = ()  # pairs that the metadata of a field must contain

    @property
    def is_name(self) -> bool:
        """True if the rule names a column or group, so that it needs no schema."""
        return bool(self.text) and not re.search(r"[*?]", self.text)

    def __str__(self) -> str:
        """Return the rule for messages."""
        pairs = ", ".join(f"{name} = {value}" for name, value in self.metadata)
        return self.text or f"{{ {pairs} }}"

    def selects(self, leaf: Path, columns: FileColumns) -> bool:
        """Return whether the rule, a pattern or field metadata, selects a leaf."""
        if self.metadata:
            wanted = set(self.metadata)
            return any(wanted <= set(found.items()) for found in columns.metadata_of(leaf))
        names = (".".join(leaf[:length]) for length in range(1, len(leaf) + 1))
        return any(self._pattern.fullmatch(name) for name in names)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = re.split(r"([*?])", self.text)
        wild = {"*": ".*", "?": "."}
        return re.compile("".join(wild.get(part, re.escape(part)) for part in parts), re.DOTALL)


def make_rule(given: Any) -> ColumnRule:
    """Return the rule for a value of the declaration.

    Raise ValueError if the value is neither a name or pattern, nor a table of field metadata.
    """
    if isinstance(given, str) and given:
        return ColumnRule(given)
    values = given.values() if isinstance(given, Mapping) else ()
    if values and all(isinstance(value, str | bool | int) for value in values):
        pairs = (
            (name, str(value).lower() if isinstance(value, bool) else str(value))
            for name, value in given.items()
        )
        return ColumnRule(metadata=tuple(sorted(pairs)))
    raise ValueError("expected a column name, a pattern, or field metadata such as { pii = true }")


Rules: TypeAlias = Mapping[str | None, Sequence[ColumnRule]]
"""Rules by the id of a master key; under None, those of plaintext columns."""


def names_by_key(rules: Rules, columns: FileColumns | None) -> dict[str | None, list[str]]:
    """Return the names of columns and groups by master key; under None, those of plaintext columns.

    A name takes precedence over patterns and field metadata. Without the columns of a file, only
    rules that are names count.

    Raises:
        ValueError: Patterns or field metadata assign a column twice.
    """
    exact = {rule.text: key for key, given in rules.items() for rule in given if rule.is_name}
    names = dict(exact)
    for leaf in () if columns is None else columns.leaves:
        covered = (".".join(leaf[:length]) for length in range(1, len(leaf) + 1))
        if not any(name in exact for name in covered):
            names.update(_assign(leaf, rules, columns))
    found: dict[str | None, list[str]] = {}
    for name, key in names.items():
        found.setdefault(key, []).append(name)
    return found


def _assign(leaf: Path, rules: Rules, columns: FileColumns | None) -> dict[str, str | None]:
    """Return the master key that patterns or field metadata give to a leaf; empty for none."""
    assert columns is not None
    hits = {
        key: rule
        for key, given in rules.items()
        for rule in given
        if not rule.is_name and rule.selects(leaf, columns)
    }
    name = ".".join(leaf)
    if len(hits) > 1:
        what = list_names(f"{rule} ({key or 'plaintext'})" for key, rule in hits.items())
        raise ValueError(
            f"several rules assign column {name}: {what}; name the column itself in one of them"
        )
    return dict.fromkeys([name] if hits else [], next(iter(hits), None))
