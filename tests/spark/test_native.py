"""Spark's own Parquet on our keys: files go both ways, key services for real, nothing leaks.

The key services are judged from outside: hvac and a client of its own for PyArrow's key tools,
`hashlib` and RFC 7914 for scrypt, the Python keyring for the Java one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyarrow.fs import LocalFileSystem

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client
from modcrypt.parquet.crypto.footer_keys import key_uses
from tests.support.java.jvm import Jvm, why_unavailable
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.pkmt1 import open_base64, seal_base64
from tests.support.spark.java_client import KEYS, JavaClient, JavaError
from tests.support.spark.native import IDS, PASSPHRASE, rows_of, table, uri_of
from tests.support.spark.processes import (
    ELSEWHERE_PASSPHRASE,
    Elsewhere,
    spark_environment,
    spark_settings,
)

if TYPE_CHECKING:
    from tests.support.kms.key_servers import Bao
    from tests.support.object_store import ObjectStore

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

import pyspark

from modcrypt.spark.jvm.native_jar import FACTORY, compile_sources, spark_jar
from modcrypt.spark.jvm.native_parquet import native, native_options

pytestmark = pytest.mark.slow

COLUMNS = {"kc1": ["id", "address"], "kc2": ["name"]}

# --- key services --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bao(bao_running: Bao) -> Bao:
    return bao_running


@pytest.fixture(scope="module")
def transit(bao: Bao) -> str:
    """Return the mount of an engine with our master keys; `bao.folder / "token"` has a token."""
    mount = bao.mount()
    for name in IDS:
        bao.judge().secrets.transit.create_key(name, mount_point=mount)
    able = ["create", "update"]  # to encrypt, which would create keys, and to decrypt
    token = bao.token({f"{mount}/encrypt/*": able, f"{mount}/decrypt/*": able})
    (bao.folder / "token").write_text(f"{token}\n")
    return mount


def vault_uri(bao: Bao, mount: str, query: str = "") -> str:
    return bao.uri(mount, f"&token=file:{bao.folder}/token{query}")


@pytest.fixture
def session(spark: Any) -> Any:
    """Return a session with settings of its own."""
    return spark.newSession()


# --- scrypt --------------------------------------------------------------------------------------

#: RFC 7914, section 12.
VECTORS = (
    (b"", b"", 16, 1, 1, "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442"
                         "fcd0069ded0948f8326a753a0fc81f17e8d3e0fb2e0d3628cf35e20c38d18906"),
    (b"password", b"NaCl", 1024, 8, 16,
     "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
     "2eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640"),
    (b"pleaseletmein", b"SodiumChloride", 16384, 8, 1,
     "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
     "d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"),
)  # fmt: skip


@pytest.fixture
def start_jvm(jar: Path) -> Iterator[Callable[[], Jvm]]:
    """Return a function that starts a small JVM with Spark's jars and ours."""
    started: list[Jvm] = []

    def start() -> Jvm:
        started.append(Jvm("public class Harness {}", heap="512m", jars=[jar]))
        return started[-1]

    yield start
    for running in started:
        running.close()


def test_scrypt_in_java_gives_the_vectors_of_its_rfc(jvm: Any) -> None:
    for passphrase, salt, n, r, p, expected in VECTORS:
        assert bytes(jvm.modcrypt.Scrypt.derive(passphrase, salt, n, r, p, 64)).hex() == expected


@pytest.mark.parametrize(("n", "r", "p"), [(16384, 8, 1), (32768, 3, 2), (16384, 1, 4)])
def test_scrypt_in_java_derives_what_openssl_derives(jvm: Any, n: int, r: int, p: int) -> None:
    phrase, salt = "wörter und mehr".encode(), bytes(range(16))
    room = 256 * n * r + (1 << 20)
    expected = hashlib.scrypt(phrase, salt=salt, n=n, r=r, p=p, maxmem=room, dklen=32)
    assert bytes(jvm.modcrypt.Scrypt.derive(phrase, salt, n, r, p, 32)) == expected


# --- clients, without Spark ----------------------------------------------------------------------


@pytest.mark.parametrize("aad", ["", "lake-ä"])
def test_the_keyring_in_java_and_in_python_unwrap_each_others_keys(
    jvm: Any, ring: Keyring, aad: str
) -> None:
    java = JavaClient(jvm, uri_of(ring), aad)
    for key in KEYS:
        assert ring.unwrap(java.wrap(key, "kf"), "kf", aad=aad.encode()) == key
        assert java.unwrap(ring.wrap(key, "kf", aad=aad.encode()), "kf") == key


def test_the_keyring_in_java_wraps_under_the_newest_version_and_unwraps_older_ones(
    jvm: Any, ring: Keyring
) -> None:
    java = JavaClient(jvm, uri_of(ring))
    old = java.wrap(KEYS[0], "kf")
    ring.rotate_key("kf")
    new = java.wrap(KEYS[1], "kf")
    assert ring.is_current(old, "kf") is False
    assert ring.is_current(new, "kf") is True
    assert (java.unwrap(old, "kf"), java.unwrap(new, "kf")) == (KEYS[0], KEYS[1])


def test_the_keyring_in_java_unwraps_what_others_wrapped_without_a_version(
    jvm: Any, ring: Keyring
) -> None:
    value = bytes(range(32))
    ring.create_key("theirs", value=value)
    bare = seal_base64(value, KEYS[0], b"theirs")
    local = f'{{"masterKeyVersion":"NO_VERSION","encryptedKey":"{bare}"}}'
    ring.rotate_key("theirs")
    java = JavaClient(jvm, uri_of(ring))
    assert java.unwrap(bare, "theirs") == java.unwrap(local, "theirs") == KEYS[0]
    assert open_base64(value, bare, b"theirs") == KEYS[0]


def test_the_keyring_in_java_refuses_what_is_disabled_destroyed_or_not_there(
    jvm: Any, ring: Keyring
) -> None:
    java = JavaClient(jvm, uri_of(ring))
    first = java.wrap(KEYS[0], "kf")
    ring.rotate_key("kf")
    ring.disable_key("kf", 1)
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*version 1 of master key kf is disabled"):
        java.unwrap(first, "kf")
    ring.enable_key("kf", 1)
    assert java.unwrap(first, "kf") == KEYS[0]
    ring.destroy_key("kf", 1)
    with pytest.raises(
        JavaError, match=r"KeyAccessDenied.*version 1 of master key kf is destroyed"
    ):
        java.unwrap(first, "kf")
    ring.disable_key("kf")
    for ask in (lambda: java.wrap(KEYS[0], "kf"), lambda: java.unwrap(first, "kf")):
        with pytest.raises(JavaError, match="KeyAccessDeniedException: master key kf is disabled"):
            ask()
    with pytest.raises(JavaError, match="no master key nobody"):
        java.wrap(KEYS[0], "nobody")
    later = ring.wrap(KEYS[0], "kc1").replace('"1"', '"2"')
    with pytest.raises(JavaError, match="no version 2 of master key kc1; its newest is 1"):
        java.unwrap(later, "kc1")


