"""Master keys on a PKCS#11 token: a real SoftHSM, judged by pkcs11-tool and by `cryptography`."""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import calls as kms
from modcrypt.kms.client import MasterKey, capabilities_of
from modcrypt.kms.references import open_kms
from tests.support.cases import each_case
from tests.support.kms.soft_hsm import MASTER, PIN, WRONG_PIN, SoftHsm, hsm, run
from tests.support.pkmt1 import seal_base64
from tests.support.sleeps import note_sleeps

pkcs11 = pytest.importorskip("pkcs11")

from modcrypt.kms.services import pkcs11_token  # noqa: E402 (needs it)
from modcrypt.kms.services.pkcs11 import Pkcs11Kms, open_pkcs11  # noqa: E402 (needs it)
from modcrypt.kms.services.pkcs11_uri import parse_pkcs11_uri  # noqa: E402 (needs it)

__all__ = ["hsm"]  # a fixture

KEY = bytes(range(0xA0, 0xB0))


# python-pkcs11 0.10 ends a search that could not begin, and can't raise what comes of it.
session_lost = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def client(hsm: SoftHsm) -> Pkcs11Kms:
    return hsm.open()


def block_in(wrapped: str) -> bytes:
    members = json.loads(wrapped)
    assert list(members) == ["masterKeyVersion", "encryptedKey"]
    assert members["masterKeyVersion"] == "NO_VERSION"
    return base64.b64decode(members["encryptedKey"], validate=True)


def wrap_by_hand(key: bytes, aad: bytes, master: bytes = MASTER) -> str:
    encoded = seal_base64(master, key, aad)
    return json.dumps({"encryptedKey": encoded, "masterKeyVersion": "NO_VERSION"})


# --- wrapping, judged from outside ---------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 24, 32])
@pytest.mark.parametrize(("aad", "bound"), [(b"", b""), (b"a\x00b", b"\x00a\x00b")])
def test_what_the_token_wraps_opens_with_plain_aes_gcm(
    hsm: SoftHsm, client: Pkcs11Kms, size: int, aad: bytes, bound: bytes
) -> None:
    label = f"imported-{size}-{len(aad)}"
    hsm.import_key(label)
    key = os.urandom(size)
    first, second = (block_in(client.wrap(key, label, aad=aad)) for _ in range(2))
    assert first[:12] != second[:12]
    assert len(first) == 12 + size + 16
    assert AESGCM(MASTER).decrypt(first[:12], first[12:], label.encode() + bound) == key
    assert client.unwrap(wrap_by_hand(key, label.encode() + bound), label, aad=aad) == key


