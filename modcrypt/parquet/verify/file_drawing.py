"""Draw a file as an HTML page: which key encrypts what, what was verified, where faults are.

The page is one self-contained document: the frame of all pages (`report.page`) around
`file_drawing.html`, with `.css` and `.js` beside this module. Text from the file may be hostile: it
is escaped before it enters HTML, and the script inserts it only as text.

The page has a bounded size for any file: similar neighbours are merged, then parts that are too
small to see; cells stand for several row groups or columns; long tables and names are cut. The page
states which of these it did.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from string import Template
from typing import Any

from modcrypt.parquet.format.byte_map import Region, State, fill_gaps
from modcrypt.parquet.format.findings import Finding
from modcrypt.report.page import (
    format_readable,
    read_asset,
    render_facts,
    render_page,
    render_text,
)
from modcrypt.report.text import format_size

__all__ = ["draw"]

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

MAX_TABLE_ROWS = 2_048
MAX_FINDINGS = 1_100
MAX_NOTES = 200
MAX_HEADINGS = 6
"""Maximum numbers of rows in a table, findings, notes, and headings that share a note."""

MAX_NAMED_KEYS = 2
MAX_LETTERS = 8
"""Maximum number of keys that a table row names, or lists by letter; further ones are counted."""

MAX_NUMBER = 2**53 - 1
"""Largest integer up to which JavaScript's numbers are exact."""

MAX_SENTENCE = 400
MAX_NAMES = 120_000
MIN_NAME, MAX_NAME = 40, 240
"""Maximum characters of a sentence, of all names of one kind, and of one name."""

_THEME_BUTTON = '<button type="button" id="theme" hidden>Dark</button>'