def test_the_keyring_in_java_refuses_altered_keys_and_those_of_another_use(
    jvm: Any, ring: Keyring
) -> None:
    java = JavaClient(jvm, uri_of(ring), "one lake")
    wrapped = java.wrap(KEYS[0], "kf")
    at = wrapped.index('encryptedKey":"') + 30
    altered = wrapped[:at] + ("A" if wrapped[at] != "A" else "B") + wrapped[at + 1 :]
    for text, master in ((altered, "kf"), (wrapped, "kc1")):
        with pytest.raises(JavaError, match="does not unwrap under master key"):
            java.unwrap(text, master)
    with pytest.raises(JavaError, match="does not unwrap under master key"):
        JavaClient(jvm, uri_of(ring), "another").unwrap(wrapped, "kf")
    for text in ("", "{}", "no base64!", "AAAA", '{"masterKeyVersion":"1"}', wrapped + "x"):
        with pytest.raises(JavaError, match="wrapped key"):
            java.unwrap(text, "kf")
    twice = wrapped.replace("{", '{"masterKeyVersion":"1",')
    with pytest.raises(JavaError, match="wrapped key"):
        java.unwrap(twice, "kf")


def test_the_keyring_in_java_needs_the_right_passphrase(
    jvm: Any, ring: Keyring, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("not this one")
    (tmp_path / "empty").write_text("")
    wrapped = ring.wrap(KEYS[0], "kf")
    for query, reported in (
        ("", "is encrypted: name the place of its passphrase in the URI"),
        (f"?passphrase=file:{tmp_path}/wrong", "the passphrase is wrong or bytes were altered"),
        (f"?passphrase=file:{tmp_path}/empty", "no passphrase found at file:"),
        (f"?passphrase=file:{tmp_path}/missing", "can't be read: NoSuchFile"),
        ("?passphrase=env:MODCRYPT_NO_SUCH", "no passphrase found at env:MODCRYPT_NO_SUCH"),
    ):
        java = JavaClient(jvm, f"file:{ring.path}{query}")
        with pytest.raises(JavaError, match=f"KeyAccessDeniedException.*{reported}"):
            java.unwrap(wrapped, "kf")
    # Whoever mends the file need not start Java anew.
    java = JavaClient(jvm, f"file:{ring.path}?passphrase=file:{tmp_path}/wrong")
    (tmp_path / "wrong").write_text(f"{PASSPHRASE}\r\nwhat follows does not count\n")
    assert java.unwrap(wrapped, "kf") == KEYS[0]


def test_a_keyring_in_the_clear_is_the_owners_and_no_sealed_ones_stand_in(
    jvm: Any, tmp_path: Path
) -> None:
    ring = Keyring.create(tmp_path / "clear keyring %", plaintext=True)
    ring.create_key("kf")
    uri = f"file:{tmp_path}/clear%20keyring%20%25"
    assert ring.unwrap(JavaClient(jvm, uri).wrap(KEYS[0], "kf"), "kf") == KEYS[0]
    (tmp_path / "pass").write_text("any")
    sealed = JavaClient(jvm, f"{uri}?passphrase=file:{tmp_path}/pass")
    with pytest.raises(JavaError, match="is in plaintext and may have replaced an encrypted one"):
        sealed.wrap(KEYS[0], "kf")
    os.chmod(ring.path, 0o640)
    os.utime(ring.path, ns=(1, 1))
    with pytest.raises(JavaError, match="other users can access the file; run chmod 600"):
        JavaClient(jvm, uri).wrap(KEYS[0], "kf")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version": 2', b'"version": 3'),
        (b'"version": 2', b'"version": 1'),
        (b'"generation": ', b'"generation": -'),
        (b'"id": "', b'"id": "x'),
        (b"modcrypt-keyring", b"something-else.."),
        (b'"n": 16384', b'"n": 16385'),
        (b'"n": 16384', b'"n": 1073741824'),
        (b'"r": 1', b'"r": 9'),
        (b'"protection": "scrypt"', b'"protection": "scrypt", "more": 1'),
        (b'"protection": "scrypt"', b'"protection": "scrypt", "protection": "scrypt"'),
        (b'"sealed": "', b'"sealed": "!'),
        (b"{", b"[{"),
    ],
)
def test_a_damaged_keyring_is_refused_before_its_passphrase_is_tried(
    jvm: Any, ring: Keyring, old: bytes, new: bytes
) -> None:
    path = Path(ring.path)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    java = JavaClient(jvm, f"file:{path}?passphrase=env:MODCRYPT_NO_SUCH")
    with pytest.raises(JavaError, match=r"^ParquetCryptoRuntimeException: the keyring /"):
        java.wrap(KEYS[0], "kf")


def test_an_altered_header_of_a_sealed_keyring_opens_nothing(jvm: Any, ring: Keyring) -> None:
    path = Path(ring.path)
    data = path.read_bytes()
    assert b'"n": 16384' in data
    for old, new in (
        (b'"n": 16384', b'"n": 32768'),
        (b'"generation": ', b'"generation": 1'),
        (b'"id": "', b'"id": "' + b"0" * 32 + b'", "was": "'),
    ):
        path.write_bytes(re.sub(b', "was": "[^"]*"', b"", data.replace(old, new)))
        with pytest.raises(JavaError, match="the passphrase is wrong or bytes were altered"):
            JavaClient(jvm, uri_of(ring)).wrap(KEYS[0], "kf")


def test_the_keyring_in_java_refuses_a_former_state_of_one_that_it_has_seen(
    jvm: Any, ring: Keyring
) -> None:
    path = Path(ring.path)
    java, before = JavaClient(jvm, uri_of(ring)), path.read_bytes()
    assert java.wrap(KEYS[0], "kf")
    ring.rotate_key("kf")
    assert '"2"' in java.wrap(KEYS[0], "kf")
    path.write_bytes(before)
    for client in (java, JavaClient(jvm, uri_of(ring))):
        with pytest.raises(JavaError, match="older than the one that this process has read"):
            client.wrap(KEYS[0], "kf")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_keyring_in_java_is_not_another_users(jvm: Any, ring: Keyring) -> None:
    os.chown(ring.path, 12345, -1)
    with pytest.raises(JavaError, match="belongs to another user"):
        JavaClient(jvm, uri_of(ring)).wrap(KEYS[0], "kf")


