"""The forms of `decryption=` and `encryption=`: keys, identities, policies and Settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
import modcrypt.parquet as pq
from modcrypt.ags1 import decrypt, encrypt
from tests.support.cases import each_case
from tests.support.cli.program import private

TABLE = pa.table({"n": [1, 2, 3]})
RAW = bytes(range(32))
KEY = mc.Key(RAW)
IDENTITY = mc.Identity.generate("x25519")
PROPERTIES = mc.FileDecryptionProperties(footer_key=KEY)
ENCRYPTION = mc.FileEncryptionProperties(footer_key=KEY)

FORMS: dict[str, tuple[Any, Any]] = {
    "key": (KEY, KEY),
    "bytes": (RAW, RAW),
    "hex": (RAW.hex(), RAW.hex().upper()),
    "identity": (IDENTITY.recipient, IDENTITY),
    "identities": ([IDENTITY.recipient, mc.Identity.generate("x25519").recipient], [IDENTITY]),
    "properties": (ENCRYPTION, PROPERTIES),
}


@each_case("name", FORMS)
def test_every_form_writes_and_reads(name: str, tmp_path: Path) -> None:
    encryption, decryption = FORMS[name]
    path, plain = tmp_path / "f.parquet", tmp_path / "plain.parquet"
    mc.write_table(TABLE, path, encryption)
    assert mc.read_table(path, decryption) == TABLE
    assert mc.verify_parquet(path, decryption).ok
    mc.decrypt_parquet(path, plain, decryption)
    mc.encrypt_parquet(plain, path, encryption)
    mc.rekey_parquet(path, path, decryption, encryption)
    assert next(iter(mc.iter_batches(path, decryption))).num_rows == 3
    pq.write_table(TABLE, path, encryption_properties=encryption)
    assert pq.ParquetFile(path, decryption_properties=decryption).read() == TABLE
    assert pq.read_table(path, decryption_properties=decryption) == TABLE


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("lake")
    path = tmp_path / "policy.toml"
    path.write_text('kms = "file:lake.keyring"\nfooter_key = "lake"\n')
    return path


POLICIES: dict[str, Callable[[Path], Any]] = {
    "path": Path,
    "text": str,
    "policy": mc.Policy.load,
    "settings": lambda path: mc.Settings(policy=mc.Policy.load(path)),
}


@each_case("name", POLICIES)
def test_a_policy_writes_and_reads(name: str, policy: Path) -> None:
    form = POLICIES[name]
    mc.write_table(TABLE, "f.parquet", form(policy))
    assert mc.read_table("f.parquet", form(policy)) == TABLE
    mc.write_dataset(TABLE, "folder", form(policy))
    assert mc.verify_dataset("folder", form(policy)).ok


REFERENCES = ("file:footer.key", "env:FOOTER_KEY", "file:lake.keyring#lake")


@each_case("reference", REFERENCES)
def test_a_reference_writes_and_reads(
    reference: str, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(policy.with_name("footer.key"), RAW)
    monkeypatch.setenv("FOOTER_KEY", RAW.hex())
    mc.write_table(TABLE, "f.parquet", reference)
    assert mc.read_table("f.parquet", reference) == TABLE
    same: Any = "policy.toml" if "#" in reference else KEY
    assert mc.read_table("f.parquet", same) == TABLE


def test_a_reference_that_names_nothing_is_refused(policy: Path) -> None:
    mc.write_table(TABLE, "f.parquet", KEY)
    absent = mc.errors.KeyNotFoundError
    for reference, kind, message in (
        ("file:absent.key", absent, "key file absent.key does not exist"),
        ("env:ABSENT", absent, "environment variable ABSENT is not set"),
        ("file:lake.keyring", ValueError, "lake.keyring is a keyring; name one of its master keys"),
        ("file:absent.keyring#lake", FileNotFoundError, "absent.keyring"),
        ("fd:x", ValueError, "N is a number"),
        ("vualt://host/transit", ValueError, "not repeated here"),
    ):
        with pytest.raises(kind, match=message) as caught:
            mc.read_table("f.parquet", reference)
        assert "vualt" not in str(caught.value)
    with pytest.raises(ValueError, match="hash_key does not take a reference"):
        mc.mask_parquet("f.parquet", "g.parquet", KEY, hashed=["n"], hash_key="env:HASH")
    with pytest.raises(ValueError, match="encryption needs a policy"):
        mc.write_table(TABLE, "g.parquet", "file:lake.keyring#")
    assert not Path("g.parquet").exists()


def test_a_file_that_needs_another_kind_of_key_says_so(policy: Path) -> None:
    mc.write_table(TABLE, "key", KEY)
    mc.write_table(TABLE, "policy", policy)
    with pytest.raises(mc.errors.KeyNotFoundError, match="nor does the file say where"):
        mc.read_table("key", policy)
    with pytest.raises(mc.errors.TagMismatchError, match="names master key 'lake': pass"):
        mc.read_table("policy", KEY)


def test_a_file_of_another_kind_is_no_policy(policy: Path) -> None:
    mc.write_table(TABLE, "f.parquet", KEY)
    for name, hint in (("footer.key", "Key.from_file"), ("modcrypt.toml", "Lake.open")):
        Path(name).write_text('secret = "correct horse"\n')
        with pytest.raises(ValueError, match=hint) as caught:
            mc.read_table("f.parquet", name)
        assert "correct horse" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"absent\.toml"):
        mc.read_table("f.parquet", "absent.toml")


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "hex-bytes-16": (RAW[:16].hex().encode(), ValueError, "hex text as bytes; pass the text"),
    "hex-bytes-24": (RAW[:24].hex().encode(), ValueError, "hex text as bytes"),
    "hex-bytes-32": (RAW.hex().encode(), ValueError, "hex text as bytes"),
    "short": (b"secret", ValueError, "16, 24 or 32 bytes"),
    "text": ("my-secret-passphrase", ValueError, "the path of a policy .* not shown"),
    "number": (3, TypeError, "decryption must be a Key, .* not int"),
    "nothing": (None, TypeError, "not NoneType"),
    "recipient": (IDENTITY.recipient, TypeError, "pass its Identity, as from Identity.load"),
    "encryption": (ENCRYPTION, TypeError, "pass FileDecryptionProperties with its keys"),
    "mixed": ([IDENTITY, KEY], TypeError, "not list"),
}  # fmt: skip


@each_case("name", WRONG)
def test_what_is_no_form_is_refused_without_the_value(name: str, tmp_path: Path) -> None:
    given, kind, pattern = WRONG[name]
    mc.write_table(TABLE, tmp_path / "f.parquet", KEY)
    with pytest.raises(kind, match=pattern) as caught:
        mc.read_table(tmp_path / "f.parquet", given)
    assert not isinstance(given, str | bytes) or os.fsdecode(given) not in str(caught.value)


def test_what_only_decrypts_does_not_encrypt(tmp_path: Path) -> None:
    path: Any = tmp_path / "f.parquet"
    for given, hint in ((IDENTITY, r"identity\.recipient"), (PROPERTIES, "FileEncryptionProp")):
        with pytest.raises(TypeError, match=f"encryption must be .*{hint}"):
            mc.write_table(TABLE, path, given)  # type: ignore[arg-type]
    assert not path.exists()


@pytest.mark.parametrize("key", [RAW, RAW.hex()])
def test_no_frame_of_an_error_holds_the_raw_key(key: Any, tmp_path: Path) -> None:
    mc.write_table(TABLE, tmp_path / "f.parquet", mc.Key.generate())
    with pytest.raises(mc.errors.TagMismatchError) as caught:
        mc.decrypt_parquet(tmp_path / "f.parquet", tmp_path / "plain", decryption=key)
    trace = caught.value.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals["__name__"].startswith("modcrypt."):
            found = trace.tb_frame.f_locals
            assert repr(key) not in repr(found)
        trace = trace.tb_next


def test_ags1_takes_the_same_keys() -> None:
    stream = encrypt(b"text", RAW.hex())
    assert decrypt(stream, RAW, length=len(stream)) == b"text"
    with pytest.raises(ValueError, match="hex text as bytes"):
        encrypt(b"text", RAW.hex().encode())
    assert encrypt(b"text", mc.Key(b"0123456789abcdef"))  # digits that are the key themselves