def test_what_plain_aes_gcm_wraps_under_a_key_of_128_bits_unwraps_too(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    hsm.import_key("short", MASTER[:16])
    assert client.unwrap(wrap_by_hand(KEY, b"short", MASTER[:16]), "short") == KEY


def test_a_key_made_here_is_on_the_token_and_never_leaves_it(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    assert client.create_key("kept").id == "kept"
    shown = hsm.tool("--list-objects", "--type", "secrkey")
    (ours,) = (text for text in shown.split("Secret Key Object;")[1:] if "  kept\n" in text)
    assert "AES length 32" in ours
    assert "encrypt, decrypt" in ours
    for word in ("sensitive", "always sensitive", "never extractable", "local"):
        assert word in ours.partition("Access:")[2]
    key = hsm.token("lake").open().get_key(label="kept")
    with pytest.raises(pkcs11.exceptions.AttributeSensitive):
        key[pkcs11.Attribute.VALUE]
    assert client.unwrap(client.wrap(KEY, "kept"), "kept") == KEY


def test_a_key_that_pkcs11_tool_makes_wraps(hsm: SoftHsm, client: Pkcs11Kms) -> None:
    hsm.tool("--keygen", "--key-type", "AES:32", "--label", "theirs", "--sensitive", "--private",
             "--usage-decrypt")  # fmt: skip
    assert client.unwrap(client.wrap(KEY, "theirs", aad=b"x"), "theirs", aad=b"x") == KEY


def test_what_does_not_fit_is_key_material_and_leaves_the_token_well(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    for label in ("fit-1", "fit-2"):
        client.create_key(label)
    wrapped = client.wrap(KEY, "fit-1", aad=b"right")
    block = block_in(wrapped)
    altered = [bytes([*block[:at], block[at] ^ 1, *block[at + 1 :]]) for at in (0, 12, 28, 43)]
    for altered_block in altered:
        whole, spoilt = (base64.b64encode(data).decode() for data in (block, altered_block))
        text = wrapped.replace(whole, spoilt)
        assert text != wrapped
        with pytest.raises(KeyMaterialError, match="altered bytes"):
            client.unwrap(text, "fit-1", aad=b"right")
    for label, aad in (("fit-2", b"right"), ("fit-1", b""), ("fit-1", b"wrong")):
        with pytest.raises(KeyMaterialError, match="does not unwrap under master key"):
            client.unwrap(wrapped, label, aad=aad)
    assert client.unwrap(wrapped, "fit-1", aad=b"right") == KEY


@each_case(
    "text",
    [
        "",
        "{}",
        "[]" * 2000,
        "[" * 15000,
        '{"masterKeyVersion":"NO_VERSION"}',
        '{"masterKeyVersion":"NO_VERSION","encryptedKey":"AAAA"}',
        '{"masterKeyVersion":"NO_VERSION","encryptedKey":7}',
        wrap_by_hand(KEY, b"").replace("NO_VERSION", "1"),
        wrap_by_hand(KEY[:15], b""),
        wrap_by_hand(KEY, b"") + " " * 20000,
    ],
)
def test_what_is_no_wrapped_key_is_refused_before_the_token_sees_it(
    client: Pkcs11Kms, text: str
) -> None:
    with pytest.raises(KeyMaterialError):
        client.unwrap(text, "no such key, which would be another error")


# --- finding keys and tokens ---------------------------------------------------------------------


def test_a_key_that_is_not_there_is_not_found(hsm: SoftHsm, client: Pkcs11Kms) -> None:
    hsm.import_key("")
    for label in ("nowhere", ""):
        with pytest.raises(KeyNotFoundError, match="no AES key with the label"):
            client.wrap(KEY, label)


def test_of_two_keys_with_one_label_none_is_guessed_and_an_id_says_which(hsm: SoftHsm) -> None:
    client = hsm.open()
    for number in (1, 2):
        hsm.import_key("twin", MASTER[number : number + 16], ID=bytes([number, 0xFF]))
    wrapped = wrap_by_hand(KEY, b"twin", MASTER[2:18])
    with pytest.raises(KeyRetrievalError, match="2 AES keys with the label twin"):
        client.unwrap(wrapped, "twin")
    chosen = hsm.open("token=lake;object=twin;id=%02%ff")
    assert chosen.default_key == "twin"
    assert chosen.unwrap(wrapped, "twin") == KEY
    with pytest.raises(KeyNotFoundError):
        hsm.open("object=twin;id=%03").wrap(KEY, "twin")


def test_keys_of_other_kinds_with_the_same_label_do_not_count(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    client.create_key("mixed")
    hsm.import_key("mixed", KEY_TYPE=pkcs11.KeyType.GENERIC_SECRET)
    assert client.unwrap(client.wrap(KEY, "mixed"), "mixed") == KEY


def test_a_token_is_found_by_what_the_uri_says_of_it(hsm: SoftHsm) -> None:
    hsm.open().create_key("somewhere")
    token = hsm.token("lake")
    serial, slot = token.serial.decode(), token.slot.slot_id
    for attributes in (
        "",
        f"serial={serial}",
        f"slot-id={slot}",
        "manufacturer=SoftHSM%20project;model=SoftHSM%20v2;token=l%61ke;type=secret-key",
    ):
        client = hsm.open(attributes)
        assert client.unwrap(client.wrap(KEY, "somewhere"), "somewhere") == KEY
    for attributes in ("token=Lake", "serial=0", f"slot-id={slot + 1}", "token=lake;model="):
        with pytest.raises(KeyNotFoundError, match="no token that matches the URI"):
            hsm.open(attributes)


def test_of_several_tokens_none_is_guessed(hsm: SoftHsm) -> None:
    hsm.add_token("other lake")
    try:
        with pytest.raises(
            KeyRetrievalError, match=r"tokens: lake \(\w+\), other lake \(\w+\); add"
        ):
            hsm.open("manufacturer=SoftHSM%20project")
        assert "'" not in repr(hsm.open("token=other%20lake"))
    finally:
        hsm.delete_token("other lake")


def test_open_kms_gives_the_client(hsm: SoftHsm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODCRYPT_PKCS11_MODULE", str(hsm.module))
    client = open_kms("pkcs11:token=lake;object=by-default", pin=PIN)
    assert isinstance(client, Pkcs11Kms)
    client.create_key("by-default")
    assert client.default_key == "by-default"
    assert capabilities_of(client).aad
    assert kms.unwrap(client, kms.wrap(client, KEY, "by-default", b"x"), "by-default", b"x") == KEY


# --- the URI -------------------------------------------------------------------------------------


def test_a_uri_is_read_as_rfc_7512_has_it() -> None:
    uri = parse_pkcs11_uri(
        "pkcs11:token=The%20Software%3B%3F;manufacturer=Snake%20Oil,%20Inc.;serial=%30;"
        "slot-id=327;object=a%2Fb+c;id=%69%95%3E?pin-source=file:/etc/token%26pin"
        "&module-path=/lib/a%3Db.so"
    )
    assert uri.token == {
        "label": "The Software;?",
        "manufacturer_id": "Snake Oil, Inc.",
        "serial": b"0",
        "slot_id": 327,
    }
    assert (uri.object, uri.id) == ("a/b+c", b"i\x95>")  # a + is a +, in a URI
    assert (uri.module, uri.pin_source) == ("/lib/a=b.so", "file:/etc/token&pin")


@each_case(
    ("uri", "why"),
    [
        ("hsm:token=lake", "must start with pkcs11:"),
        ("pkcs11:token=lake;token=lake", "token is repeated"),
        ("pkcs11:token=lake;", "NAME=VALUE"),
        ("pkcs11:tokens=lake", "NAME=VALUE"),
        ("pkcs11:library-version=3", "NAME=VALUE"),
        ("pkcs11:token", "NAME=VALUE"),
        ("pkcs11:token=%zz", "two hex digits"),
        ("pkcs11:token=%4", "two hex digits"),
        ("pkcs11:token=%ff", "not UTF-8"),
        ("pkcs11:slot-id=1x", "decimal"),
        ("pkcs11:slot-id=", "decimal"),
        ("pkcs11:slot-id=%D9%A1", "decimal"),
        ("pkcs11:id=%01", "requires object"),
        ("pkcs11:type=public;object=k", "secret-key"),
        ("pkcs11:pin-source=file:/x", "NAME=VALUE"),
        ("pkcs11:?module-name=softhsm2", "module-path=/absolute"),
        ("pkcs11:?module-path=softhsm2.so", "absolute path"),
        ("pkcs11:token=lake", "MODCRYPT_PKCS11_MODULE"),
        ("pkcs11:?module-path=/x.so&pin-source=|cat", "file:PATH or env:NAME"),
        ("pkcs11:?module-path=/x.so&pin-source=env:", "file:PATH or env:NAME"),
        ("pkcs11:?module-path=/x.so#twin", None),
    ],
)
def test_a_uri_that_says_something_else_is_refused(
    uri: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODCRYPT_PKCS11_MODULE", raising=False)
    if why is None:  # a file of that name, which isn't there
        with pytest.raises(KeyRetrievalError, match="cannot be loaded"):
            open_pkcs11(uri)
        return
    with pytest.raises(ValueError, match=why):
        open_pkcs11(uri)


@pytest.mark.parametrize(
    "uri", [f"pkcs11:token=lake?pin-value={PIN}", f"pkcs11:token=lake;pin-value={PIN}"]
)
def test_a_pin_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ValueError, match="URIs appear in logs") as caught:
        open_pkcs11(uri)
    shown = "".join(traceback.format_exception(caught.value))
    assert PIN not in shown.replace(uri, "")  # pytest's own frames hold the URI, ours don't show it
    assert PIN not in str(caught.value)


def test_a_module_that_is_none_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.so").write_text("no library")
    for name in ("no.so", "nowhere.so"):
        monkeypatch.setenv("MODCRYPT_PKCS11_MODULE", str(tmp_path / name))
        with pytest.raises(KeyRetrievalError, match=f"{name} cannot be loaded"):
            open_pkcs11("pkcs11:", pin=PIN)


def test_a_module_that_others_can_write_needs_a_word_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(pkcs11_token.pkcs11, "lib", loaded.append)
    module = tmp_path / "module.so"
    module.write_text("")
    tmp_path.chmod(0o777)
    for named in (None, "/usr/lib/other.so"):
        if named is not None:
            monkeypatch.setenv("MODCRYPT_PKCS11_MODULE", named)
        with pytest.raises(ValueError, match="set MODCRYPT_PKCS11_MODULE to this path"):
            open_pkcs11(f"pkcs11:?module-path={module}", pin=PIN)
    assert loaded == []
    monkeypatch.setenv("MODCRYPT_PKCS11_MODULE", str(module))
    with pytest.raises(AttributeError):  # `append` gave no library
        open_pkcs11(f"pkcs11:?module-path={module}", pin=PIN)
    assert loaded == [str(module)]


# --- PINs ----------------------------------------------------------------------------------------


def test_the_pin_comes_from_where_the_caller_says(
    hsm: SoftHsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pin").write_text(PIN + "\n")
    (tmp_path / "long").write_text("x" * 300)
    (tmp_path / "latin").write_bytes(b"\xe9")
    monkeypatch.setenv("LAKE_PIN", PIN)
    for query in (f"&pin-source=file:{tmp_path}/pin", "&pin-source=env:LAKE_PIN"):
        hsm.restart()  # logged out, so that the PIN counts
        open_pkcs11(hsm.uri(query=query)).list_keys()
    hsm.restart()
    monkeypatch.setenv("MODCRYPT_PKCS11_PIN", PIN)
    open_pkcs11(hsm.uri()).list_keys()
    monkeypatch.setenv("MODCRYPT_PKCS11_PIN", "")
    hsm.restart()
    with pytest.raises(ValueError, match="PIN of the PKCS#11 token is missing"):
        open_pkcs11(hsm.uri())
    for name in ("long", "latin"):
        with pytest.raises(ValueError, match=f"{name} is"):
            open_pkcs11(hsm.uri(query=f"&pin-source=file:{tmp_path}/{name}"))
    with pytest.raises(FileNotFoundError):
        open_pkcs11(hsm.uri(query=f"&pin-source=file:{tmp_path}/nowhere"))
    for pin in ("half \udce9", "line\n"):
        with pytest.raises(ValueError, match="unprintable") as caught:
            hsm.open(pin=pin)
        assert pin not in repr(caught.value)
    with pytest.raises(TypeError, match="a PIN must be str"):
        hsm.open(pin=lambda: b"bytes")


def test_a_wrong_pin_is_denied(hsm: SoftHsm) -> None:
    hsm.restart()
    with pytest.raises(KeyAccessDeniedError, match="PinIncorrect") as caught:
        hsm.open(pin=WRONG_PIN)
    assert WRONG_PIN not in "".join(traceback.format_exception(caught.value))


@session_lost
def test_a_pin_that_was_refused_is_not_tried_again(hsm: SoftHsm) -> None:
    """A token is locked after a few wrong ones, and every key of every file would try."""
    asked: list[str] = []

    def tell() -> str:
        asked.append("changed" if asked else PIN)
        return asked[-1]

    hsm.restart()
    client = hsm.open(pin=tell)
    hsm.restart()
    with pytest.raises(KmsUnavailableError):
        client.list_keys()
    for _ in range(3):
        with pytest.raises(KeyAccessDeniedError):
            client.list_keys()
    assert asked == [PIN, "changed"]


# --- tokens that go away, processes and threads --------------------------------------------------


@session_lost
def test_a_client_logs_in_again_after_the_token_was_away(
    hsm: SoftHsm, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = note_sleeps(monkeypatch)
    hsm.restart()
    client = hsm.open()
    client.create_key("comes-back")
    wrapped = client.wrap(KEY, "comes-back")
    hsm.restart()
    with pytest.raises(KmsUnavailableError, match="SessionHandleInvalid"):
        client.unwrap(wrapped, "comes-back")
    hsm.restart()
    assert kms.unwrap(client, wrapped, "comes-back") == KEY
    assert len(waits) <= 1


@session_lost
def test_a_token_that_is_gone_is_unavailable(hsm: SoftHsm) -> None:
    hsm.add_token("pulled")
    client = hsm.open("token=pulled")
    client.create_key("k")
    hsm.delete_token("pulled")
    for _ in range(2):
        with pytest.raises(KmsUnavailableError):
            client.wrap(KEY, "k")


def test_a_token_that_neither_decrypts_nor_encrypts_is_unavailable(
    client: Pkcs11Kms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SoftHSM says GeneralError of a wrong tag; here it is the token that fails."""
    client.create_key("failing")
    wrapped = client.wrap(KEY, "failing")

    def fail(*_: object) -> bytes:
        raise pkcs11.exceptions.GeneralError

    monkeypatch.setattr("modcrypt.kms.services.pkcs11._decrypt", fail)
    with pytest.raises(KeyMaterialError):
        client.unwrap(wrapped, "failing")
    monkeypatch.setattr("modcrypt.kms.services.pkcs11._encrypt", fail)
    with pytest.raises(KmsUnavailableError):
        client.unwrap(wrapped, "failing")
    monkeypatch.undo()
    assert client.unwrap(wrapped, "failing") == KEY


@pytest.mark.parametrize("length", [0, 28, 43, 45, 4096])
def test_a_wrapped_key_that_could_not_be_unwrapped_is_refused(
    client: Pkcs11Kms, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """A token may leave out the tag, or take a nonce of another length."""
    monkeypatch.setattr("modcrypt.kms.services.pkcs11._encrypt", lambda *_: bytes(length))
    client.create_key(f"short{length}")
    with pytest.raises(KeyRetrievalError, match="expected a nonce of 12 bytes and a tag of 16"):
        client.wrap(KEY, f"short{length}")


def test_many_threads_and_clients_use_the_token_at_once(hsm: SoftHsm) -> None:
    clients = [hsm.open(), hsm.open()]
    clients[0].create_key("shared")

    def work(number: int) -> bool:
        own, other = clients[number % 2], clients[number // 2 % 2]
        key = number.to_bytes(16, "big")
        return other.unwrap(own.wrap(key, "shared", aad=key), "shared", aad=key) == key

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(1, 401)))


FORKING = """
import os, sys, traceback
from modcrypt.errors import KeyAccessDeniedError, KeyRetrievalError
from modcrypt.kms.services.pkcs11 import open_pkcs11

uri, pin, key = sys.argv[1], os.environ["LAKE_PIN"], bytes(16)
client = open_pkcs11(uri, pin=pin)
wrapped = client.wrap(key, "forked")
sys.stdout.flush()
if os.fork() == 0:
    try:
        client.unwrap(wrapped, "forked")
    except KeyRetrievalError as error:
        print("child:", error)
    try:
        open_pkcs11(uri, pin="of the parent's login")
    except KeyAccessDeniedError as error:
        print("child, wrong PIN:", error)
    print("child anew:", open_pkcs11(uri, pin=pin).unwrap(wrapped, "forked") == key)
    print("child again:", open_pkcs11(uri, pin=pin).unwrap(wrapped, "forked") == key)
    sys.stdout.flush()
    os._exit(0)
os.wait()
print("parent:", client.unwrap(wrapped, "forked") == key)
"""


def test_a_forked_child_has_to_open_the_token_anew_and_can(
    hsm: SoftHsm, client: Pkcs11Kms, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_key("forked")
    monkeypatch.setenv("LAKE_PIN", PIN)
    lines = run(sys.executable, "-c", FORKING, hsm.uri()).splitlines()
    assert "opened before a fork" in lines[0]
    assert "PinIncorrect" in lines[1]  # the child starts the module anew, as PKCS#11 wants it
    assert lines[2:] == ["child anew: True", "child again: True", "parent: True"]


# --- keeping keys --------------------------------------------------------------------------------


def test_keys_are_listed_disabled_and_destroyed(hsm: SoftHsm, client: Pkcs11Kms) -> None:
    for label in ("life-b", "life-a"):
        client.create_key(label)
    with pytest.raises(ValueError, match="life-a"):
        client.create_key("life-a")
    with pytest.raises(ValueError, match="label is empty"):
        client.create_key("")
    listed = client.list_keys()
    assert [key.id for key in listed] == sorted(key.id for key in listed)
    assert {"life-a", "life-b"} <= {key.id for key in listed if key.enabled}
    hsm.import_key("")
    assert "" not in {key.id for key in client.list_keys()}

    wrapped = client.wrap(KEY, "life-a")
    assert client.disable_key("life-a") == MasterKey(id="life-a", enabled=False)
    shown = hsm.tool("--list-objects", "--type", "secrkey")
    (ours,) = (text for text in shown.split("Secret Key Object;")[1:] if "  life-a\n" in text)
    assert "crypt" not in ours.partition("Usage:")[2].partition("\n")[0]
    actions: list[Callable[[], object]] = [
        functools.partial(client.wrap, KEY, "life-a"),
        functools.partial(client.unwrap, wrapped, "life-a"),
    ]
    for action in actions:
        with pytest.raises(KeyDisabledError, match="life-a is disabled"):
            action()
    assert "life-a" in {key.id for key in client.list_keys() if not key.enabled}
    client.destroy_key("life-a")
    with pytest.raises(KeyNotFoundError):
        client.unwrap(wrapped, "life-a")
    with pytest.raises(KeyNotFoundError):
        client.destroy_key("life-a")


def test_a_key_that_may_only_decrypt_unwraps_and_reports_altered_bytes(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    hsm.import_key("retired", ENCRYPT=False)
    assert client.unwrap(wrap_by_hand(KEY, b"retired"), "retired") == KEY
    with pytest.raises(KeyMaterialError):
        client.unwrap(wrap_by_hand(KEY, b"other"), "retired")
    with pytest.raises(KeyDisabledError, match="CKA_ENCRYPT"):
        client.wrap(KEY, "retired")


def test_a_key_that_the_token_lets_no_one_change_is_not_said_to_be_disabled(
    hsm: SoftHsm, client: Pkcs11Kms
) -> None:
    hsm.import_key("fixed", MODIFIABLE=False)
    with pytest.raises(KeyRetrievalError, match="cannot disable it"):
        client.disable_key("fixed")
    assert client.unwrap(client.wrap(KEY, "fixed"), "fixed") == KEY


def test_versions_which_a_token_has_none_of_are_refused_with_advice(client: Pkcs11Kms) -> None:
    client.create_key("no-versions")
    with pytest.raises(KeyRetrievalError, match="create a key with another label"):
        client.rotate_key("no-versions")
    with pytest.raises(KeyRetrievalError, match="disable the whole key"):
        client.disable_key("no-versions", 1)
    assert client.unwrap(client.wrap(KEY, "no-versions"), "no-versions") == KEY


# --- secrets -------------------------------------------------------------------------------------


def test_nothing_shows_the_pin_or_a_key(hsm: SoftHsm, caplog: pytest.LogCaptureFixture) -> None:
    hsm.restart()
    with caplog.at_level(logging.DEBUG):
        client = hsm.open()
        client.create_key("quiet")
        wrapped = client.wrap(KEY, "quiet")
        client.unwrap(wrapped, "quiet")
        with pytest.raises(KeyMaterialError) as caught:
            client.unwrap(wrapped, "quiet", aad=b"wrong")
    shown = "".join([repr(client), str(client), caplog.text, *map(repr, caplog.records),
                     *traceback.format_exception(caught.value)])  # fmt: skip
    for secret in (PIN, KEY.hex(), repr(KEY)[2:-1], base64.b64encode(KEY).decode()):
        assert secret not in shown
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(client)
