"""Self-contained HTML pages about a table: one template, one style, no script.

What comes from a table is hostile: it only ever becomes text, spelt out where it isn't printable
and cut where it is long. A Content-Security-Policy lets nothing load or run but the page's style.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from modcrypt.html_parts import policy_hash

__all__ = [
    "MAX_NAME",
    "counted",
    "day_of",
    "facts",
    "name_of",
    "page",
    "row",
    "shown",
    "table",
]

MAX_NAME = 240
"""Characters of one name."""


def readable(text: str, limit: int = MAX_NAME) -> str:
    """Spell out what is no printable character, and cut what is too long in its middle."""
    half = limit // 2
    if cut := len(text) > limit:
        text = f"{text[:half]} … {text[-half:]}"
    spelt = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return spelt if cut or len(spelt) <= limit else f"{spelt[:half]} … {spelt[-half:]}"


def shown(text: str, limit: int = MAX_NAME) -> str:
    """Give text as HTML; a right-to-left name does not turn round what stands beside it."""
    return f"<bdi>{escape(readable(text, limit))}</bdi>"


def attribute(text: str, limit: int = 400) -> str:
    """Give text as the value of an attribute, or as what SVG shows."""
    return escape(readable(text, limit))


def name_of(location: str) -> str:
    """Give the last part of a location, without what is no printable character."""
    return readable(location.rstrip("/").rpartition("/")[2] or location)


def counted(number: int, what: str) -> str:
    """Give a number of things."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def day_of(milliseconds: int) -> str:
    """Give the day of a time in ms since 1970, in UTC; whatever a file says it is."""
    try:
        return f"{datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return "at no time"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Give labels and values for the head of a page."""
    cells = "".join(
        f"<div><dt>{shown(term)}</dt><dd>{shown(said)}</dd></div>" for term, said in pairs
    )
    return f'<dl class="facts">{cells}</dl>'


def row(cells: Sequence[str], numbers: Sequence[int] = ()) -> str:
    """Give a row of a table; its cells are HTML, those in `numbers` stand at the right."""
    return "<tr>" + "".join(
        f'<td class="n">{cell}' if place in numbers else f"<td>{cell}"
        for place, cell in enumerate(cells)
    )


def table(
    title: str, heads: Sequence[str], rows: Sequence[str], more: int, numbers: Sequence[int] = ()
) -> str:
    """Give a table with its title; nothing where it has no rows.

    Args:
        title: above it.
        heads: of its columns.
        rows: as `row` gives them.
        more: how many others there are.
        numbers: which columns stand at the right.
    """
    if not rows:
        return ""
    top = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{head}'
        for place, head in enumerate(heads)
    )
    rest = ""
    if more:
        rest = (
            f'<tr class="more"><td colspan="{len(heads)}">and {more:,} more, which are not listed'
        )
    body = "\n".join(rows)
    return (
        f'<section><h2>{title}</h2><div class="scroll"><table><thead><tr>{top}'
        f"<tbody>{body}{rest}</table></div></section>"
    )


def page(title: str, verdict: str, body: str) -> str:
    """Give a whole page; `verdict` and `body` are HTML.

    All its characters can be encoded as UTF-8, as its head says it is.
    """
    style = _asset("page.css")
    policy = f"default-src 'none'; style-src {policy_hash(style)}"
    return Template(_asset("page.html")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        name=escape(readable(title)),
        title=shown(title),
        verdict=verdict,
        body=body,
    )


def _asset(name: str) -> str:
    return (files("modcrypt.report") / name).read_text(encoding="utf-8")
