"""Render self-contained HTML pages about a file or a table, all in one frame.

Text from a file may be hostile. It is always escaped, non-printable characters are spelt out, and
long text is cut. A Content-Security-Policy allows only the page's own style sheet and script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from modcrypt.errors import printable
from modcrypt.report.html import MAX_NAME, format_day, format_name, format_readable

__all__ = [
    "format_day",
    "format_name",
    "format_readable",
    "read_asset",
    "render_facts",
    "render_page",
    "render_row",
    "render_table",
    "render_text",
]


def render_text(text: str, limit: int = MAX_NAME) -> str:
    """Return text as HTML; `<bdi>` keeps right-to-left names from reordering their neighbours."""
    return f"<bdi>{escape(format_readable(text, limit))}</bdi>"


def render_attribute(text: str, limit: int = 400) -> str:
    """Return text escaped for an attribute value or an SVG text element."""
    return escape(printable(text, limit))


def render_facts(pairs: Iterable[tuple[str, str]], limit: int = MAX_NAME) -> str:
    """Return labels and values as HTML for the head of a page; values are cut at a limit."""
    cells = "".join(
        f"<div><dt>{render_text(label)}</dt><dd>{render_text(value, limit)}</dd></div>"
        for label, value in pairs
    )
    return f'<dl class="facts">{cells}</dl>'


def render_row(cells: Sequence[str], numbers: Sequence[int] = ()) -> str:
    """Return a table row of HTML cells; the cells at the indexes in `numbers` align right."""
    return "<tr>" + "".join(
        f'<td class="n">{cell}' if index in numbers else f"<td>{cell}"
        for index, cell in enumerate(cells)
    )


def render_table(
    title: str, heads: Sequence[str], rows: Sequence[str], more: int, numbers: Sequence[int] = ()
) -> str:
    """Return a table with its title as HTML; an empty string if it has no rows.

    Args:
        title: Heading above the table, as HTML.
        heads: Column headings, as HTML.
        rows: Rows that `render_row` returned.
        more: Number of further rows that are not listed.
        numbers: Indexes of the columns that align right.
    """
    if not rows:
        return ""
    top = "".join(
        f'<th scope="col"{" class=n" if index in numbers else ""}>{head}'
        for index, head in enumerate(heads)
    )
    rest = ""
    if more:
        rest = f'<tr class="more"><td colspan="{len(heads)}">and {more:,} more that are not listed'
    body = "\n".join(rows)
    return (
        f'<section><h2>{title}</h2><div class="scroll"><table><thead><tr>{top}'
        f"<tbody>{body}{rest}</table></div></section>"
    )


def render_page(
    title: str, verdict: str, body: str, *, style: str = "", script: str = "", controls: str = ""
) -> str:
    """Return a complete page.

    Every character of it can be encoded as UTF-8, the encoding that its head declares.

    Args:
        title: Title of the page, as text.
        verdict: What the page says below its title, as HTML.
        body: Content of the page, as HTML.
        style: Style sheet; by default the one of pages about tables.
        script: JavaScript, which runs when the page is complete.
        controls: What stands beside the title, as HTML.
    """
    style = style or read_asset("modcrypt.report", "page.css")
    policy = f"default-src 'none'; style-src {_hash_for_policy(style)}"
    if script:
        policy += f"; script-src {_hash_for_policy(script)}"
    return Template(read_asset("modcrypt.report", "page.html")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        name=escape(format_readable(title)),
        title=render_text(title),
        verdict=verdict,
        body=body,
        controls=controls,
        script=f"<script>{script}</script>" if script else "",
    )


def read_asset(package: str, name: str) -> str:
    """Return a text file of a package, which may be in a zip."""
    return (files(package) / name).read_text(encoding="utf-8")


def _hash_for_policy(content: str) -> str:
    """Return the source expression that allows inline content in a Content-Security-Policy."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
