"""Finding and keeping Iceberg encryption keys: who is asked, how often, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.errors import (
    FormatError,
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.format.table_metadata import SCOPE, EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_resolver import (
    KeyResolver,
    encrypt_for_manifest,
    encrypting_key,
    is_encrypted_metadata,
    open_from_manifest,
)
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.iceberg.keys.wrapping_keys import KEY_TIMESTAMP, TABLE, IcebergKey
from modcrypt.keys import Key
from modcrypt.keys.metadata import StandardKeyMetadata
from tests.support.cases import each_case
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.sleeps import note_sleeps

METADATA = StandardKeyMetadata(key=bytes(range(0xA0, 0xB0)), aad_prefix=b"p" * 16, file_length=77)


class MemoryStore:
    """A key store in memory, which counts who reads it."""

    def __init__(self, *keys: IcebergKey) -> None:
        self.kept = {key.id: key for key in keys}
        self.reads = 0

    def keys(self) -> Mapping[str, IcebergKey]:
        self.reads += 1
        return dict(self.kept)

    def replace(self, keys: Iterable[IcebergKey], drop: Iterable[str] = ()) -> None:
        self.kept |= {key.id: key for key in keys}
        for id_ in drop:
            self.kept.pop(id_, None)


def new_key(master: str = "keyA", scope: str = "", table: str | None = None) -> IcebergKey:
    return MasterKeys(SampleKms()).new_kek(master, 16, scope, table=table).key


def with_keys(table: IcebergTable, *keys: EncryptedKey) -> TableMetadata:
    return table.metadata.with_keys([*table.metadata.keys.values(), *keys])


# --- how often the service is asked --------------------------------------------------------------


class SlowKms(SampleKms):
    """Takes its time for one key, and counts who is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.inside = threading.Event()
        self.slow = ""

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        if wrapped == self.slow:
            self.inside.set()
            assert self.held.wait(20)
        return super().unwrap(wrapped, master_key_id, aad=aad)


def slow_kms(key: IcebergKey) -> SlowKms:
    kms = SlowKms()
    kms.slow = base64.b64encode(key.wrapped or b"").decode()
    return kms


def test_of_many_threads_that_want_one_kek_one_asks() -> None:
    key = new_key()
    kms = slow_kms(key)
    keys = KeyResolver(kms)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(keys.open_key, key) for _ in range(8)]
        assert kms.inside.wait(20)
        kms.held.set()
        assert len({id(future.result()) for future in futures}) == 1
    assert kms.calls == [("unwrap", "keyA")]
    assert not keys._open._locks  # nothing is left of whoever waited


def test_nobody_waits_for_another_key() -> None:
    first, second = new_key(), new_key()
    kms = slow_kms(first)
    keys = KeyResolver(kms)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(keys.open_key, first)
        assert kms.inside.wait(20)
        assert pool.submit(keys.open_key, second).result(20).key is second
        assert not slow.done()
        kms.held.set()
        assert slow.result(20).key is first


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_meanwhile_does_not_wait_for_its_parents_thread() -> None:
    key = new_key()
    kms = slow_kms(key)
    keys = KeyResolver(kms)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(keys.open_key, key)
        assert kms.inside.wait(20)
        child = os.fork()
        if child == 0:
            kms.slow = ""
            opened = keys.open_key(key)
            os._exit(0 if opened.decrypt(opened.encrypt(METADATA)) == METADATA else 1)
        end = time.monotonic() + 20
        while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        if status[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
        kms.held.set()
        slow.result(20)
    assert status == (child, 0)


@pytest.mark.parametrize(
    ("error", "kind", "seconds"),
    [
        (PermissionError(), KeyAccessDeniedError, 30),
        (LookupError(), KeyNotFoundError, 30),
        (TimeoutError(), KmsUnavailableError, 1),
        (RuntimeError(), KeyRetrievalError, 0),
    ],
)
def test_a_refusal_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[KeyRetrievalError],
    seconds: int,
) -> None:
    """Ten thousand files may have a KEK that is refused."""
    note_sleeps(monkeypatch)
    key, kms = new_key(), SampleKms()
    asked = list[str]()

    def refuse(wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        asked.append(master_key_id)
        raise error

    keys = KeyResolver(kms)
    start = time.monotonic()

    def open_entry(after: float, by: Any) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: start + after)
        monkeypatch.setattr(kms, "unwrap", by)
        keys.open_key(key)

    for after in (0, max(seconds - 0.1, 0)):
        with pytest.raises(KeyRetrievalError, match=re.escape(repr(key.id))) as raised:
            open_entry(after, refuse)
        assert type(raised.value) is kind
    if seconds == 1:
        assert len(asked) > 1  # an unavailable service is asked again
    else:
        assert len(asked) == {30: 1, 0: 2}[seconds]
    open_entry(seconds + 0.1, partial(SampleKms.unwrap, kms))
    open_entry(seconds + 0.1, refuse)


