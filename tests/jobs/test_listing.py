"""The listing that `verify` processes: each file once, and what the seal names besides."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import modcrypt as mc
from modcrypt.parquet.datasets import discovery
from modcrypt.parquet.datasets.write_notes import NOTES
from tests.support.cli.answers import run_ok
from tests.support.cli.program import invoke
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.signing import PEOPLE, signed_decryption, signed_encryption, writer_key

KEYS = ("--key", "file:footer.key", "--column-key", "name=file:name.key")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two datasets, `a` and `b`, of two signed files each, beside their keys."""
    for name, key in (("footer.key", FOOTER_KEY), ("name.key", COLUMN_KEY)):
        (tmp_path / name).write_bytes(key)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "writer.pub").write_text(f"{writer_key().verifier}\n")
    for dataset in ("a", "b"):
        (tmp_path / dataset).mkdir()
        for part in range(2):
            path = tmp_path / dataset / f"part-{part}.parquet"
            mc.write_table(PEOPLE.slice(part), path, signed_encryption())
        mc.jobs.seal_dataset(tmp_path / dataset, writer_key())
    return tmp_path


def test_the_command_line_lists_a_sealed_folder_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, list_sizes = [], discovery.list_sizes

    def count(filesystem: Any, folder: str, **how: Any) -> dict[str, int]:
        listed.append(folder)
        return list_sizes(filesystem, folder, **how)

    monkeypatch.setattr(discovery, "list_sizes", count)
    run_ok(lake, "verify", *KEYS, "--signed-by", "writer.pub", "--seal-at-least", "1", "a")
    assert listed == ["a"]


def test_the_command_line_asks_a_store_for_each_file_only_to_open_it(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = MemoryFileSystem(), Counter[str]()
    for path in (lake / "a").iterdir():
        store.pipe(f"/listed/{path.name}", path.read_bytes())
    info = MemoryFileSystem.info

    def count(self: MemoryFileSystem, path: str, **how: Any) -> Any:
        asked[path.rsplit("/", 1)[-1]] += 1
        return info(self, path, **how)

    monkeypatch.setattr(MemoryFileSystem, "info", count)
    run_ok(lake, "verify", *KEYS, "memory://listed")
    assert (asked["part-0.parquet"], asked["part-1.parquet"]) == (1, 1)


def test_notes_hide_files_of_each_of_several_folders(lake: Path) -> None:
    (lake / "b" / NOTES).mkdir()
    note = {"host": "h", "time": 0, "hidden": ["part-1.parquet"]}
    (lake / "b" / NOTES / "job.json").write_text(json.dumps(note))
    said = run_ok(lake, "verify", *KEYS, "a", "b")
    assert "part-1.parquet from readers" in said
    assert "3 files" in said


def test_what_is_lost_of_one_folder_does_not_keep_the_other_from_verification(lake: Path) -> None:
    for path in (lake / "b").glob("*.parquet"):
        path.unlink()
    how = (*KEYS, "--signed-by", "writer.pub", "--seal-at-least", "1")
    result = invoke(lake, "verify", *how, "a", "b")
    assert result.exit_code == 1
    assert "seal are missing: part-0.parquet, part-1.parquet" in result.stdout
    assert "2 files" in result.stdout


def test_an_empty_folder_among_others_is_a_mistake(lake: Path) -> None:
    (lake / "empty").mkdir()
    with pytest.raises(ValueError, match="the list is empty"):
        mc.verify_dataset([], signed_decryption())
    with pytest.raises(ValueError, match="empty: no files found"):
        mc.verify_dataset([lake / "a", lake / "empty"], signed_decryption())
