"""Key material PKMT1: what is taken from a file, what is refused, what is never done with it."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.material import (
    KeyMaterial,
    KeyReference,
    decode_material,
    decode_metadata,
    decode_store,
    encode_store,
    external_name,
)
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MemoryKms
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table

KEK_ID = bytes(range(16))

INTERNAL: dict[str, Any] = {
    "keyMaterialType": "PKMT1",
    "internalStorage": True,
    "isFooterKey": True,
    "kmsInstanceID": "DEFAULT",
    "kmsInstanceURL": "https://attacker.example/",
    "masterKeyID": "kf",
    "wrappedDEK": "d3JhcHBlZA==",
    "doubleWrapping": True,
    "keyEncryptionKeyID": base64.b64encode(KEK_ID).decode(),
    "wrappedKEK": "S0VL",
}
"""As parquet-java spells the material of a footer key."""

EXTERNAL = {name: value for name, value in INTERNAL.items() if name != "internalStorage"}
REFERENCE = {"keyMaterialType": "PKMT1", "internalStorage": False, "keyReference": "columnKey0"}


def to_json(members: Any, **changes: Any) -> bytes:
    """Return members as JSON; changing one to `...` removes it."""
    changed = {name: value for name, value in {**members, **changes}.items() if value is not ...}
    return json.dumps(changed).encode()


# --- what is taken --------------------------------------------------------------------------------


def test_internal_material_is_taken_member_by_member() -> None:
    found = decode_metadata(to_json(INTERNAL))
    assert found == KeyMaterial(
        is_footer_key=True,
        master_key_id="kf",
        wrapped_dek="d3JhcHBlZA==",
        kek_id=KEK_ID,
        wrapped_kek="S0VL",
        internal=True,
        instance=("DEFAULT", "https://attacker.example/"),
    )
    assert found.double_wrapping
    assert found.master_wrapped == "S0VL"


def test_single_wrapping_has_no_kek_even_if_one_is_named() -> None:
    """The members of double wrapping count only where the material says that it is wrapped so."""
    found = decode_metadata(to_json(INTERNAL, doubleWrapping=False))
    assert isinstance(found, KeyMaterial)
    assert (found.kek_id, found.wrapped_kek) == (None, None)
    assert not found.double_wrapping
    assert found.master_wrapped == "d3JhcHBlZA=="


def test_external_material_and_its_reference_are_taken() -> None:
    assert decode_metadata(to_json(REFERENCE)) == KeyReference("columnKey0")
    assert decode_metadata(KeyReference("footerKey").encode()) == KeyReference("footerKey")
    found = decode_material(to_json(EXTERNAL).decode())
    assert not found.internal
    assert found.kek_id == KEK_ID


def test_truth_values_may_be_strings_as_in_older_parquet_java() -> None:
    old = to_json(INTERNAL, internalStorage="true", isFooterKey="true", doubleWrapping="true")
    assert decode_metadata(old) == decode_metadata(to_json(INTERNAL))
    assert decode_metadata(to_json(REFERENCE, internalStorage="false")) == KeyReference(
        "columnKey0"
    )
    single = decode_metadata(to_json(INTERNAL, doubleWrapping="false", isFooterKey="false"))
    assert isinstance(single, KeyMaterial)
    assert (single.double_wrapping, single.is_footer_key) == (False, False)


def test_unknown_members_are_kept() -> None:
    others = {"futureMember": "x", "number": 7, "ratio": 0.5, "none": None, "yes": True}
    found = decode_material(to_json(EXTERNAL, **others).decode())
    assert found.others == others
    again = json.loads(found.encode())
    assert {name: again[name] for name in others} == others


def test_another_master_key_changes_what_it_wraps_and_nothing_else() -> None:
    double = decode_material(to_json(EXTERNAL, more="kept").decode())
    moved = json.loads(double.with_master_wrapped("NEW=", "k2").encode())
    assert moved == {**json.loads(double.encode()), "wrappedKEK": "NEW=", "masterKeyID": "k2"}
    single = decode_material(to_json(EXTERNAL, doubleWrapping=False).decode())
    moved = json.loads(single.with_master_wrapped("NEW=", "k2").encode())
    assert moved == {**json.loads(single.encode()), "wrappedDEK": "NEW=", "masterKeyID": "k2"}


# --- what is written ------------------------------------------------------------------------------


@each_case("footer", [True, False])
@each_case("double", [True, False])
@each_case("internal", [True, False])
def test_material_is_spelt_with_the_members_that_parquet_java_looks_for(
    footer: bool, double: bool, internal: bool
) -> None:
    members = json.loads(
        KeyMaterial(
            is_footer_key=footer,
            master_key_id="kf",
            wrapped_dek="REVL",
            kek_id=KEK_ID if double else None,
            wrapped_kek="S0VL" if double else None,
            internal=internal,
        ).encode()
    )
    expected: dict[str, Any] = {
        "keyMaterialType": "PKMT1",
        "isFooterKey": footer,
        "masterKeyID": "kf",
        "wrappedDEK": "REVL",
        "doubleWrapping": double,
    }
    if internal:
        expected["internalStorage"] = True
    if footer:
        expected |= {"kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"}
    if double:
        expected |= {
            "keyEncryptionKeyID": base64.b64encode(KEK_ID).decode(),
            "wrappedKEK": "S0VL",
        }
    assert members == expected


def test_the_reference_is_spelt_as_parquet_java_spells_it() -> None:
    assert json.loads(KeyReference("columnKey0").encode()) == REFERENCE


def test_a_reference_says_which_run_wrote_it() -> None:
    """Others pass such a member over: so PyArrow and parquet-java do, elsewhere in the tests."""
    marked = KeyReference("columnKey0", "0123456789abcdef")
    assert decode_metadata(marked.encode()) == marked
    members = json.loads(marked.encode())
    assert {name: members[name] for name in REFERENCE} == REFERENCE


@pytest.mark.parametrize("mark", [5, None, True, "", "../..", "0123456789ABCDEF", "0" * 17])
def test_a_mark_of_another_form_is_none(mark: Any) -> None:
    (name,) = json.loads(KeyReference("x", "0" * 16).encode()).keys() - REFERENCE.keys()
    assert decode_metadata(to_json(REFERENCE, **{name: mark})) == KeyReference("columnKey0")


def test_the_file_of_key_material_is_named_after_its_data_file() -> None:
    assert external_name("part-0.parquet") == "_KEY_MATERIAL_FOR_part-0.parquet.json"


def test_material_shows_neither_wrapped_key_nor_address() -> None:
    shown = repr(decode_metadata(to_json(INTERNAL, futureMember="much")))
    for hidden in ("d3JhcHBlZA", "S0VL", "attacker", "much"):
        assert hidden not in shown


# --- what is refused ------------------------------------------------------------------------------

WRONG_METADATA: dict[str, bytes] = {
    "nothing": b"",
    "a key": b"0123456789012345",
    "no JSON": b"{",
    "no object": b'["PKMT1"]',
    "a number": b"1",
    "null": b"null",
    "two objects": to_json(INTERNAL) * 2,
    "no UTF-8": to_json(INTERNAL).replace(b"kf", b"\xff\xfe"),
    "UTF-16": to_json(INTERNAL).decode().encode("utf-16"),
    "UTF-16 without a mark": to_json(INTERNAL).decode().encode("utf-16-le"),
    "UTF-32": to_json(INTERNAL).decode().encode("utf-32"),
    "byte order mark": b"\xef\xbb\xbf" + to_json(INTERNAL),
    "no type": to_json(INTERNAL, keyMaterialType=...),
    "another type": to_json(INTERNAL, keyMaterialType="PKMT2"),
    "type in a list": to_json(INTERNAL, keyMaterialType=["PKMT1"]),
    "a member twice": to_json(INTERNAL)[:-1] + b',"masterKeyID":"kf"}',
    "a member twice within": to_json(INTERNAL, more={}).replace(b"{}", b'{"a":1,"a":1}'),
    "NaN": to_json(INTERNAL, more=float("nan")),
    "Infinity": to_json(INTERNAL, more=float("-inf")),
    "no storage": to_json(INTERNAL, internalStorage=...),
    "storage is a number": to_json(INTERNAL, internalStorage=1),
    "storage is null": to_json(INTERNAL, internalStorage=None),
    "storage in capitals": to_json(INTERNAL, internalStorage="True"),
    "no isFooterKey": to_json(INTERNAL, isFooterKey=...),
    "isFooterKey is 0": to_json(INTERNAL, isFooterKey=0),
    "no doubleWrapping": to_json(INTERNAL, doubleWrapping=...),
    "doubleWrapping is a list": to_json(INTERNAL, doubleWrapping=[True]),
    "no master key": to_json(INTERNAL, masterKeyID=...),
    "master key of no letters": to_json(INTERNAL, masterKeyID=""),
    "master key is a number": to_json(INTERNAL, masterKeyID=1),
    "master key of 1025 letters": to_json(INTERNAL, masterKeyID="k" * 1025),
    "master key with a control character": to_json(INTERNAL, masterKeyID="k\n2026 ERROR forged"),
    "master key with an escape": to_json(INTERNAL, masterKeyID="k\x1b[2J"),
    "master key with a half of a pair": to_json(INTERNAL, masterKeyID="k\ud800"),
    "master key that runs backwards": to_json(INTERNAL, masterKeyID="k\u202efk"),
    "no DEK": to_json(INTERNAL, wrappedDEK=...),
    "DEK of no letters": to_json(INTERNAL, wrappedDEK=""),
    "DEK is a list": to_json(INTERNAL, wrappedDEK=["x"]),
    "DEK of 16385 letters": to_json(INTERNAL, wrappedDEK="x" * 16385),
    "DEK with a half of a pair": to_json(INTERNAL, wrappedDEK="\ud800"),
    "no KEK": to_json(INTERNAL, wrappedKEK=...),
    "KEK is null": to_json(INTERNAL, wrappedKEK=None),
    "KEK of 16385 letters": to_json(INTERNAL, wrappedKEK="x" * 16385),
    "KEK with a half of a pair": to_json(INTERNAL, wrappedKEK="\udfff"),
    "no KEK id": to_json(INTERNAL, keyEncryptionKeyID=...),
    "KEK id of 15 bytes": to_json(INTERNAL, keyEncryptionKeyID="AAECAwQFBgcICQoLDA0O"),
    "KEK id of 17 bytes": to_json(INTERNAL, keyEncryptionKeyID="AAECAwQFBgcICQoLDA0ODxA="),
    "KEK id with a stray letter": to_json(INTERNAL, keyEncryptionKeyID="!AAECAwQFBgcICQoLDA0ODw=="),
    "KEK id is no ASCII": to_json(INTERNAL, keyEncryptionKeyID="Ω" * 24),
    "KEK id is a number": to_json(INTERNAL, keyEncryptionKeyID=5),
    "no reference": to_json(REFERENCE, keyReference=...),
    "reference of no letters": to_json(REFERENCE, keyReference=""),
    "reference is null": to_json(REFERENCE, keyReference=None),
    "reference of 1025 letters": to_json(REFERENCE, keyReference="r" * 1025),
    "reference with a line end": to_json(REFERENCE, keyReference="a\nb"),
    "64 KiB and one": to_json(INTERNAL).ljust((64 << 10) + 1),
    "deep": b'{"keyMaterialType":"PKMT1","a":' + b"[" * 60_000,
    "deep and closed": b'{"keyMaterialType":"PKMT1","a":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "a long number": to_json(INTERNAL, more=0).replace(b": 0}", b": " + b"9" * 60_000 + b"}"),
}


def test_metadata_of_64_kib_and_names_of_1024_letters_are_taken() -> None:
    assert decode_metadata(to_json(REFERENCE, keyReference="r" * 1024)) == KeyReference("r" * 1024)
    found = decode_metadata(to_json(INTERNAL, masterKeyID="k" * 1024).ljust(64 << 10))
    assert isinstance(found, KeyMaterial)
    assert found.master_key_id == "k" * 1024


@each_case("data", WRONG_METADATA.values(), WRONG_METADATA)
def test_anything_else_is_refused_and_not_repeated(data: bytes) -> None:
    with pytest.raises(KeyMaterialError) as caught:
        decode_metadata(data)
    shown = str(caught.value)
    assert shown.isprintable()
    for part in ("d3JhcHBlZA", "S0VL", "attacker", "forged", "0123456789"):
        assert part not in shown


def test_metadata_of_other_key_retrievers_is_named_so() -> None:
    with pytest.raises(KeyMaterialError, match=r"PKMT1.*did not use the key tools"):
        decode_metadata(b'{"keyMaterialType":"OWN","id":5}')


@each_case(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"footerKey":{}}',
        b'{"footerKey":null}',
        b'{"footerKey":1}',
        b'{"footerKey":"a","footerKey":"b"}',
        b'{"footerKey":"a"',
        b'{"' + b"r" * 1025 + b'":"a"}',
        '{"footerKey":"a"}'.encode("utf-16"),
        b'{"footerKey":"\xff"}',
        b"[" * 100_000,
    ],
    ids=range(12),
)
def test_a_store_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(KeyMaterialError):
        decode_store(data)


def test_external_material_that_is_too_long_is_refused() -> None:
    text = to_json(EXTERNAL).decode()
    assert decode_material(text.ljust(64 << 10))
    with pytest.raises(KeyMaterialError):
        decode_material(text.ljust((64 << 10) + 1))


# --- anything at all ------------------------------------------------------------------------------

NAMES = st.sampled_from([*INTERNAL, "keyReference", "other", ""])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["PKMT1", "true", "false", "AAECAwQFBgcICQoLDA0ODw==", "\ud800", "k"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def nearly_material(draw: st.DrawFn) -> bytes:
    """Return material with a few members changed or removed."""
    members = dict(draw(st.sampled_from([INTERNAL, EXTERNAL, REFERENCE])))
    members |= draw(st.dictionaries(NAMES, VALUES, max_size=3))
    for name in draw(st.lists(NAMES, max_size=2)):
        members.pop(name, None)
    return json.dumps(members).encode()


@st.composite
def damaged_material(draw: st.DrawFn) -> bytes:
    """Return the bytes of material with a few changes."""
    data = bytearray(to_json(draw(st.sampled_from([INTERNAL, REFERENCE]))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@given(st.binary(max_size=200) | nearly_material() | damaged_material())
@example(to_json(INTERNAL, more=0).replace(b": 0}", b": 1e999}"))
@example(to_json(INTERNAL, more="\ud800"))
@example(to_json(INTERNAL, more={"a": [1]}))
@example(to_json(INTERNAL, more=10**400))
def test_any_bytes_give_material_a_reference_or_a_key_material_error(data: bytes) -> None:
    try:
        found = decode_metadata(data)
    except KeyMaterialError:
        return
    if isinstance(found, KeyReference):
        assert decode_metadata(found.encode()) == found
        return
    assert isinstance(found, KeyMaterial)
    # What is taken can be written again, or a rotation would lose it.
    assert decode_metadata(found.encode().encode()) == with_instance(found)


@given(st.text(max_size=200) | nearly_material().map(bytes.decode))
@example(to_json(EXTERNAL, more=0).decode().replace(": 0}", ": -1e999}"))
def test_any_text_of_a_store_gives_material_or_a_key_material_error(text: str) -> None:
    try:
        found = decode_material(text)
    except KeyMaterialError:
        return
    assert decode_material(found.encode()) == with_instance(found)


def with_instance(material: KeyMaterial) -> KeyMaterial:
    """Name the default instance where none is named, as parquet-java wants it for a footer key."""
    if not material.is_footer_key:
        return material
    name, url = material.instance
    return replace(material, instance=(name or "DEFAULT", url or "DEFAULT"))


@given(st.binary(max_size=200) | st.dictionaries(st.text(), VALUES).map(lambda d: to_json(d)))
def test_any_bytes_give_a_store_or_a_key_material_error(data: bytes) -> None:
    try:
        found = decode_store(data)
    except KeyMaterialError:
        return
    assert all(isinstance(name, str) and isinstance(text, str) for name, text in found.items())
    assert decode_store(encode_store(found)) == found


@each_case("depth", [10, 100, 300, 500, 700, 900, 940, 980])
def test_what_is_read_can_be_written_from_deeper_in_the_stack(depth: int) -> None:
    more = "[" * depth + "]" * depth
    try:
        found = decode_material(to_json(EXTERNAL, more=0).decode().replace(": 0}", f": {more}}}"))
    except KeyMaterialError:
        return

    def deeper(levels: int) -> str:
        return found.encode() if not levels else deeper(levels - 1)

    assert decode_material(deeper(60))


# --- the address in a file ------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Note who opens a socket or asks for an address, and refuse it."""
    tried: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        tried.append(arguments)
        raise AssertionError("nothing is to be contacted")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    yield tried
    assert tried == []


