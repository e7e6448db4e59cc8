"""What a writer remembers: it must be writable before a seal is made, and never goes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.kms.signing import seal_writing
from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.kms.signing.seal_memory import SealMemory, recall
from modcrypt.kms.signing.sealed_statements import (
    Draft,
    SealFormat,
    Statement,
    encode_statement,
    read_statement,
)
from modcrypt.kms.signing.trusted_writers import make_trust


def test_no_seal_is_made_whose_number_cannot_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    own = mc.SigningKey.generate()
    key = mc.SigningKey(own.verifier, None, own.sign)  # as of a key service
    with pytest.raises(OSError, match="no seal can be made: its number cannot be remembered; set"):
        mc.jobs.seal_dataset(tmp_path / "lake", key)
    assert not (tmp_path / "lake" / SEAL_NAME).exists()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert mc.jobs.seal_dataset(tmp_path / "lake", key).sequence == 1


def test_a_seal_that_another_process_makes_meanwhile_is_no_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    mc.SigningKey.generate().save(tmp_path / "writer.key")
    mine, theirs = (mc.SigningKey.load(tmp_path / "writer.key") for _ in range(2))
    mc.jobs.seal_dataset(tmp_path / "lake", mine)

    def recall_slowly(key: mc.SigningKey) -> SealMemory:
        monkeypatch.undo()
        memory = recall(key)
        mc.jobs.seal_dataset(tmp_path / "lake", theirs)
        return memory

    monkeypatch.setattr(f"{seal_writing.__name__}.recall", recall_slowly)
    assert mc.jobs.seal_dataset(tmp_path / "lake", mine).sequence == 3


def make_statement() -> Statement:
    key, form = mc.SigningKey.generate(), SealFormat("test", (), ())
    data = encode_statement([key], form, Draft("id", {}), (4, None))
    with open_source(data) as source:
        return read_statement(source, make_trust([key.verifier]), form)


def test_a_slower_process_does_not_take_a_memory_back() -> None:
    statement, memory = make_statement(), SealMemory({})
    memory.note(statement, "/here")
    memory.note(replace(statement, sequence=4, hash="0" * 64), "/here")
    memory.note(replace(statement, sequence=6, hash="1" * 64), "/there")
    places = memory.datasets["id"]
    assert (places["/here"].sequence, places["/here"].hash) == (5, statement.hash)
    assert places["/there"].sequence == 6
    assert [last.sequence for _, last in memory.about("id", "/elsewhere")] == [6]
