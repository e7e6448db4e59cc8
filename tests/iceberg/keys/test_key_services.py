"""Tables store each key service's wrapped keys as the bytes that Iceberg's own clients store.

Real ones where they can be had (OpenBao, SoftHSM), else moto and stubs behind the real clients.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.iceberg.keys.master_keys import MasterKeys, format_wrapped_key
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.keys import Key
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.calls import is_current
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.services.aws import open_aws
from modcrypt.kms.services.azure import AzureKms
from modcrypt.kms.services.environment import EnvironmentKms
from modcrypt.kms.services.gcp import GcpKms
from modcrypt.kms.services.vault import open_vault
from tests.support.kms.azure_stub import OAEP, V2, VaultStub, azure, rsa_keys, vault
from tests.support.kms.google_stub import GoogleStub, gcp, google, google_client
from tests.support.kms.key_servers import Bao, MotoKms
from tests.support.kms.soft_hsm import SoftHsm, hsm

__all__ = ["azure", "gcp", "google", "google_client", "hsm", "rsa_keys", "vault"]  # fixtures

DEK = bytes(range(0xA0, 0xB0))
METADATA = StandardKeyMetadata(key=DEK, aad_prefix=bytes(range(0xC0, 0xD0)), file_length=4735)
KEK = bytes(range(200, 232))


def unseal(key: bytes, block: bytes, aad: bytes) -> bytes:
    return AESGCM(key).decrypt(block[:12], block[12:], aad)


def check_round_trip(client: Any, master: str) -> bytes:
    """Wrap and unwrap a KEK, and a DEK in single wrapping; return the wrapped KEK."""
    masters = MasterKeys(client)
    made = masters.new_kek(master, 32)
    data = made.encrypt(METADATA)
    entry = json.loads(json.dumps(made.key.entry().document()))
    wrapped = base64.b64decode(entry["encrypted-key-metadata"], validate=True)
    there = IcebergKey(entry["key-id"], entry["encrypted-by-id"], wrapped, entry["properties"])
    fresh = MasterKeys(client)
    assert fresh.open_key(there).decrypt(data) == METADATA
    alone = OpenKey(IcebergKey.single(master), fresh)
    assert alone.decrypt(alone.encrypt(METADATA)) == METADATA
    for again in (masters.move(wrapped, master, master), masters.wrap(Key(DEK), master)):
        assert len(masters.unwrap(again, master)) in (16, 32)
    with pytest.raises(KeyRetrievalError):
        masters.unwrap(wrapped[:-1] + bytes((wrapped[-1] ^ 1,)), master)
    with pytest.raises(KeyRetrievalError):
        masters.unwrap(wrapped, master + "x")
    return wrapped


def test_a_keyring(tmp_path: Path) -> None:
    ring = Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key('odd "name" ü')
    wrapped = check_round_trip(ring, 'odd "name" ü')
    assert set(json.loads(wrapped)) == {"masterKeyVersion", "encryptedKey"}
    ring.rotate_key('odd "name" ü')
    moved = MasterKeys(ring).move(wrapped, 'odd "name" ü', 'odd "name" ü')
    assert json.loads(moved)["masterKeyVersion"] == "2"


def test_a_variable() -> None:
    wrapped = check_round_trip(EnvironmentKms("MASTER", Key(KEK)), "MASTER")
    block = base64.b64decode(json.loads(wrapped)["encryptedKey"], validate=True)
    assert len(unseal(KEK, block, b"MASTER")) == 32


def test_aws_stores_the_very_bytes_that_iceberg_does(moto: MotoKms) -> None:
    """Iceberg's AwsKeyManagementClient: Encrypt without a context, and the CiphertextBlob."""
    judge = moto.judge()
    arn = judge.create_key()["KeyMetadata"]["Arn"]
    with moto.record_requests() as requests:
        blob = check_round_trip(open_aws(f"aws-kms://{arn}"), arn)
    assert {sent.operation for sent in requests} == {"Encrypt", "Decrypt", "ReEncrypt"}
    for request in requests:
        assert not [v for name, v in request.body.items() if "Context" in name and v]
    assert len(judge.decrypt(KeyId=arn, CiphertextBlob=blob)["Plaintext"]) == 32
    java = judge.encrypt(KeyId=arn, Plaintext=DEK)["CiphertextBlob"]
    assert MasterKeys(open_aws(f"aws-kms://{arn}")).unwrap(java, arn) == Key(DEK)


def test_vault_stores_its_own_text(bao: Bao) -> None:
    transit = open_vault(bao.uri(bao.mount()), token=bao.root_token)
    transit.create_key("mek")
    wrapped = check_round_trip(transit, "mek")
    assert re.fullmatch(rb"vault:v1:[A-Za-z0-9+/]+={0,2}", wrapped)
    transit.rotate_key("mek")
    assert MasterKeys(transit).move(wrapped, "mek", "mek").startswith(b"vault:v2:")
    derived = open_vault(bao.uri(bao.mount(), "&derived=true"), token=bao.root_token)
    derived.create_key("mek")
    check_round_trip(derived, "mek")


def test_google_stores_the_very_bytes_that_iceberg_does(gcp: GcpKms, google: GoogleStub) -> None:
    """Iceberg's GcpKeyManagementClient: Encrypt without AAD, and the ciphertext."""
    name = str(gcp.default_key)
    data = check_round_trip(gcp, name)
    assert len(google.keys[name].decrypt(data[:12], data[12:], None)) == 32
    assert not any(call.additional_authenticated_data for call in google.calls)


def test_azure_stores_the_very_bytes_that_iceberg_does(azure: AzureKms, vault: VaultStub) -> None:
    """Iceberg's AzureKeyManagementClient: wrapKey by the newest version, and its result alone."""
    data = check_round_trip(azure, "a")
    assert len(vault.keys["a"][V2].decrypt(data, OAEP)) == 32
    java = vault.keys["a"][V2].public_key().encrypt(DEK, OAEP)
    assert MasterKeys(azure).unwrap(java, "a") == Key(DEK)


def test_azures_older_versions_unwrap_what_names_no_version(
    azure: AzureKms, vault: VaultStub
) -> None:
    """Iceberg's client then fails, until the KEKs are wrapped again (`rotate mek`)."""
    masters = MasterKeys(azure)
    wrapped = masters.wrap(Key(DEK), "a")
    assert is_current(azure, format_wrapped_key(wrapped), "a")
    vault.keys["a"]["3" * 32] = rsa.generate_private_key(65537, 2048)
    assert masters.unwrap(wrapped, "a") == Key(DEK)
    assert not is_current(azure, format_wrapped_key(wrapped), "a")
    moved = masters.move(wrapped, "a", "a")
    assert is_current(azure, format_wrapped_key(moved), "a")
    vault.disabled = {V2}
    with pytest.raises(KeyMaterialError, match="does not unwrap"):
        masters.unwrap(wrapped, "a")


def test_tables_with_azures_json_are_read(azure: AzureKms) -> None:
    """Tables of earlier versions of modcrypt store the JSON, which names the key's version."""
    assert MasterKeys(azure).unwrap(azure.wrap(DEK, "a").encode(), "a") == Key(DEK)


def test_a_token(hsm: SoftHsm) -> None:
    client = hsm.open()
    client.create_key("mek")
    check_round_trip(client, "mek")
