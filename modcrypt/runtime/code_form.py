"""Detect whether the code that runs per page and per column chunk is compiled."""

from __future__ import annotations

from importlib.util import find_spec


def code_form() -> str:
    """Return "compiled" if mypyc compiled the hot modules, else "interpreted"."""
    spec = find_spec("modcrypt.parquet.format.compact")
    is_source = spec is None or str(spec.origin).endswith((".py", ".pyc"))
    return "interpreted" if is_source else "compiled"
