"""Draw a `KeyTree` as text for a terminal, or as a page with a picture, a tree and a table.

Both are bounded for every table: of many branches of one kind, the first are drawn and the others
counted. A manifest that several snapshots share is drawn in full only under the first of them.

This module has more than 400 lines because text, page and picture draw the same lines of one tree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from modcrypt.errors import printable
from modcrypt.iceberg.verify.key_tree_nodes import (
    KeyTreeNodes,
    TreeFile,
    TreeKek,
    TreeList,
    TreeManifest,
)
from modcrypt.report.page import (
    format_day,
    format_name,
    render_attribute,
    render_facts,
    render_page,
    render_row,
    render_table,
    render_text,
)
from modcrypt.report.text import format_count, format_size

__all__ = ["draw_page", "draw_text"]

T = TypeVar("T")

HUES = 8

PAGE_BRANCHES = 60
"""Maximum number of branches of one kind under a node of the page."""

PAGE_NODES = 4_000
"""Maximum number of nodes in the tree."""

PAGE_KEYS = 500
"""Maximum number of rows in the tables of keys."""


# --- the lines of the tree -----------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A line of the tree.

    Attributes:
        chip: Kind of the node in one word.
        name: Name of the node.
        meta: Details of the node.
        hue: Colour of the node's key, or of the key that it is under.
        tags: Words that mark the node, with their style classes.
        title: Full name of the node.
        branches: Nodes beneath it.
        rest: Texts about nodes that are not drawn.
    """

    chip: str
    name: str
    meta: list[str]
    hue: int | None = None
    tags: list[tuple[str, str]] = field(default_factory=list)
    title: str = ""
    branches: list[Node] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)


