"""Keys that seal new files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyNotFoundError,
    KmsUnavailableError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    SqliteKeyStore,
    open_table,
    rotate_table,
)
from modcrypt.iceberg.format.table_metadata import SCOPE, EncryptedKey
from modcrypt.iceberg.keys.key_policies import WritingKeys, partition_scope, writing_keys
from modcrypt.iceberg.keys.key_resolver import KeyResolver, KeyStore, encrypt_for_manifest
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import KEY_TIMESTAMP, TABLE, OpenKey
from modcrypt.keys.metadata import StandardKeyMetadata
from tests.support.cases import each_case
from tests.support.iceberg.java_judge import JavaError, Judge, plain_rows
from tests.support.iceberg.partitioned_table import ROWS, two_appends
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.writing_keys import writing_key
from tests.support.kms.memory_kms import MemoryKms
from tests.support.sleeps import note_sleeps

DAY = 24 * 60 * 60 * 1000
JAVA = 1795237555590
"""When Java made the shared table's KEK: on 21 November 2026, 05:05:55 UTC."""

NEVER = JAVA + 730 * DAY
"""When that is used no more."""


def policy(**members: Any) -> KeyPolicy:
    return KeyPolicy(**members)


def change_metadata(table: IcebergTable, **members: Any) -> IcebergTable:
    metadata = table.metadata.with_members(**members)
    return dataclasses.replace(table, metadata=metadata, walk=table.walk.through(metadata))


def with_entries(table: IcebergTable, entries: Sequence[EncryptedKey]) -> IcebergTable:
    """Do as a commit does."""
    metadata = table.metadata.with_keys([*table.metadata.keys.values(), *entries])
    return dataclasses.replace(table, metadata=metadata, walk=table.walk.through(metadata))


def reopen_as(table: IcebergTable, kms: Any, store: KeyStore | None = None) -> IcebergTable:
    """Open it anew, as another process would."""
    walk = dataclasses.replace(table.walk, resolver=KeyResolver(kms, store))
    return dataclasses.replace(table, walk=walk)


def ids(keys: WritingKeys) -> list[str | None]:
    return [None if key is None else key.key.id for key in keys.of_files]


def kek_id(table: IcebergTable) -> str:
    (found,) = table.metadata.kek_ids()
    return found


# --- table properties ----------------------------------------------------------------------------

POLICIES = st.one_of(
    st.builds(
        policy,
        kek_per=st.sampled_from(["table", "partition", "day", "files"]),
        files=st.integers(1, 10**9 - 1),
        kek_lifetime_days=st.integers(1, 36500),
        store=st.sampled_from(["table", "key-store"]),
    ),
    st.builds(policy, wrapping=st.just("single"), kek_per=st.sampled_from(["table", "files"])),
)


class Properties:
    """A stand-in with what `KeyPolicy.of` reads."""

    name = "v1.metadata.json"

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties


def read(properties: dict[str, str]) -> KeyPolicy:
    return KeyPolicy.of(Properties(properties))  # type: ignore[arg-type]


@given(POLICIES)
def test_a_policy_goes_into_table_properties_and_back(given: KeyPolicy) -> None:
    properties = given.properties()
    assert read({"encryption.key-id": "keyA", **properties}) == given
    assert all(isinstance(text, str) for text in properties.values())
    assert {name.rpartition(".")[0] for name in properties} == {"modcrypt.encryption"}


