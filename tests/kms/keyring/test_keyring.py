"""The local keyring: what it wraps and opens, who may use it, and that an update loses nothing.

`cryptography`, PyArrow and parquet-java judge what a wrapped key or an encrypted file must be.
"""

from __future__ import annotations

import base64
import copy
import fcntl
import hashlib
import itertools
import json
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
)
from modcrypt.kms import calls as client
from modcrypt.kms.client import Capabilities, KeyAdmin, KmsClient, MasterKey, capabilities_of
from modcrypt.kms.keyring import keyring, keyring_document, keyring_file, passphrase_encryption
from modcrypt.kms.keyring.keyring import Keyring, check_key_id, open_keyring
from modcrypt.kms.keyring.keyring_uri import keyring_path
from modcrypt.kms.references import open_kms
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import PyArrowKms
from tests.support.open_files import open_files
from tests.support.pkmt1 import open_base64, seal_base64
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table

PASSPHRASE = "correct horse battery stäple"
DEK = bytes(range(16))
MIN_SCRYPT_N = passphrase_encryption.MIN_SCRYPT_N


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take next to no time for a passphrase."""
    monkeypatch.setattr(keyring, "SCRYPT_N", 16)
    monkeypatch.setattr(passphrase_encryption, "MIN_SCRYPT_N", 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.mkdir()
    return path


@pytest.fixture
def ring(folder: Path) -> Keyring:
    """Return an encrypted keyring with one master key of known bytes."""
    made = Keyring.create(folder / "k.json", passphrase=PASSPHRASE)
    made.create_key("kf", value=FOOTER_KEY)
    return made


@pytest.fixture
def plaintext_ring(folder: Path) -> Keyring:
    """Return the same keyring unencrypted."""
    made = Keyring.create(folder / "k.json", plaintext=True)
    made.create_key("kf", value=FOOTER_KEY)
    return made


def local_wrap(version: str, wrapped: str) -> str:
    return f'{{"masterKeyVersion":"{version}","encryptedKey":"{wrapped}"}}'


def document(ring: Keyring) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(ring.path).read_bytes())
    return found


def rewrite(ring: Keyring, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the file as another process would."""
    value = document(ring)
    change(value)
    Path(ring.path).write_text(json.dumps(value))


def again(ring: Keyring, passphrase: Any = PASSPHRASE) -> Keyring:
    return Keyring(ring.path, passphrase=passphrase)


# --- wrapping ------------------------------------------------------------------------------------


@each_case("aad", [b"", b"file 7", b"\x00", bytes(300)])
@each_case("length", [16, 24, 32])
def test_a_wrapped_key_is_parquet_javas_local_wrap(ring: Keyring, length: int, aad: bytes) -> None:
    key = os.urandom(length)
    text = ring.wrap(key, "kf", aad=aad)
    wrapped = json.loads(text)
    assert wrapped["masterKeyVersion"] == "1"
    assert text == local_wrap("1", wrapped["encryptedKey"])
    bound = b"kf\x00" + aad if aad else b"kf"
    assert open_base64(FOOTER_KEY, wrapped["encryptedKey"], bound) == key
    assert len(base64.b64decode(wrapped["encryptedKey"])) == 12 + length + 16


@given(st.sampled_from([16, 24, 32]), st.sampled_from([16, 24, 32]), st.text(min_size=1))
def test_what_others_wrapped_unwraps(
    tmp_path_factory: pytest.TempPathFactory, master_length: int, length: int, name: str
) -> None:
    if not name.isprintable():
        name = name.encode("unicode_escape").decode()
    master, key = os.urandom(master_length), os.urandom(length)
    ring = Keyring.create(tmp_path_factory.mktemp("ring") / "k.json", plaintext=True)
    ring.create_key(name, value=master)
    bare = seal_base64(master, key, name.encode())
    for text in (bare, local_wrap("NO_VERSION", bare), local_wrap("1", bare)):
        assert ring.unwrap(text, name) == key
    assert ring.unwrap(json.dumps(json.loads(local_wrap("1", bare)), indent=2), name) == key
    assert (
        ring.unwrap(seal_base64(master, key, name.encode() + b"\x00aad"), name, aad=b"aad") == key
    )


def test_another_aad_and_another_master_key_do_not_unwrap(ring: Keyring) -> None:
    ring.create_key("kc", value=FOOTER_KEY)  # the same bytes: only the id differs
    ring.create_key("kf\u2192x", value=FOOTER_KEY)
    for aad in (b"", b"a"):
        for text in (ring.wrap(DEK, "kf", aad=aad), seal_base64(FOOTER_KEY, DEK, b"")):
            for name, other in (("kc", aad), ("kf", b"b"), ("kf", aad + b"\x00")):
                with pytest.raises(KeyMaterialError, match="does not unwrap under master key"):
                    ring.unwrap(text, name, aad=other)


def test_every_altered_byte_of_a_wrapped_key_is_noticed(ring: Keyring) -> None:
    encoded = json.loads(ring.wrap(DEK, "kf"))["encryptedKey"]
    block = base64.b64decode(encoded)
    for at in range(len(block)):
        altered = block[:at] + bytes((block[at] ^ 1,)) + block[at + 1 :]
        with pytest.raises(KeyMaterialError):
            ring.unwrap(local_wrap("1", base64.b64encode(altered).decode()), "kf")


GOOD = base64.b64encode(bytes(44)).decode()


@each_case("text", [
    "", " ", GOOD[:-1], GOOD + "=", GOOD + "\n", " " + GOOD, GOOD[:-2] + "B=", "*" + GOOD[1:],
    GOOD.replace("A", "-"), "é" * 60, "\ud800" * 60, base64.b64encode(bytes(43)).decode(),
    base64.b64encode(bytes(28)).decode(), base64.b64encode(bytes(61)).decode(), "A" * 1_000_000,
    "{", "{}", "[]", "null", "{" * 100_000, local_wrap("1", GOOD)[:-1], local_wrap("1", ""),
    local_wrap("1", GOOD) + " " * 2000, local_wrap("0", GOOD), local_wrap("-1", GOOD),
    local_wrap("01", GOOD), local_wrap("+1", GOOD), local_wrap("1.0", GOOD), local_wrap("", GOOD),
    local_wrap("no_version", GOOD), local_wrap("1" * 500, GOOD), local_wrap("\u0661", GOOD),
    local_wrap("1", GOOD).replace('"1"', "1"), local_wrap("1", GOOD).replace('"1"', "null"),
    local_wrap("1", GOOD).replace("}", ',"more":1}'),
    local_wrap("1", GOOD).replace("{", '{"masterKeyVersion":"1",'),
    json.dumps({"encryptedKey": GOOD}), json.dumps({"masterKeyVersion": "1"}),
    json.dumps({"masterKeyVersion": "1", "encryptedKey": [GOOD]}),
], ids=lambda text: text[:40].encode("ascii", "backslashreplace").decode())  # fmt: skip
def test_what_is_no_wrapped_key_is_refused(ring: Keyring, text: str) -> None:
    with pytest.raises(KeyMaterialError) as caught:
        ring.unwrap(text, "kf")
    assert "does not unwrap" not in str(caught.value)  # it was not even tried
    with pytest.raises(KeyMaterialError):
        ring.is_current(text, "kf")


@pytest.mark.parametrize("length", [0, 1, 15, 17, 33])
def test_only_aes_keys_are_wrapped(ring: Keyring, length: int) -> None:
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        ring.wrap(bytes(length), "kf")
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        ring.wrap_many([DEK, bytes(length)], "kf")


