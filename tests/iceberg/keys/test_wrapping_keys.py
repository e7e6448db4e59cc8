"""Iceberg encryption keys, judged by what Java wrote and by `cryptography` alone."""

from __future__ import annotations

import base64
import copy
import dataclasses
import itertools
import json
import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
)
from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.format.table_metadata import SCOPE
from modcrypt.iceberg.keys.master_keys import MasterKeys, format_wrapped_key, wrapped_bytes
from modcrypt.iceberg.keys.wrapping_keys import (
    KEY_TIMESTAMP,
    TABLE,
    IcebergKey,
    OpenKey,
    new_key_id,
    wrapped_part,
)
from modcrypt.keys import Key
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.services.environment import EnvironmentKms
from tests.support.cases import each_case
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.kms.key_servers import error_text, leaks
from tests.support.kms.memory_kms import MemoryKms
from tests.support.shared_vectors import shared_vectors

DEK = bytes(range(0xA0, 0xB0))
PREFIX = bytes(range(0xC0, 0xD0))
METADATA = StandardKeyMetadata(key=DEK, aad_prefix=PREFIX, file_length=4735)
KEK = bytes(range(200, 232))
MADE = "1795237555590"
ODD_IDS = ["eE5v+/==", "k/../k", 'a"b\\c', "Schlüssel\n\x1b[31m", "\x00", "🔑" * 300, "0x81"]


def kek(id_: str = "kek-1", scope: str = "", timestamp: str = MADE) -> OpenKey:
    """Return a KEK of a known value."""
    properties = {KEY_TIMESTAMP: timestamp, **({SCOPE: scope} if scope else {})}
    return OpenKey(
        IcebergKey(id_, "keyA", b"wrapped", properties), MasterKeys(SampleKms()), Key(KEK)
    )


def single(master_key_id: str = "keyA") -> OpenKey:
    return OpenKey(IcebergKey.single(master_key_id), MasterKeys(SampleKms()))


def by_hand(*texts: str) -> bytes:
    """Return the AAD of what modcrypt alone writes: each text after its length."""
    return b"".join(len(t.encode()).to_bytes(4, "big") + t.encode() for t in texts)


def unseal(key: bytes, block: bytes, aad: bytes) -> bytes:
    return AESGCM(key).decrypt(block[:12], block[12:], aad)


def seal(key: bytes, plain: bytes, aad: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plain, aad)


# --- what Java wrote -----------------------------------------------------------------------------


def java_lists() -> dict[str, bytes]:
    """Return the plain key metadata of manifest lists, as Java printed it, by key id."""
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    pairs = re.findall(r"key-id (\S+)\n manifest-list key_metadata \(plain\) ([0-9a-f]+)", reported)
    return {key_id: bytes.fromhex(text) for key_id, text in pairs}


def test_java_entries_open(table: IcebergTable) -> None:
    resolver, metadata = table.walk.resolver, table.metadata
    expected = java_lists()
    opened = {
        snapshot.key_id: resolver.decrypt_entry(
            metadata.keys[str(snapshot.key_id)], metadata
        ).encode()
        for snapshot in metadata.snapshots
    }
    assert opened == expected
    assert len(expected) == 3


def test_what_is_sealed_under_javas_kek_opens_as_java_opens_it(
    table: IcebergTable, kms: SampleKms
) -> None:
    """By hand: unwrap the KEK, then AES-GCM with its timestamp as AAD."""
    resolver, metadata = table.walk.resolver, table.metadata
    (kek_id,) = metadata.kek_ids()
    entry = resolver.encrypt_entry(METADATA, resolver.open_key(resolver.find(kek_id, metadata)))
    document = entry.document()
    assert set(document) == {"key-id", "encrypted-key-metadata", "encrypted-by-id"}
    assert document["encrypted-by-id"] == kek_id
    assert len(base64.b64decode(document["key-id"], validate=True)) == 16
    java = metadata.keys[kek_id]
    raw = unseal(MASTERS["keyA"], java.encrypted, b"")
    block = base64.b64decode(document["encrypted-key-metadata"], validate=True)
    assert unseal(raw, block, java.properties["KEY_TIMESTAMP"].encode()) == METADATA.encode()


# --- by hand, both ways --------------------------------------------------------------------------

DOUBLE_AADS = {
    False: MADE.encode(),
    True: by_hand("modcrypt iceberg file", "kek-1", MADE, "partition=a=1"),
}


@pytest.mark.parametrize("in_manifest", [False, True])
def test_double_wrapping_opens_by_hand_and_what_was_sealed_by_hand_opens(in_manifest: bool) -> None:
    opened, aad = kek(scope="partition=a=1"), DOUBLE_AADS[in_manifest]
    block = opened.encrypt(METADATA, in_manifest=in_manifest)
    assert unseal(KEK, block, aad) == METADATA.encode()
    other = seal(KEK, METADATA.encode(), aad)
    assert opened.decrypt(other, in_manifest=in_manifest) == METADATA


