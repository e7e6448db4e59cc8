"""Rotation that is killed, fails or is not alone: every file stays readable, no key is lost."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.io.places import Place
from tests.support.cases import each_case
from tests.support.crash import (
    WRITING,
    every_step,
    failing,
    kill_at_every_step,
    meanwhile,
    run,
    run_together,
)
from tests.support.folder_contents import bytes_of
from tests.support.jobs.lake import (
    BESIDE,
    NARROW_OTHER,
    NARROW_TABLE,
    STORAGE,
    WITHIN,
    WRAPPING,
    material_file,
    read,
    results,
)
from tests.support.jobs.lake import write_lake as write_any_lake
from tests.support.kms.rotating_kms import RotatingKms

pytestmark = pytest.mark.slow  # some kill a process at each of dozens of steps

MASTERS = {"kf": 1, "k1": 1, "k2": 1}
TABLE, OTHER = NARROW_TABLE, NARROW_OTHER
write_lake = partial(write_any_lake, table=TABLE)


@pytest.fixture
def kms() -> RotatingKms:
    return RotatingKms(**MASTERS)


# --- killed at every step ------------------------------------------------------------------------

ROTATION = """
import modcrypt as mc
from tests.support.kms.rotating_kms import RotatingKms

def job(folder):
    tools, (what,) = mc.KeyTools(RotatingKms(kf=2, k1=2, k2=2)), arguments
    done = mc.jobs.rotate_keys(folder / "lake", tools, what=what, jobs=1, record=folder / "record")
    return {file.result for file in done} == {"rotated"}
"""


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_killed_at_any_step_every_file_is_readable_and_the_run_is_taken_up(
    what: Any, policy: mc.Policy, tmp_path: Path
) -> None:
    lake, count = tmp_path / "lake", 1 if what == "dek" else 2
    write_lake(lake, RotatingKms(**MASTERS), policy, count)
    current, rows = set(), pa.concat_tables([TABLE] * count)
    for found in kill_at_every_step(ROTATION, lake, what):
        kms, record = RotatingKms(kf=2, k1=2, k2=2), found.parent / "record"
        assert read(found, kms).equals(rows)
        visible = {path.name for path in found.iterdir() if not path.name.startswith(".")}
        assert visible == {path.name for path in lake.iterdir()}

        done = mc.jobs.rotate_keys(found, mc.KeyTools(kms), what=what, record=record)
        assert set(results(done)) <= {"rotated", "current"}
        current.add(results(done).count("current"))
        kms.disable_old()
        assert read(found, kms).equals(rows)
    assert current >= set(range(count))  # the last one's run may have ended


STOPPED_IN_THE_MIDDLE = """
import os, signal, sys
import modcrypt as mc
from tests.support.kms.rotating_kms import RotatingKms

def stop(file, total):
    if file.path.endswith("part-0004.parquet"):
        os.kill(os.getpid(), signal.SIGKILL)

mc.jobs.rotate_keys(sys.argv[1], mc.KeyTools(RotatingKms(kf=2, k1=2, k2=2)), jobs=2, progress=stop,
               record=sys.argv[2])
"""


@STORAGE
def test_a_killed_run_is_taken_up_where_it_was(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    paths = write_lake(lake, kms, policy, 40)
    process = run(STOPPED_IN_THE_MIDDLE, lake, record)
    process.communicate(timeout=600)
    assert process.returncode == -9
    kms.rotate()
    mc.write_table(OTHER, paths[1], mc.KeyTools(kms).encryption(policy), overwrite=True)
    before = bytes_of(lake)

    done = mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)

    assert results(done)[:5] == ["current"] * 5
    assert results(done)[-1] == "rotated"
    after = bytes_of(lake)
    for file in done:
        changed = after[file.path] != before[file.path]
        if not policy.internal_key_material:
            beside = str(material_file(Path(file.path)))
            changed = after[beside] != before[beside]
        assert changed == (file.result == "rotated")
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)) == ["current"] * 40
    kms.disable_old()
    assert read(paths[1], kms).equals(OTHER)
    assert all(read(path, kms).equals(TABLE) for path in paths[2:])


# --- the order of what is written ----------------------------------------------------------------


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_what_takes_a_place_is_synced_before_and_its_folder_afterwards(
    what: Any, policy: mc.Policy, tmp_path: Path, kms: RotatingKms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A power failure can lose what was not synced, and rename may come first."""
    (path,) = write_lake(tmp_path, kms, policy, 1)
    kms.rotate()
    trace: list[tuple[str, int]] = []

    def inode_of(what: Any) -> int:  # a file has no name until it is complete
        return os.stat(what).st_ino

    for name in ("write", "copy_file_range", "fsync", "replace"):
        real = getattr(os, name)

        def noting(*arguments: Any, _real: Any = real, _name: str = name, **options: Any) -> Any:
            trace.append((_name, inode_of(arguments[_name == "copy_file_range"])))
            return _real(*arguments, **options)

        monkeypatch.setattr(os, name, noting)
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)) == ["rotated"]

    replaced = [at for at, (name, _) in enumerate(trace) if name == "replace"]
    assert replaced
    for at in replaced:
        temporary = trace[at][1]
        about = [name for name, where in trace[:at] if where == temporary]
        assert about[-1] == "fsync"
        assert about.count("fsync") == 1
        assert not [name for name, where in trace[at + 1 :] if where == temporary]
        assert trace[at + 1] == ("fsync", inode_of(tmp_path))
    if what != "dek":  # which replaces the file and, twice, its external material
        assert sum(name == "fsync" for name, _ in trace) == 2


