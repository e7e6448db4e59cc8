"""Data keys under KEKs and master keys: how often the service is asked, what does not unwrap."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import Key
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    TagMismatchError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import MemorySource
from modcrypt.kms.key_cache import REFUSAL_LIFETIME
from modcrypt.kms.wrapping import KeyWrapper, Refusals, require_opens
from modcrypt.pkmt1.material import KeyMaterial, external_name
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, MemoryKms
from tests.support.pkmt1 import open_base64, seal_base64

COLUMNS = [f"c{n:02}" for n in range(20)]
POLICY = mc.Policy(footer_key="kf", column_keys={"kc1": COLUMNS[:10], "kc2": COLUMNS[10:]})
SINGLE = replace(POLICY, double_wrapping=False)
TABLE = pa.table({name: [n, n + 1] for n, name in enumerate(COLUMNS)})

WAYS: dict[str, mc.Policy] = {"double": POLICY, "single": SINGLE}
each_way = each_case("way", WAYS)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wrapper(kms: MemoryKms, **options: Any) -> KeyWrapper:
    return KeyWrapper(kms, **{"cache_lifetime": 600.0, **options})


def wrap_key(kms: MemoryKms, key: Key | None = None, master: str = "kf") -> KeyMaterial:
    """Return the material of a data key wrapped under its own KEK."""
    kek = wrapper(kms).get_writing_kek(master)
    dek = kek.wrap(Key.generate() if key is None else key)
    return kek.material(dek, is_footer_key=False, internal=True)


# --- economy --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thousand() -> list[bytes]:
    """Return the footers' key metadata of a thousand files of twenty columns."""
    kms = MemoryKms()
    encryption = mc.KeyTools(kms).encryption(POLICY)
    found: list[bytes] = []
    for n in range(1000):
        properties = encryption.for_file(Place(None, f"/nowhere/{n}.parquet"))
        assert isinstance(properties.footer_key_metadata, bytes)
        found += [properties.footer_key_metadata, *properties.column_key_metadata.values()]
    assert len(found) == 1000 * 21
    assert [(call.operation, call.master_key_id) for call in kms.calls] == [
        ("wrap", "kf"),
        ("wrap", "kc1"),
        ("wrap", "kc2"),
    ]
    return found


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_a_thousand_files_of_twenty_columns_cost_one_unwrap_for_each_kek(
    threads: int, thousand: list[bytes]
) -> None:
    kms = MemoryKms(delay=0.01)
    retriever: Any = mc.KeyTools(kms).decryption().key_retriever
    keys = retriever.for_file(MemorySource(b""), False)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda metadata: keys.retrieve(metadata, "c"), thousand))
    assert len(set(found)) == 1000 * 21, "each file and column has a key of its own"
    assert sorted(call.master_key_id for call in kms.calls) == ["kc1", "kc2", "kf"]


def test_sixteen_threads_make_one_kek_for_each_master_key() -> None:
    kms = MemoryKms(delay=0.02)
    encryption = mc.KeyTools(kms).encryption(POLICY)
    start = threading.Barrier(16)

    def write(n: int) -> mc.FileEncryptionProperties:
        start.wait()
        return encryption.for_file(Place(None, f"/nowhere/{n}.parquet"))

    with ThreadPoolExecutor(16) as pool:
        files = list(pool.map(write, range(16)))
    assert sorted(call.master_key_id for call in kms.calls) == ["kc1", "kc2", "kf"]
    keys = {key for file in files for key in [file.footer_key, *file.column_keys.values()]}
    assert len(keys) == 16 * 21


def test_only_the_keys_of_columns_that_are_read_are_asked_for(tmp_path: Path) -> None:
    tools = mc.KeyTools(MemoryKms())
    path = tmp_path / "a.parquet"
    mc.write_table(TABLE, path, tools.encryption(SINGLE))
    kms = MemoryKms()
    kms.denied.add("kc2")
    table = mc.read_table(path, mc.KeyTools(kms).decryption(), columns=["c03", "c07"])
    assert table.equals(TABLE.select(["c03", "c07"]))
    assert [call.master_key_id for call in kms.calls] == ["kf", "kc1", "kc1"]


