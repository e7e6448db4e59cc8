"""Render results as HTML pages, so that results and page templates stay independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modcrypt.parquet.format.findings import fold
from modcrypt.parquet.verify.file_drawing import draw
from modcrypt.parquet.verify.inspection import Inspection
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.report.html import format_name, group_notes, render

if TYPE_CHECKING:  # not to be loaded for files
    from modcrypt.iceberg.verify.key_trees import KeyTree
    from modcrypt.iceberg.verify.table_results import TableVerification


def render_html(result: Inspection | Verification | TableVerification | KeyTree) -> str:
    """Return a self-contained HTML page about a result; it loads nothing and contains no keys.

    The page about a file draws every part of it, for which `verify_parquet` needs `regions=True`.
    Only pages about files have a script.

    Args:
        result: Result of `inspect_parquet`, `verify_parquet`, `verify_table` or `key_tree`.

    Raises:
        ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
        TypeError: No page exists for such a result.
    """
    if isinstance(result, Inspection | Verification):
        return _draw_file(result)
    from modcrypt.iceberg.verify.key_tree_drawing import draw_page
    from modcrypt.iceberg.verify.key_trees import KeyTree
    from modcrypt.iceberg.verify.table_results import TableVerification

    if isinstance(result, KeyTree):
        return draw_page(result)
    if isinstance(result, TableVerification):
        return _render_table_verification(result)
    raise TypeError(
        f"no page exists for {type(result).__name__}; pass an Inspection, a Verification, a "
        "TableVerification or a KeyTree"
    )


def _draw_file(result: Inspection | Verification) -> str:
    if isinstance(result, Inspection):
        columns: Sequence[str] = [column.path for column in result.columns or ()]
        notes = [
            *(("Visible without keys", sentence) for sentence in result.leaks),
            *(("Hidden here", sentence) for sentence in result.hidden),
            *(("Peculiar", sentence) for sentence in result.quirks),
        ]
    else:
        folded = fold((None, note) for note in result.not_authenticated)
        columns, notes = result.columns, [(f"Not authenticated: {n.what}", n.why) for n in folded]
    return draw(
        title=format_name(result.name), facts=result.facts(), columns=columns,
        row_groups=result.row_groups or 0, size=result.size, regions=result.regions,
        findings=() if isinstance(result, Inspection) else result.findings, notes=notes,
    )  # fmt: skip


def _render_table_verification(result: TableVerification) -> str:
    gaps, limits = (
        group_notes((f"{note.what}: {note.path or 'the table'}", note.why) for note in notes)
        for notes in (result.gaps, result.limits)
    )
    title = f"Verification of {format_name(result.location)}"
    return render("table_verification.html", title=title, result=result, gaps=gaps, limits=limits)
