"""Vaults that were altered, restored from backups, or copied."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.errors import (
    FormatError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    LimitError,
    ModcryptError,
)
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import Subjects, key_file
from modcrypt.subjects.vault import SubjectErasedError, SubjectVault, create_vault, open_vault
from tests.support.vault_changes import ALICE, BOB, CAROL, change, keys_of, reopen

KEY = mc.Key.generate(16)


def test_a_row_from_a_backup_opens_nothing(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    shutil.copy("backup.db", "subjects.db")
    restored = reopen(tools)
    assert keys_of(restored, ALICE) == [None]
    with pytest.raises(SubjectErasedError):
        keys_of(restored, ALICE, create=True)
    status = restored.status()
    assert (status["returned"], status["requests"], status["complete"]) == (1, ["GDPR-17"], False)
    assert restored.examine(vault.references([ALICE])[0])["state"] == "returned"
    assert restored.erase([], "GDPR-17")["erased"] == 1
    assert restored.status()["complete"]


@pytest.mark.parametrize("rotates", [False, True])
def test_a_vault_that_was_open_before_an_erasure_reads_the_key_file_again(
    vault: SubjectVault, tools: KeyTools, rotates: bool
) -> None:
    """Even if the database is rolled back, or the erasure was interrupted before it."""
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    with closing(reopen(tools)) as eraser:
        eraser.erase(eraser.references([ALICE]), "GDPR-17")
        if rotates:
            eraser.rotate()
    vault.close()
    shutil.copy("backup.db", "subjects.db")
    if rotates:
        with pytest.raises(KeyMaterialError, match="from before a rotation"):
            keys_of(vault, ALICE)
    else:
        assert keys_of(vault, ALICE) == [None]


@pytest.mark.parametrize("ends", ["by itself", "by another rotation", "after an interruption"])
def test_a_backup_from_within_a_rotation_brings_nobody_back(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The rotation has wrapped the key of a subject that is erased before it ends."""
    bob = keys_of(vault, ALICE, BOB, create=True)[1]
    rewrap = SubjectVault._rewrap_batch

    def erase_meanwhile(self: SubjectVault, after: bytes) -> bytes | None:
        found = rewrap(self, after)
        if self is vault and found is None:
            shutil.copy("subjects.db", "backup.db")
            with closing(reopen(tools)) as eraser:
                eraser.erase(eraser.references([ALICE]), "GDPR-17")
                if ends == "by another rotation":
                    eraser.rotate()
            if ends == "after an interruption":
                raise KeyboardInterrupt
        return found

    monkeypatch.setattr(SubjectVault, "_rewrap_batch", erase_meanwhile)
    if ends == "after an interruption":
        with pytest.raises(KeyboardInterrupt):
            vault.rotate()
        reopen(tools).rotate()
    else:
        vault.rotate()
    assert vault.status()["complete"]
    vault.close()
    shutil.copy("backup.db", "subjects.db")
    restored = reopen(tools)
    if ends == "by itself":
        assert keys_of(restored, ALICE, BOB) == [None, bob]
        assert restored.status()["requests"] == ["GDPR-17"]
        assert restored.rotate()["since_rotation"] == 0
    else:
        with pytest.raises(KeyMaterialError, match="from before a rotation"):
            keys_of(restored, ALICE)


def test_a_rotation_completes_what_a_backup_brought_back(
    vault: SubjectVault, tools: KeyTools
) -> None:
    shutil.copy("subjects.db", "backup.db")  # from before the subject was known
    keys_of(vault, ALICE, create=True)
    vault.erase(vault.references([ALICE]), "GDPR-17")
    shutil.copy("backup.db", "subjects.db")
    restored = reopen(tools)
    restored.rotate()
    with pytest.raises(SubjectErasedError):
        keys_of(restored, ALICE, create=True)


