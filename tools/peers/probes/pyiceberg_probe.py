"""pyiceberg: files that a table names by `add_files`, and a table that modcrypt encrypted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import steps
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

FIELDS = {"id": pa.int64(), "city": pa.string(), "name": pa.string(), "score": pa.float64()}
FOLDER = tempfile.TemporaryDirectory()


def make_table() -> Any:
    """Return an empty table of a catalog in memory."""
    catalog = SqlCatalog("peers", uri="sqlite:///:memory:", warehouse=f"file://{FOLDER.name}")
    catalog.create_namespace("peers")
    return catalog.create_table("peers.people", pa.schema(FIELDS.items()))


def add(paths: list[str]) -> Any:
    """Return a table that names files."""
    table = make_table()
    table.add_files([os.path.abspath(path) for path in paths])
    return table


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or the files of a folder through a table."""
    files = [path] if os.path.isfile(path) else map(str, Path(path).glob("*.parquet"))
    return add(sorted(files)).scan(selected_fields=tuple(columns or ["*"])).to_arrow()


def scan_encrypted() -> Any:
    """Read a table of format version 3 that Iceberg's encryption protects."""
    (metadata,) = Path("iceberg/metadata").glob("v2.metadata.json")
    return StaticTable.from_metadata(str(metadata.resolve())).scan().to_arrow()


def read_properties() -> Any:
    """Return the name of the table's master key, which its metadata file has in plaintext."""
    (metadata,) = Path("iceberg/metadata").glob("v2.metadata.json")
    table = StaticTable.from_metadata(str(metadata.resolve()))
    return table.properties["encryption.key-id"]


wanted = ("no-key", "key-material", "mixed-folder")
files = steps.keyless_steps(scan)
steps.run(
    {name: step for name, step in files.items() if name.startswith(wanted)}
    | {
        "encrypted-table: master key's name": read_properties,
        "encrypted-table: rows": scan_encrypted,
    }
)
