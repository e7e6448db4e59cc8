"""DataFusion's Python package, which is built without decryption."""

from __future__ import annotations

from typing import Any

import steps
from datafusion import SessionContext


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder."""
    frame = SessionContext().read_parquet(path)
    return (frame.select(*columns) if columns else frame).to_arrow_table()


def count(path: str) -> Any:
    """Count rows."""
    return SessionContext().read_parquet(path).count()


steps.run(steps.keyless_steps(scan, count))
