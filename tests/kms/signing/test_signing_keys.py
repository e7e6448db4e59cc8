"""Keys that sign, and lines with the keys that verify."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest

from modcrypt import Identity, SigningKey
from modcrypt.errors import KeyMaterialError
from modcrypt.kms import VerifyingKey
from modcrypt.kms.signing.signing_keys import check_verifying_keys
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets

SCHEMES = ("ed25519", "mldsa65")


@each_case("scheme", SCHEMES)
@each_case("passphrase", [None, "correct horse battery staple"])
def test_keys_are_read_as_they_were_written(
    scheme: str, passphrase: str | None, tmp_path: Path
) -> None:
    key = SigningKey.generate(scheme)
    key.save(tmp_path / "writer.key", passphrase)
    assert (tmp_path / "writer.key").stat().st_mode & 0o777 == 0o600
    again = SigningKey.load(tmp_path / "writer.key", passphrase)
    assert again.verifier == key.verifier
    signature = again.sign(b"message")
    assert key.verifier.verify(signature, b"message")
    assert not key.verifier.verify(signature, b"another message")
    assert not key.verifier.verify(signature[:-1] + bytes([signature[-1] ^ 1]), b"message")
    assert not key.verifier.verify(b"", b"message")
    assert not SigningKey.generate(scheme).verifier.verify(signature, b"message")


@each_case("scheme", SCHEMES)
def test_lines_are_read_as_they_were_written(scheme: str, tmp_path: Path) -> None:
    verifier = SigningKey.generate(scheme).verifier
    assert VerifyingKey.parse(str(verifier)) == verifier
    assert pickle.loads(pickle.dumps(verifier)) == verifier
    (tmp_path / "writer.pub").write_text(f"{verifier} the writer\n")
    assert VerifyingKey.load(tmp_path / "writer.pub") == verifier
    (tmp_path / "writer.pub").write_text(f"{verifier}\n{SigningKey.generate().verifier}\n")
    with pytest.raises(KeyMaterialError, match="2 verifying keys"):
        VerifyingKey.load(tmp_path / "writer.pub")


def test_other_lines_are_refused() -> None:
    line = str(SigningKey.generate().verifier)
    recipient = str(Identity.generate("x25519").recipient)
    for wrong in ("", line[:-1], recipient, line.replace("ed25519", "mldsa65"), line + ":"):
        with pytest.raises(KeyMaterialError):
            VerifyingKey.parse(wrong)
    with pytest.raises(ValueError, match="unknown signature scheme"):
        SigningKey.generate("rsa")


def test_keys_of_one_purpose_are_not_taken_for_another(tmp_path: Path) -> None:
    Identity.generate("x25519").save(tmp_path / "identity.key")
    SigningKey.generate().save(tmp_path / "writer.key")
    with pytest.raises(KeyMaterialError, match="no signing key"):
        SigningKey.load(tmp_path / "identity.key")
    with pytest.raises(KeyMaterialError, match="no identity"):
        Identity.load(tmp_path / "writer.key")
    document = json.loads((tmp_path / "writer.key").read_text())
    document["verifier"] = str(SigningKey.generate().verifier)
    (tmp_path / "writer.key").write_text(json.dumps(document))
    with pytest.raises(KeyMaterialError, match="does not belong"):
        SigningKey.load(tmp_path / "writer.key")


def test_a_signing_key_never_leaves_the_process() -> None:
    key = SigningKey.generate()
    assert key._secret is not None
    assert key._secret().hex() not in repr(key)
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled") as caught:
            leave(key)
        assert not find_secrets(caught.value, key._secret())


def test_readers_name_one_key_at_least() -> None:
    key = SigningKey.generate().verifier
    assert check_verifying_keys(key) == {key.hex_id: key}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 64"):
        check_verifying_keys([])
    with pytest.raises(TypeError, match="VerifyingKey"):
        check_verifying_keys([str(key)])  # type: ignore[list-item]
