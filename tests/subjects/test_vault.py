"""The subject vault: one key for each subject, and none after an erasure."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import FormatError, KeyMaterialError, KeyNotFoundError
from modcrypt.keys import key_bytes
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import key_file
from modcrypt.subjects.database import Database
from modcrypt.subjects.key_file import is_current
from modcrypt.subjects.vault import SubjectErasedError, SubjectVault, create_vault, open_vault
from tests.support.sample_vault import fingerprints
from tests.support.subject_writers import run_writers
from tests.support.vault_changes import ALICE, BOB, CAROL, change, keys_of, reopen

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
    for step in (-1, 2, 7, 9_999):
        vault.close()  # also forgets the keys
        assert keys_of(vault, *subjects[::step]) == created[::step]
    assert keys_of(vault) == []


def test_keys_are_kept_until_the_key_file_changes(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = vault.find([ALICE, BOB], create=True)
    assert [owner[0] for owner in found] == vault.references([ALICE, BOB])
    change("DELETE FROM subject_key")  # is not noticed, but an erasure is
    assert vault.find([BOB, ALICE], create=False) == found[::-1]
    reopen(tools).erase(vault.references([ALICE]), "GDPR-17")
    with pytest.raises(KeyNotFoundError, match="does not know 2 subjects"):
        vault.find([ALICE, BOB], create=False)
    monkeypatch.setattr("modcrypt.subjects.vault.KEPT", 3)
    for first in range(0, 20, 2):
        subjects = [b"%d" % n for n in range(first, first + 2)]
        assert vault.find(subjects, create=True) == vault.find(subjects, create=False)
        assert len(vault._known) == 2
    vault.close()
    assert not vault._known


def test_an_erased_subject_is_not_found(vault: SubjectVault) -> None:
    alice, bob = vault.find([ALICE, BOB], create=True)
    vault.erase([alice[0]], "GDPR-17")
    for _ in range(2):
        found = vault.find([ALICE, BOB], create=False)
        assert [owner[1] is None for owner in found] == [True, False]
        assert found[1][0] == bob[0]
    with pytest.raises(SubjectErasedError):
        vault.find([ALICE, BOB], create=True)


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
    assert vault._keys.unwrap([row])[0] not in stored
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


# --- rotation ------------------------------------------------------------------------------------


def test_a_rotation_keeps_all_keys(vault: SubjectVault, tools: KeyTools) -> None:
    subjects = [b"%d" % number for number in range(25_000)]
    before, other = keys_of(vault, *subjects, create=True), reopen(tools)
    old = vault._keys.keks[1]
    status = vault.rotate()
    assert (status["generation"], status["subjects"], status["older"]) == (2, 25_000, 0)
    for opened in (vault, other, reopen(tools)):
        assert keys_of(opened, *subjects) == before
        keys_of(opened, b"new", create=True)
    assert list(vault._keys.keks) == [2]
    assert vault._keys.keks[2] != old


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
    assert (status["generation"], status["older"], status["subjects"]) == (3, 0, 2)
    vault._refresh()
    assert list(vault._keys.keks) == [3]
    assert keys_of(other, ALICE, BOB, CAROL) == [before[0], None, *created]


def test_rotations_at_once_complete_each_other(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, other = keys_of(vault, ALICE, BOB, create=True), reopen(tools)
    rewrap = SubjectVault._rewrap_batch

    def rotate_meanwhile(self: SubjectVault, after: bytes) -> bytes | None:
        if self is vault and not after:
            other.rotate()
        return rewrap(self, after)

    monkeypatch.setattr(SubjectVault, "_rewrap_batch", rotate_meanwhile)
    status = vault.rotate()
    assert (status["generation"], status["older"], status["complete"]) == (3, 0, True)
    assert keys_of(other, ALICE, BOB) == keys_of(vault, ALICE, BOB) == before


def test_rows_that_are_read_while_a_rotation_ends(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page of rows is from before it, and the second from after it."""
    before, other = keys_of(vault, ALICE, BOB, create=True), reopen(tools)
    query, pages = Database.query, list[str]()

    def rotate_meanwhile(self: Database, sql: str, *parameters: Any) -> Any:
        if self is vault._database and "subject_key WHERE reference" in sql:
            pages.append(sql)
            if len(pages) == 2:
                other.rotate()
        return query(self, sql, *parameters)

    monkeypatch.setattr("modcrypt.subjects.database.BATCH", 1)
    monkeypatch.setattr(Database, "query", rotate_meanwhile)
    assert keys_of(vault, ALICE, BOB) == before
    assert len(pages) == 4


