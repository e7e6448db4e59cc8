"""Daft, which has no decryption."""

from __future__ import annotations

import os
from typing import Any

import daft
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder."""
    pattern = f"{path}*.parquet" if os.path.isdir(path) else path
    frame = daft.read_parquet(pattern)
    return (frame.select(*columns) if columns else frame).to_arrow()


def count(path: str) -> Any:
    """Count rows."""
    return daft.read_parquet(path).count_rows()


steps.run(steps.keyless_steps(scan, count))
