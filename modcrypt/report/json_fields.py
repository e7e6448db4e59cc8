"""Represent results as values for JSON."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from modcrypt.module_ids import ModuleId, in_words


def json_fields(result: Any, *properties: str, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of a dataclass or named tuple as values that JSON can represent.

    The result begins with the named properties; attributes named in `without` are left out.
    """
    own = [field.name for field in fields(result)] if is_dataclass(result) else result._fields
    names = (*properties, *own)
    return {name: _to_json(getattr(result, name)) for name in names if name not in without}


class JsonFields:
    """A dataclass whose attributes can be represented in JSON."""

    __slots__ = ()
    _first: tuple[str, ...] = ()  # properties with which the result begins
    _without: tuple[str, ...] = ()  # attributes that are left out

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values that JSON can represent; bytes are text with escapes."""
        return json_fields(self, *self._first, without=self._without)


def _to_json(value: Any) -> Any:
    """Return a value for JSON; bytes become text, with escapes for those that are not UTF-8."""
    if hasattr(value, "fields"):
        return value.fields()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Enum):
        return in_words(value)
    if is_dataclass(value) or isinstance(value, ModuleId):
        return json_fields(value)
    return [_to_json(item) for item in value] if isinstance(value, tuple | list) else value