def test_a_backup_from_before_a_rotation_opens_nothing(
    vault: SubjectVault, tools: KeyTools
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    vault.rotate()
    shutil.copy("backup.db", "subjects.db")
    for create in (False, True):
        with pytest.raises(KeyMaterialError, match="from before a rotation"):
            keys_of(reopen(tools), ALICE, create=create)


def test_an_old_key_file_and_an_old_database_open_all(vault: SubjectVault, tools: KeyTools) -> None:
    """As documented for an attacker with both files and the master key."""
    (key,) = keys_of(vault, ALICE, create=True)
    for name in ("subjects.db", "subjects.db.keks"):
        shutil.copy(name, f"old-{name}")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    vault.rotate()
    assert keys_of(open_vault("old-subjects.db", tools), ALICE) == [key]
    keyring = mc.Keyring("lake.keyring")
    keyring.rotate_key("people")
    vault.rotate()
    keyring.disable_key("people", 1)
    with pytest.raises(KeyDisabledError):
        open_vault("old-subjects.db", KeyTools("file:lake.keyring#people"))
    assert keys_of(reopen(KeyTools("file:lake.keyring#people")), ALICE) == [None]


PLANTS = {
    "swapped": [
        "UPDATE subject_key SET stream = (SELECT stream FROM subject_key o WHERE o.reference <> "
        "subject_key.reference)"
    ],
    "altered": ["UPDATE subject_key SET stream = CAST(substr(stream, 1, 67) || x'00' AS BLOB)"],
    "short": ["UPDATE subject_key SET stream = substr(stream, 1, 67)"],
    "empty": ["UPDATE subject_key SET stream = x''"],
    "bytes as text": ["UPDATE subject_key SET stream = CAST(stream AS TEXT)"],
    "text": ["UPDATE subject_key SET stream = 'text'"],
    "number": ["UPDATE subject_key SET stream = 7"],
    "long": ["UPDATE subject_key SET stream = CAST(stream || x'00' AS BLOB)"],
    "block length": [
        "UPDATE subject_key SET stream = CAST(x'41475331ffffff7f' || substr(stream, 9) AS BLOB)"
    ],
    "generation": ["UPDATE subject_key SET generation = 2"],
    "generation of text": ["UPDATE subject_key SET generation = 'x'"],
    "generation of a vault": ["UPDATE subject_key SET generation = -1"],
}


CODE = {
    "view without end": [
        "DROP TABLE subject_key",
        "CREATE VIEW subject_key AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i AS reference, 1 AS generation, x'00' AS stream FROM n",
    ],
    "forged erasures": [
        "DROP TABLE erased_subject",
        "CREATE VIEW erased_subject AS SELECT 1 AS reference, '' AS request, '' AS time, '' AS "
        "proof",
    ],
    "trigger": [
        "CREATE TABLE kept AS SELECT * FROM subject_key",
        "CREATE TRIGGER t AFTER DELETE ON subject_key BEGIN INSERT INTO kept VALUES "
        "(old.reference, old.generation, old.stream); END",
    ],
    "virtual table": ["CREATE VIRTUAL TABLE x USING fts5(a)"],
}


@pytest.mark.parametrize("plant", sorted(CODE))
def test_a_database_runs_no_code(vault: SubjectVault, tools: KeyTools, plant: str) -> None:
    keys_of(vault, ALICE, create=True)
    change(*CODE[plant])
    with pytest.raises(FormatError, match=r"subjects\.db is not a subject vault, or was altered"):
        reopen(tools)


def test_messages_show_no_value_of_a_row(vault: SubjectVault) -> None:
    keys_of(vault, ALICE, create=True)
    change("UPDATE subject_key SET generation = 'of another'")
    with pytest.raises(KeyMaterialError, match="no key for generation of a damaged row"):
        keys_of(vault, ALICE)


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_row_that_was_altered_is_an_error(
    vault: SubjectVault, tools: KeyTools, plant: str
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    change(*PLANTS[plant])
    with pytest.raises(KeyMaterialError):
        keys_of(reopen(tools), ALICE, BOB)
    with pytest.raises(KeyMaterialError):
        reopen(tools).rotate()


def test_large_values_are_refused(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, create=True)
    change("UPDATE subject_key SET stream = zeroblob(50000000)")
    with pytest.raises(ModcryptError):
        keys_of(reopen(tools), ALICE)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE vault SET id = x'00'", "UPDATE vault SET format = 2", "DELETE FROM vault",
        "INSERT INTO vault SELECT * FROM vault", "DROP TABLE vault",
    ],
)  # fmt: skip
def test_another_database_is_an_error(vault: SubjectVault, tools: KeyTools, statement: str) -> None:
    change(statement)
    with pytest.raises((FormatError, KeyMaterialError)):
        reopen(tools)


