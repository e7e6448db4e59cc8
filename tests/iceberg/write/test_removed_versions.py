"""Older metadata.json files that a commit deletes, as `delete-after-commit` asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    open_table,
    repair_table,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.write.commit import commit
from tests.support.iceberg.local_tables import make_sql_table
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import rows

ENABLED = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "3",
}


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return make_table(tmp_path / "t", properties=ENABLED)


def versions(folder: Path) -> list[int]:
    names = [path.name for path in (folder / "metadata").glob("*.metadata.json")]
    return sorted(int(name.removeprefix("v").split(".")[0].split("-")[0]) for name in names)


def set_properties(table: IcebergTable, **changes: str) -> IcebergTable:
    return commit(
        table,
        lambda base: base.metadata.with_members(properties={**base.metadata.properties, **changes}),
    )


def test_as_many_stay_as_the_log_names(table: IcebergTable, tmp_path: Path) -> None:
    for number in range(8):
        table = table.append(rows(number))
    assert versions(tmp_path / "t") == [6, 7, 8, 9]
    assert len(table.metadata.log) == 3
    assert open_table(tmp_path / "t", SampleKms()).scan().num_rows == 8
    assert verify_table(table.refreshed()).ok
    assert expire_history(table).left == ()


def test_as_many_stay_in_a_catalog(tmp_path: Path) -> None:
    named = make_sql_table(tmp_path / "c")
    table = commit(
        named.load(), lambda base: base.metadata.with_members(
            properties={**base.metadata.properties, **ENABLED})
    )  # fmt: skip
    for number in range(6):
        table = table.append(rows(number))
    assert versions(Path(table.place.path).parents[1]) == [4, 5, 6, 7]
    assert named.load().scan().num_rows == 6


@pytest.mark.parametrize("value", ["false", "yes", ""])
def test_without_the_property_all_stay(table: IcebergTable, tmp_path: Path, value: str) -> None:
    table = set_properties(table, **{"write.metadata.delete-after-commit.enabled": value})
    for number in range(6):
        table = table.append(rows(number))
    assert versions(tmp_path / "t") == list(range(1, 9))
    table = set_properties(table, **ENABLED)  # those that the log lost before go, too
    assert versions(tmp_path / "t") == [6, 7, 8, 9]


def test_old_keys_go_with_the_versions_that_have_them(table: IcebergTable, tmp_path: Path) -> None:
    table = table.append(rows(1))
    old = [key.document()["encrypted-key-metadata"] for key in table.metadata.keys.values()]
    table = rotate_table(table, "kek").table
    for number in range(5):
        table = table.append(rows(number))
    text = "".join(path.read_text() for path in (tmp_path / "t/metadata").glob("*.json"))
    assert not [key for key in old if key in text]
    assert table.scan().num_rows == 6


def test_a_version_with_a_key_that_was_lost_stays(table: IcebergTable, tmp_path: Path) -> None:
    """Java 1.11 loses keys when commits collide, and repair_table finds them there."""
    table = table.append(rows(1)).append(rows(2))
    first = table.metadata.snapshots[0].key_id
    keys = [key for key in table.metadata.keys.values() if key.id != first]
    table = commit(table, lambda base: base.metadata.with_keys(keys))
    for _ in range(5):
        table = set_properties(table, x="y")
    assert 3 in versions(tmp_path / "t")
    done = repair_table(table)
    assert done.restored == (first,)
    assert done.table.scan(table.metadata.snapshots[0].id).num_rows == 1
    table = done.table.append(rows(3)).append(rows(4)).append(rows(5))
    assert len(versions(tmp_path / "t")) == 4


def test_what_the_log_claims_decides_nothing(table: IcebergTable, tmp_path: Path) -> None:
    other = make_table(tmp_path / "o").append(rows(7))
    metadata = tmp_path / "t/metadata"
    planted = {
        "v0.metadata.json": (tmp_path / "o/metadata/v1.metadata.json").read_bytes(),  # another's
        "notes.txt": b"mine",
    }
    for name, data in planted.items():
        (metadata / name).write_bytes(data)
    table = table.append(rows(1)).append(rows(2)).append(rows(3))
    path = Path(table.place.path)
    document: dict[str, Any] = json.loads(path.read_bytes())
    claims = [*(str(metadata / name) for name in planted), other.place.path,
              str(tmp_path / "o/metadata/v1.metadata.json"), "/etc/hostname"]  # fmt: skip
    when = json.loads(planted["v0.metadata.json"])["last-updated-ms"]
    document["metadata-log"] = [{"timestamp-ms": when, "metadata-file": name} for name in claims]
    path.write_text(json.dumps(document))
    opened = open_table(tmp_path / "t", SampleKms())
    for number in range(5):
        opened = opened.append(rows(number))
    assert {path.name for path in metadata.iterdir()} >= set(planted)
    assert len(list((tmp_path / "o/metadata").glob("*.json"))) == 2
    assert other.refreshed().scan().num_rows == 1


def test_a_failure_to_delete_does_not_fail_the_commit(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table = table.append(rows(number))
    real = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if str(path).endswith(".metadata.json"):
            raise PermissionError(13, "refused", path)
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        table = table.append(rows(8)).append(rows(9))
        assert versions(tmp_path / "t") == [1, 2, 3, 4, 5, 6]
    table.append(rows(10))  # deletes the versions that were left, too
    assert versions(tmp_path / "t") == [4, 5, 6, 7]
