"""URIs of key services: the known schemes, those that other packages add, and what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.references import parse_kms_uri

PLUGIN = """
import base64

class Client:
    def __init__(self, uri):
        self.uri = uri

    def wrap(self, key, master_key_id, *, aad=b""):
        return base64.b64encode(key[::-1]).decode()

    def unwrap(self, wrapped, master_key_id, *, aad=b""):
        return base64.b64decode(wrapped)[::-1]

def open_client(uri):
    return Client(uri)

def nothing(uri):
    return 42
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that adds key services, as pip would."""
    (tmp_path / "modcrypt_plugin.py").write_text(PLUGIN)
    info = tmp_path / "modcrypt_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: modcrypt-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[modcrypt.kms]\nmine = modcrypt_plugin:open_client\nbroken = modcrypt_plugin:nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "modcrypt_plugin", raising=False)


def test_a_package_adds_a_key_service(plugin: None, tmp_path: Path) -> None:
    import pyarrow as pa

    tools = mc.KeyTools("mine://somewhere/else")
    assert tools.client.uri == "mine://somewhere/else"  # type: ignore[attr-defined]
    table = pa.table({"a": range(10)})
    path = tmp_path / "a.parquet"
    mc.write_table(table, path, tools.encryption(mc.Policy(footer_key="any")))
    assert mc.read_table(path, mc.KeyTools("MINE:x").decryption()).equals(table)


def test_an_entry_point_that_gives_no_client_is_reported(plugin: None) -> None:
    with pytest.raises(ValueError, match="broken: URIs returned no client, but a int"):
        mc.kms.open_kms("broken:x")


def test_an_unknown_scheme_is_refused_with_the_known_ones(plugin: None) -> None:
    with pytest.raises(
        ValueError, match=r"known schemes are aws-kms, .*broken.*hcvault, mine, pkcs11"
    ):
        mc.kms.open_kms("nothing://x")


@pytest.mark.parametrize("uri", ["", "keyring.json", ":x", "no scheme"])
def test_what_is_no_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"URI|scheme"):
        mc.kms.open_kms(uri)


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("lake.keyring", "a keyring is file:PATH"),
        ("keyring:lake", "a keyring is file:PATH"),
        ("https://vault:8200/transit", "a Vault is hcvault://HOST:PORT/MOUNT"),
        ("vault://localhost:8200", "such as hcvault://vault.example.com:8200/transit"),
        ("vault://", "such as hcvault://vault.example.com:8200/transit"),
        ("aws://alias/lake", "did you mean aws-kms"),
    ],
)
def test_what_was_meant_is_suggested(uri: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        mc.kms.open_kms(uri)


@pytest.mark.parametrize(
    "query", ["hunter2", "hunter2=1", "a=1&a=hunter2", "hunter2=", "a=1&&b=2", "=hunter2"]
)
def test_what_a_query_must_not_have_is_not_repeated(query: str) -> None:
    with pytest.raises(ValueError, match="each name once") as caught:
        parse_kms_uri(f"file:x?{query}", frozenset({"a"}))
    assert "hunter2" not in str(caught.value)


def test_a_uri_is_split_and_a_plus_stays_a_plus() -> None:
    found = parse_kms_uri("file:/a%20b?a=c%20+d#e%2Ff", frozenset({"a"}))
    assert (found.scheme, found.location) == ("file", "/a%20b")
    assert (found.query, found.fragment) == ({"a": "c +d"}, "e/f")


@pytest.mark.parametrize("uri", [None, b"env:KEY", 1])
def test_a_uri_is_a_string(uri: Any) -> None:
    with pytest.raises(TypeError, match="URI must be a string"):
        mc.kms.open_kms(uri)


def test_a_scheme_is_suggested_and_vault_has_two_names() -> None:
    with pytest.raises(ValueError, match=r"; did you mean hcvault\?"):
        mc.kms.open_kms("hcvalt://x/transit")
    with pytest.raises(ValueError, match="hcvault: "):
        mc.kms.open_kms("vault://x/transit?hunter2")
    assert mc.Settings(kms="vault://x/transit").uri == "hcvault://x/transit"
