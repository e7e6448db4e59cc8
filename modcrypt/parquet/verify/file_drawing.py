"""A page that draws a file: what is sealed with which key, what was verified, where the damage is.

One self-contained HTML document, made of `file_drawing.html`, `.css` and `.js` beside this file.
What comes from the file is hostile: here it is escaped, in the browser it only ever becomes text, and a
Content-Security-Policy lets nothing run or load but the page's own style and script.

The page is bounded, whatever the file: neighbours that are alike are merged, then what is too
small to see; cells stand for several row groups or columns; long tables and names are cut. It says
which of that was done.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import TYPE_CHECKING, Any

from modcrypt.html_parts import human, policy_hash
from modcrypt.parquet.format.byte_map import Region, State, complete

if TYPE_CHECKING:
    from modcrypt.parquet.verify.findings import Finding

__all__ = ["draw"]

STATES: dict[State, str] = {
    "fault": "Looked at, and something is wrong with it.",
    "plaintext": "Not encrypted, hence not authenticated.",
    "unauthenticated": "Encrypted without a tag: alterations go unseen.",
    "unchecked": "Encrypted, and not opened.",
    "locked": "Encrypted, and there was no key for it.",
    "authentic": "Its tag was verified.",
}
"""What each state means; the worst comes first, and what was merged shows its worst."""

_RANKS = {state: rank for rank, state in enumerate(STATES)}

MAX_CELLS = 24_000
MAX_COLUMNS = 4_096
MAX_ROWS = 256
"""The grid's cells, and how many of them lie side by side or one below the other."""

MAX_PARTS = 20_000
MIN_CELL_PARTS = 4
"""Parts in all cells together, but of each at least its pages, two indexes and a bloom filter."""

MAX_FILE_PARTS = 2_000
"""Parts of the strip from the file's first byte to its last: more than a wide screen has pixels."""

MAX_TABLE_ROWS = 2_048
MAX_FINDINGS = 1_100
MAX_NOTES = 200
MAX_HEADINGS = 6
"""Things of which one note says the same."""

MAX_NAMED_KEYS = 2
MAX_LETTERS = 8
"""Keys that a table's row names, or gives by letter; it counts the others."""

MAX_NUMBER = 2**53 - 1
"""Whole numbers in JavaScript are exact up to here."""

MAX_SENTENCE = 400
MAX_NAMES = 120_000
MIN_NAME, MAX_NAME = 40, 240
"""Characters of a sentence, of all names of a kind together, and of one name."""


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
    """Draw a file as one HTML page that needs nothing else.

    Args:
        title: what the page is about: the file's name.
        facts: labels and values, for the head of the page.
        columns: dotted names, in the file's order; empty where the footer hides them.
        row_groups: how many; 0 where the footer hides that.
        size: of the file, in bytes.
        regions: what its bytes are; gaps between them are named.
        findings: their severity is "fault" or "warning".
        notes: headings and sentences, for the foot of the page.

    Returns:
        The document. All its characters can be encoded as UTF-8, as its head says it is.
    """
    known = list(regions)
    ordered = list(complete(known, size)) if known else []
    drawing = _Drawing(_names(columns), _keys(ordered), size)
    for region in ordered:
        drawing.count(region)
    shown = list(findings[:MAX_FINDINGS])
    data, merged = _data(drawing, ordered, row_groups, shown)
    style, script = _asset("file_drawing.css"), _asset("file_drawing.js")
    policy = f"default-src 'none'; style-src {policy_hash(style)}; script-src {policy_hash(script)}"
    return Template(_asset("file_drawing.html")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=_script_json(data),
        name=escape(_readable(title, MAX_NAME)),
        title=_text(title),
        verdict=_verdict(findings, drawing.by_state["fault"].parts),
        facts="".join(
            f"<div><dt>{_text(term)}</dt><dd>{_text(text, MAX_SENTENCE)}</dd></div>"
            for term, text in facts
        ),
        size=_size(size),
        states=_state_rows(drawing) if ordered else "",
        keys=_rows(drawing.by_key, drawing, _key_cell, _column_count),
        kinds=_rows(drawing.by_kind, drawing, _kind_cell, _key_letters),
        columns=_rows(drawing.by_column, drawing, _column_cell, _key_cells),
        findings=_finding_rows(shown, len(findings)),
        merged="".join(f"<li>{escape(one)}" for one in merged),
        notes=_notes(notes),
    )


