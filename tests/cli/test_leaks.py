"""`modcrypt leaks`: rows, JSON and exit codes."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.cases import each_case
from tests.support.cli.answers import run_ok
from tests.support.cli.program import KEY, NAME_KEY, invoke, private
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.tables import small_table, write_plain

KEYS = (*KEY, *NAME_KEY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with keys, and one encrypted file in `lake`."""
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode())
    (tmp_path / "plain").mkdir()
    write_plain(tmp_path / "plain/part.parquet")
    run_ok(tmp_path, "encrypt", *KEYS, "plain", "lake")
    return tmp_path


def test_nothing_found(folder: Path) -> None:
    result = invoke(folder, "leaks", "lake")
    assert (result.exit_code, result.stdout) == (0, "lake: 1 file, 1 encrypted: no leak found\n")


def test_leaks_end_with_exit_code_1(folder: Path) -> None:
    pq.write_metadata(small_table().schema, folder / "lake/_common_metadata")
    result = invoke(folder, "leaks", "lake")
    assert result.exit_code == 1
    assert "parquet-summary" in result.stdout
    lines = invoke(folder, "leaks", "lake", "--json").stdout.splitlines()
    leak, totals = map(json.loads, lines)
    assert (leak["schema"], leak["kind"]) == ("modcrypt.leaks.leak/1", "parquet-summary")
    assert (totals["leaks"], totals["files"], totals["encrypted"]) == (1, 2, 1)


def test_a_plaintext_folder_needs_a_policy(folder: Path) -> None:
    result = invoke(folder, "leaks", "plain")
    assert result.exit_code == 2
    assert "policy" in result.stderr
    (folder / "p.toml").write_text('footer_key = "f"\n')
    result = invoke(folder, "leaks", "--policy", "p.toml", "plain")
    assert result.exit_code == 1
    assert "plaintext-parquet" in result.stdout


# --- encryption of a folder with such files ------------------------------------------------------


@pytest.fixture
def with_summaries(folder: Path) -> Path:
    """The same with summaries in `plain`."""
    collected: list[pq.FileMetaData] = []
    pq.write_table(small_table(), folder / "plain/part.parquet", metadata_collector=collected)
    collected[0].set_file_path("part.parquet")
    pq.write_metadata(small_table().schema, folder / "plain/_common_metadata")
    pq.write_metadata(
        small_table().schema, folder / "plain/_metadata", metadata_collector=collected
    )
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_encryption_in_place_refuses_summaries(with_summaries: Path) -> None:
    before = contents(with_summaries / "plain")
    result = invoke(with_summaries, "encrypt", *KEYS, "--in-place", "plain")
    assert result.exit_code == 2
    assert "plain/_metadata" in result.stderr
    assert "--drop-summaries" in result.stderr
    assert "--allow-leaks" in result.stderr
    assert contents(with_summaries / "plain") == before


def test_summaries_are_removed_after_success(with_summaries: Path) -> None:
    options = (*KEYS, "--drop-summaries", "--in-place", "plain")
    plain = with_summaries / "plain"
    run_ok(with_summaries, "encrypt", "--dry-run", *options)
    assert (plain / "_metadata").exists()
    (plain / "broken.parquet").write_bytes(b"PAR1")
    assert invoke(with_summaries, "encrypt", *options).exit_code == 1
    assert (plain / "_metadata").exists()
    (plain / "broken.parquet").unlink()
    result = invoke(with_summaries, "encrypt", *options)
    assert (result.exit_code, result.stderr.count("removed")) == (0, 2)
    assert [path.name for path in plain.iterdir()] == ["part.parquet"]
    assert run_ok(with_summaries, "leaks", "plain")


def test_only_summaries_are_removed(with_summaries: Path, tmp_path: Path) -> None:
    plain = with_summaries / "plain"
    (plain / "a").mkdir()
    (plain / "a/_metadata").write_bytes(b"of another program")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/_metadata").write_bytes(b"PAR1")
    (plain / "b").mkdir()
    (plain / "b/_common_metadata").symlink_to(tmp_path / "elsewhere/_metadata")
    result = invoke(
        with_summaries, "encrypt", *KEYS, "--drop-summaries", "--allow-leaks", "--in-place", "plain"
    )
    assert result.exit_code == 0
    assert (plain / "a/_metadata").exists()
    assert (tmp_path / "elsewhere/_metadata").exists()
    assert not (plain / "b/_common_metadata").is_symlink()


@pytest.mark.parametrize("target", [("--in-place", "plain"), ("plain", "copy")])
def test_summaries_of_unselected_folders_are_kept(with_summaries: Path, target: Any) -> None:
    plain = with_summaries / "plain"
    for name in ("a", "b/c"):
        (plain / name).mkdir(parents=True)
        write_plain(plain / name / "part.parquet")
    changed = plain if "--in-place" in target else with_summaries / "copy"
    for name in ("_metadata", "a/_metadata", "b/_metadata", "b/c/_metadata"):
        (changed / name).parent.mkdir(parents=True, exist_ok=True)
        (changed / name).write_bytes(b"PAR1")
    options = (*KEYS, "--drop-summaries", "--allow-leaks", "--glob", "b/c/*.parquet")
    assert invoke(with_summaries, "encrypt", *options, *target).exit_code == 0
    left = {path.parent.relative_to(changed).as_posix() for path in changed.rglob("_metadata")}
    assert left == {"a"}


