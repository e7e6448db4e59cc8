"""HashiCorp Vault and OpenBao: a real OpenBao, judged by hvac and by its own audit log."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import calls as kms
from modcrypt.kms import pacing
from modcrypt.kms.client import MasterKey
from modcrypt.kms.references import open_kms
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.kms.json_server import hanging_up, json_server
from tests.support.kms.key_servers import Bao, bao_server, error_text, leaks

pytest.importorskip("hvac")

from modcrypt.kms.services import vault
from modcrypt.kms.services.vault import VaultKms, open_vault

KEY = bytes(range(0xC1, 0xD1))
KEYS = [bytes([n]) * 16 for n in range(16, 32)]
AAD = b"table/part-0"


class Engine:
    """A fresh transit engine, and clients of it."""

    def __init__(self, bao: Bao, prefix: str = "") -> None:
        self.bao = bao
        self.mount = bao.mount(prefix)

    def open(self, query: str = "", **options: Any) -> VaultKms:
        options = {"token": self.bao.root_token, **options}
        return open_vault(self.bao.uri(self.mount, query), **options)

    def restricted_client(self, rules: dict[str, list[str]], query: str = "") -> VaultKms:
        """Return a client whose token has only these capabilities on the engine's paths."""
        rules = {f"{self.mount}/{path}": can for path, can in rules.items()}
        return self.open(query, token=self.bao.token(rules))

    def create(self, name: str = "footer", **options: Any) -> str:
        self.judge.create_key(name, mount_point=self.mount, **options)
        return name

    def names(self) -> list[str]:
        """List keys by hvac."""
        import hvac.exceptions

        try:
            listed = self.judge.list_keys(mount_point=self.mount)
        except hvac.exceptions.InvalidPath:
            return []
        names: list[str] = listed["data"]["keys"]
        return names

    @property
    def judge(self) -> Any:
        return self.bao.judge().secrets.transit


@pytest.fixture
def engine(bao: Bao) -> Engine:
    return Engine(bao)


DERIVED = pytest.mark.parametrize("derived", [False, True], ids=["plain", "derived"])


def create_key(engine: Engine, derived: bool) -> tuple[VaultKms, str]:
    name = engine.create(derived=derived)
    return engine.open("&derived=true" if derived else ""), name


# --- wrapping and unwrapping ---------------------------------------------------------------------


@DERIVED
@pytest.mark.parametrize("aad", [b"", AAD], ids=["no aad", "aad"])
def test_hvac_unwraps_what_modcrypt_wrapped_and_the_other_way(
    engine: Engine, derived: bool, aad: bytes
) -> None:
    client, name = create_key(engine, derived)
    bound: dict[str, Any] = {"mount_point": engine.mount}
    if derived:
        bound["context"] = base64.b64encode(aad or name.encode()).decode()
    elif aad:
        bound["associated_data"] = base64.b64encode(aad).decode()
    wrapped = client.wrap(KEY, name, aad=aad)
    plain = engine.judge.decrypt_data(name, wrapped, **bound)["data"]["plaintext"]
    assert base64.b64decode(plain) == KEY
    theirs = engine.judge.encrypt_data(name, base64.b64encode(KEY).decode(), **bound)
    assert client.unwrap(theirs["data"]["ciphertext"], name, aad=aad) == KEY


@DERIVED
@pytest.mark.parametrize(("aad", "other"), [(AAD, b"table/part-1"), (AAD, b""), (b"", AAD)])
def test_another_aad_is_refused(engine: Engine, derived: bool, aad: bytes, other: bytes) -> None:
    client, name = create_key(engine, derived)
    wrapped = client.wrap(KEY, name, aad=aad)
    with pytest.raises(KeyMaterialError, match="other AAD"):
        client.unwrap(wrapped, name, aad=other)
    with pytest.raises(KeyMaterialError, match="other AAD"):
        client.rewrap(wrapped, name, aad=other)


@DERIVED
def test_an_altered_text_is_refused_wherever_a_bit_is_flipped(
    engine: Engine, derived: bool
) -> None:
    client, name = create_key(engine, derived)
    head, _, text = client.wrap(KEY, name).rpartition(":")
    raw = base64.b64decode(text)
    for at in range(len(raw)):
        altered = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(KeyMaterialError, match="altered"):
            client.unwrap(f"{head}:{base64.b64encode(altered).decode()}", name)


def test_another_master_key_is_refused(engine: Engine) -> None:
    client = engine.open()
    wrapped = client.wrap(KEY, engine.create("one"))
    with pytest.raises(KeyMaterialError, match="another master key"):
        client.unwrap(wrapped, engine.create("two"))


@pytest.mark.parametrize("version", ["v2", "v9", "v999999999"])
def test_a_version_that_is_not_there_is_refused(engine: Engine, version: str) -> None:
    client, name = create_key(engine, False)
    text = client.wrap(KEY, name).rpartition(":")[2]
    with pytest.raises(KeyMaterialError):
        client.unwrap(f"vault:{version}:{text}", name)


