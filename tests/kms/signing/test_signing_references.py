"""Signing and verifying keys by reference, in Settings and policies."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.spark.jvm.native_parquet import native_options
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.signing import PEOPLE, writer_key

KEYED: dict[str, Any] = {"footer_key": "file:footer.key"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a footer key, two writers, and a passphrase."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "footer.key").write_bytes(FOOTER_KEY)
    (tmp_path / "footer.key").chmod(0o600)
    for name, passphrase in (("writer", None), ("locked", b"open sesame")):
        key = mc.SigningKey.generate()
        key.save(tmp_path / f"{name}.key", passphrase)
        (tmp_path / f"{name}.pub").write_text(f"{key.verifier}\n")
    (tmp_path / "pass").write_bytes(b"open sesame")
    (tmp_path / "pass").chmod(0o600)
    return tmp_path


def test_settings_sign_and_require(folder: Path) -> None:
    writer = mc.Settings(**KEYED, signing_key="file:writer.key")
    mc.write_table(PEOPLE, folder / "f.parquet", writer)
    reader = mc.Settings(**KEYED, signed_by=read_verifying_keys(["writer.pub"]))
    for settings in (reader, pickle.loads(pickle.dumps(reader))):
        assert mc.read_table(folder / "f.parquet", settings).equals(PEOPLE)
    other = mc.Settings(**KEYED, signed_by=read_verifying_keys(["locked.pub"]))
    with pytest.raises(mc.errors.WriterSignatureError, match="signed by another key"):
        mc.read_table(folder / "f.parquet", other)
    assert pickle.loads(pickle.dumps(writer)).signing_key == f"file:{folder / 'writer.key'}"


def test_a_key_under_a_passphrase(folder: Path) -> None:
    out = io.BytesIO()
    settings = mc.Settings(**KEYED, signing_key="file:locked.key", signing_passphrase="file:pass")
    mc.write_table(PEOPLE, out, settings)
    reader = mc.Settings(**KEYED, signed_by=read_verifying_keys(["locked.pub"]))
    assert mc.read_table(out.getvalue(), reader).equals(PEOPLE)


@each_case("arguments", [
    {"signing_key": "modcrypt-signing-key:secret"}, {"signing_key": "file:"},
    {"signing_passphrase": "file:pass"},
], ids=str)  # fmt: skip
def test_wrong_references_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"signing[_ ]key") as caught:
        mc.Settings(footer_key="file:footer.key", **arguments)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_a_policy_names_the_writers(folder: Path) -> None:
    keyring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    keyring.create_key("footer")
    (folder / "lake.toml").write_text(
        'kms = "file:lake.keyring"\nfooter_key = "footer"\nsigned_by = ["writer.pub"]\n'
    )
    policy = mc.Policy.load(folder / "lake.toml")
    assert policy.signed_by == (str(folder / "writer.pub"),)
    assert pickle.loads(pickle.dumps(policy)) == policy
    mc.write_table(
        PEOPLE, folder / "signed", mc.Settings(policy=policy, signing_key="file:writer.key")
    )
    mc.write_table(PEOPLE, folder / "unsigned", mc.Settings(policy=policy))
    assert mc.read_table(folder / "signed", mc.Settings(policy=policy)).equals(PEOPLE)
    with pytest.raises(mc.errors.WriterSignatureError, match="no writer has signed it"):
        mc.read_table(folder / "unsigned", mc.Settings(policy=policy))


@each_case("text", ['"writer.pub"', "[1]", '[""]'])
def test_a_policy_lists_keys(text: str) -> None:
    with pytest.raises(ValueError, match="signed_by must be a list"):
        mc.Policy.loads(f'footer_key = "k"\nsigned_by = {text}\n')


def test_the_policy_may_contain_the_line() -> None:
    line = str(writer_key().verifier)
    policy = mc.Policy.loads(f'footer_key = "k"\nsigned_by = ["{line}"]\n')
    assert read_verifying_keys(policy.signed_by) == (writer_key().verifier,)


def test_spark_in_the_jvm_refuses_a_policy_that_requires_signatures() -> None:
    """It cannot check them, and must not read as if it had."""
    line = str(writer_key().verifier)
    policy = mc.Policy(footer_key="k", kms="file:lake.keyring", signed_by=[line])
    with pytest.raises(ValueError, match="cannot check"):
        native_options(policy)
    assert "signed_by" not in str(native_options(replace(policy, signed_by=())))


def test_a_key_of_a_key_service_is_a_reference(folder: Path) -> None:
    """URIs stay as they are in other processes, and Spark's options take them."""
    from modcrypt.spark.source.options import write_options

    uri = "hcvault://127.0.0.1:1/transit/keys/writer?tls=off"
    settings = mc.Settings(**KEYED, signing_key=uri)
    assert pickle.loads(pickle.dumps(settings)).signing_key == uri
    parsed, _ = write_options(
        {"path": "/lake", "footerKey": "env:K", "signingKey": uri, "sharedAadPrefix": "true"}
    )
    assert parsed.signing_key == uri
    for wrong in ("gcp-kms://projects/p", "azure-kms://v", "env:", "prompt", "hcvault"):
        with pytest.raises(ValueError, match="name the signing key as"):
            mc.Settings(**KEYED, signing_key=wrong)
