"""Rotations and recipients of signed files: the signature stays, is made again, or is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.recipients import identity
from tests.support.signing import PEOPLE, writer_key


@pytest.fixture
def tools(tmp_path: Path) -> mc.KeyTools:
    """Return the tools of a keyring with two master keys."""
    ring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    for name in ("footer", "pii"):
        ring.create_key(name)
    return mc.KeyTools(ring)


def write_signed(tools: mc.KeyTools, path: Path, *, columns: bool, plaintext: bool) -> None:
    policy = mc.Policy(
        footer_key="footer", column_keys={"pii": ["name"]} if columns else {},
        plaintext_footer=plaintext,
    )  # fmt: skip
    mc.write_table(PEOPLE, path, tools.encryption(policy, signing_key=writer_key()))


def is_signed(tools: mc.KeyTools, path: Path) -> bool:
    reader = tools.decryption(signed_by=[writer_key().verifier])
    assert mc.read_table(path, tools.decryption()).equals(PEOPLE)
    checked = mc.verify_parquet(path, reader)
    return checked.ok


@each_case("case", pairwise(
    what=("mek", "kek", "dek"), columns=(False, True), plaintext=(False, True),
    again=(False, True),
), ids=case_name)  # fmt: skip
def test_rotations(tools: mc.KeyTools, tmp_path: Path, case: Case) -> None:
    what, again, columns, plaintext = (case[n] for n in ("what", "again", "columns", "plaintext"))
    path = tmp_path / "signed.parquet"
    write_signed(tools, path, columns=columns, plaintext=plaintext)
    for name in ("footer", "pii"):
        tools.client.rotate_key(name)  # type: ignore[attr-defined]
    key = writer_key() if again else None
    (done,) = mc.jobs.rotate_keys(path, tools, what=what, signing_key=key)
    assert done.result == "rotated", done.message
    keeps = what != "dek" and not (columns or plaintext)
    assert done.lost_signature == (not again and not keeps)
    assert is_signed(tools, path) != done.lost_signature


def test_a_rotation_signs_only_what_its_key_signed(tools: mc.KeyTools, tmp_path: Path) -> None:
    path = tmp_path / "signed.parquet"
    write_signed(tools, path, columns=True, plaintext=False)
    before = path.read_bytes()
    what: Any
    for what in ("kek", "dek"):
        (done,) = mc.jobs.rotate_keys(path, tools, what=what, signing_key=writer_key(number=1))
        assert done.result == "writer-signature"
        assert path.read_bytes() == before


def test_recipients_are_added_without_the_signing_key(tmp_path: Path) -> None:
    me, you = identity(), identity("you")
    path = tmp_path / "signed.parquet"
    options = {"signing_key": writer_key()}
    mc.write_table(
        PEOPLE, path, mc.kms.RecipientEncryption(recipients=[me.recipient], options=options)
    )
    (added,) = mc.jobs.add_recipients(
        path, [you.recipient], mc.FileDecryptionProperties(key_retriever=me)
    )
    assert added.result == "changed"
    reader = mc.FileDecryptionProperties(key_retriever=you, signed_by=[writer_key().verifier])
    assert mc.read_table(path, reader).equals(PEOPLE)
    assert not added.lost_signature


@pytest.mark.parametrize("again", [False, True])
def test_a_change_of_recipients_says_that_it_drops_a_signature(tmp_path: Path, again: bool) -> None:
    """A plaintext footer is signed whole; and whoever encrypts again makes other bytes."""
    me, you = identity(), identity("you")
    path = tmp_path / "signed.parquet"
    options: dict[str, Any] = {"signing_key": writer_key(), "plaintext_footer": not again}
    both = [me.recipient, you.recipient]
    mc.write_table(PEOPLE, path, mc.kms.RecipientEncryption(recipients=both, options=options))
    keys = mc.FileDecryptionProperties(key_retriever=me)
    to = [me.recipient] if again else []
    (removed,) = mc.jobs.remove_recipients(path, [you.recipient.id], keys, new_recipients=to)
    assert removed.result == ("rotated" if again else "changed")
    assert removed.lost_signature
    reader = mc.FileDecryptionProperties(key_retriever=me, signed_by=[writer_key().verifier])
    with pytest.raises(mc.errors.WriterSignatureError):
        mc.read_table(path, reader)


@pytest.mark.parametrize("again", [False, True])
def test_a_required_signature_is_made_again_or_the_file_stays(tmp_path: Path, again: bool) -> None:
    """Nobody who requires a signature wants a file that lost it."""
    me, you = identity(), identity("you")
    path = tmp_path / "signed.parquet"
    options: dict[str, Any] = {"signing_key": writer_key(), "plaintext_footer": not again}
    both = [me.recipient, you.recipient]
    mc.write_table(PEOPLE, path, mc.kms.RecipientEncryption(recipients=both, options=options))
    before = path.read_bytes()
    keys = mc.FileDecryptionProperties(key_retriever=me, signed_by=[writer_key().verifier])
    how: dict[str, Any] = {"new_recipients": [me.recipient] if again else []}
    (refused,) = mc.jobs.remove_recipients(path, [you.recipient.id], keys, **how)
    assert refused.result == "writer-signature"
    assert "pass the signing key to sign again" in refused.message
    other = writer_key(number=1)
    (foreign,) = mc.jobs.remove_recipients(path, [you.recipient.id], keys, signing_key=other, **how)
    assert foreign.result == "writer-signature"
    assert path.read_bytes() == before
    (done,) = mc.jobs.remove_recipients(
        path, [you.recipient.id], keys, signing_key=writer_key(), **how
    )
    assert (done.result, done.lost_signature) == ("rotated" if again else "changed", False)
    assert mc.read_table(path, keys).equals(PEOPLE)


@each_case("what", ["mek", "kek", "dek"])
def test_a_rotation_keeps_a_signature_that_is_required(
    tools: mc.KeyTools, tmp_path: Path, what: Any
) -> None:
    path = tmp_path / "signed.parquet"
    write_signed(tools, path, columns=True, plaintext=False)
    before = path.read_bytes()
    for name in ("footer", "pii"):
        tools.client.rotate_key(name)  # type: ignore[attr-defined]
    required = tools.decryption(signed_by=[writer_key().verifier])
    (refused,) = mc.jobs.rotate_keys(path, tools, what=what, decryption=required)
    assert refused.result == "writer-signature"
    assert "pass the signing key to sign again" in refused.message
    assert path.read_bytes() == before
    how = {"decryption": required, "signing_key": writer_key()}
    (done,) = mc.jobs.rotate_keys(path, tools, what=what, **how)  # type: ignore[arg-type]
    assert (done.result, done.lost_signature) == ("rotated", False)
    assert is_signed(tools, path)


def test_shredding_a_column_keeps_a_signature_that_is_required(
    tools: mc.KeyTools, tmp_path: Path
) -> None:
    path = tmp_path / "signed.parquet"
    write_signed(tools, path, columns=True, plaintext=False)
    before = path.read_bytes()
    required = tools.decryption(signed_by=[writer_key().verifier])
    how: Any = {"master_keys": ["pii"], "decryption": required}
    (refused,) = mc.jobs.shred_keys(path, tools, **how)
    assert refused.result == "writer-signature"
    assert path.read_bytes() == before
    (done,) = mc.jobs.shred_keys(path, tools, **how, signing_key=writer_key())
    assert (done.result, done.message) == ("shredded", "")
    assert mc.read_table(path, required, columns=["id"]).equals(PEOPLE.select(["id"]))
    (whole,) = mc.jobs.shred_keys(path, tools, everything=True, decryption=required)
    assert (whole.result, whole.whole) == ("shredded", True)


def test_a_stream_has_no_signature_that_a_policy_could_require(tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    ring.create_key("footer")
    key = mc.ags1.StandardKeyMetadata(key=mc.Key.generate(), aad_prefix=b"x")
    sealed = mc.KeyTools(ring).encrypt_key_metadata(key, "footer")
    policy = mc.Policy(footer_key="footer", signed_by=[str(writer_key().verifier)])
    for tools, given in (
        (mc.KeyTools(ring), policy),
        (mc.KeyTools.from_policy(policy, kms=ring), None),
    ):
        with pytest.raises(mc.errors.WriterSignatureError, match="AGS1 stream has none"):
            tools.decrypt_key_metadata(sealed, policy=given)