# --- single wrapping ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "calls"),
    [(1, {"kf": 1, "kc1": 10, "kc2": 10}), (4, {"kf": 1, "kc1": 3, "kc2": 3}), (200, {})],
)
def test_single_wrapping_wraps_a_files_keys_in_batches(
    batch: int, calls: dict[str, int], tmp_path: Path
) -> None:
    kms = MemoryKms(batch=batch)
    tools = mc.KeyTools(kms)
    mc.write_table(TABLE, tmp_path / "a.parquet", tools.encryption(SINGLE))
    for master in MASTERS:
        assert kms.count(None, master) == calls.get(master, 1)
    assert sum(call.keys for call in kms.calls) == 21
    kms.calls.clear()
    assert mc.read_table(tmp_path / "a.parquet", tools.decryption()).equals(TABLE)
    assert kms.count("unwrap") == 21


def test_one_master_key_for_footer_and_columns_is_asked_once() -> None:
    kms = MemoryKms(batch=50)
    policy = mc.Policy(footer_key="kf", column_keys={"kf": COLUMNS}, double_wrapping=False)
    mc.KeyTools(kms).encryption(policy).for_file(None)
    assert [(call.master_key_id, call.keys) for call in kms.calls] == [("kf", 21)]


@each_way
def test_aad_reaches_every_call(way: str, tmp_path: Path) -> None:
    kms = MemoryKms(aad=True, batch=3)
    policy = replace(WAYS[way], kms_aad="lake")
    tools = mc.KeyTools(kms, kms_aad=b"lake")
    mc.write_table(TABLE, tmp_path / "a.parquet", tools.encryption(policy))
    mc.read_table(tmp_path / "a.parquet", tools.decryption(policy))
    assert {call.aad for call in kms.calls} == {b"lake"}
    for other in (mc.KeyTools(kms), mc.KeyTools(kms, kms_aad="pond")):
        with pytest.raises(KeyMaterialError):
            mc.read_table(tmp_path / "a.parquet", other.decryption())


def test_tools_and_policy_must_agree_on_the_aad() -> None:
    tools = mc.KeyTools(MemoryKms(aad=True), kms_aad="lake")
    for use in (tools.encryption, tools.decryption):
        use(replace(POLICY, kms_aad="lake"))
        for other in (None, "pond"):
            with pytest.raises(ValueError, match="kms_aad"):
                use(replace(POLICY, kms_aad=other))


# --- what is kept, and how long -------------------------------------------------------------------


def test_a_kek_wraps_until_it_expires() -> None:
    kms, clock = MemoryKms(), Clock()
    keys = wrapper(kms, cache_lifetime=60.0, clock=clock)
    first = keys.get_writing_kek("kf")
    clock.now += 59.9
    assert keys.get_writing_kek("kf") is first
    clock.now += 0.2
    second = keys.get_writing_kek("kf")
    assert second.id != first.id
    assert second.wrapped != first.wrapped
    assert kms.count("wrap") == 2
    raw = [open_base64(MASTERS["kf"], metadata.wrapped, b"kf") for metadata in (first, second)]
    assert raw[0] != raw[1]


def test_a_kek_unwraps_until_it_expires() -> None:
    kms, clock = MemoryKms(), Clock()
    material = wrap_key(kms)
    kms.calls.clear()
    keys = wrapper(kms, cache_lifetime=60.0, clock=clock)
    for later, calls in [(0.0, 1), (59.9, 1), (0.2, 2), (59.0, 2), (100.0, 3)]:
        clock.now += later
        keys.unwrap(material)
        assert kms.count("unwrap") == calls


def test_a_revoked_key_is_noticed_when_the_kek_expires_or_is_forgotten() -> None:
    kms, clock = MemoryKms(), Clock()
    material = wrap_key(kms)
    keys = wrapper(kms, cache_lifetime=60.0, clock=clock)
    key = keys.unwrap(material)
    kms.disabled.add("kf")
    assert keys.unwrap(material) == key
    clock.now += 61
    with pytest.raises(KeyDisabledError):
        keys.unwrap(material)
    kms.disabled.clear()
    clock.now += 61
    assert keys.unwrap(material) == key
    kms.denied.add("kf")
    keys.forget()
    with pytest.raises(KeyAccessDeniedError):
        keys.unwrap(material)


