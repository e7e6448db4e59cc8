"""The subject vault: one key for each subject, and none after an erasure."""

from __future__ import annotations

import pickle
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

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
from modcrypt.keys import key_bytes
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import key_file
from modcrypt.subjects.vault import SubjectErasedError, SubjectVault, create_vault, open_vault
from tests.support.sample_vault import fingerprints
from tests.support.subject_writers import run_writers

ALICE, BOB, CAROL = b"alice", b"4711", b"\xff\x00"


def keys_of(vault: SubjectVault, *subjects: bytes, create: bool = False) -> list[Any]:
    """Return something of each subject's key, None if it is erased, or "unknown"."""
    references = vault.references(subjects)
    try:
        return fingerprints(vault, references, create=create)
    except SubjectErasedError:
        raise
    except KeyNotFoundError:
        return ["unknown"] if len(subjects) == 1 else [keys_of(vault, s)[0] for s in subjects]


def change(*statements: str) -> None:
    """Change the database as who may write to it can."""
    connection = sqlite3.connect("subjects.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def reopen(tools: KeyTools) -> SubjectVault:
    return open_vault("subjects.db", tools)


# --- keys ----------------------------------------------------------------------------------------


def test_each_subject_has_one_key(vault: SubjectVault, tools: KeyTools) -> None:
    assert keys_of(vault, ALICE, BOB) == ["unknown"] * 2
    first = keys_of(vault, ALICE, BOB, ALICE, create=True)
    assert first[0] == first[2] != first[1]
    again = keys_of(reopen(tools), CAROL, BOB, ALICE, create=True)
    assert again[1:] == [first[1], first[0]]
    assert keys_of(vault, CAROL) == again[:1]


def test_batches_of_any_size(vault: SubjectVault) -> None:
    subjects = [b"%d" % number for number in range(25_000)]
    created = keys_of(vault, *subjects, create=True)
    assert len(set(created)) == 25_000
    assert keys_of(vault, *reversed(subjects)) == created[::-1]
    assert keys_of(vault) == []


def test_references_are_hashes_under_a_key(vault: SubjectVault, tools: KeyTools) -> None:
    (reference,) = vault.references([ALICE])
    assert len(reference) == key_file.REFERENCE_SIZE
    assert reopen(tools).references([ALICE]) == [reference]
    assert create_vault("other.db", tools, "people").references([ALICE]) != [reference]
    with pytest.raises(ValueError, match="1 to 65536 bytes"):
        vault.references([b""])
    with pytest.raises(KeyNotFoundError, match="2 subjects"):
        vault.ciphers([b"short", b""])


def test_opening_asks_the_key_service_once(vault: SubjectVault) -> None:
    keys_of(vault, *[b"%d" % number for number in range(100)], create=True)
    tools, asked = KeyTools("file:lake.keyring#people"), list[str]()
    unwrap = tools.client.unwrap
    tools.client.unwrap = lambda *a, **k: asked.append("unwrap") or unwrap(*a, **k)  # type: ignore
    keys_of(reopen(tools), *[b"%d" % number for number in range(200)], create=True)
    assert asked == ["unwrap"]


def test_nothing_secret_is_shown(vault: SubjectVault) -> None:
    keys_of(vault, ALICE, create=True)
    (row,) = vault._database.query("SELECT * FROM subject_key")
    stored = Path("subjects.db").read_bytes() + Path("subjects.db.keks").read_bytes()
    assert vault._keys.unwrap(*row) not in stored
    assert ALICE not in stored
    for kek in (*vault._keys.keks.values(), vault._keys.references):
        assert key_bytes(kek) not in stored
    assert re.fullmatch(r"SubjectVault\('[0-9a-f]{32}'\)", repr(vault))
    assert "Key(" not in repr(vault._keys)
    with pytest.raises(TypeError, match="open it in each process"):
        pickle.dumps(vault)
    assert Path("subjects.db").stat().st_mode & 0o077 == 0


def test_a_vault_is_not_replaced(vault: SubjectVault, tools: KeyTools) -> None:
    with pytest.raises(FileExistsError):
        create_vault("subjects.db", tools, "people")
    with pytest.raises(FileExistsError):
        create_vault("subjects.db?keys=other.keks", tools, "people")
    with pytest.raises(FileExistsError):
        create_vault("other.db?keys=subjects.db.keks", tools, "people")
    assert keys_of(vault, ALICE, create=True) == keys_of(reopen(tools), ALICE)


def test_a_failed_creation_can_be_repeated(tools: KeyTools) -> None:
    with pytest.raises(OSError, match="keks"):
        create_vault("subjects.db?keys=missing/folder/x.keks", tools, "people")
    create_vault("subjects.db", tools, "people")


@pytest.mark.parametrize("name", [":memory:", "a b.db"])
def test_any_name_is_that_of_a_file(tools: KeyTools, name: str) -> None:
    keys = keys_of(create_vault(name, tools, "people"), ALICE, create=True)
    assert keys_of(open_vault(name, tools), ALICE) == keys


def test_errors_about_erased_subjects_are_pickled() -> None:
    error = SubjectErasedError([b"1", b"2"])
    again = pickle.loads(pickle.dumps(error))
    assert (again.references, str(again)) == (error.references, str(error))


@pytest.mark.parametrize("address", ["", "?keys=a.keks", "subjects.db?keys="])
def test_an_address_names_files(vault: SubjectVault, tools: KeyTools, address: str) -> None:
    with pytest.raises(ValueError, match="the address of a vault is"):
        open_vault(address, tools)


def test_without_a_vault(tools: KeyTools) -> None:
    with pytest.raises(FileNotFoundError):
        reopen(tools)
    Path("subjects.db").write_bytes(b"PAR1" * 300)
    with pytest.raises(FormatError, match=r"subjects\.db is no subject vault"):
        reopen(tools)
    Path("subjects.db").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="keks"):
        reopen(tools)