@each_case(
    "text",
    [
        "", "vault:v1:", "vault:v0:AAAA", "vault:v1:AA*A", "vault:v1:AAAA\n", "vault:v1:AAAA?x=1",
        "vault:v-1:AAAA", "vault:v1:AAAA===", "vault:v\u0661:AAAA", "bao:v1:AAAA",
        "vault:v1234567890:AAAA", "vault:v1:" + "A" * (16 << 10), '{"encryptedKey":"AAAA"}',
    ],
    ids=lambda text: text[:22],
)  # fmt: skip
def test_what_no_vault_wrapped_is_refused_before_anything_is_sent(
    engine: Engine, text: str
) -> None:
    client, name = create_key(engine, False)
    with engine.bao.record_requests() as requests:
        for ask in (client.unwrap, client.rewrap, client.is_current):
            with pytest.raises(KeyMaterialError, match="not vault:v"):
                ask(text, name)
    assert requests == []


# --- names and addresses -------------------------------------------------------------------------

UNFIT_NAMES = [
    "", ".", "..", "../../sys/seal", "..%2f..%2fsys%2fseal", "a/b", "a/../b", "a?list=true", "a#b",
    "a b", "a\n", "a%2e", "a\\b", ".a", "a.", "-a", "caf\u00e9", "\udc80", "a" * 256,
    "http://127.0.0.1:1/x", "//127.0.0.1:1/x",
]  # fmt: skip


@each_case("name", UNFIT_NAMES, ids=ascii)
@DERIVED
def test_a_name_from_a_file_that_leads_elsewhere_is_refused_before_anything_is_sent(
    engine: Engine, name: str, derived: bool
) -> None:
    client = engine.open("&derived=true" if derived else "")
    wrapped = "vault:v1:" + "A" * 80
    questions: list[Callable[[], object]] = [
        lambda: client.wrap(KEY, name),
        lambda: client.wrap(KEY, name, aad=AAD),
        lambda: client.wrap_many([KEY, KEY], name),
        lambda: client.unwrap(wrapped, name),
        lambda: client.rewrap(wrapped, name),
        lambda: client.is_current(wrapped, name),
        lambda: client.rotate_key(name),
        lambda: client.disable_key(name, 1),
        lambda: client.destroy_key(name),
    ]
    with engine.bao.record_requests() as requests:
        for ask in questions:
            with pytest.raises(KeyNotFoundError, match="consists of letters"):
                ask()
        with pytest.raises(ValueError, match="consists of letters"):
            client.create_key(name)
    assert requests == []


@pytest.mark.parametrize("name", ["a", "_", "footer.key-1_x", "0", "a" * 255, "keys", "config"])
def test_a_name_that_vault_takes_is_taken(engine: Engine, name: str) -> None:
    client = engine.open()
    assert client.create_key(name).id == name
    assert client.unwrap(client.wrap(KEY, name), name) == KEY