def test_what_was_requested_before_keks_were_forgotten_is_not_kept() -> None:
    class Forgetting(MemoryKms):
        def unwrap(self, wrapped: str, master_key_id: str, **aad: bytes) -> bytes:
            key = super().unwrap(wrapped, master_key_id, **aad)
            keys.forget()
            return key

    kms = Forgetting()
    keys = wrapper(kms)
    material = wrap_key(kms)
    keys.unwrap(material)
    kms.denied.add("kf")
    with pytest.raises(KeyAccessDeniedError):
        keys.unwrap(material)


def test_with_a_lifetime_of_nothing_nothing_is_kept() -> None:
    kms = MemoryKms()
    keys = wrapper(kms, cache_lifetime=0.0, clock=Clock())
    assert keys.get_writing_kek("kf").id != keys.get_writing_kek("kf").id
    material = wrap_key(kms)
    kms.calls.clear()
    assert keys.unwrap(material) == keys.unwrap(material)
    assert kms.count("unwrap") == 2


@pytest.mark.parametrize("kind", [KeyAccessDeniedError, KeyDisabledError, KeyNotFoundError])
def test_a_refusal_is_kept_for_a_while_but_not_for_ever(kind: type[KeyRetrievalError]) -> None:
    kms, clock = MemoryKms(), Clock()
    material = wrap_key(kms)
    kms.calls.clear()
    refuse(kms, kind, "kf")
    keys = wrapper(kms, cache_lifetime=10_000.0, clock=clock)
    messages = set()
    for _ in range(5):
        with pytest.raises(kind) as caught:
            keys.unwrap(material)
        assert type(caught.value) is kind
        messages.add(str(caught.value))
    assert kms.count() == 1
    assert len(messages) == 1
    clock.now += REFUSAL_LIFETIME + 0.1
    with pytest.raises(kind):
        keys.unwrap(material)
    assert kms.count() == 2
    kms.denied.clear()
    kms.disabled.clear()
    kms.masters["kf"] = MASTERS["kf"]
    clock.now += REFUSAL_LIFETIME + 0.1
    keys.unwrap(material)
    assert kms.count() == 3