# --- disks that fail -----------------------------------------------------------------------------


@STORAGE
@each_case("what", ["mek", "kek", "dek"])
@each_case(
    ("name", "error"),
    [
        ("write", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("replace", errno.EACCES),
        ("fchmod", errno.EPERM),
    ],
)
def test_a_disk_that_fails_leaves_the_old_file(
    what: Any, name: str, error: int, policy: mc.Policy, tmp_path: Path, kms: RotatingKms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lake, record = tmp_path / "lake", tmp_path / "record.jsonl"
    paths = write_lake(lake, kms, policy)
    before = bytes_of(lake)
    kms.rotate()
    with monkeypatch.context() as patch:
        failing(patch, name, error, 0)
        done = mc.jobs.rotate_keys(lake, mc.KeyTools(kms), what=what, record=record)
    assert results(done) == ["file"] * 3
    assert all(os.strerror(error) in file.message for file in done)
    assert bytes_of(lake) == before
    assert results(mc.jobs.rotate_keys(lake, mc.KeyTools(kms), what=what, record=record)) == (
        ["rotated"] * 3
    )
    assert all(read(path, kms).equals(TABLE) for path in paths)


@STORAGE
def test_a_folder_that_cannot_be_synced_is_no_failure(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_lake(tmp_path, kms, policy)
    kms.rotate()
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, "no folders")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["rotated"] * 3
    kms.disable_old()
    assert all(read(path, kms).equals(TABLE) for path in paths)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@STORAGE
@pytest.mark.parametrize("size", [0, 100, 1000])
def test_the_systems_own_limit_leaves_the_old_file(
    size: int, policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    """The kernel cuts writes and copies short, then refuses them."""
    paths = write_lake(tmp_path, kms, policy)
    before = bytes_of(tmp_path)
    kms.rotate()
    with file_size_limit(size):
        done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
    assert results(done) == ["file"] * 3
    assert bytes_of(tmp_path) == before
    assert all(read(path, kms).equals(TABLE) for path in paths)


def test_a_record_that_cannot_be_written_ends_the_run_with_every_file_whole(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, record = tmp_path / "lake", tmp_path / "record"
    paths = write_lake(lake, kms, WITHIN)
    kms.rotate()
    real = os.fdopen

    class Full(io.RawIOBase):
        def write(self, _data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(record))

    def fdopen(fd: int, *arguments: Any, **options: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}") != str(record):
            return real(fd, *arguments, **options)
        os.close(fd)
        return Full()

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(OSError, match="No space left"):
        mc.jobs.rotate_keys(lake, mc.KeyTools(kms), record=record)
    assert all(read(path, kms).equals(TABLE) for path in paths)
    assert {path.name for path in lake.iterdir()} == {path.name for path in paths}


def test_a_source_that_shrinks_while_it_is_copied_is_left_alone(
    tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_lake(tmp_path, kms, WITHIN, 1)
    kms.rotate()
    real = os.copy_file_range

    def shrinking(source: int, *arguments: Any) -> int:
        os.truncate(path, 500)
        return real(source, *arguments)

    monkeypatch.setattr(os, "copy_file_range", shrinking)
    assert results(mc.jobs.rotate_keys(path, mc.KeyTools(kms))) == ["truncation"]
    assert path.stat().st_size == 500
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


# --- two rotations at once -----------------------------------------------------------------------

HARMLESS = {"rotated", "current", "key-material", "file"}
"""What a rotation may say of a file that another one has just rotated."""


@STORAGE
def test_threads_that_rotate_the_same_folder(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path, kms, policy, 20)
    kms.rotate()
    said: list[list[mc.jobs.RotatedFile]] = []
    barrier = threading.Barrier(3)

    def rotate(what: Any) -> None:
        barrier.wait()
        said.append(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what, jobs=2))

    threads = [threading.Thread(target=rotate, args=(what,)) for what in ("mek", "kek", "mek")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_rotated(paths, kms, said)


def check_rotated(
    paths: list[Path], kms: RotatingKms, said: list[list[mc.jobs.RotatedFile]]
) -> None:
    """Each file was rotated by somebody, and is whole."""
    assert len(said) == 3
    for files in zip(*said, strict=True):
        assert "rotated" in results(list(files))
        assert set(results(list(files))) <= HARMLESS
    names = {path.name for path in paths} | {material_file(path).name for path in paths}
    assert {path.name for path in paths[0].parent.iterdir()} <= names
    kms.disable_old()
    for path in paths:
        assert read(path, kms).equals(TABLE)
    assert results(mc.jobs.rotate_keys(paths[0].parent, mc.KeyTools(kms))) == ["current"] * len(
        paths
    )


IN_A_PROCESS = """
import json, sys
import modcrypt as mc
from tests.support.kms.rotating_kms import RotatingKms

tools = mc.KeyTools(RotatingKms(kf=2, k1=2, k2=2))
print("ready", flush=True)
sys.stdin.readline()
done = mc.jobs.rotate_keys(sys.argv[1], tools, what=sys.argv[2], jobs=2)
print(json.dumps([[file.path, file.result, file.message] for file in done]))
"""


@STORAGE
def test_processes_that_rotate_the_same_folder(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path, kms, policy, 20)
    printed = run_together(IN_A_PROCESS, *((tmp_path, what) for what in ("mek", "kek", "mek")))
    said = [
        [mc.jobs.RotatedFile(path=p, result=r, message=m) for p, r, m in files] for files in printed
    ]
    kms.rotate()
    check_rotated(paths, kms, said)


# --- a writer at the same time -------------------------------------------------------------------


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_a_writer_that_replaces_a_file_at_any_step_of_its_rotation_wins(
    what: Any, policy: mc.Policy, tmp_path: Path
) -> None:
    (prepared,) = write_lake(tmp_path / "lake", RotatingKms(**MASTERS), policy, 1)

    def attempt(step: int) -> list[str]:
        kms = RotatingKms(**MASTERS)
        path = shutil.copytree(prepared.parent, tmp_path / f"{step}") / prepared.name
        failures: list[BaseException] = []

        def replace() -> None:
            try:
                encryption = mc.KeyTools(kms).encryption(policy)
                mc.write_table(OTHER, path, encryption, overwrite=True)
            except mc.errors.KeyMaterialError as error:  # a rotation under way; try again, it says
                failures.append(error)

        kms.rotate()
        # Between the last look at the file and the rename there is nothing to be done.
        gap = () if not policy.internal_key_material and what != "dek" else ("replace",)
        with meanwhile("modcrypt-job", step, replace, gap) as seen:
            (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)
        # The old file's keys are looked for in the new one's key material, and don't fit.
        assert file.result in HARMLESS | {"tag"}
        replaced = len(seen.steps) > step and not failures
        rows = read(path, kms)
        # Where both have gone on at once, "dek" may have come last: a file for a file.
        assert rows.equals(OTHER if replaced else TABLE) or (what == "dek" and seen.waited)
        hidden = [file.name for file in path.parent.iterdir() if file.name.startswith(".")]
        assert not hidden
        again = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)
        assert set(results(again)) <= {"rotated", "current"}
        kms.disable_old()
        assert read(path, kms).equals(rows)
        return seen.steps

    assert len(every_step(attempt)) > 5


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_a_file_that_is_overwritten_in_place_is_never_replaced_by_an_older_one(
    what: Any, tmp_path: Path
) -> None:
    """As PyArrow writes, and `cp` does."""

    def attempt(step: int) -> list[str]:
        kms = RotatingKms(**MASTERS)
        (path,) = write_lake(tmp_path / f"{step}", kms, WITHIN, 1)
        newer = path.with_name(".newer")
        mc.write_table(OTHER, newer, mc.KeyTools(kms).encryption(WITHIN))
        data = newer.read_bytes()
        kms.rotate()
        with meanwhile("modcrypt-job", step, lambda: path.write_bytes(data), ("replace",)) as seen:
            mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)
        reached = len(seen.steps) > step
        assert read(path, kms).equals(OTHER if reached else TABLE)
        return seen.steps

    assert len(every_step(attempt)) > 5


@STORAGE
@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_a_rotation_at_any_step_of_a_writer_loses_nothing(
    what: Any, policy: mc.Policy, tmp_path: Path
) -> None:
    (prepared,) = write_lake(tmp_path / "lake", RotatingKms(**MASTERS), policy, 1)

    def attempt(step: int) -> list[str]:
        kms = RotatingKms(**MASTERS)
        path = shutil.copytree(prepared.parent, tmp_path / f"{step}") / prepared.name
        said: list[mc.jobs.RotatedFile] = []

        def rotate() -> None:
            said.extend(mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what))

        kms.rotate()
        encryption, expected = mc.KeyTools(kms).encryption(policy), OTHER
        with meanwhile(threading.main_thread().name, step, rotate) as seen:
            try:
                mc.write_table(OTHER, path, encryption, overwrite=True)
            except mc.errors.KeyMaterialError:
                expected = TABLE
        assert {file.result for file in said} <= HARMLESS
        rows = read(path, kms)
        assert rows.equals(expected) or (what == "dek" and seen.waited)
        again = mc.jobs.rotate_keys(path, mc.KeyTools(kms), what=what)
        assert set(results(again)) <= {"rotated", "current"}
        kms.disable_old()
        assert read(path, kms).equals(rows)
        return seen.steps

    assert len(every_step(attempt)) > 5


def test_who_locks_a_file_of_a_folder_keeps_rotation_of_external_material_out(
    tmp_path: Path, kms: RotatingKms
) -> None:
    paths = write_lake(tmp_path, kms, BESIDE)
    kms.rotate()
    before, done = bytes_of(tmp_path), threading.Event()

    def rotate() -> None:
        mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))
        done.set()

    thread = threading.Thread(target=rotate)
    with Place(None, str(paths[0])).lock():
        thread.start()
        assert not done.wait(0.3)
        assert {name: v for name, v in bytes_of(tmp_path).items() if "/." not in name} == before
    thread.join()
    assert all(read(path, kms).equals(TABLE) for path in paths)
    assert bytes_of(tmp_path) != before