def draw(
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    columns: Sequence[str],
    row_groups: int,
    size: int,
    regions: Iterable[Region],
    findings: Sequence[Finding] = (),
    notes: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a self-contained HTML page that draws a file.

    Args:
        title: Title of the page: the file's name.
        facts: Labels and values for the head of the page.
        columns: Dotted names in the file's order; empty if the footer hides them.
        row_groups: Number of row groups; 0 if the footer hides it.
        size: Size of the file in bytes.
        regions: Regions of the file; gaps between them are added.
        findings: Findings with the severity "fault" or "warning".
        notes: Headings and sentences for the foot of the page.

    Returns:
        The document. Every character of it can be encoded as UTF-8, which its head declares.
    """
    given = list(regions)
    ordered = list(fill_gaps(given, size)) if given else []
    drawing = _Drawing(_shorten_names(columns), _number_keys(ordered), size)
    for region in ordered:
        drawing.count(region)
    listed = list(findings[:MAX_FINDINGS])
    data, merged = _make_script_data(drawing, ordered, row_groups, listed)
    html, style, script = (
        read_asset("modcrypt.parquet.verify", f"file_drawing.{kind}")
        for kind in ("html", "css", "js")
    )
    body = Template(html).substitute(
        data=_encode_script_json(data),
        facts=render_facts(facts, MAX_SENTENCE),
        size=_format_size_cell(size),
        states=_format_state_rows(drawing) if ordered else "",
        keys=_format_rows(drawing.by_key, drawing, _format_key_cell, _format_column_count),
        kinds=_format_rows(drawing.by_kind, drawing, _format_kind_cell, _format_key_letters),
        columns=_format_rows(drawing.by_column, drawing, _format_column_cell, _format_key_cells),
        findings=_format_finding_rows(listed, len(findings)),
        merged="".join(f"<li>{escape(sentence)}" for sentence in merged),
        notes=_format_notes(notes),
    )
    verdict = _format_verdict(findings, drawing.by_state["fault"].parts)
    return render_page(title, verdict, body, style=style, script=script, controls=_THEME_BUTTON)


def _make_script_data(
    drawing: _Drawing, ordered: list[Region], row_groups: int, findings: list[Finding]
) -> tuple[dict[str, Any], list[str]]:
    """Return what the script draws, and sentences about what was merged."""
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
        # after the parts, which number their kinds
        "kinds": [format_readable(kind, MAX_NAME) for kind in drawing.kinds],
        "states": list(STATES),
    }, merged


# --- names and numbers ---------------------------------------------------------------------------


def _shorten_names(names: Sequence[str]) -> list[str]:
    limit = min(MAX_NAME, max(MIN_NAME, MAX_NAMES // max(1, len(names))))
    return [format_readable(name, limit) for name in names]


def _format_size_cell(size: int) -> str:
    return f'<data value="{size}" title="{size:,} bytes">{format_size(size)}</data>'


def _format_share(size: int, of: int) -> str:
    """Return a percentage that is 0 or 100 only if that is exact."""
    if size <= 0 or size >= of:
        return "0 %" if size <= 0 else "100 %"
    tenths = size * 1000 // of
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"


def _encode_script_json(data: Any) -> str:
    """Return JSON that cannot end the script element that contains it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


# --- counts --------------------------------------------------------------------------------------


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


def _number_keys(regions: list[Region]) -> dict[str, int]:
    """Number the keys: the footer key first, the others in file order."""
    names = dict.fromkeys(region.key for region in regions if region.key is not None)
    ordered = sorted(names, key=lambda key: key != "footer key")
    return {key: number for number, key in enumerate(ordered)}


class _Drawing:
    """Data that the tables and strips of one file share: numbers for names, and counts."""

    def __init__(self, columns: list[str], keys: dict[str, int], size: int) -> None:
        self.columns = columns
        self.key_numbers = keys
        self.keys = _shorten_names(list(keys))
        self.kinds: dict[str, int] = {}
        self.size = size
        self.by_state: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_key: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_kind: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_column: defaultdict[Any, _Tally] = defaultdict(_Tally)
        for key in range(len(keys)):
            self.by_key[key]  # fixes the order of keys, which differs from the file's
        for column in range(len(columns)):
            self.by_column[column]  # includes columns without bytes

    def count(self, region: Region) -> None:
        key = self.find_key_number(region)
        tallies = [self.by_state[region.state], self.by_kind[region.kind]]
        if key >= 0:
            tallies.append(self.by_key[key])
        if region.column is not None and region.column < len(self.columns):
            tallies.append(self.by_column[region.column])
        for tally in tallies:
            tally.add(region, key)

    def find_key_number(self, region: Region) -> int:
        return -1 if region.key is None else self.key_numbers[region.key]

    def make_part(self, group: list[Region]) -> list[Any]:
        """Return a part as the list that the script draws, in the order that the script expects."""
        kinds = ", ".join(dict.fromkeys(region.kind for region in group))
        kind = self.kinds.setdefault(kinds, len(self.kinds))
        states: Counter[State] = Counter()
        for region in group:
            states[region.state] += region.size
        worst = min(_RANKS[state] for state in states)
        keys = {self.find_key_number(region) for region in group}
        part = [
            *_clamp_offsets(min(r.start for r in group), max(r.end for r in group)),
            min(sum(region.size for region in group), MAX_NUMBER),
            kind,
            worst,
            keys.pop() if len(keys) == 1 else -2,
            len(group),
            _find_common_ordinal(region.row_group for region in group),
            _find_common_ordinal(region.column for region in group),
            *_find_page_range(group),
        ]
        return part if len(states) == 1 else [*part, [states[state] for state in STATES]]


def _clamp_offsets(*offsets: int) -> list[int]:
    return [min(max(offset, 0), MAX_NUMBER) for offset in offsets]


def _find_common_ordinal(ordinals: Iterable[int | None]) -> int | None:
    """Return the ordinal that all have in common, or None."""
    distinct = set(ordinals)
    return distinct.pop() if len(distinct) == 1 else None


def _find_page_range(group: list[Region]) -> tuple[int | None, int | None]:
    pages = [region.page for region in group if region.page is not None]
    return (min(pages), max(pages)) if pages else (None, None)


# --- merging -------------------------------------------------------------------------------------


def _merge_neighbours(
    regions: list[Region], limit: int, place: Callable[[Region], Hashable]
) -> list[list[Region]]:
    """Group neighbours into at most `limit` groups.

    Regions stay apart if they are few enough. Otherwise, neighbours in one place with equal state
    and key and without faults are joined: first the small ones, then all. If the groups are still
    too many, all regions in the same slice of the bytes are joined.
    """
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
        keyed = [
            ((min(middle * slices // (2 * total), slices - 1), key(region)), region)
            for middle, region in zip(middles, regions, strict=True)
        ]
        return [
            [region for _, region in group] for _, group in groupby(keyed, lambda pair: pair[0])
        ]

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


# --- findings ------------------------------------------------------------------------------------


def _locate_findings(findings: list[Finding], regions: list[Region]) -> list[list[Any]]:
    """Return each finding's severity, bytes, row group and column, as far as they are known."""
    spans = {(r.kind, r.row_group, r.column, r.page): (r.start, r.end) for r in regions}
    places = []
    for finding in findings:
        start, end, module = finding.start, finding.end, finding.module
        row_group = column = None
        if module is not None:
            row_group, column = module.row_group, module.column
            if start is None:
                kind = module.type.name.lower().replace("_", " ")
                start, end = spans.get((kind, row_group, column, module.page), (None, None))
        if start is not None:
            start, end = _clamp_offsets(start, start if end is None else max(start, end))
        places.append([finding.severity == "fault", start, end, row_group, column])
    return places


def _format_verdict(findings: Sequence[Finding], faulty: int) -> str:
    """Return the numbers of findings as HTML; nothing if there are none, as after inspection."""
    counts = Counter(_find_severity(finding) for finding in findings)
    labels = {severity: f"{severity}{'s' if n > 1 else ''}" for severity, n in counts.items()}
    if faulty and not counts["fault"]:
        counts["fault"], labels["fault"] = faulty, "faulty parts"
    return "".join(
        f'<span class="verdict {severity}">{counts[severity]:,} {labels[severity]}</span>'
        for severity in ("fault", "warning")
        if counts[severity]
    )


def _find_severity(finding: Finding) -> str:
    return "fault" if finding.severity == "fault" else "warning"


def _format_finding_rows(findings: list[Finding], all_findings: int) -> str:
    rows = []
    for number, finding in enumerate(findings):
        severity = _find_severity(finding)
        address = "the file" if finding.module is None else render_text(str(finding.module))
        span = "" if finding.start is None else f"{finding.start:,}"
        if span and finding.end is not None:
            span += f"\u2013{finding.end:,}"
        rows.append(
            f'<tr class="{severity}" data-finding="{number}">'
            f'<td><button type="button"><span class="flag {severity}"></span>{severity}</button>'
            f"<td><code>{render_text(finding.word, MIN_NAME)}</code><td>{address}"
            f'<td class="n">{span}<td class="message">{render_text(finding.message, MAX_SENTENCE)}'
        )
    if all_findings > len(findings):
        more = all_findings - len(findings)
        rows.append(f'<tr class="more"><td colspan="5">and {more:,} more that are not listed')
    return "\n".join(rows)


# --- notes ---------------------------------------------------------------------------------------


def _format_notes(notes: Sequence[tuple[str, str]]) -> str:
    """Return notes as HTML; equal headings share an entry, and so do headings with equal notes."""
    sentences: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for heading, sentence in notes:
        sentences[heading][sentence] = None
    headings: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for heading, texts in sentences.items():
        headings[tuple(texts)[:MAX_NOTES]].append(heading)
    entries = []
    for shared, about in list(headings.items())[:MAX_NOTES]:
        terms = "".join(f"<dt>{render_text(heading)}</dt>" for heading in about[:MAX_HEADINGS])
        if len(about) > MAX_HEADINGS:
            terms += f"<dt>and {len(about) - MAX_HEADINGS:,} more</dt>"
        descriptions = "".join(f"<dd>{render_text(text, MAX_SENTENCE)}</dd>" for text in shared)
        entries.append(f"<div>{terms}{descriptions}</div>")
    if len(headings) > MAX_NOTES:
        entries.append(f"<div><dt>and {len(headings) - MAX_NOTES:,} more notes</dt></div>")
    return "".join(entries)


# --- tables --------------------------------------------------------------------------------------


def _format_letter(key: int) -> str:
    """Return the letters of a key, numbered like spreadsheet columns: A to Z, AA, AB."""
    letters = ""
    key += 1
    while key:
        key, rest = divmod(key - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _format_chip(key: int) -> str:
    return f'<span class="key k{key % 24}">{_format_letter(key)}</span>'


def _format_key_cell(drawing: _Drawing, key: int) -> str:
    return f"{_format_chip(key)} <bdi>{escape(drawing.keys[key])}</bdi>"


def _format_column_cell(drawing: _Drawing, column: int) -> str:
    name = escape(drawing.columns[column])
    return f'<button type="button" data-column="{column}"><bdi>{name}</bdi></button>'


def _format_kind_cell(drawing: _Drawing, kind: str) -> str:
    return render_text(kind)


def _format_column_count(drawing: _Drawing, tally: _Tally) -> str:
    return f'<td class="n" data-value="{len(tally.columns)}">{len(tally.columns):,}'


def _format_key_cells(drawing: _Drawing, tally: _Tally) -> str:
    named = "<br>".join(_format_key_cell(drawing, key) for key in list(tally.keys)[:MAX_NAMED_KEYS])
    return (
        f"<td>{named or ('none' if tally.parts else '')}{_format_more_keys(tally, MAX_NAMED_KEYS)}"
    )


def _format_key_letters(drawing: _Drawing, tally: _Tally) -> str:
    return (
        f"<td>{' '.join(map(_format_chip, list(tally.keys)[:MAX_LETTERS]))}"
        f"{_format_more_keys(tally, MAX_LETTERS)}"
    )


def _format_more_keys(tally: _Tally, named: int) -> str:
    return f" and {len(tally.keys) - named:,} more" if len(tally.keys) > named else ""


def _format_state_counts(tally: _Tally) -> str:
    return "".join(
        f'<span class="count"><i class="swatch s-{state}"></i>{parts:,} {state}</span>'
        for state in STATES
        if (parts := tally.states[state])
    )


def _format_numbers(tally: _Tally, of: int) -> str:
    return (
        f'<td class="n" data-value="{tally.parts}">{tally.parts:,}'
        f'<td class="n" data-value="{tally.bytes}">{_format_size_cell(tally.bytes)}'
        f'<td class="n">{_format_share(tally.bytes, of)}'
    )


def _format_state_rows(drawing: _Drawing) -> str:
    return "\n".join(
        f'<tr{"" if tally.parts else " class=none"}><th scope="row">'
        f'<span class="swatch s-{state}"></span>{state}<td>{meaning}'
        f"{_format_numbers(tally, drawing.size)}"
        for state, meaning in reversed(STATES.items())
        for tally in (drawing.by_state[state],)
    )


def _format_rows(
    tallies: dict[Any, _Tally],
    drawing: _Drawing,
    name: Callable[[_Drawing, Any], str],
    second: Callable[[_Drawing, _Tally], str],
) -> str:
    """Return a table's rows as HTML: name, second cell, states, parts, bytes and share."""
    rows = [
        f'<tr><th scope="row">{name(drawing, item)}{second(drawing, tally)}'
        f"<td>{_format_state_counts(tally)}{_format_numbers(tally, drawing.size)}"
        for item, tally in list(tallies.items())[:MAX_TABLE_ROWS]
    ]
    if len(tallies) > MAX_TABLE_ROWS:
        more = len(tallies) - MAX_TABLE_ROWS
        rows.append(f'<tr class="more"><td colspan="6">and {more:,} more that are not listed')
    return "\n".join(rows)
