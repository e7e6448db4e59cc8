"""Parse JSON objects whose long lists repeat: a metadata.json has nearly all snapshots of the last.

Parsing is as strict as that of `strict_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import detect_encoding
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, TypeVar

from modcrypt.iceberg.format.repetition import Follower, Run, Slice
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats

R = TypeVar("R")

_DECODER: Final = json.JSONDecoder(object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)

_SPACE = re.compile(r"[ \t\n\r]*").match


class RepeatedItems:
    """The objects in one list of many documents, parsed once, and what was made of each."""

    def __init__(self) -> None:
        self._run = Run("", [], [], [])  # the list of the last document that had a new object
        self._known: dict[str, Any] = {}  # objects by their texts
        self._made: dict[int, Any] = {}  # by the id of the object, which `_known` keeps
        self._lengths = 0, 0  # of the last two lists

    def make(self, function: Callable[[Any], R], values: list[Any]) -> list[R]:
        """Return what a function returns for each object of `parse`; it is called once for each."""
        if isinstance(values, Slice) and values.run.made is not None:
            return values.run.made[values.first : values.first + len(values)]
        made: dict[int, R] = self._made
        for value in values:
            if id(value) not in made:
                made[id(value)] = function(value)
        results = [made[id(value)] for value in values]
        if values is self._run.values:
            self._run.made = results
        return results

    def parse(self, text: str, at: int) -> tuple[list[Any], int]:
        """Parse the list that begins at an offset of a text; return it and the offset of its end.

        Raise ValueError if it is not valid.
        """
        items = Follower(self._run)
        at = _skip_space(text, at + 1)
        more, most = not text.startswith("]", at), self._guess_length()
        at = at if more else at + 1
        while more:
            if size := items.repeat(text, at, most):
                at += size
            else:
                at = self._parse_item(text, at, items)
            at, more = _find_next(text, at, "]")
        self._note(items, text)
        return items.slice() or items.values, at

    def _guess_length(self) -> int:
        """Return the length of the next list if lists go on growing or shrinking."""
        before, last = self._lengths
        return max(1, 2 * last - before)

    def _parse_item(self, text: str, at: int, items: Follower[str]) -> int:
        """Parse the item at an offset; return the offset of its end. Objects are kept."""
        value, end = _parse_value(text, at)
        if isinstance(value, dict):
            value = self._known.setdefault(text[at:end], value)
        items.add(value, at, end)
        return end

    def _note(self, items: Follower[str], text: str) -> None:
        """Remember a list."""
        self._lengths = self._lengths[1], len(items.values)
        # Other values do not show where they end: `1` begins `12`.
        if items.is_new and all(isinstance(value, dict) for value in items.values):
            self._run = items.run(text)


class RepeatedLists:
    """Lists of documents whose objects are parsed once, by the names of the members."""

    def __init__(self, *names: str) -> None:
        self.lists = {name: RepeatedItems() for name in names}
        self._others: dict[str, tuple[str, Any]] = {}  # other objects and lists, with their texts

    def parse(self, data: bytes) -> dict[str, Any]:
        """Parse a document; raise ValueError if it is not a valid JSON object."""
        text = data.decode(detect_encoding(data), "surrogatepass")
        at = _expect(text, _skip_space(text, 0), "{")
        pairs: list[tuple[str, Any]] = []
        more = text[at : at + 1] != "}"
        at = at if more else at + 1
        while more:
            if not text.startswith('"', at):
                raise ValueError("the name of a member is not a string")
            name, at = scanstring(text, at + 1)
            at = _expect(text, _skip_space(text, at), ":")
            value, at = self._parse_member(name, text, at)
            pairs.append((name, value))
            at, more = _find_next(text, at, "}")
        if _skip_space(text, at) != len(text):
            raise ValueError("text follows the document")
        return refuse_repeats(pairs)

    def _parse_member(self, name: str, text: str, at: int) -> tuple[Any, int]:
        if name in self.lists and text.startswith("[", at):
            return self.lists[name].parse(text, at)
        before, known = self._others.get(name, ("", None))
        if before and text.startswith(before, at):
            return known, at + len(before)
        value, end = _parse_value(text, at)
        if isinstance(value, dict | list):
            self._others[name] = text[at:end], value
        return value, end


def _parse_value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except StopIteration:
        raise ValueError("no JSON value") from None


def _skip_space(text: str, at: int) -> int:
    if text[at : at + 1] > " ":  # as nearly always
        return at
    return _SPACE(text, at).end()  # type: ignore[union-attr]


def _expect(text: str, at: int, sign: str) -> int:
    """Return the offset after a sign and the space behind it; raise ValueError for another one."""
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign}")
    return _skip_space(text, at + 1)


def _find_next(text: str, at: int, end: str) -> tuple[int, bool]:
    """Return the offset of the next item or member, or of the end, and whether there is one."""
    if text.startswith(",{", at):  # as nearly always
        return at + 1, True
    at = _skip_space(text, at)
    return (at + 1, False) if text.startswith(end, at) else (_expect(text, at, ","), True)
