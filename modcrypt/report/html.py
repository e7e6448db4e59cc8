"""Render self-contained HTML pages about files and tables from the templates of this package.

Text from a file may be hostile. The templates' environment escapes every expression and all
non-printable characters, and shortens long text, whatever a template does. A
Content-Security-Policy allows only the pages' own style sheet and script.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

from modcrypt.errors import printable
from modcrypt.report.text import format_count, format_short_count, format_size
from modcrypt.runtime.extras import missing_extra

if TYPE_CHECKING:  # an extra
    from jinja2 import Environment

MAX_NAME = 240
"""Maximum number of characters shown of a name."""


class Drawable(Protocol):
    """A result that has a page."""

    def to_html(self) -> str:
        """Return the page."""


def render_html(result: Drawable) -> str:
    """Return a self-contained HTML page about a result; it loads nothing and contains no keys.

    The page about a file draws every part of it, for which `verify_parquet` needs `regions=True`.
    Its scripts choose a theme, sort tables and draw files; without them it is complete, but for the
    drawing.

    Args:
        result: Result of `inspect_parquet`, `verify_parquet`, `verify_table` or `key_tree`.

    Raises:
        ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
        TypeError: No page exists for such a result.
    """
    if not hasattr(result, "to_html"):
        raise TypeError(
            f"no page exists for {type(result).__name__}; pass an Inspection, a Verification, a "
            "TableVerification or a KeyTree"
        )
    return result.to_html()


def render(template: str, **values: Any) -> str:
    """Return a complete page, which can always be encoded as UTF-8.

    Raise ModuleNotFoundError if the extra `modcrypt[html]` is not installed.
    """
    return page_environment().get_template(template).render(values)


@cache
def page_environment() -> Environment:
    """Return the environment of the templates."""
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
        from markupsafe import Markup, escape
    except ModuleNotFoundError as error:
        raise missing_extra("an HTML page", "html", error.name) from None

    def make_readable(value: object) -> object:
        """Make the strings of expressions readable; leave markup of templates unchanged."""
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return format_readable(value)

    environment = Environment(
        autoescape=True, finalize=make_readable, loader=FunctionLoader(read_template),
        lstrip_blocks=True, trim_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "asset": lambda name: Markup(read_template(name)),  # noqa: S704  # a file of this package
        "asset_hash": lambda name: hash_for_policy(read_template(name)),
        "brief": lambda text, limit: escape(printable(text, limit)),
        "commas": "{:,}".format,
        "counted": format_count,
        "cut": lambda text, limit: escape(format_readable(text, limit)),
        "day": format_day,
        "filename": format_name,
        "breakable": lambda text: escape(format_readable(text)).replace("/", Markup("/<wbr>")),
        "share": format_share,
        "short_count": format_short_count,
        "size": format_size,
        "utc": format_time,
        "zip": zip,
    }
    # With `tojson`, no string can end the script element that contains it.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def read_template(name: str) -> str:
    """Return a file of the templates' folder; the package may be in a zip."""
    return (files("modcrypt.report") / "templates" / name).read_text(encoding="utf-8")


def hash_for_policy(content: str) -> str:
    """Return the source expression that allows inline content in a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def group_notes(notes: Iterable[tuple[str, str]]) -> list[tuple[list[str], tuple[str, ...]]]:
    """Return headings with their sentences; headings with the same sentences share an entry."""
    sentences: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for heading, sentence in notes:
        sentences[heading][sentence] = None
    headings: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for heading, texts in sentences.items():
        headings[tuple(texts)].append(heading)
    return [(shared, texts) for texts, shared in headings.items()]


def format_readable(text: str, limit: int = MAX_NAME) -> str:
    """Return printable text; if it is shortened, followed by its full length."""
    length = f" ({len(text):,} characters)" if len(text) > limit else ""
    return printable(text, limit) + length


def format_name(location: str) -> str:
    """Return the last part of a location, with non-printable characters escaped."""
    return printable(location.rstrip("/").rpartition("/")[2] or location, MAX_NAME)


def format_day(milliseconds: int) -> str:
    """Return the UTC day of a time in milliseconds since 1970, for any number from a file."""
    try:
        return f"{datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def format_time(text: str) -> str:
    """Return a time in ISO 8601 as date, hours and minutes in UTC; any other text unchanged."""
    try:
        time = datetime.datetime.fromisoformat(text)
        return f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC" if time.tzinfo else text
    except (ValueError, OverflowError):
        return text


def format_share(size: int, of: int) -> str:
    """Return a percentage that is 0 or 100 only if that is exact."""
    if size <= 0 or size >= of:
        return "0 %" if size <= 0 else "100 %"
    tenths = size * 1000 // of
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"
