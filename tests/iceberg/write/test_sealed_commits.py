"""Tables that are opened with a key that signs: each commit seals the version that it makes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import IntegrityError, KmsUnavailableError
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    create_table,
    expire_history,
    open_table,
    prune_keys,
    rotate_table,
    seal_table,
    set_policy,
)
from modcrypt.iceberg.format.table_versions import FolderVersions
from modcrypt.iceberg.rotate import table_rotation
from modcrypt.iceberg.write import commit
from modcrypt.iceberg.write.table_sealing import seal_commit
from modcrypt.kms.signing.ledger import Ledger
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows

WRITER, OTHER = mc.SigningKey.generate(), mc.SigningKey.generate()
BY = [WRITER.verifier]


@pytest.fixture
def folder(tmp_path: Path, kms: SampleKms) -> Path:
    """A sealed table with three snapshots."""
    table = create_table(tmp_path / "orders", rows(1).schema, kms, master_key_id="keyA")
    for number in (1, 2, 3):
        table = table.append(rows(number))
    seal_table(table, WRITER)
    return tmp_path / "orders"


def reopen(folder: Path, kms: SampleKms, **more: Any) -> IcebergTable:
    return open_table(folder, kms, signed_by=BY, **more)


def prune_after_rotation(table: IcebergTable) -> IcebergTable:
    return prune_keys(rotate_table(table, "kek").table).table


CHANGES: dict[str, Callable[[IcebergTable], IcebergTable]] = {
    "append": lambda table: table.append(rows(4)),
    "mek": lambda table: rotate_table(table, "mek").table,
    "overwrite": lambda table: table.overwrite(rows(1), "id = 1"),
    "delete": lambda table: table.append(rows(5)).delete("id = 5"),
    "upsert": lambda table: table.upsert(rows(3, 5), ["id"]).table.delete("id = 5"),
    "branch": lambda table: table.append(rows(5), branch="audit"),
    "kek": lambda table: rotate_table(table, "kek").table,
    "dek": lambda table: rotate_table(table, "dek").table,
    "policy": lambda table: set_policy(table, KeyPolicy(kek_lifetime_days=7)),
    "expire": lambda table: expire_history(table).table,
    "prune": prune_after_rotation,
}


@each_case("change", CHANGES)
def test_each_change_is_sealed(change: str, folder: Path, kms: SampleKms) -> None:
    after = CHANGES[change](reopen(folder, kms, signing_key=WRITER))
    found = reopen(folder, kms, seal_at_least=2)
    assert found.place.path == after.place.path
    assert ids(found) == [1, 2, 3] + [4] * (change == "append")
    CHANGES[change](after)  # what a change returns seals, too
    reopen(folder, kms, seal_at_least=2)


def test_a_dry_run_seals_nothing(folder: Path, kms: SampleKms) -> None:
    before, table = files(folder), reopen(folder, kms, signing_key=WRITER)
    rotate_table(table, "dek", dry_run=True)
    expire_history(table, dry_run=True)
    assert files(folder) == before


def test_a_second_commit_of_a_rotation_is_sealed(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(table_rotation, "_is_settled", lambda *_: next(answers))
    monkeypatch.setattr(FolderVersions, "merges", True)
    after = rotate_table(reopen(folder, kms, signing_key=WRITER), "kek").table
    assert reopen(folder, kms, seal_at_least=3).place.path == after.place.path


@each_case("change", CHANGES)
def test_a_seal_of_another_writer_is_refused_before_the_change(
    change: str, folder: Path, kms: SampleKms
) -> None:
    before = files(folder)
    with pytest.raises(IntegrityError, match="not signed by"):
        CHANGES[change](open_table(folder, kms, signing_key=OTHER))
    assert files(folder) == before


def test_a_writer_of_another_key_is_accepted_if_its_reader_names_it(
    folder: Path, kms: SampleKms
) -> None:
    rotate_table(reopen(folder, kms, signing_key=OTHER), "kek")
    assert ids(open_table(folder, kms, signed_by=[OTHER.verifier], seal_at_least=2)) == [1, 2, 3]


def test_the_number_that_was_seen_holds_for_the_old_seal(folder: Path, kms: SampleKms) -> None:
    table = reopen(folder, kms, seal_at_least=1, signing_key=WRITER)
    (folder / "metadata" / "_modcrypt_seal.json").unlink()
    before = files(folder)
    with pytest.raises(IntegrityError, match="there is no seal, but number 1 was signed before"):
        rotate_table(table, "kek")
    assert files(folder) == before


@each_case("change", CHANGES)
def test_a_commit_that_nobody_sealed_is_not_sealed_with_the_next(
    change: str, folder: Path, kms: SampleKms
) -> None:
    """Any reader who may write to the folder could have made it."""
    open_table(folder, kms).append(rows(9))
    before = files(folder)
    with pytest.raises(IntegrityError, match="is not the version that was sealed"):
        CHANGES[change](open_table(folder, kms, signing_key=WRITER))
    assert files(folder) == before


@each_case("change", ["append", "mek", "kek", "dek", "policy"])
def test_a_change_stays_if_sealing_fails(
    change: str, folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash between both: readers refuse the table until it is sealed again."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "_modcrypt_seal.json")

    monkeypatch.setattr(Ledger, "publish", fail)
    with pytest.raises(IntegrityError, match=r"No space.*has been changed.*modcrypt iceberg seal"):
        CHANGES[change](reopen(folder, kms, signing_key=WRITER))
    monkeypatch.undo()
    with pytest.raises(IntegrityError, match="has committed and not sealed it yet"):
        reopen(folder, kms)
    with pytest.raises(IntegrityError, match=r"differs from it in .*accept=True"):
        seal_table(open_table(folder, kms), WRITER)
    seal_table(open_table(folder, kms), WRITER, seal_at_least=1, accept=True)
    assert ids(reopen(folder, kms, seal_at_least=2)) == [1, 2, 3] + [4] * (change == "append")


def test_nothing_is_deleted_before_an_expiry_is_sealed(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(files(folder))
    monkeypatch.setattr(Ledger, "publish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        expire_history(reopen(folder, kms, signing_key=WRITER))
    monkeypatch.undo()
    assert before < set(files(folder))
    seal_table(open_table(folder, kms), WRITER, accept=True)
    assert expire_history(reopen(folder, kms, signing_key=WRITER)).metadata_files
    assert ids(reopen(folder, kms)) == [1, 2, 3]


def test_a_commit_between_the_change_and_its_seal_is_reported(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:

    def commit_first(*arguments: Any) -> None:
        monkeypatch.undo()
        open_table(folder, kms).append(rows(5))
        seal_commit(*arguments)

    monkeypatch.setattr(f"{commit.__name__}.seal_commit", commit_first)
    with pytest.raises(IntegrityError, match=r"no longer the current version.*has been changed"):
        reopen(folder, kms, signing_key=WRITER).append(rows(4))  # nobody is to try again
    assert ids(open_table(folder, kms)) == [1, 2, 3, 4, 5]


def test_a_service_that_does_not_sign_is_no_reason_to_change_the_table_again(
    folder: Path, kms: SampleKms
) -> None:
    def fail(_: bytes) -> bytes:
        raise KmsUnavailableError("the key service is away")

    away = mc.SigningKey(WRITER.verifier, None, fail)
    with pytest.raises(IntegrityError, match=r"is away; the table has been changed") as caught:
        reopen(folder, kms, signing_key=away).append(rows(4))
    assert type(caught.value) is IntegrityError
    assert ids(open_table(folder, kms)) == [1, 2, 3, 4]


def test_the_key_is_neither_shown_nor_pickled(folder: Path, kms: SampleKms) -> None:
    table = reopen(folder, kms, signing_key=WRITER)
    assert "signing_key" not in repr(table)
    assert "SigningKey" not in repr(rotate_table(table, "kek"))
