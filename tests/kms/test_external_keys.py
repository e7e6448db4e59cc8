"""External key material: whatever goes wrong, the file that is there has its keys beside it.

Who judges: modcrypt's reader, PyArrow's, and one that takes only `cryptography` to the material,
as parquet-java does.
"""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.errors import KeyMaterialError
from modcrypt.io.locks import lock
from modcrypt.io.sinks import FdSink
from modcrypt.kms import external_keys
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.pkmt1 import external, material
from modcrypt.pkmt1.material import external_name
from tests.support.cases import each_case
from tests.support.cli.forked import as_process
from tests.support.kms.memory_kms import MASTERS, MemoryKms, PyArrowKms
from tests.support.paths import ROOT
from tests.support.pkmt1 import open_data_key, unwrap_by

KEYS: dict[str, Any] = {"footer_key": "kf", "column_keys": {"kc1": ["a"], "kc2": ["b"]}}
POLICY = mc.Policy(**KEYS, internal_key_material=False)
SINGLE = replace(POLICY, double_wrapping=False)
INTERNAL = replace(POLICY, internal_key_material=True)
OLD = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.5, 1.5, 2.5]})
NEW = pa.table({"a": [7], "b": ["new"], "c": [9.5]})

both_wrappings = pytest.mark.parametrize("policy", [POLICY, SINGLE], ids=["double", "single"])


def tools() -> mc.KeyTools:
    """Return key tools with empty caches."""
    return mc.KeyTools(MemoryKms())


def beside(path: Path) -> Path:
    return path.with_name(external_name(path.name))


def store_of(path: Path) -> dict[str, dict[str, Any]]:
    return {name: json.loads(text) for name, text in json.loads(beside(path).read_text()).items()}


def write(table: pa.Table, path: Path, policy: mc.Policy = POLICY, **options: Any) -> None:
    mc.write_table(table, path, tools().encryption(policy), **options)


def read(path: Path) -> pa.Table:
    return mc.read_table(path, tools().decryption())


def read_with_pyarrow(path: Path) -> pa.Table:
    properties = pe.CryptoFactory(PyArrowKms).file_decryption_properties(
        pe.KmsConnectionConfig(), parquet_file_path=str(path)
    )
    return pq.read_table(path, decryption_properties=properties)


def read_by_hand(path: Path) -> pa.Table:
    """Read with keys that `cryptography` unwraps from the material, as parquet-java would."""
    store = store_of(path)

    def retrieve(metadata: bytes) -> bytes:
        reference = json.loads(metadata)
        assert reference["internalStorage"] is False
        return open_data_key(store[reference["keyReference"]], unwrap_by(MASTERS))

    return mc.read_table(path, mc.FileDecryptionProperties(key_retriever=retrieve))


def check(path: Path, *tables: pa.Table) -> pa.Table:
    """Check that each reader reads one of these tables; return it."""
    found = read(path)
    assert any(found.equals(table) for table in tables)
    assert read_with_pyarrow(path).equals(found)
    assert read_by_hand(path).equals(found)
    return found


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what lies beside -----------------------------------------------------------------------------


@both_wrappings
def test_a_file_has_its_material_beside_it_and_every_reader_reads_it(
    policy: mc.Policy, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path, policy)
    check(path, OLD)
    assert files_in(tmp_path) == ["_KEY_MATERIAL_FOR_a.parquet.json", "a.parquet"]
    store = store_of(path)
    assert store["footerKey"]["isFooterKey"] is True, "parquet-java rotates no file without it"
    assert {material["masterKeyID"] for material in store.values()} == {"kf", "kc1", "kc2"}
    assert b"wrappedDEK" not in path.read_bytes()


