"""Key stores in files: nothing is lost, half there, or taken for what it is not."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import pickle
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modcrypt.errors import FormatError, KeyMaterialError, LimitError, ModcryptError
from modcrypt.iceberg import FileKeyStore, SqliteKeyStore
from modcrypt.iceberg.format.table_metadata import SCOPE
from modcrypt.iceberg.keys import key_stores
from modcrypt.iceberg.keys.key_resolver import KeyStore
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import KEY_TIMESTAMP, IcebergKey
from tests.support.cases import each_case
from tests.support.counted_calls import count_calls
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.kms.key_servers import leaks
from tests.support.randomness import examples

Kind = type[FileKeyStore] | type[SqliteKeyStore]
KINDS: list[Kind] = [FileKeyStore, SqliteKeyStore]

kinds = pytest.mark.parametrize("kind", KINDS)

ALL_BYTES = bytes(range(255, -1, -1))  # upwards they would hold keys that the suite looks for


def key(id_: str, wrapped: bytes = b"\x01\x02wrapped", **properties: str) -> IcebergKey:
    return IcebergKey(id_, "keyA", wrapped, {KEY_TIMESTAMP: "1795237555590", **properties})


ODD = key("\x00🔑\n'\"; DROP TABLE kek; --", ALL_BYTES, **{SCOPE: "partition=a='ü\x1b'", "": ""})
THREE = [key("b"), key("a", scope="day"), ODD]


def by_id(*keys: IcebergKey) -> dict[str, IcebergKey]:
    return {entry.id: entry for entry in keys}


# --- what is kept --------------------------------------------------------------------------------


@kinds
def test_keks_are_kept_replaced_and_dropped(kind: Kind, tmp_path: Path) -> None:
    store: KeyStore = kind.create(tmp_path / "keks")
    assert store.keys() == {}
    store.replace(THREE)
    assert list(store.keys().items()) == list(by_id(*THREE).items())  # in the order of coming
    other = dataclasses.replace(THREE[0], wrapped=b"anew", master_key_id="keyB")
    store.replace([other, key("c")], drop=["a", "not there"])
    assert list(kind(tmp_path / "keks").keys().items()) == [*by_id(other, ODD, key("c")).items()]
    store.replace([], drop=iter(["b", "c", ODD.id]))
    assert store.keys() == {}


def test_the_file_is_plain_json_in_icebergs_words(tmp_path: Path) -> None:
    FileKeyStore.create(tmp_path / "keks").replace(THREE)
    document = json.loads((tmp_path / "keks").read_bytes())
    assert document["modcrypt-key-store"] == 1
    assert [entry["key-id"] for entry in document["keys"]] == ["b", "a", ODD.id]
    last = document["keys"][2]
    assert base64.b64decode(last["encrypted-key-metadata"], validate=True) == ALL_BYTES
    assert (last["encrypted-by-id"], last["properties"]) == ("keyA", ODD.properties)


def test_the_database_is_plain_sqlite(tmp_path: Path) -> None:
    SqliteKeyStore.create(tmp_path / "keks").replace(THREE)
    with closing(sqlite3.connect(tmp_path / "keks")) as database:
        rows = database.execute("SELECT id, document FROM kek ORDER BY position").fetchall()
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert [id_ for id_, _ in rows] == ["b", "a", ODD.id]
    document = json.loads(rows[2][1])
    assert base64.b64decode(document["encrypted-key-metadata"]) == ALL_BYTES


@kinds
def test_no_key_is_in_a_store_but_wrapped(kind: Kind, tmp_path: Path) -> None:
    opened = MasterKeys(SampleKms()).new_kek("keyA", 32)
    kek = SampleKms().unwrap(base64.b64encode(opened.key.wrapped or b"").decode(), "keyA")
    store = kind.create(tmp_path / "keks")
    store.replace([opened.key])
    assert not leaks((tmp_path / "keks").read_bytes().decode("latin-1"), kek)
    assert store.keys() == by_id(opened.key)
    assert MasterKeys(SampleKms()).open_key(store.keys()[opened.key.id]).key == opened.key


@kinds
def test_a_store_is_private_and_made_once(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "keks"
    before = os.umask(0)
    try:
        store = kind.create(path)
        store.replace(THREE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        kind.create(path)
    assert store.keys() == by_id(*THREE)
    assert os.listdir(tmp_path) == ["keks"]


@kinds
def test_a_path_that_is_mistyped_makes_no_store(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "kex")
    for call in (store.keys, lambda: store.replace(THREE)):
        with pytest.raises(FileNotFoundError):
            call()
    assert not list(tmp_path.iterdir())


@kinds
def test_a_link_stays_one(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    kind.create(tmp_path / "far" / "keks")
    (tmp_path / "link").symlink_to("far/keks")
    kind(tmp_path / "link").replace(THREE)
    assert (tmp_path / "link").is_symlink()
    assert kind(tmp_path / "far" / "keks").keys() == by_id(*THREE)
    assert os.listdir(tmp_path / "far") == ["keks"]


@kinds
def test_names_that_are_special_elsewhere_are_files(kind: Kind, tmp_path: Path) -> None:
    for name in ("a?mode=memory", "ü %41#x", ":memory:"):
        store = kind.create(tmp_path / name)
        store.replace([key("k")])
        assert kind(tmp_path / name).keys() == by_id(key("k"))
    assert len(list(tmp_path.iterdir())) == 3


@kinds
def test_a_store_is_sent_as_its_path(kind: Kind, tmp_path: Path) -> None:
    store = kind.create(tmp_path / "keks")
    store.replace(THREE)
    assert pickle.loads(pickle.dumps(store)).keys() == by_id(*THREE)
    assert repr(store) == f"{kind.__name__}({str(tmp_path / 'keks')!r})"


@kinds
def test_half_a_surrogate_pair_goes_there_and_back(kind: Kind, tmp_path: Path) -> None:
    """A table's metadata may have one where nothing is bound to it."""
    properties = {KEY_TIMESTAMP: "1", "\udfff": "\ud800"}
    odd = IcebergKey("k", "\ud83d", b"\1", properties)
    store = kind.create(tmp_path / "keks")
    store.replace([odd])
    assert store.keys() == by_id(odd)