class Nosy(MemoryKms):
    """A service that would notice if anything but its own arguments came to it."""

    def wrap(self, *arguments: Any, **options: Any) -> str:
        self._look(arguments, options)
        return super().wrap(*arguments, **options)

    def unwrap(self, *arguments: Any, **options: Any) -> bytes:
        self._look(arguments, options)
        return super().unwrap(*arguments, **options)

    @staticmethod
    def _look(arguments: Any, options: Any) -> None:
        assert len(arguments) == 2
        assert options == {}
        assert "attacker" not in repr(arguments)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("url", ["https://attacker.example:1/", "http://127.0.0.1:9/", "\x1b\n"])
@pytest.mark.parametrize("double", [True, False])
def test_the_address_of_a_key_service_in_a_file_is_never_used(
    url: str, double: bool, tmp_path: Path
) -> None:
    """CVE-2026-73334: parquet-java sends its access token there."""
    policy = mc.Policy(footer_key="kf", double_wrapping=double, internal_key_material=False)
    path = tmp_path / "a.parquet"
    mc.write_table(small_table(), path, mc.KeyTools(MemoryKms()).encryption(policy))
    beside = tmp_path / external_name("a.parquet")
    store = json.loads(beside.read_text())
    for name, text in store.items():
        store[name] = json.dumps(
            {**json.loads(text), "kmsInstanceURL": url, "kmsInstanceID": "attacker"}
        )
    beside.write_text(json.dumps(store))
    kms = Nosy()
    tools = mc.KeyTools(kms)
    assert mc.read_table(path, tools.decryption(policy)).equals(small_table())
    assert kms.count() == 1
    assert [result.result for result in mc.jobs.rotate_keys(tmp_path, tools, what="mek")] == [
        "rotated"
    ]
    assert mc.read_table(path, tools.decryption(policy)).equals(small_table())
    for key in mc.jobs.scan_keys(tmp_path, tools):
        assert "attacker" not in repr(key)