@both_wrappings
@pytest.mark.parametrize("times", [1, 5])
def test_a_replaced_file_leaves_nothing_of_its_keys(
    times: int, policy: mc.Policy, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    for _ in range(times):
        write(OLD, path, policy)
    first = {material["wrappedDEK"] for material in store_of(path).values()}
    write(NEW, path, policy)
    check(path, NEW)
    store = store_of(path)
    assert not first & {material["wrappedDEK"] for material in store.values()}
    assert len({material["wrappedDEK"] for material in store.values()}) == 3
    assert files_in(tmp_path) == ["_KEY_MATERIAL_FOR_a.parquet.json", "a.parquet"]


def test_a_file_of_pyarrows_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    properties = pe.CryptoFactory(PyArrowKms).file_encryption_properties(
        pe.KmsConnectionConfig(),
        pe.EncryptionConfiguration(
            footer_key="kf",
            column_keys={"kc1": ["a"], "kc2": ["b"]},
            internal_key_material=False,
        ),
        parquet_file_path=str(path),
    )
    pq.write_table(OLD, path, encryption_properties=properties)
    theirs = store_of(path)
    assert set(theirs) >= {"footerKey", "columnKey0", "columnKey1"}
    assert read(path).equals(OLD)
    write(NEW, path)
    check(path, NEW)
    ours = {material["wrappedDEK"] for material in store_of(path).values()}
    assert not ours & {material["wrappedDEK"] for material in theirs.values()}


def test_a_file_that_was_moved_without_its_material_says_so(tmp_path: Path) -> None:
    path, moved = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(OLD, path)
    path.rename(moved)
    with pytest.raises(KeyMaterialError, match=r"_KEY_MATERIAL_FOR_b\.parquet\.json.*moved"):
        read(moved)
    beside(path).rename(beside(moved))
    check(moved, OLD)


@both_wrappings
def test_another_version_of_a_file_says_so(policy: mc.Policy, tmp_path: Path) -> None:
    """One that came back from a backup, or was copied here, without its material."""
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(OLD, path, policy)
    data = path.read_bytes()
    write(NEW, path, policy)
    write(NEW, other, policy)
    for file in (path, other):
        file.write_bytes(data)
        with pytest.raises(KeyMaterialError, match="another"):
            read(file)


def test_a_file_object_or_bytes_have_nothing_beside_them(tmp_path: Path) -> None:
    write(OLD, tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for source in (data, io.BytesIO(data)):
        with pytest.raises(KeyMaterialError, match="path or URL"):
            mc.read_table(source, tools().decryption())


def test_material_has_the_mode_of_other_new_files_and_keeps_a_stricter_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    old = os.umask(0o027)
    try:
        write(OLD, path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(beside(path).stat().st_mode) == 0o640
    beside(path).chmod(0o600)
    write(NEW, path)
    assert stat.S_IMODE(beside(path).stat().st_mode) == 0o600


def test_internal_material_over_external_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path)
    write(NEW, path, INTERNAL)
    assert read(path).equals(NEW)
    write(OLD, path)
    check(path, OLD)


# --- symbolic links -------------------------------------------------------------------------------


def test_a_link_is_read_with_the_material_of_what_it_leads_to(tmp_path: Path) -> None:
    real, link = tmp_path / "real.parquet", tmp_path / "links" / "link.parquet"
    link.parent.mkdir()
    write(OLD, real)
    link.symlink_to(real)
    assert read(link).equals(OLD)
    # Stores that keep blobs under other names have a link for the material, too.
    beside(link).symlink_to(beside(real))
    check(link, OLD)


def test_what_is_written_through_a_link_is_readable_both_ways(tmp_path: Path) -> None:
    real, link = tmp_path / "real.parquet", tmp_path / "links" / "link.parquet"
    link.parent.mkdir()
    write(OLD, real)
    link.symlink_to(real)
    write(NEW, link)
    assert link.is_symlink()
    check(real, NEW)
    assert read(link).equals(NEW)
    write(OLD, real)
    assert read(link).equals(OLD)


def test_a_link_to_nothing_is_written_through(tmp_path: Path) -> None:
    real, link = tmp_path / "real.parquet", tmp_path / "link.parquet"
    link.symlink_to(real)
    write(OLD, link)
    check(real, OLD)
    assert read(link).equals(OLD)


# --- not replaced ---------------------------------------------------------------------------------


@each_case("policy", [POLICY, SINGLE, INTERNAL], ids=["double", "single", "internal"])
@each_case("how", ["write_table", "ParquetWriter", "encrypt_parquet"])
def test_a_file_that_is_not_to_be_replaced_costs_no_call_and_stays_with_its_material(
    how: str, policy: mc.Policy, tmp_path: Path
) -> None:
    path, plain = tmp_path / "a.parquet", tmp_path / "plain"
    pq.write_table(NEW, plain)
    write(OLD, path)
    before = {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()
    }
    kms = MemoryKms()
    encryption = mc.KeyTools(kms).encryption(policy)
    begin: dict[str, Callable[[], object]] = {
        "write_table": lambda: mc.write_table(NEW, path, encryption, overwrite=False),
        "ParquetWriter": lambda: mc.ParquetWriter(path, NEW.schema, encryption, overwrite=False),
        "encrypt_parquet": lambda: mc.encrypt_parquet(plain, path, encryption, overwrite=False),
    }
    with pytest.raises(FileExistsError):
        begin[how]()
    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    assert after == before
    assert kms.calls == []
    check(path, OLD)


def test_a_file_that_appears_meanwhile_stays_with_its_material(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    late = mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY), overwrite=False)
    late.write_table(NEW)
    write(OLD, path)
    with pytest.raises(FileExistsError):
        late.close()
    check(path, OLD)
    assert len({material["wrappedDEK"] for material in store_of(path).values()}) == 3


def test_material_without_its_file_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path)
    path.unlink()
    write(NEW, path, overwrite=False)
    check(path, NEW)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "is not a string": lambda store: store.write_text(
        json.dumps({**json.loads(store.read_text()), "comment": {"by": "another tool"}})
    ),
    "cut short": lambda store: store.write_bytes(store.read_bytes()[:-1]),
    "empty": lambda store: store.write_bytes(b""),
    "a list": lambda store: store.write_text("[]"),
    "too large": lambda store: os.truncate(store, 1 << 40),
    "a member twice": lambda store: store.write_text(
        '{"x":"1",' + store.read_text()[1:-1] + ',"x":"1"}'
    ),
}