def refuse(kms: MemoryKms, kind: type[KeyRetrievalError], master: str) -> None:
    """Make the service refuse a master key with this error."""
    if kind is KeyNotFoundError:
        del kms.masters[master]
    else:
        (kms.disabled if kind is KeyDisabledError else kms.denied).add(master)


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (KmsUnavailableError("busy"), 1.1),
        (KeyRetrievalError("odd"), 0),
        (KeyMaterialError("odd"), 0),
        (ValueError(), 0),
    ],
    ids=repr,
)
def test_other_failures_are_not_kept(
    failure: Exception, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a second that the service was unavailable: other threads wait for the same KEK."""
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    kms, clock = MemoryKms(), Clock()
    material = wrap_key(kms)
    keys = wrapper(kms, clock=clock)
    kms.failures = [failure]
    with pytest.raises(KeyRetrievalError):
        keys.unwrap(material)
    clock.now += seconds
    keys.unwrap(material)
    kms.failures = [KeyAccessDeniedError("refused")]
    for _ in range(2):  # asked for once
        with pytest.raises(KeyAccessDeniedError):
            keys.get_writing_kek("kc1")
    clock.now += 31
    keys.get_writing_kek("kc1")


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (KeyAccessDeniedError, 1),
        (KeyDisabledError, 1),
        (KeyNotFoundError, 1),
        (KmsUnavailableError, 1),
    ],
)
def test_sixteen_threads_that_fail_together_asked_together(
    kind: type[KeyRetrievalError], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    kms = MemoryKms(delay=0.02)
    material = wrap_key(kms)
    kms.calls.clear()
    if kind is KmsUnavailableError:
        kms.unavailable = True
    else:
        refuse(kms, kind, "kf")
    keys = wrapper(kms, clock=Clock())
    start = threading.Barrier(16)

    def ask(_: int) -> str:
        start.wait()
        with pytest.raises(kind) as caught:
            keys.unwrap(material)
        return str(caught.value)

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ask, range(16)))) == 1
    assert kms.count() == calls


def test_threads_that_want_different_keks_do_not_wait_for_each_other() -> None:
    """One request stands until the other has come: they are under way together."""
    kms = MemoryKms()
    materials = [wrap_key(kms, master="kf"), wrap_key(kms, master="kc1")]
    met = threading.Barrier(2, timeout=30)

    class Meeting(MemoryKms):
        def unwrap(self, wrapped: str, master_key_id: str, **aad: bytes) -> bytes:
            met.wait()
            return super().unwrap(wrapped, master_key_id, **aad)

    keys = wrapper(Meeting())
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(keys.unwrap, materials))) == 2


def test_keks_of_several_lengths_are_kept_apart() -> None:
    kms = MemoryKms()
    keys = wrapper(kms)
    keks = [keys.get_writing_kek("kf", length, replaces=False) for length in (16, 32, 16, 32)]
    assert keks[0] is keks[2]
    assert keks[1] is keks[3]
    assert {len(key) for key in kms.learned} == {16, 32}
    assert kms.count() == 2


# --- what does not unwrap -------------------------------------------------------------------------


def test_the_kek_wraps_data_keys_as_the_key_tools_do() -> None:
    kms, dek = MemoryKms(), Key(b"D" * 24)
    material = wrap_key(kms, dek)
    assert material.kek_id is not None
    assert material.wrapped_kek is not None
    kek = open_base64(MASTERS["kf"], material.wrapped_kek, b"kf")
    assert open_base64(kek, material.wrapped_dek, material.kek_id) == b"D" * 24


def flip_bit(text: str, at: int = 20) -> str:
    """Flip one bit of base64-encoded bytes."""
    raw = bytearray(base64.b64decode(text))
    raw[at] ^= 1
    return base64.b64encode(raw).decode()


ALTERED: dict[str, Callable[[KeyMaterial], dict[str, Any]]] = {
    "DEK, a bit": lambda m: {"wrapped_dek": flip_bit(m.wrapped_dek)},
    "DEK, its nonce": lambda m: {"wrapped_dek": flip_bit(m.wrapped_dek, 0)},
    "DEK, its tag": lambda m: {"wrapped_dek": flip_bit(m.wrapped_dek, -1)},
    "DEK cut short": lambda m: {"wrapped_dek": m.wrapped_dek[:-8]},
    "DEK twice": lambda m: {"wrapped_dek": m.wrapped_dek * 2},
    "DEK is no base64": lambda m: {"wrapped_dek": "!" * 60},
    "DEK with a line end": lambda m: {"wrapped_dek": m.wrapped_dek + "\n"},
    "DEK is no ASCII": lambda m: {"wrapped_dek": "Ω" * 60},
    "KEK, a bit": lambda m: {"wrapped_kek": flip_bit(m.wrapped_kek or "")},
    "KEK, its tag": lambda m: {"wrapped_kek": flip_bit(m.wrapped_kek or "", -1)},
    "KEK id": lambda m: {"kek_id": bytes(16)},
    "another master key": lambda m: {"master_key_id": "kc1"},
    "no master key": lambda m: {"master_key_id": "none"},
    "the DEK as the KEK": lambda m: {"wrapped_kek": m.wrapped_dek},
    "the KEK as the DEK": lambda m: {"wrapped_dek": m.wrapped_kek or ""},
    "single wrapping": lambda m: {"kek_id": None, "wrapped_kek": None},
}


@each_case("what", ALTERED)
@each_case("before", [True, False], ids=["known", "unknown"])
def test_altered_material_does_not_unwrap_and_spoils_nothing(what: str, before: bool) -> None:
    kind = KeyNotFoundError if what == "no master key" else KeyMaterialError
    kms, dek = MemoryKms(), Key.generate()
    material = wrap_key(kms, dek)
    keys = wrapper(kms)
    if before:
        keys.unwrap(material)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            keys.unwrap(replace(material, **ALTERED[what](material)))
        assert type(caught.value) is kind
    assert keys.unwrap(material) == dek


def test_double_wrapping_taken_for_single_gives_the_kek_only_to_fail_at_the_footer(
    tmp_path: Path,
) -> None:
    """Who moves wrappedKEK to wrappedDEK has a KEK used as a data key: nothing opens under it."""
    path, beside = external_file(tmp_path, POLICY)

    def change(members: dict[str, Any]) -> None:
        members["wrappedDEK"], members["doubleWrapping"] = members["wrappedKEK"], False

    edit(beside, "footerKey", change)
    with pytest.raises(TagMismatchError):
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())


def test_keks_with_equal_ids_but_other_bytes_are_kept_apart() -> None:
    kek_id, deks = bytes(16), [b"D" * 16, b"E" * 16]
    materials = []
    for kek, dek in zip([b"K" * 16, b"L" * 16], deks, strict=True):
        materials.append(
            KeyMaterial(
                is_footer_key=False,
                master_key_id="kf",
                wrapped_dek=seal_base64(kek, dek, kek_id),
                kek_id=kek_id,
                wrapped_kek=seal_base64(MASTERS["kf"], kek, b"kf"),
            )
        )
    kms = MemoryKms()
    keys = wrapper(kms)
    for _ in range(3):
        assert [keys.unwrap(material) for material in materials] == [Key(dek) for dek in deks]
    assert kms.count() == 2
    crossed = replace(materials[0], wrapped_dek=materials[1].wrapped_dek)
    with pytest.raises(KeyMaterialError):
        keys.unwrap(crossed)


def test_equal_bytes_under_another_master_key_are_another_kek() -> None:
    """A KEK that is known is known for its master key alone, also where both keys are the same."""
    kms = MemoryKms({"kf": MASTERS["kf"], "copy": MASTERS["kf"]})
    material = wrap_key(kms)
    keys = wrapper(kms)
    keys.unwrap(material)
    with pytest.raises(KeyMaterialError):
        keys.unwrap(replace(material, master_key_id="copy"))


@pytest.mark.parametrize("length", [1, 15, 17, 20, 31, 33, 48])
def test_a_data_key_of_another_length_is_refused(length: int) -> None:
    kek, kek_id = b"K" * 16, bytes(16)
    material = KeyMaterial(
        is_footer_key=False,
        master_key_id="kf",
        wrapped_dek=seal_base64(kek, b"D" * length, kek_id),
        kek_id=kek_id,
        wrapped_kek=seal_base64(MASTERS["kf"], kek, b"kf"),
    )
    with pytest.raises(KeyMaterialError):
        wrapper(MemoryKms()).unwrap(material)
    with pytest.raises(KeyMaterialError):
        wrapper(MemoryKms()).unwrap(
            replace(
                material,
                kek_id=None,
                wrapped_kek=None,
                wrapped_dek=seal_base64(MASTERS["kf"], b"D" * length, b"kf"),
            )
        )


# --- what an attacker does with whole files -------------------------------------------------------


def external_file(folder: Path, policy: mc.Policy, name: str = "a.parquet") -> tuple[Path, Path]:
    """Write a file with external key material, which is easy to alter; return both paths."""
    tools = mc.KeyTools(MemoryKms())
    path = folder / name
    mc.write_table(TABLE, path, tools.encryption(replace(policy, internal_key_material=False)))
    beside = folder / external_name(name)
    store = json.loads(beside.read_text())
    assert len(list(mc.jobs.scan_keys(path, tools))) == 21
    assert "footerKey" in store
    return path, beside


def edit(beside: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the material of each key whose name begins so."""
    store = json.loads(beside.read_text())
    for reference in store:
        if reference.startswith(name):
            members = json.loads(store[reference])
            change(members)
            store[reference] = json.dumps(members)
    beside.write_text(json.dumps(store))


def swap(store: dict[str, str], one: str, other: str, members: tuple[str, ...]) -> None:
    first, second = json.loads(store[one]), json.loads(store[other])
    for member in members:
        first[member], second[member] = second[member], first[member]
    store[one], store[other] = json.dumps(first), json.dumps(second)


def columns_of(store: dict[str, str], master: str) -> list[str]:
    return [
        name
        for name, text in store.items()
        if name.startswith("columnKey") and json.loads(text)["masterKeyID"] == master
    ]


@each_way
def test_data_keys_that_change_places_open_no_page(way: str, tmp_path: Path) -> None:
    path, beside = external_file(tmp_path, WAYS[way])
    store = json.loads(beside.read_text())
    one, other = columns_of(store, "kc1")[:2]
    swap(store, one, other, ("wrappedDEK",))
    beside.write_text(json.dumps(store))
    tools = mc.KeyTools(MemoryKms())
    with pytest.raises(TagMismatchError) as caught:
        mc.read_table(path, tools.decryption())
    assert caught.value.module is not None
    others = [name for name in COLUMNS if f"column {name}" not in str(caught.value)][12:]
    assert mc.read_table(path, tools.decryption(), columns=others).num_rows == 2


@each_way
def test_whole_material_that_changes_places_opens_no_page(way: str, tmp_path: Path) -> None:
    """The confused deputy: a reader who may use both master keys is given the other's data key."""
    path, beside = external_file(tmp_path, WAYS[way])
    store = json.loads(beside.read_text())
    one, other = columns_of(store, "kc1")[0], columns_of(store, "kc2")[0]
    store[one], store[other] = store[other], store[one]
    beside.write_text(json.dumps(store))
    with pytest.raises(TagMismatchError):
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())


