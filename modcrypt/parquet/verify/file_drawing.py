"""Draw a file as an HTML page: which key encrypts what, what was verified, where faults are.

The page has a bounded size for any file: similar neighbours are merged, then parts that are too
small to see; cells stand for several row groups or columns; long tables and names are cut. The page
states which of these it did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from modcrypt.module_ids import in_words
from modcrypt.parquet.format.byte_map import Region, State, fill_gaps
from modcrypt.parquet.format.findings import Finding
from modcrypt.report.html import format_readable, group_notes, render

STATES: dict[State, str] = {
    "fault": "Checked, and something is wrong.",
    "plaintext": "Not encrypted, and so not authenticated.",
    "unauthenticated": "Encrypted without a tag: alterations go undetected.",
    "unchecked": "Encrypted, but not opened.",
    "locked": "Encrypted, and there was no key.",
    "authentic": "The tag was verified.",
}
"""Meaning of each state, the worst first; merged parts show their worst state."""

_RANKS = {state: rank for rank, state in enumerate(STATES)}

MAX_CELLS = 24_000
MAX_COLUMNS = 4_096
MAX_ROWS = 256
"""Maximum number of cells in the grid, of its columns and of its rows."""

MAX_PARTS = 20_000
MIN_CELL_PARTS = 4
"""Maximum number of parts in all cells, and a minimum per cell: pages, indexes, bloom filter."""

MAX_FILE_PARTS = 2_000
"""Maximum number of parts in the strip of the whole file: about the width of a screen in pixels."""

MAX_FINDINGS = 1_100
"""Maximum number of findings listed."""

MAX_NUMBER = 2**53 - 1
"""Largest integer up to which JavaScript's numbers are exact."""

MAX_NAMES = 120_000
MIN_NAME, MAX_NAME = 40, 240  # maximum characters of all names of one kind, and of one name