@each_case("damage", DAMAGED)
@each_case("overwrite", [True, False])
def test_material_that_is_not_understood_is_never_touched(
    damage: str, overwrite: bool, tmp_path: Path
) -> None:
    """Somebody may still make sense of it, by hand or with another reader."""
    path = tmp_path / "a.parquet"
    write(OLD, path)
    DAMAGED[damage](beside(path))
    size, inode = beside(path).stat().st_size, beside(path).stat().st_ino
    data = beside(path).read_bytes() if size < 1 << 20 else b""
    kms = MemoryKms()
    with pytest.raises((KeyMaterialError, FileExistsError)) as caught:
        mc.write_table(NEW, path, mc.KeyTools(kms).encryption(POLICY), overwrite=overwrite)
    if isinstance(caught.value, KeyMaterialError):
        assert str(beside(path)) in str(caught.value)
    assert kms.calls == []
    assert (beside(path).stat().st_size, beside(path).stat().st_ino) == (size, inode)
    if size < 1 << 20:
        assert beside(path).read_bytes() == data


@pytest.mark.parametrize("damage", DAMAGED)
def test_material_that_is_damaged_is_an_error_that_names_it(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path)
    DAMAGED[damage](beside(path))
    with pytest.raises(KeyMaterialError, match="_KEY_MATERIAL_FOR_a"):
        read(path)


def test_material_that_can_not_be_read_is_an_oserror_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path)
    beside(path).unlink()
    beside(path).mkdir()
    with pytest.raises(OSError, match="_KEY_MATERIAL_FOR_a"):
        read(path)
    with pytest.raises(OSError, match="_KEY_MATERIAL_FOR_a"):
        write(NEW, path)
    assert beside(path).is_dir()


# --- given up -------------------------------------------------------------------------------------


class GivenUpError(Exception):
    """The caller's own."""