@each_way
def test_material_of_another_file_opens_nothing(way: str, tmp_path: Path) -> None:
    path, beside = external_file(tmp_path, WAYS[way])
    _, foreign = external_file(tmp_path, WAYS[way], "b.parquet")
    mine, theirs = json.loads(beside.read_text()), json.loads(foreign.read_text())
    # Where the names differ there is not even a key; so give the foreign keys this file's names.
    for master in MASTERS:
        for name, other in zip(columns_of(mine, master), columns_of(theirs, master), strict=True):
            mine[name] = theirs[other]
    beside.write_text(json.dumps(mine))
    with pytest.raises(KeyMaterialError, match=r"column \w+: .* to another file"):
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())
    unmarked = {name: json.loads(text) for name, text in mine.items()}
    for members in unmarked.values():  # as another implementation's rotation leaves it
        members.pop("modcryptWrite")
    beside.write_text(json.dumps({name: json.dumps(text) for name, text in unmarked.items()}))
    with pytest.raises(TagMismatchError) as caught:
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())
    assert "column" in str(caught.value)
    footer = json.loads(theirs["footerKey"])
    footer.pop("modcryptWrite")
    beside.write_text(json.dumps(dict.fromkeys(mine, json.dumps(footer))))
    with pytest.raises(TagMismatchError) as caught:
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())
    assert "footer" in str(caught.value)
    beside.write_bytes(foreign.read_bytes())
    with pytest.raises((KeyMaterialError, TagMismatchError)):
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())


