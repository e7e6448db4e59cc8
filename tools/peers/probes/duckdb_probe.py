"""DuckDB: `read_parquet(encryption_config=)` with keys of `add_parquet_key`."""

from __future__ import annotations

import base64
import os
from functools import partial
from typing import Any

import duckdb
import steps

DATABASE = duckdb.connect()


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder without a key."""
    return _query(f"read_parquet('{_pattern(path)}')", columns)


def read(path: str, columns: list[str] | None = None, **keys: Any) -> Any:
    """Read a file or folder with a footer key."""
    DATABASE.execute(f"PRAGMA add_parquet_key('key', '{_spell(keys['footer_key'])}')")
    config = "encryption_config={footer_key: 'key'}"
    return _query(f"read_parquet('{_pattern(path)}', {config})", columns)


def _spell(key: bytes) -> str:
    """Return a key of digits as it is, and another one in base64, as DuckDB's manual says."""
    return key.decode() if key.isdigit() else base64.b64encode(key).decode()


def _pattern(path: str) -> str:
    return f"{path}*.parquet" if os.path.isdir(path) else path


def _query(source: str, columns: list[str] | None) -> Any:
    return DATABASE.sql(f"SELECT {', '.join(columns or ['*'])} FROM {source}").to_arrow_table()


def read_filtered(path: str, condition: str) -> Any:
    """Read rows of a file with a footer key."""
    read(path, ["id"], footer_key=steps.FOOTER_KEY)  # which adds the key
    config = "encryption_config={footer_key: 'key'}"
    return _query(f"read_parquet('{path}', {config}) WHERE {condition}", None)


def count(path: str) -> Any:
    """Count rows without a key."""
    return DATABASE.sql(f"SELECT count(*) FROM read_parquet('{path}')").fetchall()[0][0]


# No option takes an AAD prefix.
keyed = steps.keyed_steps(read).items()
unprefixed = {name: step for name, step in keyed if "prefix" not in name or ": no" in name}
footer_key = partial(read, footer_key=steps.FOOTER_KEY)
steps.run(
    steps.keyless_steps(scan, count)
    | unprefixed
    | {
        "all-keys: filter that statistics decide": partial(
            read_filtered, "uniform.parquet", "id >= 0"
        ),
        "all-keys: filter that reads values": partial(read_filtered, "uniform.parquet", "id = 3"),
        "missing-key: other columns": partial(footer_key, "columns.parquet", ["id"]),
        "missing-key: all columns": partial(footer_key, "columns.parquet"),
        "plaintext-footer: footer key": partial(footer_key, "plaintext-footer.parquet"),
        "key-material: folder": lambda: read(
            "key-material/", footer_key=steps.material_key("part-0.parquet")
        ),
    }
)