def fail_after(
    rows: int, path: Path, policy: mc.Policy, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Write some rows and raise an error within the block."""
    with mc.ParquetWriter(path, NEW.schema, tools().encryption(policy), threads=1) as writer:
        if rows:
            writer.write_table(NEW)
        assert beside(path).exists()
        meanwhile()
        raise GivenUpError


@both_wrappings
@each_case("there", [False, True], ids=["fresh", "replacing"])
@each_case("rows", [0, 3])
def test_an_error_in_the_block_leaves_what_was_there(
    rows: int, there: bool, policy: mc.Policy, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path, policy)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(GivenUpError):
        fail_after(rows, path, policy)
    assert files_in(tmp_path) == sorted(before)
    if there:
        assert path.read_bytes() == before["a.parquet"]
        assert store_of(path) == {
            name: json.loads(text) for name, text in json.loads(before[beside(path).name]).items()
        }
        check(path, OLD)


@pytest.mark.parametrize("there", [False, True], ids=["fresh", "replacing"])
def test_a_writer_that_nobody_closes_leaves_what_was_there(there: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path)
    before = files_in(tmp_path)
    store = store_of(path) if there else {}
    writer = mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY), threads=1)
    writer.write_table(NEW)
    del writer
    gc.collect()
    assert files_in(tmp_path) == before
    if there:
        assert store_of(path) == store
        check(path, OLD)


@pytest.mark.parametrize("there", [False, True], ids=["fresh", "replacing"])
def test_data_that_does_not_encode_leaves_what_was_there(there: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path)
    before = files_in(tmp_path)
    source = tmp_path.parent / f"{tmp_path.name}.source"
    pq.write_table(OLD, source, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(source.read_bytes())
    data[data.index(b"\1\0\0\0y") + 4] ^= 1  # a value, so that the page's CRC does not fit
    with pytest.raises(mc.errors.ChecksumError):
        mc.encrypt_parquet(bytes(data), path, tools().encryption(POLICY))
    assert files_in(tmp_path) == before
    if there:
        check(path, OLD)


@pytest.mark.parametrize("there", [False, True], ids=["fresh", "replacing"])
@pytest.mark.parametrize("master", ["kf", "kc1", "kc2"])
def test_a_refused_key_leaves_what_was_there(master: str, there: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path)
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    kms = MemoryKms()
    kms.denied.add(master)
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        mc.write_table(NEW, path, mc.KeyTools(kms).encryption(POLICY))
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("fails", ["function", "later batch", "close"])
def test_a_dataset_that_fails_leaves_neither_files_nor_material(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tools()

    def how(path: str) -> Any:
        if fails == "function" and "2" in path:
            raise GivenUpError
        return shared.encryption(POLICY)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from OLD.to_batches()
        if fails == "later batch":
            raise GivenUpError

    if fails == "close":
        publish = os.replace

        def refuse(old: str, new: str, **folders: int) -> None:
            if new.endswith("part-2.parquet"):
                raise GivenUpError
            publish(old, new, **folders)

        def no_links(*_: str, **folders: int) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "replace", refuse)
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(GivenUpError):
        mc.write_dataset(batches(), tmp_path / "lake", how, schema=OLD.schema, max_rows_per_file=1)
    assert files_in(tmp_path / "lake") == []


# --- the disk -------------------------------------------------------------------------------------


def full(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def writes_to_material(policy: mc.Policy, folder: Path, there: bool) -> list[str]:
    """Return the destinations of all writes of one call, in order."""
    seen: list[str] = []
    append = FdSink.append
    with pytest.MonkeyPatch.context() as patch:

        def noting(self: FdSink, data: Any) -> None:
            seen.append(os.path.basename(self._name))
            append(self, data)

        if there:
            write(OLD, folder / "a.parquet", policy)
        patch.setattr(FdSink, "append", noting)
        write(NEW, folder / "a.parquet", policy)
    for file in folder.iterdir():
        file.unlink()
    return seen


@both_wrappings
@each_case("there", [False, True], ids=["fresh", "replacing"])
@each_case("lasting", [False, True], ids=["once", "from then on"])
def test_a_full_disk_at_any_write_leaves_a_readable_file_or_none(
    lasting: bool, there: bool, policy: mc.Policy, tmp_path: Path
) -> None:
    writes = writes_to_material(policy, tmp_path, there)
    assert writes[0] == "_KEY_MATERIAL_FOR_a.parquet.json"
    assert "a.parquet" in writes
    path = tmp_path / "a.parquet"
    for number in range(len(writes)):
        for file in tmp_path.iterdir():
            file.unlink()
        if there:
            write(OLD, path, policy)
        count = 0
        append = FdSink.append

        def failing(self: FdSink, data: Any, number: int = number, append: Any = append) -> None:
            nonlocal count
            count += 1
            if count == number + 1 or (lasting and count > number):
                full()
            append(self, data)

        published = number > max(n for n, name in enumerate(writes) if name == "a.parquet")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FdSink, "append", failing)
            if published:  # what is left to do then is no reason to call it a failure
                write(NEW, path, policy)
            else:
                with pytest.raises(OSError, match="No space left"):
                    write(NEW, path, policy)
        if published:
            check_left(path, NEW)
        elif there:
            check(path, OLD)
        else:
            assert not path.exists()
        assert not [name for name in files_in(tmp_path) if name.endswith(".tmp")]
        # And it can go on when there is room again.
        write(NEW, path, policy)
        check(path, NEW)


def test_the_first_error_is_the_one_that_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    write(OLD, path)
    with pytest.raises(GivenUpError):
        fail_after(0, path, POLICY, lambda: monkeypatch.setattr(FdSink, "append", full))
    monkeypatch.undo()
    check(path, OLD)


# --- several at once ------------------------------------------------------------------------------


@each_case("there", [False, True], ids=["fresh", "replacing"])
@each_case("order", ["0011", "0101", "0110", "0220", "01021", "010212", "2010"])
def test_writers_that_take_turns_leave_a_readable_file_after_each_step(
    order: str, there: bool, tmp_path: Path
) -> None:
    """Each digit begins that writer's file or, the second time, publishes it."""
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path)
    under_way: dict[str, mc.ParquetWriter] = {}
    expected = OLD if there else None
    for who in order:
        table = NEW.slice(0, 1).set_column(0, "a", pa.array([int(who)]))
        if who in under_way:
            under_way.pop(who).close()
            expected = table
        else:
            writer = mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY), threads=1)
            writer.write_table(table)
            under_way[who] = writer
        if expected is not None:
            check(path, expected)
            assert "footerKey" in store_of(path)
    for writer in under_way.values():
        writer.__exit__(GivenUpError, GivenUpError(), None)
    if expected is None:
        assert files_in(tmp_path) == []
    else:
        check(path, expected)
        assert len(store_of(path)) <= (3 if there else 6)


