"""The client of Polars."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow.parquet as pq

from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.clients.client_loop import (
    Json,
    UnsupportedError,
    abilities,
    serve,
    unhex,
    unhex_values,
)

READ = [
    "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "aes-256", "v2",
    "unchecked-footer",
]  # fmt: skip
WRITE = [
    "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "plaintext-columns",
    "aes-256", "nested-column-keys",
]  # fmt: skip


def read(request: Json) -> Json:
    if request["operation"] == "metadata":
        raise UnsupportedError("Polars does not show metadata of columns")
    footer_key = unhex(request["footer_key"])
    decryption = pl.ParquetDecryptionProperties(
        footer_key=footer_key if footer_key is not None else b"",
        column_keys=unhex_values(request["column_keys"]),
        aad_prefix=unhex(request["aad_prefix"]),
        verify_footer_signature=request["check_footer_integrity"],
    )
    frame = pl.scan_parquet(request["path"], decryption=decryption, glob=False).collect()
    return {"outcome": "rows", **tagged_rows(frame.to_arrow())}


def write(request: Json) -> Json:
    options = request["options"]
    frame = pl.from_arrow(pq.read_table(request["input"]))
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(
        request["path"], encryption=encryption(request, frame),
        row_group_size=options["row_group_size"], compression="snappy",
    )  # fmt: skip
    return {"outcome": "written"}


def encryption(request: Json, frame: pl.DataFrame) -> Any:
    options = request["options"]
    keys = unhex_values(request["column_keys"])
    tops = {path.partition(".")[0] for path in keys} | {*options["plaintext_columns"]}
    if keys and tops < {*frame.columns}:
        raise UnsupportedError("with column keys, all other columns are plaintext")
    if not keys and options["plaintext_columns"]:
        raise UnsupportedError("without column keys, no column is plaintext")
    more: Json = {"column_keys": keys} if keys else {}
    if options["aad_prefix"]:
        more |= {"store_aad_prefix": options["store_aad_prefix"]}
    return pl.ParquetEncryptionProperties(
        footer_key=bytes.fromhex(request["footer_key"]),
        plaintext_footer=options["plaintext_footer"],
        aad_prefix=unhex(options["aad_prefix"]),
        **more,
    )


if __name__ == "__main__":
    declared = {"read": abilities(["parquet"], READ), "write": abilities(["parquet"], WRITE)}
    serve({"name": "Polars", "version": pl.__version__, **declared}, read, write)
