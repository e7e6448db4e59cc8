"""chdb (ClickHouse in a process), which has no decryption."""

from __future__ import annotations

import os
from typing import Any

import chdb
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder."""
    pattern = f"{path}*.parquet" if os.path.isdir(path) else path
    query = f"SELECT {', '.join(columns or ['*'])} FROM file('{pattern}', 'Parquet')"
    return chdb.query(query, "ArrowTable")


def count(path: str) -> Any:
    """Count rows."""
    return str(chdb.query(f"SELECT count() FROM file('{path}', 'Parquet')", "CSV")).strip()


steps.run(steps.keyless_steps(scan, count))
