"""Parse JSON objects whose long lists repeat: a metadata.json has nearly all snapshots of the last.

Parsing is as strict as that of `strict_json`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from json import detect_encoding
from typing import Any, Final, TypeVar

from modcrypt.iceberg.format.repetition import Part
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats

R = TypeVar("R")

_DECODER: Final = json.JSONDecoder(object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)

_SPACE = re.compile(r"[ \t\n\r]*").match


class RepeatedItems:
    """The objects in one list of many documents, parsed once, and what was made of each."""

    def __init__(self) -> None:
        self._first = Part("", None, 0)
        self._known: dict[str, Part[str]] = {}
        self._made: dict[int, Any] = {}  # by the id of the object, which `_known` keeps

    def make(self, function: Callable[[Any], R], values: list[Any]) -> list[R]:
        """Return what a function returns for each object of `parse`; it is called once for each."""
        made: dict[int, R] = self._made
        with contextlib.suppress(KeyError):
            return list(map(made.__getitem__, map(id, values)))
        for value in values:
            if id(value) not in made:
                made[id(value)] = function(value)
        return [made[id(value)] for value in values]

    def parse(self, text: str, at: int) -> tuple[list[Any], int]:
        """Parse the list that begins at an offset of a text; return it and the offset of its end.

        Raise ValueError if it is not valid.
        """
        values: list[Any] = []
        at = _skip_space(text, at + 1)
        before, more = self._first, not text.startswith("]", at)
        at = at if more else at + 1
        while more:
            if stretch := before.begins_stretch and before.find_stretch(text, at, ","):
                values += stretch.values
                before, at = stretch.last, at + len(stretch.data)
            else:
                before = self._find_item(text, at, before)
                values.append(before.value)
                at += len(before.data)
            at, more = _find_next(text, at, "]")
        return values, at

    def _find_item(self, text: str, at: int, before: Part[str]) -> Part[str]:
        """Return the item at an offset; it is kept if it is an object."""
        if (item := before.following) is not None and text.startswith(item.data, at):
            return item
        value, end = _parse_value(text, at)
        item = Part(text[at:end], value, len(self._known) + 1)
        if isinstance(value, dict):  # other values do not show where they end: `1` begins `12`
            item = before.following = self._known.setdefault(item.data, item)
        return item


class RepeatedLists:
    """Lists of documents whose objects are parsed once, by the names of the members."""

    def __init__(self, *names: str) -> None:
        self.lists = {name: RepeatedItems() for name in names}

    def parse(self, data: bytes) -> dict[str, Any]:
        """Parse a document; raise ValueError if it is not a valid JSON object."""
        text = data.decode(detect_encoding(data), "surrogatepass")
        at = _expect(text, _skip_space(text, 0), "{")
        pairs: list[tuple[str, Any]] = []
        more = text[at : at + 1] != "}"
        at = at if more else at + 1
        while more:
            name, at = _parse_value(text, at)
            if not isinstance(name, str):
                raise ValueError("the name of a member is not a string")
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
        return _parse_value(text, at)


def _parse_value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except StopIteration:
        raise ValueError("no JSON value") from None


def _skip_space(text: str, at: int) -> int:
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