class _TreeLayout:
    """The nodes of a tree: at most `limit` branches of one kind, and `capacity` nodes in total."""

    def __init__(self, tree: KeyTreeNodes, limit: int, capacity: int) -> None:
        self._tree, self._limit, self._capacity = tree, limit, capacity
        self.hues = {kek.id: number % HUES for number, kek in enumerate(tree.keks)}
        self._drawn: set[int] = set()
        self._own: dict[str, list[TreeFile]] = {}
        for file in tree.files:
            if file.sealed_by is not None:
                self._own.setdefault(file.sealed_by, []).append(file)

    def roots(self) -> list[Node]:
        """Return a node for each master key, and nodes for lists without a known key."""
        tree = self._tree
        keks = {kek.id for kek in tree.keks}
        roots = [self._master_node(master) for master in tree.master_key_ids]
        bare = [manifest_list for manifest_list in tree.lists if manifest_list.sealed_by is None]
        lost = [
            manifest_list
            for manifest_list in tree.lists
            if manifest_list.sealed_by
            and not manifest_list.single
            and manifest_list.sealed_by not in keks
        ]
        for lists, name, tag in (
            (bare, "no key", ("plaintext, or key-id missing", "odd")),
            (lost, "missing KEKs", ("lost", "bad")),
        ):
            if lists:
                root = Node("none", name, [self._beneath(lists)], tags=[tag])
                self._add_branches(root, "manifest list", lists, self._list_node)
                roots.append(root)
        return roots

    def _master_node(self, master: str) -> Node:
        tree = self._tree
        keks = [kek for kek in tree.keks if kek.master_key_id == master]
        single = [
            manifest_list
            for manifest_list in tree.lists
            if manifest_list.single and manifest_list.sealed_by == master
        ]
        files = self._own.get(master, [])
        node = Node("MEK", master, [], hue=None, title=f"master key {master}")
        ids = {kek.id for kek in keks}
        under = [
            manifest_list for manifest_list in tree.lists if manifest_list.sealed_by in ids
        ] + single
        versions = sorted({kek.version for kek in keks if kek.version is not None})
        if versions:
            node.meta.append(f"version {', '.join(versions[:6])}")
        if keks:
            node.meta.append(format_count(len(keks), "KEK"))
        if single:
            node.meta.append(f"wraps the keys of {format_count(len(single), 'manifest list')}")
        if files:
            node.meta.append(f"wraps the keys of {format_count(len(files), 'file')}")
        if under:
            node.meta.append(self._beneath(under))
        if master == tree.master_key_id:
            node.tags.append(("the table's", ""))
        elif tree.master_key_id is not None:
            node.tags.append(("not the table's", "bad"))
        used = sorted(keks, key=lambda kek: (not kek.lists + kek.files, -kek.created_ms))
        self._add_branches(node, "KEK", used, self._kek_node)
        self._add_branches(node, "manifest list", single, self._list_node)
        return node

    def _kek_node(self, kek: TreeKek) -> Node:
        node = Node("KEK", kek.id, [], hue=self.hues[kek.id], title=f"KEK {kek.id}")
        node.meta.append(
            f"made {format_day(kek.created_ms)}, {format_count(max(0, kek.age_days), 'day')} old"
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
        lists = [
            manifest_list
            for manifest_list in self._tree.lists
            if manifest_list.sealed_by == kek.id and not manifest_list.single
        ]
        if lists:
            node.meta.append(f"{format_count(len(lists), 'manifest list')}, {self._beneath(lists)}")
        self._add_branches(node, "manifest list", lists, self._list_node)
        own = self._own.get(kek.id, [])
        if own:
            node.meta.append(f"encrypts the keys of {format_count(len(own), 'file')}")
        self._add_branches(node, "file key", own, lambda file: self._file_node(file, kek.id))
        return node

    def _list_node(self, manifest_list: TreeList) -> Node:
        ids = ", ".join(str(number) for number in manifest_list.snapshots)
        node = Node("snapshot", ids, [], hue=self._hue(manifest_list), title=manifest_list.location)
        node.meta += [format_day(manifest_list.timestamp_ms), format_name(manifest_list.location)]
        if manifest_list.size is not None:
            node.meta.append(format_size(manifest_list.size))
        if manifest_list.current:
            node.tags.append(("current", ""))
        if manifest_list.error is not None:
            node.tags.append(("not read", "bad"))
            node.meta.append(manifest_list.error)
        else:
            node.meta.append(self._beneath([manifest_list]))
        manifests = [self._tree.manifests[number] for number in manifest_list.manifests]
        fresh = [
            (n, m)
            for n, m in zip(manifest_list.manifests, manifests, strict=True)
            if n not in self._drawn
        ]
        shared = len(manifests) - len(fresh)
        self._drawn.update(number for number, _ in fresh[: min(self._limit, self._capacity)])
        hue = self._hue(manifest_list)
        self._add_branches(
            node, "manifest", [m for _, m in fresh], lambda m: self._manifest_node(m, hue)
        )
        if shared:
            node.rest.append(f"and {format_count(shared, 'manifest')} drawn above")
        return node

    def _manifest_node(self, manifest: TreeManifest, hue: int | None) -> Node:
        node = Node(
            manifest.kind,
            format_name(manifest.location),
            [format_size(manifest.size)],
            hue,
            title=manifest.location,
        )
        if not manifest.encrypted:
            node.tags.append(("plaintext", "odd"))
        if manifest.error is not None:
            node.tags.append(("not read", "bad"))
            node.meta.append(manifest.error)
        files = [self._tree.files[number] for number in manifest.files]
        if files:
            node.meta.append(
                f"{format_count(len(files), 'file')}, {format_size(_total_size(files))}"
            )
        self._add_branches(node, "file", files, lambda file: self._file_node(file, None, hue))
        return node

    def _file_node(self, file: TreeFile, under: str | None, hue: int | None = None) -> Node:
        meta = [format_size(file.size), format_count(file.records, _unit(file))]
        node = Node(file.kind, format_name(file.location), meta, hue, title=file.location)
        if not file.encrypted:
            node.tags.append(("plaintext", "odd"))
        if under is not None:
            node.hue = self.hues.get(under)
        elif file.sealed_by is not None:
            node.meta.append(f"its key is under {file.sealed_by}")
        return node

    def _hue(self, manifest_list: TreeList) -> int | None:
        return None if manifest_list.sealed_by is None else self.hues.get(manifest_list.sealed_by)

    def _beneath(self, lists: list[TreeList]) -> str:
        manifests, numbers = self._tree.beneath(lists)
        files = [self._tree.files[number] for number in numbers]
        return (
            f"{format_count(len(manifests), 'manifest')}, {format_count(len(files), 'file')}, "
            f"{format_size(_total_size(files))}"
        )

    def _add_branches(
        self, node: Node, what: str, items: list[T], branch: Callable[[T], Node]
    ) -> None:
        """Add a branch for each item up to the limits; count the others."""
        count = max(0, min(len(items), self._limit, self._capacity))
        self._capacity -= count
        node.branches += [branch(item) for item in items[:count]]
        if count < len(items):
            more = len(items) - count
            size = sum(getattr(item, "size", None) or 0 for item in items[count:])
            total_size = f", {format_size(size)}" if size else ""
            node.rest.append(f"and {format_count(more, 'more ' + what)}{total_size}")


def _unit(file: TreeFile) -> str:
    return (
        "row" if file.kind == "data" else "deleted row" if "equality" not in file.kind else "delete"
    )


def _total_size(files: Iterable[TreeFile]) -> int:
    return sum(file.size for file in files)


# --- text ----------------------------------------------------------------------------------------


def draw_text(tree: KeyTreeNodes, limit: int) -> str:
    """Draw a tree for a terminal; see `KeyTree.to_text`."""
    plan = _TreeLayout(tree, max(1, limit), PAGE_NODES)
    lines = [printable(f"table {tree.uuid} in {tree.location}")]
    for root in plan.roots():
        lines += _draw_lines(root, "", "")
    if tree.unused:
        lines.append(f"{format_count(len(tree.unused), 'unused key')}:")
        lines += [f"  {printable(key_id)}" for key_id in tree.unused[:limit]]
        if len(tree.unused) > limit:
            lines.append(f"  and {len(tree.unused) - limit:,} more")
    if not tree.whole:
        lines.append("Some files could not be read: a key may decrypt more files than are drawn.")
    return "\n".join(lines) + "\n"


def _draw_lines(node: Node, first: str, below: str) -> Iterator[str]:
    tags = "".join(f" [{word}]" for word, _ in node.tags)
    meta = "; ".join(part for part in node.meta if part)
    text = printable(f"{node.chip} {node.name}{tags}" + (f": {meta}" if meta else ""))
    yield first + text
    ends = len(node.branches) + len(node.rest)
    for number, branch in enumerate(node.branches, 1):
        last = number == ends
        yield from _draw_lines(
            branch, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")
        )
    for number, text in enumerate(node.rest, len(node.branches) + 1):
        yield below + ("└─ " if number == ends else "├─ ") + text


# --- the page ------------------------------------------------------------------------------------


def draw_page(tree: KeyTreeNodes) -> str:
    """Draw a tree as a page; see `KeyTree.to_html`."""
    plan = _TreeLayout(tree, PAGE_BRANCHES, PAGE_NODES)
    nodes = "".join(_draw_item(root, depth=0) for root in plan.roots())
    picture = _Picture(tree, plan.hues).svg()
    whole = (
        "" if tree.whole else '<span class="verdict warning">Some files could not be read</span>'
    )
    body = [
        render_facts(_facts(tree)),
        '<section><h2>Keys and files</h2><p class="note">A line leads from a key to what it '
        "decrypts; its colour is the KEK's. Dashed: the file's key is encrypted in its manifest "
        f'and needs its own KEK as well.</p><div class="picture">{picture}</div></section>',
        f'<section><h2>The tree</h2><div class="tree"><ul>{nodes}</ul></div></section>',
        _kek_table(tree, plan.hues),
        _unused_table(tree),
    ]
    return render_page(f"Keys of {format_name(tree.location)}", whole, "\n".join(body))


def _facts(tree: KeyTreeNodes) -> list[tuple[str, str]]:
    ages = [kek.age_days for kek in tree.keks]
    oldest = format_count(max(0, *ages), "day") if ages else "none"
    encrypted = [file for file in tree.files if file.encrypted]
    return [
        ("Table", tree.location),
        ("UUID", tree.uuid),
        ("Master key", tree.master_key_id or "none"),
        ("KEKs", f"{len(tree.keks):,}"),
        ("Oldest KEK", oldest),
        ("Snapshots", f"{sum(len(manifest_list.snapshots) for manifest_list in tree.lists):,}"),
        ("Manifests", f"{len(tree.manifests):,}"),
        ("Data and delete files", f"{len(tree.files):,}, {format_size(_total_size(tree.files))}"),
        ("Encrypted", f"{len(encrypted):,} of {len(tree.files):,}"),
        ("Unused keys", f"{len(tree.unused):,}"),
    ]


def _draw_item(node: Node, depth: int) -> str:
    """Return a node and the nodes beneath it as HTML; initially unfolded down to snapshots."""
    hue = f" k{node.hue}" if node.hue is not None else ""
    tags = "".join(f'<span class="tag {kind}">{word}</span>' for word, kind in node.tags)
    meta = "; ".join(part for part in node.meta if part)
    line = (
        f'<span class="chip{hue}">{render_text(node.chip)}</span>'
        f'<strong title="{render_attribute(node.title)}">{render_text(node.name)}</strong>{tags}'
        f'<span class="meta">{render_text(meta, 400)}</span>'
    )
    if not node.branches and not node.rest:
        return f'<li><div class="leaf">{line}</div>'
    below = "".join(_draw_item(branch, depth + 1) for branch in node.branches)
    below += "".join(f'<li class="rest">{text}' for text in node.rest)
    first = " open" if depth < 2 else ""
    return (
        f'<li><details{first}><summary>{line}</summary><ul class="{hue.strip()}">{below}</ul>'
        "</details>"
    )


def _kek_table(tree: KeyTreeNodes, hues: dict[str, int]) -> str:
    rows = []
    own: defaultdict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(tree.files):
        if file.sealed_by is not None:
            own[file.sealed_by].append(number)
    for kek in tree.keks[:PAGE_KEYS]:
        lists = [each for each in tree.lists if each.sealed_by == kek.id and not each.single]
        numbers = {*tree.beneath(lists)[1], *own.get(kek.id, ())}
        current = {True: "newest", False: "older", None: ""}[kek.current]
        state = "not unwrapped" if kek.error else "unused" if not kek.lists + kek.files else ""
        rows.append(
            render_row(
                [
                    f'<span class="chip k{hues[kek.id]}">KEK</span>'
                    f"<code>{render_text(kek.id)}</code>",
                    render_text(kek.master_key_id),
                    render_text(f"{kek.version or ''} {current}".strip() or "unknown"),
                    f"{format_day(kek.created_ms)}",
                    f"{kek.age_days:,}",
                    render_text(kek.scope or "table"),
                    kek.store,
                    f"{kek.lists:,}",
                    f"{kek.files:,}",
                    format_size(_total_size(tree.files[number] for number in numbers)),
                    f'<span class="odd">{state}</span>',
                ],
                (4, 7, 8, 9),
            )
        )
    heads = (
        "KEK", "Master key", "Its version", "Made", "Days old", "For", "Kept in", "Manifest lists",
        "Files whose key it encrypts", "Bytes beneath", "",
    )  # fmt: skip
    return render_table("KEKs", heads, rows, len(tree.keks) - len(rows), (4, 7, 8, 9))


def _unused_table(tree: KeyTreeNodes) -> str:
    rows = [
        render_row([f"<code>{render_text(key_id)}</code>"]) for key_id in tree.unused[:PAGE_KEYS]
    ]
    return render_table("Unused keys", ("Key",), rows, len(tree.unused) - len(rows))


# --- the picture ---------------------------------------------------------------------------------

WIDTH, HEIGHT, GAP, BETWEEN = 216, 40, 10, 68
MOST = 14
"""Maximum number of boxes in a column; the last one represents all others."""

LABEL = 20
"""Number of characters that fit into a box."""


@dataclass(slots=True)
class _Box:
    label: str
    sub: str
    title: str
    hue: int | None = None
    kind: str = ""


class _Picture:
    """A picture with five columns of boxes, and lines from keys to what they decrypt."""

    def __init__(self, tree: KeyTreeNodes, hues: dict[str, int]) -> None:
        self._tree, self._hues = tree, hues
        self._columns: list[list[_Box]] = [[], [], [], [], []]
        self._at: list[dict[object, int]] = [{}, {}, {}, {}, {}]
        self._edges: Counter[tuple[int, int, int, int, int | None, bool]] = Counter()
        self._add_boxes()
        self._tallest = max(1, *map(len, self._columns))
        self._add_edges()

    def _add_boxes(self) -> None:
        tree, hues = self._tree, self._hues
        masters = [_Box(key_id, "master key", key_id) for key_id in tree.master_key_ids[:MOST]]
        self._add_column(0, tree.master_key_ids, masters, "master keys")
        used = sorted(tree.keks, key=lambda kek: (not kek.lists + kek.files, -kek.created_ms))
        boxes = [
            _Box(
                kek.id,
                f"{kek.age_days:,} days old" + (f", {kek.scope}" if kek.scope else ""),
                f"KEK {kek.id} {kek.scope}",
                hues[kek.id],
                "failed" if kek.error else "",
            )
            for kek in used[:MOST]
        ]
        self._add_column(1, [kek.id for kek in used], boxes, "KEKs")
        lists = [
            _Box(
                f"snapshot {', '.join(map(str, manifest_list.snapshots))}",
                "not read" if manifest_list.error else f"{format_name(manifest_list.location)}",
                manifest_list.location,
                hues.get(manifest_list.sealed_by or ""),
                _state(manifest_list.error, encrypted=manifest_list.sealed_by is not None),
            )
            for manifest_list in tree.lists[:MOST]
        ]
        self._add_column(2, range(len(tree.lists)), lists, "manifest lists")
        manifests = [
            _Box(
                format_name(manifest.location),
                "not read" if manifest.error else f"{manifest.kind}, {format_size(manifest.size)}",
                manifest.location,
                None,
                _state(manifest.error, encrypted=manifest.encrypted),
            )
            for manifest in tree.manifests[:MOST]
        ]
        self._add_column(3, range(len(tree.manifests)), manifests, "manifests")
        files = [
            _Box(
                format_name(file.location),
                f"{file.kind}, {format_size(file.size)}",
                file.location,
                hues.get(file.sealed_by or ""),
                _state(None, encrypted=file.encrypted),
            )
            for file in tree.files[:MOST]
        ]
        self._add_column(4, range(len(tree.files)), files, "files")

    def _add_column(self, place: int, ids: Sequence[object], boxes: list[_Box], what: str) -> None:
        """Put boxes into a column; the last one represents all items without their own box."""
        own = len(ids) if len(ids) <= MOST else MOST - 1
        self._at[place] = {id_: min(number, own) for number, id_ in enumerate(ids)}
        self._columns[place] = boxes[:own]
        if more := len(ids) - own:
            self._columns[place].append(_Box(f"{more:,} more", what, f"{more:,} more {what}"))

    def _add_edges(self) -> None:
        tree = self._tree
        for kek in tree.keks:
            self._add_edge(0, kek.master_key_id, 1, kek.id, self._hues[kek.id])
        manifest_hues: dict[int, set[int | None]] = {}
        for number, manifest_list in enumerate(tree.lists):
            hue = self._hues.get(manifest_list.sealed_by or "")
            self._add_edge(
                0 if manifest_list.single else 1, manifest_list.sealed_by, 2, number, hue
            )
            for manifest in manifest_list.manifests:
                self._add_edge(2, number, 3, manifest, hue)
                manifest_hues.setdefault(manifest, set()).add(hue)
        for number, manifest_node in enumerate(tree.manifests):
            hues = manifest_hues.get(number, set())
            for file in manifest_node.files:
                self._add_edge(3, number, 4, file, min(hues, key=str) if len(hues) == 1 else None)
        for number, file_node in enumerate(tree.files):
            by = file_node.sealed_by
            if by is not None:
                place = 0 if file_node.single else 1
                self._add_edge(place, by, 4, number, self._hues.get(by), own=True)

    def _add_edge(
        self,
        left: int,
        first: object,
        right: int,
        second: object,
        hue: int | None,
        own: bool = False,
    ) -> None:
        start, end = self._at[left].get(first), self._at[right].get(second)
        if start is not None and end is not None:
            self._edges[left, start, right, end, hue, own] += 1

    def svg(self) -> str:
        """Return the picture as SVG."""
        height = 34 + self._tallest * (HEIGHT + GAP)
        width = 5 * WIDTH + 4 * BETWEEN
        heads = ("Master keys", "KEKs", "Manifest lists", "Manifests", "Data and delete files")
        parts = [
            f'<text class="head" x="{self._x(place)}" y="14">{head}</text>'
            for place, head in enumerate(heads)
        ]
        parts += [self._draw_edge(*edge) for edge in self._edges]
        for place, boxes in enumerate(self._columns):
            for number, box in enumerate(boxes):
                parts.append(self._draw_box(box, self._x(place), self._y(place, number)))
        return (
            f'<svg role="img" aria-label="Keys and the files that they decrypt" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
        )

    @staticmethod
    def _x(place: int) -> int:
        return place * (WIDTH + BETWEEN)

    def _y(self, place: int, number: int) -> int:
        """Return the top of a box; short columns are centred."""
        spare = self._tallest - len(self._columns[place])
        return 28 + number * (HEIGHT + GAP) + spare * (HEIGHT + GAP) // 2

    def _draw_edge(
        self, left: int, start: int, right: int, end: int, hue: int | None, own: bool
    ) -> str:
        x, y = self._x(left) + WIDTH, self._y(left, start) + HEIGHT // 2
        end_x, end_y = self._x(right), self._y(right, end) + HEIGHT // 2
        bend = (end_x - x) // 2
        classes = "edge" + (f" k{hue}" if hue is not None else "") + (" own" if own else "")
        curve = f"M{x} {y}C{x + bend} {y} {end_x - bend} {end_y} {end_x} {end_y}"
        return f'<path class="{classes}" d="{curve}"/>'

    @staticmethod
    def _draw_box(box: _Box, x: int, y: int) -> str:
        hue = f" k{box.hue}" if box.hue is not None else ""
        label, sub = render_attribute(box.label, LABEL), render_attribute(box.sub, LABEL + 8)
        return (
            f'<g class="box{hue} {box.kind}"><title>{render_attribute(box.title)}</title>'
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<rect class="bar" x="{x}" y="{y}" width="4" height="{HEIGHT}" rx="2"/>'
            f'<text class="label" x="{x + 12}" y="{y + 17}">{label}</text>'
            f'<text class="sub" x="{x + 12}" y="{y + 33}">{sub}</text>'
            "</g>"
        )


def _state(error: str | None, *, encrypted: bool) -> str:
    return "failed" if error else "" if encrypted else "open"
