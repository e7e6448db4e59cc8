"""Signing keys that never leave their key service: OpenBao, moto's AWS KMS and SoftHSM."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import pacing
from modcrypt.kms.client import ServiceSigner
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets
from tests.support.keys import FOOTER_KEY
from tests.support.kms.key_servers import Bao, MotoKms
from tests.support.kms.moto_signing import add_signing_key
from tests.support.signing import PEOPLE, signed_decryption, signed_encryption

MESSAGE = b"modcrypt-signature\x00\x01" + bytes(200)


@pytest.fixture
def vault_key(bao: Bao, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that makes a key in OpenBao, and returns its URI."""
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    mount = bao.mount()

    def make(name: str = "writer", **options: Any) -> str:
        bao.judge().write(f"{mount}/keys/{name}", **{"type": "ed25519", **options})
        return bao.uri(f"{mount}/keys/{name}")

    return make


@dataclass(frozen=True)
class Hsm:
    """A SoftHSM with the pair of keys `writer`."""

    running: Any

    def uri(self, attributes: str = "object=writer") -> str:
        return str(self.running.uri(f"token=lake;{attributes}"))


@pytest.fixture(scope="module")
def token(hsm: Any) -> Hsm:
    pair = ("--keypairgen", "--key-type", "EC:edwards25519", "--label", "writer", "--id", "01")
    hsm.tool(*pair)
    return Hsm(hsm)


@pytest.fixture
def hsm_uri(token: Hsm, monkeypatch: pytest.MonkeyPatch) -> str:
    from tests.support.kms.soft_hsm import PIN

    monkeypatch.setenv("MODCRYPT_PKCS11_PIN", PIN)
    return token.uri()


pytest.importorskip("pkcs11")
from tests.support.kms.soft_hsm import hsm  # noqa: E402 (needs it)

__all__ = ["hsm"]  # a fixture


@pytest.fixture(params=["vault", "aws", "aws-mldsa", "pkcs11"])
def uri(request: pytest.FixtureRequest) -> str:
    """Return the URI of a signing key in each service."""
    if request.param == "vault":
        return str(request.getfixturevalue("vault_key")())
    if request.param == "pkcs11":
        return str(request.getfixturevalue("hsm_uri"))
    spec = "ML_DSA_65" if request.param == "aws-mldsa" else "ECC_NIST_EDWARDS25519"
    return "aws-kms://" + add_signing_key(request.getfixturevalue("moto"), spec)


def test_a_service_signs_and_the_exported_line_verifies(uri: str) -> None:
    key = mc.SigningKey.open(uri)
    verifier = mc.kms.VerifyingKey.parse(str(key.verifier))
    signature = key.sign(MESSAGE)
    assert verifier.verify(signature, MESSAGE)
    assert not verifier.verify(signature, MESSAGE + b"x")
    assert mc.SigningKey.open(uri).verifier == verifier
    assert verifier.hex_id in repr(key)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(key)
    with pytest.raises(ValueError, match="stays in its key service"):
        key.save("never.key")


def test_files_and_folders_are_signed_by_reference(uri: str, tmp_path: Path) -> None:
    (tmp_path / "footer.key").write_bytes(FOOTER_KEY)
    (tmp_path / "footer.key").chmod(0o600)
    where = f"file:{tmp_path / 'footer.key'}"
    writer = mc.Settings(footer_key=where, signing_key=uri)
    mc.write_table(PEOPLE, tmp_path / "f.parquet", pickle.loads(pickle.dumps(writer)))
    verifier = mc.SigningKey.open(uri).verifier
    reader = mc.Settings(footer_key=where, signed_by=(verifier,))
    assert mc.read_table(tmp_path / "f.parquet", reader).equals(PEOPLE)
    (tmp_path / "lake").mkdir()
    for number in range(60):  # a statement that is longer than AWS KMS signs
        (tmp_path / "lake" / f"{number}.parquet").write_bytes(b"PAR1")
    mc.jobs.seal_dataset(tmp_path / "lake", mc.SigningKey.open(uri))
    assert mc.jobs.verify_seal(tmp_path / "lake", [verifier]).files == 60