def draw(
    *, title: str, facts: Sequence[tuple[str, str]], columns: Sequence[str], row_groups: int,
    size: int, regions: Iterable[Region], findings: Sequence[Finding] = (),
    notes: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    """Return a page that draws a file.

    Args:
        facts: Labels and values for the head of the page.
        columns: Dotted names in the file's order; empty if the footer hides them.
        row_groups: Number of row groups; 0 if the footer hides it.
        regions: Regions of the file; gaps between them are added.
        notes: Headings and sentences for the foot of the page.
    """
    given = list(regions)
    ordered = list(fill_gaps(given, size)) if given else []
    drawing = _Drawing(columns, ordered, size)
    data, merged = _make_script_data(drawing, ordered, row_groups, findings[:MAX_FINDINGS])
    return render(
        "file.html", title=title, facts=facts, drawing=drawing,
        states=list(reversed(STATES.items())) if ordered else [], findings=findings,
        max_findings=MAX_FINDINGS, notes=group_notes(notes), merged=merged, data=data,
    )  # fmt: skip


def _make_script_data(
    drawing: _Drawing, ordered: list[Region], row_groups: int, findings: Sequence[Finding]
) -> tuple[dict[str, Any], list[str]]:
    """Return the data that the script draws, and sentences about merged parts."""
    rows, steps, merged = _make_grid(drawing, ordered, row_groups)
    groups = _merge_neighbours(ordered, MAX_FILE_PARTS, lambda region: region.row_group)
    if len(groups) < len(ordered):
        merged.append(
            f"The strip of the whole file draws {len(ordered):,} parts as {len(groups):,}."
        )
    if not ordered:
        merged.append("The places of the file's parts are unknown, so there is nothing to draw.")
    return {
        "size": drawing.size,
        "rows": rows,
        "rowGroups": row_groups,
        "rowStep": steps[0],
        "columnStep": steps[1],
        "file": [drawing.make_part(group) for group in groups],
        "findings": _locate_findings(findings, ordered),
        "columns": drawing.columns,
        "keys": drawing.keys,
        "letters": drawing.letters,
        # after the parts, which number their kinds
        "kinds": [format_readable(kind, MAX_NAME) for kind in drawing.kinds],
        "states": list(STATES),
    }, merged


def _shorten_names(names: Sequence[str]) -> list[str]:
    limit = min(MAX_NAME, max(MIN_NAME, MAX_NAMES // max(1, len(names))))
    return [format_readable(name, limit) for name in names]


def _format_letters(key: int) -> str:
    """Return the letters of a key, numbered like spreadsheet columns: A to Z, AA, AB."""
    before, last = divmod(key, 26)
    return (_format_letters(before - 1) if before else "") + chr(ord("A") + last)


@dataclass(slots=True)
class _Tally:
    """Counts of the parts of one key, kind, state or column."""

    parts: int = 0
    bytes: int = 0
    states: Counter[State] = field(default_factory=Counter)
    keys: dict[int, None] = field(default_factory=dict)
    columns: set[int] = field(default_factory=set)

    def add(self, region: Region, key: int) -> None:
        self.parts += 1
        self.bytes += region.size
        self.states[region.state] += 1
        if key >= 0:
            self.keys[key] = None
        if region.column is not None:
            self.columns.add(region.column)


class _Drawing:
    """Data that the tables and strips of one file share: numbers for names, and counts."""

    def __init__(self, columns: Sequence[str], regions: list[Region], size: int) -> None:
        names = dict.fromkeys(region.key for region in regions if region.key is not None)
        keys = sorted(names, key=lambda key: key != "footer key")  # others in the file's order
        self._key_numbers: dict[str | None, int] = {key: n for n, key in enumerate(keys)}
        self._key_numbers[None] = -1
        self.columns, self.keys = _shorten_names(columns), _shorten_names(keys)
        self.letters = [_format_letters(key) for key in range(len(keys))]
        self.kinds: dict[str, int] = {}
        self.size = size
        self.by_state = {state: _Tally() for state in STATES}
        self.by_key = {key: _Tally() for key in range(len(keys))}
        self.by_kind: defaultdict[str, _Tally] = defaultdict(_Tally)
        self.by_column = {column: _Tally() for column in range(len(columns))}
        for region in regions:
            key = self._key_numbers[region.key]
            tallies = [self.by_state[region.state], self.by_kind[region.kind]]
            if key >= 0:
                tallies.append(self.by_key[key])
            if region.column in self.by_column:
                tallies.append(self.by_column[region.column])
            for tally in tallies:
                tally.add(region, key)

    def make_part(self, group: list[Region]) -> list[Any]:
        """Return a part as the list that the script draws, in the order that the script expects."""
        kinds = ", ".join(dict.fromkeys(region.kind for region in group))
        kind = self.kinds.setdefault(kinds, len(self.kinds))
        states: Counter[State] = Counter()
        for region in group:
            states[region.state] += region.size
        worst = min(_RANKS[state] for state in states)
        keys = {self._key_numbers[region.key] for region in group}
        pages = [region.page for region in group if region.page is not None]
        part = [
            *_clamp_offsets(min(r.start for r in group), max(r.end for r in group)),
            min(sum(region.size for region in group), MAX_NUMBER),
            kind,
            worst,
            keys.pop() if len(keys) == 1 else -2,
            len(group),
            _find_common_ordinal(region.row_group for region in group),
            _find_common_ordinal(region.column for region in group),
            min(pages, default=None),
            max(pages, default=None),
        ]
        return part if len(states) == 1 else [*part, [states[state] for state in STATES]]


def _clamp_offsets(*offsets: int) -> list[int]:
    return [min(max(offset, 0), MAX_NUMBER) for offset in offsets]


def _find_common_ordinal(ordinals: Iterable[int | None]) -> int | None:
    distinct = set(ordinals)
    return distinct.pop() if len(distinct) == 1 else None


def _merge_neighbours(
    regions: list[Region], limit: int, place: Callable[[Region], Hashable]
) -> list[list[Region]]:
    """Group neighbours into at most `limit` groups."""
    # Regions stay apart if they are few enough. Otherwise, neighbours in one place with equal state
    # and key and without faults are joined: first the small ones, then all. If the groups are still
    # too many, all regions in the same slice of the bytes are joined.
    if len(regions) <= limit:
        return [[region] for region in regions]
    total = max(1, sum(region.size for region in regions))
    middles = []  # twice the middle of each region, as if the regions were adjacent
    position = 0
    for region in regions:
        middles.append(2 * position + region.size)
        position += region.size

    def make_similarity_key(region: Region) -> Hashable:
        fault = region.start if region.state == "fault" else None
        # Headers and pages alternate; a bloom filter consists of a header and a bitset.
        kind = "page" in region.kind or region.kind.split()[0]
        return region.state, region.key, place(region), kind, fault

    def group_by(slices: int, key: Callable[[Region], Hashable]) -> list[list[Region]]:
        def find_group(pair: tuple[int, Region]) -> Hashable:
            return min(pair[0] * slices // (2 * total), slices - 1), key(pair[1])

        groups = groupby(zip(middles, regions, strict=True), find_group)
        return [[region for _, region in group] for _, group in groups]

    for slices in (limit // 2, 1):
        groups = group_by(max(1, slices), make_similarity_key)
        if len(groups) <= limit:
            return groups
    return group_by(limit, lambda _: None)


def _make_grid(
    drawing: _Drawing, regions: list[Region], row_groups: int
) -> tuple[list[list[Any]], tuple[int, int], list[str]]:
    """Return rows of cells of parts, the row groups and columns per cell, and sentences on that."""
    columns = len(drawing.columns)
    if not columns or not row_groups or not regions:
        return [], (1, 1), []
    column_step = -(-columns // MAX_COLUMNS)
    width = -(-columns // column_step)
    row_step = -(-row_groups // max(1, min(MAX_ROWS, MAX_CELLS // width)))
    height = -(-row_groups // row_step)
    in_cells: defaultdict[tuple[int, int], list[Region]] = defaultdict(list)
    for region in regions:
        r, c = region.row_group, region.column
        if r is not None and c is not None and r < row_groups and c < columns:
            in_cells[r // row_step, c // column_step].append(region)
    count = sum(map(len, in_cells.values()))
    limit = count if count <= MAX_PARTS else max(MIN_CELL_PARTS, MAX_PARTS // (width * height))

    def make_cell(r: int, c: int) -> list[list[Any]]:
        groups = _merge_neighbours(
            in_cells[r, c], limit, lambda region: (region.row_group, region.column)
        )
        return [drawing.make_part(group) for group in groups]

    rows = [[make_cell(r, c) for c in range(width)] for r in range(height)]
    drawn = sum(len(parts) for row in rows for parts in row)
    notes = [f"Each row stands for {row_step:,} row groups."] if row_step > 1 else []
    notes += [f"Each cell stands for {column_step:,} columns."] if column_step > 1 else []
    notes += [f"In the cells, {count:,} parts are drawn as {drawn:,}."] if drawn < count else []
    return rows, (row_step, column_step), notes


def _locate_findings(findings: Sequence[Finding], regions: list[Region]) -> list[list[Any]]:
    """Return each finding's severity, bytes, row group and column, as far as they are known."""
    spans = {(r.kind, r.row_group, r.column, r.page): (r.start, r.end) for r in regions}
    places = []
    for finding in findings:
        start, end, module = finding.start, finding.end, finding.module
        row_group = column = None
        if module is not None:
            row_group, column = module.row_group, module.column
            if start is None:
                kind = in_words(module.type)
                start, end = spans.get((kind, row_group, column, module.page), (None, None))
        if start is not None:
            start, end = _clamp_offsets(start, start if end is None else max(start, end))
        places.append([finding.severity == "fault", start, end, row_group, column])
    return places
