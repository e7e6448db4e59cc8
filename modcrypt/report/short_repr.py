"""Short representations of options: only those that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any


def default_of(attribute: Field[Any]) -> Any:
    """Return the default of an attribute of a dataclass; MISSING if it has none."""
    made = attribute.default_factory
    return attribute.default if made is MISSING else made()


class ShortRepr:
    """A dataclass (with `repr=False`) that shows the fields that differ from their defaults."""

    __slots__ = ()

    def __repr__(self) -> str:
        texts = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.repr and value != default_of(field):
                shown = dict(value) if isinstance(value, Mapping) else value
                texts.append(f"{field.name}={shown!r}")
        return f"{type(self).__name__}({', '.join(texts)})"
