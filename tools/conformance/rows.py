"""The canonical form of rows, and its digest; spec-vectors/README.md describes it byte by byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def canonical_bytes(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return one line of JSON with the column names, then one per row of tagged values."""
    return b"".join(_line(entry) for entry in (columns, *rows))


def row_digest(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return the SHA-256 of the canonical form in hex; values nested too deeply have none."""
    try:
        return hashlib.sha256(canonical_bytes(columns, rows)).hexdigest()
    except RecursionError:
        return "nested too deeply"


def _line(entry: Sequence[Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
