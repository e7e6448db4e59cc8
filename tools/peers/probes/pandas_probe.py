"""pandas: `read_parquet(decryption_properties=)`, which passes PyArrow's properties on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import pyarrow.parquet.encryption as pe
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder without a key."""
    return pd.read_parquet(path, columns=columns)


def read(path: str, columns: list[str] | None = None, **keys: Any) -> Any:
    """Read a file or folder with explicit keys."""
    keys = {name: value for name, value in keys.items() if value is not None}
    properties = pe.create_decryption_properties(**keys)
    return pd.read_parquet(path, columns=columns, decryption_properties=properties)


def count(path: str) -> Any:
    """Count rows without a key, by reading no column."""
    return len(pd.read_parquet(path, columns=[]))


footer_key = partial(read, footer_key=steps.FOOTER_KEY)
steps.run(
    steps.keyless_steps(scan, count)
    | steps.keyed_steps(read)
    | {
        "missing-key: other columns": partial(footer_key, "columns.parquet", ["id"]),
        "missing-key: all columns": partial(footer_key, "columns.parquet"),
        "plaintext-footer: footer key, other columns": partial(
            footer_key, "plaintext-footer.parquet", ["city", "id"]
        ),
        "key-material: folder": lambda: read(
            "key-material", footer_key=steps.material_key("part-0.parquet")
        ),
    }
)
