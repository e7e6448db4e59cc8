"""Draws a `KeyTree`: as text for a terminal, and as a page with a picture, a tree and a table.

Both are bounded, whatever the table: of many branches of one kind the first are drawn, and the
others counted. A manifest that several snapshots share is drawn in full under the first of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, TypeVar

from modcrypt.html_parts import human
from modcrypt.report.page import (
    attribute,
    counted,
    day_of,
    facts,
    name_of,
    page,
    row,
    shown,
    table,
)

if TYPE_CHECKING:
    from modcrypt.iceberg.verify.key_trees import KeyTree, TreeFile, TreeKek, TreeList, TreeManifest

__all__ = ["draw_page", "draw_text"]

T = TypeVar("T")

HUES = 8

PAGE_BRANCHES = 60
"""Branches of one kind drawn beneath another on a page, if there is room."""

PAGE_NODES = 4_000
"""Nodes of the page's tree, in all."""

PAGE_KEYS = 500
"""Rows of the table of KEKs."""


# --- what both draw ------------------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A line of the tree.

    Attributes:
        chip: its kind, in a word.
        name: what it is called.
        meta: what else is said of it.
        hue: of the key that it is under, or is.
        tags: words that mark it, with the class that they are drawn in.
        title: its name in full.
        branches: the lines beneath it.
        rest: what is said of those that are not drawn.
    """

    chip: str
    name: str
    meta: list[str]
    hue: int | None = None
    tags: list[tuple[str, str]] = field(default_factory=list)
    title: str = ""
    branches: list[Node] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)


class _Plan:
    """Makes the lines of a tree, at most `limit` branches of one kind, and `room` lines in all."""

    def __init__(self, tree: KeyTree, limit: int, room: int) -> None:
        self._tree, self._limit, self._room = tree, limit, room
        self.hues = {one.id: number % HUES for number, one in enumerate(tree.keks)}
        self._drawn: set[int] = set()
        self._own: dict[str, list[TreeFile]] = {}
        for file in tree.files:
            if file.sealed_by is not None:
                self._own.setdefault(file.sealed_by, []).append(file)

    def roots(self) -> list[Node]:
        """Give a line for each master key, and one for what is under none."""
        tree = self._tree
        keks = {one.id for one in tree.keks}
        roots = [self._master(master) for master in tree.master_key_ids]
        bare = [one for one in tree.lists if one.sealed_by is None]
        lost = [
            one
            for one in tree.lists
            if one.sealed_by and not one.single and one.sealed_by not in keks
        ]
        for some, name, tag in (
            (bare, "no key", ("plaintext, or key-id missing", "odd")),
            (lost, "KEKs that are not there", ("lost", "bad")),
        ):
            if some:
                root = Node("none", name, [self._beneath(some)], tags=[tag])
                self._add(root, "manifest list", some, self._list)
                roots.append(root)
        return roots

    def _master(self, master: str) -> Node:
        tree = self._tree
        keks = [one for one in tree.keks if one.master_key_id == master]
        single = [one for one in tree.lists if one.single and one.sealed_by == master]
        files = self._own.get(master, [])
        node = Node("MEK", master, [], hue=None, title=f"master key {master}")
        ids = {one.id for one in keks}
        under = [one for one in tree.lists if one.sealed_by in ids] + single
        versions = sorted({one.version for one in keks if one.version is not None})
        if versions:
            node.meta.append(f"version {', '.join(versions[:6])}")
        if keks:
            node.meta.append(counted(len(keks), "KEK"))
        if single:
            node.meta.append(f"wraps the keys of {counted(len(single), 'manifest list')}")
        if files:
            node.meta.append(f"wraps the keys of {counted(len(files), 'file')}")
        if under:
            node.meta.append(self._beneath(under))
        if master == tree.master_key_id:
            node.tags.append(("the table's", ""))
        elif tree.master_key_id is not None:
            node.tags.append(("not the table's", "bad"))
        used = sorted(keks, key=lambda one: (not one.lists + one.files, -one.created_ms))
        self._add(node, "KEK", used, self._kek)
        self._add(node, "manifest list", single, self._list)
        return node

    def _kek(self, kek: TreeKek) -> Node:
        node = Node("KEK", kek.id, [], hue=self.hues[kek.id], title=f"KEK {kek.id}")
        node.meta.append(
            f"made {day_of(kek.created_ms)}, {counted(max(0, kek.age_days), 'day')} old"
        )
        if kek.scope:
            node.meta.append(f"for {kek.scope}")
        if kek.store != "table":
            node.meta.append("in the key store")
        if kek.version is not None:
            node.meta.append(f"under version {kek.version}")
        if kek.current is False:
            node.tags.append(("an older version", "odd"))
        if kek.error is not None:
            node.tags.append(("not unwrapped", "bad"))
            node.meta.append(kek.error)
        if not kek.lists and not kek.files:
            node.tags.append(("unused", "odd"))
        lists = [one for one in self._tree.lists if one.sealed_by == kek.id and not one.single]
        if lists:
            node.meta.append(f"{counted(len(lists), 'manifest list')}, {self._beneath(lists)}")
        self._add(node, "manifest list", lists, self._list)
        own = self._own.get(kek.id, [])
        if own:
            node.meta.append(f"seals the keys of {counted(len(own), 'file')}")
        self._add(node, "file that it seals the key of", own, lambda one: self._file(one, kek.id))
        return node

    def _list(self, one: TreeList) -> Node:
        ids = ", ".join(str(number) for number in one.snapshots)
        node = Node("snapshot", ids, [], hue=self._hue(one), title=one.location)
        node.meta += [day_of(one.timestamp_ms), name_of(one.location)]
        if one.size is not None:
            node.meta.append(human(one.size))
        if one.current:
            node.tags.append(("current", ""))
        if one.error is not None:
            node.tags.append(("not read", "bad"))
            node.meta.append(one.error)
        else:
            node.meta.append(self._beneath([one]))
        manifests = [self._tree.manifests[number] for number in one.manifests]
        fresh = [
            (n, m) for n, m in zip(one.manifests, manifests, strict=True) if n not in self._drawn
        ]
        shared = len(manifests) - len(fresh)
        self._drawn.update(number for number, _ in fresh[: min(self._limit, self._room)])
        hue = self._hue(one)
        self._add(node, "manifest", [m for _, m in fresh], lambda m: self._manifest(m, hue))
        if shared:
            node.rest.append(f"and {counted(shared, 'manifest')} drawn above")
        return node

    def _manifest(self, one: TreeManifest, hue: int | None) -> Node:
        node = Node(one.kind, name_of(one.location), [human(one.size)], hue, title=one.location)
        if not one.encrypted:
            node.tags.append(("plaintext", "odd"))
        if one.error is not None:
            node.tags.append(("not read", "bad"))
            node.meta.append(one.error)
        files = [self._tree.files[number] for number in one.files]
        if files:
            node.meta.append(f"{counted(len(files), 'file')}, {human(_bytes(files))}")
        self._add(node, "file", files, lambda file: self._file(file, None, hue))
        return node

    def _file(self, one: TreeFile, under: str | None, hue: int | None = None) -> Node:
        meta = [human(one.size), counted(one.records, _unit(one))]
        node = Node(one.kind, name_of(one.location), meta, hue, title=one.location)
        if not one.encrypted:
            node.tags.append(("plaintext", "odd"))
        if under is not None:
            node.hue = self.hues.get(under)
        elif one.sealed_by is not None:
            node.meta.append(f"its key is under {one.sealed_by}")
        return node

    def _hue(self, one: TreeList) -> int | None:
        return None if one.sealed_by is None else self.hues.get(one.sealed_by)

    def _beneath(self, lists: list[TreeList]) -> str:
        manifests, numbers = self._tree.beneath(lists)
        files = [self._tree.files[number] for number in numbers]
        return (
            f"{counted(len(manifests), 'manifest')}, {counted(len(files), 'file')}, "
            f"{human(_bytes(files))}"
        )

    def _add(self, node: Node, what: str, items: list[T], branch: Callable[[T], Node]) -> None:
        """Add a branch for each item, as long as there is room; count the others."""
        count = max(0, min(len(items), self._limit, self._room))
        self._room -= count
        node.branches += [branch(one) for one in items[:count]]
        if count < len(items):
            more = len(items) - count
            size = sum(getattr(one, "size", None) or 0 for one in items[count:])
            said = f", {human(size)}" if size else ""
            node.rest.append(f"and {counted(more, 'more ' + what)}{said}")


def _unit(one: TreeFile) -> str:
    return (
        "row" if one.kind == "data" else "deleted row" if "equality" not in one.kind else "delete"
    )


def _bytes(files: Iterable[TreeFile]) -> int:
    return sum(one.size for one in files)


# --- text ----------------------------------------------------------------------------------------


def draw_text(tree: KeyTree, limit: int) -> str:
    """Draw a tree for a terminal; see `KeyTree.to_text`."""
    plan = _Plan(tree, max(1, limit), PAGE_NODES)
    lines = [_clean(f"table {tree.uuid} in {tree.location}")]
    for root in plan.roots():
        lines += _lines(root, "", "")
    if tree.unused:
        lines.append(f"{counted(len(tree.unused), 'key')} that nothing uses:")
        lines += [f"  {_clean(one)}" for one in tree.unused[:limit]]
        if len(tree.unused) > limit:
            lines.append(f"  and {len(tree.unused) - limit:,} more")
    if not tree.whole:
        lines.append("Not all could be read: a key may open more than is drawn.")
    return "\n".join(lines) + "\n"


def _lines(node: Node, first: str, below: str) -> Iterator[str]:
    tags = "".join(f" [{word}]" for word, _ in node.tags)
    meta = "; ".join(one for one in node.meta if one)
    said = _clean(f"{node.chip} {node.name}{tags}" + (f": {meta}" if meta else ""))
    yield first + said
    ends = len(node.branches) + len(node.rest)
    for number, one in enumerate(node.branches, 1):
        last = number == ends
        yield from _lines(
            one, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")
        )
    for number, said in enumerate(node.rest, len(node.branches) + 1):
        yield below + ("└─ " if number == ends else "├─ ") + said


def _clean(text: str) -> str:
    """Spell out what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- the page ------------------------------------------------------------------------------------


