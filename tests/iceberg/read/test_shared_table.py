"""Reading the table that Iceberg's Java wrote, as it says that it reads it."""

from __future__ import annotations

from typing import Any

import pytest

from modcrypt.iceberg import IcebergTable
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import DELETED, FIRST, SECOND, expected_rows


@pytest.mark.parametrize(
    ("snapshot", "ids"),
    [
        (1001, FIRST),
        (1002, FIRST + SECOND),
        (1003, [row for row in FIRST + SECOND if row not in DELETED]),
        (None, [row for row in FIRST + SECOND if row not in DELETED]),
        ("main", [row for row in FIRST + SECOND if row not in DELETED]),
    ],
)
def test_each_snapshot_has_the_rows_that_java_reads(
    table: IcebergTable, snapshot: int | str | None, ids: list[int]
) -> None:
    rows = table.scan(snapshot).sort_by("id").to_pylist()
    assert rows == expected_rows(ids)


def test_a_kek_is_unwrapped_once(table: IcebergTable, kms: SampleKms) -> None:
    for snapshot in (1001, 1002, 1003):
        table.scan(snapshot).to_arrow()
    assert kms.calls == [("unwrap", "keyA")]


def test_columns_are_a_list(table: IcebergTable) -> None:
    with pytest.raises(ValueError, match=r"a list of names; pass \['id'\]"):
        table.scan(columns="id").to_arrow()
    names: Any = iter(["id"])
    assert table.scan(columns=names).to_arrow().column_names == ["id"]