def test_a_thread_keeps_no_older_key_file_than_another(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads the key file, and keeps it only after the other has erased a subject."""
    keys_of(vault, ALICE, BOB, create=True)
    reopen(tools).erase(vault.references([BOB]), "GDPR-16")  # so that the file is read again
    was_read, is_erased, read = threading.Event(), threading.Event(), key_file.read_key_file

    def read_slowly(*arguments: Any) -> Any:
        keys = read(*arguments)
        if threading.current_thread() is reader:
            was_read.set()
            is_erased.wait(0.5)
        return keys

    monkeypatch.setattr("modcrypt.subjects.vault.read_key_file", read_slowly)
    reader = threading.Thread(target=keys_of, args=(vault, BOB))
    reader.start()
    was_read.wait()
    vault.erase(vault.references([ALICE]), "GDPR-17")
    is_erased.set()
    reader.join()
    assert is_current(vault._place, vault._keys)
    assert set(vault._keys.erased) == set(vault.references([ALICE, BOB]))


def test_a_database_that_is_replaced_is_opened_again(vault: SubjectVault, tools: KeyTools) -> None:
    """As by a backup that is restored: keys in the file that was removed would be lost."""
    shutil.copy("subjects.db", "backup.db")
    keys_of(vault, ALICE, create=True)
    os.replace("backup.db", "subjects.db")
    (key,) = keys_of(vault, ALICE, create=True)
    assert keys_of(reopen(tools), ALICE) == [key]
    vault.find([BOB], create=True)  # also those that are kept in memory
    shutil.copy("subjects.db", "backup.db")
    change("DELETE FROM subject_key")
    os.replace("subjects.db", "other.db")
    os.replace("backup.db", "subjects.db")
    change("DELETE FROM subject_key")
    (found,) = vault.find([BOB], create=True)
    assert reopen(tools).find([BOB], create=False)[0][0] == found[0]
    os.rename("subjects.db", "moved.db")
    with pytest.raises(FileNotFoundError, match="subjects create"):
        keys_of(vault, BOB, create=True)


def test_a_backup_that_is_copied_over_the_database(vault: SubjectVault, tools: KeyTools) -> None:
    """Its file stays the same, and keys that are kept in memory are not in it."""
    shutil.copy("subjects.db", "backup.db")
    vault.find([BOB], create=True)
    shutil.copy("backup.db", "subjects.db")
    (found,) = vault.find([BOB], create=True)
    vault.find([BOB, ALICE], create=True)
    with closing(reopen(tools)) as other:
        assert other.find([BOB], create=False)[0][0] == found[0]
        assert fingerprints(other, [found[0]]) == fingerprints(vault, [found[0]])


def test_a_database_that_is_replaced_while_it_is_changed(
    vault: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(vault, ALICE, BOB, create=True)
    shutil.copy("subjects.db", "backup.db")
    remove = SubjectVault._remove

    def replace_meanwhile(self: SubjectVault, erased: Any) -> int:
        os.replace("backup.db", "subjects.db")
        return remove(self, erased)

    with monkeypatch.context() as patch:
        patch.setattr(SubjectVault, "_remove", replace_meanwhile)
        with pytest.raises(FormatError, match="was replaced meanwhile"):
            vault.erase(vault.references([ALICE]), "GDPR-17")
    assert vault.status()["requests"] == ["GDPR-17"]
    assert vault.erase([], "GDPR-17")["erased"] == 1
    assert reopen(tools).status()["complete"]


def test_a_vault_stays_open_in_another_folder(
    vault: SubjectVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir("folder")
    assert vault._database.query("SELECT format FROM vault") == [(1,)]
