"""A master key in an environment variable: what it wraps, and that its value never shows."""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import traceback
from pathlib import Path

import pytest

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.kms import calls as client
from modcrypt.kms.client import Capabilities, KmsClient, capabilities_of
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.references import open_kms
from modcrypt.kms.services.environment import EnvironmentKms, open_environment
from tests.support.cases import each_case
from tests.support.pkmt1 import open_base64, seal_base64

NAME = "MODCRYPT_TEST_MASTER"
MASTER = bytes(range(0xA0, 0xB0))
DEK = bytes(range(16))


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> EnvironmentKms:
    monkeypatch.setenv(NAME, MASTER.hex())
    return open_environment(f"env:{NAME}")


@each_case("spelling", ["hex", "HEX", "base64", "base64url", "unpadded", "spaced"])
@each_case("length", [16, 24, 32])
def test_a_wrapped_key_opens_with_the_variables_key(
    length: int, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = os.urandom(length)
    text = {
        "hex": master.hex(),
        "HEX": master.hex().upper(),
        "base64": base64.b64encode(master).decode(),
        "base64url": base64.urlsafe_b64encode(master).decode(),
        "unpadded": base64.b64encode(master).decode().rstrip("="),
        "spaced": f" {master.hex()}\n",
    }[spelling]
    monkeypatch.setenv(NAME, text)
    kms = open_kms(f"env:{NAME}")
    for aad, bound in ((b"", NAME.encode()), (b"x", NAME.encode() + b"\x00x")):
        wrapped = json.loads(kms.wrap(DEK, NAME, aad=aad))
        assert wrapped.pop("masterKeyVersion") == "NO_VERSION"
        assert open_base64(master, wrapped.pop("encryptedKey"), bound) == DEK
        assert not wrapped
        assert kms.unwrap(seal_base64(master, DEK, bound), NAME, aad=aad) == DEK


def test_the_protocol_is_kept(kms: EnvironmentKms) -> None:
    as_client: KmsClient = kms
    assert capabilities_of(as_client) == Capabilities(aad=True, random_nonces=True)
    wrapped = client.wrap(as_client, DEK, kms.default_key, b"x")
    assert client.unwrap(as_client, wrapped, NAME, b"x") == DEK
    assert client.unwrap(as_client, client.rewrap(as_client, wrapped, NAME, b"x"), NAME, b"x")
    assert len(set(client.wrap_many(as_client, [DEK, DEK], NAME))) == 2
    assert client.is_current(as_client, wrapped, NAME) is None


def test_a_keyring_takes_the_key_over(kms: EnvironmentKms, tmp_path: Path) -> None:
    ring = Keyring.create(tmp_path / "k.json", plaintext=True)
    ring.create_key(NAME, value=MASTER)
    wrapped = kms.wrap(DEK, NAME, aad=b"x")
    assert ring.unwrap(wrapped, NAME, aad=b"x") == DEK
    with pytest.raises(KeyNotFoundError, match=r"version 1 of master key .* has no versions"):
        kms.unwrap(ring.rewrap(wrapped, NAME, aad=b"x"), NAME, aad=b"x")


def test_what_does_not_fit_does_not_unwrap(kms: EnvironmentKms) -> None:
    for text, aad in (
        (kms.wrap(DEK, NAME), b"x"),
        (kms.wrap(DEK, NAME, aad=b"x"), b""),
        (seal_base64(MASTER, DEK, b""), b""),
        (seal_base64(bytes(16), DEK, NAME.encode()), b""),
        ("", b""),
        ("{}", b""),
    ):
        with pytest.raises(KeyMaterialError):
            kms.unwrap(text, NAME, aad=aad)
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        kms.wrap(bytes(15), NAME)


@pytest.mark.parametrize("name", ["", "kf", NAME.lower(), NAME + " ", "\ud800"])
def test_any_other_master_key_is_not_found(kms: EnvironmentKms, name: str) -> None:
    with pytest.raises(KeyNotFoundError, match=NAME):
        kms.wrap(DEK, name)
    with pytest.raises(KeyNotFoundError, match=NAME):
        kms.unwrap(kms.wrap(DEK, NAME), name)


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_not_found(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    with pytest.raises(KeyNotFoundError, match=f"{NAME} is not set"):
        open_environment(f"env:{NAME}")


@pytest.mark.parametrize("value", [
    MASTER.hex()[:-1], MASTER.hex() + "0", "Pn$8byteFk!qZ7wv", "0x" + MASTER.hex(), "s3cr3t" * 2000,
])  # fmt: skip
def test_what_is_no_key_is_refused_and_not_shown(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(KeyMaterialError, match=f"{NAME} does not contain a key") as caught:
        open_environment(f"env:{NAME}")
    assert value[:8] not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("uri", [
    "env:", "env:A=B", "env:a%0Ab", f"env:{NAME}#other", f"env:{NAME}?x=1", f"file:{NAME}",
])  # fmt: skip
def test_a_wrong_uri_is_refused(uri: str, kms: EnvironmentKms) -> None:
    with pytest.raises(ValueError, match=r"env:NAME|no query"):
        open_environment(uri)


def test_a_key_in_place_of_a_name_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (MASTER.hex(), base64.b64encode(MASTER).decode().rstrip("=")):
        with pytest.raises(KeyNotFoundError, match="looks like a key") as caught:
            open_environment(f"env:{text}")
        assert text[:8] not in str(caught.value)
    long_name = "MODCRYPT_KEY_OF_22_CHR"  # base64 of 16 bytes by its shape, and a name all the same
    assert len(long_name) == 22
    monkeypatch.setenv(long_name, MASTER.hex())
    assert open_environment(f"env:{long_name}#{long_name}").default_key == long_name


def test_nothing_secret_is_shown_pickled_or_copied(kms: EnvironmentKms) -> None:
    shown = repr(kms) + str(kms) + repr(vars(kms))
    assert NAME in shown
    for spelling in (MASTER.hex(), base64.b64encode(MASTER).decode(), repr(MASTER)[2:-1]):
        assert spelling not in shown
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            copying(kms)