def test_summaries_in_hidden_folders_are_kept_and_refused(with_summaries: Path) -> None:
    hidden = with_summaries / "plain/.backup/_metadata"
    hidden.parent.mkdir()
    (with_summaries / "plain/_metadata").rename(hidden)
    options = (*KEYS, "--drop-summaries", "--in-place", "plain")
    result = invoke(with_summaries, "encrypt", *options)
    assert result.exit_code == 2
    assert ".backup/_metadata" in result.stderr
    assert invoke(with_summaries, "encrypt", "--allow-leaks", *options).exit_code == 0
    assert hidden.exists()
    assert not (with_summaries / "plain/_common_metadata").exists()


def test_leaks_can_be_allowed(with_summaries: Path) -> None:
    run_ok(with_summaries, "encrypt", *KEYS, "--allow-leaks", "--in-place", "plain")
    assert (with_summaries / "plain/_metadata").exists()


def test_a_copy_leaves_summaries_of_the_source_behind(with_summaries: Path) -> None:
    run_ok(with_summaries, "encrypt", *KEYS, "plain", "copy")
    assert [path.name for path in (with_summaries / "copy").iterdir()] == ["part.parquet"]


def test_a_destination_with_a_table_log_is_refused(folder: Path) -> None:
    (folder / "copy/_delta_log").mkdir(parents=True)
    line = json.dumps({"add": {"partitionValues": {"name": "Ann"}}})
    (folder / "copy/_delta_log/0.json").write_text(line)
    result = invoke(folder, "encrypt", *KEYS, "plain", "copy")
    assert result.exit_code == 2
    assert "copy/_delta_log" in result.stderr
    assert "--drop-summaries" not in result.stderr


def test_partitions_by_an_encrypted_column_are_refused(folder: Path) -> None:
    write_plain(folder / "plain/part.parquet")
    (folder / "plain/name=Ann").mkdir()
    write_plain(folder / "plain/name=Ann/part.parquet")
    for destination in (("copy",), ()):
        place = () if destination else ("--in-place",)
        result = invoke(folder, "encrypt", *KEYS, *place, "plain", *destination)
        assert result.exit_code == 2
        assert "name=*" in result.stderr


@each_case(
    "paths",
    [
        ("--in-place", "plain/name=Ann"),
        ("--in-place", "plain/name=Ann/part.parquet"),
        ("plain", "copy/NAME=Ann"),
        ("plain/part.parquet", "plain/name=Ann/b.parquet"),
        ("plain/part.parquet", "plain/name=Ann/"),
    ],
)
def test_the_path_itself_is_a_partition_by_an_encrypted_column(
    paths: tuple[str, ...], folder: Path
) -> None:
    (folder / "plain/name=Ann").mkdir()
    write_plain(folder / "plain/name=Ann/part.parquet")
    result = invoke(folder, "encrypt", *KEYS, *paths)
    assert (result.exit_code, "ame=*" in result.stderr.lower()) == (2, True)
    assert "Ann" not in result.stderr
    assert invoke(folder, "encrypt", *KEYS, *paths, "--allow-leaks", "--force").exit_code == 0


def test_dropping_summaries_needs_a_folder(folder: Path) -> None:
    command = ("encrypt", *KEYS, "--drop-summaries", "plain/part.parquet", "x.parquet")
    result = invoke(folder, *command)
    assert (result.exit_code, "needs a folder" in result.stderr) == (2, True)


def test_checksums_of_replaced_files_are_removed(folder: Path) -> None:
    data = (folder / "plain/part.parquet").read_bytes()
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    beside = folder / "plain/.part.parquet.crc"
    beside.write_bytes(struct.pack(f">4sI{len(sums)}I", b"crc\0", 512, *sums))
    other = folder / "plain/.other.crc"
    other.write_bytes(b"crc\0")
    write_plain(folder / "plain/more.parquet")
    notes = folder / "plain/.more.parquet.crc"
    notes.write_bytes(b"notes of another program")
    run_ok(folder, "encrypt", *KEYS, "--dry-run", "--in-place", "plain")
    assert beside.exists()
    run_ok(folder, "encrypt", *KEYS, "--in-place", "plain")
    assert not beside.exists()
    assert other.exists()
    assert notes.exists()


# --- verification --------------------------------------------------------------------------------


def test_strict_verification_fails_for_leaks(folder: Path) -> None:
    command = ("verify", *KEYS, "lake")
    assert invoke(folder, *command, "--strict").exit_code == 0
    (folder / "lake/_delta_log").mkdir()
    line = json.dumps({"add": {"partitionValues": {"name": "Ann"}}})
    (folder / "lake/_delta_log/0.json").write_text(line)
    assert invoke(folder, *command).exit_code == 0
    result = invoke(folder, *command, "--strict")
    assert result.exit_code == 1
    assert "delta-log" in result.stdout
    assert "Ann" not in result.stdout
    totals = json.loads(invoke(folder, *command, "--strict", "--json").stdout.splitlines()[-1])
    assert [finding["word"] for finding in totals["findings"]] == ["plaintext"]
    assert not totals["ok"]


def test_strict_verification_of_a_plaintext_folder_looks_for_no_leaks(folder: Path) -> None:
    result = invoke(folder, "verify", "--strict", "plain")
    assert result.exit_code == 1
    assert "plaintext-parquet" not in result.stdout