def _data(
    drawing: _Drawing, ordered: list[Region], row_groups: int, findings: list[Finding]
) -> tuple[dict[str, Any], list[str]]:
    """Give what the script draws, and sentences on what was merged."""
    rows, steps, merged = _grid(drawing, ordered, row_groups)
    groups = _merge(ordered, MAX_FILE_PARTS, lambda region: region.row_group)
    if len(groups) < len(ordered):
        merged.append(
            f"The strip of the whole file draws {len(ordered):,} parts as {len(groups):,}."
        )
    if not ordered:
        merged.append("Where the file's parts lie was not looked up, so there is nothing to draw.")
    return {
        "size": drawing.size,
        "rows": rows,
        "rowGroups": row_groups,
        "rowStep": steps[0],
        "columnStep": steps[1],
        "file": [drawing.part(group) for group in groups],
        "findings": _places(findings, ordered),
        "columns": drawing.columns,
        "keys": drawing.keys,
        # after the parts, which number their kinds
        "kinds": [_readable(kind, MAX_NAME) for kind in drawing.kinds],
        "states": list(STATES),
    }, merged


def _asset(name: str) -> str:
    return (files("modcrypt.parquet.verify") / name).read_text(encoding="utf-8")


# --- names and numbers ---------------------------------------------------------------------------


def _readable(text: str, limit: int) -> str:
    """Spell out what is no printable character, and cut what is too long in its middle."""
    half = limit // 2
    if cut := len(text) > limit:
        text, length = f"{text[:half]}{text[-half:]}", len(text)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if not cut and len(shown) <= limit:
        return shown
    return f"{shown[:half]} … {shown[-half:]}" + (f" ({length:,} characters)" if cut else "")


def _text(text: str, limit: int = MAX_NAME) -> str:
    # <bdi>: a right-to-left name does not turn round what stands beside it
    return f"<bdi>{escape(_readable(text, limit), quote=False)}</bdi>"