def test_a_table_that_says_nothing_is_as_javas(table: IcebergTable) -> None:
    assert KeyPolicy.of(table.metadata) == KeyPolicy()
    assert read({"modcrypt.encryption.kek-per": "day"}) == KeyPolicy(kek_per="day")
    assert KeyPolicy().properties() == {
        "modcrypt.encryption.kek-per": "table",
        "modcrypt.encryption.files": "1000",
        "modcrypt.encryption.wrapping": "double",
        "modcrypt.encryption.kek-lifetime-days": "730",
        "modcrypt.encryption.store": "table",
    }


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kek_per": "row"}, "kek_per must be table, partition, day or files"),
    ({"kek_per": ""}, "kek_per must be table, partition, day or files"),
    ({"wrapping": "triple"}, "wrapping must be double or single"),
    ({"store": "file"}, "store must be table or key-store"),
    ({"files": 0}, "files"),
    ({"files": 10**9}, "files"),
    ({"files": "many"}, "files"),
    ({"kek_lifetime_days": 0}, "kek_lifetime_days"),
    ({"kek_lifetime_days": 36501}, "kek_lifetime_days"),
    ({"kek_lifetime_days": "1.5"}, "kek_lifetime_days"),
    ({"wrapping": "single", "kek_per": "partition"}, "no KEKs"),
    ({"wrapping": "single", "kek_per": "day"}, "no KEKs"),
    ({"wrapping": "single", "store": "key-store"}, "no KEKs"),
]


@each_case(("members", "message"), BAD)
def test_what_is_no_policy_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(**members)
    named = {f"modcrypt.encryption.{k.replace('_', '-')}": str(v) for k, v in members.items()}
    with pytest.raises(FormatError, match=message):
        read(named)


@each_case("text", ["", "-1", "+5", "٣", " 5", "05", "5.0", "1" * 5000])
def test_numbers_are_spelt_in_one_way(text: str) -> None:
    for name in ("files", "kek-lifetime-days"):
        with pytest.raises(FormatError):
            read({f"modcrypt.encryption.{name}": text})


def test_a_bool_is_no_number() -> None:
    for name in ("files", "kek_lifetime_days"):
        with pytest.raises(ValueError, match=name):
            policy(**{name: True})


def test_what_a_later_version_may_ask_for_is_not_passed_over() -> None:
    """Or files would be written less well protected than their owner thinks."""
    with pytest.raises(
        UnsupportedFormatError, match=r"'modcrypt\.encryption\.pad' is not a known property"
    ):
        read({"modcrypt.encryption.pad": "yes"})


# --- one KEK -------------------------------------------------------------------------------------


def test_javas_kek_is_used_on_until_it_is_730_days_old(table: IcebergTable, kms: SampleKms) -> None:
    for now in (JAVA, JAVA + DAY, NEVER - 1):
        opened, entries = writing_key(table, KeyPolicy(), now_ms=now)
        assert (opened.key.id, entries) == (kek_id(table), [])
    assert kms.calls == [("unwrap", "keyA")]
    opened, entries = writing_key(table, KeyPolicy(), now_ms=NEVER)
    assert opened.key.id != kek_id(table)
    assert entries == [opened.key.entry()]
    assert opened.key.properties == {KEY_TIMESTAMP: str(NEVER)}  # as Java's has it, nothing else
    assert opened.key.master_key_id == "keyA"
    assert kms.calls[1:] == [("wrap", "keyA"), ("unwrap", "keyA")]
    again, more = writing_key(with_entries(table, entries), KeyPolicy(), now_ms=NEVER + DAY)
    assert (again, more) == (opened, [])
    assert len(kms.calls) == 3


@pytest.mark.parametrize(("days", "reused"), [(1, False), (29, False), (30, False), (31, True)])
def test_a_policy_may_have_keks_live_shorter(table: IcebergTable, days: int, reused: bool) -> None:
    given, now = KeyPolicy(kek_lifetime_days=days), JAVA + 30 * DAY
    opened, _ = writing_key(table, given, now_ms=now)
    assert (opened.key.id == kek_id(table)) is reused


def test_by_default_the_clock_decides(table: IcebergTable) -> None:
    opened, entries = writing_key(table, KeyPolicy(kek_lifetime_days=1), "day=x")
    again, more = writing_key(with_entries(table, entries), KeyPolicy(kek_lifetime_days=1), "day=x")
    assert (again, more) == (opened, [])


@pytest.mark.parametrize(("ahead", "used"), [(DAY, True), (DAY + 1, False), (JAVA, False)])
def test_a_kek_of_the_future_which_would_never_grow_old_is_not_used(
    table: IcebergTable, ahead: int, used: bool
) -> None:
    opened, _ = writing_key(table, KeyPolicy(), now_ms=JAVA - ahead)
    assert (opened.key.id == kek_id(table)) is used


