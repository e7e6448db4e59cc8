"""fastparquet, which has no decryption."""

from __future__ import annotations

from typing import Any

import fastparquet
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder."""
    return fastparquet.ParquetFile(path).to_pandas(columns=columns)


def count(path: str) -> Any:
    """Count rows."""
    return fastparquet.ParquetFile(path).count()


steps.run(steps.keyless_steps(scan, count))
