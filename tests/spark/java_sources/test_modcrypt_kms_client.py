"""The client that parquet-java opens: each scheme leads to its key service, and only those do."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from modcrypt.spark.jvm.native_jar import compile_sources
from tests.support.spark.java_client import KEYS, JavaClient, JavaError, call_java


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("hcvault://127.0.0.1/transit", "names of keys in Vault consist of"),
        ("AWS-KMS://?region=r", "is not an ARN, id, alias or name of AWS KMS"),
        ("gcp-kms://projects/p/locations/l/keyRings/r", "is not in key ring projects/p/locations/"),
        ("azure-kms://lake.vault.azure.net", "names of keys in Azure's vaults consist of"),
    ],
)
def test_a_scheme_leads_to_its_service_and_a_forged_id_nowhere(
    jvm: Any, uri: str, match: str
) -> None:
    java = JavaClient(jvm, uri)
    with pytest.raises(JavaError, match=match):
        java.wrap(KEYS[0], "../x y")


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("pkcs11:token=lake?pin-value=hunter2", "PKCS#11 URI: remove pin-value"),
        ("azure-kms://evil.example", "the URI of a vault is"),
        ("gcp-kms://evil.example", "the URI of a key ring is"),
        ("env:KEY", "must be a file:, hcvault:, aws-kms:, gcp-kms:, azure-kms: or pkcs11: URI"),
        ("http://evil.example", "must be a file:, hcvault:, aws-kms:"),
    ],
)
def test_another_uri_is_refused_before_any_request(jvm: Any, uri: str, match: str) -> None:
    with pytest.raises(JavaError, match=match) as caught:
        JavaClient(jvm, uri)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("is_bao", "environment", "goes"),
    [
        (False, {}, True),
        (False, {"VAULT_ADDR": "https://Vault.example:443/"}, True),
        (False, {"VAULT_ADDR": "https://vault.example:8200"}, False),
        (False, {"VAULT_ADDR": "https://vault.example@evil.example"}, False),
        (False, {"VAULT_ADDR": "https://[vault.example"}, False),
        (False, {"BAO_ADDR": "https://bao.example"}, False),
        (True, {"VAULT_ADDR": "https://vault.example", "BAO_ADDR": "https://b"}, False),
        (True, {"VAULT_ADDR": "https://v", "BAO_ADDR": "https://vault.example"}, True),
    ],
)
def test_an_ambient_token_goes_only_to_the_ambient_server(
    jvm: Any, is_bao: bool, environment: dict[str, str], goes: bool
) -> None:
    """As in Python."""
    variables = jvm.java.util.HashMap()
    for name, value in environment.items():
        variables.put(name, value)
    vault = jvm.modcrypt.VaultTransit("hcvault://vault.example/transit", b"", variables)
    if goes:
        call_java(vault.checkServer, is_bao)
        return
    with pytest.raises(JavaError, match=r"not sent to vault\.example/transit: .*token=env:NAME"):
        call_java(vault.checkServer, is_bao)


def test_the_sources_compile_in_a_jvm_that_has_the_jar(jvm: Any, jar: Path) -> None:
    """Janino then takes our other classes from the jar, and no constants of classes not public."""
    with zipfile.ZipFile(jar) as packed:
        inside = {name: packed.read(name) for name in packed.namelist() if name.endswith(".class")}
    assert compile_sources(jvm) == inside
