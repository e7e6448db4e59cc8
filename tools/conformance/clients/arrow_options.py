"""Arguments of PyArrow's encoder, for the clients that encode with it."""

from __future__ import annotations

from typing import Any

from tools.conformance.clients.client_loop import Json


def encoder_options(options: Json, table: Any) -> Json:
    """Return the arguments of `pyarrow.parquet.write_table` for the options of a scenario."""
    blooms = {name: {"ndv": table.num_rows} for name in options.get("bloom_filter_columns", ())}
    wanted = {
        "data_page_version": f"{options.get('data_page_version', 1)}.0",
        "max_rows_per_page": options.get("max_rows_per_page"),
        "write_batch_size": options.get("max_rows_per_page"),
        "write_page_index": options.get("write_page_index", False),
        "row_group_size": options.get("row_group_size"),
        "bloom_filter_options": blooms or None,
    }
    return {name: value for name, value in wanted.items() if value is not None}