def test_two_processes_create_one_key_for_each_subject(vault: SubjectVault) -> None:
    first, second = run_writers(200, (7, 11), str(Path("subjects.db").resolve()))
    assert first == second
    assert len(set(first)) == 200


@pytest.mark.slow
def test_processes_create_keys_at_once(vault: SubjectVault) -> None:
    found = run_writers(20_000, (1_000, 777, 13_000), str(Path("subjects.db").resolve()))
    assert found[0] == found[1] == found[2]


# --- erasing -------------------------------------------------------------------------------------


def test_an_erased_subject_has_no_key(vault: SubjectVault, tools: KeyTools) -> None:
    kept = keys_of(vault, ALICE, BOB, create=True)[1]
    done = vault.erase(vault.references([ALICE, ALICE, CAROL]), "GDPR-17")
    assert done == {"erased": 1, "before": 0, "unknown": 1}
    for opened in (vault, reopen(tools)):
        assert keys_of(opened, ALICE, BOB, CAROL) == [None, kept, "unknown"]
    status = vault.status()
    assert (status["subjects"], status["erased"], status["since_rotation"]) == (1, 1, 1)
    assert status["complete"]
    again = vault.erase(vault.references([ALICE]), "GDPR-17")
    assert (again["erased"], again["before"]) == (0, 1)


def test_an_erased_subject_gets_no_new_key(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    vault.erase(vault.references([ALICE]), "GDPR-17")
    for _ in range(2):  # also after a rotation, which empties the key file
        for opened in (vault, reopen(tools)):
            with pytest.raises(SubjectErasedError, match="needs a new id") as caught:
                keys_of(opened, CAROL, BOB, ALICE, create=True)
            assert caught.value.references == tuple(vault.references([ALICE]))
            assert keys_of(opened, CAROL) == ["unknown"]  # all or none
        vault.rotate()
    assert vault.examine(vault.references([ALICE])[0])["state"] == "erased"


def test_other_processes_see_an_erasure_at_once(vault: SubjectVault, tools: KeyTools) -> None:
    keys_of(vault, ALICE, create=True)
    other = reopen(tools)
    vault.erase(vault.references([ALICE]), "GDPR-17")
    assert keys_of(other, ALICE) == [None]
    with pytest.raises(SubjectErasedError):
        keys_of(other, ALICE, create=True)


def test_the_erased_key_is_overwritten(vault: SubjectVault) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    (reference,) = vault.references([ALICE])
    ((stream,),) = vault._database.query(
        "SELECT stream FROM subject_key WHERE reference = ?", (reference,)
    )
    assert stream[8:] in Path("subjects.db").read_bytes()
    vault.erase([reference], "GDPR-17")
    assert stream[8:] not in Path("subjects.db").read_bytes()


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\udcff", "\x1b[31m"])
def test_a_request_has_an_id(vault: SubjectVault, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 characters"):
        vault.erase([], name)


# --- backups and attackers -----------------------------------------------------------------------


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


# --- rotation ------------------------------------------------------------------------------------


def test_a_rotation_keeps_all_keys(vault: SubjectVault, tools: KeyTools) -> None:
    subjects = [b"%d" % number for number in range(25_000)]
    before, other = keys_of(vault, *subjects, create=True), reopen(tools)
    old = vault._keys.ciphers[1]
    status = vault.rotate()
    assert (status["generation"], status["subjects"], status["older"]) == (2, 25_000, 0)
    for opened in (vault, other, reopen(tools)):
        assert keys_of(opened, *subjects) == before
        keys_of(opened, b"new", create=True)
    assert list(vault._keys.ciphers) == [2]
    assert vault._keys.ciphers[2] is not old


def test_a_rotation_changes_the_master_key(vault: SubjectVault) -> None:
    (key,) = keys_of(vault, ALICE, create=True)
    keyring = mc.Keyring("lake.keyring")
    keyring.create_key("newer")
    with pytest.raises(KeyMaterialError, match="pass master_key_ids"):
        vault.rotate("newer")
    assert vault.status()["generation"] == 1
    both = KeyTools("file:lake.keyring#people", master_key_ids=["newer"])
    assert reopen(both).rotate("newer")["generation"] == 2
    keyring.disable_key("people")
    assert keys_of(reopen(KeyTools("file:lake.keyring#newer")), ALICE) == [key]


def test_writers_go_on_while_a_rotation_is_interrupted(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, other = keys_of(vault, ALICE, BOB, create=True), reopen(tools)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SubjectVault, "_rewrap_batch", stop)
        with pytest.raises(KeyboardInterrupt):
            vault.rotate()
    assert not other.status()["complete"]
    assert other.status()["older"] == 2
    created = keys_of(reopen(tools), CAROL, create=True)
    other.erase(other.references([BOB]), "GDPR-17")
    for opened in (other, reopen(tools)):
        assert keys_of(opened, ALICE, BOB, CAROL) == [before[0], None, *created]
    status = reopen(tools).rotate()
    assert (status["generation"], status["older"], status["subjects"]) == (2, 0, 2)
    assert keys_of(other, ALICE, BOB, CAROL) == [before[0], None, *created]