def test_the_newest_of_a_scope_is_used(table: IcebergTable) -> None:
    masters = MasterKeys(SampleKms())
    made = [masters.new_kek("keyA", 16, now_ms=JAVA + n * DAY).key for n in (1, 3, 2)]
    there = with_entries(table, [kek.entry() for kek in made])
    assert writing_key(there, KeyPolicy(), now_ms=JAVA + 9 * DAY)[0].key == made[1]


def test_a_kek_of_another_scope_or_master_key_is_not_used(table: IcebergTable) -> None:
    masters = MasterKeys(SampleKms())
    other = masters.new_kek("keyB", 16, now_ms=JAVA + 2 * DAY).key
    with pytest.raises(KeyMaterialError, match="under the master key 'keyB'"):
        writing_key(with_entries(table, [other.entry()]), KeyPolicy(), now_ms=JAVA + 3 * DAY)
    scoped = masters.new_kek("keyA", 16, "day=2026-11-22", now_ms=JAVA + DAY).key
    there = with_entries(table, [scoped.entry()])
    given, now = KeyPolicy(), JAVA + 3 * DAY
    assert writing_key(there, given, now_ms=now)[0].key.id == kek_id(table)
    assert writing_key(there, given, "day=2026-11-22", now_ms=now)[0].key == scoped
    with pytest.raises(KeyMaterialError, match="under the master key 'keyA'"):
        writing_key(
            change_metadata(there, properties={"encryption.key-id": "keyB"}), given, now_ms=now
        )


def test_keks_have_the_length_of_the_tables_data_keys(table: IcebergTable, kms: SampleKms) -> None:
    for length in (16, 24, 32):
        properties = {**table.metadata.properties, "encryption.data-key-length": str(length)}
        opened, _ = writing_key(
            change_metadata(table, properties=properties), KeyPolicy(), now_ms=NEVER
        )
        assert len(opened.key.wrapped or b"") == 12 + length + 16


def test_a_table_in_plaintext_has_no_keys(table: IcebergTable, kms: SampleKms) -> None:
    for choice in (KeyPolicy(), KeyPolicy(wrapping="single"), KeyPolicy(kek_per="partition")):
        with pytest.raises(PlaintextError, match=r"encryption\.key-id"):
            writing_keys(change_metadata(table, properties={}), choice, ["a=1"])
    assert not kms.calls


# --- the keys of a commit ------------------------------------------------------------------------

PARTITIONS = ["a=1", "a=2", "a=1", "a=3"]


def test_per_table_data_files_have_their_keys_in_the_clear_in_their_manifest(
    table: IcebergTable,
) -> None:
    keys = writing_keys(table, KeyPolicy(), PARTITIONS, now_ms=JAVA)
    assert (keys.of_list.key.id, keys.entries) == (kek_id(table), ())
    assert keys.of_files == (None, None, None, None)


@pytest.mark.parametrize(
    ("now", "scope"),
    [
        (1795305599999, "day=2026-11-21"),
        (1795305600000, "day=2026-11-22"),
        (0, "day=1970-01-01"),
        (1803859200000, "day=2027-03-01"),
    ],
)
def test_per_day_a_days_manifest_lists_share_a_kek(
    table: IcebergTable, now: int, scope: str
) -> None:
    given = KeyPolicy(kek_per="day")
    first = writing_keys(table, given, PARTITIONS, now_ms=now)
    (entry,) = first.entries
    assert entry.properties == {KEY_TIMESTAMP: str(now), SCOPE: scope}
    assert first.of_files == (None,) * 4
    there = with_entries(table, first.entries)
    assert writing_keys(there, given, [], now_ms=now - now % DAY).of_list is first.of_list
    other = writing_keys(there, given, [], now_ms=now - now % DAY + DAY)
    assert other.of_list.key.id != first.of_list.key.id