@STORAGE
def test_a_folder_under_rotation_is_read_all_the_time(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms
) -> None:
    write_lake(tmp_path, kms, policy, 4)
    stop, failures = threading.Event(), []

    def watch() -> None:
        try:
            while not stop.is_set():
                rows = mc.read_table(tmp_path, mc.KeyTools(kms).decryption())
                assert rows.num_rows == 4 * TABLE.num_rows
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        kms.rotate()
        for what in WRAPPING:
            done = mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms), what=what)
            assert results(done) == ["rotated"] * 4
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


# --- the cost ------------------------------------------------------------------------------------


@STORAGE
def test_a_small_file_costs_few_calls_of_the_system(
    policy: mc.Policy, tmp_path: Path, kms: RotatingKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100
    write_lake(tmp_path, kms, policy, 1)
    (first,) = tmp_path.glob("*.parquet")
    for n in range(1, count):  # each with material of its own, all under the same KEKs
        copy = first.with_name(f"part-{n:04}.parquet")
        shutil.copy(first, copy)
        if not policy.internal_key_material:
            shutil.copy(material_file(first), material_file(copy))
    calls: dict[str, int] = {}
    lock = threading.Lock()
    for name in (*WRITING, "stat", "fstat", "listdir", "scandir"):
        real = getattr(os, name)

        def counting(*arguments: Any, _real: Any = real, _name: str = name, **options: Any) -> Any:
            with lock:
                calls[_name] = calls.get(_name, 0) + 1
            return _real(*arguments, **options)

        monkeypatch.setattr(os, name, counting)
    kms.rotate()
    kms.calls.clear()
    assert results(mc.jobs.rotate_keys(tmp_path, mc.KeyTools(kms))) == ["rotated"] * count
    assert kms.count("wrap") == 3
    assert calls["fsync"] == 2 * count
    assert calls["replace"] == count
    assert calls["open"] <= 7 * count + 20  # one of a file looks for a checksum of Hadoop
    assert sum(calls.values()) <= 30 * count + 100