def draw_page(tree: KeyTree) -> str:
    """Draw a tree as a page; see `KeyTree.to_html`."""
    plan = _Plan(tree, PAGE_BRANCHES, PAGE_NODES)
    nodes = "".join(_item(root, depth=0) for root in plan.roots())
    picture = _Picture(tree, plan.hues).svg()
    whole = "" if tree.whole else '<span class="verdict warning">Not all could be read</span>'
    body = [
        facts(_facts(tree)),
        '<section><h2>What opens what</h2><p class="note">A line leads from a key to what it '
        "opens; its colour is the KEK's. Dashed: a key that is sealed in a manifest, and needs its "
        f'own KEK as well.</p><div class="picture">{picture}</div></section>',
        f'<section><h2>The tree</h2><div class="tree"><ul>{nodes}</ul></div></section>',
        _kek_table(tree, plan.hues),
        _unused_table(tree),
    ]
    return page(f"Keys of {name_of(tree.location)}", whole, "\n".join(body))


def _facts(tree: KeyTree) -> list[tuple[str, str]]:
    ages = [one.age_days for one in tree.keks]
    oldest = counted(max(0, *ages), "day") if ages else "none"
    encrypted = [one for one in tree.files if one.encrypted]
    return [
        ("Table", tree.location),
        ("UUID", tree.uuid),
        ("Master key", tree.master_key_id or "none"),
        ("KEKs", f"{len(tree.keks):,}"),
        ("Oldest KEK", oldest),
        ("Snapshots", f"{sum(len(one.snapshots) for one in tree.lists):,}"),
        ("Manifests", f"{len(tree.manifests):,}"),
        ("Data and delete files", f"{len(tree.files):,}, {human(_bytes(tree.files))}"),
        ("Encrypted", f"{len(encrypted):,} of {len(tree.files):,}"),
        ("Unused keys", f"{len(tree.unused):,}"),
    ]


