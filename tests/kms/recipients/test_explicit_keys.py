"""Keys beside a file, encrypted to its recipients, for readers without modcrypt."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import ModcryptError
from modcrypt.keys import key_bytes
from tests.support.cases import each_case
from tests.support.explicit_keys import decrypt_explicit_keys
from tests.support.recipients import KINDS, TABLE, explicit_key, identity
from tests.support.tables import read_with_pyarrow

ME = identity()


def write_with_keys(path: Path, *identities: mc.Identity, **more: Any) -> Path:
    encryption = mc.kms.RecipientEncryption(
        recipients=[i.recipient for i in identities], explicit_keys=True, **more
    )
    mc.write_table(TABLE, path, encryption)
    return path.with_name(f"_EXPLICIT_KEYS_FOR_{path.name}.json")


@each_case("kind", KINDS)
@each_case("prefix, stored", [(None, True), (b"lake", True), (b"lake", False)])
def test_the_keys_open_the_file_in_pyarrow(
    kind: str, prefix: bytes | None, stored: bool, tmp_path: Path
) -> None:
    me, path = identity(kind, kind), tmp_path / "file.parquet"
    beside = write_with_keys(path, ME, me, aad_prefix=prefix, options={"store_aad_prefix": stored})
    key, supplied = decrypt_explicit_keys(beside.read_bytes(), me)
    assert supplied == (None if stored else prefix)
    assert read_with_pyarrow(path, key_bytes(key), supplied) == TABLE
    assert key_bytes(key) == explicit_key(path.read_bytes(), ME, aad_prefix=prefix)
    assert key_bytes(key).hex().encode() not in beside.read_bytes()
    assert [file.name for file in tmp_path.iterdir() if file.name[0] != "_"] == ["file.parquet"]
    assert mc.read_table(
        tmp_path, mc.FileDecryptionProperties(key_retriever=me, aad_prefix=prefix)
    ).num_rows == TABLE.num_rows  # fmt: skip


def test_others_open_nothing(tmp_path: Path) -> None:
    beside = write_with_keys(tmp_path / "file.parquet", ME)
    with pytest.raises(mc.errors.KeyNotFoundError):
        decrypt_explicit_keys(beside.read_bytes(), identity("other"))


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda d: d.update(version=2),
    "format": lambda d: d.update(format="x"),
    "member": lambda d: d.update(more=1),
    "file AAD": lambda d: d.update(fileAAD=base64.b64encode(bytes(8)).decode()),
    "no base64": lambda d: d["recipients"][0].update(encryptedKeys="?"),
    "other keys": lambda d: d["recipients"][0].update(encryptedKeys="A" * 200),
    "recipients": lambda d: d.update(recipients={}),
}


@each_case("change", CHANGES)
def test_altered_keys_are_refused(change: str, tmp_path: Path) -> None:
    document = json.loads(write_with_keys(tmp_path / "file.parquet", ME).read_text())
    CHANGES[change](document)
    with pytest.raises(mc.errors.KeyMaterialError):
        decrypt_explicit_keys(json.dumps(document).encode(), ME)


def test_keys_of_key_metadata_are_no_explicit_keys(tmp_path: Path) -> None:
    """The two are encrypted for different purposes, so one cannot be passed off as the other."""
    path = tmp_path / "file.parquet"
    document = json.loads(write_with_keys(path, ME).read_text())
    from modcrypt.pkmt1.recipient_metadata import decode_recipients
    from tests.support import forging

    found: list[bytes] = []
    forging.edit_crypto(path.read_bytes(), lambda crypto: found.append(crypto.key_metadata))
    material = decode_recipients(found[0])
    assert material is not None
    assert material.recipients is not None
    document["recipients"][0]["encryptedKeys"] = material.recipients[0].wrapped
    with pytest.raises(mc.errors.KeyMaterialError, match="does not decrypt"):
        decrypt_explicit_keys(json.dumps(document).encode(), ME)


def test_a_file_that_does_not_appear_leaves_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    encryption = mc.kms.RecipientEncryption(recipients=[ME.recipient], explicit_keys=True)
    plain = io.BytesIO()
    import pyarrow.parquet as pq

    pq.write_table(TABLE, plain)
    with pytest.raises((ModcryptError, OSError)):
        mc.encrypt_parquet(plain.getvalue()[:-40] + b"x" * 40, path, encryption)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="path or URL"):
        mc.write_table(TABLE, io.BytesIO(), encryption)
