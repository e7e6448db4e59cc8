"""The key metadata of files for recipients: what is written, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.key_info import key_info
from modcrypt.pkmt1.material import MAX_SHARED_METADATA, KeyMaterial, decode_metadata
from modcrypt.pkmt1.recipient_metadata import (
    MAX_RECIPIENTS,
    MAX_WRAPPED_KEK,
    RecipientMaterial,
    RecipientWrap,
    add_to_pkmt1,
    decode_recipients,
    list_recipient_ids,
    replace_recipients,
)
from tests.support.cases import each_case

KEK_ID = bytes(range(16))
DEK = base64.b64encode(bytes(60)).decode()
FIRST = RecipientWrap.encode_kek("x25519", bytes([1] * 16), bytes(80))
SECOND = RecipientWrap.encode_kek("mlkem768-x25519", bytes([2] * 16), bytes(1168))
FOOTER = RecipientMaterial(KEK_ID, DEK, (FIRST, SECOND))
COLUMN = RecipientMaterial(KEK_ID, DEK)
PKMT1 = KeyMaterial(is_footer_key=True, master_key_id="kä", wrapped_dek="w" * 60).encode()


@each_case("material", [FOOTER, COLUMN], ids=["footer", "column"])
def test_material_is_read_as_it_was_written(material: RecipientMaterial) -> None:
    assert decode_recipients(material.encode().encode()) == material
    assert decode_recipients(add_to_pkmt1(PKMT1, material).encode()) == material


def test_other_implementations_find_pkmt1_unchanged() -> None:
    both = add_to_pkmt1(PKMT1, FOOTER)
    assert {n: v for n, v in json.loads(both).items() if n in json.loads(PKMT1)} == json.loads(
        PKMT1
    )
    material = decode_metadata(both.encode())
    assert isinstance(material, KeyMaterial)
    assert material.master_key_id == "kä"
    assert decode_recipients(material.encode().encode()) == FOOTER  # a rotation keeps the member


@each_case("metadata", [b"", b"{}", PKMT1.encode(), b"\x00\x01", b"opaque"])
def test_other_key_metadata_has_no_recipients(metadata: bytes) -> None:
    assert decode_recipients(metadata) is None
    assert list_recipient_ids(metadata) == frozenset()


def test_recipients_are_replaced_and_removed() -> None:
    both = add_to_pkmt1(PKMT1, FOOTER).encode()
    assert decode_recipients(replace_recipients(both, COLUMN)) == COLUMN
    assert json.loads(replace_recipients(both, None)) == json.loads(PKMT1)
    assert replace_recipients(FOOTER.encode().encode(), COLUMN) == COLUMN.encode().encode()
    assert list_recipient_ids(both) == {FIRST.id, SECOND.id}
    for metadata in (FOOTER.encode().encode(), b"{}", b"[]"):
        with pytest.raises(KeyMaterialError):
            replace_recipients(metadata, None)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    members = json.loads(FOOTER.encode())
    change(members)
    return json.dumps(members).encode()


def first(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda members: members["recipients"][0].update({name: value})


FAULTS: dict[str, bytes] = {
    "no JSON": FOOTER.encode().encode()[:-1],
    "an array": b'["modcrypt-recipients"]',
    "a repeated member": FOOTER.encode().encode()[:-1] + b',"version":1}',
    "another type": changed(lambda m: m.update(keyMaterialType="modcrypt-recipients-2")),
    "another version": changed(lambda m: m.update(version=2)),
    "a version that is true": changed(lambda m: m.update(version=True)),
    "no version": changed(lambda m: m.pop("version")),
    "an unknown member": changed(lambda m: m.update(more=1)),
    "no DEK": changed(lambda m: m.pop("wrappedDEK")),
    "a DEK that is a number": changed(lambda m: m.update(wrappedDEK=1)),
    "a long DEK": changed(lambda m: m.update(wrappedDEK="A" * 200)),
    "a short id of the KEK": changed(lambda m: m.update(keyEncryptionKeyID="AAAA")),
    "an id of the KEK that is no base64": changed(lambda m: m.update(keyEncryptionKeyID="!")),
    "no recipients": changed(lambda m: m.update(recipients=[])),
    "recipients that are an object": changed(lambda m: m.update(recipients={})),
    "a recipient that is a string": changed(lambda m: m.update(recipients=["x"])),
    "a recipient twice": changed(lambda m: m.update(recipients=m["recipients"][:1] * 2)),
    "too many recipients": changed(
        lambda m: m.update(recipients=m["recipients"][:1] * (MAX_RECIPIENTS + 1))
    ),
    "a kind with a newline": changed(first("kind", "x25519\n")),
    "a long kind": changed(first("kind", "x" * 33)),
    "a kind that is a number": changed(first("kind", 1)),
    "a short id": changed(first("id", "AAAA")),
    "a long wrap": changed(first("wrappedKEK", "A" * (MAX_WRAPPED_KEK + 4))),
    "an empty wrap": changed(first("wrappedKEK", "")),
    "a wrap that is a list": changed(first("wrappedKEK", [])),
    "a recipient with more": changed(first("name", "x")),
    "a member of PKMT1 that is no string": json.dumps(
        {**json.loads(PKMT1), "modcryptRecipients": 1, "x": "modcrypt-recipients"}
    ).encode(),
    "a member of PKMT1 that is no JSON": json.dumps(
        {**json.loads(PKMT1), "modcryptRecipients": "modcrypt-recipients"}
    ).encode(),
    "too long": FOOTER.encode().encode() + b" " * MAX_SHARED_METADATA,
    "deeply nested": b'{"keyMaterialType":"modcrypt-recipients","x":' + b"[" * 100_000,
}


@each_case("fault", FAULTS)
def test_malformed_material_is_refused_without_repeating_it(fault: str) -> None:
    with pytest.raises(KeyMaterialError) as caught:
        decode_recipients(FAULTS[fault])
    assert "AAAAA" not in str(caught.value)
    assert key_info(FAULTS[fault]).recipients == ()


def test_inspection_describes_recipients() -> None:
    info = key_info(FOOTER.encode().encode())
    assert (info.kind, str(info)) == ("recipients", "2 recipients")
    assert info.recipients == (FIRST.id.hex(), SECOND.id.hex())
    both = key_info(add_to_pkmt1(PKMT1, FOOTER).encode())
    assert str(both) == "PKMT1, master key kä, single wrapping, 2 recipients"
    assert key_info(COLUMN.encode().encode()).kind == "recipients"


def test_a_wrap_is_decoded_by_its_recipient_alone() -> None:
    assert FIRST.decode_kek() == bytes(80)
    spare, _ = (decode_recipients(changed(first("wrappedKEK", "AB=="))) or FOOTER).recipients or ()
    with pytest.raises(KeyMaterialError, match="base64"):
        spare.decode_kek()


def test_the_repr_hides_wrapped_keys() -> None:
    assert DEK not in repr(FOOTER)
    assert "wrapped" not in repr(FIRST)