def test_a_rotated_key_of_vault_signs_with_the_version_that_it_was_opened_with(
    bao: Bao, vault_key: Callable[..., str]
) -> None:
    uri = vault_key("turning")
    key = mc.SigningKey.open(uri)
    mount = uri.partition(bao.host)[2].partition("/keys/")[0].strip("/")
    bao.judge().secrets.transit.rotate_key(name="turning", mount_point=mount)
    assert key.verifier.verify(key.sign(MESSAGE), MESSAGE)
    assert mc.SigningKey.open(uri).verifier != key.verifier


@each_case(
    "options", [{"type": "ecdsa-p256"}, {"type": "aes256-gcm96"}, {"derived": True}], ids=str
)
def test_other_kinds_of_keys_in_vault_are_refused(
    options: dict[str, Any], vault_key: Callable[..., str]
) -> None:
    name = f"other-{len(str(options))}-{options.get('type', 'derived')[:3]}"
    with pytest.raises(KeyRetrievalError, match=f"signing key {name} is not of the type ed25519"):
        mc.SigningKey.open(vault_key(name, **options))


def test_missing_disabled_and_forbidden_keys_of_vault(
    bao: Bao, vault_key: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = vault_key("gone")
    with pytest.raises(KeyNotFoundError, match="no signing key writer-2"):
        mc.SigningKey.open(uri.replace("keys/gone", "keys/writer-2"))
    key = mc.SigningKey.open(uri)
    mount = uri.partition(bao.host)[2].partition("/keys/")[0].strip("/")
    reading = bao.token({f"{mount}/keys/*": ["read"]})
    monkeypatch.setenv("VAULT_TOKEN", reading)
    with pytest.raises(
        KeyAccessDeniedError, match=r"signing key gone: .* refuses to sign"
    ) as caught:
        key.sign(MESSAGE)
    assert not find_secrets(caught.value, reading.encode())
    monkeypatch.setenv("VAULT_TOKEN", bao.token({f"{mount}/sign/*": ["update"]}))
    with pytest.raises(KeyAccessDeniedError, match="signing key gone: "):
        mc.SigningKey.open(uri)
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    bao.judge().delete(f"{mount}/keys/gone/soft-delete")
    with pytest.raises(KeyDisabledError, match="signing key gone is disabled"):
        mc.SigningKey.open(uri)


def test_other_keys_and_long_messages_of_aws_are_refused(moto: MotoKms) -> None:
    make = moto.judge().create_key
    for options in ({"KeyUsage": "SIGN_VERIFY", "KeySpec": "ECC_NIST_P256"},
                    {"KeyUsage": "SIGN_VERIFY", "KeySpec": "RSA_2048"}):  # fmt: skip
        arn = make(**options)["KeyMetadata"]["Arn"]
        with pytest.raises(KeyRetrievalError, match="ECC_NIST_EDWARDS25519 or ML_DSA_65"):
            mc.SigningKey.open(f"aws-kms://{arn}")
    arn = add_signing_key(moto)
    with pytest.raises(KeyNotFoundError, match="signing key "):
        mc.SigningKey.open(f"aws-kms://{arn[:-1]}{'a' if arn[-1] != 'a' else 'b'}")
    key = mc.SigningKey.open(f"aws-kms://{arn}")
    with moto.record_requests() as requests, pytest.raises(KeyRetrievalError, match="at most 4096"):
        key.sign(bytes(4097))
    assert requests == []


def test_unavailable_services_are_asked_again(
    moto: MotoKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.001)
    key = mc.SigningKey.open("aws-kms://" + add_signing_key(moto))
    moto.failing = 2
    assert key.verifier.verify(key.sign(MESSAGE), MESSAGE)
    moto.failing = 10_000
    with pytest.raises(KmsUnavailableError):
        key.sign(MESSAGE)
    moto.failing = 0


def test_tokens_with_other_keys_are_refused(token: Hsm, hsm_uri: str) -> None:
    assert mc.SigningKey.open(token.uri("object=writer;type=private;id=%01"))
    with pytest.raises(KeyNotFoundError, match="no public Edwards key with the label none"):
        mc.SigningKey.open(token.uri("object=none"))
    token.running.tool(
        "--keypairgen", "--key-type", "EC:edwards25519", "--label", "writer", "--id", "02"
    )
    with pytest.raises(KeyRetrievalError, match="2 public Edwards keys"):
        mc.SigningKey.open(token.uri("object=writer"))
    first, second = (mc.SigningKey.open(token.uri(f"object=writer;id=%0{n}")) for n in (1, 2))
    assert first.verifier != second.verifier
    token.running.tool("--delete-object", "--type", "pubkey", "--label", "writer", "--id", "02")
    token.running.tool("--delete-object", "--type", "privkey", "--label", "writer", "--id", "02")


@each_case("wrong", [b"", bytes(64), None, "text"], ids=repr)
def test_a_signature_that_nobody_can_verify_never_gets_into_a_file(
    wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mc.SigningKey.generate().verifier

    class Service:
        default_key = "writer"

        def wrap(self) -> None:
            """Look like a client."""

        unwrap = wrap

        def find_signer(self, key_id: str) -> ServiceSigner:
            return ServiceSigner(
                scheme="ed25519", public_key=real.public_key, sign=lambda message: wrong
            )

    monkeypatch.setattr("modcrypt.kms.signing.signing_keys.open_kms", lambda uri: Service())
    key = mc.SigningKey.open("hcvault://x")
    with pytest.raises(KeyRetrievalError, match="does not verify"):
        mc.write_table(PEOPLE, tmp_path / "never.parquet", signed_encryption(key))
    assert list(tmp_path.iterdir()) == []


def test_uris_must_name_a_key_of_a_service_that_signs(
    bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    with pytest.raises(ValueError, match="must name the key"):
        mc.SigningKey.open(bao.uri(bao.mount()))
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("a")
    with pytest.raises(ValueError, match="do not sign"):
        mc.SigningKey.open(f"file:{tmp_path / 'ring'}#a")
    with pytest.raises(ValueError, match="signing_passphrase needs signing_key, a file"):
        mc.Settings(signing_key="pkcs11:token=a;object=b", signing_passphrase="env:A")


@each_case("point", [bytes(59), bytes(31), b"\x04\x21" + bytes(32)], ids=len)
def test_points_of_other_curves_are_refused(point: bytes) -> None:
    from modcrypt.kms.services.pkcs11 import _decode_point

    with pytest.raises(KeyRetrievalError, match="not on the curve edwards25519"):
        _decode_point(point, "writer")
    assert _decode_point(b"\x04\x20" + bytes(32), "w") == _decode_point(bytes(32), "w")


def test_readers_need_no_service(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = mc.SigningKey.open(uri)
    mc.write_table(PEOPLE, tmp_path / "f.parquet", signed_encryption(key))
    monkeypatch.setattr("modcrypt.kms.signing.signing_keys.open_kms", None)
    reader = signed_decryption(mc.kms.VerifyingKey.parse(str(key.verifier)))
    assert mc.read_table(tmp_path / "f.parquet", reader).equals(PEOPLE)


def test_a_forked_process_opens_the_key_again(hsm_uri: str) -> None:
    settings = mc.Settings(footer_key="env:K", signing_key=hsm_uri)
    key = settings.writer_key
    assert key is not None
    assert settings.writer_key is key
    pid = os.fork()
    if not pid:
        try:
            again = settings.writer_key
            assert again is not None
            signed = key.verifier.verify(again.sign(MESSAGE), MESSAGE)
            os._exit(0 if signed else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