@pytest.mark.parametrize("there", [False, True], ids=["fresh", "replacing"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_writer_that_gives_up_takes_nothing_from_another(
    first: int, there: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    if there:
        write(OLD, path)
    pair = [mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY)) for _ in range(2)]
    for writer in pair:
        writer.write_table(NEW)
    for n in (first, 1 - first):
        if n == 0:
            pair[n].__exit__(GivenUpError, GivenUpError(), None)
        else:
            pair[n].close()
    check(path, NEW)
    assert "footerKey" in store_of(path)


def test_two_changes_of_the_material_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first stands between reading the material and writing it."""
    path = tmp_path / "a.parquet"
    write(OLD, path)
    second: list[mc.ParquetWriter] = []

    def begin() -> None:
        second.append(mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY), threads=1))

    other, asks = threading.Thread(target=begin), threading.Event()
    write_store = external.write_store

    def note_lock(fd: int) -> None:
        if threading.current_thread() is other and not asks.is_set():
            with pytest.raises(BlockingIOError):
                lock(fd, wait=False)
            asks.set()
        lock(fd)

    def slow(*arguments: Any) -> None:
        if not other.ident:
            other.start()
            assert asks.wait(60)
        write_store(*arguments)

    monkeypatch.setattr("modcrypt.io.places.lock", note_lock)
    monkeypatch.setattr(external_keys, "write_store", slow)
    first = mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY), threads=1)
    other.join()
    assert len({material["wrappedDEK"] for material in store_of(path).values()}) == 9, (
        "of three files"
    )
    for writer in (first, *second):
        writer.write_table(NEW)
        writer.close()
        check(path, NEW)


@both_wrappings
def test_threads_at_one_path_leave_a_readable_file(policy: mc.Policy, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    start = threading.Barrier(6)
    shared = tools()

    def many(who: int) -> None:
        start.wait()
        for n in range(5):
            table = NEW.set_column(0, "a", pa.array([100 * who + n]))
            mc.write_table(table, path, shared.encryption(policy))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(many, range(6)))
    found = read(path)
    check(path, found)
    assert found.column("a").to_pylist()[0] % 100 == 4
    assert not [name for name in files_in(tmp_path) if name.endswith(".tmp")]


def test_threads_at_neighbours_leave_each_its_own(tmp_path: Path) -> None:
    """Files of one folder share a lock, and nothing else."""
    shared = tools()

    def many(n: int) -> None:
        for _ in range(3):
            mc.write_table(OLD.slice(n % 3), tmp_path / f"{n}.parquet", shared.encryption(POLICY))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))
    for n in range(8):
        check(tmp_path / f"{n}.parquet", OLD.slice(n % 3))


IN_A_PROCESS = f"""
import itertools, os, shutil, signal, sys
from pathlib import Path
import pyarrow as pa
import modcrypt as mc
from modcrypt.io import places, publication, sinks
from tests.support.kms.memory_kms import MemoryKms
NEW = pa.table({NEW.to_pydict()!r})
POLICY = mc.Policy(**{KEYS!r}, internal_key_material=False)
"""
"""What the scripts begin with; to import this module takes four times as long."""

WRITING = """
path, who = Path(sys.argv[1]), int(sys.argv[2])
tools = mc.KeyTools(MemoryKms())
for n in range(8):
    table = NEW.set_column(0, "a", pa.array([100 * who + n]))
    mc.write_table(table, path, tools.encryption(POLICY))
"""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        **as_process(command, dict(os.environ)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_at_one_path_leave_a_readable_file_at_any_time(tmp_path: Path) -> None:
    """A reader may meet the moment of a change: then it says so, and reads when it asks again."""
    path = tmp_path / "a.parquet"
    write(NEW.set_column(0, "a", pa.array([4])), path)
    processes = [run(IN_A_PROCESS + WRITING, path, who) for who in range(3)]
    reads = 0
    while any(process.poll() is None for process in processes):
        for attempt in range(50):
            try:
                assert read(path).num_rows == 1
                break
            except (KeyMaterialError, mc.errors.TagMismatchError):
                assert attempt < 49, "the file stays unreadable"
        reads += 1
    for process in processes:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    assert reads > 0
    found = check(path, read(path))
    assert found.column("a").to_pylist()[0] % 100 == 7


# --- the process ends -----------------------------------------------------------------------------

KILLED_AT_EVERY_STEP = """
before, steps, how, last = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], 0
count = 0