def test_per_partition_each_has_a_kek_which_is_used_on(table: IcebergTable) -> None:
    given = KeyPolicy(kek_per="partition")
    first = writing_keys(table, given, PARTITIONS, now_ms=JAVA + DAY)
    one, two, again, three = ids(first)
    assert one == again
    assert len({one, two, three, kek_id(table)}) == 4
    assert first.of_list.key.id == kek_id(table)
    assert [e.properties[SCOPE] for e in first.entries] == [
        "partition=a=1", "partition=a=2", "partition=a=3"
    ]  # fmt: skip
    there = with_entries(table, first.entries)
    second = writing_keys(there, given, ["a=3", "a=4"], now_ms=JAVA + 2 * DAY)
    assert ids(second)[0] == three
    assert [e.properties[SCOPE] for e in second.entries] == ["partition=a=4"]


def test_a_table_without_partitions_is_one_partition(table: IcebergTable) -> None:
    keys = writing_keys(table, KeyPolicy(kek_per="partition"), ["", ""], now_ms=JAVA)
    assert [e.properties[SCOPE] for e in keys.entries] == [partition_scope("")]
    assert len(set(ids(keys))) == 1
    assert keys.of_list.key.id not in ids(keys)


@pytest.mark.parametrize(("files", "number", "keks"), [(1, 3, 3), (2, 5, 3), (5, 5, 1), (7, 0, 0)])
def test_per_files_so_many_share_a_kek_and_no_other_commit_uses_it(
    table: IcebergTable, files: int, number: int, keks: int
) -> None:
    given = KeyPolicy(kek_per="files", files=files)
    first = writing_keys(table, given, ["a=1"] * number, now_ms=JAVA)
    found = ids(first)
    assert [len(list(same)) for _, same in groupby(found)] == [
        min(files, number - at) for at in range(0, number, files)
    ]
    assert [e.properties[SCOPE] for e in first.entries] == ["files"] * keks
    assert first.of_list.key.id == kek_id(table)
    second = writing_keys(with_entries(table, first.entries), given, ["a=1"] * number, now_ms=JAVA)
    assert not set(found) & set(ids(second))


def test_in_single_wrapping_the_master_key_takes_the_place_of_keks(
    table: IcebergTable, kms: SampleKms
) -> None:
    for kek_per, each in (("table", [None, None]), ("files", ["keyA", "keyA"])):
        given = policy(wrapping="single", kek_per=kek_per, files=1)
        keys = writing_keys(table, given, ["a=1", "a=2"], now_ms=JAVA)
        assert (keys.of_list.key.id, ids(keys), keys.entries) == ("keyA", each, ())
        assert not keys.of_list.key.is_double
    assert not kms.calls


def test_the_service_is_asked_once_for_each_kek_or_for_all_that_are_made(
    table: IcebergTable,
) -> None:
    kms = MemoryKms({"keyA": bytes(16)}, batch=50)
    there = reopen_as(table, kms)
    given, partitions = KeyPolicy(kek_per="partition"), [f"a={n % 40}" for n in range(100)]
    first = writing_keys(there, given, partitions, now_ms=NEVER)  # Java's KEK is too old
    assert [(call.operation, call.keys) for call in kms.calls] == [("wrap_many", 41), ("unwrap", 1)]
    kms.calls.clear()
    there = with_entries(there, first.entries)
    assert writing_keys(there, given, partitions, now_ms=NEVER).entries == ()
    assert not kms.calls
    fresh = reopen_as(there, kms)  # another process
    for _ in range(2):
        writing_keys(fresh, given, partitions, now_ms=NEVER)
    assert {call.operation for call in kms.calls} == {"unwrap"}
    assert len(kms.calls) == 41


# --- a key store ---------------------------------------------------------------------------------

STORED = KeyPolicy(kek_per="partition", store="key-store")


