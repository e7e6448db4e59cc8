"""Metadata of a package that depends on the address of its repository.

A package index shows README.md without the files beside it. The release workflow passes the address
of the repository that it runs in, so that links lead there. Other builds have no address that could
be trusted to stay, and their links become text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS = "MODCRYPT_REPOSITORY"
_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n*")
_RELATIVE_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>(?!https?:)[^)\s]+)\)")


class AddressHook(MetadataHookInterface):
    """The hook that hatchling calls for a package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description, and the addresses of the project if they are known."""
        address = os.environ.get(ADDRESS)
        files = address and f"{address}/blob/v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(text, files)}
        metadata["urls"] = list_addresses(address, files) if address and files else {}


def list_addresses(repository: str, files: str) -> dict[str, str]:
    """Return what an index links to, for the address of a repository and of its files."""
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Documentation": f"{files}/docs/tutorial.md",
        "Changelog": f"{files}/CHANGELOG.md",
    }


def describe(readme: str, files: str | None) -> str:
    """Return README.md without images, and with links to an address of files or to none."""
    readme = _IMAGE.sub("", readme)
    shown = r"[\g<text>](" + files + r"/\g<target>)" if files else r"\g<text>"
    return _RELATIVE_LINK.sub(shown, readme)