@pytest.mark.parametrize(
    "value", [5, None, True, "x" * 20_000], ids=["number", "null", "true", "long"]
)
def test_an_address_of_another_form_is_passed_over(value: Any) -> None:
    found = decode_metadata(to_json(INTERNAL, kmsInstanceURL=value, kmsInstanceID=value))
    assert isinstance(found, KeyMaterial)
    assert json.loads(found.encode())["kmsInstanceURL"] == "DEFAULT"


# --- what others wrote ----------------------------------------------------------------------------


def entries(writer: str) -> list[dict[str, Any]]:
    """Return the manifest's files whose keys are wrapped by the key tools."""
    manifest = json.loads((shared_vectors() / writer / "manifest.json").read_text())
    return [entry for entry in manifest["entries"] if entry.get("kms")]


def materials(entry: dict[str, Any], folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Return key metadata and data key of the footer and of each column."""
    enc = entry["enc"]

    def metadata_bytes(metadata: dict[str, str]) -> bytes:
        return metadata["utf8"].encode() if "utf8" in metadata else bytes.fromhex(metadata["hex"])

    if enc["footer_key_metadata"]:
        yield metadata_bytes(enc["footer_key_metadata"]), bytes.fromhex(enc["footer_key"])
    for column in (enc["columns"] or {}).values():
        if column.get("key_metadata") and column["key"]:
            yield metadata_bytes(column["key_metadata"]), bytes.fromhex(column["key"])


@pytest.mark.parametrize("writer", ["parquet-java", "pyarrow"])
def test_material_of_other_writers_leads_to_the_keys_that_they_used(writer: str) -> None:
    folder = shared_vectors() / writer
    seen = 0
    for entry in entries(writer):
        path = folder / entry["file"]
        masters = {name: bytes.fromhex(key) for name, key in _masters(entry).items()}
        wrapper = mc.KeyTools(MemoryKms(masters)).wrapper
        for metadata, key in materials(entry, folder):
            found = decode_metadata(metadata)
            if isinstance(found, KeyReference):
                beside = path.with_name(external_name(path.name))
                found = decode_material(decode_store(beside.read_bytes())[found.name])
            assert wrapper.unwrap(found) == mc.Key(key), entry["file"]
            seen += 1
    assert seen >= 5


def _masters(entry: dict[str, Any]) -> dict[str, str]:
    kms = entry["kms"]
    found: dict[str, str] = kms["master_keys"]
    return found


FURTHER = {
    "the data key last": "",
    "another member after it": ',"x":1',
    "a second data key": ',"wrappedDEK":"AAAA"',
}


@each_case("more", FURTHER.values(), FURTHER)
def test_key_material_with_the_data_key_last_is_decoded_as_any_other(more: str) -> None:
    members = {name: value for name, value in INTERNAL.items() if name != "wrappedDEK"}
    head = json.dumps(members, separators=(",", ":"))[:-1]
    for dek in ("QUJD", "REVG", "QUJD\\u0041"):  # the second shares the head with the first
        metadata = f'{head},"wrappedDEK":"{dek}"{more}}}'.encode()
        if more.startswith(',"wrapped'):
            with pytest.raises(KeyMaterialError, match="not valid key material"):
                decode_metadata(metadata)
            continue
        material = decode_metadata(metadata)
        assert isinstance(material, KeyMaterial)
        assert material.wrapped_dek == json.loads(f'"{dek}"')
        assert (material.master_key_id, material.wrapped_kek) == ("kf", "S0VL")


MALFORMED = {
    "not JSON": b"x",
    "not PKMT1": b'{"keyMaterialType":"other"',
    "in a string": b'{"keyMaterialType":"PKMT1","x":"y',
    "nested": b'{"keyMaterialType":"PKMT1","x":{"y":1',
}


@each_case("head", MALFORMED.values(), MALFORMED)
def test_a_malformed_head_is_refused_every_time(head: bytes) -> None:
    for dek in (b"QUJD", b"REVG"):
        with pytest.raises(KeyMaterialError):
            decode_metadata(head + b',"wrappedDEK":"' + dek + b'"}')
