"""Many files: bounded memory, batches, and interrupted runs that are taken up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.lake import status
from modcrypt.lake.applying import application
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.lake import Lake
from modcrypt.lake.spool import BLOCK, Spool, take_batches
from modcrypt.lake.verification import dataset_check, file_check
from modcrypt.lake.verification.dataset_check import FileSet
from modcrypt.parquet.verify.file_verification import FileAad
from tests.support.lake_folder import make_lake
from tests.support.paths import ROOT

# --- results in a temporary file -----------------------------------------------------------------


@given(count=st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]))
def test_a_spool_is_a_sequence(count: int) -> None:
    items = [f"item {number}" for number in range(count)]
    spool = Spool(items)
    assert (len(spool), list(spool), spool == items) == (count, items, True)
    assert spool[: count // 2 : 3] == items[: count // 2 : 3]
    for index in {0, count // 2, count - 1, -1} if count else ():
        assert spool[index] == items[index]
    with pytest.raises(IndexError):
        spool[count]
    first, second = iter(spool), iter(spool)  # which do not disturb each other
    assert [next(first, None), next(second, None)] == [*items[:1], *items[:1]] or [None, None]
    spool.append("last")
    assert spool[-1] == "last"
    assert spool != items


def test_batches_are_taken_one_at_a_time() -> None:
    source = iter(range(5))
    batches = take_batches(source, 2)
    assert next(batches) == [0, 1]
    assert next(source) == 2
    assert list(batches) == [[3, 4]]


def test_a_set_finds_what_files_share(tmp_path: Path) -> None:
    files = FileSet()
    for number in range(2500):
        name = str(number).encode()
        files.add(f"{number}.parquet", FileAad(b"shared" if number % 2 else name, name[:2]))
    files.add("none.parquet", FileAad(None, None))
    (shared,) = files.find_shared("prefix")
    assert (shared.value, shared.count) == (b"shared", 1250)
    assert shared.list_paths().startswith("1.parquet, 3.parquet, ")
    assert shared.list_paths().endswith(" more")
    assert len(list(files.find_shared("unique"))) == 90
    assert all(group.alike and not group.rows_differ for group in files.find_shared("unique"))
    files.close()


def test_a_set_distinguishes_files_with_different_rows_from_copies() -> None:
    files = FileSet()
    sets: dict[bytes, list[tuple[int, int | None]]] = {
        b"differ": [(9, 1), (9, 2), (8, 3)],
        b"same rows": [(9, 1), (8, 1)],
        b"unknown": [(9, 1), (8, None)],
        b"copies": [(9, 1), (9, 1), (8, 2)],
    }
    for unique, shapes in sets.items():
        for number, (size, rows) in enumerate(shapes):
            files.add(f"{number}.parquet", FileAad(None, unique, size, rows))
    found = {group.value: (group.alike, group.rows_differ) for group in files.find_shared("unique")}
    assert found == {
        b"differ": (False, True),
        b"same rows": (False, False),
        b"unknown": (False, False),
        b"copies": (True, False),
    }
    files.close()


# --- batches -------------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (application, status, dataset_check):
        monkeypatch.setattr(module, "BATCH", 2)


@pytest.mark.usefixtures("small_batches")
def test_batches_change_no_result(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=3, files=3)
    done: list[int] = []
    (applied,) = Lake.open(config).apply()
    assert applied.summary() == "orders: 9 encrypted (0 of 9 files were as declared)"
    assert Lake.open(config).status()[0].counts == {"declared": 9}
    (verified,) = Lake.open(config).verify(progress=done.append)
    assert (verified.code, len(verified.files)) == (0, 9)
    assert done == sorted(done)
    assert done[-1] == sum(file.verification.size for file in verified.files)
    paths = [file.path for file in verified.files]
    assert paths == sorted(paths)


def interrupt(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int
) -> Callable[[], int]:
    """Interrupt after a number of calls; return a function that returns the number of calls."""
    real, calls = getattr(owner, name), 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return lambda: calls


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_status_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_lake(tmp_path, days=4)
    Lake.open(config).apply()
    with monkeypatch.context() as patch:
        interrupt(patch, FooterExamination, "run", 5)
        with pytest.raises(KeyboardInterrupt):
            Lake.open(config).status()
    with monkeypatch.context() as patch:
        count = interrupt(patch, FooterExamination, "run", 100)
        assert Lake.open(config).status()[0].counts == {"declared": 8}
        assert count() == 4 + 1  # the other files, and one for the KEK of those that are cached


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_verification_is_taken_up_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_lake(tmp_path, days=4)
    Lake.open(config).apply()
    assert Lake.open(config).verify()[0].code == 0
    with monkeypatch.context() as patch:
        interrupt(patch, file_check, "verify_with_plan", 6)
        with pytest.raises(KeyboardInterrupt):
            Lake.open(config).verify(jobs=1)
    (rest,) = Lake.open(config).verify(resume=True)
    assert (rest.code, rest.skipped, len(rest.files)) == (0, 4, 4)
    (again,) = Lake.open(config).verify(resume=True)  # nothing was interrupted
    assert (again.skipped, len(again.files)) == (0, 8)


# --- many files ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_level_for_many_files() -> None:
    """`python -m tools.lake_memory 1000000` measures a million in a quarter of an hour."""
    command = [sys.executable, "-m", "tools.lake_memory", "1000", "20000"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peaks: dict[str, list[int]] = {}
    for line in answer.stdout.splitlines()[1:]:
        verb, peak = line[11:24].strip(), int(line[24:].split()[0])
        peaks.setdefault(verb, []).append(peak)
    assert len(peaks) == 7
    for verb, (few, many) in peaks.items():
        assert many < few + 15, (verb, few, many)  # 19,000 states are 10 MB, and their results more
        assert many < 500


# --- listing -------------------------------------------------------------------------------------


def list_paths(config: Path) -> list[str]:
    return [file.path for file in Lake.open(config).list_files("orders")]


def test_files_are_listed_in_the_order_of_their_paths(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=0)
    names = (
        "b.parquet",
        "a/z.parquet",
        "a/b/c.parquet",
        "a.parquet",
        "a-b.parquet",
        "a0/x.parquet",
    )
    for name in (*names, "_hidden/x.parquet", ".x.parquet", "a/_SUCCESS", "a/.y/x.parquet"):
        path = tmp_path / "orders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list_paths(config) == sorted(names)


def test_links_are_listed_once(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    orders, outside = tmp_path / "orders", tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/o.parquet").touch()
    (orders / "loop").symlink_to(orders)
    (orders / "up").symlink_to(tmp_path)
    (orders / "again").symlink_to(orders / "day=2026-11-01")
    (orders / "copy.parquet").symlink_to(orders / "day=2026-11-01/part-0.parquet")
    (orders / "nowhere.parquet").symlink_to(tmp_path / "missing")
    for name in ("link", "link2"):
        (orders / name).symlink_to(outside)
    os.mkfifo(orders / "pipe.parquet")
    assert list_paths(config) == ["day=2026-11-01/part-0.parquet", "link/deep/o.parquet"]
    files = Lake.open(config).list_files("orders")
    list(files)
    assert list(files.links) == ["again", "copy.parquet", "link2", "loop", "up"]


def test_a_stamp_shows_every_change(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    path = tmp_path / "orders/day=2026-11-01/part-0.parquet"

    def stamp() -> str:
        (file,) = Lake.open(config).list_files("orders")
        assert isinstance(file, LakeFile)
        return file.stamp

    before, status = stamp(), path.stat()
    assert stamp() == before
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, time and inode
    assert stamp() != before
    changed = stamp()
    (path.parent / "_KEY_MATERIAL_FOR_part-0.parquet.json").write_text("{}")
    assert stamp().startswith(changed)
    assert stamp() != changed
