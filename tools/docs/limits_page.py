"""The reference page of limits, from the named constants of the package and their docstrings."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tools.docs.links import ROOT

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_INTRODUCTION = """\
# Limits

modcrypt bounds every length and count that a file, table, policy or key service declares, so that
hostile input costs a bounded amount of memory and time.
A value beyond its limit raises a `LimitError` or a `FormatError`, or is shown cut.
This page lists the named limits of each package; the first sentence of each is its meaning.

The limits of the formats themselves: a key encrypts at most 2³² modules, a file has at most 32,768
row groups and 32,768 columns, and a page at most 2³¹ - 1 bytes.
"""


def make_limits_page() -> str:
    """Return the page as Markdown."""
    packages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "modcrypt").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name, text in _find_limits(path):
            value = _format_value(getattr(import_module(module), name), text)
            row = f"| `{name}` | {value} | {text} | `{module}` |"
            packages.setdefault(module.split(".")[1], []).append(row)
    parts = [_INTRODUCTION]
    for package, rows in packages.items():
        head = "| Limit | Value | Meaning | Module |\n|---|---|---|---|"
        parts.append("\n".join([f"## `modcrypt.{package}`\n", head, *rows, ""]))
    return "\n".join(parts)


def _find_limits(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the public constants of a module that begin with MAX_ and have a docstring."""
    body = ast.parse(path.read_text()).body
    for node, text in itertools.pairwise(body):
        if not (isinstance(node, ast.Assign) and isinstance(text, ast.Expr)):
            continue
        target, value = node.targets[0], text.value
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            name = target.id
            if name.startswith("MAX_") or name.endswith("_LIMIT"):
                yield name, " ".join(str(value.value).split()).replace("|", "\\|")


def _format_value(value: object, text: str) -> str:
    if isinstance(value, int) and "byte" in text.lower():
        for size, unit in _UNITS:
            if value >= size and value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:,}" if isinstance(value, int) else str(value)
