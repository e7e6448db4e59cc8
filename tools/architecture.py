"""Draw the packages and their imports as `docs/assets/architecture.svg`.

`python tools/architecture.py` writes the picture; a test compares it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TypeAlias

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/explanation/architecture.md"
PICTURE = ROOT / "docs/assets/architecture.svg"

_BOXES = {"aead": "keys and ciphers", "aad": "keys and ciphers", "keys": "keys and ciphers",
          "module_ids": "errors and runtime", "errors": "errors and runtime",
          "runtime": "errors and runtime"}  # fmt: skip
"""Boxes that stand for several packages and modules."""

_WIDTH, _BOX, _HEIGHT, _ROW = 720, 150, 30, 58
"""Sizes in pixels: the picture, a box, and the distance of two rows."""

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="title" fill="none" stroke="currentColor" font-family="system-ui, sans-serif" \
font-size="13">
<title id="title">Packages of modcrypt; lines lead to the packages below that each imports</title>
<style>
svg {{ color: #111827; }} rect {{ fill: #ffffff; }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #f3f4f6; }} rect {{ fill: #1b1f2a; }} }}
</style>
<rect width="{width}" height="{height}" rx="10" stroke="none"/>"""

Edges: TypeAlias = "set[tuple[str, str]]"


def read_rows() -> list[list[str]]:
    """Return the boxes of each layer, the highest first, as the contract of imports lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"] == "Packages")
    rows = [[_box_of(name) for name in layer.split(" | ")] for layer in layers]
    seen = set[str]()
    unique = [[box for box in dict.fromkeys(row) if box not in seen and not seen.add(box)]  # type: ignore[func-returns-value]
              for row in rows]  # fmt: skip
    return [row for row in unique if row]


def _box_of(name: str) -> str:
    return _BOXES.get(name, name or "errors and runtime")


def find_edges() -> Edges:
    """Return which box imports from which, without what another path implies."""
    graph = grimp.build_graph("modcrypt")
    edges: Edges = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = _box_of(_part(module)), _box_of(_part(imported))
            if "" not in (_part(module), _part(imported)) and pair[0] != pair[1]:
                edges.add(pair)
    return _reduce(edges)


def _part(module: str) -> str:
    """Return the part of a module's name below the package; empty for the package itself."""
    part = "".join(module.split(".")[1:2])
    return "" if part == "__main__" else part


def _reduce(edges: Edges) -> Edges:
    reached = _close(edges)
    boxes = {box for edge in edges for box in edge}
    return {
        (a, b) for a, b in edges
        if not any((a, c) in edges and (c, b) in reached for c in boxes - {a, b})
    }  # fmt: skip


def _close(edges: Edges) -> Edges:
    closed = set(edges)
    while more := {(a, d) for (a, b), (c, d) in product(closed, edges) if b == c} - closed:
        closed |= more
    return closed


def draw(rows: Iterable[list[str]], edges: Edges) -> str:
    """Return the picture as SVG."""
    places = _place(list(rows))
    height = int(max(y for _, y in places.values()) + _HEIGHT + 4)
    lines = [
        f'<line x1="{x + _BOX / 2:g}" y1="{y + _HEIGHT:g}" x2="{p + _BOX / 2:g}" y2="{q:g}"/>'
        for (x, y), (p, q) in sorted((places[a], places[b]) for a, b in edges)
    ]
    boxes = [
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="4"/>'
        f'<text x="{x + _BOX / 2:g}" y="{y + 20:g}" text-anchor="middle" fill="currentColor" '
        f'stroke="none">{name}</text>'
        for name, (x, y) in places.items()
    ]
    head = _HEAD.format(width=_WIDTH, height=height)
    return "\n".join([head, *lines, *boxes, "</svg>\n"])


def _place(rows: list[list[str]]) -> Mapping[str, tuple[float, float]]:
    """Return the place of each box; rows of one box alternate, so that lines stay visible."""
    places = {}
    for number, row in enumerate(rows):
        gap = _WIDTH / len(row)
        shift = (number % 3 - 1) * 180 if len(row) == 1 else 0
        for at, name in enumerate(row):
            places[name] = (gap * (at + 0.5) - _BOX / 2 + shift, 2 + number * _ROW)
    return places


def main() -> None:
    PICTURE.write_text(draw(read_rows(), find_edges()))


if __name__ == "__main__":
    main()