@pytest.mark.parametrize("name", ["kg", "", "KF", "kf ", "kf\x00", "k" * 100_000, "\ud800"])
def test_an_unknown_master_key_is_not_found(ring: Keyring, name: str) -> None:
    for call in (
        lambda: ring.wrap(DEK, name),
        lambda: ring.unwrap(ring.wrap(DEK, "kf"), name),
        lambda: ring.is_current(ring.wrap(DEK, "kf"), name),
        lambda: ring.rotate_key(name),
        lambda: ring.disable_key(name),
        lambda: ring.enable_key(name),
        lambda: ring.destroy_key(name),
    ):
        with pytest.raises(KeyNotFoundError, match="no master key") as caught:
            call()
        assert len(str(caught.value)) < 1000
        str(caught.value).encode()


def test_many_keys_are_wrapped_at_once(ring: Keyring) -> None:
    keys = [os.urandom(16) for _ in range(2500)]
    wrapped = client.wrap_many(ring, keys, "kf", b"x")
    assert len(set(wrapped)) == 2500
    encoded = [json.loads(text)["encryptedKey"] for text in wrapped]
    assert [open_base64(FOOTER_KEY, key, b"kf\x00x") for key in encoded] == keys


# --- against PyArrow and parquet-java ------------------------------------------------------------


def factory(ring: Keyring) -> pe.CryptoFactory:
    """Return PyArrow's key tools with the keyring as their KMS."""
    return pe.CryptoFactory(as_pyarrow_client(ring))


@pytest.fixture
def masters(ring: Keyring) -> Keyring:
    ring.create_key("kc1", value=COLUMN_KEY)
    ring.create_key("kc2", value=OTHER_KEY)
    return ring


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("ours_writes", [True, False])
def test_pyarrows_key_tools_and_the_keyring_open_each_others_files(
    masters: Keyring, tmp_path: Path, ours_writes: bool, double: bool
) -> None:
    writer, reader = factory(masters), pe.CryptoFactory(PyArrowKms)
    if not ours_writes:
        writer, reader = reader, writer
    configuration = pe.EncryptionConfiguration(
        footer_key="kf",
        column_keys={"kc1": ["id"], "kc2": ["name"]},
        double_wrapping=double,
        internal_key_material=True,
    )
    connection, table = pe.KmsConnectionConfig(), small_table()
    sealed = writer.file_encryption_properties(connection, configuration)
    pq.write_table(table, tmp_path / "t.parquet", encryption_properties=sealed)
    opened = reader.file_decryption_properties(connection)
    assert pq.read_table(tmp_path / "t.parquet", decryption_properties=opened).equals(table)
    assert (b"masterKeyVersion" in (tmp_path / "t.parquet").read_bytes()) == ours_writes


def test_the_keyring_opens_parquet_javas_key_material(masters: Keyring) -> None:
    name = "external_key_material_java.parquet.encrypted"
    path = shared_vectors() / "parquet-testing" / name
    opened = factory(masters).file_decryption_properties(
        pe.KmsConnectionConfig(), parquet_file_path=str(path), filesystem=pa.fs.LocalFileSystem()
    )
    with pq.ParquetFile(path, decryption_properties=opened) as file:
        table = file.read()
    assert table.to_pydict() == {
        "integers": list(range(100)),
        "strings": [f"{'abcdefghij'[n % 10]}{n}" for n in range(100)],
    }
    stored = json.loads((path.parent / f"_KEY_MATERIAL_FOR_{name}.json").read_text())
    for material in map(json.loads, stored.values()):
        assert len(masters.unwrap(material["wrappedKEK"], material["masterKeyID"])) == 16
        with pytest.raises(KeyMaterialError):
            masters.unwrap(material["wrappedDEK"], material["masterKeyID"])


# --- versions ------------------------------------------------------------------------------------


def test_after_rotation_the_new_version_wraps_and_the_old_one_unwraps(ring: Keyring) -> None:
    old, bare = ring.wrap(DEK, "kf"), seal_base64(FOOTER_KEY, DEK, b"kf")
    assert client.is_current(ring, old, "kf") is True
    assert client.is_current(ring, bare, "kf") is True
    assert ring.rotate_key("kf").version == 2
    new = ring.wrap(DEK, "kf")
    assert json.loads(new)["masterKeyVersion"] == "2"
    with pytest.raises(KeyMaterialError):  # it is another key
        ring.unwrap(new.replace('"2"', '"1"'), "kf")
    for text in (old, new, bare, local_wrap("NO_VERSION", bare)):
        assert ring.unwrap(text, "kf") == DEK
    reported = [client.is_current(ring, text, "kf") for text in (old, new, bare)]
    assert reported == [False, True, None]


def test_rewrapping_moves_a_key_to_the_newest_version(ring: Keyring) -> None:
    texts = [(ring.wrap(DEK, "kf", aad=aad), aad) for aad in (b"", b"x")]
    texts.append((seal_base64(FOOTER_KEY, DEK, b"kf"), b""))
    ring.rotate_key("kf")
    for old, aad in texts:
        new = client.rewrap(ring, old, "kf", aad)
        assert json.loads(new)["masterKeyVersion"] == "2"
        assert ring.unwrap(new, "kf", aad=aad) == DEK
        with pytest.raises(KeyMaterialError):
            ring.rewrap(old, "kf", aad=b"other")


def test_a_version_that_is_not_there_is_not_found(ring: Keyring) -> None:
    with pytest.raises(KeyNotFoundError, match="no version 2 of master key kf"):
        ring.unwrap(ring.wrap(DEK, "kf").replace('"1"', '"2"'), "kf")


def test_a_disabled_master_key_neither_wraps_nor_unwraps(ring: Keyring) -> None:
    texts = [ring.wrap(DEK, "kf"), seal_base64(FOOTER_KEY, DEK, b"kf")]
    ring.rotate_key("kf")
    assert ring.disable_key("kf").enabled is False
    calls: list[Callable[[], object]] = [
        lambda: ring.wrap(DEK, "kf"),
        lambda: ring.rotate_key("kf"),
        *[lambda text=text: ring.unwrap(text, "kf") for text in texts],
    ]
    for call in calls:
        with pytest.raises(KeyDisabledError, match="master key kf is disabled"):
            call()


def test_disabled_versions_unwrap_no_more_and_newer_ones_do(ring: Keyring) -> None:
    texts = [ring.wrap(DEK, "kf")]
    for _ in range(3):
        ring.rotate_key("kf")
        texts.append(ring.wrap(DEK, "kf"))
    assert ring.disable_key("kf", 2).disabled_versions == (1, 2)
    for text in texts[:2]:
        with pytest.raises(KeyDisabledError, match=r"version [12] of master key kf is disabled"):
            ring.unwrap(text, "kf")
    assert [ring.unwrap(text, "kf") for text in texts[2:]] == [DEK, DEK]
    with pytest.raises(KeyMaterialError):  # only enabled versions are tried
        ring.unwrap(seal_base64(FOOTER_KEY, DEK, b"kf"), "kf")
    assert ring.unwrap(json.loads(texts[2])["encryptedKey"], "kf") == DEK


def test_an_enabled_master_key_wraps_and_unwraps_again(ring: Keyring) -> None:
    old = ring.wrap(DEK, "kf")
    before = ring.rotate_key("kf")
    assert ring.enable_key("kf") == before  # nothing to do
    ring.disable_key("kf")
    assert ring.enable_key("kf") == before
    for open_again in (ring, again(ring)):
        assert json.loads(open_again.wrap(DEK, "kf"))["masterKeyVersion"] == "2"
        assert open_again.unwrap(old, "kf") == DEK


def test_one_version_is_enabled_at_a_time(ring: Keyring) -> None:
    texts = [ring.wrap(DEK, "kf")]
    for _ in range(3):
        ring.rotate_key("kf")
        texts.append(ring.wrap(DEK, "kf"))
    ring.disable_key("kf", 3)
    ring.disable_key("kf")
    assert ring.enable_key("kf").disabled_versions == (1, 2, 3)
    assert ring.enable_key("kf", 2).disabled_versions == (1, 3)
    assert [ring.unwrap(texts[n - 1], "kf") for n in (2, 4)] == [DEK, DEK]
    for number in (1, 3):
        with pytest.raises(KeyDisabledError, match=f"version {number} of master key kf"):
            ring.unwrap(texts[number - 1], "kf")
    assert ring.enable_key("kf", 4) == ring.list_keys()[0]
    for number in (0, -1, 5):
        with pytest.raises(ValueError, match=r"versions 1 to 4, but no"):
            ring.enable_key("kf", number)


