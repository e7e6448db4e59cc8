"""New files of an interrupted change: none stays behind, and none that a version names goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, KeyPolicy, create_table, rotate_table, verify_table
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.io import publication
from tests.support.iceberg.sample_kms import SampleKms

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
KINDS = ["append", "kek", "dek"]


@pytest.fixture
def lake(tmp_path: Path, kms: SampleKms) -> IcebergTable:
    policy = KeyPolicy(kek_per="files", files=1)
    table = create_table(tmp_path / "t", ROWS.schema, kms, master_key_id="keyA", policy=policy)
    return table.append(ROWS)


def change(table: IcebergTable, kind: Any) -> object:
    return table.append(ROWS) if kind == "append" else rotate_table(table, kind)


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def interrupt(monkeypatch: pytest.MonkeyPatch, nth: int) -> list[str]:
    """Press Ctrl-C right after a job has published its nth file; return the files, as they come."""
    published: list[str] = []
    publish = publication.publish

    def work(temporary: str, target: str, *arguments: Any, **options: Any) -> None:
        publish(temporary, target, *arguments, **options)
        published.append(target)
        if len(published) == nth:
            raise KeyboardInterrupt

    monkeypatch.setattr(publication, "publish", work)
    return published


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_after_any_file_leaves_none_of_the_job(
    lake: IcebergTable, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(lake.metadata.location)
    before, place = files_of(folder), lake.place
    for nth in range(1, 20):
        with monkeypatch.context() as patch:
            published = interrupt(patch, nth)
            with pytest.raises(KeyboardInterrupt):
                change(lake, kind)
        if published[-1].endswith(".json"):
            break
        assert files_of(folder) == before, published
    assert nth > 2
    after = lake.refreshed()
    assert after.place != place, "the commit took effect"
    assert after.scan().num_rows == (4 if kind == "append" else 2)
    assert verify_table(after).ok


@pytest.mark.parametrize("kind", ["kek", "dek"])
def test_an_interrupt_while_unused_files_are_removed_removes_no_other(
    lake: IcebergTable, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(_: NewFiles) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NewFiles, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            change(lake, kind)
    assert lake.refreshed().scan().equals(ROWS)
    assert verify_table(lake.refreshed()).ok
