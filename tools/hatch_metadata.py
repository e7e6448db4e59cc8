"""The long description of a package: README.md without links to files of the repository.

A package index shows the description without these files, and the repository has no public address
to link to yet. So the links become their text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?:)[^)\s]+\)")


class ReadmeHook(MetadataHookInterface):
    """The hook that hatchling calls for a package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description to the metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(text)}


def describe(readme: str) -> str:
    """Return the text of README.md for a package index."""
    return _RELATIVE_LINK.sub(lambda link: link["text"], readme)
