"""Public keys as a key service, for columns, streams and tables."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.iceberg import create_table, open_table
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.frame_watch import find_secrets
from tests.support.recipients import TABLE, identity

ME, HR = identity(), identity("hr", "mlkem768-x25519")
KEY = bytes(range(0xA0, 0xB0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with me.key, hr.key, and the master keys all (both) and hr."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "all.pub").write_text(f"{ME.recipient}\n{HR.recipient}\n")
    (keys / "hr.pub").write_text(f"{HR.recipient}\n")
    ME.save(tmp_path / "me.key")
    HR.save(tmp_path / "hr.key")
    return tmp_path


def uri(folder: Path, name: str, *, keys: bool = True) -> str:
    return f"recipients:{folder / 'keys' if keys else ''}?identity={folder}/{name}.key"


def test_columns_have_recipients_of_their_own(folder: Path) -> None:
    policy = mc.Policy(footer_key="all", column_keys={"hr": ["name"]})
    out = io.BytesIO()
    writer = mc.KeyTools(f"recipients:{folder / 'keys'}")
    mc.write_table(TABLE, out, writer.encryption(policy))
    for name, columns in (("hr", TABLE.column_names), ("me", None)):
        tools = mc.KeyTools(uri(folder, name, keys=False))
        read = mc.read_table(out, tools.decryption(policy, on_missing_key="drop"))
        expected = TABLE.column_names if columns else [c for c in TABLE.column_names if c != "name"]
        assert read == TABLE.select(expected)
    with pytest.raises(KeyNotFoundError, match="no identity"):
        mc.read_table(out, writer.decryption(policy))


def test_tables_are_read_by_reference(folder: Path) -> None:
    rows = pa.table({"a": [1, 2]})
    writing = f"recipients:{folder / 'keys'}?identity={folder}/me.key"
    table = create_table(str(folder / "table"), rows.schema, writing, master_key_id="all")
    table.append(rows)
    for name in ("me", "hr"):
        opened = open_table(str(folder / "table"), uri(folder, name, keys=False))
        assert opened.scan() == rows
    stranger = identity("stranger")
    stranger.save(folder / "stranger.key")
    with pytest.raises(KeyNotFoundError):
        open_table(str(folder / "table"), uri(folder, "stranger", keys=False)).scan().to_arrow()


def test_streams_have_recipients(folder: Path) -> None:
    metadata = mc.ags1.StandardKeyMetadata.generate()
    sealed = mc.KeyTools(f"recipients:{folder / 'keys'}").encrypt_key_metadata(metadata, "all")
    assert mc.KeyTools(uri(folder, "hr")).decrypt_key_metadata(sealed) == metadata


def test_wrapped_keys_are_bound_to_master_key_and_aad(folder: Path) -> None:
    client = mc.kms.open_kms(f"{uri(folder, 'me')}#all")
    assert client.default_key == "all"  # type: ignore[attr-defined]
    wrapped = client.wrap(KEY, "all", aad=b"lake")
    assert client.unwrap(wrapped, "all", aad=b"lake") == KEY
    for master, aad in (("hr", b"lake"), ("all", b""), ("all\x00", b"lake")):
        with pytest.raises(KeyMaterialError, match="altered") as caught:
            client.unwrap(wrapped, master, aad=aad)
        assert not find_secrets(caught.value, KEY, ME._secret())
    assert ME._secret().hex() not in repr(client)


@each_case("master", ["none", "../me", "", "a/b", "all.pub"])
def test_unknown_master_keys_are_refused(master: str, folder: Path) -> None:
    with pytest.raises(KeyNotFoundError):
        mc.kms.open_kms(uri(folder, "me")).wrap(KEY, master)


@each_case("wrapped", ["", "{", "[]", '{"modcryptWrapped":2,"recipients":[]}',
                       '{"modcryptWrapped":1,"recipients":{}}',
                       '{"modcryptWrapped":1,"recipients":[1]}'])  # fmt: skip
def test_malformed_wrapped_keys_are_refused(wrapped: str, folder: Path) -> None:
    with pytest.raises(KeyMaterialError):
        mc.kms.open_kms(uri(folder, "me")).unwrap(wrapped, "all")


def test_wrapped_keys_have_a_limit(folder: Path) -> None:
    crowd = [mc.Identity.generate().recipient for _ in range(11)]
    (folder / "keys" / "crowd.pub").write_text("".join(f"{r}\n" for r in crowd))
    with pytest.raises(KeyMaterialError, match="too many recipients"):
        mc.kms.open_kms(uri(folder, "me")).wrap(KEY, "crowd")
    (folder / "keys" / "few.pub").write_text("".join(f"{r}\n" for r in crowd[:9]))
    wrapped = mc.kms.open_kms(uri(folder, "me")).wrap(KEY, "few")
    assert len(json.loads(wrapped)["recipients"]) == 9


def test_wrong_uris_are_refused(folder: Path) -> None:
    for wrong in ("recipients:", "recipients:x?key=1"):
        with pytest.raises(ValueError, match="recipients"):
            mc.kms.open_kms(wrong)
    with pytest.raises(KeyNotFoundError, match="does not exist"):
        mc.kms.open_kms("recipients:?identity=none.key")
    with pytest.raises(KeyNotFoundError, match="no folder"):
        mc.kms.open_kms(uri(folder, "me", keys=False)).wrap(KEY, "all")


def test_relative_uris_keep_their_meaning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lake.toml").write_text(
        'kms = "recipients:keys?identity=me.key"\nfooter_key = "all"\n'
    )
    policy = mc.Policy.load(folder / "lake.toml")
    assert policy.kms == uri(folder, "me")
    monkeypatch.chdir(folder)
    settings = mc.Settings(kms="recipients:keys?identity=me.key#all")
    sent = pickle.loads(pickle.dumps(settings))
    assert sent.kms == f"{uri(folder, 'me')}#all"


def test_verify_says_that_public_keys_alone_forge(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/foot.pub").write_text(f"{identity().recipient}\n")
    public = mc.KeyTools(f"recipients:{tmp_path / 'keys'}")  # what an attacker has
    policy, writer = mc.Policy(footer_key="foot"), mc.SigningKey.generate()
    path = tmp_path / "forged.parquet"
    mc.write_table(pa.table({"a": [1]}), path, public.encryption(policy))
    tools = mc.KeyTools(f"recipients:{tmp_path / 'keys'}?identity={tmp_path / 'me.key'}")
    found = mc.verify_parquet(path, tools.decryption(policy))
    (note,) = [note for note in found.not_authenticated if not note.by_design]
    assert (note.what, found.ok, found.complete) == ("writer", True, False)
    assert "everyone who has these can make such a file; require the signature" in note.why
    signed = tools.decryption(policy, signed_by=[writer.verifier])
    assert not mc.verify_parquet(path, signed).ok
    mc.write_table(pa.table({"a": [1]}), path, public.encryption(policy, signing_key=writer))
    assert mc.verify_parquet(path, signed).complete
    without = mc.verify_parquet(path, None)  # no key opens the footer: nothing is forged or not
    assert "writer" not in [note.what for note in without.not_authenticated]


def test_doctor_says_it_too(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key")
    (tmp_path / "foot.pub").write_text(f"{identity().recipient}\n")
    (tmp_path / "w.pub").write_text(f"{mc.SigningKey.generate().verifier}\n")
    text = 'kms = "recipients:.?identity=me.key"\nfooter_key = "foot"\n'
    for more, warned in (("", True), ('signed_by = ["w.pub"]\n', False)):
        (tmp_path / "policy.toml").write_text(text + more)
        answer = run(tmp_path, "doctor", "--policy", "policy.toml")
        assert ("everyone who has these public keys can make files" in answer.stdout) == warned
