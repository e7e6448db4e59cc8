"""Polars: `scan_parquet(decryption=)`, which `read_parquet` calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder without a key."""
    frame = pl.scan_parquet(path)
    return (frame.select(columns) if columns else frame).collect()


def read(path: str, columns: list[str] | None = None, **keys: Any) -> Any:
    """Read a file or folder with keys."""
    frame = pl.scan_parquet(path, decryption=pl.ParquetDecryptionProperties(**keys))
    return (frame.select(columns) if columns else frame).collect()


def count(path: str) -> Any:
    """Count rows without a key."""
    return pl.scan_parquet(path).select(pl.len()).collect().item()


read_footer_key = partial(read, footer_key=steps.FOOTER_KEY)
one_key = partial(read_footer_key, "columns.parquet", column_keys=steps.ONE_COLUMN_KEY)
steps.run(
    steps.keyless_steps(scan, count)
    | steps.keyed_steps(read)
    | {
        "all-keys: column keys": partial(
            read_footer_key, "columns.parquet", column_keys=steps.COLUMN_KEYS
        ),
        "missing-key: other columns": partial(one_key, ["id", "name"]),
        "missing-key: other columns, wrong key": partial(
            read_footer_key,
            "columns.parquet",
            ["id", "name"],
            column_keys=steps.ONE_COLUMN_KEY | {"score": steps.KEYS["name"]},
        ),
        "missing-key: all columns": one_key,
        "plaintext-footer: all keys": partial(
            read_footer_key, "plaintext-footer.parquet", column_keys=steps.COLUMN_KEYS
        ),
        "key-material: folder": lambda: read(
            "key-material/", footer_key=steps.material_key("part-0.parquet")
        ),
    }
)