@pytest.fixture(params=[FileKeyStore, SqliteKeyStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    made: KeyStore = request.param.create(tmp_path / "keks")
    return made


def test_keks_go_to_the_store_and_not_to_the_table(table: IcebergTable, store: KeyStore) -> None:
    there = reopen_as(table, SampleKms(), store)
    keys = writing_keys(there, STORED, PARTITIONS, now_ms=JAVA)
    assert keys.entries == ()
    used: list[OpenKey | None] = [keys.of_list, *keys.of_files]
    assert {kek.key.id for kek in used if kek is not None} == set(store.keys())
    assert [key.scope for key in store.keys().values()] == [
        "", "partition=a=1", "partition=a=2", "partition=a=3"
    ]  # fmt: skip
    assert {key.properties[TABLE] for key in store.keys().values()} == {table.metadata.uuid}
    fresh = reopen_as(table, SampleKms(), store)
    assert ids(writing_keys(fresh, STORED, PARTITIONS, now_ms=JAVA)) == ids(keys)
    assert len(store.keys()) == 4


def test_two_tables_share_a_store_and_no_kek(table: IcebergTable, store: KeyStore) -> None:
    one = reopen_as(table, SampleKms(), store)
    other = change_metadata(one, table_uuid="5f0a7e4c-0000-4000-8000-000000000000")
    first = writing_keys(one, STORED, PARTITIONS, now_ms=JAVA)
    second = writing_keys(other, STORED, PARTITIONS, now_ms=JAVA)
    assert not {*ids(first), first.of_list.key.id} & {*ids(second), second.of_list.key.id}
    assert len(store.keys()) == 8


def test_without_a_store_nothing_is_made(table: IcebergTable, kms: SampleKms) -> None:
    with pytest.raises(ValueError, match="open the table with key_store"):
        writing_keys(table, STORED, PARTITIONS)
    assert not kms.calls


def test_a_kek_in_the_place_that_the_policy_does_not_name_is_not_used(
    table: IcebergTable, store: KeyStore
) -> None:
    there = reopen_as(table, SampleKms(), store)
    kept = KeyPolicy(store="key-store")
    stored, _ = writing_key(there, kept, now_ms=JAVA + DAY)
    assert list(store.keys()) == [stored.key.id]
    assert writing_key(there, KeyPolicy(), now_ms=JAVA + DAY)[0].key.id == kek_id(table)
    assert writing_key(there, kept, now_ms=JAVA + DAY)[0].key.id == stored.key.id


def test_where_the_service_or_the_store_fails_nothing_is_kept(
    table: IcebergTable, store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down(SampleKms):
        def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
            raise KmsUnavailableError("down")

    note_sleeps(monkeypatch)
    with pytest.raises(KmsUnavailableError):
        writing_keys(reopen_as(table, Down(), store), STORED, PARTITIONS)
    assert store.keys() == {}

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    there = reopen_as(table, SampleKms(), store)
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "replace", full)
        with pytest.raises(OSError, match="no space left"):
            writing_keys(there, STORED, PARTITIONS)
    assert store.keys() == {}
    assert writing_keys(there, STORED, PARTITIONS)
    assert len(store.keys()) == 4


def test_dropping_a_partitions_kek_shreds_that_partition_alone(
    table: IcebergTable, store: KeyStore
) -> None:
    there = reopen_as(table, SampleKms(), store)
    keys = writing_keys(there, STORED, PARTITIONS, now_ms=JAVA)
    files = [StandardKeyMetadata.generate() for _ in PARTITIONS]
    sealed = [
        encrypt_for_manifest([file], opened)[0]
        for file, opened in zip(files, keys.of_files, strict=True)
        if opened is not None
    ]
    gone = [key.id for key in store.keys().values() if key.scope == partition_scope("a=1")]
    store.replace([], drop=gone)
    fresh = KeyResolver(SampleKms(), store)
    for partition, data, file in zip(PARTITIONS, sealed, files, strict=True):
        if partition == "a=1":
            with pytest.raises(KeyNotFoundError, match=gone[0].replace("+", r"\+")):
                fresh.open_metadata(data, table.metadata)
        else:
            assert fresh.open_metadata(data, table.metadata) == file


# --- whole tables, with Iceberg's Java as judge --------------------------------------------------


def reopen(table: IcebergTable, store: KeyStore | None = None) -> IcebergTable:
    return open_table(table.place.path, SampleKms(), key_store=store)


def test_a_table_with_a_shredded_partition_can_be_rotated(tmp_path: Path) -> None:
    """Files that cannot be opened stay and are reported; the rest get new KEKs."""
    store = FileKeyStore.create(tmp_path / "keks")
    given = KeyPolicy(kek_per="partition", store="key-store")
    table = two_appends(tmp_path / "t", given, store)
    gone = {key.id: key for key in store.keys().values() if key.scope == partition_scope("part=x")}
    store.replace([], drop=gone)
    for what in (dict[str, Any](dry_run=True), {}):
        done = rotate_table(table, "kek", **what)
        assert set(done.left) == gone.keys()
        assert "neither in the table nor in the key store" in (done.advice or "")
    found = reopen(done.table, store)
    assert found.scan(filters="part = 'y'")["id"].to_pylist() == [3, 3]
    with pytest.raises(KeyNotFoundError, match=re.escape(next(iter(gone)))):
        found.scan().to_arrow()
    store.replace(gone.values())  # from a backup
    assert reopen(done.table, store).scan().num_rows == 6
    done = rotate_table(reopen(done.table, store), "kek")
    assert done.left == ()
    store.replace([], drop=gone)
    assert reopen(done.table, store).scan().num_rows == 6


@pytest.mark.usefixtures("one_day")
@pytest.mark.parametrize(
    ("given", "keks", "java_reads"),
    [
        (KeyPolicy(), ["table"], True),
        (KeyPolicy(kek_per="day"), ["day"], True),
        (KeyPolicy(kek_per="partition"), ["table", "partition=part=x", "partition=part=y"], False),
        (KeyPolicy(kek_per="files", files=1), ["table"] + ["files"] * 4, False),
        (KeyPolicy(kek_per="files", files=9), ["table"] + ["files"] * 2, False),
        (KeyPolicy(wrapping="single"), [], False),
        (KeyPolicy(wrapping="single", kek_per="files"), [], False),
    ],
)
def test_a_table_by_each_policy(
    given: KeyPolicy, keks: list[str], java_reads: bool, java: Judge, tmp_path: Path
) -> None:
    table = reopen(two_appends(tmp_path / "t", given))
    assert KeyPolicy.of(table.metadata) == given
    rows = plain_rows(table.scan())
    assert rows == plain_rows(pa.concat_tables([ROWS, ROWS]))
    listed = table.keys().to_pylist()
    scopes = [str(key["scope"]).partition("=2")[0] for key in listed if key["kind"] == "KEK"]
    assert scopes == keks
    if java_reads:
        assert java.read(table.place.path) == rows
    else:
        with pytest.raises(JavaError):
            java.read(table.place.path)


def test_a_partition_whose_kek_is_destroyed_is_gone_and_the_others_read(
    tmp_path: Path, store: KeyStore
) -> None:
    table = two_appends(tmp_path / "t", STORED, store)
    assert table.metadata.kek_ids() == []
    scope = partition_scope("part=x")
    (gone,) = (key.id for key in store.keys().values() if key.scope == scope)
    store.replace([], drop=[gone])
    left = reopen(table, store)
    assert left.scan(filters="part = 'y'").column("id").to_pylist() == [3, 3]
    with pytest.raises(KeyNotFoundError) as raised:
        left.scan().to_arrow()
    assert repr(gone) in str(raised.value)
    with pytest.raises(KeyNotFoundError):  # without the store nothing reads
        reopen(table).scan(filters="part = 'y'").to_arrow()


def test_java_cannot_append_to_a_table_whose_keks_are_in_a_store(
    java: Judge, tmp_path: Path, store: KeyStore
) -> None:
    """With them in the table it would seal its manifest list under whichever KEK comes first."""
    for choice, appends in ((KeyPolicy(kek_per="partition"), True), (STORED, False)):
        table = two_appends(tmp_path / choice.store, choice, store)
        step = {"do": "append", "rows": [{"part": "z", "id": 4}]}
        if appends:
            new = open_table(java.commit(table.place.path, step), SampleKms())
            assert new.scan().num_rows == 7
        else:
            with pytest.raises(JavaError):
                java.commit(table.place.path, step)
            assert table.refreshed().place == table.place