def test_a_key_of_the_attackers_own_does_not_open_the_footer(tmp_path: Path) -> None:
    """Who may wrap under some master key that the reader may use can put a data key there, and no
    more: what it should open was sealed with another."""
    path, beside = external_file(tmp_path, POLICY)
    kek_id, kek = b"A" * 16, b"K" * 16

    def change(members: dict[str, Any]) -> None:
        members.update(
            masterKeyID="kc2",
            wrappedKEK=seal_base64(MASTERS["kc2"], kek, b"kc2"),
            keyEncryptionKeyID=base64.b64encode(kek_id).decode(),
            wrappedDEK=seal_base64(kek, b"D" * 16, kek_id),
        )

    edit(beside, "footerKey", change)
    with pytest.raises(TagMismatchError):
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())


@each_way
@each_case(
    ("member", "value", "kind"),
    [
        ("masterKeyID", "kc2", KeyMaterialError),
        ("masterKeyID", "none", KeyNotFoundError),
        ("wrappedDEK", base64.b64encode(bytes(44)).decode(), KeyMaterialError),
        ("wrappedDEK", "no base64!", KeyMaterialError),
        ("wrappedDEK", "\ud800", KeyMaterialError),
        ("keyMaterialType", "PKMT2", KeyMaterialError),
        ("doubleWrapping", "perhaps", KeyMaterialError),
    ],
)
def test_altered_material_in_a_file_has_its_error_and_names_the_column(
    way: str, member: str, value: str, kind: type[KeyRetrievalError], tmp_path: Path
) -> None:
    path, beside = external_file(tmp_path, WAYS[way])
    store = json.loads(beside.read_text())
    name = columns_of(store, "kc1")[0]
    edit(beside, name, lambda members: members.update({member: value}))
    with pytest.raises(kind) as caught:
        mc.read_table(path, mc.KeyTools(MemoryKms()).decryption())
    assert type(caught.value) is kind
    assert "column c0" in str(caught.value)