def test_what_is_destroyed_is_never_enabled_again(plaintext_ring: Keyring) -> None:
    first = plaintext_ring.wrap(DEK, "kf")
    plaintext_ring.rotate_key("kf")
    plaintext_ring.destroy_key("kf", 1)
    calls: list[Callable[[], object]] = [lambda: plaintext_ring.enable_key("kf", 1)]
    with pytest.raises(KeyDisabledError, match="version 1 of master key kf is destroyed"):
        calls[0]()
    plaintext_ring.disable_key("kf")
    assert plaintext_ring.enable_key("kf").enabled  # its newest version is there
    plaintext_ring.destroy_key("kf")
    before = Path(plaintext_ring.path).read_bytes()
    calls += [lambda: plaintext_ring.enable_key("kf"), lambda: plaintext_ring.enable_key("kf", 2)]
    for call in calls:
        with pytest.raises(KeyDisabledError, match="is destroyed"):
            call()
    assert Path(plaintext_ring.path).read_bytes() == before
    with pytest.raises(KeyDisabledError):
        plaintext_ring.unwrap(first, "kf")


@pytest.mark.parametrize("way", [Keyring.disable_key, Keyring.destroy_key])
def test_the_newest_version_alone_is_neither_disabled_nor_destroyed(
    ring: Keyring, way: Callable[..., MasterKey]
) -> None:
    ring.rotate_key("kf")
    with pytest.raises(ValueError, match="master key kf is the newest: rotate the key first"):
        way(ring, "kf", 2)
    for version in (0, -1, 3):
        with pytest.raises(ValueError, match=f"has versions 1 to 2, but no {version}$"):
            way(ring, "kf", version)
    assert ring.list_keys()[0].disabled_versions == ()


def test_a_destroyed_version_is_gone_from_the_file_for_good(plaintext_ring: Keyring) -> None:
    first = plaintext_ring.wrap(DEK, "kf")
    plaintext_ring.rotate_key("kf")
    second = plaintext_ring.wrap(DEK, "kf")
    plaintext_ring.rotate_key("kf")
    assert base64.b64encode(FOOTER_KEY) in Path(plaintext_ring.path).read_bytes()
    assert plaintext_ring.destroy_key("kf", 1).disabled_versions == (1,)
    assert base64.b64encode(FOOTER_KEY) not in Path(plaintext_ring.path).read_bytes()
    with pytest.raises(KeyDisabledError, match="version 1 of master key kf is destroyed"):
        plaintext_ring.unwrap(first, "kf")
    assert plaintext_ring.unwrap(second, "kf") == DEK


def test_a_destroyed_master_key_stays_on_record_alone(plaintext_ring: Keyring) -> None:
    plaintext_ring.rotate_key("kf")
    text = plaintext_ring.wrap(DEK, "kf")
    described = plaintext_ring.destroy_key("kf")
    assert (described.version, described.enabled, described.disabled_versions) == (2, False, (1,))
    assert (described.destroyed, described.destroyed_versions) == (True, (1,))
    assert b"value" not in Path(plaintext_ring.path).read_bytes()
    for call in (lambda: plaintext_ring.unwrap(text, "kf"), lambda: plaintext_ring.wrap(DEK, "kf"),
                 lambda: plaintext_ring.rotate_key("kf")):  # fmt: skip
        with pytest.raises(KeyDisabledError, match="is destroyed"):
            call()
    assert plaintext_ring.is_current(text, "kf") is True
    assert plaintext_ring.is_current(seal_base64(FOOTER_KEY, DEK, b"kf"), "kf") is None
    with pytest.raises(ValueError, match="already contains a master key kf"):
        plaintext_ring.create_key("kf")
    assert plaintext_ring.destroy_key("kf") == described


def test_master_keys_are_listed_by_id_without_their_values(ring: Keyring) -> None:
    made = ring.create_key("a key")
    assert ring.list_keys() == [made, *[key for key in ring.list_keys() if key.id == "kf"]]
    assert made.version == 1
    assert made.enabled
    assert made.created is not None
    assert made.created.endswith("Z")


@pytest.mark.parametrize("length", [16, 24, 32, None])
def test_a_new_master_key_is_random_and_of_256_bits_unless_asked(
    plaintext_ring: Keyring, length: int | None
) -> None:
    for name in ("a", "b"):
        if length is None:
            plaintext_ring.create_key(name)
        else:
            plaintext_ring.create_key(name, length=length)
    plaintext_ring.rotate_key("a")
    keys = document(plaintext_ring)["keys"]
    values = [base64.b64decode(v["value"]) for n in ("a", "b") for v in keys[n]["versions"]]
    assert [len(value) for value in values] == [length or 32, 32, length or 32]
    assert len(set(values)) == 3


def test_wrong_arguments_are_refused_before_anything_is_read(ring: Keyring) -> None:
    Path(ring.path).unlink()
    for name in ("", "a\nb", "\x00", "k" * 1025, "\ud800"):
        with pytest.raises(ValueError, match="1 to 1024 printable"):
            ring.create_key(name)
        with pytest.raises(ValueError, match="1 to 1024 printable"):
            check_key_id(name)
    check_key_id("k" * 1024)
    for options in ({"value": bytes(15)}, {"value": b""}, {"length": 20}, {"length": 0}):
        with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
            ring.create_key("k", **options)
    with pytest.raises(ValueError, match="hex digits"):
        ring.create_key("k", value="0123456789012345")
    with pytest.raises(FileNotFoundError):
        ring.create_key("k")


# --- the file and its passphrase -----------------------------------------------------------------


def open_independently(path: str, passphrase: bytes) -> Any:
    """Open an encrypted keyring without modcrypt."""
    value = json.loads(Path(path).read_bytes())
    kdf, sealed = value["scrypt"], base64.b64decode(value.pop("sealed"))
    salt = base64.b64decode(kdf["salt"])
    key = Scrypt(salt=salt, length=32, n=kdf["n"], r=kdf["r"], p=kdf["p"]).derive(passphrase)
    header = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return json.loads(AESGCM(key).decrypt(sealed[:12], sealed[12:], header))


def test_a_file_is_encrypted_by_scrypt_and_aes_gcm_at_the_recommended_cost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, real_costs: list[int]
) -> None:
    cost, cost_of_identities, r = real_costs
    assert cost_of_identities == cost
    monkeypatch.setattr(keyring, "SCRYPT_N", cost)
    monkeypatch.setattr(passphrase_encryption, "SCRYPT_R", r)
    monkeypatch.setattr(passphrase_encryption, "MIN_SCRYPT_N", MIN_SCRYPT_N)
    ring = Keyring.create(folder / "k.json", passphrase=PASSPHRASE)
    ring.create_key("kf", value=FOOTER_KEY)
    value = document(ring)
    assert set(value) == {
        "format", "version", "id", "generation", "protection", "scrypt", "sealed"
    }  # fmt: skip
    assert (value["scrypt"]["n"], value["scrypt"]["r"], value["scrypt"]["p"]) == (2**17, 8, 1)
    assert len(base64.b64decode(value["scrypt"]["salt"])) == 16
    keys = open_independently(ring.path, PASSPHRASE.encode())
    (version,) = keys["kf"]["versions"]
    assert base64.b64decode(version["value"]) == FOOTER_KEY