def dying(function):
    def call(*arguments, **options):
        tick()
        answer = function(*arguments, **options)
        tick()
        return answer
    return call

def tick():
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

sinks.FdSink.append = dying(sinks.FdSink.append)
publication.publish = dying(publication.publish)
publication.fsync_folder = dying(publication.fsync_folder)
places.Place.remove = dying(places.Place.remove)
os.fsync = dying(os.fsync)

def work(path):
    encryption = mc.KeyTools(MemoryKms()).encryption(POLICY)
    writer = mc.ParquetWriter(path, NEW.schema, encryption, threads=1)
    if how == "write":
        writer.write_table(NEW)
        writer.close()
    else:
        writer.__exit__(KeyError, KeyError(), None)

work(shutil.copytree(before, steps / "first") / "a.parquet")  # imports on the way are for all
shutil.rmtree(steps / "first")
count = 0
for last in itertools.count(1):
    folder = shutil.copytree(before, steps / f"{last:04}")
    child = os.fork()
    if not child:
        work(folder / "a.parquet")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != -signal.SIGKILL:
        shutil.rmtree(folder)
        sys.exit(status)
"""


def kill_at_every_step(tmp_path: Path, how: str, there: bool) -> list[Path]:
    """Begin a call in one folder after another, killed a step later in each; return the files."""
    before, steps = tmp_path / "before", tmp_path / "steps"
    before.mkdir()
    if there:
        write(OLD, before / "a.parquet")
    process = run(IN_A_PROCESS + KILLED_AT_EVERY_STEP, before, steps, how)
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    return [folder / "a.parquet" for folder in sorted(steps.iterdir())]


def check_left(path: Path, *tables: pa.Table) -> pa.Table:
    """Check that modcrypt reads one of these tables, and others that one or nothing.

    Between publication and what comes after it others have no key of the new file.
    """
    found = read(path)
    assert any(found.equals(table) for table in tables)
    for reader in (read_with_pyarrow, read_by_hand):
        try:
            assert reader(path).equals(found)
        except (OSError, mc.ModcryptError):
            assert found.equals(NEW)
    return found


SLOW = pytest.mark.slow  # each kills a process at each of a dozen steps


@pytest.mark.parametrize("how", ["write", pytest.param("fail", marks=SLOW)])
@pytest.mark.parametrize(
    "there", [True, pytest.param(False, marks=SLOW)], ids=["replacing", "fresh"]
)
def test_whenever_the_process_is_killed_a_readable_file_is_left(
    there: bool, how: str, tmp_path: Path
) -> None:
    """SIGKILL before and after each write, fsync, publication and removal."""
    paths = kill_at_every_step(tmp_path, how, there)
    assert len(paths) >= 12
    seen = set()
    refused = []
    for step, path in enumerate(paths):
        if path.exists():
            found = check_left(path, OLD, NEW) if there else check_left(path, NEW)
            seen.add("new" if found.equals(NEW) else "old")
            if _pyarrow_refuses(path):
                refused.append(step)
        else:
            seen.add("none")
        # What is left does not disturb the next run.
        write(NEW, path)
        check(path, NEW)
    first = "old" if there else "none"
    assert seen == ({first, "new"} if how == "write" else {first})
    # One stretch of steps, and only where a file is replaced.
    assert refused == list(range(refused[0], refused[-1] + 1)) if refused else True
    assert there or not refused


def _pyarrow_refuses(path: Path) -> bool:
    try:
        read_with_pyarrow(path)
    except OSError:
        return True
    return False


@SLOW
def test_a_rotation_mends_what_a_kill_has_left(tmp_path: Path) -> None:
    """Then all readers have the keys again."""
    mended = 0
    for path in kill_at_every_step(tmp_path, "write", there=True):
        before = read(path)
        mended += _pyarrow_refuses(path)
        results = list(mc.jobs.rotate_keys(path.parent, tools(), what="mek"))
        assert [result.result for result in results] == ["rotated"]
        check(path, before)
    assert mended, "there is a stretch in which others refuse the file"


def test_a_rotation_keeps_the_keys_of_a_file_that_another_writer_replaces(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write(OLD, path)
    writer = mc.ParquetWriter(path, NEW.schema, tools().encryption(POLICY))
    writer.write_table(NEW)
    write(OLD, path)

    class Closing(MemoryKms):
        def unwrap(self, wrapped: str, master_key_id: str, **aad: bytes) -> bytes:
            writer.close()
            return super().unwrap(wrapped, master_key_id, **aad)

    (file,) = mc.jobs.rotate_keys(path, mc.KeyTools(Closing()), what="kek")
    assert (file.result, file.keys) == ("key-material", 0)
    assert "belongs to another file, or to another version of this one" in file.message
    check(path, NEW)


@SLOW
def test_keys_of_writers_that_were_killed_do_not_stay_for_ever(tmp_path: Path) -> None:
    """A job that is killed in each run must not let the material grow up to its limit."""
    for path in kill_at_every_step(tmp_path, "write", there=True)[4:15:5]:
        write(NEW, path)
        write(NEW, path)
        check(path, NEW)
        assert len(store_of(path)) <= 3 + 3


# --- limits ---------------------------------------------------------------------------------------


def test_material_that_would_pass_the_limit_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could read it."""
    path = tmp_path / "a.parquet"
    write(OLD, path)
    for room in (external, material):
        monkeypatch.setattr(room, "MAX_STORE", beside(path).stat().st_size + 10)
    with pytest.raises((KeyMaterialError, mc.errors.LimitError)):
        write(NEW, path)
    check(path, OLD)