REPORTED = {
    METADATA: b"\1" + (4735).to_bytes(8, "big") + PREFIX,
    StandardKeyMetadata(key=DEK): b"\0",
    StandardKeyMetadata(key=DEK, aad_prefix=PREFIX): b"\0" + PREFIX,
    StandardKeyMetadata(key=DEK, file_length=-1): b"\1" + b"\xff" * 8,
    StandardKeyMetadata(key=DEK, file_length=2**63 - 1): b"\1\x7f" + b"\xff" * 7,
    StandardKeyMetadata(key=DEK * 2, file_length=0): b"\1" + bytes(8),
}


@each_case("metadata", REPORTED)
@each_case("in_manifest", [False, True])
def test_single_wrapping_opens_by_hand_and_what_was_sealed_by_hand_opens(
    in_manifest: bool, metadata: StandardKeyMetadata
) -> None:
    place = "modcrypt iceberg file" if in_manifest else "modcrypt iceberg manifest list"
    aad = by_hand(place, "keyA")
    data = single().encrypt(metadata, in_manifest=in_manifest)
    size = int.from_bytes(data[:2], "big")
    dek = unseal(MASTERS["keyA"], data[2 : 2 + size], b"")
    assert Key(dek) == metadata.key
    assert wrapped_part(data) == data[2 : 2 + size]
    assert unseal(dek, data[2 + size :], aad) == REPORTED[metadata]
    wrapped = seal(MASTERS["keyA"], dek, b"")
    other = len(wrapped).to_bytes(2, "big") + wrapped + seal(dek, REPORTED[metadata], aad)
    assert single().decrypt(other, in_manifest=in_manifest) == metadata


@pytest.mark.parametrize("reported", [b"", b"\2", b"\1", b"\1" + bytes(7), b"\xff" * 9])
def test_single_wrapping_of_another_form_is_refused(reported: bytes) -> None:
    """Only who has the DEK can write it; still it must not end in another error."""
    wrapped = seal(MASTERS["keyA"], DEK, b"")
    tail = seal(DEK, reported, by_hand("modcrypt iceberg manifest list", "keyA"))
    with pytest.raises(KeyMaterialError):
        single().decrypt(len(wrapped).to_bytes(2, "big") + wrapped + tail)


# --- what it is bound to -------------------------------------------------------------------------

PLACES = [
    *((kek(id_, scope, made), there) for id_, scope, made, there in (
        ("kek-1", "", MADE, False), ("kek-1", "", MADE, True), ("kek-2", "", MADE, True),
        ("kek-1", "partition=a=1", MADE, True), ("kek-1", "partition=a=2", MADE, True),
        ("kek-1", "", "1795237555591", False), ("kek-1", "", "1795237555591", True),
    )),
    (single(), False), (single(), True),
]  # fmt: skip


def test_sealed_metadata_opens_in_its_own_place_alone() -> None:
    """Under the same key: not in another place, nor by another id, timestamp or scope.

    Double wrapping starts with a nonce, which may look like the length of a wrapped DEK: then the
    key service is asked, and refuses.
    """
    for (place, here), (other, there) in itertools.product(PLACES, PLACES):
        data = place.encrypt(METADATA, in_manifest=here)
        if place is other:
            assert other.decrypt(data, in_manifest=there) == METADATA
        else:
            unlike = place.key.is_double and not other.key.is_double
            with pytest.raises(KeyRetrievalError if unlike else KeyMaterialError):
                other.decrypt(data, in_manifest=there)


def test_a_nonce_that_looks_like_the_length_of_a_wrapped_key_is_refused() -> None:
    block = seal(KEK, METADATA.encode(), MADE.encode())
    with pytest.raises(KeyRetrievalError):
        single().decrypt(b"\0\x10" + block[2:])


def test_lists_are_bound_to_the_timestamp_alone_as_java_has_it() -> None:
    data = kek("kek-1").encrypt(METADATA)
    assert kek("kek-2").decrypt(data) == METADATA


def test_a_kek_that_another_master_key_wrapped_is_refused() -> None:
    masters = MasterKeys(SampleKms())
    made = masters.new_kek("keyB", 16)
    with pytest.raises(KeyRetrievalError):
        masters.open_key(dataclasses.replace(made.key, master_key_id="keyA"))
    data = OpenKey(IcebergKey.single("keyB"), masters).encrypt(METADATA)
    with pytest.raises(KeyRetrievalError):
        single("keyA").decrypt(data)


@given(st.data())
def test_any_altered_byte_is_refused(data: st.DataObject) -> None:
    opened, there = data.draw(st.sampled_from(PLACES))
    block = bytearray(opened.encrypt(METADATA, in_manifest=there))
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(KeyRetrievalError):
        opened.decrypt(bytes(block), in_manifest=there)