def test_swapped_key_metadata_within_files_does_not_open_them(tmp_path: Path) -> None:
    """Internal material lies in an unauthenticated part of the file: the footer's own."""
    tools = mc.KeyTools(MemoryKms())
    for name in ("a", "b"):
        mc.write_table(TABLE, tmp_path / name, tools.encryption(POLICY))
    first, second = (tmp_path / name for name in ("a", "b"))
    metadata = [_footer_material(metadata) for metadata in (first, second)]
    assert metadata[0] != metadata[1]
    assert len(metadata[0]) == len(metadata[1])
    first.write_bytes(first.read_bytes().replace(metadata[0], metadata[1]))
    with pytest.raises(TagMismatchError):
        mc.read_table(first, tools.decryption())


def _footer_material(path: Path) -> bytes:
    """Find the key material that begins the file crypto metadata."""
    data = path.read_bytes()
    start = data.rindex(b'{"keyMaterialType"')
    return data[start : data.index(b"}", start) + 1]


# --- a file that names many keys -----------------------------------------------------------------

WIDE = [f"c{n:03}" for n in range(60)]
WIDE_TABLE = pa.table({name: [n] for n, name in enumerate(WIDE)})


class Asked(MemoryKms):
    """A key service that knows any master key, but refuses some, and notes what it is asked."""

    def __init__(self, refuse: Callable[[str], Exception | None] = lambda master: None) -> None:
        super().__init__({**MASTERS, **{name: bytes(16) for name in WIDE}})
        self.refuse, self.asked = refuse, []  # type: ignore[var-annotated]

    def unwrap(self, wrapped: str, master_key_id: str, **options: bytes) -> bytes:
        self.asked.append(master_key_id)
        if (error := self.refuse(master_key_id)) is not None:
            raise error
        return super().unwrap(wrapped, master_key_id, **options)


def wide_file(tmp_path: Path, keys: dict[str, list[str]], **options: Any) -> Path:
    path = tmp_path / "wide.parquet"
    policy = mc.Policy(footer_key="kf", column_keys=keys, **options)
    mc.write_table(WIDE_TABLE, path, mc.KeyTools(Asked()).encryption(policy))
    return path


def alter_store(path: Path, change: Callable[[int, dict[str, Any]], object]) -> None:
    """Alter the external key material of all columns."""
    store = path.with_name(external_name(path.name))
    materials = json.loads(store.read_text())
    for number, name in enumerate(materials):
        if name != "footerKey":
            material = json.loads(materials[name])
            change(number, material)
            materials[name] = json.dumps(material)
    store.write_text(json.dumps(materials))


def other_kek(number: int, material: dict[str, Any]) -> None:
    material["keyEncryptionKeyID"] = base64.b64encode(number.to_bytes(16, "big")).decode()


def damaged_kek(number: int, material: dict[str, Any]) -> None:
    material["wrappedKEK"] = (
        material["wrappedKEK"][:8] + f"{number:04}" + material["wrappedKEK"][12:]
    )


@pytest.mark.parametrize("change", [other_kek, damaged_kek])
def test_forged_key_material_has_the_service_asked_a_few_times_alone(
    tmp_path: Path, change: Callable[[int, dict[str, Any]], object]
) -> None:
    path = wide_file(tmp_path, {"kc1": WIDE}, internal_key_material=False)
    alter_store(path, change)
    for read in (
        lambda tools: mc.verify_parquet(path, tools.decryption()),
        lambda tools: mc.read_table(path, tools.decryption(on_missing_key="null")),
        lambda tools: mc.read_table(path, tools.decryption()),
        lambda tools: mc.jobs.prove_shredded(str(path), tools, everything=True),
    ):
        kms = Asked()
        with contextlib.suppress(KeyMaterialError):
            assert not read(mc.KeyTools(kms)).ok
        assert len(kms.asked) <= 1 + 3


def test_made_up_master_keys_have_the_service_asked_a_few_times_alone(tmp_path: Path) -> None:
    path = wide_file(tmp_path, {"kc1": WIDE}, internal_key_material=False)
    alter_store(path, lambda number, material: material.update(masterKeyID=f"made-up-{number}"))
    kms = Asked(lambda master: None if master == "kf" else KeyAccessDeniedError("no"))
    assert not mc.verify_parquet(path, mc.KeyTools(kms).decryption()).complete
    assert len(kms.asked) <= 1 + 16
    with pytest.raises(KeyRetrievalError, match="read fewer columns at a time") as caught:
        mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="null"))
    assert not isinstance(caught.value, KeyAccessDeniedError)  # or columns would be null in silence


