"""arrow-rs: `ParquetRecordBatchReaderBuilder` with `with_file_decryption_properties`."""

from __future__ import annotations

from functools import partial

import process
import steps

COMMAND = ["cargo", "run", "--quiet", "--manifest-path", "{build}/Cargo.toml"]
with process.start("arrow_rs", [], COMMAND) as read:
    read_indexes = partial(read, "indexes.parquet", how="indexes")
    one_key = {"footer_key": steps.FOOTER_KEY, "column_keys": steps.ONE_COLUMN_KEY}
    steps.run(
        process.file_steps(read)
        | {
            "missing-key: other columns, with page indexes": partial(
                read_indexes, ["id"], **one_key
            ),
            "plaintext-footer: no key, plaintext column, with page indexes": partial(
                read_indexes, ["city"]
            ),
        }
    )
