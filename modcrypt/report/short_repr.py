"""Short representations of options: only those that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields


class ShortRepr:
    """A dataclass (with `repr=False`) that shows the fields that differ from their defaults."""

    __slots__ = ()

    def __repr__(self) -> str:
        texts = []
        for field in fields(self):  # type: ignore[arg-type]
            value, make = getattr(self, field.name), field.default_factory
            if field.repr and value != (field.default if make is MISSING else make()):
                shown = dict(value) if isinstance(value, Mapping) else value
                texts.append(f"{field.name}={shown!r}")
        return f"{type(self).__name__}({', '.join(texts)})"
