"""Key metadata encrypted under a key service: opened by other code, and refused when altered."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import pytest

from modcrypt.errors import KeyDisabledError, KeyMaterialError, KeyNotFoundError, KeyRetrievalError
from modcrypt.keys import Key
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.wrapped_key_metadata import (
    MAX_ENCRYPTED,
    decrypt_key_metadata,
    encrypt_key_metadata,
    is_encrypted,
)
from modcrypt.kms.wrapping import KeyWrapper
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, MemoryKms
from tests.support.pkmt1 import open_base64, seal_base64

KEY = bytes(range(1, 33))
METADATA = StandardKeyMetadata(key=KEY[:16], aad_prefix=b"prefix of 16 b.!", file_length=1_000_000)


def wrapper(kms: MemoryKms | None = None) -> KeyWrapper:
    return KeyWrapper(kms or MemoryKms(), cache_lifetime=600.0)


def encrypt(metadata: StandardKeyMetadata = METADATA, **changes: Any) -> bytes:
    """Return encrypted key metadata with members changed; None removes one."""
    members = json.loads(encrypt_key_metadata(wrapper(), metadata, "kf")) | changes
    return json.dumps({k: v for k, v in members.items() if v is not None}).encode()


@each_case("size", [16, 24, 32])
@each_case(("prefix", "length"), [(None, None), (b"p", 7), (b"", 0)])
def test_it_comes_back(size: int, prefix: bytes | None, length: int | None) -> None:
    metadata = StandardKeyMetadata(key=KEY[:size], aad_prefix=prefix, file_length=length)
    data = encrypt_key_metadata(wrapper(), metadata, "kf")
    found = decrypt_key_metadata(wrapper(), data)  # by another wrapper, which kept nothing
    assert found.encode() == metadata.encode()


@pytest.mark.parametrize("size", [16, 24, 32])
def test_other_code_opens_it(size: int) -> None:
    data = encrypt_key_metadata(wrapper(), StandardKeyMetadata(key=KEY[:size]), "kf")
    assert data.endswith(b"}\n")
    assert is_encrypted(data)
    members = json.loads(data)
    kek = open_base64(MASTERS["kf"], members.pop("wrappedKEK"), b"kf")
    assert len(kek) == size  # no weaker than the key that it encrypts
    kek_id = base64.b64decode(members.pop("keyEncryptionKeyID"))
    assert len(kek_id) == 16
    plain = open_base64(kek, members.pop("wrappedKeyMetadata"), kek_id)
    assert plain == bytes([1, 2 * size]) + KEY[:size] + b"\0\0"
    assert members == {"modcryptKeyMetadata": 1, "masterKeyID": "kf"}


def test_it_opens_what_other_code_encrypted() -> None:
    kek, kek_id = os.urandom(16), os.urandom(16)
    members = {
        "keyEncryptionKeyID": base64.b64encode(kek_id).decode(),
        "wrappedKEK": seal_base64(MASTERS["kc1"], kek, b"kc1"),
        "modcryptKeyMetadata": 1,
        "masterKeyID": "kc1",
        "wrappedKeyMetadata": seal_base64(kek, METADATA.encode(), kek_id),
    }
    found = decrypt_key_metadata(wrapper(), json.dumps(members, indent=1).encode())
    assert (found.key, found.aad_prefix) == (Key(KEY[:16]), b"prefix of 16 b.!")
    assert found.file_length == 1_000_000


def test_neither_key_nor_kek_is_in_it() -> None:
    data = encrypt_key_metadata(wrapper(), METADATA, "kf")
    for secret in (KEY[:16], b"prefix of 16 b.!", MASTERS["kf"]):
        for text in (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")):
            assert text not in data


def flip_last_bit(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("name", ["wrappedKeyMetadata", "keyEncryptionKeyID", "wrappedKEK"])
def test_an_altered_member_is_found_out(name: str) -> None:
    members = json.loads(encrypt())
    decrypt_key_metadata(wrapper(), json.dumps(members).encode())
    altered = members | {name: flip_last_bit(members[name])}
    with pytest.raises(KeyRetrievalError):
        decrypt_key_metadata(wrapper(), json.dumps(altered).encode())


def test_that_of_another_file_is_found_out() -> None:
    other = json.loads(encrypt())["wrappedKeyMetadata"]
    with pytest.raises(KeyMaterialError, match="does not decrypt under its KEK"):
        decrypt_key_metadata(wrapper(), encrypt(wrappedKeyMetadata=other))


def test_what_is_no_key_metadata_inside_is_found_out() -> None:
    kms = wrapper()
    kek = kms.get_writing_kek("kf")
    inside = base64.b64encode(kek.cipher.encrypt_block(b"\1\2\3", kek.id)).decode()
    members: dict[str, Any] = {
        "wrappedKeyMetadata": inside,
        "wrappedKEK": kek.wrapped,
        "keyEncryptionKeyID": base64.b64encode(kek.id).decode(),
    }
    with pytest.raises(KeyMaterialError, match="standard key metadata: "):
        decrypt_key_metadata(kms, encrypt(**members))


@each_case(
    ("changes", "part"),
    [
        ({"modcryptKeyMetadata": 2}, "version"),
        ({"modcryptKeyMetadata": True}, "version"),
        ({"modcryptKeyMetadata": 1.0}, "version"),
        ({"modcryptKeyMetadata": "1"}, "version"),
        ({"more": 1}, "exactly"),
        ({"masterKeyID": None}, "exactly"),
        ({"masterKeyID": ""}, "masterKeyID"),
        ({"masterKeyID": 1}, "masterKeyID"),
        ({"masterKeyID": "a\nb"}, "control"),
        ({"masterKeyID": "k" * 1025}, "masterKeyID"),
        ({"wrappedKEK": ["x"]}, "wrappedKEK"),
        ({"wrappedKEK": "x" * 17_000}, "wrappedKEK"),
        ({"keyEncryptionKeyID": "AAAA"}, "16 bytes"),
        ({"keyEncryptionKeyID": "?"}, "base64"),
        ({"wrappedKeyMetadata": "a"}, "base64"),
        ({"wrappedKeyMetadata": "AAAA"}, "does not decrypt"),
        ({"wrappedKeyMetadata": "x" * MAX_ENCRYPTED}, "longer than 65536"),
    ],
)
def test_what_is_malformed_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(KeyMaterialError, match=part):
        decrypt_key_metadata(wrapper(), encrypt(**changes))


@each_case(
    "data",
    [b"", b"{", b"[]", b"1", b"null", b"\xff", b'{"a":NaN}', b"[" * 50_000, b'{"a":1,"a":2}'],
)
def test_what_is_no_such_json_is_refused(data: bytes) -> None:
    with pytest.raises(KeyMaterialError, match="encrypted key metadata"):
        decrypt_key_metadata(wrapper(), data)


def test_a_member_that_is_there_twice_is_refused() -> None:
    data = encrypt().replace(b'"masterKeyID"', b'"masterKeyID":"kc1","masterKeyID"')
    with pytest.raises(KeyMaterialError, match="repeated"):
        decrypt_key_metadata(wrapper(), data)


def test_a_refused_or_missing_master_key_is_reported_as_it_is() -> None:
    kms = MemoryKms()
    kms.disabled = {"kf"}
    with pytest.raises(KeyDisabledError):
        decrypt_key_metadata(wrapper(kms), encrypt())
    with pytest.raises(KeyNotFoundError):
        decrypt_key_metadata(wrapper(), encrypt(masterKeyID="absent"))
    with pytest.raises(KeyNotFoundError):
        encrypt_key_metadata(wrapper(), METADATA, "absent")


def test_key_metadata_in_the_clear_is_distinguished() -> None:
    clear = METADATA.encode()
    for form in (clear, clear.hex().encode(), base64.b64encode(clear)):
        assert not is_encrypted(form)
    assert is_encrypted(b"\n " + encrypt())
