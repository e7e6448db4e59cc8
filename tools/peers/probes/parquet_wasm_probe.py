"""parquet-wasm: `readParquet` and `ParquetFile`, which have no decryption."""

from __future__ import annotations

from functools import partial

import process
import steps

BUILD = [["npm", "install", "--silent", "--no-audit", "--no-fund"]]
with process.start("javascript", BUILD, ["node", "{build}/parquet_wasm.js"]) as read:
    file = partial(read, "plaintext-footer.parquet", how="ParquetFile")
    steps.run(
        process.keyless_file_steps(read)
        | {"plaintext-footer: no key, plaintext column, ParquetFile": partial(file, ["city"])}
    )