def test_a_name_that_leaves_no_room_for_the_materials_is_an_oserror(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    kms = MemoryKms()
    with pytest.raises(OSError, match="long"):
        mc.write_table(OLD, path, mc.KeyTools(kms).encryption(POLICY))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["a b.parquet", "ä.parquet", "a'\"\n.parquet", "%41", "{i}", "-x", "#?&"]
)
def test_odd_names_are_no_trouble(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(OLD, path)
    write(NEW, path)
    assert read(path).equals(NEW)
    assert beside(path).name == f"_KEY_MATERIAL_FOR_{name}.json"
    assert read_by_hand(path).equals(NEW)


def test_a_file_that_can_not_be_looked_at_when_it_is_there_keeps_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, say: nobody can know whose file it is, so nothing is taken away."""
    path = tmp_path / "a.parquet"
    write(OLD, path)
    looked = list_key_metadata
    calls = []

    def unreadable(source: Any) -> Any:
        calls.append(source)
        if len(calls) > 1:  # once when it begins, and when it is published
            raise OSError(24, "Too many open files")
        return looked(source)

    monkeypatch.setattr("modcrypt.kms.external_keys.list_key_metadata", unreadable)
    write(NEW, path)
    assert len(calls) == 2
    monkeypatch.undo()
    assert read(path).equals(NEW)
    mc.jobs.rotate_keys(path, tools())  # puts them in their place
    check(path, NEW)