def _item(node: Node, depth: int) -> str:
    """Give a line of the tree, and what is beneath it: open at first down to snapshots."""
    hue = f" k{node.hue}" if node.hue is not None else ""
    tags = "".join(f'<span class="tag {kind}">{word}</span>' for word, kind in node.tags)
    meta = "; ".join(one for one in node.meta if one)
    line = (
        f'<span class="chip{hue}">{shown(node.chip)}</span>'
        f'<strong title="{attribute(node.title)}">{shown(node.name)}</strong>{tags}'
        f'<span class="meta">{shown(meta, 400)}</span>'
    )
    if not node.branches and not node.rest:
        return f'<li><div class="leaf">{line}</div>'
    below = "".join(_item(one, depth + 1) for one in node.branches)
    below += "".join(f'<li class="rest">{said}' for said in node.rest)
    first = " open" if depth < 2 else ""
    return (
        f'<li><details{first}><summary>{line}</summary><ul class="{hue.strip()}">{below}</ul>'
        "</details>"
    )


def _kek_table(tree: KeyTree, hues: dict[str, int]) -> str:
    rows = []
    own: defaultdict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(tree.files):
        if file.sealed_by is not None:
            own[file.sealed_by].append(number)
    for one in tree.keks[:PAGE_KEYS]:
        lists = [each for each in tree.lists if each.sealed_by == one.id and not each.single]
        numbers = {*tree.beneath(lists)[1], *own.get(one.id, ())}
        current = {True: "newest", False: "older", None: ""}[one.current]
        state = "not unwrapped" if one.error else "unused" if not one.lists + one.files else ""
        rows.append(
            row(
                [
                    f'<span class="chip k{hues[one.id]}">KEK</span><code>{shown(one.id)}</code>',
                    shown(one.master_key_id),
                    shown(f"{one.version or ''} {current}".strip() or "not told"),
                    f"{day_of(one.created_ms)}",
                    f"{one.age_days:,}",
                    shown(one.scope or "table"),
                    one.store,
                    f"{one.lists:,}",
                    f"{one.files:,}",
                    human(_bytes(tree.files[number] for number in numbers)),
                    f'<span class="odd">{state}</span>',
                ],
                (4, 7, 8, 9),
            )
        )
    heads = (
        "KEK", "Master key", "Its version", "Made", "Days old", "For", "Kept in", "Manifest lists",
        "Files it seals the key of", "Bytes beneath", "",
    )  # fmt: skip
    return table("KEKs", heads, rows, len(tree.keks) - len(rows), (4, 7, 8, 9))


