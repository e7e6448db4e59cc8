"""Private keys and their files."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modcrypt import Identity, SigningKey
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
)
from modcrypt.kms.recipients.identity import load_identities
from modcrypt.kms.signing.signing_keys import load_signing_key
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets
from tests.support.recipients import KINDS, identity

PASSPHRASE = "correct horse battery stäple"


@each_case("kind", KINDS)
@each_case("passphrase", [None, PASSPHRASE, PASSPHRASE.encode()])
def test_an_identity_is_read_as_it_was_written(
    kind: str, passphrase: str | bytes | None, tmp_path: Path
) -> None:
    made = identity(kind, kind)
    path = tmp_path / "me.key"
    made.save(path, passphrase)
    assert path.stat().st_mode & 0o777 == 0o600
    read = Identity.load(path, passphrase)
    assert read.recipient == made.recipient
    assert read._secret == made._secret
    assert (made._secret() in path.read_bytes()) is False
    protection = json.loads(path.read_text())["protection"]
    assert protection == ("none" if passphrase is None else "scrypt")
    with pytest.raises(FileExistsError):
        made.save(path)


def test_a_plaintext_file_does_not_pass_for_an_encrypted_one(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key")
    SigningKey.generate().save(tmp_path / "writer.key")
    for passphrase in (PASSPHRASE, lambda: pytest.fail("not needed")):
        for load, name in ((Identity.load, "me.key"), (SigningKey.load, "writer.key")):
            with pytest.raises(KeyRetrievalError, match=f"{name}: a passphrase was passed, but"):
                load(tmp_path / name, passphrase)


@each_case("place", ["env", "file", "fd"])
def test_named_passphrases_need_an_encrypted_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity().save(tmp_path / "me.key")
    SigningKey.generate().save(tmp_path / "writer.key")
    monkeypatch.setenv("PASS", PASSPHRASE)
    (tmp_path / "pass").write_text(PASSPHRASE)
    for load in (
        lambda reference: load_identities([f"file:{tmp_path / 'me.key'}"], reference),
        lambda reference: load_signing_key(f"file:{tmp_path / 'writer.key'}", reference),
    ):
        with open(tmp_path / "pass", "rb") as file:
            where = {"env": "PASS", "file": str(tmp_path / "pass"), "fd": str(file.fileno())}
            with pytest.raises(KeyRetrievalError, match="a passphrase was passed, but"):
                load(f"{place}:{where[place]}")
        load("prompt")  # asks nothing


def test_a_mistyped_passphrase_is_not_repeated(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key", PASSPHRASE)
    for reference in (f"file:{PASSPHRASE}", f"env:{PASSPHRASE}"):
        with pytest.raises(KeyAccessDeniedError) as caught:
            load_identities([f"file:{tmp_path / 'me.key'}"], reference)
        assert PASSPHRASE not in str(caught.value)


def test_the_passphrase_is_asked_for_when_it_is_needed(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key", lambda: PASSPHRASE)
    Identity.load(tmp_path / "me.key", lambda: PASSPHRASE)
    for wrong in (None, "wrong", lambda: ""):
        with pytest.raises(KeyAccessDeniedError, match=r"me\.key"):
            Identity.load(tmp_path / "me.key", wrong)


@each_case("mode", [0o640, 0o604, 0o620, 0o660, 0o644, 0o601])
def test_files_that_others_can_use_are_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    identity().save(path)
    path.chmod(mode)
    with pytest.raises(KeyRetrievalError, match="chmod 600"):
        Identity.load(path)
    path.chmod(0o400)
    Identity.load(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match=r"none\.key does not exist"):
        Identity.load(tmp_path / "none.key")
    with pytest.raises(KeyMaterialError, match="directory"):
        Identity.load(tmp_path)
    with pytest.raises(KeyMaterialError, match="not a file name"):
        Identity.load("a\x00b")


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "format": lambda d: d.update(format="modcrypt-keyring"),
    "version": lambda d: d.update(version=2),
    "version true": lambda d: d.update(version=True),
    "protection": lambda d: d.update(protection="none"),
    "protection unknown": lambda d: d.update(protection=["x"]),
    "member": lambda d: d.update(more=1),
    "no recipient": lambda d: d.pop("recipient"),
    "recipient a number": lambda d: d.update(recipient=7),
    "another recipient": lambda d: d.update(recipient=str(identity("other").recipient)),
    "scrypt cost": lambda d: d["scrypt"].update(n=2**30),
    "scrypt salt": lambda d: d["scrypt"].update(salt="AAAAAAAAAAAAAAAAAAAAAA=="),
    "sealed": lambda d: d.update(sealed="A" * 160),
    "sealed short": lambda d: d.update(sealed="AAAA"),
    "sealed no base64": lambda d: d.update(sealed="?"),
}


@each_case("change", CHANGES)
def test_altered_files_are_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    identity().save(path, PASSPHRASE)
    document = json.loads(path.read_text())
    CHANGES[change](document)
    path.write_text(json.dumps(document))
    with pytest.raises((KeyMaterialError, KeyAccessDeniedError)) as caught:
        Identity.load(path, PASSPHRASE)
    assert not find_secrets(caught.value, identity()._secret(), PASSPHRASE.encode())


@each_case("content", [b"", b"{", b"[]", b"\xff", b" " * 20_000, b"modcrypt-recipient:x25519:"])
def test_what_is_no_identity_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyMaterialError, match="identity"):
        Identity.load(path)


def test_a_plaintext_identity_needs_the_key_of_its_recipient(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    identity().save(path)
    document = json.loads(path.read_text())
    document["recipient"] = str(identity("other").recipient)
    path.write_text(json.dumps(document))
    with pytest.raises(KeyMaterialError, match="does not belong") as caught:
        Identity.load(path)
    assert not find_secrets(caught.value, identity()._secret())


def test_an_identity_never_leaves_the_process() -> None:
    me = identity()
    secret = me._secret()
    assert secret.hex() not in repr(me)
    assert repr(secret) not in repr(vars(me))
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            leave(me)
    with pytest.raises(KeyMaterialError) as caught:
        me.decrypt(os.urandom(80), b"info")
    assert not find_secrets(caught.value, secret)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="known kinds are mlkem768-x25519, x25519"):
        Identity.generate("p256")


@each_case("kind", [Identity, SigningKey])
def test_a_private_key_comes_from_a_variable_or_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    key = kind.generate()
    key.save(tmp_path / "me.key", passphrase=PASSPHRASE)
    monkeypatch.setenv("ME", (tmp_path / "me.key").read_text())
    monkeypatch.setenv("WORD", PASSPHRASE)
    with (tmp_path / "me.key").open("rb") as file:
        for reference in ("env:ME", f"fd:{file.fileno()}"):
            if kind is Identity:
                (found,) = load_identities([reference], "env:WORD")
                assert found.recipient == key.recipient
            else:
                signing = load_signing_key(reference, "env:WORD")
                assert (signing.verifier, signing.kept_at) == (key.verifier, "")
    with pytest.raises(KeyNotFoundError, match="environment variable NONE is not set"):
        load_identities(["env:NONE"], None)
