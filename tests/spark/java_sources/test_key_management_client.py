"""The client that Iceberg's Java opens: what it stores of a wrapped key, and what it refuses."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.iceberg.keys.master_keys import MasterKeys
from modcrypt.keys import Key, key_bytes
from modcrypt.spark.jvm.native_jar import ICEBERG_CLIENT
from tests.support.java.iceberg_java import why_unavailable as why_no_iceberg
from tests.support.spark.java_client import KEYS, JavaError, call_java
from tests.support.spark.native import uri_of


@pytest.fixture(scope="module")
def iceberg(jvm: Any) -> Any:
    """Return the packages of the JVM, if it has Iceberg."""
    if reason := why_no_iceberg():
        pytest.skip(reason)
    return jvm


class IcebergClient:
    """The client in Java, opened and used as Iceberg does it."""

    def __init__(self, jvm: Any, uri: str | None) -> None:
        properties = jvm.java.util.HashMap()
        properties.put("encryption.kms-impl", ICEBERG_CLIENT)
        if uri is not None:
            properties.put("modcrypt.kms.uri", uri)
        self._buffer = jvm.java.nio.ByteBuffer
        self.client = call_java(
            jvm.org.apache.iceberg.encryption.EncryptionUtil.createKmsClient, properties
        )

    def wrap(self, key: bytes, master: str) -> bytes:
        return bytes(call_java(self.client.wrapKey, self._buffer.wrap(key), master).array())

    def unwrap(self, wrapped: bytes, master: str) -> bytes:
        return bytes(call_java(self.client.unwrapKey, self._buffer.wrap(wrapped), master).array())


def test_java_and_tables_of_modcrypt_store_the_same_form(iceberg: Any, ring: mc.Keyring) -> None:
    ring.create_key("lake")
    java, python = IcebergClient(iceberg, uri_of(ring)), MasterKeys(ring)
    for key in KEYS:
        wrapped = java.wrap(key, "lake")
        assert key_bytes(python.unwrap(wrapped, "lake")) == key
        assert java.unwrap(python.wrap(Key(key), "lake"), "lake") == key
        ring.rotate_key("lake")
        assert java.unwrap(wrapped, "lake") == key
    assert wrapped.startswith(b'{"masterKeyVersion":"')


def test_bytes_that_are_not_text_are_base64_for_the_service(iceberg: Any, ring: mc.Keyring) -> None:
    """As services in clouds have it; a keyring takes the bare bytes of other implementations."""
    ring.create_key("lake")
    block = base64.b64decode(json.loads(ring.wrap(KEYS[0], "lake"))["encryptedKey"])
    assert IcebergClient(iceberg, uri_of(ring)).unwrap(block, "lake") == KEYS[0]


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        (None, "no key service is named: set modcrypt.kms.uri"),
        ("azure-kms://lake.vault.azure.net", "Iceberg's own client: encryption.kms-type=azure"),
        ("http://evil.example", "must be a file:, hcvault:, aws-kms:"),
        ("hcvault://127.0.0.1/transit?token=hunter2", "must be env:NAME or file:PATH"),
    ],
)
def test_an_invalid_uri_is_refused_when_the_catalog_opens(
    iceberg: Any, uri: str | None, match: str
) -> None:
    with pytest.raises(JavaError, match=match) as caught:
        IcebergClient(iceberg, uri)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "wrapped", [b"", b"x", b"vault:v1:abcd", b'{"a":1}', bytes(50), bytes(5000)]
)
def test_altered_keys_are_refused(iceberg: Any, ring: mc.Keyring, wrapped: bytes) -> None:
    ring.create_key("lake")
    with pytest.raises(JavaError, match=r"unknown format|does not unwrap|altered"):
        IcebergClient(iceberg, uri_of(ring)).unwrap(wrapped, "lake")


def test_the_jar_leaves_icebergs_interface_to_iceberg(jar: Path) -> None:
    with zipfile.ZipFile(jar) as packed:
        names = packed.namelist()
    assert f"{ICEBERG_CLIENT.replace('.', '/')}.class" in names
    assert not [name for name in names if name.startswith("org/")]


def test_the_client_is_serializable_without_secrets(iceberg: Any, ring: mc.Keyring) -> None:
    client = IcebergClient(iceberg, uri_of(ring)).client
    buffer = iceberg.java.io.ByteArrayOutputStream()
    iceberg.java.io.ObjectOutputStream(buffer).writeObject(client)
    assert uri_of(ring).encode() in bytes(buffer.toByteArray())