def _unused_table(tree: KeyTree) -> str:
    rows = [row([f"<code>{shown(one)}</code>"]) for one in tree.unused[:PAGE_KEYS]]
    return table("Keys that nothing uses", ("Key",), rows, len(tree.unused) - len(rows))


# --- the picture ---------------------------------------------------------------------------------

WIDTH, HEIGHT, GAP, BETWEEN = 216, 40, 10, 68
MOST = 14
"""Boxes in one column; the last stands for all others."""

LABEL = 20
"""Characters that fit into a box."""


@dataclass(slots=True)
class _Box:
    label: str
    sub: str
    title: str
    hue: int | None = None
    kind: str = ""


class _Picture:
    """Five columns of boxes, and lines between those of which one opens the other."""

    def __init__(self, tree: KeyTree, hues: dict[str, int]) -> None:
        self._tree, self._hues = tree, hues
        self._columns: list[list[_Box]] = [[], [], [], [], []]
        self._at: list[dict[object, int]] = [{}, {}, {}, {}, {}]
        self._edges: Counter[tuple[int, int, int, int, int | None, bool]] = Counter()
        self._fill()
        self._tallest = max(1, *map(len, self._columns))
        self._join()

    def _fill(self) -> None:
        tree, hues = self._tree, self._hues
        masters = [_Box(one, "master key", one) for one in tree.master_key_ids[:MOST]]
        self._column(0, tree.master_key_ids, masters, "master keys")
        used = sorted(tree.keks, key=lambda one: (not one.lists + one.files, -one.created_ms))
        boxes = [
            _Box(
                one.id,
                f"{one.age_days:,} days old" + (f", {one.scope}" if one.scope else ""),
                f"KEK {one.id} {one.scope}",
                hues[one.id],
                "failed" if one.error else "",
            )
            for one in used[:MOST]
        ]
        self._column(1, [one.id for one in used], boxes, "KEKs")
        lists = [
            _Box(
                f"snapshot {', '.join(map(str, one.snapshots))}",
                "not read" if one.error else f"{name_of(one.location)}",
                one.location,
                hues.get(one.sealed_by or ""),
                _state(one.error, encrypted=one.sealed_by is not None),
            )
            for one in tree.lists[:MOST]
        ]
        self._column(2, range(len(tree.lists)), lists, "manifest lists")
        manifests = [
            _Box(
                name_of(one.location),
                "not read" if one.error else f"{one.kind}, {human(one.size)}",
                one.location,
                None,
                _state(one.error, encrypted=one.encrypted),
            )
            for one in tree.manifests[:MOST]
        ]
        self._column(3, range(len(tree.manifests)), manifests, "manifests")
        files = [
            _Box(
                name_of(one.location),
                f"{one.kind}, {human(one.size)}",
                one.location,
                hues.get(one.sealed_by or ""),
                _state(None, encrypted=one.encrypted),
            )
            for one in tree.files[:MOST]
        ]
        self._column(4, range(len(tree.files)), files, "files")

    def _column(self, place: int, ids: Sequence[object], boxes: list[_Box], what: str) -> None:
        """Put boxes into a column; the last one stands for all that have none of their own."""
        own = len(ids) if len(ids) <= MOST else MOST - 1
        self._at[place] = {one: min(number, own) for number, one in enumerate(ids)}
        self._columns[place] = boxes[:own]
        if more := len(ids) - own:
            self._columns[place].append(_Box(f"{more:,} more", what, f"{more:,} more {what}"))

    def _join(self) -> None:
        tree = self._tree
        for kek in tree.keks:
            self._edge(0, kek.master_key_id, 1, kek.id, self._hues[kek.id])
        manifest_hues: dict[int, set[int | None]] = {}
        for number, one in enumerate(tree.lists):
            hue = self._hues.get(one.sealed_by or "")
            self._edge(0 if one.single else 1, one.sealed_by, 2, number, hue)
            for manifest in one.manifests:
                self._edge(2, number, 3, manifest, hue)
                manifest_hues.setdefault(manifest, set()).add(hue)
        for number, manifest_node in enumerate(tree.manifests):
            hues = manifest_hues.get(number, set())
            for file in manifest_node.files:
                self._edge(3, number, 4, file, min(hues, key=str) if len(hues) == 1 else None)
        for number, file_node in enumerate(tree.files):
            by = file_node.sealed_by
            if by is not None:
                place = 0 if file_node.single else 1
                self._edge(place, by, 4, number, self._hues.get(by), own=True)

    def _edge(
        self, left: int, one: object, right: int, other: object, hue: int | None, own: bool = False
    ) -> None:
        start, end = self._at[left].get(one), self._at[right].get(other)
        if start is not None and end is not None:
            self._edges[left, start, right, end, hue, own] += 1

    def svg(self) -> str:
        """Give the picture."""
        height = 34 + self._tallest * (HEIGHT + GAP)
        width = 5 * WIDTH + 4 * BETWEEN
        heads = ("Master keys", "KEKs", "Manifest lists", "Manifests", "Data and delete files")
        parts = [
            f'<text class="head" x="{self._x(place)}" y="14">{head}</text>'
            for place, head in enumerate(heads)
        ]
        parts += [self._path(*edge) for edge in self._edges]
        for place, boxes in enumerate(self._columns):
            for number, one in enumerate(boxes):
                parts.append(self._box(one, self._x(place), self._y(place, number)))
        return (
            f'<svg role="img" aria-label="Keys, and the files that they open" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
        )

    @staticmethod
    def _x(place: int) -> int:
        return place * (WIDTH + BETWEEN)

    def _y(self, place: int, number: int) -> int:
        """Give the top of a box: short columns stand in the middle of the longest."""
        spare = self._tallest - len(self._columns[place])
        return 28 + number * (HEIGHT + GAP) + spare * (HEIGHT + GAP) // 2

    def _path(self, left: int, one: int, right: int, other: int, hue: int | None, own: bool) -> str:
        x, y = self._x(left) + WIDTH, self._y(left, one) + HEIGHT // 2
        end_x, end_y = self._x(right), self._y(right, other) + HEIGHT // 2
        bend = (end_x - x) // 2
        classes = "edge" + (f" k{hue}" if hue is not None else "") + (" own" if own else "")
        curve = f"M{x} {y}C{x + bend} {y} {end_x - bend} {end_y} {end_x} {end_y}"
        return f'<path class="{classes}" d="{curve}"/>'

    @staticmethod
    def _box(one: _Box, x: int, y: int) -> str:
        hue = f" k{one.hue}" if one.hue is not None else ""
        return (
            f'<g class="box{hue} {one.kind}"><title>{attribute(one.title)}</title>'
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<rect class="bar" x="{x}" y="{y}" width="4" height="{HEIGHT}" rx="2"/>'
            f'<text class="label" x="{x + 12}" y="{y + 17}">{escape(_fit(one.label, LABEL))}</text>'
            f'<text class="sub" x="{x + 12}" y="{y + 33}">{escape(_fit(one.sub, LABEL + 8))}</text>'
            "</g>"
        )


def _state(error: str | None, *, encrypted: bool) -> str:
    return "failed" if error else "" if encrypted else "open"


def _fit(text: str, limit: int) -> str:
    """Cut text in its middle, and spell out what is not printable."""
    clean = _clean(text)
    return clean if len(clean) <= limit else f"{clean[: limit // 2]}…{clean[-(limit // 2 - 1) :]}"