# What who can write to the database can make of the row of an erased subject.
ERASURES = {
    "another subject": "UPDATE erased_subject SET reference = (SELECT reference FROM subject_key)",
    "request": "UPDATE erased_subject SET request = 'GDPR-18'",
    "time": "UPDATE erased_subject SET time = '2001-01-01T00:00:00+00:00'",
    "bytes": "UPDATE erased_subject SET request = CAST(request AS BLOB)",
    "proof": "UPDATE erased_subject SET proof = 'é' || substr(proof, 2)",
    "no proof": "UPDATE erased_subject SET proof = ''",
    "number": "UPDATE erased_subject SET proof = 7",
}


@pytest.mark.parametrize("plant", sorted(ERASURES))
def test_a_planted_erasure_is_an_error(vault: SubjectVault, tools: KeyTools, plant: str) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    vault.erase(vault.references([ALICE]), "GDPR-17")
    vault.rotate()
    change(ERASURES[plant], *["DELETE FROM subject_key"] * (plant == "another subject"))
    erased = BOB if plant == "another subject" else ALICE
    for create in (False, True):
        with pytest.raises(KeyMaterialError, match="wrong proof"):
            keys_of(reopen(tools), erased, create=create)
    with pytest.raises(KeyMaterialError, match="wrong proof"):
        vault.examine(vault.references([erased])[0])
    with pytest.raises(KeyMaterialError, match="wrong proof"):
        vault.erase(vault.references([erased]), "GDPR-17")