def test_a_kek_is_asked_for_again_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Iceberg's Java: so that a revoked right counts in a process that lives long."""
    kms, key = SampleKms(), new_key()
    keys = KeyResolver(kms)
    for now, calls in ((1000.0, 1), (4599.0, 1), (4601.0, 2), (8200.0, 2)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        keys.open_key(key)
        assert len(kms.calls) == calls


def test_a_kek_that_was_made_here_is_not_asked_for() -> None:
    kms = SampleKms()
    keys = KeyResolver(kms)
    opened = keys.cache_key(keys.masters.new_kek("keyA", 16))
    assert keys.open_key(opened.key) is opened
    assert kms.calls == [("wrap", "keyA"), ("unwrap", "keyA")]  # the proof of the wrap


# --- what may be asked ---------------------------------------------------------------------------


def forge_key(table: IcebergTable, master: str) -> tuple[TableMetadata, EncryptedKey]:
    """Do as somebody who may write metadata.json, and use a master key other than the table's."""
    own = MasterKeys(SampleKms()).new_kek(master, 16)
    entry = EncryptedKey("mine", own.encrypt(METADATA), own.key.id)
    return with_keys(table, own.key.entry(), entry), entry


def test_a_kek_under_a_master_key_that_the_table_is_not_under_is_refused(
    table: IcebergTable, kms: SampleKms
) -> None:
    metadata, entry = forge_key(table, "keyB")
    with pytest.raises(KeyMaterialError, match="'keyB', which is not the table's"):
        table.walk.resolver.decrypt_entry(entry, metadata)
    assert not kms.calls
    metadata, entry = forge_key(table, "keyA")  # whoever may use the table's own may do this
    assert table.walk.resolver.decrypt_entry(entry, metadata) == METADATA


def test_a_manifest_list_that_another_master_key_wraps_is_refused(
    table: IcebergTable, kms: SampleKms
) -> None:
    for master, refused in (("keyB", True), ("keyA", False)):
        keys = KeyResolver(kms)
        entry = keys.encrypt_entry(METADATA, keys.open_key(IcebergKey.single(master)))
        assert (entry.encrypted_by, entry.properties) == (master, {"modcrypt.wrapping": "single"})
        metadata = with_keys(table, entry)
        kms.calls.clear()
        if refused:
            with pytest.raises(KeyMaterialError, match="'keyB', which is not the table's"):
                keys.decrypt_entry(entry, metadata)
            assert not kms.calls
        else:
            assert keys.decrypt_entry(entry, metadata) == METADATA


@pytest.mark.parametrize(
    ("allowed", "opens"), [(["keyA", "keyB"], True), (["keyA"], False), ([], False)]
)
def test_the_caller_may_say_which_master_keys_are_expected(
    table: IcebergTable, allowed: list[str], opens: bool
) -> None:
    metadata, entry = forge_key(table, "keyB")
    key = new_key("keyB")
    keys = KeyResolver(SampleKms(), MemoryStore(key), master_key_ids=allowed)
    if opens:
        assert keys.decrypt_entry(entry, metadata) == METADATA
        assert keys.find(key.id, metadata) == key
        return
    for call in (lambda: keys.decrypt_entry(entry, metadata), lambda: keys.find(key.id, metadata)):
        with pytest.raises(KeyMaterialError, match="none of those expected"):
            call()


def test_a_text_given_for_a_list_of_master_keys_expects_none(table: IcebergTable) -> None:
    for ids in ("keyA", "keyA, keyB"):
        keys = KeyResolver(SampleKms(), master_key_ids=ids)
        with pytest.raises(KeyMaterialError, match="none of those expected"):
            keys.find(table.metadata.kek_ids()[0], table.metadata)


# --- a store -------------------------------------------------------------------------------------


def test_a_kek_that_is_nowhere_is_named(table: IcebergTable) -> None:
    stored = (MemoryStore(new_key()), "nor in the key store$")
    for store, where in ((None, "no key_store was given$"), stored):
        with pytest.raises(KeyNotFoundError, match=rf"'no\\nsuch'.*{where}"):
            KeyResolver(SampleKms(), store).find("no\nsuch", table.metadata)


def test_a_store_is_read_once_for_many_keys_and_again_for_a_new_one(table: IcebergTable) -> None:
    one, two = new_key(), new_key()
    store = MemoryStore(one, two)
    keys = KeyResolver(SampleKms(), store)
    for _ in range(5):
        assert keys.find(one.id, table.metadata) == one
        assert keys.find(two.id, table.metadata) == two
    assert store.reads == 1
    late = new_key()
    store.replace([late])
    assert keys.find(late.id, table.metadata) == late
    assert store.reads == 2
    assert late.id in keys.keks(table.metadata)


def test_a_store_is_not_read_again_for_each_file_of_a_lost_key(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, late = MemoryStore(), new_key()
    keys = KeyResolver(SampleKms(), store)
    for _ in range(3):
        with pytest.raises(KeyNotFoundError):
            keys.find(late.id, table.metadata)
    assert store.reads == 1
    store.replace([late])  # from a backup
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert keys.find(late.id, table.metadata) == late


def test_a_store_serves_several_tables(table: IcebergTable) -> None:
    own, others, anyones = new_key(table=table.metadata.uuid), new_key(table="another"), new_key()
    keys = KeyResolver(SampleKms(), MemoryStore(own, others, anyones))
    java = table.metadata.kek_ids()
    assert list(keys.keks(table.metadata)) == [*java, own.id, anyones.id]
    assert own.properties[TABLE] == table.metadata.uuid
    with pytest.raises(KeyNotFoundError):
        keys.find(others.id, table.metadata)


def test_the_tables_own_kek_goes_before_one_of_the_same_id_in_a_store(table: IcebergTable) -> None:
    (java,) = table.metadata.kek_ids()
    false = dataclasses.replace(new_key(), id=java)
    keys = KeyResolver(SampleKms(), MemoryStore(false))
    assert keys.keks(table.metadata)[java] == keys.find(java, table.metadata) != false


def test_a_kek_that_was_moved_to_another_master_key_meanwhile_opens(table: IcebergTable) -> None:
    """A MEK rotation in another process, after which the old master key refuses."""

    class Rotated(SampleKms):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            if master_key_id == "keyA":
                raise PermissionError
            return super().unwrap(wrapped, master_key_id, aad=aad)

    old = new_key()
    store = MemoryStore(old)
    keys = KeyResolver(Rotated(), store)
    found = keys.find(old.id, table.metadata)
    masters = MasterKeys(SampleKms())
    new = dataclasses.replace(
        old, wrapped=masters.move(old.wrapped or b"", "keyA", "keyB"), master_key_id="keyB"
    )
    block = masters.open_key(old).encrypt(METADATA)
    store.replace([new])
    assert keys.open_key(found).decrypt(block) == METADATA
    assert keys.find(old.id, table.metadata) == new


@pytest.mark.parametrize("change", [{}, {"scope": "day=2026-01-01"}, {"table": "another"}])
def test_a_kek_that_does_not_unwrap_is_not_taken_from_the_store_unlooked_at(
    table: IcebergTable, change: dict[str, str]
) -> None:
    """Who may write metadata.json and the store, but not use keyA, can have keyA refuse."""
    (java,) = table.metadata.kek_ids()
    broken = dataclasses.replace(table.metadata.keys[java], encrypted=b"\xff" * 44)
    metadata = table.metadata.with_keys([broken])
    master = "keyA" if change else "keyB"
    theirs = dataclasses.replace(new_key(master, **change), id=java)
    keys = KeyResolver(SampleKms(), MemoryStore(theirs), master_key_ids=["keyA"])
    with pytest.raises(KeyRetrievalError, match=r"none of those expected|refuses"):
        keys.open_key(keys.find(java, metadata))


def test_key_metadata_in_a_manifest_under_an_unexpected_master_key(table: IcebergTable) -> None:
    kms = SampleKms()
    sealed = encrypt_for_manifest([METADATA], KeyResolver(kms).open_key(IcebergKey.single("keyB")))[
        0
    ]
    assert KeyResolver(kms).open_metadata(sealed, table.metadata) == METADATA
    kms.calls.clear()
    with pytest.raises(KeyMaterialError, match="none of those expected"):
        KeyResolver(kms, master_key_ids=["keyA"]).open_metadata(sealed, table.metadata)
    assert not kms.calls


# --- in manifests --------------------------------------------------------------------------------


@each_case("id_", ["k", "eE5v+/==", "Schlüssel\n\x00\x1b", "🔑" * 16000, "x" * 65535])
@each_case("double", [True, False])
def test_metadata_in_a_manifest_goes_there_and_back(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, id_: str, double: bool
) -> None:
    monkeypatch.setitem(MASTERS, id_, bytes(range(16)))
    keys = KeyResolver(SampleKms())
    key = dataclasses.replace(new_key(), id=id_) if double else IcebergKey.single(id_)
    opened = keys.open_key(key)
    data = encrypt_for_manifest([METADATA], opened)[0]
    name = id_.encode()
    assert data[:3] == bytes((0x81 if double else 0x82,)) + len(name).to_bytes(2, "big")
    assert data[3 : 3 + len(name)] == name
    assert is_encrypted_metadata(data)
    assert encrypting_key(data) == (id_, not double)
    metadata = with_keys(table, key.entry()) if double else table.metadata
    assert keys.open_metadata(data, metadata) == METADATA
    assert open_from_manifest(data, opened) == METADATA


def test_the_sealed_part_opens_by_hand(table: IcebergTable) -> None:
    keys = KeyResolver(SampleKms())
    opened = keys.masters.new_kek("keyA", 32, "partition=a=ü", now_ms=1795237555590)
    (data,) = encrypt_for_manifest([METADATA], opened)
    wrapped = opened.key.wrapped or b""
    kek = AESGCM(MASTERS["keyA"]).decrypt(wrapped[:12], wrapped[12:], None)
    texts = ("modcrypt iceberg file", opened.key.id, "1795237555590", "partition=a=ü")
    aad = b"".join(len(t.encode()).to_bytes(4, "big") + t.encode() for t in texts)
    block = data[3 + len(opened.key.id) :]
    assert AESGCM(kek).decrypt(block[:12], block[12:], aad) == METADATA.encode()


def test_metadata_in_the_clear_stays_what_it_is(table: IcebergTable) -> None:
    data = METADATA.encode()
    assert not is_encrypted_metadata(data)
    assert table.walk.resolver.open_metadata(data, table.metadata) == METADATA


def test_an_id_that_is_too_long_is_refused_before_anything_is_sealed() -> None:
    kms = SampleKms()
    opened = KeyResolver(kms).open_key(IcebergKey.single("x" * 65536))
    with pytest.raises(ValueError, match="65535"):
        encrypt_for_manifest([METADATA], opened)
    assert not kms.calls


def test_what_another_key_sealed_is_refused() -> None:
    masters = MasterKeys(SampleKms())
    one, other = masters.new_kek("keyA", 16), masters.new_kek("keyA", 16)
    (data,) = encrypt_for_manifest([METADATA], one)
    for refused in (data, METADATA.encode(), b"", b"\x81", b"\x81\x00\x00"):
        with pytest.raises(KeyMaterialError, match=r"is not encrypted with key|names no key"):
            open_from_manifest(refused, other)
    for nameless in (b"\x81\0\0" + data, b"\x82", b"\x81\xff\xff" + data, b"\x82\0\1\xff"):
        with pytest.raises(KeyMaterialError, match="names no key"):
            encrypting_key(nameless)


def test_a_kek_whose_scope_was_changed_opens_nothing_in_manifests(table: IcebergTable) -> None:
    """Or writers could be led to seal a partition under the key of another one."""
    keys = KeyResolver(SampleKms())
    opened = keys.masters.new_kek("keyA", 16, "partition=a=1")
    data = encrypt_for_manifest([METADATA], opened)[0]
    entry = opened.key.entry()
    changed = dataclasses.replace(entry, properties={**entry.properties, SCOPE: "partition=a=2"})
    with pytest.raises(KeyMaterialError):
        KeyResolver(SampleKms()).open_metadata(data, with_keys(table, changed))


def test_a_kek_that_was_dropped_takes_what_it_sealed_with_it(table: IcebergTable) -> None:
    keys = KeyResolver(SampleKms(), store := MemoryStore())
    first, second = (keys.masters.new_kek("keyA", 16, f"partition=a={n}") for n in (1, 2))
    store.replace([first.key, second.key])
    (one,), (two,) = (encrypt_for_manifest([METADATA], opened) for opened in (first, second))
    store.replace([], drop=[first.key.id])
    fresh = KeyResolver(SampleKms(), store)
    with pytest.raises(KeyNotFoundError) as raised:
        fresh.open_metadata(one, table.metadata)
    assert first.key.id in str(raised.value)
    assert fresh.open_metadata(two, table.metadata) == METADATA


JAVA_LIKE = MasterKeys(SampleKms()).new_kek("keyA", 16, "partition=a=1")
DOCUMENT = {"format-version": 3, "location": "/w", "table-uuid": "u",
            "properties": {"encryption.key-id": "keyA"}}  # fmt: skip


def small(*keys: EncryptedKey) -> TableMetadata:
    return TableMetadata(json.dumps(DOCUMENT).encode()).with_keys(keys)


@given(st.data())
def test_any_altered_byte_in_a_manifest_is_refused(data: st.DataObject) -> None:
    keys = KeyResolver(SampleKms())
    single = keys.open_key(IcebergKey.single("keyA"))
    opened = data.draw(st.sampled_from([JAVA_LIKE, single]))
    block = bytearray(encrypt_for_manifest([METADATA], opened)[0])
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((FormatError, KeyRetrievalError)):
        keys.open_metadata(bytes(block), small(JAVA_LIKE.key.entry()))


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x81", b"\x82", b"\x82\0\4keyA"]))
def test_any_bytes_in_a_manifest_are_refused_by_modcrypts_own_errors(
    data: bytes, head: bytes
) -> None:
    with pytest.raises(ModcryptError):
        KeyResolver(SampleKms()).open_metadata(head + data, small(JAVA_LIKE.key.entry()))


_TEXTS = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=12)
_PROPERTIES = st.dictionaries(
    st.sampled_from([KEY_TIMESTAMP, SCOPE, TABLE, "modcrypt.wrapping"]) | _TEXTS,
    st.sampled_from(["single", "1795237555590", "9" * 25]) | _TEXTS,
)


@given(
    st.binary(min_size=1, max_size=80), _TEXTS.filter(bool) | st.just("keyA"), _PROPERTIES,
    _TEXTS.filter(bool),
)  # fmt: skip
def test_any_entry_is_refused_by_modcrypts_own_errors(
    data: bytes, by: str, properties: dict[str, str], id_: str
) -> None:
    """As a metadata.json could have it."""
    keys = KeyResolver(SampleKms())
    metadata = small()
    metadata.keys.update({id_: (entry := EncryptedKey(id_, data, by, properties))})
    with pytest.raises(ModcryptError):
        keys.decrypt_entry(entry, metadata)
    with pytest.raises(ModcryptError):
        keys.open_key(keys.find(id_, metadata))


# --- the whole table -----------------------------------------------------------------------------


def test_a_table_whose_kek_was_moved_into_a_store_reads(t16: Path, table: IcebergTable) -> None:
    """By hand: the KEK taken out of metadata.json and put into a store, under another master."""
    (java,) = table.metadata.kek_ids()
    key = IcebergKey.of(table.metadata.keys[java])
    moved = MasterKeys(SampleKms()).move(key.wrapped or b"", "keyA", "keyB")
    rest = [entry for entry in table.metadata.keys.values() if entry.id != java]
    (t16 / "metadata" / "v2.metadata.json").write_bytes(table.metadata.with_keys(rest).encode())

    def reopen(store: Any) -> IcebergTable:
        return open_table(t16, SampleKms(), location_map=both(t16), key_store=store)

    there = MemoryStore(dataclasses.replace(key, wrapped=moved, master_key_id="keyB"))
    assert reopen(there).scan().num_rows == 137
    for wrong in (None, MemoryStore(), MemoryStore(new_key())):
        with pytest.raises(KeyNotFoundError) as raised:
            reopen(wrong).scan().to_arrow()
        assert java in str(raised.value)
    assert reopen(there).keys().column("store").to_pylist()[0] == "key store"


def test_a_resolver_shows_and_sends_no_key() -> None:
    key = Key.generate(16)
    keys = KeyResolver(SampleKms())
    opened = keys.cache_key(dataclasses.replace(keys.masters.new_kek("keyA", 16), _kek=key))
    assert repr(keys) == "KeyResolver(SampleKms)"
    assert "REDACTED" in repr(opened._kek)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(keys)