def test_a_file_that_something_else_encrypted_opens(folder: Path) -> None:
    salt, nonce = os.urandom(16), os.urandom(12)
    header = {
        "format": "modcrypt-keyring",
        "version": 1,
        "protection": "scrypt",
        "scrypt": {"n": 64, "r": 2, "p": 3, "salt": base64.b64encode(salt).decode()},
    }
    version = {"version": 1, "created": "2026-01-31T12:00:00Z", "state": "enabled"}
    version["value"] = base64.b64encode(FOOTER_KEY).decode()
    keys = json.dumps({"kf": {"enabled": True, "versions": [version]}}).encode()
    key = Scrypt(salt=salt, length=32, n=64, r=2, p=3).derive(b"pass")
    aad = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    sealed = base64.b64encode(nonce + AESGCM(key).encrypt(nonce, keys, aad)).decode()
    (folder / "k.json").write_text(json.dumps({**header, "sealed": sealed}))
    ring = Keyring(folder / "k.json", passphrase="pass")
    assert ring.unwrap(seal_base64(FOOTER_KEY, DEK, b"kf"), "kf") == DEK
    ring.rotate_key("kf")  # parameters stay as they are
    assert len(open_independently(ring.path, b"pass")["kf"]["versions"]) == 2


def test_an_encrypted_file_reports_neither_values_nor_ids(ring: Keyring) -> None:
    ring.create_key("an-id-to-look-for")
    data = Path(ring.path).read_bytes()
    for secret in (FOOTER_KEY, base64.b64encode(FOOTER_KEY), b"an-id-to-look-for", b"enabled"):
        assert secret not in data


def test_every_update_of_an_encrypted_file_has_a_nonce_of_its_own(ring: Keyring) -> None:
    nonces = set()
    for _ in range(20):
        ring.rotate_key("kf")
        nonces.add(base64.b64decode(document(ring)["sealed"])[:12])
    assert len(nonces) == 20


def test_a_keyring_in_the_clear_says_so(plaintext_ring: Keyring) -> None:
    value = document(plaintext_ring)
    assert (value["format"], value["version"]) == ("modcrypt-keyring", 2)
    assert value["protection"] == "none"
    assert again(plaintext_ring, None).wrap(DEK, "kf")


def test_keys_are_in_the_clear_by_explicit_choice_alone(folder: Path, ring: Keyring) -> None:
    for options in ({}, {"passphrase": "x", "plaintext": True}):
        with pytest.raises(ValueError, match="plaintext=True"):
            Keyring.create(folder / "new.json", **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="plaintext=True"):
            ring.change_passphrase(**options)  # type: ignore[arg-type]
    assert os.listdir(folder) == ["k.json"]


@pytest.mark.parametrize("passphrase", ["", b"", "x" * 4097])
def test_an_empty_or_overlong_passphrase_is_refused(
    folder: Path, ring: Keyring, passphrase: Any
) -> None:
    for call in (
        lambda: Keyring.create(folder / "new.json", passphrase=passphrase),
        lambda: Keyring(ring.path, passphrase=passphrase),
        lambda: ring.change_passphrase(passphrase),
    ):
        with pytest.raises(ValueError, match="1 to 4096 bytes"):
            call()
    with pytest.raises(KeyAccessDeniedError, match="1 to 4096 bytes"):
        Keyring(ring.path, passphrase=lambda: passphrase)
    with pytest.raises(TypeError, match="str or bytes, not int"):
        Keyring(ring.path, passphrase=5)  # type: ignore[arg-type]


def test_a_passphrase_is_the_same_as_text_and_as_utf8(ring: Keyring) -> None:
    for passphrase in (PASSPHRASE, PASSPHRASE.encode(), lambda: PASSPHRASE.encode()):
        assert again(ring, passphrase).list_keys()


@pytest.mark.parametrize("passphrase", ["wrong", PASSPHRASE + " ", PASSPHRASE[:-1]])
def test_a_wrong_passphrase_is_denied(ring: Keyring, passphrase: str) -> None:
    with pytest.raises(
        KeyAccessDeniedError, match="passphrase is wrong or bytes were altered"
    ) as caught:
        again(ring, passphrase)
    assert type(caught.value) is KeyAccessDeniedError


def test_a_missing_passphrase_is_denied_and_the_error_says_how_to_give_it(ring: Keyring) -> None:
    with pytest.raises(KeyAccessDeniedError, match=r"env:NAME or .*file:PATH"):
        again(ring, None)