def reverse_rows(table: str) -> None:
    """Reverse the cells of a table of one page: SQLite relies on their order, and skips none."""
    with closing(sqlite3.connect("subjects.db")) as database:
        select = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = database.execute(select, (table,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(Path("subjects.db").read_bytes())
    start = (page - 1) * size + 8
    end = start + 2 * int.from_bytes(data[start - 5 : start - 3])
    cells = [data[at : at + 2] for at in range(start, end, 2)]
    data[start:end] = b"".join(reversed(cells))
    Path("subjects.db").write_bytes(data)


def test_rows_without_order_are_not_read_without_end(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, BOB, CAROL, create=True)
    vault.erase(vault.references([ALICE, BOB]), "GDPR-17")
    keys_of(vault, b"1", create=True)
    vault.close()
    reverse_rows("erased_subject")
    with pytest.raises(FormatError, match="its rows have no order"):
        reopen(tools).status()
    reverse_rows("erased_subject")
    reverse_rows("subject_key")
    with pytest.raises(FormatError, match="its rows have no order"):
        reopen(tools).rotate()


def test_an_erased_subject_of_another_type_has_no_proof(vault: SubjectVault) -> None:
    """SQLite stores any type in any column, and any row in a forged file."""
    for reference in ("text", None, 7):
        with pytest.raises(KeyMaterialError, match="wrong proof"):
            vault._check_proofs([(reference, "GDPR-17", "2026", "none")])


def test_a_rotation_wraps_no_key_of_an_erased_subject(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    rewrap, stolen = SubjectVault._rewrap_batch, list[Any]()

    def attack(self: SubjectVault, after: bytes) -> bytes | None:
        change(
            "ATTACH 'backup.db' AS b", "INSERT OR IGNORE INTO subject_key SELECT * FROM "
            "b.subject_key",
        )  # fmt: skip
        ended = rewrap(self, after)
        stolen.extend(self._database.query("SELECT * FROM subject_key"))
        return ended

    monkeypatch.setattr(SubjectVault, "_rewrap_batch", attack)
    vault.rotate()
    vault._database.query("DELETE FROM subject_key")
    vault._database.query_each("INSERT OR IGNORE INTO subject_key VALUES (?, ?, ?)", stolen)
    with pytest.raises(KeyMaterialError):
        keys_of(reopen(tools), ALICE)


def test_a_slow_rotation_does_not_undo_later_ones(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(vault, ALICE, BOB, create=True)
    rewrap, other = SubjectVault._rewrap_batch, reopen(tools)

    def rotate_twice(self: SubjectVault, after: bytes) -> bytes | None:
        monkeypatch.setattr(SubjectVault, "_rewrap_batch", rewrap)
        other.rotate()
        other.rotate()
        return rewrap(self, after)

    monkeypatch.setattr(SubjectVault, "_rewrap_batch", rotate_twice)
    vault.rotate()
    assert keys_of(reopen(tools), ALICE, BOB) == keys


def test_a_rotation_keeps_no_forged_erasure(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, create=True)
    (reference,) = vault.references([ALICE])
    plant = f"INSERT INTO erased_subject VALUES (x'{reference.hex()}', 'R', '2001', '')"
    change(plant)
    with pytest.raises(KeyMaterialError, match="wrong proof"):
        vault.erase([reference], "GDPR-17")
    change("DELETE FROM erased_subject")
    vault.erase([reference], "GDPR-17")
    change("DELETE FROM erased_subject", plant)
    with pytest.raises(KeyMaterialError, match="wrong proof"):
        vault.rotate()
    change("DELETE FROM erased_subject")
    vault.rotate()
    assert vault.examine(reference)["state"] == "erased"


def test_a_table_of_other_types_is_an_error(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, create=True)
    change(
        "ALTER TABLE subject_key RENAME TO other",
        "CREATE TABLE subject_key AS SELECT reference, 1.0 AS generation, stream FROM other",
    )
    with pytest.raises(KeyMaterialError):
        keys_of(reopen(tools), ALICE)


def test_the_key_file_decides_the_generation_of_new_keys(
    vault: SubjectVault, tools: KeyTools
) -> None:
    other = reopen(tools)
    vault.rotate()
    keys_of(other, ALICE, create=True)
    assert vault._database.query("SELECT generation FROM subject_key") == [(2,)]


def test_who_plants_a_row_and_removes_a_tombstone_is_found(
    vault: SubjectVault, tools: KeyTools
) -> None:
    keys_of(vault, ALICE, create=True)
    shutil.copy("subjects.db", "backup.db")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    change(
        "ATTACH 'backup.db' AS b", "INSERT INTO subject_key SELECT * FROM b.subject_key",
        "DELETE FROM erased_subject",
    )  # fmt: skip
    opened = reopen(tools)
    assert keys_of(opened, ALICE) == [None]
    assert not opened.status()["complete"]


EDITS: dict[str, Any] = {
    "empty": lambda data: b"",
    "without a line": lambda data: data.replace(b"\n", b"", 1),
    "line alone": lambda data: data.partition(b"\n")[0] + b"\n",
    "cut off": lambda data: data[:-1],
    "appended": lambda data: data + b"\0",
    "header": lambda data: data.replace(b"AGS1", b"AGS2"),
    "first block": lambda data: data[:-30] + bytes((data[-30] ^ 1,)) + data[-29:],
    "master key": lambda data: data.replace(b"people", b"peeple"),
    "old line": lambda data: (
        Path("old.keks").read_bytes().partition(b"\n")[0] + b"\n" + data.partition(b"\n")[2]
    ),
    "not JSON": lambda data: b"{" + data,
}


@pytest.mark.parametrize("edit", sorted(EDITS))
def test_a_key_file_that_was_altered_is_an_error(
    vault: SubjectVault, tools: KeyTools, edit: str
) -> None:
    keys_of(vault, ALICE, create=True)
    shutil.copy("subjects.db.keks", "old.keks")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    keks = Path("subjects.db.keks")
    keks.write_bytes(EDITS[edit](keks.read_bytes()))
    with pytest.raises(ModcryptError, match="key file"):
        reopen(tools)


def test_the_key_file_of_another_vault(vault: SubjectVault, tools: KeyTools) -> None:
    create_vault("other.db", tools, "people")
    with pytest.raises(KeyMaterialError, match="another vault"):
        open_vault("subjects.db?keys=other.db.keks", tools)


def test_a_key_file_has_a_limit(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(vault, *[b"%d" % number for number in range(100)], create=True)
    monkeypatch.setattr(key_file, "MAX_KEY_FILE", 2500)
    with pytest.raises(LimitError, match="subjects rotate"):
        vault.erase(vault.references([b"%d" % number for number in range(100)]), "all")
    assert keys_of(vault, b"7") != [None]
    Path("subjects.db.keks").write_bytes(bytes(2501))
    with pytest.raises(LimitError):
        reopen(tools)


def test_only_the_declared_master_key_opens_a_vault(vault: SubjectVault) -> None:
    mc.Keyring("lake.keyring").create_key("other")
    with pytest.raises(KeyMaterialError):
        open_vault("subjects.db", KeyTools("file:lake.keyring#other"))


def test_a_proof_that_was_removed_is_missed(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, BOB, CAROL, create=True)
    shutil.copy("subjects.db", "backup.db")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    change("DELETE FROM erased_subject")
    assert vault.status()["missing"] == 0  # the key file names whom the database forgot
    vault.rotate()
    vault.erase(vault.references([ALICE, BOB]), "GDPR-18")
    assert vault.status()["complete"]
    (alice,) = vault.references([ALICE])
    change(f"DELETE FROM erased_subject WHERE reference = x'{alice.hex()}'")
    for opened in (vault, reopen(tools)):
        status = opened.status()
        assert (status["missing"], status["erased"], status["complete"]) == (1, 1, False)
    vault.rotate()
    assert vault.status()["missing"] == 1
    change(f"INSERT INTO erased_subject VALUES (x'{alice.hex()}', 'R', '2001', '')")
    with pytest.raises(KeyMaterialError, match="wrong proof"):
        vault.status()


def test_a_key_file_from_before_an_erasure_is_reported(
    vault: SubjectVault, tools: KeyTools
) -> None:
    """It would bring the subject back with an older database, until a rotation counts it again."""
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    shutil.copy("subjects.db.keks", "backup.keks")
    vault.erase(vault.references([ALICE]), "GDPR-17")
    shutil.copy("backup.keks", "subjects.db.keks")
    status = vault.status()
    assert (status["newer"], status["missing"], status["complete"]) == (1, 0, False)
    assert vault.rotate()["complete"]
    assert vault.erase(vault.references([BOB]), "GDPR-18")["erased"] == 1
    assert reopen(tools).status()["complete"]


def test_a_key_file_from_before_a_rotation_is_reported(
    vault: SubjectVault, tools: KeyTools
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db.keks", "backup.keks")
    vault.rotate()
    shutil.copy("backup.keks", "subjects.db.keks")
    status = reopen(tools).status()
    assert (status["newer"], status["older"], status["complete"]) == (2, 0, False)


def test_an_erasure_while_subjects_are_counted_is_no_fault(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    other, requests = reopen(tools), ["GDPR-18"]
    count = SubjectVault._count_erasures

    def erase_meanwhile(self: SubjectVault) -> int:
        if self is vault and requests:
            other.erase(other.references([ALICE]), requests.pop())
        return count(self)

    monkeypatch.setattr(SubjectVault, "_count_erasures", erase_meanwhile)
    assert vault.status()["complete"]


def test_a_key_that_was_removed_is_not_an_erasure(vault: SubjectVault, tools: KeyTools) -> None:
    rows = pa.table({"id": ["alice", "4711"], "name": ["Alice", "Bob"]})
    known = Subjects(vault=vault, key="id", columns=["name"])
    mc.write_table(rows, "a.parquet", KEY, subjects=known)
    (alice,) = vault.references([ALICE])
    change(f"DELETE FROM subject_key WHERE reference = x'{alice.hex()}'")
    with pytest.raises(KeyNotFoundError, match=r"1 subject of these rows: keys are missing, not"):
        mc.read_table("a.parquet", KEY, subjects=Subjects(vault=reopen(tools)))
    assert reopen(tools).examine(alice)["state"] == "unknown"
