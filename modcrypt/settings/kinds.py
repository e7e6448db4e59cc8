"""Kinds of values: how each is said in words, in JSON Schema, and as the text of an option."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from modcrypt.pkmt1.strict_json import load_json

_TYPES: dict[str, Any] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list, tuple),
    "object": (Mapping,),
}
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)


class Kind(NamedTuple):
    """A kind of value."""

    words: str  # what a value must be, as the end of the sentence "NAME must be ..."
    schema: Mapping[str, Any]  # JSON Schema of a value, of the keywords that `accepts` knows
    members: Kind | None = None  # kind of the members of a table; None for what is no table

    def accepts(self, value: object) -> bool:
        """Return True if a value is of this kind."""
        return _matches(value, self.schema)

    def list_faults(self, name: str, value: object) -> list[str]:
        """Return the faults of a setting's value; empty if it is of this kind."""
        if self.members is None or not isinstance(value, Mapping) or set(map(type, value)) - {str}:
            return [] if self.accepts(value) else [f"{name} must be {self.words}"]
        faults = [self.members.list_faults(f"{name} of {key}", each) for key, each in value.items()]
        return [fault for found in faults for fault in found]

    def parse(self, text: str) -> Any:
        """Return the value that the text of an option stands for.

        Raise ValueError if the text stands for no value of this kind; the message repeats no text.
        """
        value = _parse(text, self.schema)
        if not self.accepts(value):
            raise ValueError(f"must be {self.words}")
        return value

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that are allowed; empty if any value of a type is."""
        return tuple(self.schema.get("enum", ()))


def _matches(value: Any, schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_matches(value, each) for each in schema["anyOf"])
    if "enum" in schema:  # 128.0 and True equal numbers of another type
        return any(type(value) is type(each) and value == each for each in schema["enum"])
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind == "string":
        fits = "pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None
        return fits and len(value) >= schema.get("minLength", 0)
    if kind in ("integer", "number"):  # NaN lies nowhere
        return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
    return _matches_all(value, schema)


def _matches_all(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if the items of a list, or the members of a table, are as they must be."""
    if schema["type"] == "array":
        items = schema.get("items")
        return len(value) >= schema.get("minItems", 0) and (
            items is None or all(_matches(item, items) for item in value)
        )
    members = schema.get("additionalProperties")
    return not isinstance(members, Mapping) or all(  # False: the caller checks the names
        isinstance(name, str) and _matches(member, members) for name, member in value.items()
    )


def _parse(text: str, schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        values = (_parse(text, each) for each in schema["anyOf"])
        return next((value for value in values if _matches(value, schema)), None)
    if "enum" in schema:
        word = text.strip().lower()
        return next((each for each in schema["enum"] if str(each).lower() == word), None)
    if (kind := schema["type"]) == "array":
        return _parse_list(text)
    if kind == "object":
        return _parse_json(text)
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.strip().lower())
    if kind in ("integer", "number"):
        return _parse_number(text.strip(), kind)
    return text


def _parse_number(text: str, kind: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.isdecimal() else float(text) if kind == "number" else None


def _parse_list(text: str) -> Any:
    """Return the names in `a,b`, or in JSON for names with commas or blanks at their ends."""
    if text.lstrip().startswith("["):
        return _parse_json(text)
    return [name for part in text.split(",") if (name := part.strip())]


def _parse_json(text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError):  # the message would contain the text
        raise ValueError("is not valid JSON, or repeats a member") from None


def one_of(*values: str | int) -> Kind:
    """Return the kind of values that are one of these."""
    *first, last = map(str, values)
    return Kind(f"{', '.join(first)} or {last}" if first else last, {"enum": list(values)})


def number_from(least: int, most: int) -> Kind:
    """Return the kind of whole numbers between two, which belong to it."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Kind(f"a whole number, {least} to {most}", schema)


def table_of(kind: Kind, words: str) -> Kind:
    """Return the kind of tables whose members have a kind."""
    return Kind(words, {"type": "object", "additionalProperties": kind.schema}, kind)


TEXT = Kind("a string", {"type": "string"})
NAME = Kind("a string that is not empty", {"type": "string", "minLength": 1})
FLAG = Kind("true or false", {"type": "boolean"})
COUNT = Kind("a whole number, at least 1", {"type": "integer", "minimum": 1})
NAMES = Kind("a list of names", {"type": "array", "items": NAME.schema})
URI = Kind(
    "a URI, such as file:lake.keyring or hcvault://host/transit",
    {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:.*$"},
)
KEY_BITS = one_of(128, 192, 256)