@kinds
def test_a_relative_path(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind.create("keks").replace(THREE)
    assert kind(tmp_path / "keks").keys() == by_id(*THREE)


@kinds
def test_a_master_key_itself_is_not_kept(kind: Kind, tmp_path: Path) -> None:
    store = kind.create(tmp_path / "keks")
    with pytest.raises(ValueError, match="not an entry"):
        store.replace([key("k"), IcebergKey.single("keyA")])
    with pytest.raises(KeyMaterialError, match="twice"):
        store.replace([key("k"), key("k", b"other")])
    assert store.keys() == {}


# --- many at once --------------------------------------------------------------------------------

WRITER = """
import sys
from modcrypt.iceberg import FileKeyStore, SqliteKeyStore
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
kind, path, name = sys.argv[1:]
store = globals()[kind](path)
print("ready", flush=True)
sys.stdin.readline()
for n in range(25):
    if n == 12:
        sys.stdin.read()  # wait until a reader has seen the store
    key = IcebergKey(f"{name}-{n}", "m", b"x" * 50, {"KEY_TIMESTAMP": "1"})
    store.replace([key], drop=[f"{name}-{n - 1}"] if n % 2 else [])
"""


@kinds
def test_processes_that_write_at_once_lose_nothing(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "keks"
    kind.create(path).replace(THREE)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, kind.__name__, path, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )
        for name in ("x", "y")
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
    for _ in range(10):
        assert {"b", "a"} <= set(kind(path).keys())  # a reader never sees half of it
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    while any(writer.poll() is None for writer in writers):
        assert {"b", "a"} <= set(kind(path).keys())
    for writer in writers:
        assert writer.wait(60) == 0
        assert writer.stdout is not None
        writer.stdout.close()
    left = {f"{name}-{n}" for name in "xy" for n in range(25) if n % 2 or n == 24}
    assert set(kind(path).keys()) == {"b", "a", ODD.id} | left
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@kinds
def test_a_reader_does_not_wait_for_a_writer(kind: Kind, tmp_path: Path) -> None:
    store = kind.create(tmp_path / "keks")
    store.replace(THREE)
    if isinstance(store, FileKeyStore):
        from modcrypt.kms.keyring import keyring_file

        with keyring_file.lock_file(store.path):
            assert kind(store.path).keys() == by_id(*THREE)
        return
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM kek")
        assert kind(store.path).keys() == by_id(*THREE)
        writer.execute("ROLLBACK")


def test_sqlite_waits_for_a_writer_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteKeyStore.create(tmp_path / "keks")
    other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    with closing(other) as writer:
        writer.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(key_stores, "BUSY_SECONDS", 0.05)
        with pytest.raises(TimeoutError) as raised:
            store.replace(THREE)
        assert raised.value.filename == store.path
        monkeypatch.setattr(key_stores, "BUSY_SECONDS", 20.0)
        later = threading.Timer(0.1, writer.execute, ["COMMIT"])
        later.start()
        store.replace(THREE)
        later.join()
    assert store.keys() == by_id(*THREE)


# --- a crash -------------------------------------------------------------------------------------

CRASH_IN_FILE = """
import os, sys
from modcrypt.kms.keyring import keyring_file
from modcrypt.iceberg import FileKeyStore
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
setattr(keyring_file, sys.argv[2], lambda *a, **k: os._exit(9))
new = IcebergKey("new", "m", b"x", {"KEY_TIMESTAMP": "1"})
FileKeyStore(sys.argv[1]).replace([new], drop=["a"])
"""


@pytest.mark.parametrize("step", ["_write_private", "publish", "fsync_folder"])
def test_a_crash_leaves_the_old_file_or_the_new_one(tmp_path: Path, step: str) -> None:
    path = tmp_path / "keks"
    store = FileKeyStore.create(path)
    store.replace(THREE)
    crashed = subprocess.run([sys.executable, "-c", CRASH_IN_FILE, path, step], check=False)
    assert crashed.returncode == 9
    after = {"b", ODD.id, "new"} if step == "fsync_folder" else {"b", "a", ODD.id}
    assert set(store.keys()) == after
    store.replace([key("later")])  # what is left of the crash is in nobody's way
    assert set(store.keys()) == after | {"later"}
    assert os.listdir(tmp_path) == ["keks"]


CRASH_IN_SQLITE = """
import sys, time
from modcrypt.iceberg import SqliteKeyStore
store = SqliteKeyStore(sys.argv[1])
with store._transaction("BEGIN IMMEDIATE") as database:
    database.execute("PRAGMA cache_spill = 1")
    database.execute("PRAGMA cache_size = 1")
    database.execute("DELETE FROM kek")
    rows = ((f"new-{n}", "x" * 5000) for n in range(200))
    database.executemany("INSERT INTO kek (id, document) VALUES (?, ?)", rows)
    print("half way", flush=True)
    time.sleep(60)
"""


def test_a_crash_leaves_what_was_committed_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "keks"
    store = SqliteKeyStore.create(path)
    store.replace(THREE)
    writer = subprocess.Popen([sys.executable, "-c", CRASH_IN_SQLITE, path], stdout=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half way\n"
        assert path.stat().st_size > 100_000  # it is in the file, not just in memory
        writer.send_signal(signal.SIGKILL)
    journal = Path(f"{path}-journal")
    assert journal.exists()
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert store.keys() == by_id(*THREE)  # a reader sees to it
    store.replace([key("later")])
    assert store.keys() == by_id(*THREE, key("later"))
    assert os.listdir(tmp_path) == ["keks"]


@kinds
def test_what_raises_in_the_middle_changes_nothing(kind: Kind, tmp_path: Path) -> None:
    store = kind.create(tmp_path / "keks")
    store.replace(THREE)
    before = (tmp_path / "keks").read_bytes()

    def drop_key() -> Any:
        yield "a"
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        store.replace([key("new")], drop=drop_key())
    assert (tmp_path / "keks").read_bytes() == before
    assert os.listdir(tmp_path) == ["keks"]


@kinds
def test_a_store_that_may_not_be_written_reads(kind: Kind, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write whatever it likes")
    store = kind.create(tmp_path / "keks")
    store.replace(THREE)
    (tmp_path / "keks").chmod(0o400)
    assert store.keys() == by_id(*THREE)
    with pytest.raises(OSError, match="ermission"):
        store.replace([key("new")])


# --- limits --------------------------------------------------------------------------------------


@kinds
def test_more_keks_than_a_store_has_are_refused(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_stores, "MAX_KEKS", 3)
    store = kind.create(tmp_path / "keks")
    store.replace(THREE)
    with pytest.raises(LimitError):
        store.replace([key("new")])
    store.replace([key("new")], drop=["a"])
    assert set(store.keys()) == {"b", ODD.id, "new"}


def test_a_file_never_grows_beyond_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_stores, "MAX_FILE", 4096)
    store = FileKeyStore.create(tmp_path / "keks")
    store.replace(THREE)
    with pytest.raises(LimitError):
        store.replace([key("new", bytes(4096))])
    assert store.keys() == by_id(*THREE)
    from modcrypt.kms.keyring import keyring_file

    monkeypatch.setattr(keyring_file, "MAX_FILE", 100)
    with pytest.raises(KeyMaterialError, match="longer than"):
        store.keys()


@kinds
def test_the_work_grows_no_faster_than_the_number_of_keks(kind: Kind, tmp_path: Path) -> None:
    def count(number: int) -> int:
        keks = [key(f"kek-{n}", bytes(60)) for n in range(number)]
        store = kind.create(tmp_path / f"{number}")

        def replace_and_list() -> None:
            store.replace(keks)
            assert store.keys() == by_id(*keks)

        return count_calls(replace_and_list)

    assert count(800) < 4.5 * count(200)


# --- what is no store ----------------------------------------------------------------------------

GOOD = {"key-id": "k", "encrypted-key-metadata": "AQI=", "encrypted-by-id": "m",
        "properties": {KEY_TIMESTAMP: "1"}}  # fmt: skip

BAD_KEYS: dict[str, Any] = {
    "no object": "k",
    "a member too few": {name: v for name, v in GOOD.items() if name != "properties"},
    "a member too many": {**GOOD, "extra": 1},
    "an id of another kind": {**GOOD, "key-id": 1},
    "an empty id": {**GOOD, "key-id": ""},
    "an id that is no Unicode": {**GOOD, "key-id": "\ud800"},
    "no master key": {**GOOD, "encrypted-by-id": ""},
    "no base64": {**GOOD, "encrypted-key-metadata": "AQI"},
    "another spelling of base64": {**GOOD, "encrypted-key-metadata": "AQJ="},
    "nothing wrapped": {**GOOD, "encrypted-key-metadata": ""},
    "a wrapped key that is too long": {
        **GOOD, "encrypted-key-metadata": base64.b64encode(bytes(65537)).decode()
    },
    "no timestamp": {**GOOD, "properties": {}},
    "a property of another kind": {**GOOD, "properties": {KEY_TIMESTAMP: "1", "x": 1}},
    "properties of another kind": {**GOOD, "properties": []},
}  # fmt: skip


def write_json(path: Path, keys: list[Any]) -> None:
    path.write_text(json.dumps({"modcrypt-key-store": 1, "keys": keys}))


def write_sqlite(path: Path, *rows: tuple[object, object]) -> None:
    path.unlink(missing_ok=True)
    SqliteKeyStore.create(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executemany("INSERT INTO kek (id, document) VALUES (?, ?)", rows)


def test_the_form_that_bad_ones_differ_from_is_good(tmp_path: Path) -> None:
    write_json(tmp_path / "json", [GOOD])
    write_sqlite(tmp_path / "sqlite", ("k", json.dumps(GOOD)))
    expected = by_id(IcebergKey("k", "m", b"\1\2", {KEY_TIMESTAMP: "1"}))
    assert FileKeyStore(tmp_path / "json").keys() == expected
    assert SqliteKeyStore(tmp_path / "sqlite").keys() == expected


@each_case("name", BAD_KEYS)
def test_a_bad_key_is_refused(name: str, tmp_path: Path) -> None:
    write_json(tmp_path / "json", [BAD_KEYS[name]])
    write_sqlite(tmp_path / "sqlite", ("k", json.dumps(BAD_KEYS[name])))
    for store in (FileKeyStore(tmp_path / "json"), SqliteKeyStore(tmp_path / "sqlite")):
        with pytest.raises(KeyMaterialError, match="not a key store, or a damaged one") as raised:
            store.keys()
        assert store.path in str(raised.value)
        if isinstance(store, FileKeyStore):  # which writes all of it anew
            before = Path(store.path).read_bytes()
            with pytest.raises(KeyMaterialError):
                store.replace([key("new")])
            assert Path(store.path).read_bytes() == before


@each_case(
    "data",
    [
        b"", b"{", b"[]", b"null", b"SQLite format 3\0", b"\xff\xfe{}",
        b'{"modcrypt-key-store":1}', b'{"modcrypt-key-store":2,"keys":[]}',
        b'{"modcrypt-key-store":1,"keys":{}}', b'{"modcrypt-key-store":1,"keys":[],"keys":[]}',
        b'{"modcrypt-key-store":1,"keys":[],"x":0}', b"[" * 100_000,
        json.dumps({"modcrypt-key-store": 1, "keys": [GOOD, GOOD]}).encode(),
    ],
)  # fmt: skip
@kinds
def test_another_file_is_no_store(kind: Kind, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "keks").write_bytes(data)
    for call in (kind(tmp_path / "keks").keys, lambda: kind(tmp_path / "keks").replace(THREE)):
        with pytest.raises((FormatError, KeyMaterialError)):
            call()
    assert (tmp_path / "keks").read_bytes() == data


@kinds
def test_what_is_no_file_is_no_store(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=re.escape(str(tmp_path))):
        kind(tmp_path).keys()


def test_each_kind_refuses_the_others_file(tmp_path: Path) -> None:
    FileKeyStore.create(tmp_path / "json")
    SqliteKeyStore.create(tmp_path / "sqlite")
    with pytest.raises(FormatError):
        SqliteKeyStore(tmp_path / "json").keys()
    with pytest.raises(KeyMaterialError):
        FileKeyStore(tmp_path / "sqlite").keys()


@each_case(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON kek BEGIN DELETE FROM kek; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE other (x)",
        "CREATE INDEX i ON kek (document)",
        "ALTER TABLE kek ADD COLUMN x",
        "DROP TABLE kek",
        "PRAGMA application_id = 0",
        "PRAGMA user_version = 2",
    ],
)
def test_a_database_with_anything_else_in_it_is_refused(tmp_path: Path, statement: str) -> None:
    store = SqliteKeyStore.create(tmp_path / "keks")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
        database.execute(statement)
    for call in (store.keys, lambda: store.replace(THREE)):
        with pytest.raises(FormatError, match="not a key store"):
            call()


@pytest.mark.parametrize(
    "row",
    [
        ("other", json.dumps(GOOD)),
        ("k", b"{}"),
        ("k", 5),
        (b"k", json.dumps(GOOD)),
        (sqlite3.Binary(b"\xff"), json.dumps(GOOD)),
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path: Path, row: tuple[object, object]) -> None:
    write_sqlite(tmp_path / "keks", row)
    with pytest.raises(KeyMaterialError):
        SqliteKeyStore(tmp_path / "keks").keys()


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    store = SqliteKeyStore.create(tmp_path / "keks")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
        database.execute("INSERT INTO kek (id, document) VALUES ('k', CAST(x'ff' AS TEXT))")
    with pytest.raises(FormatError):
        store.keys()


# --- any damage ----------------------------------------------------------------------------------


def damaged_bytes(whole: bytes) -> st.SearchStrategy[bytes]:
    at = st.integers(0, len(whole) - 1)
    flipped = st.builds(
        lambda n, by: whole[:n] + bytes((whole[n] ^ by,)) + whole[n + 1 :], at, st.integers(1, 255)
    )
    return (
        flipped | at.map(lambda n: whole[:n]) | at.map(lambda n: whole[:n] + bytes(len(whole) - n))
    )


@kinds
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_keys_or_modcrypts_own_errors(
    kind: Kind, tmp_path: Path, data: st.DataObject
) -> None:
    """One byte altered, the end cut off or zeroes: keys() and replace() give or refuse."""
    good = tmp_path / "good"
    if not good.exists():
        kind.create(good).replace([*THREE, *(key(f"k{n}", bytes(90)) for n in range(20))])
    path = tmp_path / "keks"
    path.write_bytes(data.draw(damaged_bytes(good.read_bytes())))
    store = kind(path)
    calls: list[Callable[[], object]] = [store.keys, lambda: store.replace([key("new")])]
    for call in calls:
        # One byte of SQLite's says who may write.
        with contextlib.suppress(ModcryptError, PermissionError):
            call()


def test_a_schema_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """SQLite quotes it in a message, which Python cannot decode."""
    store = SqliteKeyStore.create(tmp_path / "keks")
    path = tmp_path / "keks"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CR\xf3ATE TABLE"))
    for call in (store.keys, lambda: store.replace([key("new")])):
        with pytest.raises(FormatError, match="damaged"):
            call()


@kinds
def test_a_store_can_be_copied(kind: Kind, tmp_path: Path) -> None:
    """A backup is a copy of the file, made while nobody writes."""
    kind.create(tmp_path / "keks").replace(THREE)
    shutil.copy(tmp_path / "keks", tmp_path / "copy")
    assert kind(tmp_path / "copy").keys() == by_id(*THREE)
