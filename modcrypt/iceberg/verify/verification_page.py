"""Draw the verification of a table as a page: findings first, then keys, files and orphans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from modcrypt.iceberg.verify.table_findings import (
    CheckedKek,
    CheckedTableFile,
    StrayFile,
    TableFinding,
)
from modcrypt.parquet.format.findings import Unauthenticated
from modcrypt.report.page import (
    format_day,
    format_name,
    render_facts,
    render_page,
    render_row,
    render_table,
    render_text,
)
from modcrypt.report.text import format_count, format_size

__all__ = ["draw_verification"]

MAX_ROWS = 1_000
"""Maximum number of rows of a table; further ones are counted."""

MAX_NOTES = 200
MAX_MESSAGE = 600


def draw_verification(
    *,
    location: str,
    facts: Sequence[tuple[str, str]],
    complete: bool,
    findings: Sequence[TableFinding],
    gaps: Sequence[Unauthenticated],
    limits: Sequence[Unauthenticated],
    keks: Sequence[CheckedKek],
    files: Sequence[CheckedTableFile],
    orphans: Sequence[StrayFile],
) -> str:
    """Return a self-contained HTML page about the verification of a table.

    Args:
        location: Location of the table.
        facts: Labels and values for the head of the page.
        complete: Whether everything that the format encrypts was authenticated.
        findings: Faults and warnings.
        gaps: Parts that the format encrypts, but that were not authenticated.
        limits: Parts that the format authenticates in no table.
        keks: KEKs of the table.
        files: Files that the snapshots reach.
        orphans: Files in the table's folder that nothing reaches.
    """
    body = [
        render_facts(facts),
        _findings_table(findings),
        _notes_section(gaps, limits),
        _keks_table(keks),
        _kinds_table(files),
        _orphans_table(orphans),
        _files_table(files),
    ]
    verdict = _verdict(findings, complete=complete)
    return render_page(f"Verification of {format_name(location)}", verdict, "\n".join(body))


def _verdict(findings: Sequence[TableFinding], *, complete: bool) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [
        f'<span class="verdict {kind}">{format_count(counts[kind], kind)}</span>'
        for kind in ("fault", "warning")
        if counts[kind]
    ]
    if not parts:
        parts.append('<span class="verdict">No findings</span>')
    if complete:
        parts.append('<span class="verdict">Everything authenticated</span>')
    elif not counts["fault"]:
        parts.append('<span class="verdict warning">Not everything could be checked</span>')
    return "".join(parts)


def _findings_table(findings: Iterable[TableFinding]) -> str:
    ordered = sorted(findings, key=lambda finding: finding.severity != "fault")
    rows = [
        render_row(
            [
                f'<span class="word"><i class="flag {item.severity}"></i>{item.severity}</span>',
                f'<code class="word">{render_text(item.word, 40)}</code>',
                f'<span class="where">{render_text(item.location or "the table")}</span>',
                "" if item.module is None else render_text(str(item.module)),
                f'<span class="message">{render_text(item.message, MAX_MESSAGE)}</span>',
            ]
        )
        for item in ordered[:MAX_ROWS]
    ]
    heads = ("Severity", "Error code", "File", "Place in the file", "Finding")
    return render_table("Findings", heads, rows, len(ordered) - len(rows))


def _notes_section(gaps: Sequence[Unauthenticated], limits: Sequence[Unauthenticated]) -> str:
    """Return unauthenticated parts; those that the format never authenticates are folded."""
    parts = ""
    if gaps:
        parts = f"<section><h2>Not authenticated</h2>{_list_notes(gaps)}</section>"
    if limits:
        parts += (
            "<section><details><summary>Limits of the format</summary>"
            f"{_list_notes(limits)}</details></section>"
        )
    return parts


def _list_notes(notes: Iterable[Unauthenticated]) -> str:
    """Return a list of notes; a note about several files is listed once."""
    about: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for note in notes:
        about[note.what, note.why].append(note.path or "the table")
    parts = [
        f"<div><dt>{render_text(what)}: {render_text(paths[0])}"
        + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")
        + f"</dt><dd>{render_text(why, MAX_MESSAGE)}</dd></div>"
        for (what, why), paths in list(about.items())[:MAX_NOTES]
    ]
    if len(about) > MAX_NOTES:
        parts.append(f"<div><dt>and {len(about) - MAX_NOTES:,} more</dt></div>")
    return f'<dl class="notes">{"".join(parts)}</dl>'


def _keks_table(keks: Sequence[CheckedKek]) -> str:
    rows = [
        render_row(
            [
                f"<code>{render_text(kek.id)}</code>",
                render_text(kek.master_key_id),
                {True: "newest", False: "older", None: "unknown"}[kek.current],
                format_day(kek.created_ms),
                f"{kek.age_days:,}",
                render_text(kek.scope or "table"),
                kek.store,
                f"{kek.manifest_lists:,}",
                f"{kek.files:,}",
                {True: "yes", False: '<span class="bad">no</span>', None: "not called"}[kek.opened],
            ],
            (4, 7, 8),
        )
        for kek in keks[:MAX_ROWS]
    ]
    heads = (
        "KEK", "Master key", "Its version", "Made", "Days old", "For", "Kept in", "Manifest lists",
        "Files whose key it encrypts", "Unwrapped",
    )  # fmt: skip
    return render_table("KEKs", heads, rows, len(keks) - len(rows), (4, 7, 8))


def _kinds_table(files: Sequence[CheckedTableFile]) -> str:
    """Count the files by kind."""
    kinds: defaultdict[str, list[CheckedTableFile]] = defaultdict(list)
    for file in files:
        kinds[file.kind].append(file)
    rows = [
        render_row(
            [
                render_text(kind),
                f"{len(group):,}",
                format_size(sum(file.size or 0 for file in group)),
                f"{sum(file.encrypted for file in group):,}",
                f"{sum(file.tags for file in group):,}",
                _bad(sum(not file.ok for file in group)),
            ],
            (1, 2, 3, 4, 5),
        )
        for kind, group in kinds.items()
    ]
    heads = ("Kind", "Files", "Bytes", "Encrypted", "Tags verified", "Faulty")
    return render_table("Files by kind", heads, rows, 0, (1, 2, 3, 4, 5))


def _bad(number: int) -> str:
    return f'<span class="bad">{number:,}</span>' if number else "0"


def _orphans_table(strays: Sequence[StrayFile]) -> str:
    rows = [
        render_row(
            [
                render_text(stray.path),
                format_size(stray.size),
                "" if stray.age_days is None else f"{stray.age_days:,.1f}",
                f'<span class="odd">{stray.state}</span>'
                if stray.state == "plaintext"
                else stray.state,
                "yes" if stray.temporary else "",
            ],
            (1, 2),
        )
        for stray in strays[:MAX_ROWS]
    ]
    heads = ("Orphan file", "Bytes", "Days old", "State", "Temporary")
    return render_table("Orphans", heads, rows, len(strays) - len(rows), (1, 2))


def _files_table(files: Sequence[CheckedTableFile]) -> str:
    """List the files, those with faults first."""
    ordered = sorted(files, key=lambda file: file.ok)
    rows = [
        render_row(
            [
                render_text(item.kind),
                render_text(item.location),
                "" if item.size is None else format_size(item.size),
                "" if item.records is None else f"{item.records:,}",
                f"{item.tags:,}",
                "ok" if item.ok else '<span class="bad">faulty</span>',
            ],
            (2, 3, 4),
        )
        for item in ordered[:MAX_ROWS]
    ]
    heads = ("Kind", "File", "Bytes", "Records", "Tags verified", "Result")
    return render_table("Files", heads, rows, len(ordered) - len(rows), (2, 3, 4))