@given(st.data())
def test_what_is_cut_short_or_longer_is_refused(data: st.DataObject) -> None:
    opened, there = data.draw(st.sampled_from(PLACES))
    block = opened.encrypt(METADATA, in_manifest=there)
    cut = data.draw(st.integers(0, len(block) - 1))
    for other in (block[:cut], block[cut + 1 :], block + data.draw(st.binary(min_size=1))):
        with pytest.raises(KeyRetrievalError):
            opened.decrypt(other, in_manifest=there)


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_any_bytes_are_refused_by_modcrypts_own_errors(
    data: bytes, there: bool, double: bool
) -> None:
    with pytest.raises(ModcryptError):
        (kek() if double else single()).decrypt(data, in_manifest=there)


# --- ids, timestamps, lengths --------------------------------------------------------------------


@each_case("id_", ODD_IDS)
@each_case("in_manifest", [False, True])
def test_ids_and_scopes_may_have_any_characters(id_: str, in_manifest: bool) -> None:
    opened = kek(id_, scope=f"partition=x={id_}")
    assert opened.decrypt(
        opened.encrypt(METADATA, in_manifest=in_manifest), in_manifest=in_manifest
    )


def test_the_parts_of_what_it_is_bound_to_do_not_run_into_each_other() -> None:
    one, other = kek("a", scope="bc"), kek("a" + MADE, scope="", timestamp="1")
    data = one.encrypt(METADATA, in_manifest=True)
    with pytest.raises(KeyMaterialError):
        other.decrypt(data, in_manifest=True)


@each_case("timestamp", ["", "x", "-1", "1.0", "٣", "1\n", " 1", "9" * 19, "9" * 5000])
def test_a_kek_without_a_timestamp_is_none(timestamp: str) -> None:
    with pytest.raises(KeyMaterialError, match="KEY_TIMESTAMP"):
        IcebergKey("k", "keyA", b"x", {KEY_TIMESTAMP: timestamp})


@pytest.mark.parametrize("members", [("\ud800", "m", b"x", {}), ("\udfff", "m", None, {}),
                                     ("k", "m", b"x", {SCOPE: "\ud800"})])  # fmt: skip
def test_an_id_that_is_no_unicode_is_refused(members: Any) -> None:
    id_, master, wrapped, properties = members
    with pytest.raises(KeyMaterialError, match="not valid Unicode"):
        IcebergKey(id_, master, wrapped, {KEY_TIMESTAMP: MADE, **properties})


@pytest.mark.parametrize("length", [16, 24, 32])
def test_new_keks_have_the_length_and_properties_asked_for(length: int) -> None:
    masters = MasterKeys(SampleKms())
    made = masters.new_keks("keyA", length, ["", "day=2026-11-21"], table="uuid-1", now_ms=5)
    assert [opened.key.scope for opened in made] == ["", "day=2026-11-21"]
    assert made[0].key.properties == {KEY_TIMESTAMP: "5", TABLE: "uuid-1"}
    assert masters.new_kek("keyA", length, now_ms=6).key.properties == {KEY_TIMESTAMP: "6"}
    raw = {unseal(MASTERS["keyA"], opened.key.wrapped or b"", b"") for opened in made}
    assert {len(secret) for secret in raw} == {length}
    assert len(raw) == 2


@pytest.mark.parametrize("length", [0, 15, 33, -16])
def test_no_kek_of_another_length_is_made(length: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|negative"):
        MasterKeys(SampleKms()).new_kek("keyA", length)


def test_ids_are_random_and_like_javas() -> None:
    ids = {new_key_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(base64.b64decode(id_, validate=True)) for id_ in ids} == {16}


def test_a_master_key_is_no_entry() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        IcebergKey.single("keyA").entry()


# --- the key service: text there, bytes here -----------------------------------------------------


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9+/]{4,80}={0,2}", fullmatch=True))
def test_whatever_text_a_service_gives_comes_back_or_is_refused_at_once(text: str) -> None:
    try:
        kept = wrapped_bytes(text)
    except KeyMaterialError:
        assert not (text.isascii() and text.isprintable())
    else:
        assert format_wrapped_key(kept) == text


@given(st.binary(min_size=1, max_size=100))
def test_the_bytes_of_any_entry_come_back(data: bytes) -> None:
    assert (
        wrapped_bytes(format_wrapped_key(data)) == data or format_wrapped_key(data).encode() == data
    )


@pytest.mark.parametrize(
    "text", [base64.b64encode(b"vault:v1:abcd").decode(), base64.b64encode(b"x").decode(), "abcd"]
)
def test_base64_of_text_is_not_taken_for_that_text(text: str) -> None:
    assert format_wrapped_key(wrapped_bytes(text)) == text


