"""Short representations of options: only those that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any


class ShortRepr:
    """A dataclass (with `repr=False`) that shows the fields that differ from their defaults."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [(field, getattr(self, field.name)) for field in fields(self) if field.repr]  # type: ignore[arg-type]
        texts = [f"{field.name}={_show(v)}" for field, v in shown if v != _default(field)]
        return f"{type(self).__name__}({', '.join(texts)})"


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _show(value: Any) -> str:
    return repr(dict(value) if isinstance(value, Mapping) else value)
