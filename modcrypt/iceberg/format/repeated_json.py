"""Parse JSON objects whose long lists repeat: a metadata.json has nearly all snapshots of the last.

Parsing is as strict as that of `strict_json`.
"""

from __future__ import annotations

import contextlib
import json
import re
from codecs import utf_8_decode
from collections.abc import Callable
from json import detect_encoding
from typing import Any, Final, TypeAlias, TypeVar

from modcrypt.iceberg.format.repetition import Follower, Run, Slice, make_once
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats

R = TypeVar("R")

_DECODER: Final = json.JSONDecoder(object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)

_SPACE = re.compile(rb"[ \t\n\r]*").match

_PART = 4096  # number of bytes that are decoded at first for a value, most of which are shorter
_UNDECIDED = 2  # number of characters after a number that may still belong to it, as in `1e+`


MAX_KNOWN = 64 << 20
"""Number of bytes of a list's objects, as texts, after which all are forgotten.

10,000 snapshots take 10 MB, but versions of a forged table may have nothing in common.
"""


class RepeatedItems:
    """The objects in one list of many documents, parsed once, and what was made of each."""

    def __init__(self) -> None:
        self._run = Run(b"", [], [], [])  # the list of the last document that had a new object
        self._known: dict[bytes, Any] = {}  # objects by their texts
        self._size = 0  # of these texts
        # Objects and what was made of them, by the ids of the objects.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._lengths = 0, 0  # of the last two lists

    def make(self, function: Callable[[Any], R], values: list[Any]) -> list[R]:
        """Return the results of a function for objects of `parse`; it is called once for each."""
        made: dict[int, tuple[Any, R]] = self._made

        def make_all(values: list[Any]) -> list[R]:
            for value in values:
                if id(value) not in made:
                    made[id(value)] = value, function(value)
            return [made[id(value)][1] for value in values]

        return make_once(values, make_all)

    def parse(self, text: bytes, at: int) -> tuple[list[Any], int]:
        """Parse the list that begins at an offset of a text; return it and the offset of its end.

        Raise ValueError if it is not valid.
        """
        items = Follower(self._run)
        at = _skip_space(text, at + 1)
        before, last = self._lengths
        most = max(1, 2 * last - before)  # if lists go on growing or shrinking
        more = not text.startswith(b"]", at)
        at = at if more else at + 1
        while more:
            if size := items.repeat(text, at, most):
                at += size
            else:
                value, end = _parse_value(text, at)
                if isinstance(value, dict):
                    value = self._keep(text[at:end], value)
                items.add(value, at, end)
                at = end
            at, more = _find_next(text, at, b"]")
        return self._note(items, text), at

    def _keep(self, text: bytes, value: Any) -> Any:
        """Return the object that is known for a text; if there is none, keep the given one."""
        if (known := self._known.get(text)) is not None:
            return known
        self._size += len(text)
        if self._size > MAX_KNOWN:
            self._known, self._made, self._size = {}, {}, len(text)
        return self._known.setdefault(text, value)

    def _note(self, items: Follower, text: bytes) -> list[Any]:
        """Remember a list, and return its values."""
        self._lengths = self._lengths[1], len(items.values)
        # Other values do not show where they end: `1` begins `12`.
        if items.is_new and all(isinstance(value, dict) for value in items.values):
            self._run = run = items.run(text)
            return Slice(run.products, 0, items.values)
        return items.slice() or items.values


Member: TypeAlias = tuple[bytes, tuple[str, Any]]
"""The text of a member up to the next one, empty for a list of repeated items; name and value."""


class RepeatedLists:
    """Lists of documents whose objects are parsed once, by the names of the members.

    Several threads may parse documents at the same time.
    """

    def __init__(self, *names: str) -> None:
        self.lists = {name: RepeatedItems() for name in names}
        self._members: list[Member] = []  # those of the last document

    def parse(self, data: bytes) -> dict[str, Any]:
        """Parse a document; raise ValueError if it is not a valid JSON object."""
        text, encoding = data, detect_encoding(data)
        if encoding != "utf-8":
            text = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        at = _expect(text, _skip_space(text, 0), b"{")
        more = not text.startswith(b"}", at)
        at = at if more else at + 1
        before, members = iter(self._members), list[Member]()
        while more:
            member = next(before, (b"", ("", None)))
            if member[0] and text.startswith(member[0], at):
                at = _skip_space(text, at + len(member[0]))
            else:
                named, end = self._parse_member(text, at)
                after, more = _find_next(text, end, b"}")
                # The comma shows where the value ends: `1` begins `12`.
                known = text[at:after] if more and named[0] not in self.lists else b""
                member, at = (known, named), after
            members.append(member)
        if _skip_space(text, at) != len(text):
            raise ValueError("text follows the document")
        self._members = members
        return refuse_repeats([named for _, named in members])

    def _parse_member(self, text: bytes, at: int) -> tuple[tuple[str, Any], int]:
        if not text.startswith(b'"', at):
            raise ValueError("the name of a member is not a string")
        name, at = _parse_value(text, at)
        at = _expect(text, _skip_space(text, at), b":")
        if name in self.lists and text.startswith(b"[", at):
            value, at = self.lists[name].parse(text, at)
        else:
            value, at = _parse_value(text, at)
        return (name, value), at


def _parse_value(text: bytes, at: int) -> tuple[Any, int]:
    """Parse the value at an offset of a text; return it and the offset of its end."""
    # Only as much is decoded as the value needs: most of a document is known already.
    size = _PART
    while at + size < len(text):
        with contextlib.suppress(ValueError):
            part, _ = utf_8_decode(text[at : at + size], "surrogatepass", False)
            value, end = _DECODER.raw_decode(part)
            if end + _UNDECIDED < len(part):
                return value, at + _encoded_size(part, end)
        size *= 8
    rest = text[at:].decode("utf-8", "surrogatepass")
    value, end = _DECODER.raw_decode(rest)
    return value, at + _encoded_size(rest, end)


def _encoded_size(text: str, end: int) -> int:
    return end if text.isascii() else len(text[:end].encode("utf-8", "surrogatepass"))


def _skip_space(text: bytes, at: int) -> int:
    if text[at : at + 1] > b" ":  # as nearly always
        return at
    return _SPACE(text, at).end()  # type: ignore[union-attr]


def _expect(text: bytes, at: int, sign: bytes) -> int:
    """Return the offset after a sign and the space behind it; raise ValueError for another one."""
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign.decode()}")
    return _skip_space(text, at + 1)


def _find_next(text: bytes, at: int, end: bytes) -> tuple[int, bool]:
    """Return the offset of the next item or member, or of the end, and whether there is one."""
    if text.startswith(b",{", at):  # as nearly always
        return at + 1, True
    at = _skip_space(text, at)
    return (at + 1, False) if text.startswith(end, at) else (_expect(text, at, b","), True)