def test_keys_are_wrapped_in_as_few_calls_as_the_service_allows() -> None:
    kms = MemoryKms({"m": bytes(16)}, batch=10)
    masters = MasterKeys(kms)
    assert len(masters.new_keks("m", 16, [""] * 25)) == 25
    opened = OpenKey(IcebergKey.single("m"), masters)
    many = [StandardKeyMetadata.generate() for _ in range(20)]
    blocks = opened.encrypt_many(many, in_manifest=True)
    assert (kms.count("wrap_many"), kms.count("unwrap"), kms.count()) == (3 + 2, 1, 6)
    assert [opened.decrypt(block, in_manifest=True) for block in blocks] == many
    kms.calls.clear()
    assert kek().encrypt_many([]) == []
    assert not kms.calls


def test_a_key_moves_inside_the_service_where_it_can() -> None:
    kms = MemoryKms({"m": bytes(16), "n": bytes(range(16))}, rewrap=True)
    masters = MasterKeys(kms)
    wrapped = masters.wrap(Key(DEK), "m")
    kms.calls.clear()
    again = masters.move(wrapped, "m", "m")
    assert [call.operation for call in kms.calls] == ["rewrap"]
    moved = masters.move(again, "m", "n")
    # Unwrapped twice, as nothing under it is there to open; the last one is the proof.
    operations = [call.operation for call in kms.calls]
    assert operations == ["rewrap", "unwrap", "unwrap", "wrap", "unwrap"]
    assert masters.unwrap(moved, "n") == Key(DEK)


class _Failing(SampleKms):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        raise self.error

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("keyA"), KeyNotFoundError),
        (PermissionError(DEK.hex()), KeyAccessDeniedError),
        (RuntimeError(DEK.hex()), KeyRetrievalError),
        (UnicodeDecodeError("utf-8", DEK, 0, 1, DEK.hex()), KeyRetrievalError),
    ],
)
def test_what_the_service_raises_is_a_key_retrieval_error(
    error: Exception, kind: type[KeyRetrievalError]
) -> None:
    masters = MasterKeys(_Failing(error))
    opened = OpenKey(IcebergKey.single("keyA"), masters)
    data = single().encrypt(METADATA)
    calls: list[Callable[[], object]] = [
        lambda: masters.new_kek("keyA", 16),
        lambda: masters.open_key(kek().key),
        lambda: masters.move(b"x" * 60, "keyA", "keyB"),
        lambda: opened.encrypt(METADATA),
        lambda: opened.decrypt(data),
    ]
    for call in calls:
        with pytest.raises(KeyRetrievalError) as raised:
            call()
        assert type(raised.value) is kind
        assert not leaks(error_text(raised.value), DEK)


@pytest.mark.parametrize("answer", ["", "zwei\nZeilen", "schlüssel", b"bytes", None, "A" * 20000])
def test_an_answer_that_a_table_cannot_keep_is_refused(answer: Any) -> None:
    class Odd(SampleKms):
        def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(KeyMaterialError):
        MasterKeys(Odd()).new_kek("keyA", 16)


# --- secrets -------------------------------------------------------------------------------------


def test_nothing_shows_a_key() -> None:
    raw = os.urandom(32)
    masters = MasterKeys(EnvironmentKms("MASTER", Key(raw)))
    made = masters.new_kek("MASTER", 16)
    kek_raw = unseal(raw, base64.b64decode(json.loads(made.key.wrapped or b"")["encryptedKey"]),
                       b"MASTER")  # fmt: skip
    made.encrypt(METADATA)  # from which on it has a cipher
    shown = [repr(made), str(made), f"{made}", repr(made.key), repr(masters), repr(vars(made))]
    shown += [repr(made.key.entry()), repr(dataclasses.fields(made)), repr([made])]
    data = made.encrypt(METADATA)
    calls: list[Callable[[], object]] = [
        lambda: made.decrypt(data[:-1]),
        lambda: kek().decrypt(data),
    ]
    for call in calls:
        with pytest.raises(KeyMaterialError) as raised:
            call()
        shown.append(error_text(raised.value))
    assert not leaks("\n".join(shown), raw, kek_raw, DEK, PREFIX)


@pytest.mark.parametrize(
    "copied",
    [pickle.dumps, copy.copy, copy.deepcopy, dataclasses.asdict],
    ids=["pickle", "copy", "deepcopy", "asdict"],
)
def test_an_open_key_is_not_copied(copied: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="can't be pickled"):
        copied(kek())


def test_a_closed_key_can_be_sent() -> None:
    made = MasterKeys(SampleKms()).new_kek("keyA", 16, "partition=a=1")
    sent = pickle.loads(pickle.dumps(made.key))
    assert sent == made.key
    assert MasterKeys(SampleKms()).open_key(sent).decrypt(made.encrypt(METADATA)) == METADATA
