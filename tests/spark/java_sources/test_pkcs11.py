"""Keys on a PKCS#11 token in Java: SoftHSM, judged by modcrypt's Python and its PKCS#11."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pkcs11")

from modcrypt.kms.local_wrap import parse_wrapped
from tests.support.java.jvm import Jvm
from tests.support.kms.soft_hsm import MASTER, PIN, WRONG_PIN, SoftHsm, hsm
from tests.support.pkmt1 import open_base64, seal_base64
from tests.support.spark.java_client import KEYS, JavaError, JavaService

__all__ = ["hsm"]  # a fixture


@pytest.fixture(scope="module")
def token_jvm(hsm: SoftHsm, jar: Path) -> Iterator[Any]:
    """Yield the packages of a JVM that knows the token."""
    hsm.add_token("other")
    running = Jvm("public class Harness {}", heap="512m", jars=[jar])
    yield running.packages
    running.close()


@pytest.fixture
def pin(tmp_path: Path) -> Path:
    path = tmp_path / "pin"
    path.write_text(f"{PIN}\n")
    return path


@pytest.fixture
def open_java(token_jvm: Any, hsm: SoftHsm, pin: Path) -> Any:
    """Return a function that opens the token in Java."""

    def start(attributes: str = "token=lake", aad: bytes = b"") -> JavaService:
        uri = hsm.uri(attributes, f"&pin-source=file:{pin}")
        return JavaService(token_jvm, "Pkcs11Kms", uri, aad)

    return start


@pytest.mark.parametrize("aad", [b"", "lake-ä".encode()])
def test_java_and_python_unwrap_each_others_keys(hsm: SoftHsm, open_java: Any, aad: bytes) -> None:
    python, label = hsm.open(), f"both {len(aad)}"
    python.create_key(label)  # sensitive, and not extractable
    java = open_java("token=lake;model=SoftHSM%20v2;type=secret-key", aad)
    for key in KEYS:
        assert python.unwrap(java.wrap(key, label), label, aad=aad) == key
        assert java.unwrap(python.wrap(key, label, aad=aad), label) == key
    assert java.wrap(KEYS[0], label) != java.wrap(KEYS[0], label)
    with pytest.raises(JavaError, match="does not unwrap under master key"):
        open_java(aad=b"other").unwrap(java.wrap(KEYS[0], label), label)


def test_wrapped_keys_have_the_format_of_local_wrapping(hsm: SoftHsm, open_java: Any) -> None:
    hsm.import_key("imported")
    java = open_java(aad=b"lake")
    wrapped = java.wrap(KEYS[0], "imported")
    text = json.loads(wrapped)["encryptedKey"]
    assert parse_wrapped(wrapped)[0] is None
    assert open_base64(MASTER, text, b"imported\0lake") == KEYS[0]
    bare = seal_base64(MASTER, KEYS[1], b"imported\0lake")
    assert java.unwrap(bare, "imported") == KEYS[1]


def test_altered_keys_and_those_of_another_use_do_not_unwrap(hsm: SoftHsm, open_java: Any) -> None:
    python = hsm.open()
    for label in ("one", "two"):
        python.create_key(label)
    java = open_java()
    wrapped = java.wrap(KEYS[0], "one")
    at = wrapped.index('encryptedKey":"') + 30
    altered = wrapped[:at] + ("A" if wrapped[at] != "A" else "B") + wrapped[at + 1 :]
    for text, label in ((altered, "one"), (wrapped, "two")):
        with pytest.raises(JavaError, match=r"ParquetCrypto.*does not unwrap under master key"):
            java.unwrap(text, label)
    with pytest.raises(JavaError, match="names a version, but keys on a PKCS#11 token have none"):
        java.unwrap(wrapped.replace("NO_VERSION", "1"), "one")
    for text in ("", "{}", "no base64!", "AAAA", wrapped + "x", "A" * 2000):
        with pytest.raises(JavaError, match="the wrapped key has an unknown format"):
            java.unwrap(text, "one")
    assert java.unwrap(wrapped, "one") == KEYS[0]


def test_keys_that_are_missing_disabled_or_new_are_seen_at_once(
    hsm: SoftHsm, open_java: Any
) -> None:
    java, python = open_java(), hsm.open()
    for label in ("later", "", "../x"):
        with pytest.raises(JavaError, match="the token has no AES key with the label"):
            java.wrap(KEYS[0], label)
    with pytest.raises(JavaError, match="SunPKCS11 finds only keys whose labels are ASCII"):
        java.wrap(KEYS[0], "später")
    python.create_key("later")
    wrapped = java.wrap(KEYS[0], "later")
    assert python.unwrap(wrapped, "later") == KEYS[0]
    python.disable_key("later")
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*is disabled: it lacks CKA_ENCRYPT"):
        java.wrap(KEYS[0], "later")
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*is disabled: it lacks CKA_DECRYPT"):
        java.unwrap(wrapped, "later")
    python.destroy_key("later")
    with pytest.raises(JavaError, match="the token has no AES key with the label later"):
        java.unwrap(wrapped, "later")


def test_a_key_that_only_encrypts_wraps(hsm: SoftHsm, open_java: Any) -> None:
    hsm.import_key("writer", DECRYPT=False)
    wrapped = open_java().wrap(KEYS[0], "writer")
    assert open_base64(MASTER, json.loads(wrapped)["encryptedKey"], b"writer") == KEYS[0]


def test_the_uri_selects_one_token_and_no_other(hsm: SoftHsm, open_java: Any) -> None:
    hsm.open().create_key("selected")
    slot, serial = hsm.token("lake").slot.slot_id, hsm.token("lake").serial.decode()
    for attributes in (f"serial={serial}", f"slot-id={slot}", f"slot-id={slot};token=lake"):
        assert open_java(attributes).wrap(KEYS[0], "selected")
    for attributes in ("token=lak", f"token=other;slot-id={slot}", "manufacturer=x", "slot-id=77"):
        with pytest.raises(JavaError, match="has no token that matches the URI"):
            open_java(attributes).wrap(KEYS[0], "selected")
    with pytest.raises(JavaError, match="matches several tokens; add token= or serial="):
        open_java("model=SoftHSM%20v2").wrap(KEYS[0], "selected")
    with pytest.raises(JavaError, match="no AES key with the label selected"):
        open_java("token=other").wrap(KEYS[0], "selected")


def test_a_wrong_pin_is_tried_once(hsm: SoftHsm, token_jvm: Any, tmp_path: Path, jar: Path) -> None:
    hsm.open().create_key("guarded")
    # Logins are those of the process, so this needs a JVM that has not logged in.
    running = Jvm("public class Harness {}", heap="256m", jars=[jar])
    path = tmp_path / "wrong"
    uri = hsm.uri("token=lake", f"&pin-source=file:{path}")
    java = JavaService(running.packages, "Pkcs11Kms", uri)
    for text, match in (
        ("", "is missing at file:"),
        ("a\tb", "has unprintable characters"),
        ("x" * 256, "is longer than 255 bytes"),
        (WRONG_PIN, "the token reports CKR_PIN_INCORRECT"),
        (WRONG_PIN, "refused the PIN at file:.*; it is not tried again"),
    ):
        path.write_text(text)
        with pytest.raises(JavaError, match=f"KeyAccessDenied.*{match}") as caught:
            java.wrap(KEYS[0], "guarded")
        assert WRONG_PIN not in str(caught.value)
    path.write_text(PIN)
    assert java.wrap(KEYS[0], "guarded")
    running.close()


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("pkcs11:token=lake?pin-value=hunter2", "remove pin-value"),
        ("pkcs11:token=lake?module-name=softhsm", "must be NAME=VALUE with a NAME of"),
        ("pkcs11:token=lake?module-path=/lib/x.so&pin-source=hunter2", "pin-source must be"),
        ("pkcs11:token=a;token=b?module-path=/lib/x.so", "token is repeated"),
        ("pkcs11:token=%zz?module-path=/lib/x.so", "token contains a % without two hex digits"),
        ("pkcs11:token=%ff?module-path=/lib/x.so", "token is not UTF-8"),
        ("pkcs11:object=a;id=%01?module-path=/lib/x.so", "remove id="),
        ("pkcs11:type=cert?module-path=/lib/x.so", "type must be secret-key"),
        ("pkcs11:slot-id=x?module-path=/lib/x.so", "slot-id must be a decimal number"),
        ("pkcs11:token=lake", "the PKCS#11 module is missing"),
        ("pkcs11:token=lake?module-path=x.so", "has no absolute path"),
        ("pkcs11:token=lake?module-path=/x%0Aslot=1", "has no absolute path"),
        ("pkcs11:token=lake?module-path=/${user.home}/x", "has no absolute path"),
    ],
)
def test_an_invalid_uri_is_refused(token_jvm: Any, uri: str, match: str) -> None:
    with pytest.raises(JavaError, match=match) as caught:
        JavaService(token_jvm, "Pkcs11Kms", uri)
    assert "hunter2" not in str(caught.value)


def test_a_module_that_does_not_load_is_named(token_jvm: Any, pin: Path) -> None:
    uri = f"pkcs11:token=lake?module-path=/usr/lib/no-such.so&pin-source=file:{pin}"
    with pytest.raises(JavaError, match=r"PKCS#11 module /usr/lib/no-such\.so cannot be loaded"):
        JavaService(token_jvm, "Pkcs11Kms", uri).wrap(KEYS[0], "k")


def test_a_module_that_others_can_write_is_not_loaded(
    token_jvm: Any, pin: Path, tmp_path: Path
) -> None:
    (tmp_path / "module.so").write_text("no library")
    tmp_path.chmod(0o777)
    uri = f"pkcs11:token=lake?module-path={tmp_path}/module.so&pin-source=file:{pin}"
    with pytest.raises(JavaError, match="set MODCRYPT_PKCS11_MODULE to this path"):
        JavaService(token_jvm, "Pkcs11Kms", uri).wrap(KEYS[0], "k")


def test_two_keys_with_one_label_are_refused(hsm: SoftHsm, open_java: Any) -> None:
    """Java's key store does not open such a token at all."""
    for _ in range(2):
        hsm.import_key("double")
    with pytest.raises(JavaError, match="two keys on the PKCS#11 token have the same label"):
        open_java().wrap(KEYS[0], "double")
    hsm.destroy_keys("double")
