"""Draw a `KeyTree` as text for a terminal, or as a page with a picture, a tree and a table.

Both are bounded for every table: of many branches of one kind, the first are drawn and the others
counted. A manifest that several snapshots share is drawn in full only under the first of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

from modcrypt.errors import printable
from modcrypt.iceberg.verify.key_tree_nodes import (
    KeyTreeNodes,
    TreeFile,
    TreeKek,
    TreeList,
    TreeManifest,
)
from modcrypt.report.html import format_day, format_name, render
from modcrypt.report.text import format_count, format_size

T = TypeVar("T")

HUES = 8

PAGE_BRANCHES = 60  # maximum number of branches of one kind under a node of the page
PAGE_NODES = 4_000  # maximum number of nodes in the tree


@dataclass(slots=True)
class Node:
    """A line of the tree."""

    chip: str  # kind of the node in one word
    # Short and full name of the node.
    name: str
    title: str = ""
    hue: str = ""  # style class of the node's key, or of the key that it is under; empty for none
    meta: list[str] = field(default_factory=list)  # details of the node; empty ones are not shown
    # Words that mark the node, with their style classes.
    tags: list[tuple[str, str]] = field(default_factory=list)
    branches: list[Node] = field(default_factory=list)  # nodes beneath it
    rest: list[str] = field(default_factory=list)  # texts about nodes that are not drawn

    @property
    def details(self) -> str:
        """Details of the node in one line."""
        return "; ".join(part for part in self.meta if part)


class _TreeLayout:
    """The nodes of a tree: at most `limit` branches of one kind, and `capacity` nodes in total."""

    def __init__(self, tree: KeyTreeNodes, limit: int, capacity: int) -> None:
        self._tree, self._limit, self._capacity = tree, limit, capacity
        self.hues = {kek.id: f"k{(n + 1) % HUES}" for n, kek in enumerate(tree.keks)}
        self._drawn: set[int] = set()
        self._lists: defaultdict[tuple[str | None, bool], list[TreeList]] = defaultdict(list)
        for manifest_list in tree.lists:
            self._lists[manifest_list.sealed_by, manifest_list.single].append(manifest_list)
        self._own: defaultdict[str | None, list[int]] = defaultdict(list)
        for number, file in enumerate(tree.files):
            self._own[file.sealed_by].append(number)

    def roots(self) -> list[Node]:
        """Return a node for each master key, and nodes for lists without a known key."""
        roots = [self._master_node(master) for master in self._tree.master_key_ids]
        bare = [each for each in self._tree.lists if each.sealed_by is None]
        lost = [
            each
            for each in self._tree.lists
            if each.sealed_by and not each.single and each.sealed_by not in self.hues
        ]
        for lists, name, tag in (
            (bare, "no key", ("plaintext, or key-id missing", "odd")),
            (lost, "missing KEKs", ("lost", "bad")),
        ):
            if lists:
                root = Node("none", name, meta=[self._beneath(lists)], tags=[tag])
                self._add_branches(root, "manifest list", lists, self._list_node)
                roots.append(root)
        return roots

    def size_beneath(self, kek: TreeKek) -> int:
        """Return the size of the data and delete files that need a KEK."""
        numbers = {*self._tree.beneath(self._lists[kek.id, False])[1], *self._own[kek.id]}
        return _total_size(self._tree.files[number] for number in numbers)

    def _master_node(self, master: str) -> Node:
        keks = [kek for kek in self._tree.keks if kek.master_key_id == master]
        single = self._lists[master, True]
        under = [each for kek in keks for each in self._lists[kek.id, False]] + single
        versions = sorted({kek.version for kek in keks if kek.version is not None})
        meta = [
            f"version {', '.join(versions[:6])}" if versions else "",
            _count("", keks, "KEK"),
            _count("wraps the keys of ", single, "manifest list"),
            _count("wraps the keys of ", self._own[master], "file"),
            self._beneath(under) if under else "",
        ]
        node = Node("MEK", master, f"master key {master}", meta=meta)
        if master == self._tree.master_key_id:
            node.tags.append(("the table's", ""))
        elif self._tree.master_key_id is not None:
            node.tags.append(("not the table's", "bad"))
        self._add_branches(node, "KEK", _used_first(keks), self._kek_node)
        self._add_branches(node, "manifest list", single, self._list_node)
        return node

    def _kek_node(self, kek: TreeKek) -> Node:
        lists = self._lists[kek.id, False]
        own = [self._tree.files[number] for number in self._own[kek.id]]
        meta = [
            f"made {format_day(kek.created_ms)}, {format_count(max(0, kek.age_days), 'day')} old",
            f"for {kek.scope}" if kek.scope else "",
            "in the key store" if kek.store != "table" else "",
            f"under version {kek.version}" if kek.version is not None else "",
            kek.error or "",
            f"{_count('', lists, 'manifest list')}, {self._beneath(lists)}" if lists else "",
            _count("encrypts the keys of ", own, "file"),
        ]
        node = Node("KEK", kek.id, f"KEK {kek.id}", self.hues[kek.id], meta)
        if kek.current is False:
            node.tags.append(("an older version", "odd"))
        if kek.error is not None:
            node.tags.append(("not unwrapped", "bad"))
        if not kek.lists and not kek.files:
            node.tags.append(("unused", "odd"))
        self._add_branches(node, "manifest list", lists, self._list_node)
        self._add_branches(node, "file key", own, lambda file: self._file_node(file, node.hue))
        return node

    def _list_node(self, manifest_list: TreeList) -> Node:
        meta = [
            format_day(manifest_list.timestamp_ms),
            format_name(manifest_list.location),
            "" if manifest_list.size is None else format_size(manifest_list.size),
            manifest_list.error or self._beneath([manifest_list]),
        ]
        ids = ", ".join(map(str, manifest_list.snapshots))
        hue = self.hues.get(manifest_list.sealed_by or "", "")
        node = Node("snapshot", ids, manifest_list.location, hue, meta)
        if manifest_list.current:
            node.tags.append(("current", ""))
        if manifest_list.error is not None:
            node.tags.append(("not read", "bad"))
        fresh = [number for number in manifest_list.manifests if number not in self._drawn]
        self._drawn.update(fresh[: min(self._limit, self._capacity)])
        manifests = [self._tree.manifests[number] for number in fresh]
        self._add_branches(node, "manifest", manifests, lambda m: self._manifest_node(m, hue))
        if shared := len(manifest_list.manifests) - len(fresh):
            node.rest.append(f"and {format_count(shared, 'manifest')} drawn above")
        return node

    def _manifest_node(self, manifest: TreeManifest, hue: str) -> Node:
        files = [self._tree.files[number] for number in manifest.files]
        meta = [
            format_size(manifest.size),
            manifest.error or "",
            f"{_count('', files, 'file')}, {format_size(_total_size(files))}" if files else "",
        ]
        name = format_name(manifest.location)
        node = Node(manifest.kind, name, manifest.location, hue, meta)
        if not manifest.encrypted:
            node.tags.append(("plaintext", "odd"))
        if manifest.error is not None:
            node.tags.append(("not read", "bad"))
        self._add_branches(node, "file", files, lambda file: self._file_node(file, hue, tell=True))
        return node

    @staticmethod
    def _file_node(file: TreeFile, hue: str, *, tell: bool = False) -> Node:
        """Return a node for a file; `tell` names the key that its own key is under."""
        unit = "delete" if "equality" in file.kind else "deleted row"
        meta = [
            format_size(file.size),
            format_count(file.records, "row" if file.kind == "data" else unit),
            f"its key is under {file.sealed_by}" if tell and file.sealed_by is not None else "",
        ]
        tags = [] if file.encrypted else [("plaintext", "odd")]
        return Node(file.kind, format_name(file.location), file.location, hue, meta, tags)

    def _beneath(self, lists: list[TreeList]) -> str:
        manifests, numbers = self._tree.beneath(lists)
        size = format_size(_total_size(self._tree.files[number] for number in numbers))
        files = format_count(len(numbers), "file")
        return f"{format_count(len(manifests), 'manifest')}, {files}, {size}"

    def _add_branches(
        self, node: Node, what: str, items: list[T], branch: Callable[[T], Node]
    ) -> None:
        """Add a branch for each item up to the limits; count the others."""
        count = max(0, min(len(items), self._limit, self._capacity))
        self._capacity -= count
        node.branches += [branch(item) for item in items[:count]]
        if more := len(items) - count:
            size = sum(getattr(item, "size", None) or 0 for item in items[count:])
            total_size = f", {format_size(size)}" if size else ""
            node.rest.append(f"and {format_count(more, 'more ' + what)}{total_size}")


def _used_first(keks: Iterable[TreeKek]) -> list[TreeKek]:
    """Return the keys that encrypt something, and then the others, each newest first."""
    return sorted(keks, key=lambda kek: (not kek.lists + kek.files, -kek.created_ms))


def _count(words: str, items: Sized, what: str) -> str:
    return words + format_count(len(items), what) if items else ""


def _total_size(files: Iterable[TreeFile]) -> int:
    return sum(file.size for file in files)


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
    details = f": {node.details}" if node.details else ""
    yield first + printable(f"{node.chip} {node.name}{tags}{details}")
    ends = len(node.branches) + len(node.rest)
    for number, branch in enumerate(node.branches, 1):
        last = number == ends
        yield from _draw_lines(
            branch, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")
        )
    for number, text in enumerate(node.rest, len(node.branches) + 1):
        yield below + ("└─ " if number == ends else "├─ ") + text


def draw_page(tree: KeyTreeNodes) -> str:
    """Draw a tree as a page."""
    layout = _TreeLayout(tree, PAGE_BRANCHES, PAGE_NODES)
    return render(
        "key_tree.html", title=f"Keys of {format_name(tree.location)}", tree=tree, hues=layout.hues,
        picture=_Picture(tree, layout.hues), roots=layout.roots(),
        keks=[(kek, layout.hues[kek.id], layout.size_beneath(kek)) for kek in tree.keks],
    )  # fmt: skip


MOST = 14  # maximum number of boxes in a column; the last one represents all others


@dataclass(slots=True)
class _Box:
    item: Any
    x: int
    y: int
    more: str = ""


class _Picture:
    """A picture with five columns of boxes, and lines from keys to what they decrypt."""

    heads = ("Master keys", "KEKs", "Manifest lists", "Manifests", "Data and delete files")
    box_width, box_height, row, column = 216, 40, 50, 284

    def __init__(self, tree: KeyTreeNodes, hues: dict[str, str]) -> None:
        self._hues = hues
        self._at: list[dict[object, _Box]] = []
        self.columns: list[list[_Box]] = []
        # Start and end of each line, with its style classes.
        self.edges: dict[tuple[int, int, int, int, str], None] = {}
        keks = _used_first(tree.keks)
        columns: dict[str, tuple[Sequence[object], Sequence[object]]] = {
            "master keys": (tree.master_key_ids, tree.master_key_ids),
            "KEKs": ([kek.id for kek in keks], keks),
            "manifest lists": (range(len(tree.lists)), tree.lists),
            "manifests": (range(len(tree.manifests)), tree.manifests),
            "files": (range(len(tree.files)), tree.files),
        }
        self._tallest = max(1, *(min(MOST, len(ids)) for ids, _ in columns.values()))
        for what, (ids, items) in columns.items():
            self._add_column(what, ids, items)
        self.width = 4 * self.column + self.box_width
        self.height = 34 + self._tallest * self.row
        self._add_edges(tree)

    def _add_column(self, what: str, ids: Sequence[object], items: Sequence[object]) -> None:
        """Add a column of boxes; the last one represents all items without their own box."""
        count = min(len(items), MOST)
        x = len(self.columns) * self.column
        top = 28 + (self._tallest - count) * self.row // 2  # short columns are centred
        boxes = [_Box(items[n], x, top + n * self.row) for n in range(count)]
        if len(items) > MOST:
            boxes[-1].more = f"{len(items) - MOST + 1:,} more"
            boxes[-1].item = what
        self.columns.append(boxes)
        self._at.append({id_: boxes[min(n, count - 1)] for n, id_ in enumerate(ids)})

    def _add_edges(self, tree: KeyTreeNodes) -> None:
        for kek in tree.keks:
            self._add_edge(0, kek.master_key_id, 1, kek.id, self._hues[kek.id])
        manifest_hues: defaultdict[int, set[str]] = defaultdict(set)
        for number, each in enumerate(tree.lists):
            hue = self._hues.get(each.sealed_by or "", "")
            self._add_edge(0 if each.single else 1, each.sealed_by, 2, number, hue)
            for manifest in each.manifests:
                self._add_edge(2, number, 3, manifest, hue)
                manifest_hues[manifest].add(hue)
        for number, manifest_node in enumerate(tree.manifests):
            hues = manifest_hues[number]
            for file in manifest_node.files:
                self._add_edge(3, number, 4, file, min(hues) if len(hues) == 1 else "")
        for number, file_node in enumerate(tree.files):
            hue = f"{self._hues.get(file_node.sealed_by or '', '')} own"
            self._add_edge(0 if file_node.single else 1, file_node.sealed_by, 4, number, hue)

    def _add_edge(self, left: int, first: object, right: int, second: object, classes: str) -> None:
        start, end = self._at[left].get(first), self._at[right].get(second)
        if start is not None and end is not None:
            middle = self.box_height // 2
            edge = (start.x + self.box_width, start.y + middle, end.x, end.y + middle, classes)
            self.edges[edge] = None