@pytest.mark.parametrize(
    "uri",
    [
        "file:", "file:/x?passphrase=literal", "file:/x?password=env:A", "file://elsewhere/x",
        "file:/x?passphrase=env:A&passphrase=env:B", "aws-kms:lake", "nothing", "hcvault://host",
        "hcvault://h/transit?tls=off", "hcvault://h/transit?token=hvs.literal", "hcvault://h:99999/t",
        "hcvault://h/../t", "hcvault://u@h/t", "hcvault://h/t?derived=yes", "hcvault://h/t/keys/..",
    ],
)  # fmt: skip
def test_the_client_in_java_takes_no_uri_that_ours_would_not_take(jvm: Any, uri: str) -> None:
    with pytest.raises(JavaError) as caught:
        JavaClient(jvm, uri)
    assert "literal" not in str(caught.value)


def test_the_client_in_java_never_looks_at_the_instance_that_it_is_handed(
    jvm: Any, ring: Keyring
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        where = f"http://127.0.0.1:{listener.getsockname()[1]}"
        java = JavaClient(jvm, uri_of(ring), instance=where)
        assert java.unwrap(java.wrap(KEYS[0], "kf"), "kf") == KEYS[0]
        with pytest.raises(JavaError, match=r"no key service is named: set modcrypt\.kms\.uri"):
            JavaClient(jvm, None, instance=where)
        with pytest.raises(TimeoutError):
            listener.accept()


# --- Vault, without Spark ------------------------------------------------------------------------


@pytest.mark.parametrize("aad", ["", "lake-ä"])
def test_vault_unwraps_what_java_wrapped_and_the_other_way_round(
    jvm: Any, bao: Bao, transit: str, aad: str
) -> None:
    java = JavaClient(jvm, vault_uri(bao, transit), aad)
    engine, bound = bao.judge().secrets.transit, base64.b64encode(aad.encode()).decode()
    more = {"associated_data": bound} if aad else {}
    for key in KEYS:
        reported = engine.decrypt_data("kf", java.wrap(key, "kf"), mount_point=transit, **more)
        assert base64.b64decode(reported["data"]["plaintext"]) == key
        plain = base64.b64encode(key).decode()
        made = engine.encrypt_data("kf", plain, mount_point=transit, **more)
        assert java.unwrap(made["data"]["ciphertext"], "kf") == key
    if aad:
        with pytest.raises(JavaError, match="does not unwrap the key"):
            JavaClient(jvm, vault_uri(bao, transit)).unwrap(java.wrap(key, "kf"), "kf")


def test_vault_binds_derived_keys_by_their_context_and_no_others(
    jvm: Any, bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = bao.mount("deep/")
    bao.judge().secrets.transit.create_key("kd", derived=True, mount_point=mount)
    bao.judge().secrets.transit.create_key("plain", mount_point=mount)
    (bao.folder / "derived").write_text(bao.root_token)
    uri = bao.uri(mount, f"&derived=true&token=file:{bao.folder}/derived")
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    ours = mc.kms.open_kms(bao.uri(mount, "&derived=true"))
    for aad in ("", "lake"):
        java = JavaClient(jvm, uri, aad)
        assert ours.unwrap(java.wrap(KEYS[0], "kd"), "kd", aad=aad.encode()) == KEYS[0]
        assert java.unwrap(ours.wrap(KEYS[1], "kd", aad=aad.encode()), "kd") == KEYS[1]
        with pytest.raises(JavaError, match="is not a derived key: Vault would bind nothing"):
            java.wrap(KEYS[0], "plain")
    with pytest.raises(JavaError, match="it is a derived key: add derived=true to the URI"):
        JavaClient(jvm, uri.replace("&derived=true", "")).wrap(KEYS[0], "kd")


def test_vault_refuses_and_java_says_why_without_a_token_or_a_key(
    jvm: Any, bao: Bao, transit: str
) -> None:
    engine = bao.judge().secrets.transit
    engine.create_key("old", mount_point=transit)
    java = JavaClient(jvm, vault_uri(bao, transit))
    first = java.wrap(KEYS[0], "old")
    engine.rotate_key("old", mount_point=transit)
    engine.update_key_configuration("old", min_decryption_version=2, mount_point=transit)
    with pytest.raises(
        JavaError, match=r"KeyAccessDenied.*version that wrapped the key is disabled"
    ):
        java.unwrap(first, "old")
    with pytest.raises(JavaError, match="Vault has no master key nobody"):
        java.wrap(KEYS[0], "nobody")
    assert "nobody" not in engine.list_keys(mount_point=transit)["data"]["keys"]
    for name in ("../../sys/seal", "a/b", ".", "", "x" * 300, "a b"):
        with pytest.raises(JavaError, match="names of keys in Vault consist of letters"):
            java.wrap(KEYS[0], name)
    for wrapped in ("vault:v0:AAAA", "vault:v1:", "AAAA", "vault:v1:" + "A" * 20_000):
        with pytest.raises(JavaError, match="the wrapped key is not vault:v<version>:<base64>"):
            java.unwrap(wrapped, "kf")
    (bao.folder / "weak").write_text(bao.token({f"{transit}/encrypt/kf": ["update"]}))
    weak = JavaClient(jvm, bao.uri(transit, f"&token=file:{bao.folder}/weak"))
    wrapped = weak.wrap(KEYS[0], "kf")
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*refuses to decrypt"):
        weak.unwrap(wrapped, "kf")
    (bao.folder / "root").write_text(bao.root_token)
    (bao.folder / "weak").write_text("two words\n")
    with pytest.raises(
        JavaError, match=r"KeyAccessDenied.*is invalid: it contains spaces"
    ) as caught:
        weak.unwrap(wrapped, "kf")
    assert "two words" not in str(caught.value)
    with pytest.raises(JavaError, match="Vault has no master key kf"):
        JavaClient(jvm, bao.uri("no-such-engine", f"&token=file:{bao.folder}/root")).wrap(
            KEYS[0], "kf"
        )


def test_a_vault_that_is_away_is_asked_again(jvm: Any, bao: Bao, transit: str) -> None:
    from tests.support.ports import find_free_port

    away = f"hcvault://127.0.0.1:{find_free_port()}/transit?tls=off&token=file:{bao.folder}/token"
    with pytest.raises(JavaError, match=r"UnavailableException: .* is unavailable: ConnectExc"):
        JavaClient(jvm, away).wrap(KEYS[0], "kf")
    java = JavaClient(jvm, vault_uri(bao, transit))
    bao.seal()
    try:
        with pytest.raises(JavaError, match=r"UnavailableException: .* answers 503"):
            java.wrap(KEYS[0], "kf")
    finally:
        bao.unseal()
    assert java.unwrap(java.wrap(KEYS[0], "kf"), "kf") == KEYS[0]


def test_tls_and_tokens_and_passphrases_come_from_the_environment_of_the_jvm(
    start_jvm: Callable[[], Jvm], bao: Bao, transit: str, ring: Keyring,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    uri = f"hcvault://127.0.0.1:{bao.tls_port}/{transit}"
    monkeypatch.setenv("VAULT_TOKEN", (bao.folder / "token").read_text().strip())
    monkeypatch.setenv("LAKE_PASS", PASSPHRASE)
    monkeypatch.delenv("VAULT_CACERT", raising=False)
    with pytest.raises(
        JavaError, match=r"TLS certificate of Vault .* is not trusted here; set VAULT_CACERT"
    ):
        JavaClient(start_jvm().packages, uri).wrap(KEYS[0], "kf")
    monkeypatch.setenv("VAULT_CACERT", str(bao.authority))
    jvm = start_jvm().packages
    java = JavaClient(jvm, uri)
    assert java.unwrap(java.wrap(KEYS[0], "kf"), "kf") == KEYS[0]
    java = JavaClient(jvm, f"file:{ring.path}?passphrase=env:LAKE_PASS")
    assert ring.unwrap(java.wrap(KEYS[0], "kf"), "kf") == KEYS[0]


# --- Spark: files go both ways -------------------------------------------------------------------

MATRIX: dict[str, Any] = {
    "service": ("keyring", "vault"),
    "wrapping": ("double", "single"),
    "material": ("internal", "external"),
    "footer": ("encrypted", "plaintext"),
    "layout": ("columns", "uniform", "partly"),
    "bits": (128, 256),
    "algorithm": ("AES_GCM_V1", "AES_GCM_CTR_V1"),
    # So long that no ciphertext has it by chance: four bytes may be anywhere in one.
    "prefix": (None, "lake-of-orders", "lake-of-orders/{name}", "lake-of-orders/{path}"),
    "stored": (True, False),
    "partitioned": (False, True),
}
CASES = pairwise(**MATRIX)


def policy_of(case: Mapping[str, Any], **more: Any) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys={} if case["layout"] == "uniform" else COLUMNS,
        plaintext_columns=["score"] if case["layout"] == "partly" else [],
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        internal_key_material=case["material"] == "internal",
        data_key_length_bits=case["bits"],
        kek_length_bits=case["bits"],
        encryption_algorithm=case["algorithm"],
        aad_prefix=case["prefix"],
        store_aad_prefix=case["stored"],
        **more,
    )


@pytest.fixture
def service(
    request: pytest.FixtureRequest, bao: Bao, transit: str, ring: Keyring
) -> Callable[[str], str]:
    """Return a function that returns the URI of a key service."""
    return {"keyring": uri_of(ring), "vault": vault_uri(bao, transit)}.__getitem__


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_files_go_from_spark_to_us_and_from_us_to_spark(
    session: Any, service: Callable[[str], str], tmp_path: Path, case: Case
) -> None:
    kms = service(case["service"])
    tools, policy = mc.KeyTools(kms), policy_of(case)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    native(session, kms=kms, require_encrypted=False)
    pq.write_table(table(), tmp_path / "plain.parquet")
    plain = session.read.parquet(str(tmp_path / "plain.parquet"))
    frame = plain.selectExpr("*", "id % 2 as part").repartition(2, "part")
    write = frame.write.options(**native_options(policy, kms=kms)).option("compression", "none")
    (write.partitionBy("part") if case["partitioned"] else write).parquet(str(theirs))

    files = sorted(theirs.rglob("part-*.parquet"))
    beside = list(theirs.rglob("_KEY_MATERIAL_FOR_part-*.json"))
    assert len(files) == 2
    assert len(beside) == (2 if case["material"] == "external" else 0)
    ends = {file.read_bytes()[-4:] for file in files}
    assert ends == {b"PARE" if case["footer"] == "encrypted" else b"PAR1"}
    found = mc.read_table(theirs, tools.decryption(policy)).select(table().column_names)
    assert found.sort_by("id").to_pylist() == table().to_pylist()
    by_policy = native_options(policy, kms=kms, root=theirs)
    assert rows_of(session.read.options(**by_policy).parquet(str(theirs))) == table().to_pylist()
    data = b"".join(file.read_bytes() for file in files)
    assert b"name-3" not in data
    scores = [struct.pack("<d", n * 1.5) in data for n in range(100, 300)]
    assert all(scores) if case["layout"] == "partly" else not any(scores)
    prefix = (case["prefix"] or "").partition("{")[0].encode()
    assert (prefix in data) == bool(case["stored"] and prefix) or not prefix

    mc.write_dataset(table(), ours, tools.encryption(policy))
    reader = session.read.options(**native_options(policy, kms=kms, root=ours))
    assert rows_of(reader.parquet(str(ours))) == table().to_pylist()
    some = reader.parquet(str(ours)).where("name = 'name-3'").select("id")
    assert sorted(row.id for row in some.collect()) == [
        n for n in range(300) if n % 11 == 3 and n % 7
    ]


def test_files_go_both_ways_under_keys_of_aws(
    session: Any, store: ObjectStore, tmp_path: Path
) -> None:
    from tests.support.object_store import REGION

    uri = f"aws-kms://?region={REGION}"  # where the environment of this process and Spark's leads
    admin: Any = mc.kms.open_kms(uri)
    admin.create_key("spark-footer")
    policy = mc.Policy(footer_key="spark-footer", kms=uri, kms_aad="lake")
    native(session, policy=policy)
    session.range(5).write.parquet(str(tmp_path / "theirs"))
    tools = mc.KeyTools.from_policy(policy)
    found = mc.read_table(tmp_path / "theirs", tools.decryption(policy))
    assert sorted(found["id"].to_pylist()) == list(range(5))
    mc.write_table(table(), tmp_path / "ours.parquet", tools.encryption(policy))
    assert rows_of(session.read.parquet(str(tmp_path / "ours.parquet"))) == table().to_pylist()


class ArrowVault(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """Vault as PyArrow's key tools ask it: by hvac, without a line of modcrypt."""

    def __init__(self, bao: Bao, mount: str) -> None:
        super().__init__()
        self._engine, self._mount = bao.judge().secrets.transit, mount

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        plain = base64.b64encode(key_bytes).decode()
        made = self._engine.encrypt_data(master_key_identifier, plain, mount_point=self._mount)
        return str(made["data"]["ciphertext"]).encode()

    def unwrap_key(self, wrapped_key: str | bytes, master_key_identifier: str) -> bytes:
        text = wrapped_key if isinstance(wrapped_key, str) else wrapped_key.decode()
        reported = self._engine.decrypt_data(master_key_identifier, text, mount_point=self._mount)
        return base64.b64decode(reported["data"]["plaintext"])


@pytest.mark.parametrize("name", ["keyring", "vault"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_files_go_from_spark_to_pyarrow_and_from_pyarrow_to_spark(
    session: Any, service: Callable[[str], str], bao: Bao, transit: str, ring: Keyring,
    tmp_path: Path, name: str, material: str,
) -> None:  # fmt: skip
    inside = material == "internal"
    makers = {"keyring": as_pyarrow_client(ring), "vault": lambda config: ArrowVault(bao, transit)}
    factory = pe.CryptoFactory(makers[name])
    connection = pe.KmsConnectionConfig()
    native(session, kms=service(name), require_encrypted=False)
    pq.write_table(table(), tmp_path / "plain.parquet")
    plain = session.read.parquet(str(tmp_path / "plain.parquet"))
    policy = mc.Policy(
        footer_key="kf", column_keys=COLUMNS, kms=service(name), internal_key_material=inside
    )
    options = native_options(policy)
    plain.coalesce(1).write.options(**options).parquet(str(tmp_path / "theirs"))
    (file,) = (tmp_path / "theirs").glob("part-*.parquet")
    opening = factory.file_decryption_properties(
        connection, None, *(() if inside else (str(file), LocalFileSystem()))
    )
    found = pq.ParquetFile(file, decryption_properties=opening).read()
    assert found.to_pylist() == table().to_pylist()

    leaves = {
        "kc1": ["id", "address.zip", "address.city"],
        "kc2": ["name"],
        "kf": ["score", "tags.list.element"],
    }
    configuration = pe.EncryptionConfiguration(
        footer_key="kf", column_keys=leaves, internal_key_material=inside
    )
    arrow = tmp_path / "arrow.parquet"
    sealing = factory.file_encryption_properties(
        connection, configuration, *(() if inside else (str(arrow), LocalFileSystem()))
    )
    with pq.ParquetWriter(arrow, table().schema, encryption_properties=sealing) as writer:
        writer.write_table(table())
    assert rows_of(session.read.options(**options).parquet(str(arrow))) == table().to_pylist()


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_spark_reads_its_own_folder_after_a_rotation(
    session: Any, ring: Keyring, tmp_path: Path, material: str, what: Any
) -> None:
    policy = mc.Policy(
        footer_key="kf",
        column_keys={"kc2": ["name"]},
        kms=uri_of(ring),
        internal_key_material=material == "internal",
    )
    native(session, policy=policy)
    frame = session.range(20).selectExpr("id", "concat('name-', id) as name")
    frame.repartition(2).write.parquet(str(tmp_path / "lake"))  # by the session's policy
    for name in IDS:
        ring.rotate_key(name)
    rotated = mc.jobs.rotate_keys(tmp_path / "lake", mc.KeyTools(ring), what=what)
    assert [file.result for file in rotated] == ["rotated"] * 2
    for name in IDS:
        ring.destroy_key(name, 1)
    found = session.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.name for row in found.collect()) == sorted(f"name-{n}" for n in range(20))


def test_two_keyrings_with_the_same_ids_are_kept_apart(
    spark: Any, ring: Keyring, tmp_path: Path
) -> None:
    other = Keyring.create(tmp_path / "other.keyring", passphrase=PASSPHRASE)
    (tmp_path / "other.pass").write_text(PASSPHRASE)
    other.create_key("kf")
    for number, keyring in enumerate((ring, other)):
        session = spark.newSession()
        native(session, policy=mc.Policy(footer_key="kf", kms=uri_of(keyring)))
        session.range(5).write.parquet(str(tmp_path / str(number)))
        found = mc.read_table(tmp_path / str(number), mc.KeyTools(keyring).decryption())
        assert sorted(found["id"].to_pylist()) == list(range(5))
    with pytest.raises(Exception, match="does not unwrap under master key kf"):
        session.read.parquet(str(tmp_path / "0")).collect()


def test_a_session_encrypts_by_its_policy_and_by_the_next_and_then_by_none(
    session: Any, ring: Keyring, tmp_path: Path
) -> None:
    def write(name: str) -> tuple[bytes, bytes]:
        frame = session.range(5).selectExpr("id", "id as name").coalesce(1)
        frame.write.parquet(str(tmp_path / name))
        (file,) = (tmp_path / name).glob("part-*.parquet")
        return file.read_bytes()[-4:], file.read_bytes()

    uri = uri_of(ring)
    native(session, policy=mc.Policy(footer_key="kf", kms=uri))
    end, data = write("uniform")
    assert (end, data.count(b"PKMT1")) == (b"PARE", 1)
    native(
        session,
        policy=mc.Policy(
            footer_key="kf", column_keys={"kc2": ["name"]}, plaintext_footer=True, kms=uri
        ),
    )
    end, data = write("columns")
    assert (end, data.count(b"PKMT1")) == (b"PAR1", 2)
    native(session, kms=uri)
    assert write("none")[1].count(b"PKMT1") == 0
    assert session.read.parquet(str(tmp_path / "uniform")).count() == 5


def test_no_other_session_has_the_settings(
    spark: Any, session: Any, ring: Keyring, tmp_path: Path
) -> None:
    native(session, policy=mc.Policy(footer_key="kf", kms=uri_of(ring)))
    session.range(5).write.parquet(str(tmp_path / "t"))
    with pytest.raises(Exception, match=r"(?i)encrypted footer|CANNOT_READ_FILE_FOOTER"):
        spark.newSession().read.parquet(str(tmp_path / "t")).collect()


def test_what_a_file_says_of_its_key_service_is_never_contacted(
    session: Any, ring: Keyring, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        evil = f"http://127.0.0.1:{listener.getsockname()[1]}"
        sealing = pe.CryptoFactory(as_pyarrow_client(ring)).file_encryption_properties(
            pe.KmsConnectionConfig(kms_instance_id=evil, kms_instance_url=evil),
            pe.EncryptionConfiguration(
                footer_key="kf", uniform_encryption=True, plaintext_footer=True
            ),
        )
        with pq.ParquetWriter(
            tmp_path / "evil.parquet", table().schema, encryption_properties=sealing
        ) as writer:
            writer.write_table(table())
        assert evil.encode() in (tmp_path / "evil.parquet").read_bytes()
        native(session, kms=uri_of(ring))
        assert session.read.parquet(str(tmp_path / "evil.parquet")).count() == 300
        assert rows_of(session.read.parquet(str(tmp_path / "evil.parquet"))) == table().to_pylist()
        with pytest.raises(TimeoutError):
            listener.accept()


# --- what a policy becomes -----------------------------------------------------------------------

URI = "file:/lake.keyring"


@pytest.mark.parametrize(
    ("kms", "named"),
    [
        ("file:ring.json#a%20key", "a key"),
        ("file:ring.json", None),
        ("hcvault://h/a/transit/keys/kf", "kf"),
        ("hcvault://h/transit", None),
        ("aws-kms://alias/lake?region=eu-west-1", "alias/lake"),
        ("aws-kms://?region=eu-west-1", None),
        (
            "gcp-kms://projects/p/locations/l/keyRings/r/cryptoKeys/k",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k",
        ),
        ("gcp-kms://projects/p/locations/l/keyRings/r", None),
        ("azure-kms://lake.vault.azure.net/keys/kf", "kf"),
        ("azure-kms://lake.vault.azure.net", None),
        ("pkcs11:token=lake;object=kf?pin-source=env:PIN", "kf"),
        ("pkcs11:token=lake?pin-source=env:PIN", None),
    ],
)
def test_without_a_policy_the_master_key_in_the_uri_is_required(
    kms: str, named: str | None
) -> None:
    ids = native_options(kms=kms)["modcrypt.master.key.ids"]
    assert ids == ("" if named is None else json.dumps([named]))
    with_policy = native_options(mc.Policy(footer_key="kf"), kms=kms)
    assert with_policy["modcrypt.master.key.ids"] == ""


def test_the_options_hold_the_policy_as_ascii_without_substitutions() -> None:
    policy = mc.Policy(footer_key="kf", column_keys={"ä": ["${user.home}", '"\\']}, kms=URI)
    options = native_options(policy, root="hdfs:/lake", master_key_ids=["new", "old"])
    assert all(value.isascii() and "${" not in value for value in options.values())
    members = json.loads(options["modcrypt.policy"])
    assert mc.Policy(**members) == replace(policy, kms=None)
    assert json.loads(options["modcrypt.master.key.ids"]) == ["new", "old"]
    assert options["modcrypt.root"] == "hdfs:/lake"
    assert native_options(policy, root="lake")["modcrypt.root"] == os.path.abspath("lake")
    # Without a policy, the key of the URI counts; and each call sets each option.
    assert native_options(kms=f"{URI}#kf")["modcrypt.master.key.ids"] == '["kf"]'
    assert native_options(kms=URI)["modcrypt.master.key.ids"] == ""
    assert native_options(kms=URI).keys() == options.keys() - {"parquet.writer.version"}
    with pytest.raises(ValueError, match="takes a collection of ids, not one string"):
        native_options(policy, master_key_ids="kf")


def test_comet_only_reads_files_itself_if_no_check_is_lost() -> None:
    """Comet 1.2 decrypts files if this option, which our factory does not read, is AES_GCM_V1."""

    def algorithm(prefix: str | None = None, **options: Any) -> str:
        policy = mc.Policy(footer_key="kf", aad_prefix=prefix, kms="file:/lake.keyring")
        return native_options(policy, **options)["parquet.encryption.algorithm"]

    assert algorithm() == "BY_MODCRYPT"
    assert algorithm("lake/{name}", require_encrypted=False) == "BY_MODCRYPT"
    assert algorithm(require_encrypted=False) == "AES_GCM_V1"


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"footer_key": "kf"}', '{"more": 1, %s', '{"aad_prefix": 1, %s']
)
def test_a_policy_that_the_factory_does_not_understand_is_refused(
    session: Any, ring: Keyring, tmp_path: Path, text: str
) -> None:
    """Also one with members that only a later version knows: they may be demands."""
    native(session, policy=mc.Policy(footer_key="kf", kms=uri_of(ring)))
    whole = session.conf.get("modcrypt.policy")
    members = json.loads(whole)
    if "%s" in text:
        added = json.loads(text.replace(", %s", "}"))
        text = json.dumps(members | added)
    session.conf.set("modcrypt.policy", text)
    with pytest.raises(Exception, match=r"modcrypt\.policy is invalid"):
        session.range(5).write.parquet(str(tmp_path / "t"))


def write_by(session: Any, policy: mc.Policy, folder: Path, *columns: str) -> list[Path]:
    frame = session.range(20).selectExpr(*(columns or ("id", "concat('name-', id) as name")))
    frame.coalesce(1).write.options(**native_options(policy)).parquet(str(folder))
    return sorted(folder.rglob("part-*.parquet"))


def test_groups_have_one_key_and_the_longest_name_wins(
    session: Any, ring: Keyring, tmp_path: Path
) -> None:
    policy = mc.Policy(
        footer_key="kf",
        column_keys={"kc1": ["g", "m"], "kc2": ["g.b"]},
        plaintext_columns=["p.x"],
        plaintext_footer=True,
        kms=uri_of(ring),
    )
    native(session, policy=policy)
    struct = "named_struct('a', id, 'b', id, 'c', id) as g"
    columns = (struct, "map('k', id) as m", "named_struct('x', id, 'y', id) as p", "id")
    (file,) = write_by(session, policy, tmp_path / "t", *columns)
    with open_source(file) as source:
        uses = {column.name: column for column in key_uses(source).columns or ()}
    kinds = {name: sorted(use.under) for name, use in uses.items()}
    own, footer = ["column key"], ["footer key"]
    assert kinds == {
        "g.a": own, "g.b": own, "g.c": own, "m.key_value.key": own, "m.key_value.value": own,
        "p.x": ["plaintext"], "p.y": footer, "id": footer,
    }  # fmt: skip
    assert uses["g.a"].metadata == uses["g.c"].metadata != uses["g.b"].metadata
    assert b"kc2" in next(iter(uses["g.b"].metadata))
    assert mc.read_table(file, mc.KeyTools(ring).decryption(policy)).num_rows == 20


@pytest.mark.parametrize("name", ["a,b", "a:b", "a;b", " a", "a ", "a.b", "ä"])
def test_columns_and_master_keys_may_have_any_name(
    session: Any, ring: Keyring, tmp_path: Path, name: str
) -> None:
    master = f"{name}${{user.home}}"  # which Hadoop would substitute
    ring.create_key(master)
    policy = mc.Policy(footer_key="kf", column_keys={master: [name]}, kms=uri_of(ring))
    native(session, policy=policy)
    frame = session.range(20).toDF(name)
    frame.coalesce(1).write.parquet(str(tmp_path / "t"))
    (file,) = (tmp_path / "t").glob("part-*.parquet")
    assert session.read.parquet(str(file)).select(f"`{name}`").count() == 20
    found = mc.read_table(file, mc.KeyTools(ring).decryption(policy))
    assert sorted(found[name].to_pylist()) == list(range(20))


@pytest.mark.parametrize(
    ("changes", "columns", "message"),
    [
        ({"column_keys": {"kc1": ["nobody", "id"]}}, (), "columns that the schema lacks: nobody"),
        ({"plaintext_columns": ["nobody"]}, (), "columns that the schema lacks: nobody"),
        ({"plaintext_columns": ["id", "name"]}, (), "leaves all columns in plaintext"),
        ({}, ("named_struct('b', id) as a", "id as `a.b`"), "the same dotted name, a.b"),
    ],
)
def test_a_policy_that_does_not_fit_the_schema_is_refused(
    session: Any, ring: Keyring, tmp_path: Path, changes: dict[str, Any],
    columns: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    policy = mc.Policy(footer_key="kf", kms=uri_of(ring), **changes)
    native(session, policy=policy)
    with pytest.raises(Exception, match=message):
        write_by(session, policy, tmp_path / "t", *columns)


def test_pages_have_no_levels_in_the_clear_unless_the_policy_says_so(
    session: Any, ring: Keyring, tmp_path: Path
) -> None:
    native(session, kms=uri_of(ring))
    for levels, name in (("encrypted", "v1"), ("plaintext", "v2")):
        policy = mc.Policy(footer_key="kf", kms=uri_of(ring), data_page_v2_levels=levels)
        options = native_options(policy)
        session.conf.set("parquet.writer.version", "v2")
        session.range(5).write.options(**options).parquet(str(tmp_path / name))
        assert options.get("parquet.writer.version") == ("v1" if levels == "encrypted" else None)
        assert mc.read_table(tmp_path / name, mc.KeyTools(ring).decryption()).num_rows == 5
    options = native_options(replace(policy, data_page_v2_levels="encrypted"))
    write = session.range(5).write.options(**options | {"parquet.writer.version": "v2"})
    with pytest.raises(Exception, match="does not encrypt the levels of data pages V2"):
        write.parquet(str(tmp_path / "refused"))
    assert "parquet.writer.version" not in native_options(kms=URI)


@pytest.mark.parametrize(
    "summary",
    [("parquet.summary.metadata.level", "all"), ("parquet.enable.summary-metadata", "true")],
)
def test_no_summary_beside_files_has_their_bounds_in_plaintext(
    jvm: Any, ring: Keyring, summary: tuple[str, str]
) -> None:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    options = native_options(mc.Policy(footer_key="kf", kms=uri_of(ring)))
    for name, value in [*options.items(), summary]:
        configuration.set(name, value)
    parquet = jvm.org.apache.parquet
    schema = parquet.schema.MessageTypeParser.parseMessageType("message m { required int32 a; }")
    context = parquet.hadoop.api.WriteSupport.WriteContext(schema, jvm.java.util.HashMap())
    path = jvm.org.apache.hadoop.fs.Path("/t/f.parquet")
    factory = jvm.modcrypt.ModcryptCryptoFactory()
    with pytest.raises(Exception, match="would write _metadata or _common_metadata in plaintext"):
        factory.getFileEncryptionProperties(configuration, path, context)
    configuration.unset(summary[0])
    assert factory.getFileEncryptionProperties(configuration, path, context) is not None


@pytest.mark.parametrize(
    ("kms", "reported"),
    [
        (None, "no key service is named"),
        ("env:KEY", "supports key services at file: hcvault: aws-kms: gcp-kms: azure-kms: pkcs11:"),
        ("aws-kms://?region=r#kf", "remove the fragment"),
        ("pkcs11:token=lake?pin-source=hunter2", "must be env:NAME or file:PATH"),
        ("pkcs11:token=lake?pin-value=hunter2", "remove pin-value"),
        ("pkcs11:object=kf;id=%01", "remove id="),
        ("azure-kms://lake.vault.azure.net?key=hunter2", "it takes NAME=VALUE, each name once"),
        ("gcp-kms://projects/p?key=hunter2", "it takes NAME=VALUE, each name once"),
        ("aws-kms://?key=hunter2", "it takes NAME=VALUE, each name once"),
        ("file:x?passphrase=hunter2", "must be env:NAME or file:PATH"),
        ("hcvault://h/transit?token=hunter2", "must be env:NAME or file:PATH"),
        ("file:x?password=hunter2", "it takes NAME=VALUE, each name once"),
        ("file:", "must name a file"),
        ("hcvault://h/${hunter2}", "must be ASCII"),
    ],
)
def test_uris_of_other_services_and_with_secrets_in_them_are_refused(
    kms: str | None, reported: str
) -> None:
    with pytest.raises(ValueError, match=reported) as caught:
        native_options(kms=kms)
    assert "hunter2" not in str(caught.value)


def test_paths_in_a_uri_are_made_absolute_for_every_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here = native_options(kms="FILE:a%20ring?passphrase=file:~/pass word#kf")["modcrypt.kms.uri"]
    assert here == f"file:{tmp_path}/a%20ring?passphrase=file:{tmp_path}/home/pass%20word"
    vault = native_options(kms="hcvault://h:1/transit?token=file:tok&namespace=a/b&tls=on")
    assert vault["modcrypt.kms.uri"] == (
        f"hcvault://h:1/transit?token=file:{tmp_path}/tok&namespace=a/b&tls=on"
    )


def test_a_token_is_named_as_in_its_own_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = "pkcs11:token=my%20lake;object=kf?module-path=/usr/lib/x.so&pin-source=file:pin"
    found = native_options(kms=uri)["modcrypt.kms.uri"]
    assert found == uri.replace("file:pin", f"file:{tmp_path}/pin")


def test_native_takes_nothing_but_a_session() -> None:
    with pytest.raises(TypeError, match="must be a Spark session, not str"):
        native("spark", kms=URI)


# --- the jar -------------------------------------------------------------------------------------


def test_the_jar_has_the_client_and_its_bytes_are_those_of_every_run(
    jar: Path, spark: Any, tmp_path: Path
) -> None:
    with zipfile.ZipFile(jar) as packed:
        assert f"{FACTORY.replace('.', '/')}.class" in packed.namelist()
        inside = {name: packed.read(name) for name in packed.namelist() if name.endswith(".class")}
        about = packed.read("META-INF/maven/modcrypt/modcrypt-spark/pom.properties").decode()
        pom = ElementTree.fromstring(
            packed.read("META-INF/maven/modcrypt/modcrypt-spark/pom.xml").decode()
        )
    assert f"version={mc.__version__}\n" in about
    assert [part.text for part in pom][1:] == ["modcrypt", "modcrypt-spark", mc.__version__]
    assert compile_sources(spark._jvm) == inside
    with pytest.raises(FileExistsError):
        spark_jar(jar)


def test_the_command_line_writes_the_jar_and_says_how_spark_takes_it(
    jar: Path, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from modcrypt.spark.commands.spark_files import jar as command

    path = tmp_path / "out.jar"
    reported = CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    assert reported.exit_code == 0
    assert path.read_bytes() == jar.read_bytes()
    for name in ("parquet.crypto.factory.class", "modcrypt.kms.uri", "modcrypt.policy"):
        assert f"spark.hadoop.{name}=" in reported.output
    with pytest.raises(FileExistsError):
        CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    reported = CliRunner().invoke(command, [str(path), "--force", "--json"], catch_exceptions=False)
    assert json.loads(reported.stdout) == {
        "schema": "modcrypt.spark.files/1",
        "destination": str(path),
        "destination_bytes": path.stat().st_size,
    }


def test_the_command_line_writes_a_maven_repository(jar: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from modcrypt.spark.commands.spark_files import jar as command

    folder = tmp_path / "a repository"
    arguments = [str(folder), "--repository", "--json"]
    reported = CliRunner().invoke(command, arguments, catch_exceptions=False)
    coordinates = f"modcrypt:modcrypt-spark:{mc.__version__}"
    assert json.loads(reported.stdout) == {
        "schema": "modcrypt.spark.files/1",
        "destination": str(folder), "url": folder.as_uri(), "coordinates": coordinates,
    }  # fmt: skip
    stem = folder / "modcrypt/modcrypt-spark" / mc.__version__ / f"modcrypt-spark-{mc.__version__}"
    assert Path(f"{stem}.jar").read_bytes() == jar.read_bytes()
    assert ElementTree.parse(f"{stem}.pom").getroot()[3].text == mc.__version__


# --- clusters ------------------------------------------------------------------------------------

_BOTH_WAYS = """
def both_ways(session, table):
    frame = session.range(100).selectExpr("id", "concat('name-', id) as name").repartition(4)
    frame.write.parquet(table)
    found = session.read.parquet(table)
    jars = session.sparkContext._jsc.sc().listJars().size()
    print("rows", found.where("name like 'name-%'").count(), "jars", jars)
"""

_AT_RUN_TIME = f"""
import sys
import modcrypt as mc
from modcrypt.spark.jvm.native_parquet import native
{_BOTH_WAYS}
table, uri = sys.argv[1:]
native(spark, policy=mc.Policy(footer_key="kf", column_keys={{"kc2": ["name"]}}, kms=uri))
both_ways(spark, table)
"""

_SUBMITTED = f"""
import sys
import modcrypt as mc
from modcrypt.spark.jvm.native_parquet import native
from pyspark.sql import SparkSession
{_BOTH_WAYS}
at_start, at_run_time, uri = sys.argv[1:]
session = SparkSession.builder.getOrCreate()
both_ways(session, at_start)
native(session, policy=mc.Policy(footer_key="kf", column_keys={{"kc2": ["name"]}}, kms=uri))
both_ways(session, at_run_time)
session.stop()
"""


def test_executors_of_a_cluster_get_the_jar_at_run_time(
    cluster: Elsewhere, ring: Keyring, tmp_path: Path
) -> None:
    uri = f"file:{ring.path}?passphrase=env:{ELSEWHERE_PASSPHRASE}"  # which executors inherit
    assert cluster.run(_AT_RUN_TIME, tmp_path / "lake", uri) == "rows 100 jars 1\n"
    check_lake(ring, tmp_path / "lake")
    check_events(cluster.folder / "spark")


@pytest.mark.slow
def test_spark_submit_takes_the_jar_and_the_configuration(
    jar: Path, ring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor of a cluster gets both at its start; at run time, no second jar is added."""
    monkeypatch.setenv("LAKE_PASS", PASSPHRASE)
    uri = f"file:{ring.path}?passphrase=env:LAKE_PASS"
    options = native_options(mc.Policy(footer_key="kf", column_keys={"kc2": ["name"]}, kms=uri))
    settings = spark_settings(tmp_path / "spark") | {"spark.executor.memory": "512m"}
    settings |= {f"spark.hadoop.{name}": value for name, value in options.items()}
    script = tmp_path / "job.py"
    script.write_text(_SUBMITTED)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    command += ["--master", "local-cluster[1,2,1024]", "--jars", str(jar)]
    command += [part for n, v in settings.items() for part in ("--conf", f"{n}={v}")]
    lakes = (tmp_path / "at start", tmp_path / "at run time")
    done = subprocess.run(
        [*command, script, *lakes, uri],
        capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path,
        env=spark_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.endswith("rows 100 jars 1\n" * 2)  # after a warning of pyspark's
    for lake in lakes:
        check_lake(ring, lake)
    check_events(tmp_path / "spark")


def check_lake(ring: Keyring, folder: Path) -> None:
    found = mc.read_table(folder, mc.KeyTools(ring).decryption())
    assert sorted(found["name"].to_pylist()) == sorted(f"name-{n}" for n in range(100))


def check_events(folder: Path) -> None:
    events = b"".join(path.read_bytes() for path in (folder / "events").iterdir())
    assert b"modcrypt.kms.uri" in events
    assert PASSPHRASE.encode() not in events


def test_neither_log_nor_settings_nor_plans_hold_a_secret(
    session: Any, spark_folder: Path, bao: Bao, transit: str, tmp_path: Path
) -> None:
    ring = Keyring.create(tmp_path / "lake.keyring", passphrase=PASSPHRASE)
    (tmp_path / "lake.pass").write_text(PASSPHRASE)
    masters = {name: hashlib.sha256(name.encode()).digest() for name in IDS}
    for name, value in masters.items():
        ring.create_key(name, value=value)
    shown = []
    for number, kms in enumerate((uri_of(ring), vault_uri(bao, transit))):
        policy = mc.Policy(footer_key="kf", column_keys={"kc2": ["name"]}, kms=kms)
        native(session, policy=policy)
        frame = session.range(9).selectExpr("id", "concat('name-', id) as name")
        frame.write.options(**native_options(policy)).parquet(str(tmp_path / str(number)))
        found = session.read.options(**native_options(kms=kms)).parquet(str(tmp_path / str(number)))
        assert found.where("name <> ''").count() == 9
        shown.append(found._jdf.queryExecution().toString())
        shown += [str(row) for row in session.sql("SET").collect()]
    shown.append(str(session.sparkContext.getConf().getAll()))
    (log,) = (spark_folder / "events").iterdir()
    shown.append(log.read_text())
    text = "\n".join(shown)
    assert "modcrypt.kms.uri" in shown[-1]
    token = (bao.folder / "token").read_text().strip()
    spelt = [
        form for key in masters.values() for form in (key.hex(), base64.b64encode(key).decode())
    ]
    assert not [secret for secret in (PASSPHRASE, token, *spelt) if secret in text]
    from modcrypt.doctor.event_log import search_event_log

    (searched,) = search_event_log(str(log), [mc.Key(key) for key in masters.values()])
    assert not [leak for leak in searched.leaks if leak.name and "modcrypt" in leak.name]
    assert not [leak for leak in searched.leaks if "access.token" in (leak.name or "")]
