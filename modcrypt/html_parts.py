"""What the HTML pages of reports have in common: sizes for people, and hashes for their policy."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["human", "policy_hash"]


def human(size: int) -> str:
    """Give a number of bytes for people."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), ""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 (the last one counts)
        value /= 1024
        if value < 999.95:
            break
    return f"{value:,.1f} {unit}"


def policy_hash(content: str) -> str:
    """Name inline content as a Content-Security-Policy does."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