def test_a_passphrase_is_asked_for_and_tried_once_however_often_the_file_changes(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, tried, scrypt = [], [], hashlib.scrypt

    def ask() -> str:
        asked.append(1)
        return PASSPHRASE

    def trying(*args: Any, **options: Any) -> bytes:
        tried.append(1)
        return scrypt(*args, **options)

    monkeypatch.setattr(hashlib, "scrypt", trying)
    other = again(ring, ask)
    for number in range(5):
        ring.create_key(f"k{number}")
        assert other.wrap(DEK, f"k{number}")
        other.create_key(f"l{number}")
        assert ring.wrap(DEK, f"l{number}")
    assert (len(asked), len(tried)) == (1, 1)


def test_a_mistyped_passphrase_can_be_given_again(ring: Keyring) -> None:
    answers = iter(["new passphrase", "oops", "newer passphrase"])
    ring.change_passphrase("new passphrase")
    other = again(ring, lambda: next(answers))
    ring.change_passphrase("newer passphrase")
    with pytest.raises(KeyAccessDeniedError):
        other.list_keys()
    assert [key.id for key in other.list_keys()] == ["kf"]


def test_changing_the_passphrase_shuts_out_the_old_one(ring: Keyring) -> None:
    wrapped, before = ring.wrap(DEK, "kf"), document(ring)
    ring.change_passphrase(b"another")
    assert document(ring)["scrypt"]["salt"] != before["scrypt"]["salt"]
    with pytest.raises(KeyAccessDeniedError):
        again(ring)
    assert again(ring, "another").unwrap(wrapped, "kf") == DEK
    ring.rotate_key("kf")
    assert ring.unwrap(wrapped, "kf") == DEK


def test_a_keyring_is_encrypted_and_decrypted(plaintext_ring: Keyring) -> None:
    wrapped = plaintext_ring.wrap(DEK, "kf")
    plaintext_ring.change_passphrase(PASSPHRASE)
    assert base64.b64encode(FOOTER_KEY) not in Path(plaintext_ring.path).read_bytes()
    assert again(plaintext_ring).unwrap(wrapped, "kf") == DEK
    os.chmod(plaintext_ring.path, 0o644)  # as an encrypted one may have it
    plaintext_ring.change_passphrase(plaintext=True)
    assert stat.S_IMODE(os.stat(plaintext_ring.path).st_mode) == 0o600
    assert again(plaintext_ring, None).unwrap(wrapped, "kf") == DEK


def test_a_clear_keyring_in_the_place_of_an_encrypted_one_is_refused(
    ring: Keyring, tmp_path: Path
) -> None:
    false = Keyring.create(tmp_path / "false.json", plaintext=True)
    false.create_key("kf", value=OTHER_KEY)
    os.replace(false.path, ring.path)
    for call in (lambda: ring.wrap(DEK, "kf"), lambda: again(ring), lambda: ring.rotate_key("kf")):
        with pytest.raises(KeyRetrievalError, match="may have replaced an encrypted one") as caught:
            call()
        assert not isinstance(caught.value, KeyMaterialError)


def test_a_header_is_authenticated(ring: Keyring) -> None:
    before = document(ring)
    for change in (
        {"scrypt": {**before["scrypt"], "p": 2}},
        {"generation": before["generation"] + 1},
        {"id": "0" * 32},
    ):
        Path(ring.path).write_text(json.dumps(before | change))
        with pytest.raises(KeyAccessDeniedError):
            again(ring)


# --- who may read it -----------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_nobody_else_can_read_the_file_at_any_time(
    folder: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, opened, write = set(), os.open, os.write

    def opening(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        fd = opened(path, flags, mode, **options)
        if flags & os.O_CREAT:
            modes.add(stat.S_IMODE(os.fstat(fd).st_mode) & 0o177)
        return fd

    def writing(fd: int, data: Any) -> int:
        modes.add(stat.S_IMODE(os.fstat(fd).st_mode) & 0o177)
        return write(fd, data)

    before = os.umask(umask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opening)
            patch.setattr(os, "write", writing)
            ring = Keyring.create(folder / "k.json", plaintext=True)
            assert stat.S_IMODE(os.stat(ring.path).st_mode) == 0o600
            ring.create_key("kf")
    finally:
        os.umask(before)
    assert modes == {0}
    assert stat.S_IMODE(os.stat(ring.path).st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_clear_keyring_that_others_may_use_is_refused(plaintext_ring: Keyring, mode: int) -> None:
    os.chmod(plaintext_ring.path, mode)
    with pytest.raises(KeyRetrievalError, match="chmod 600") as caught:
        again(plaintext_ring, None)
    assert type(caught.value) is KeyRetrievalError


def test_an_encrypted_keyring_may_be_shared_and_stays_so(ring: Keyring) -> None:
    os.chmod(ring.path, 0o640)
    again(ring).rotate_key("kf")
    assert stat.S_IMODE(os.stat(ring.path).st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("passphrase", [PASSPHRASE, None])
def test_a_keyring_of_another_user_is_refused(folder: Path, passphrase: str | None) -> None:
    path = folder / "k.json"
    ring = Keyring.create(path, passphrase=passphrase, plaintext=passphrase is None)
    ring.create_key("kf")
    os.chown(path, 12345, 23456)
    for call in (lambda: ring.rotate_key("kf"), lambda: again(ring, passphrase)):
        with pytest.raises(KeyRetrievalError, match="belongs to another user") as caught:
            call()
        assert type(caught.value) is KeyRetrievalError


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_shared_keyring_keeps_its_group(ring: Keyring) -> None:
    os.chown(ring.path, -1, 23456)
    os.chmod(ring.path, 0o640)
    ring.rotate_key("kf")
    assert os.stat(ring.path).st_gid == 23456


# --- rollback ------------------------------------------------------------------------------------


def put_back(ring: Keyring, data: bytes) -> None:
    """Replace the file by an older one, as somebody without the passphrase can."""
    other = Path(f"{ring.path}.old")
    other.write_bytes(data)
    other.chmod(0o600)
    other.replace(ring.path)


def test_a_former_state_is_refused_where_a_newer_one_was_seen(ring: Keyring) -> None:
    old = ring.wrap(DEK, "kf")
    states = [Path(ring.path).read_bytes()]
    for change in (ring.rotate_key, ring.disable_key, ring.enable_key, ring.rotate_key):
        change("kf")
        states.append(Path(ring.path).read_bytes())
    other = again(ring)
    for state in states[:-1]:
        put_back(ring, state)
        for call in (
            lambda: ring.unwrap(old, "kf"),
            lambda: other.wrap(DEK, "kf"),
            lambda: other.rotate_key("kf"),
            lambda: again(ring),
        ):
            with pytest.raises(
                KeyRetrievalError, match="older than the one that this process has read"
            ):
                call()
    put_back(ring, states[-1])
    assert ring.unwrap(old, "kf") == other.unwrap(old, "kf") == DEK


def test_a_former_state_is_refused_behind_a_link_too(ring: Keyring, folder: Path) -> None:
    backup = folder / "backup.json"
    backup.write_bytes(Path(ring.path).read_bytes())
    backup.chmod(0o600)
    ring.rotate_key("kf")
    os.unlink(ring.path)
    os.symlink(backup, ring.path)
    with pytest.raises(KeyRetrievalError, match="older than the one that this process has read"):
        ring.wrap(DEK, "kf")
    assert Keyring(backup, passphrase=PASSPHRASE).wrap(DEK, "kf")  # another place, on purpose


def test_a_keyring_of_the_first_format_becomes_one_of_the_second_for_good(
    plaintext_ring: Keyring,
) -> None:
    first = {name: document(plaintext_ring)[name] for name in ("format", "protection", "keys")}
    path = Path(plaintext_ring.path).with_name("first.json")
    path.touch(0o600)
    path.write_text(json.dumps({**first, "version": 1}))
    ring, data = Keyring(path), path.read_bytes()
    assert ring.wrap(DEK, "kf")
    ring.rotate_key("kf")
    assert (document(ring)["version"], document(ring)["generation"]) == (2, 1)
    put_back(ring, data)
    with pytest.raises(KeyRetrievalError, match="older than the one that this process has read"):
        ring.wrap(DEK, "kf")


def test_another_keyring_may_take_the_place_of_one(ring: Keyring, folder: Path) -> None:
    ring.rotate_key("kf")
    os.unlink(ring.path)
    made = Keyring.create(ring.path, passphrase=PASSPHRASE)
    made.create_key("kf")
    assert ring.wrap(DEK, "kf")


def test_create_refuses_a_file_that_is_there(ring: Keyring, folder: Path) -> None:
    before = Path(ring.path).read_bytes()
    (folder / "dangling").symlink_to(folder / "nowhere")
    for name in ("k.json", "dangling"):
        with pytest.raises(FileExistsError):
            Keyring.create(folder / name, passphrase=lambda: pytest.fail("asked in vain"))
    assert Path(ring.path).read_bytes() == before
    assert sorted(os.listdir(folder)) == ["dangling", "k.json"]


def test_create_refuses_a_file_that_appears_meanwhile(folder: Path) -> None:
    def ask() -> str:
        (folder / "k.json").write_text("another's")
        return PASSPHRASE

    with pytest.raises(FileExistsError) as caught:
        Keyring.create(folder / "k.json", passphrase=ask)
    assert caught.value.filename == str(folder / "k.json")
    assert (folder / "k.json").read_text() == "another's"
    assert os.listdir(folder) == ["k.json"]


def test_a_symbolic_link_stays_one(ring: Keyring, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(ring.path)
    other = Keyring(link, passphrase=PASSPHRASE)
    other.rotate_key("kf")
    assert link.is_symlink()
    assert ring.list_keys()[0].version == 2
    assert sorted(os.listdir(tmp_path)) == ["keys", "link.json"]


def test_a_missing_file_and_a_folder_are_errors_of_the_system(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="modcrypt keys create"):
        Keyring(folder / "none.json")
    with pytest.raises(IsADirectoryError):
        Keyring(folder)


def test_a_relative_path_stays_what_it_was(
    ring: Keyring, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    other = Keyring("k.json", passphrase=PASSPHRASE)
    monkeypatch.chdir(tmp_path)
    other.rotate_key("kf")
    assert ring.list_keys()[0].version == 2


# --- updates of others ---------------------------------------------------------------------------


def test_updates_of_another_process_hold_from_the_next_call_on(ring: Keyring) -> None:
    other = again(ring)
    old = ring.wrap(DEK, "kf")
    other.rotate_key("kf")
    assert json.loads(ring.wrap(DEK, "kf"))["masterKeyVersion"] == "2"
    other.create_key("new")
    assert other.unwrap(ring.wrap(DEK, "new"), "new") == DEK
    other.disable_key("kf", 1)
    with pytest.raises(KeyDisabledError):
        ring.unwrap(old, "kf")
    assert ring.is_current(old, "kf") is False
    assert ring.list_keys() == other.list_keys()


def test_nobody_has_to_wait_while_someone_is_asked_for_a_passphrase(ring: Keyring) -> None:
    def ask() -> str:
        with open(ring.path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if it is locked
        return "new"

    other = again(ring, iter([PASSPHRASE]).__next__)
    other._states.passphrase_keys.ask = ask
    ring.change_passphrase("new")
    other.rotate_key("kf")
    other.change_passphrase(ask)
    assert again(ring, "new").list_keys()[0].version == 2


def test_an_update_goes_where_it_was_read(
    ring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone turns a symbolic link to another keyring meanwhile."""
    elsewhere = Keyring.create(tmp_path / "elsewhere.json", passphrase=PASSPHRASE)
    elsewhere.create_key("other")
    link = tmp_path / "link"
    link.symlink_to(ring.path)
    through, flock = Keyring(link, passphrase=PASSPHRASE), fcntl.flock

    def turning(fd: int, operation: int) -> None:
        link.unlink()
        link.symlink_to(elsewhere.path)
        flock(fd, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", turning)
        through.create_key("new")
    assert [key.id for key in ring.list_keys()] == ["kf", "new"]
    assert [key.id for key in elsewhere.list_keys()] == ["other"]
    assert through.list_keys() == elsewhere.list_keys()


def test_two_updates_in_a_row_never_look_the_same(ring: Keyring) -> None:
    """Inodes are used again at once, file systems' clocks are coarse, and sizes are rounded."""
    stamps = set()
    for _ in range(200):
        ring.change_passphrase(PASSPHRASE)
        status = os.stat(ring.path)
        stamps.add((status.st_ino, status.st_mtime_ns, status.st_size))
    assert len(stamps) == 200


CREATING = """
import sys
from modcrypt.kms.keyring import keyring
from modcrypt.kms.keyring import passphrase_encryption
keyring.SCRYPT_N = passphrase_encryption.MIN_SCRYPT_N = 16
ring = keyring.Keyring(sys.argv[1], passphrase=sys.argv[2] or None)
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    ring.create_key(f"{sys.argv[3]}{number}")
"""


@pytest.mark.parametrize("passphrase", ["", "a test's own"])
def test_two_processes_that_update_at_once_lose_nothing(folder: Path, passphrase: str) -> None:
    ring = Keyring.create(
        folder / "k.json", passphrase=passphrase or None, plaintext=not passphrase
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATING, ring.path, passphrase, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    expected = sorted(f"{name}{number}" for name in "ab" for number in range(50))
    assert [key.id for key in ring.list_keys()] == expected
    assert [ring.unwrap(ring.wrap(DEK, name), name) for name in expected] == [DEK] * 100
    assert os.listdir(folder) == ["k.json"]


def test_threads_wrap_while_others_rotate(ring: Keyring) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], object], times: int) -> None:
        try:
            for _ in range(times):
                work()
        except BaseException as error:
            failures.append(error)

    def round_trip() -> None:
        assert ring.unwrap(ring.wrap(DEK, "kf"), "kf") == DEK

    works = [(round_trip, 200)] * 3 + [(lambda: ring.rotate_key("kf"), 25)] * 2
    threads = [threading.Thread(target=run, args=arguments) for arguments in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ring.list_keys()[0].version == 51


# --- crashes -------------------------------------------------------------------------------------

KILLED = """
import fcntl, os, shutil, signal, sys
from modcrypt.kms.keyring import keyring
from modcrypt.kms.keyring import passphrase_encryption
from modcrypt.kms.keyring.keyring import Keyring
keyring.SCRYPT_N = passphrase_encryption.MIN_SCRYPT_N = 16
job, base, work, results = sys.argv[1:]
path = os.path.join(work, "k.json")
shutil.copytree(base, work)
passphrase = "old" if job == "change_passphrase" else None
ring = None if job == "create" else Keyring(path, passphrase=passphrase)
jobs = {
    "create": lambda: Keyring.create(path, plaintext=True),
    "create_key": lambda: ring.create_key("new"),
    "destroy_key": lambda: ring.destroy_key("kf"),
    "change_passphrase": lambda: ring.change_passphrase("new"),
}
write = os.write

def arm(steps):
    left = steps
    def add_hook(function):
        def call(*args, **options):
            nonlocal left
            if left == 0:
                if function is write:
                    write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **options)
        return call
    for name in ("open", "write", "fstat", "stat", "fchmod", "utime", "fsync", "close", "replace",
                 "link", "unlink"):
        setattr(os, name, add_hook(getattr(os, name)))
    fcntl.flock = add_hook(fcntl.flock)

step = 0
while True:
    shutil.rmtree(work)
    shutil.copytree(base, work)
    pid = os.fork()
    if pid == 0:
        arm(step)
        try:
            jobs[job]()
        finally:
            write(2, b"")
            os.kill(os.getpid(), signal.SIGTERM)
    status = os.waitpid(pid, 0)[1]
    shutil.copytree(work, os.path.join(results, str(step)))
    if os.WTERMSIG(status) == signal.SIGTERM:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    step += 1
"""


def kill_at_each_step(job: str, base: Path, tmp_path: Path) -> list[Path]:
    """Return the folders left by processes killed before their first, second, ... step."""
    results = tmp_path / "results"
    results.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, job, base, tmp_path / "work", results],
        stderr=subprocess.PIPE,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = sorted(results.iterdir(), key=lambda path: int(path.name))
    assert len(found) > 10
    return found


def test_a_killed_creation_leaves_a_whole_keyring_or_none(folder: Path, tmp_path: Path) -> None:
    there = []
    for left in kill_at_each_step("create", folder, tmp_path):
        there.append((left / "k.json").exists())
        if there[-1]:
            assert Keyring(left / "k.json").list_keys() == []
        else:
            Keyring.create(left / "k.json", plaintext=True)
    assert {True, False} == set(there)


@pytest.mark.parametrize("job", ["create_key", "destroy_key"])
def test_a_killed_update_leaves_the_old_file_or_the_new(
    job: str, plaintext_ring: Keyring, folder: Path, tmp_path: Path
) -> None:
    before = Path(plaintext_ring.path).read_bytes()
    changed = []
    for left in kill_at_each_step(job, folder, tmp_path):
        ring = Keyring(left / "k.json")
        changed.append((left / "k.json").read_bytes() != before)
        described = {key.id: key.enabled for key in ring.list_keys()}
        if job == "create_key":
            assert described == {"kf": True, **({"new": True} if changed[-1] else {})}
        else:
            assert described == {"kf": not changed[-1]}
        assert set(os.listdir(left)) <= {"k.json", ".k.json.tmp"}
        ring.destroy_key("kf")  # what the killed process left is neither in the way nor kept
        assert os.listdir(left) == ["k.json"]
        assert base64.b64encode(FOOTER_KEY) not in (left / "k.json").read_bytes()
    assert {True, False} == set(changed)


def test_a_killed_change_of_the_passphrase_leaves_one_that_opens(
    folder: Path, tmp_path: Path
) -> None:
    ring = Keyring.create(folder / "k.json", passphrase="old")
    ring.create_key("kf", value=FOOTER_KEY)
    before = Path(ring.path).read_bytes()
    changed = []
    for left in kill_at_each_step("change_passphrase", folder, tmp_path):
        changed.append((left / "k.json").read_bytes() != before)
        after = Keyring(left / "k.json", passphrase="new" if changed[-1] else "old")
        assert after.unwrap(seal_base64(FOOTER_KEY, DEK, b"kf"), "kf") == DEK
    assert {True, False} == set(changed)


@pytest.mark.parametrize("name", ["open", "write", "fchmod", "utime", "fsync", "replace", "unlink"])
def test_a_step_that_fails_leaves_the_old_file_and_nothing_beside_it(
    plaintext_ring: Keyring, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = getattr(os, name), 0
    for step in itertools.count():
        calls = itertools.count()

        def failing(*args: Any, _at: int = step, _calls: Any = calls, **options: Any) -> Any:
            if next(_calls) == _at:
                raise OSError(28, "No space left on device")
            return real(*args, **options)

        before = Path(plaintext_ring.path).read_bytes()
        raised = None
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                plaintext_ring.create_key(f"k{step}")
            except OSError as error:
                raised = error
        if raised is not None:
            failed += 1
            assert raised.strerror == "No space left on device"
            assert Path(plaintext_ring.path).read_bytes() == before
        assert os.listdir(folder) == ["k.json"]
        assert again(plaintext_ring, None).list_keys() == plaintext_ring.list_keys()
        if next(calls) <= step:
            break
    assert failed


def test_a_new_file_is_on_the_disk_before_its_name_is(
    plaintext_ring: Keyring, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def syncing(fd: int) -> None:
        where = "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
        done.append(f"{where} of {os.fstat(fd).st_size} bytes" if where == "file" else where)
        fsync(fd)

    def naming(real: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def record_name(old: str, new: str) -> None:
            done.append("name")
            real(old, new)

        return record_name

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(os, "replace", naming(replace))
        patch.setattr(os, "link", naming(link))
        plaintext_ring.rotate_key("kf")
        other = Keyring.create(folder / "other.json", plaintext=True)
    sizes = [os.stat(path).st_size for path in (plaintext_ring.path, other.path)]
    assert done == [
        f"file of {sizes[0]} bytes", "name", "folder",
        f"file of {sizes[1]} bytes", "name", "folder",
    ]  # fmt: skip


def test_create_needs_no_hard_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(old: str, new: str) -> None:
        if appears:
            (folder / "b.json").write_text("another's")
        raise PermissionError(1, "Operation not permitted", old)

    monkeypatch.setattr(os, "link", link)
    appears = False
    assert Keyring.create(folder / "a.json", plaintext=True).list_keys() == []
    appears = True
    with pytest.raises(FileExistsError):
        Keyring.create(folder / "b.json", plaintext=True)
    assert (folder / "b.json").read_text() == "another's"
    assert sorted(os.listdir(folder)) == ["a.json", "b.json"]


def test_a_full_disk_leaves_the_old_file(plaintext_ring: Keyring, folder: Path) -> None:
    before = Path(plaintext_ring.path).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            plaintext_ring.create_key("new")
        with pytest.raises(OSError, match="File too large"):
            Keyring.create(folder / "long.json", passphrase=PASSPHRASE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.filename == plaintext_ring.path  # not the temporary file's name
    assert Path(plaintext_ring.path).read_bytes() == before
    assert os.listdir(folder) == ["k.json"]
    plaintext_ring.create_key("new")


# --- hostile files -------------------------------------------------------------------------------


def check_opened_or_refused(path: Path, data: bytes) -> None:
    """Check that bytes either open or raise ModcryptError."""
    path.write_bytes(data)
    path.chmod(0o600)
    for passphrase in (None, PASSPHRASE):
        try:
            found = Keyring(path, passphrase=passphrase)
        except ModcryptError as error:
            shown = str(error)
        else:
            shown = repr(found.list_keys())
        assert len(shown) < 1000


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "k.json"


@given(data=st.binary(max_size=200))
def test_any_bytes_open_or_are_refused(scratch: Path, data: bytes) -> None:
    check_opened_or_refused(scratch, data)


VERSION = {"version": 1, "created": "2026-01-31T12:00:00Z", "state": "enabled",
           "value": base64.b64encode(FOOTER_KEY).decode()}  # fmt: skip
CLEAR = {"format": "modcrypt-keyring", "version": 1, "protection": "none",
         "keys": {"kf": {"enabled": True, "versions": [VERSION]}}}  # fmt: skip
SCRYPT = {"n": 16, "r": 8, "p": 1, "salt": base64.b64encode(bytes(16)).decode()}
LOCKED = {"format": "modcrypt-keyring", "version": 1, "protection": "scrypt", "scrypt": SCRYPT,
          "sealed": base64.b64encode(bytes(40)).decode()}  # fmt: skip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every place in a JSON document."""
    if not isinstance(value, dict | list):
        return [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *[place for key, value in inner for place in places(value, (*at, key))]]


def replace_at(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a document with one value replaced."""
    if not at:
        return new
    value = copy.copy(value)
    value[at[0]] = replace_at(value[at[0]], at[1:], new)
    return value


@given(
    place=st.sampled_from([(base, at) for base in (CLEAR, LOCKED) for at in places(base)]),
    new=JSON,
)
def test_a_document_with_anything_in_one_place_opens_or_is_refused(
    scratch: Path, place: tuple[Any, tuple[Any, ...]], new: Any
) -> None:
    check_opened_or_refused(scratch, json.dumps(replace_at(*place, new)).encode())


K, V = ("keys", "kf"), ("keys", "kf", "versions")


@each_case(("base", "at", "new"), [
    (CLEAR, ("format",), "other"), (CLEAR, ("version",), 2), (CLEAR, ("version",), True),
    (CLEAR, ("version",), 1.0), (CLEAR, ("protection",), "rot13"), (CLEAR, ("keys",), []),
    (CLEAR, ("keys",), {"": CLEAR["keys"]["kf"]}),  # type: ignore[index]
    (CLEAR, ("keys",), {"a\nb": CLEAR["keys"]["kf"]}),  # type: ignore[index]
    (CLEAR, ("keys",), {"k" * 1025: CLEAR["keys"]["kf"]}),  # type: ignore[index]
    (CLEAR, (*K, "enabled"), 1), (CLEAR, V, []), (CLEAR, V, [VERSION, VERSION]),
    (CLEAR, (*V, 0, "version"), 2), (CLEAR, (*V, 0, "version"), True),
    (CLEAR, (*V, 0, "created"), "today"), (CLEAR, (*V, 0, "state"), "tired"),
    (CLEAR, (*V, 0, "state"), "destroyed"), (CLEAR, (*V, 0, "value"), "AAAA"),
    (CLEAR, (*V, 0, "value"), VERSION["value"][:-1]), (CLEAR, (*V, 0, "more"), 1),  # type: ignore[index]
    (CLEAR, ("sealed",), ""), (LOCKED, ("keys",), {}), (LOCKED, ("sealed",), "?"),
    (LOCKED, ("scrypt", "n"), 8), (LOCKED, ("scrypt", "n"), 17), (LOCKED, ("scrypt", "n"), 2**21),
    (LOCKED, ("scrypt", "n"), 2**70), (LOCKED, ("scrypt", "n"), "16"), (LOCKED, ("scrypt", "r"), 0),
    (LOCKED, ("scrypt", "r"), 9), (LOCKED, ("scrypt", "p"), 0), (LOCKED, ("scrypt", "p"), 5),
    (LOCKED, ("scrypt", "p"), True), (LOCKED, ("scrypt", "salt"), ""),
    (LOCKED, ("scrypt", "salt"), base64.b64encode(bytes(15)).decode()),
    (LOCKED, ("scrypt", "more"), 1),
])  # fmt: skip
def test_a_malformed_document_is_refused(
    scratch: Path, base: Any, at: tuple[Any, ...], new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deriving(*args: Any, **options: Any) -> bytes:
        pytest.fail("derived a key from it")

    monkeypatch.setattr(hashlib, "scrypt", deriving)
    target = copy.deepcopy(base)
    inner = target
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    scratch.write_text(json.dumps(target))
    scratch.chmod(0o600)
    with pytest.raises(KeyMaterialError, match=f"the keyring {scratch}: "):
        Keyring(scratch, passphrase=None if base is CLEAR else PASSPHRASE)


@each_case("data", [
    b"", b"null", b"[" * 100_000, b"\xff\xfe{", b"1" * 10_000, b'{"format":"a","format":"a"}',
    json.dumps(CLEAR).replace('"kf"', '"kf":{},"kf"').encode(), b'{"format":NaN}',
    json.dumps(CLEAR).encode("utf-16"),
], ids=lambda data: repr(data[:20]))  # fmt: skip
def test_what_is_not_strict_json_is_refused(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    scratch.chmod(0o600)
    with pytest.raises(KeyMaterialError):
        Keyring(scratch)


def test_scrypt_parameters_of_a_file_are_limited(real_costs: list[int]) -> None:
    """At most 256 MiB and a second; and none so cheap that a passphrase is guessed for free."""
    assert (
        128 * passphrase_encryption.MAX_SCRYPT_N * passphrase_encryption.MAX_SCRYPT_R == 256 << 20
    )
    assert 2 * real_costs[0] * 8 == passphrase_encryption.MAX_SCRYPT_WORK
    assert (real_costs[0], MIN_SCRYPT_N) == (2**17, 2**14)


def test_no_memory_for_scrypt_is_an_error_of_its_own(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> bytes:
        raise ValueError("memory limit exceeded")

    monkeypatch.setattr(hashlib, "scrypt", full)
    with pytest.raises(KeyRetrievalError, match="enough memory"):
        again(ring)


def test_a_file_that_is_too_long_is_not_read(plaintext_ring: Keyring) -> None:
    os.truncate(plaintext_ring.path, keyring_file.MAX_FILE + 1)
    with pytest.raises(KeyMaterialError, match="longer than 64 MiB"):
        plaintext_ring.wrap(DEK, "kf")


def test_a_keyring_has_so_many_versions_and_no_more(
    plaintext_ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keyring_document.MAX_VERSIONS == 100_000
    monkeypatch.setattr(keyring_document, "MAX_VERSIONS", 3)
    plaintext_ring.rotate_key("kf")
    plaintext_ring.create_key("kc")
    calls: list[Callable[[], object]] = [
        lambda: plaintext_ring.create_key("kd"),
        lambda: plaintext_ring.rotate_key("kf"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="more than 3 versions"):
            call()
    assert len(plaintext_ring.list_keys()) == 2
    monkeypatch.setattr(keyring_document, "MAX_VERSIONS", 2)
    with pytest.raises(KeyMaterialError, match="more than 2 versions"):
        again(plaintext_ring, None)
    monkeypatch.undo()
    monkeypatch.setattr(keyring_file, "MAX_FILE", os.stat(plaintext_ring.path).st_size + 10)
    with pytest.raises(ValueError, match="at most"):
        plaintext_ring.create_key("kd")
    assert len(plaintext_ring.list_keys()) == 2


# --- secrets -------------------------------------------------------------------------------------


def test_nothing_secret_is_shown_pickled_or_copied(ring: Keyring) -> None:
    shown = repr(ring) + str(ring) + repr(vars(ring)) + repr(ring.list_keys())
    shown += repr(vars(ring._states.passphrase_keys))
    for secret in (FOOTER_KEY, PASSPHRASE.encode()):
        for spelling in (repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode()):
            assert spelling not in shown
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            copying(ring)


def test_errors_do_not_hold_what_the_file_or_the_passphrase_says(plaintext_ring: Keyring) -> None:
    """Not even the exceptions that they were raised from: those of `json` keep all of the text."""
    good = Path(plaintext_ring.path).read_text()
    secret = base64.b64encode(FOOTER_KEY).decode()
    for data in (good[:-3], good.replace(secret, secret[:-2]), good + "}", good.replace(":", ";")):
        Path(plaintext_ring.path).write_text(data)
        with pytest.raises(KeyMaterialError) as caught:
            again(plaintext_ring, None)
        assert_silent(caught.value, secret[:12])
    for passphrase in (f"{secret}\ud800", secret * 500):
        with pytest.raises(ValueError, match="1 to 4096") as wrong:
            again(plaintext_ring, passphrase)
        assert_silent(wrong.value, secret[:12])
    Path(plaintext_ring.path).write_text(good)
    with pytest.raises(KeyMaterialError) as caught:
        plaintext_ring.unwrap('{"' + secret, "kf")
    assert_silent(caught.value, secret[:12])


def assert_silent(error: BaseException | None, secret: str) -> None:
    assert error is not None
    assert secret not in "".join(traceback.format_exception(error))
    while error is not None:
        assert secret not in repr((error, error.args, vars(error), getattr(error, "doc", "")))
        assert secret not in repr(getattr(error, "object", ""))
        error = error.__cause__ or error.__context__


def test_a_keyring_that_is_let_go_leaves_no_open_file(ring: Keyring, folder: Path) -> None:
    for _ in range(20):
        again(ring).rotate_key("kf")
    assert not [name for name in open_files() if name.startswith(str(folder))]


# --- its URI -------------------------------------------------------------------------------------


def test_a_uri_names_file_passphrase_and_default_key(
    ring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODCRYPT_TEST_PASSPHRASE", PASSPHRASE)
    (tmp_path / "pass+word %").write_text(f"{PASSPHRASE}\nand a remark\n")
    for where in ("keys/k.json", ring.path, f"//{ring.path}", f"//localhost{ring.path}",
                  "~/keys/k.json", "keys/%6B.json"):  # fmt: skip
        for query in ("env:MODCRYPT_TEST_PASSPHRASE", f"file:{tmp_path}/pass+word%20%25",
                      "file:~/pass+word%20%25", "file:pass+word%20%25"):  # fmt: skip
            found = open_kms(f"file:{where}?passphrase={query}#kf%20%C3%A4")
            assert isinstance(found, Keyring)
            assert found.path == ring.path == os.path.abspath(keyring_path(f"file:{where}#x"))
            assert found.default_key == "kf ä"
            assert found.wrap(DEK, "kf")
    assert open_keyring(f"file:{ring.path}", passphrase=PASSPHRASE).default_key is None


def test_percent_signs_and_bytes_of_a_path_are_kept(folder: Path) -> None:
    name = os.fsdecode(b"50%25#\xff?.json")
    uri = f"file:{folder}/50%2525%23%FF%3F.json"
    assert keyring_path(uri) == str(folder / name)  # though it is not there
    Keyring.create(folder / name, plaintext=True)
    assert open_keyring(uri).list_keys() == []


@each_case(("uri", "message"), [
    ("file:", "must name a file"), ("file://", "must name a file"),
    ("file:///", "must name a file"),
    ("file://host/k.json", "must not name another machine"), ("env:k.json", "the form file:PATH"),
    ("file:k?other=1", "each name once"), ("file:k?passphrase=hunter22", "as file:PATH, env:NAME"),
    ("file:k?passphrase=env:", "as file:PATH, env:NAME"),
    ("file:k?passphrase=pass:hunter22", "as file:PATH, env:NAME"),
    ("file:k?hunter22", "each name once"),
    ("file:k?passphrase=env:A&passphrase=env:hunter22", "each name once"),
])  # fmt: skip
def test_a_wrong_uri_is_refused_and_no_passphrase_repeated(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_keyring(uri)
    assert "hunter22" not in str(caught.value)
    if "passphrase=" not in uri:
        with pytest.raises(ValueError, match=message):
            keyring_path(uri)


def test_a_passphrase_is_given_once(ring: Keyring) -> None:
    with pytest.raises(ValueError, match="two passphrases"):
        open_keyring(f"file:{ring.path}?passphrase=env:X", passphrase=PASSPHRASE)


def test_a_passphrase_that_is_not_where_the_uri_says_is_denied(
    ring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODCRYPT_TEST_PASSPHRASE", raising=False)
    (tmp_path / "empty").write_text("\nsecond line")
    for reference, message in (
        ("env:MODCRYPT_TEST_PASSPHRASE", "is not set"),
        (f"file:{tmp_path}/none", "No such file"),
        (f"file:{tmp_path}", "directory"),
        (f"file:{tmp_path}/empty", "1 to 4096"),
    ):
        with pytest.raises(KeyAccessDeniedError, match=message):
            open_keyring(f"file:{ring.path}?passphrase={reference}")


def test_the_protocol_is_kept(ring: Keyring) -> None:
    as_client: KmsClient = ring
    as_admin: KeyAdmin = ring
    assert client.unwrap(as_client, client.wrap(as_client, DEK, "kf"), "kf") == DEK
    assert capabilities_of(as_client) == Capabilities(
        aad=True, rewrap=True, batch=1000, random_nonces=True
    )
    assert as_admin.create_key("x").version == 1
