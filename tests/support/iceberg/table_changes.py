"""Every change of a table in a catalog, on rows with one column of ids."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    expire_history,
    prune_keys,
    rotate_table,
    set_policy,
)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: IcebergTable) -> list[int]:
    """Return the ids in the current version of a table."""
    return sorted(table.refreshed().scan()["id"].to_pylist())


CHANGES: dict[str, Callable[[IcebergTable], IcebergTable]] = {
    "append": lambda table: table.append(rows(9)),
    "mek": lambda table: rotate_table(table, "mek").table,
    "another mek": lambda table: rotate_table(table, "mek", new_master_key_id="keyB").table,
    "kek": lambda table: rotate_table(table, "kek").table,
    "dek": lambda table: rotate_table(table, "dek").table,
    "prune": lambda table: prune_keys(table).table,
    "policy": lambda table: set_policy(table, KeyPolicy(kek_per="day")),
    "expire": lambda table: expire_history(table).table,
}