def _names(names: Sequence[str]) -> list[str]:
    limit = min(MAX_NAME, max(MIN_NAME, MAX_NAMES // max(1, len(names))))
    return [_readable(name, limit) for name in names]


def _size(size: int) -> str:
    return f'<data value="{size}" title="{size:,} bytes">{human(size)}</data>'


def _share(size: int, of: int) -> str:
    """Give a percentage that says neither 0 nor 100 of what is not quite."""
    if size <= 0 or size >= of:
        return "0 %" if size <= 0 else "100 %"
    tenths = size * 1000 // of
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"


def _script_json(data: Any) -> str:
    """Spell JSON so that it can't end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


# --- what is counted -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """The parts of one key, kind, state or column."""

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


def _keys(regions: list[Region]) -> dict[str, int]:
    """Number the keys: the footer key first, the others as the file has them."""
    found = dict.fromkeys(region.key for region in regions if region.key is not None)
    named = sorted(found, key=lambda key: key != "footer key")
    return {key: number for number, key in enumerate(named)}


class _Drawing:
    """What tables and strips of one file share: numbers for names, and counts."""

    def __init__(self, columns: list[str], keys: dict[str, int], size: int) -> None:
        self.columns = columns
        self.key_numbers = keys
        self.keys = _names(list(keys))
        self.kinds: dict[str, int] = {}
        self.size = size
        self.by_state: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_key: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_kind: defaultdict[Any, _Tally] = defaultdict(_Tally)
        self.by_column: defaultdict[Any, _Tally] = defaultdict(_Tally)
        for key in range(len(keys)):
            self.by_key[key]  # in their order, not in the file's
        for column in range(len(columns)):
            self.by_column[column]  # those without bytes, too

    def count(self, region: Region) -> None:
        key = self.key_number(region)
        tallies = [self.by_state[region.state], self.by_kind[region.kind]]
        if key >= 0:
            tallies.append(self.by_key[key])
        if region.column is not None and region.column < len(self.columns):
            tallies.append(self.by_column[region.column])
        for tally in tallies:
            tally.add(region, key)

    def key_number(self, region: Region) -> int:
        return -1 if region.key is None else self.key_numbers[region.key]

    def part(self, group: list[Region]) -> list[Any]:
        """Give what the script draws as one part: a list, of which it knows the order."""
        kinds = ", ".join(dict.fromkeys(region.kind for region in group))
        kind = self.kinds.setdefault(kinds, len(self.kinds))
        states: Counter[State] = Counter()
        for region in group:
            states[region.state] += region.size
        worst = min(_RANKS[state] for state in states)
        keys = {self.key_number(region) for region in group}
        part = [
            *_drawable(min(r.start for r in group), max(r.end for r in group)),
            min(sum(region.size for region in group), MAX_NUMBER),
            kind,
            worst,
            keys.pop() if len(keys) == 1 else -2,
            len(group),
            _only(region.row_group for region in group),
            _only(region.column for region in group),
            *_pages(group),
        ]
        return part if len(states) == 1 else [*part, [states[state] for state in STATES]]


def _drawable(*offsets: int) -> list[int]:
    return [min(max(offset, 0), MAX_NUMBER) for offset in offsets]


def _only(ordinals: Iterable[int | None]) -> int | None:
    """Give the one ordinal that all have, or None."""
    found = set(ordinals)
    return found.pop() if len(found) == 1 else None


def _pages(group: list[Region]) -> tuple[int | None, int | None]:
    pages = [region.page for region in group if region.page is not None]
    return (min(pages), max(pages)) if pages else (None, None)


# --- what is merged ------------------------------------------------------------------------------


def _merge(
    regions: list[Region], limit: int, place: Callable[[Region], Hashable]
) -> list[list[Region]]:
    """Group neighbours, so that at most `limit` groups are left.

    All stay apart if there is room. Else neighbours in one place, of equal state and key and no
    faults, are joined: the small ones, or if that leaves too many, all. And if that is not enough,
    whatever lies in the same slice of the bytes.
    """
    if len(regions) <= limit:
        return [[region] for region in regions]
    total = max(1, sum(region.size for region in regions))
    middles = []  # of each region's bytes, as if they all lay side by side
    passed = 0
    for region in regions:
        middles.append(2 * passed + region.size)
        passed += region.size

    def alike(region: Region) -> Hashable:
        fault = region.start if region.state == "fault" else None
        # headers and pages alternate, and a bloom filter is a header and a bitset
        kind = "page" in region.kind or region.kind.split()[0]
        return region.state, region.key, place(region), kind, fault

    def grouped(slices: int, key: Callable[[Region], Hashable]) -> list[list[Region]]:
        marked = [
            ((min(middle * slices // (2 * total), slices - 1), key(region)), region)
            for middle, region in zip(middles, regions, strict=True)
        ]
        return [[one for _, one in group] for _, group in groupby(marked, lambda one: one[0])]

    for slices in (limit // 2, 1):
        groups = grouped(max(1, slices), alike)
        if len(groups) <= limit:
            return groups
    return grouped(limit, lambda _: None)


def _grid(
    drawing: _Drawing, regions: list[Region], row_groups: int
) -> tuple[list[list[Any]], tuple[int, int], list[str]]:
    """Give rows of cells of parts, how much one cell stands for, and sentences on that."""
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
    there = sum(map(len, in_cells.values()))
    limit = there if there <= MAX_PARTS else max(MIN_CELL_PARTS, MAX_PARTS // (width * height))

    def cell(r: int, c: int) -> list[list[Any]]:
        groups = _merge(in_cells[r, c], limit, lambda one: (one.row_group, one.column))
        return [drawing.part(group) for group in groups]

    rows = [[cell(r, c) for c in range(width)] for r in range(height)]
    drawn = sum(len(parts) for row in rows for parts in row)
    said = [f"Each row stands for {row_step:,} row groups."] if row_step > 1 else []
    said += [f"Each cell stands for {column_step:,} columns."] if column_step > 1 else []
    said += [f"In the cells, {there:,} parts are drawn as {drawn:,}."] if drawn < there else []
    return rows, (row_step, column_step), said


# --- findings ------------------------------------------------------------------------------------


def _places(findings: list[Finding], regions: list[Region]) -> list[list[Any]]:
    """Give each finding's severity, bytes, row group and column, as far as they are known."""
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
            start, end = _drawable(start, start if end is None else max(start, end))
        places.append([finding.severity == "fault", start, end, row_group, column])
    return places


def _verdict(findings: Sequence[Finding], faulty: int) -> str:
    """Count the findings; say nothing if there are none: perhaps nothing was looked for."""
    counts = Counter(_severity(finding) for finding in findings)
    words = {word: f"{word}{'s' if n > 1 else ''}" for word, n in counts.items()}
    if faulty and not counts["fault"]:
        counts["fault"], words["fault"] = faulty, "faulty parts"
    return "".join(
        f'<span class="verdict {word}">{counts[word]:,} {words[word]}</span>'
        for word in ("fault", "warning")
        if counts[word]
    )


def _severity(finding: Finding) -> str:
    return "fault" if finding.severity == "fault" else "warning"


def _finding_rows(findings: list[Finding], all_findings: int) -> str:
    rows = []
    for number, finding in enumerate(findings):
        severity = _severity(finding)
        address = "the file" if finding.module is None else _text(str(finding.module))
        span = "" if finding.start is None else f"{finding.start:,}"
        if span and finding.end is not None:
            span += f"\u2013{finding.end:,}"
        rows.append(
            f'<tr class="{severity}" data-finding="{number}">'
            f'<td><button type="button"><span class="flag {severity}"></span>{severity}</button>'
            f"<td><code>{_text(finding.word, MIN_NAME)}</code><td>{address}"
            f'<td class="n">{span}<td class="message">{_text(finding.message, MAX_SENTENCE)}'
        )
    if all_findings > len(findings):
        more = all_findings - len(findings)
        rows.append(f'<tr class="more"><td colspan="5">and {more:,} more, which are not listed')
    return "\n".join(rows)


# --- notes ---------------------------------------------------------------------------------------


def _notes(notes: Sequence[tuple[str, str]]) -> str:
    """Spell out notes: what is said of several things, or several things of one, once."""
    sentences: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for heading, sentence in notes:
        sentences[heading][sentence] = None
    headings: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for heading, said in sentences.items():
        headings[tuple(said)[:MAX_NOTES]].append(heading)
    spelt = []
    for texts, about in list(headings.items())[:MAX_NOTES]:
        terms = "".join(f"<dt>{_text(heading)}</dt>" for heading in about[:MAX_HEADINGS])
        if len(about) > MAX_HEADINGS:
            terms += f"<dt>and {len(about) - MAX_HEADINGS:,} more</dt>"
        said_of = "".join(f"<dd>{_text(text, MAX_SENTENCE)}</dd>" for text in texts)
        spelt.append(f"<div>{terms}{said_of}</div>")
    if len(headings) > MAX_NOTES:
        spelt.append(f"<div><dt>and {len(headings) - MAX_NOTES:,} more notes</dt></div>")
    return "".join(spelt)


# --- tables --------------------------------------------------------------------------------------


def _letter(key: int) -> str:
    """Number keys as spreadsheets do columns: A to Z, AA, AB."""
    letters = ""
    key += 1
    while key:
        key, rest = divmod(key - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _chip(key: int) -> str:
    return f'<span class="key k{key % 24}">{_letter(key)}</span>'


def _key_cell(drawing: _Drawing, key: int) -> str:
    return f"{_chip(key)} <bdi>{escape(drawing.keys[key])}</bdi>"


def _column_cell(drawing: _Drawing, column: int) -> str:
    name = escape(drawing.columns[column])
    return f'<button type="button" data-column="{column}"><bdi>{name}</bdi></button>'


def _kind_cell(drawing: _Drawing, kind: str) -> str:
    return _text(kind)


def _column_count(drawing: _Drawing, tally: _Tally) -> str:
    return f'<td class="n" data-value="{len(tally.columns)}">{len(tally.columns):,}'


def _key_cells(drawing: _Drawing, tally: _Tally) -> str:
    named = "<br>".join(_key_cell(drawing, key) for key in list(tally.keys)[:MAX_NAMED_KEYS])
    return f"<td>{named or ('none' if tally.parts else '')}{_more(tally, MAX_NAMED_KEYS)}"


def _key_letters(drawing: _Drawing, tally: _Tally) -> str:
    return f"<td>{' '.join(map(_chip, list(tally.keys)[:MAX_LETTERS]))}{_more(tally, MAX_LETTERS)}"


def _more(tally: _Tally, named: int) -> str:
    return f" and {len(tally.keys) - named:,} more" if len(tally.keys) > named else ""


def _state_counts(tally: _Tally) -> str:
    return "".join(
        f'<span class="count"><i class="swatch s-{state}"></i>{parts:,} {state}</span>'
        for state in STATES
        if (parts := tally.states[state])
    )


def _numbers(tally: _Tally, of: int) -> str:
    return (
        f'<td class="n" data-value="{tally.parts}">{tally.parts:,}'
        f'<td class="n" data-value="{tally.bytes}">{_size(tally.bytes)}'
        f'<td class="n">{_share(tally.bytes, of)}'
    )


def _state_rows(drawing: _Drawing) -> str:
    return "\n".join(
        f'<tr{"" if tally.parts else " class=none"}><th scope="row">'
        f'<span class="swatch s-{state}"></span>{state}<td>{meaning}{_numbers(tally, drawing.size)}'
        for state, meaning in reversed(STATES.items())
        for tally in (drawing.by_state[state],)
    )


def _rows(
    tallies: dict[Any, _Tally],
    drawing: _Drawing,
    name: Callable[[_Drawing, Any], str],
    second: Callable[[_Drawing, _Tally], str],
) -> str:
    """Spell a table's rows: name, a second thing, states, parts, bytes and share."""
    rows = [
        f'<tr><th scope="row">{name(drawing, one)}{second(drawing, tally)}'
        f"<td>{_state_counts(tally)}{_numbers(tally, drawing.size)}"
        for one, tally in list(tallies.items())[:MAX_TABLE_ROWS]
    ]
    if len(tallies) > MAX_TABLE_ROWS:
        more = len(tallies) - MAX_TABLE_ROWS
        rows.append(f'<tr class="more"><td colspan="6">and {more:,} more, which are not listed')
    return "\n".join(rows)
