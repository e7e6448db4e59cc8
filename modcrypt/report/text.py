"""Format sizes and counts for people."""

from __future__ import annotations


def format_size(size: int) -> str:
    """Return a size in bytes with a readable unit."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), ""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 (the last one counts)
        value /= 1024
        if value < 999.95:
            break
    return f"{value:,.1f} {unit}"


def format_count(number: int, what: str) -> str:
    """Return a number and the noun it counts, in the plural if need be."""
    return f"{number:,} {what if number == 1 else _PLURALS.get(what, f'{what}s')}"


def format_short_count(number: int) -> str:
    """Return a number with few digits, rounded down if it is large: 1,234, 12 k or 3 M."""
    for least, size, unit in ((10**9, 10**9, "G"), (10**6, 10**6, "M"), (10**4, 10**3, "k")):
        if number >= least:
            return f"{number // size:,} {unit}"
    return f"{number:,}"


_PLURALS = {
    "branch or tag": "branches and tags",
    "call of the key service": "calls of the key service",
    "key of a manifest list": "keys of manifest lists",
    "page or part": "pages and parts",
}