@each_case(
    "uri",
    [
        "hcvault:", "hcvault://", "hcvault://host", "hcvault://host/", "hcvault:host/transit",
        "hcvault:///transit", "hcvault://host:99999/transit", "hcvault://host:x/transit",
        "hcvault://user:Zq9-pw@host/transit", "hcvault://host/../sys", "hcvault://host/a//b",
        "hcvault://host/a%2fb", "hcvault://host/a b", "hcvault://host/transit/keys/..",
        "hcvault://host/transit/keys/", "hcvault://host/transit#x", "hcvault://ho\\st/transit",
        "hcvault://host/transit?tls=off", "hcvault://localhost.example/transit?tls=off",
        "hcvault://10.0.0.1/transit?tls=off", "hcvault://host/transit?tls=no",
        "hcvault://host/transit?derived=1", "hcvault://host/transit?token=Zq9-pw",
        "hcvault://host/transit?token=env:", "hcvault://host/transit?address=http://x",
        "hcvault://host/transit?namespace=a/../b", "hcvault://host/transit?namespace=a%0ab",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("bare_environment")
def test_a_uri_of_another_form_is_refused_and_not_repeated(uri: str) -> None:
    token = None if "token" in uri else "t"
    with pytest.raises(ValueError, match="hcvault") as caught:
        open_vault(uri, token=token)
    assert "Zq9" not in "".join(traceback.format_exception(caught.value)[-1:])


@pytest.mark.parametrize(
    ("uri", "shown", "default"),
    [
        ("hcvault://vault.example:8200/transit", "vault.example:8200/transit", None),
        ("hcvault://vault.example/a/b/c", "vault.example/a/b/c", None),
        ("hcvault://vault.example/team/transit/keys/k", "vault.example/team/transit", "k"),
        ("hcvault://[::1]:8200/transit/keys/k?tls=off", "[::1]:8200/transit", "k"),
        ("hcvault://localhost/keys?tls=off", "localhost/keys", None),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_the_parts_of_a_uri(uri: str, shown: str, default: str | None) -> None:
    client = open_kms(uri, token="Zq9-token")
    assert isinstance(client, VaultKms)
    assert repr(client) == f"VaultKms({shown})"
    assert client.default_key == default
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(client)


def test_an_engine_may_be_mounted_deep(bao: Bao) -> None:
    engine = Engine(bao, "team/lake/")
    client, name = create_key(engine, False)
    with bao.record_requests() as requests:
        assert client.unwrap(client.wrap(KEY, name), name) == KEY
    assert {request["path"] for request in requests} == {
        f"{engine.mount}/encrypt/{name}",
        f"{engine.mount}/decrypt/{name}",
    }


def test_a_namespace_is_one_of_the_servers(bao: Bao) -> None:
    judge = bao.judge()
    judge.adapter.post("/v1/sys/namespaces/lake")
    judge.adapter.namespace = "lake"
    judge.sys.enable_secrets_engine("transit", path="inner")
    client = open_vault(bao.uri("inner", "&namespace=lake"), token=bao.root_token)
    client.create_key("footer")
    assert client.unwrap(client.wrap(KEY, "footer"), "footer") == KEY
    without = open_vault(bao.uri("inner"), token=bao.root_token)
    with pytest.raises(KeyNotFoundError, match="no transit engine at"):
        without.wrap(KEY, "footer")


# --- master keys that are missing ----------------------------------------------------------------


@DERIVED
def test_a_missing_master_key_is_said_to_be_missing_and_never_created(
    engine: Engine, derived: bool
) -> None:
    """With a token that may do all; Vault's encrypt alone would create the key."""
    client = engine.open("&derived=true" if derived else "")
    wrapped = "vault:v1:" + "A" * 80
    questions: list[Callable[[], object]] = [
        lambda: client.wrap(KEY, "typo"),
        lambda: client.wrap(KEY, "typo", aad=AAD),
        lambda: client.wrap_many([KEY, KEY], "typo"),
        lambda: client.unwrap(wrapped, "typo"),
        lambda: client.rewrap(wrapped, "typo"),
        lambda: client.is_current(wrapped, "typo"),
        lambda: client.rotate_key("typo"),
        lambda: client.disable_key("typo"),
        lambda: client.disable_key("typo", 1),
        lambda: client.destroy_key("typo"),
    ]
    for ask in questions:
        with pytest.raises(KeyNotFoundError, match="no master key typo at"):
            ask()
    assert engine.names() == []
    plain = base64.b64encode(KEY).decode()
    engine.judge.encrypt_data("typo", plain, mount_point=engine.mount)  # what hvac alone does
    assert engine.names() == ["typo"]


def test_a_missing_engine_is_said_to_be_missing(bao: Bao) -> None:
    client = open_vault(bao.uri("nothing"), token=bao.root_token)
    with pytest.raises(KeyNotFoundError, match=r"no transit engine at .*/nothing; enable it"):
        client.wrap(KEY, "footer")
    with pytest.raises(KeyNotFoundError, match=r"no transit engine at .*/nothing"):
        client.list_keys()


# --- policies and tokens -------------------------------------------------------------------------


def test_a_token_that_may_only_encrypt_cannot_unwrap(engine: Engine) -> None:
    name = engine.create()
    client = engine.restricted_client({f"encrypt/{name}": ["update"]})
    wrapped = client.wrap(KEY, name)
    assert client.wrap_many([KEY, KEY], name)
    for ask in (client.unwrap, client.rewrap):
        with pytest.raises(KeyAccessDeniedError, match="policies"):
            ask(wrapped, name)
    with pytest.raises(KeyAccessDeniedError):
        client.wrap(KEY, "typo")  # nor may it know whether there is such a key
    assert engine.names() == [name]
    assert client.is_current(wrapped, name) is None


def test_derived_keys_take_no_more_rights_than_encrypt_and_decrypt(engine: Engine) -> None:
    name = engine.create(derived=True)
    rules = {f"encrypt/{name}": ["update"], f"decrypt/{name}": ["update"]}
    client = engine.restricted_client(rules, "&derived=true")
    assert client.unwrap(client.wrap(KEY, name, aad=AAD), name, aad=AAD) == KEY


def test_a_token_that_has_ended_is_denied(engine: Engine) -> None:
    token = engine.bao.token({f"{engine.mount}/*": ["update", "create", "read"]})
    client, name = engine.open(token=token), engine.create()
    wrapped = client.wrap(KEY, name)
    engine.bao.judge().auth.token.revoke(token)
    with pytest.raises(KeyAccessDeniedError, match="expired"):
        client.unwrap(wrapped, name)


def test_a_token_is_looked_up_before_each_request(engine: Engine, tmp_path: Path) -> None:
    name, file = engine.create(), tmp_path / "token"
    file.write_text("outdated\n")
    clients = [
        open_vault(engine.bao.uri(engine.mount, f"&token=file:{file}")),
        engine.open(token=lambda: file.read_text().strip()),
    ]
    for client in clients:
        with pytest.raises(KeyAccessDeniedError):
            client.wrap(KEY, name)
    file.write_text(engine.bao.root_token + "\n")
    for client in clients:
        assert client.wrap(KEY, name)


@pytest.mark.parametrize("place", ["VAULT_TOKEN", "BAO_TOKEN", "token=env", "home"])
def test_where_a_token_is_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    token, query = engine.bao.root_token, ""
    if place == "home":
        Path(os.environ["HOME"], ".vault-token").write_text(token)
    elif place == "token=env":
        monkeypatch.setenv("LAKE_TOKEN", token)
        monkeypatch.setenv("VAULT_TOKEN", "another")
        query = "&token=env:LAKE_TOKEN"
    else:
        monkeypatch.setenv(place, token)
    assert open_vault(engine.bao.uri(engine.mount, query)).wrap(KEY, engine.create())


@pytest.mark.usefixtures("bare_environment")
def test_no_token_is_said_when_the_client_is_made(tmp_path: Path) -> None:
    for query in ("", "?token=env:NOT_SET"):
        with pytest.raises(KeyAccessDeniedError, match="set VAULT_TOKEN"):
            open_vault(f"hcvault://vault.example/transit{query}")
    with pytest.raises(FileNotFoundError):
        open_vault(f"hcvault://vault.example/transit?token=file:{tmp_path}/none")


@each_case(
    ("token", "own", "goes"),
    [
        ("VAULT_TOKEN", {}, True),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://vault.example"}, True),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://Vault.example:443/"}, True),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://vault.example:8200"}, False),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://vault.bank.example"}, False),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://vault.example@evil.example"}, False),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://[vault.example"}, False),
        ("VAULT_TOKEN", {"VAULT_ADDR": "unix:///run/vault"}, False),
        ("VAULT_TOKEN", {"BAO_ADDR": "https://bao.example"}, False),
        ("VAULT_TOKEN", {"VAULT_ADDR": "https://vault.example", "BAO_ADDR": "https://b"}, True),
        ("BAO_TOKEN", {"VAULT_ADDR": "https://vault.example", "BAO_ADDR": "https://b"}, False),
        ("BAO_TOKEN", {"BAO_ADDR": "https://vault.example", "VAULT_ADDR": "https://v"}, True),
        ("home", {"VAULT_ADDR": "https://vault.bank.example"}, False),
        ("home", {"VAULT_ADDR": "https://vault.example"}, True),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_an_ambient_token_goes_only_to_the_ambient_server(
    token: str, own: dict[str, str], goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token == "home":
        (Path(os.environ["HOME"]) / ".vault-token").write_text("Zq9-own")
    else:
        monkeypatch.setenv(token, "Zq9-own")
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    if goes:
        open_vault("hcvault://vault.example/transit")
        return
    with pytest.raises(KeyAccessDeniedError, match="token=env:NAME") as caught:
        open_vault("hcvault://vault.example/transit")
    assert "Zq9" not in error_text(caught.value)
    monkeypatch.setenv("THIS_TOKEN", "Zq9-other")
    open_vault("hcvault://vault.example/transit?token=env:THIS_TOKEN")


@pytest.mark.parametrize("token", ["Zq9 token", "Zq9\r\nX-Evil: 1", "Zq9-t\u00f6ken", "Zq9" * 9999])
@pytest.mark.usefixtures("bare_environment")
def test_a_token_that_is_none_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(KeyAccessDeniedError) as caught:
        open_vault("hcvault://vault.example/transit", token=token)
    assert "Zq9" not in error_text(caught.value)


@pytest.mark.usefixtures("bare_environment")
def test_a_token_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        open_vault("hcvault://vault.example/transit?token=env:A", token="t")
    with pytest.raises(ValueError, match="has its own token"):
        open_vault("hcvault://vault.example/transit", token="t", client=object())


def test_a_client_of_hvac_is_used_as_it_is(engine: Engine) -> None:
    client = open_vault("hcvault://vault.example/" + engine.mount, client=engine.bao.judge())
    name = client.create_key("footer").id
    assert client.unwrap(client.wrap(KEY, name, aad=AAD), name, aad=AAD) == KEY


# --- derived keys --------------------------------------------------------------------------------


def test_a_key_that_is_not_derived_is_not_used_as_if_it_were(engine: Engine) -> None:
    """Vault would ignore the context, and so bind nothing to the AAD."""
    name = engine.create(derived=False)
    plain, derived = engine.open(), engine.open("&derived=true")
    wrapped = plain.wrap(KEY, name)
    questions: list[Callable[[], object]] = [
        lambda: derived.wrap(KEY, name, aad=AAD),
        lambda: derived.wrap_many([KEY, KEY], name, aad=AAD),
        lambda: derived.unwrap(wrapped, name, aad=AAD),
        lambda: derived.rewrap(wrapped, name, aad=AAD),
    ]
    for ask in questions:
        with pytest.raises(KeyRetrievalError, match="is not a derived key"):
            ask()


def test_a_derived_key_asks_for_a_uri_that_says_so(engine: Engine) -> None:
    name, client = engine.create(derived=True), engine.open()
    wrapped = engine.open("&derived=true").wrap(KEY, name)
    questions: list[Callable[[], object]] = [
        lambda: client.wrap(KEY, name, aad=AAD),
        lambda: client.unwrap(wrapped, name),
    ]
    for ask in questions:
        with pytest.raises(KeyRetrievalError, match="add derived=true"):
            ask()


def test_the_look_at_a_derived_key_is_one_request_in_all(engine: Engine) -> None:
    client, name = create_key(engine, True)
    with engine.bao.record_requests() as requests:
        for _ in range(5):
            client.unwrap(client.wrap(KEY, name, aad=AAD), name, aad=AAD)
    assert len(requests) == 11


# --- rotation ------------------------------------------------------------------------------------


@DERIVED
@pytest.mark.parametrize("aad", [b"", AAD], ids=["no aad", "aad"])
def test_rotation_and_rewrapping(engine: Engine, derived: bool, aad: bytes) -> None:
    client, name = create_key(engine, derived)
    old = client.wrap(KEY, name, aad=aad)
    assert client.is_current(old, name) is True
    assert client.rotate_key(name).version == 2
    assert client.is_current(old, name) is False
    assert client.unwrap(old, name, aad=aad) == KEY
    new = kms.rewrap(client, old, name, aad)
    assert new.startswith("vault:v2:")
    assert client.is_current(new, name) is True
    assert client.unwrap(new, name, aad=aad) == KEY
    assert client.wrap(KEY, name, aad=aad).startswith("vault:v2:")


@pytest.mark.parametrize(("derived", "aad"), [(False, b""), (True, b""), (True, AAD)])
def test_rewrapping_happens_inside_vault_and_needs_no_right_to_decrypt(
    engine: Engine, derived: bool, aad: bytes
) -> None:
    query = "&derived=true" if derived else ""
    full, name = create_key(engine, derived)
    old = full.wrap(KEY, name, aad=aad)
    full.rotate_key(name)
    client = engine.restricted_client({f"rewrap/{name}": ["update"]}, query)
    with engine.bao.record_requests() as requests:
        new = client.rewrap(old, name, aad=aad)
    assert {request["path"] for request in requests} == {f"{engine.mount}/rewrap/{name}"}
    assert new.startswith("vault:v2:")
    assert full.unwrap(new, name, aad=aad) == KEY
    with pytest.raises(KeyAccessDeniedError):
        client.unwrap(new, name, aad=aad)


def test_rewrapping_with_aad_under_a_key_that_is_not_derived_takes_decrypt(engine: Engine) -> None:
    full, name = create_key(engine, False)
    old = full.wrap(KEY, name, aad=AAD)
    full.rotate_key(name)
    client = engine.restricted_client({f"rewrap/{name}": ["update"], f"encrypt/{name}": ["update"]})
    with pytest.raises(KeyAccessDeniedError, match="refuses to decrypt"):
        client.rewrap(old, name, aad=AAD)


def test_the_newest_version_is_asked_for_once_a_minute(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name = create_key(engine, False)
    wrapped = client.wrap(KEY, name)
    now = [1000.0]
    monkeypatch.setattr(vault, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with engine.bao.record_requests() as requests:
        assert [client.is_current(wrapped, name) for _ in range(9)] == [True] * 9
    assert len(requests) == 1
    engine.judge.rotate_key(name, mount_point=engine.mount)  # by somebody else
    assert client.is_current(wrapped, name) is True
    now[0] += 61
    assert client.is_current(wrapped, name) is False
    assert client.is_current(client.wrap(KEY, name), name) is True


# --- the management of master keys ---------------------------------------------------------------


@DERIVED
def test_a_master_key_is_created_as_the_uri_says(engine: Engine, derived: bool) -> None:
    client = engine.open("&derived=true" if derived else "")
    made = client.create_key("footer")
    assert (made.id, made.version, made.enabled, made.disabled_versions) == ("footer", 1, True, ())
    assert made.created is not None
    assert made.created.endswith("+00:00")
    reported = engine.judge.read_key("footer", mount_point=engine.mount)["data"]
    assert (reported["type"], reported["derived"]) == ("aes256-gcm96", derived)
    assert (reported["exportable"], reported["allow_plaintext_backup"]) == (False, False)
    with pytest.raises(ValueError, match="already"):
        client.create_key("footer")


def test_keys_are_listed_without_those_that_do_not_encrypt(engine: Engine) -> None:
    client = engine.open()
    assert client.list_keys() == []
    engine.create("signing", key_type="ed25519")
    engine.create("b")
    engine.create("a", derived=True)
    client.rotate_key("a")
    client.disable_key("a", 1)
    listed = client.list_keys()
    assert [(key.id, key.version, key.disabled_versions) for key in listed] == [
        ("a", 2, (1,)),
        ("b", 1, ()),
    ]
    narrow = engine.restricted_client({"keys": ["list"], "keys/b": ["read"]})
    assert [key for key in narrow.list_keys() if key.id == "a"] == [MasterKey(id="a")]


def test_a_disabled_version_unwraps_no_more(engine: Engine) -> None:
    client, name = create_key(engine, False)
    texts = [client.wrap(KEY, name)]
    for _ in range(2):
        client.rotate_key(name)
        texts.append(client.wrap(KEY, name))
    assert client.disable_key(name, 2).disabled_versions == (1, 2)
    for text in texts[:2]:
        for ask in (client.unwrap, client.rewrap):
            with pytest.raises(KeyDisabledError, match="version"):
                ask(text, name)
    assert client.unwrap(texts[2], name) == KEY
    assert client.disable_key(name, 1).disabled_versions == (1, 2)  # no version comes back
    for version in (3, 4):
        with pytest.raises(KeyRetrievalError, match="rotate the key first"):
            client.disable_key(name, version)
    with pytest.raises(ValueError, match="start at 1"):
        client.disable_key(name, 0)


def test_openbao_disables_a_whole_key(engine: Engine) -> None:
    client, name = create_key(engine, False)
    wrapped = client.wrap(KEY, name)
    assert client.disable_key(name).enabled is False
    assert client.disable_key(name).enabled is False
    assert [key.enabled for key in client.list_keys()] == [False]
    questions: list[Callable[[], object]] = [
        lambda: client.unwrap(wrapped, name),
        lambda: client.rewrap(wrapped, name),
        lambda: client.wrap(KEY, name),
        lambda: client.wrap_many([KEY, KEY], name),
    ]
    for ask in questions:
        with pytest.raises(KeyDisabledError, match="disabled"):
            ask()


@pytest.mark.usefixtures("bare_environment")
def test_a_stubbed_vault_without_soft_delete_says_what_to_do_instead() -> None:
    """HashiCorp's Vault has no soft deletion, which is OpenBao's."""
    reported = b'{"data":{"latest_version":1,"min_decryption_version":1,"keys":{"1":1795274511}}}'
    with answering(200, reported) as (port, asked):
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="t")
        with pytest.raises(KeyRetrievalError, match="cannot disable a key"):
            client.disable_key("footer")
    assert len(asked) == 1


def test_a_destroyed_key_is_gone(engine: Engine) -> None:
    client, name = create_key(engine, False)
    wrapped = client.wrap(KEY, name)
    client.destroy_key(name)
    assert engine.names() == []
    with pytest.raises(KeyNotFoundError):
        client.unwrap(wrapped, name)
    client.create_key(name)  # the same name, and another key
    with pytest.raises(KeyMaterialError):
        client.unwrap(wrapped, name)


# --- batches, threads, processes -----------------------------------------------------------------


def test_threads_get_their_own_keys_back(engine: Engine) -> None:
    client, name = create_key(engine, False)

    def work(key: bytes) -> list[bytes]:
        start.wait()
        return [client.unwrap(client.wrap(key, name, aad=key), name, aad=key) for _ in range(10)]

    start = threading.Barrier(8)
    with engine.bao.record_requests() as requests, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, KEYS[:8]))
    assert found == [[key] * 10 for key in KEYS[:8]]
    assert len(requests) == 160
    assert len({request["remote_port"] for request in requests}) == 8


def test_a_forked_process_does_not_share_its_parents_connection(engine: Engine) -> None:
    client, name = create_key(engine, False)
    wrapped = client.wrap(KEY, name)
    with engine.bao.record_requests() as requests:
        child = os.fork()
        if child == 0:
            os._exit(0 if client.unwrap(wrapped, name) == KEY else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.unwrap(wrapped, name) == KEY
    assert len({request["remote_port"] for request in requests}) == 2


# --- a server that fails -------------------------------------------------------------------------


def test_a_sealed_vault_is_asked_again_and_then_unavailable(
    engine: Engine, waits: list[float]
) -> None:
    client, name = create_key(engine, False)
    wrapped = client.wrap(KEY, name)
    engine.bao.seal()
    try:
        with pytest.raises(KmsUnavailableError, match="answered 503"):
            kms.unwrap(client, wrapped, name)
    finally:
        engine.bao.unseal()
    assert len(waits) > 1
    assert kms.unwrap(client, wrapped, name) == KEY


def test_a_server_that_stops_and_comes_back(
    tmp_path: Path, bare_environment: None, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "DOWN_FOR", 0.0)
    with bao_server(tmp_path) as bao:
        client, name = create_key(Engine(bao), False)
        wrapped = client.wrap(KEY, name)
        bao.stop()
        with pytest.raises(KmsUnavailableError, match="unavailable: ConnectionError") as caught:
            kms.unwrap(client, wrapped, name)
        assert len(waits) > 1
        assert not leaks(error_text(caught.value), KEY, bao.root_token.encode())
        monkeypatch.setattr(pacing, "pause", lambda _: bao.start())
        assert kms.unwrap(client, wrapped, name) == KEY


@contextlib.contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[int, list[Any]]]:
    """Run an HTTP server that gives one answer; return its port and what it was asked."""
    with json_server() as server:
        server.answer = lambda request: (status, body, headers)
        yield server.port, server.requests


@each_case(
    ("status", "body", "error"),
    [
        (401, b"{}", KeyAccessDeniedError),
        (412, b"{}", KmsUnavailableError),
        (429, b'{"errors":["request path: rate limit quota exceeded"]}', KmsUnavailableError),
        (472, b"", KmsUnavailableError),
        (473, b"", KmsUnavailableError),
        (500, b'{"errors":["internal error"]}', KmsUnavailableError),
        (503, b'{"errors":["Vault is sealed"]}', KmsUnavailableError),
        (502, b"<html>", KmsUnavailableError),
        (504, b"<html>", KmsUnavailableError),
        (400, b"[1, 2]", KeyRetrievalError),
        (400, b'{"errors":{"x":1}}', KeyRetrievalError),
        (405, b'{"errors":null}', KeyRetrievalError),
        (418, b"Zq9", KeyRetrievalError),
        (200, b"<html>", KeyRetrievalError),
        (200, b"[]", KeyRetrievalError),
        (200, b"{}", KeyRetrievalError),
        (200, b'{"data":{"ciphertext":7}}', KeyRetrievalError),
        (204, b"", KeyRetrievalError),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_what_a_server_answers_gives_one_error_that_repeats_nothing(
    status: int, body: bytes, error: type[Exception]
) -> None:
    with answering(status, body, **{"Content-Type": "application/json"}) as (port, _):
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="Zq9-token")
        with pytest.raises(error) as caught:
            client.wrap(KEY, "footer")
        assert type(caught.value) is error
        with pytest.raises(KeyRetrievalError):
            client.wrap_many([KEY, KEY], "footer")
    assert not leaks(error_text(caught.value), KEY)
    assert "Zq9" not in error_text(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("plain", ["no base64!", "AAA", "\u00e9"])
@pytest.mark.usefixtures("bare_environment")
def test_an_unwrapped_key_that_is_no_base64_is_refused(plain: str) -> None:
    body = b'{"data":{"plaintext":"%s"}}' % plain.encode()
    with answering(200, body) as (port, _):
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="t")
        with pytest.raises(KeyRetrievalError, match="not a transit engine") as caught:
            client.unwrap("vault:v1:AAAA", "footer")
    assert plain not in error_text(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.usefixtures("bare_environment")
def test_a_redirect_is_not_followed_with_the_token(status: int) -> None:
    with answering(200, b'{"data":{"ciphertext":"vault:v1:AAAA"}}') as (elsewhere, stolen):
        there = f"http://127.0.0.1:{elsewhere}/v1/transit/encrypt/footer"
        with answering(status, b"", Location=there) as (port, asked):
            client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="t")
            with pytest.raises(KeyRetrievalError, match="active node"):
                client.wrap(KEY, "footer")
    assert len(asked) == 1
    assert stolen == []


@pytest.mark.usefixtures("bare_environment")
def test_proxies_of_the_environment_are_not_asked_for_the_loopback_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(502, b"") as (proxy, stolen):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        with answering(200, b'{"data":{"ciphertext":"vault:v1:AAAA"}}') as (port, _):
            client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="t")
            assert client.wrap(KEY, "footer") == "vault:v1:AAAA"
    assert stolen == []


@pytest.mark.usefixtures("bare_environment")
def test_a_server_that_says_nothing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modcrypt.kms.services.bounded_http.MAX_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="Zq9-token")
        with pytest.raises(KmsUnavailableError, match="ReadTimeout") as caught:
            client.wrap(KEY, "footer")
    assert not leaks(error_text(caught.value), KEY, b"Zq9-token")


# --- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["VAULT_CACERT", "BAO_CACERT"])
def test_tls_is_the_default_and_trusts_the_named_authority(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    name, bao = engine.create(), engine.bao
    uri = f"hcvault://127.0.0.1:{bao.tls_port}/{engine.mount}"
    monkeypatch.setenv(variable, str(bao.authority))
    client = open_vault(uri, token=bao.root_token)
    assert client.unwrap(client.wrap(KEY, name), name) == KEY


def test_an_unknown_certificate_is_refused_at_once(engine: Engine, waits: list[float]) -> None:
    name, bao = engine.create(), engine.bao
    uri = f"hcvault://127.0.0.1:{bao.tls_port}/{engine.mount}"
    client = open_vault(uri, token=bao.root_token)
    with (
        bao.record_requests() as requests,
        pytest.raises(KeyRetrievalError, match="_CACERT") as caught,
    ):
        kms.wrap(client, KEY, name)
    assert (waits, requests) == ([], [])
    assert not leaks(error_text(caught.value), KEY, bao.root_token.encode())


@pytest.mark.usefixtures("bare_environment")
def test_a_connection_that_ends_in_the_handshake_of_tls_is_tried_again(waits: list[float]) -> None:
    with hanging_up() as port:
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit", token="Zq9-token")
        with pytest.raises(KmsUnavailableError, match="ended the TLS handshake"):
            kms.wrap(client, KEY, "footer")
    assert len(waits) > 1


@pytest.mark.usefixtures("bare_environment")
def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VAULT_CACERT", str(tmp_path / "missing"))
    client = open_vault("hcvault://127.0.0.1:1/transit", token="Zq9-token")
    with pytest.raises(KeyRetrievalError, match="cannot be read: check VAULT_CACERT"):
        kms.wrap(client, KEY, "footer")


# --- secrets -------------------------------------------------------------------------------------


def test_neither_token_nor_key_is_shown_logged_or_chained(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """At level DEBUG urllib3 logs paths, and no bodies or headers."""
    caplog.set_level(logging.DEBUG)
    name, derived = engine.create(), engine.create("derived", derived=True)
    shown: list[str] = []

    def show(client: VaultKms, key_id: str, other: bytes) -> None:
        try:
            shown.append(repr(client.wrap_many([KEY, KEY], key_id, aad=AAD)))
            wrapped = client.wrap(KEY, key_id, aad=AAD)
            shown.append(repr((wrapped, client.rewrap(wrapped, key_id, aad=AAD))))
            client.unwrap(wrapped, key_id, aad=other)
        except KeyRetrievalError as error:
            shown.append(error_text(error))

    for client in (engine.open(), engine.open("&derived=true")):
        for key_id in (name, derived, "typo"):
            show(client, key_id, AAD)
            show(client, key_id, b"other")
        shown += [repr(client), str(client), f"{client!r:>9}", repr(client.list_keys())]
    assert sum("KeyMaterialError" in text for text in shown) == 2
    records = [record.getMessage() for record in caplog.records]
    assert any(f"/{engine.mount}/decrypt/" in text for text in records)  # it would be found
    shown += [caplog.text, *records, *(repr(record.args) for record in caplog.records)]
    assert not leaks("\n".join(shown), KEY, engine.bao.root_token.encode())


# --- quotas, batches and spent tokens ------------------------------------------------------------


@contextlib.contextmanager
def limit_rate(engine: Engine, rate: int) -> Iterator[None]:
    """Limit the requests to an engine in each second."""
    adapter, path = engine.bao.judge().adapter, "/v1/sys/quotas/rate-limit/test"
    adapter.post(path, json={"rate": rate, "interval": "1s", "path": engine.mount})
    try:
        yield
    finally:
        adapter.delete(path)


def test_a_quota_makes_threads_wait_and_fails_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODCRYPT_KMS_PATIENCE")
    client, name = create_key(engine, False)
    keys = [os.urandom(16) for _ in range(12)]
    with limit_rate(engine, 8), ThreadPoolExecutor(6) as pool:
        wrapped = list(pool.map(lambda key: kms.wrap(client, key, name), keys))
    assert kms.unwrap_many(client, wrapped, name) == keys


@DERIVED
@each_case("aad", [b"", AAD], ids=["no aad", "aad"])
def test_450_keys_are_wrapped_unwrapped_and_rewrapped_by_three_requests_each(
    engine: Engine, derived: bool, aad: bytes
) -> None:
    client, name = create_key(engine, derived)
    keys = [os.urandom(16) for _ in range(450)]
    client.wrap(KEY, name)  # the look at a derived key is another test's
    with engine.bao.record_requests() as requests:
        wrapped = kms.wrap_many(client, keys, name, aad)
    assert [len(request["data"]["batch_input"]) for request in requests] == [200, 200, 50]
    with engine.bao.record_requests() as requests:
        assert kms.unwrap_many(client, wrapped, name, aad) == keys
    assert len(requests) == 3
    client.rotate_key(name)
    with engine.bao.record_requests() as requests:
        fresh = kms.rewrap_many(client, wrapped, name, aad)
    assert len(requests) == (6 if aad and not derived else 3)
    assert all(isinstance(text, str) and text.startswith("vault:v2:") for text in fresh)
    assert [kms.unwrap(client, str(text), name, aad) for text in fresh[:3]] == keys[:3]


def test_each_faulty_key_of_a_batch_has_its_own_error(engine: Engine) -> None:
    client, name = create_key(engine, False)
    good = client.wrap(KEY, name)
    altered = good[:-6] + ("AAAA==" if not good.endswith("AAAA==") else "BBBB==")
    client.rotate_key(name)
    client.disable_key(name, 1)
    newest = client.wrap(KEY, name)
    results = client.unwrap_many([newest, good, altered, "no wrapped key", newest], name)
    assert [result if isinstance(result, bytes) else type(result) for result in results] == [
        KEY, KeyDisabledError, KeyDisabledError, KeyMaterialError, KEY,
    ]  # fmt: skip
    moved = client.rewrap_many([newest, "vault:v2:AAAA", newest], name)
    assert [type(result) for result in moved] == [str, KeyMaterialError, str]
    with pytest.raises(KeyNotFoundError, match="no master key typo"):
        client.unwrap_many([newest, newest], "typo")


def test_a_batch_is_one_use_of_a_token_and_a_spent_token_is_called_that(engine: Engine) -> None:
    _, name = create_key(engine, False)
    rules = {f"{engine.mount}/{verb}/{name}": ["update"] for verb in ("encrypt", "decrypt")}
    client = engine.open(token=engine.bao.token(rules, num_uses=2))
    wrapped = client.wrap_many([KEY] * 100, name)
    assert client.unwrap_many(wrapped, name) == [KEY] * 100
    with pytest.raises(KeyAccessDeniedError, match=r"num_uses.*spent; get a new token"):
        client.unwrap(wrapped[0], name)
    with pytest.raises(KeyAccessDeniedError, match=r"num_uses.*spent"):
        client.unwrap_many(wrapped, name)


def test_a_vault_without_tls_and_one_with_it_are_called_that(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bao = engine.bao
    client = open_vault(f"hcvault://{bao.host}/{engine.mount}", token=bao.root_token)
    with pytest.raises(KeyRetrievalError, match=r"does not speak TLS.*add \?tls=off to the URI"):
        client.wrap(KEY, "footer")
    port = bao.tls_port
    client = open_vault(f"hcvault://127.0.0.1:{port}/{engine.mount}?tls=off", token=bao.root_token)
    said = ""
    for _ in range(20):  # the server may reset the connection before its answer is read
        with pytest.raises(KeyRetrievalError) as caught:
            client.wrap(KEY, "footer")
        said = str(caught.value)
        if not isinstance(caught.value, KmsUnavailableError):
            break
    assert "speaks TLS: remove tls=off" in said


@each_case(
    ("headers", "wait"), [({}, None), ({"Retry-After": "9"}, 9.0), ({"Retry-After": "x"}, None)]
)
def test_a_wait_that_vault_names_is_taken_from_its_answer(
    headers: dict[str, str], wait: float | None
) -> None:
    with answering(429, b'{"errors": ["rate limit quota exceeded"]}', **headers) as (port, _):
        client = open_vault(f"hcvault://127.0.0.1:{port}/transit?tls=off", token="t")
        with pytest.raises(KmsUnavailableError, match="rate limit") as caught:
            client.wrap(KEY, "footer")
    assert (caught.value.throttled, caught.value.retry_after) == (True, wait)


def test_the_vault_of_the_environment_serves_all_verbs(bao: Bao, tmp_path: Path) -> None:
    """With a token: without, it is for other programs, and what needs no keys works."""
    engines = bao.judge().sys
    if "transit/" not in engines.list_mounted_secrets_engines()["data"]:
        engines.enable_secrets_engine("transit")
    bao.judge().secrets.transit.create_key("footer")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p.parquet")
    address = {"VAULT_ADDR": f"http://{bao.host}", "HOME": str(tmp_path), "MODCRYPT_CONFIG": "none"}
    service = {**address, "VAULT_TOKEN": bao.root_token}
    encrypt = ("encrypt", "--master-key", "footer", "p.parquet", "e.parquet")
    assert run(tmp_path, *encrypt, env=service).returncode == 0
    for verb, found in (
        (("verify",), "authentic"), (("inspect",), "footer"), (("head",), "1"),
        (("keys", "scan"), "footer"), (("doctor",), "no known bug"), (("schema",), "a"),
    ):  # fmt: skip
        answer = run(tmp_path, *verb, "e.parquet", env=service)
        assert (answer.returncode, found in answer.stdout) == (0, True), (verb, answer)
    for path in ("p.parquet", "e.parquet"):
        assert run(tmp_path, "inspect", path, env=address).returncode == 0
    assert run(tmp_path, "shred", "--all", "e.parquet", "--yes", env=service).returncode == 0