def test_columns_under_a_refused_master_key_are_null_after_a_few_questions(tmp_path: Path) -> None:
    path = wide_file(tmp_path, {"kc1": WIDE[:30], "kc2": WIDE[30:]}, double_wrapping=False)
    kms = Asked(lambda master: KeyDisabledError("off") if master == "kc1" else None)
    read = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="null"))
    for name in WIDE[:30]:
        assert read[name].null_count == 1
    assert read.select(WIDE[30:]) == WIDE_TABLE.select(WIDE[30:])
    assert kms.asked.count("kc1") == 3


def test_a_master_key_that_grants_some_keys_is_asked_for_all(tmp_path: Path) -> None:
    path = wide_file(tmp_path, {"kc1": WIDE}, double_wrapping=False)
    count = iter(range(1000))
    kms = Asked(lambda master: KeyDisabledError("off") if next(count) % 2 else None)
    read = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="null"))
    assert sum(read[name].null_count for name in WIDE) == 30


def answer_with(refusals: Refusals, master: str, error: Exception) -> None:
    """Have a service answer the request for a key with an error."""
    with refusals.count_refusals(master):
        raise error


def test_a_key_is_not_tried_after_three_damaged_ones() -> None:
    refusals = Refusals()
    for _ in range(3):
        with pytest.raises(KeyMaterialError, match="does not unwrap"):
            answer_with(refusals, "kf", KeyMaterialError("does not unwrap"))
    with pytest.raises(KeyMaterialError, match="key not tried, because 3 other keys"):
        answer_with(refusals, "kf", KeyMaterialError("does not unwrap"))


def test_a_master_key_that_refused_three_times_gives_its_last_answer() -> None:
    refusals = Refusals()
    for answer in ("first", "second", "third"):
        with pytest.raises(KeyDisabledError, match=answer):
            answer_with(refusals, "kf", KeyDisabledError(answer))
    with pytest.raises(KeyDisabledError, match="third"):
        answer_with(refusals, "kf", KeyDisabledError("fourth"))


def test_a_key_is_not_requested_after_sixteen_master_keys_refused() -> None:
    refusals = Refusals()
    for number in range(16):
        with pytest.raises(KeyAccessDeniedError):
            answer_with(refusals, f"k{number}", KeyAccessDeniedError("no"))
    with pytest.raises(KeyRetrievalError, match="16 other master keys"):
        answer_with(refusals, "k16", KeyAccessDeniedError("no"))
    with pytest.raises(KeyAccessDeniedError):
        answer_with(refusals, "k0", KeyAccessDeniedError("no"))


def test_locks_of_keks_are_dropped_after_the_request() -> None:
    kms = MemoryKms()
    reader, key = wrapper(kms), Key.generate()
    assert reader.unwrap(wrap_key(kms, key)) == key
    assert not reader._reading._locks


def test_a_full_cache_of_keks_and_refusals_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modcrypt.kms.key_cache.MAX_CACHED", 2)
    kms = MemoryKms()
    first, second = wrap_key(kms), wrap_key(kms)
    refused = wrap_key(kms, master="kc1")
    refuse(kms, KeyDisabledError, "kc1")
    reader = wrapper(kms)
    reader.unwrap(first)
    with pytest.raises(KeyDisabledError):
        reader.unwrap(refused)
    assert (len(reader._reading._known), len(reader._reading._refused)) == (1, 1)
    reader.unwrap(second)
    assert (len(reader._reading._known), len(reader._reading._refused)) == (1, 0)


@each_case("wrapped", ["!", "AAA", "AAAA", ""])
def test_altered_wraps_do_not_open_whatever_their_text(wrapped: str) -> None:
    """A rotation checks them before anything is replaced; their text need not be base64."""
    material = KeyMaterial(
        is_footer_key=False, master_key_id="kf", wrapped_dek=wrapped, kek_id=bytes(16),
        wrapped_kek="AAAA",
    )  # fmt: skip
    with pytest.raises(mc.errors.KeyMaterialError, match="nothing was replaced"):
        require_opens(material, mc.Key(bytes(range(16))))
