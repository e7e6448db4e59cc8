"""Dask: `read_parquet`, and PyArrow in each task."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet.encryption as pe
import steps


def scan(path: str, columns: list[str] | None) -> Any:
    """Read a file or folder without a key."""
    return dd.read_parquet(path, columns=columns).compute()


def pass_properties() -> Any:
    """Read with PyArrow's properties as an argument of `read_parquet`."""
    keys = pe.create_decryption_properties(footer_key=steps.FOOTER_KEY)
    return dd.read_parquet("uniform.parquet", decryption_properties=keys).compute()


def _read_part(path: str) -> pd.DataFrame:
    keys = pe.create_decryption_properties(footer_key=steps.FOOTER_KEY)
    return pd.read_parquet(path, decryption_properties=keys)


steps.run(
    steps.keyless_steps(scan)
    | {
        "all-keys: properties of PyArrow": pass_properties,
        "all-keys: from_map": lambda: dd.from_map(_read_part, ["uniform.parquet"]).compute(),
    }
)
