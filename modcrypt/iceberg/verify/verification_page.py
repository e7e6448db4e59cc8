"""Draws what verifying a table found as a page: findings first, then keys, files and leftovers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from modcrypt.html_parts import human
from modcrypt.report.page import (
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
    from modcrypt.iceberg.verify.table_findings import (
        CheckedKek,
        CheckedTableFile,
        StrayFile,
        TableFinding,
        TableVerification,
    )
    from modcrypt.parquet.verify.findings import Unauthenticated

__all__ = ["draw_verification"]

MAX_ROWS = 1_000
"""Rows of one table; what goes beyond is counted."""

MAX_NOTES = 200
MAX_MESSAGE = 600


def draw_verification(found: TableVerification) -> str:
    """Draw a verification; see `TableVerification.to_html`."""
    body = [
        facts([("Table", found.location), ("UUID", found.uuid), *found.facts()]),
        _findings(found.findings),
        _notes(found),
        _keks(found.keks),
        _kinds(found.files),
        _strays(found.orphans or ()),
        _files(found.files),
    ]
    return page(f"Verification of {name_of(found.location)}", _verdict(found), "\n".join(body))


def _verdict(found: TableVerification) -> str:
    counts = Counter(one.severity for one in found.findings)
    spelt = [
        f'<span class="verdict {kind}">{counted(counts[kind], kind)}</span>'
        for kind in ("fault", "warning")
        if counts[kind]
    ]
    if found.ok and not spelt:
        spelt.append('<span class="verdict">No findings</span>')
    if found.complete:
        spelt.append('<span class="verdict">Everything authenticated</span>')
    elif found.ok:
        spelt.append('<span class="verdict warning">Not everything could be looked at</span>')
    return "".join(spelt)


def _findings(findings: Iterable[TableFinding]) -> str:
    ordered = sorted(findings, key=lambda one: one.severity != "fault")
    rows = [
        row(
            [
                f'<span class="word"><i class="flag {one.severity}"></i>{one.severity}</span>',
                f'<code class="word">{shown(one.word, 40)}</code>',
                f'<span class="where">{shown(one.location or "the table")}</span>',
                "" if one.module is None else shown(str(one.module)),
                f'<span class="message">{shown(one.message, MAX_MESSAGE)}</span>',
            ]
        )
        for one in ordered[:MAX_ROWS]
    ]
    heads = ("Severity", "Word", "File", "Where in it", "What was found")
    return table("Findings", heads, rows, len(ordered) - len(rows))


def _notes(found: TableVerification) -> str:
    """Return what was not authenticated, and folded what the format authenticates in no table."""
    spelt = ""
    if found.gaps:
        spelt = f"<section><h2>Not authenticated</h2>{_listed(found.gaps)}</section>"
    if found.limits:
        spelt += (
            "<section><details><summary>Limits of the format</summary>"
            f"{_listed(found.limits)}</details></section>"
        )
    return spelt


def _listed(notes: Iterable[Unauthenticated]) -> str:
    """Return a list of notes; what is said of many files, once."""
    about: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for one in notes:
        about[one.what, one.why].append(one.path or "the table")
    spelt = [
        f"<div><dt>{shown(what)}: {shown(paths[0])}"
        + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")
        + f"</dt><dd>{shown(why, MAX_MESSAGE)}</dd></div>"
        for (what, why), paths in list(about.items())[:MAX_NOTES]
    ]
    if len(about) > MAX_NOTES:
        spelt.append(f"<div><dt>and {len(about) - MAX_NOTES:,} more</dt></div>")
    return f'<dl class="notes">{"".join(spelt)}</dl>'


def _keks(keks: tuple[CheckedKek, ...]) -> str:
    rows = [
        row(
            [
                f"<code>{shown(one.id)}</code>",
                shown(one.master_key_id),
                {True: "newest", False: "older", None: "not told"}[one.current],
                day_of(one.created_ms),
                f"{one.age_days:,}",
                shown(one.scope or "table"),
                one.store,
                f"{one.manifest_lists:,}",
                f"{one.files:,}",
                {True: "yes", False: '<span class="bad">no</span>', None: "not asked"}[one.opened],
            ],
            (4, 7, 8),
        )
        for one in keks[:MAX_ROWS]
    ]
    heads = (
        "KEK", "Master key", "Its version", "Made", "Days old", "For", "Kept in", "Manifest lists",
        "Files it seals the key of", "Unwrapped",
    )  # fmt: skip
    return table("KEKs", heads, rows, len(keks) - len(rows), (4, 7, 8))


def _kinds(files: tuple[CheckedTableFile, ...]) -> str:
    """Count the files by kind."""
    kinds: defaultdict[str, list[CheckedTableFile]] = defaultdict(list)
    for one in files:
        kinds[one.kind].append(one)
    rows = [
        row(
            [
                shown(kind),
                f"{len(some):,}",
                human(sum(one.size or 0 for one in some)),
                f"{sum(one.encrypted for one in some):,}",
                f"{sum(one.tags for one in some):,}",
                _bad(sum(not one.ok for one in some)),
            ],
            (1, 2, 3, 4, 5),
        )
        for kind, some in kinds.items()
    ]
    heads = ("Kind", "Files", "Bytes", "Encrypted", "Tags verified", "Faulty")
    return table("What was looked at", heads, rows, 0, (1, 2, 3, 4, 5))


def _bad(number: int) -> str:
    return f'<span class="bad">{number:,}</span>' if number else "0"


def _strays(strays: tuple[StrayFile, ...]) -> str:
    rows = [
        row(
            [
                shown(one.path),
                human(one.size),
                "" if one.age_days is None else f"{one.age_days:,.1f}",
                f'<span class="odd">{one.state}</span>' if one.state == "plaintext" else one.state,
                "yes" if one.temporary else "",
            ],
            (1, 2),
        )
        for one in strays[:MAX_ROWS]
    ]
    heads = ("File that nothing reaches", "Bytes", "Days old", "State", "Temporary")
    return table("Orphans", heads, rows, len(strays) - len(rows), (1, 2))


def _files(files: tuple[CheckedTableFile, ...]) -> str:
    """List the files: those with faults first."""
    ordered = sorted(files, key=lambda one: one.ok)
    rows = [
        row(
            [
                shown(one.kind),
                shown(one.location),
                "" if one.size is None else human(one.size),
                "" if one.records is None else f"{one.records:,}",
                f"{one.tags:,}",
                "ok" if one.ok else '<span class="bad">faulty</span>',
            ],
            (2, 3, 4),
        )
        for one in ordered[:MAX_ROWS]
    ]
    heads = ("Kind", "File", "Bytes", "Records", "Tags verified", "Result")
    return table("Files", heads, rows, len(ordered) - len(rows), (2, 3, 4))
