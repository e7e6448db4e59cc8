"""Changes of tables: every one on rows with one column of ids, and some of the shared table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    expire_history,
    prune_keys,
    rotate_table,
    set_policy,
)
from tests.support.iceberg.shared_table import reopen


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: IcebergTable) -> list[int]:
    """Return the ids in the current version of a table."""
    return sorted(table.refreshed().scan()["id"].to_pylist())


CHANGES: dict[str, Callable[[IcebergTable], IcebergTable]] = {
    "append": lambda table: table.append(rows(9)),
    "overwrite": lambda table: table.overwrite(rows(1, 2, 9), "id < 100"),
    "upsert": lambda table: table.upsert(rows(9, 10), ["id"]).table.delete("id = 10"),
    "mek": lambda table: rotate_table(table, "mek").table,
    "another mek": lambda table: rotate_table(table, "mek", new_master_key_id="keyB").table,
    "kek": lambda table: rotate_table(table, "kek").table,
    "dek": lambda table: rotate_table(table, "dek").table,
    "prune": lambda table: prune_keys(table).table,
    "policy": lambda table: set_policy(table, KeyPolicy(kek_per="day")),
    "expire": lambda table: expire_history(table).table,
}


def act(what: str, folder: Path, kms: Any = None) -> IcebergTable:
    """Change a copy of the shared table in a folder."""
    table = reopen(folder, kms, master_key_ids=["keyA", "keyB"])
    if what == "prune":
        return prune_keys(table).table
    if what == "expire":
        done = expire_history(table)
        assert done.left == ()
        return done.table
    new_id = None if what == "dek" else "keyB"
    return rotate_table(table, what, new_master_key_id=new_id).table  # type: ignore[arg-type]
