"""Links between files of the repository, as links between pages of the website."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<fragment>#[^)\s]*)?\)")
_CODE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Sources:
    """Where a page of the site comes from, and the page of each file of the repository.

    Attributes:
        uri: The page's path in the site.
        path: The path in the repository of the file that the page shows.
        pages: Paths in the site by paths in the repository.
    """

    uri: str
    path: Path
    pages: Mapping[str, str]


def adjust_links(markdown: str, sources: Sources) -> str:
    """Return Markdown whose links lead to pages; code blocks stay unchanged.

    The repository has no public address yet, so a link to a file without a page becomes its path.
    """
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda match: _adjust(match, sources), part) for part in parts[::2]]
    return "".join(parts)


def _adjust(match: re.Match[str], sources: Sources) -> str:
    target, fragment = match["target"], match["fragment"] or ""
    if ":" in target:
        return match[0]
    path = os.path.normpath(sources.path.parent / target)
    page = sources.pages.get(path)
    if page is None:
        return f"{match['text']} (`{path}` in the repository)"
    link = posixpath.relpath(page, posixpath.dirname(sources.uri) or ".")
    return f"[{match['text']}]({link}{fragment})"
