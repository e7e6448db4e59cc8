"""Seals of tables: readers with the writer's verifying key detect every other metadata.json."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import CommitConflictError, FormatError, IntegrityError
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    change_seal_writers,
    expire_history,
    load_table,
    open_table,
    remove_orphan_files,
    rotate_table,
    seal_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.read.table_seals import TABLE, describe_version
from modcrypt.iceberg.write import table_sealing
from modcrypt.kms.signing.ledger import ARCHIVE, SEAL_NAME
from tests.support.cases import each_case
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows
from tools import verify_seal

WRITER, OTHER = mc.SigningKey.generate(), mc.SigningKey.generate("mldsa65")
BY = [WRITER.verifier]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed table with three snapshots."""
    table = make_table(tmp_path / "orders", rows(1).schema)
    for number in (1, 2, 3):
        table = table.append(rows(number))
    assert seal_table(table, WRITER).sequence == 1
    return tmp_path / "orders"


def opened(folder: Path, kms: SampleKms, **more: Any) -> IcebergTable:
    return open_table(folder, kms, signed_by=more.pop("signed_by", BY), **more)


def newest(folder: Path) -> Path:
    return max(
        (folder / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:-14])
    )


def test_a_sealed_table_is_read(folder: Path, kms: SampleKms) -> None:
    table = opened(folder, kms)
    assert ids(table) == [1, 2, 3]
    result = verify_table(table)
    assert result.ok
    assert [note.what for note in result.not_authenticated] == []
    assert result.orphans == ()
    plain = verify_table(open_table(folder, kms))
    assert [note.what for note in plain.not_authenticated] == ["table metadata"]
    assert remove_orphan_files(table, older_than_days=0).files == ()
    assert (folder / "metadata" / SEAL_NAME).exists()


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = newest(folder)
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def rename_column(document: dict[str, Any]) -> None:
    document["schemas"][-1]["fields"][0]["name"] = "amount"


def roll_back(document: dict[str, Any]) -> None:
    document["current-snapshot-id"] = document["snapshots"][0]["snapshot-id"]
    document["refs"]["main"]["snapshot-id"] = document["current-snapshot-id"]


ATTACKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a column renamed": rename_column,
    "rolled back inside": roll_back,
    "a snapshot removed": lambda d: d["snapshots"].pop(0),
    "a spec edited": lambda d: d["partition-specs"][0].update({"spec-id": 0, "fields": [
        {"name": "id", "transform": "identity", "source-id": 1, "field-id": 1000}]}),
    "a property": lambda d: d["properties"].update({"read.split.target-size": "1"}),
    "a sort order": lambda d: d.update({"default-sort-order-id": 7}),
    "the log": lambda d: d.update({"metadata-log": []}),
}  # fmt: skip


@each_case("attack", ATTACKS)
def test_edited_metadata_is_refused(attack: str, folder: Path, kms: SampleKms) -> None:
    pristine = newest(folder).read_bytes()
    edit(folder, ATTACKS[attack])
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        opened(folder, kms)
    newest(folder).write_bytes(pristine)
    edit(folder, lambda document: document)  # spaces between members mean nothing
    assert ids(opened(folder, kms)) == [1, 2, 3]


def test_an_older_version_is_refused_without_at_least(folder: Path, kms: SampleKms) -> None:
    newest(folder).unlink()
    assert ids(open_table(folder, kms)) == [1, 2]  # nothing else shows it
    with pytest.raises(IntegrityError, match="rolled back"):
        opened(folder, kms)


def test_an_older_seal_is_refused_by_its_number(folder: Path, kms: SampleKms) -> None:
    shutil.copytree(folder, folder.parent / "old")
    seal = seal_table(opened(folder, kms).append(rows(4)), WRITER)
    assert (seal.sequence, seal.last_sequence_number) == (2, 4)
    assert ids(opened(folder, kms, seal_at_least=2)) == [1, 2, 3, 4]
    shutil.rmtree(folder)
    (folder.parent / "old").rename(folder)
    assert ids(opened(folder, kms)) == [1, 2, 3]  # without a number, nobody can know
    name = r"metadata/_modcrypt_seal\.json: the seal has number 1, but 2 was seen before"
    with pytest.raises(IntegrityError, match=name):
        opened(folder, kms, seal_at_least=2)
    with pytest.raises(IntegrityError, match="rolled back"):
        seal_table(open_table(folder, kms), WRITER, seal_at_least=2)


def test_a_missing_and_a_foreign_seal_are_refused(folder: Path, kms: SampleKms) -> None:
    with pytest.raises(IntegrityError, match="not signed by"):
        opened(folder, kms, signed_by=[OTHER.verifier])
    with pytest.raises(IntegrityError, match="not signed by"):
        seal_table(open_table(folder, kms), OTHER)
    seal_table(open_table(folder, kms), OTHER, signed_by=BY)
    assert opened(folder, kms, signed_by=[*BY, OTHER.verifier])
    (folder / "metadata" / SEAL_NAME).unlink()
    with pytest.raises(IntegrityError, match="the table is not sealed"):
        opened(folder, kms)


def test_a_seal_of_a_folder_is_none_of_a_table(folder: Path, kms: SampleKms) -> None:
    mc.jobs.seal_dataset(folder.parent / "orders" / "data", WRITER)
    shutil.copy(folder / "data" / SEAL_NAME, folder / "metadata" / SEAL_NAME)
    with pytest.raises(FormatError):
        opened(folder, kms)
    with pytest.raises(FormatError):
        seal_table(open_table(folder, kms), WRITER)


def test_a_seal_of_another_table_is_refused(folder: Path, kms: SampleKms, tmp_path: Path) -> None:
    other = make_table(tmp_path / "other", rows(1).schema)
    shutil.copy(folder / "metadata" / SEAL_NAME, tmp_path / "other/metadata" / SEAL_NAME)
    for read in (lambda: opened(tmp_path / "other", kms), lambda: seal_table(other, WRITER)):
        with pytest.raises(IntegrityError, match="that of another table"):
            read()
    assert seal_table(other, WRITER, accept=True).sequence == 2
    assert opened(tmp_path / "other", kms)


def test_writers_go_on_from_what_they_know(folder: Path, kms: SampleKms) -> None:
    """Commits of one's own need no seal in between; those of others do."""
    mine = opened(folder, kms).append(rows(4))
    mine = rotate_table(mine, "kek").table.append(rows(5))
    assert ids(mine) == [1, 2, 3, 4, 5]
    other = open_table(folder, kms)
    seal_table(mine, WRITER)
    other = other.append(rows(6))
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        mine.append(rows(7))
    seal_table(other, WRITER)
    assert ids(mine.append(rows(7))) == [1, 2, 3, 4, 5, 6, 7]


def test_an_older_state_is_not_sealed(folder: Path, kms: SampleKms) -> None:
    old = open_table(folder, kms)
    new = old.append(rows(4))
    with pytest.raises(CommitConflictError, match="no longer the current version"):
        seal_table(old, WRITER)
    seal_table(new, WRITER)
    newest(folder).unlink()
    with pytest.raises(IntegrityError, match="older state"):
        seal_table(open_table(folder, kms), WRITER)


def test_two_writers_conflict(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:

    def seal_meanwhile(*arguments: Any) -> dict[str, Any]:
        monkeypatch.undo()
        seal_table(open_table(folder, kms), WRITER)
        return describe_version(*arguments)

    monkeypatch.setattr(f"{table_sealing.__name__}.describe_version", seal_meanwhile)
    with pytest.raises(CommitConflictError, match="another writer has made a seal"):
        seal_table(open_table(folder, kms), WRITER)
    assert opened(folder, kms, seal_at_least=2)


def test_expiry_keeps_the_seal(folder: Path, kms: SampleKms) -> None:
    table = opened(folder, kms)
    expired = expire_history(table).table
    seal_table(expired, WRITER)
    assert ids(opened(folder, kms, seal_at_least=2)) == [1, 2, 3]


def test_a_table_in_a_catalog_is_sealed(kms: SampleKms, tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    table = make_table(None, rows(1).schema, catalog=catalog, identifier="shop.orders")
    table = table.append(rows(1))
    seal_table(table, WRITER)
    options: dict[str, Any] = {"signed_by": BY}
    assert ids(load_table(catalog, "shop.orders", kms, **options)) == [1]
    table.append(rows(2))
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        load_table(catalog, "shop.orders", kms, **options)


# --- what a writer seals --------------------------------------------------------------------------


def plant(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Commit the next version as anyone can who may write to the folder."""
    path = newest(folder)
    shutil.copy(path, path.with_name(f"v{int(path.name[1:-14]) + 1}.metadata.json"))
    edit(folder, change)


def swap_columns(document: dict[str, Any]) -> None:
    schema = json.loads(json.dumps(document["schemas"][-1]))
    schema["schema-id"] += 1
    schema["fields"][0]["name"] = "amount"
    document["schemas"].append(schema)
    document["current-schema-id"] = schema["schema-id"]


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "swapped columns": (swap_columns, "current-schema-id, schemas:"),
    "an older current snapshot": (roll_back, "current-snapshot-id, refs:"),
    "a property": (lambda d: d["properties"].update({"write.data.path": "/else"}), "properties:"),
    "a member": (lambda d: d.update({"other": 1}), "other:"),
}


@each_case("attack", PLANTED)
def test_planted_versions_are_not_sealed(attack: str, folder: Path, kms: SampleKms) -> None:
    change, names = PLANTED[attack]
    before = (folder / "metadata" / SEAL_NAME).read_bytes()
    plant(folder, change)
    with pytest.raises(IntegrityError, match=f"v4.metadata.json .*differs from it in {names}"):
        seal_table(open_table(folder, kms), WRITER)
    edit(folder, lambda document: document.update({"last-sequence-number": 9}))
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        seal_table(set_policy(open_table(folder, kms), KeyPolicy(kek_lifetime_days=7)), WRITER)
    assert (folder / "metadata" / SEAL_NAME).read_bytes() == before


@each_case("attack", ATTACKS)
def test_edited_versions_are_not_sealed(attack: str, folder: Path, kms: SampleKms) -> None:
    live = opened(folder, kms)
    edit(folder, ATTACKS[attack])
    with pytest.raises(IntegrityError, match="not the version that was sealed, v4"):
        seal_table(open_table(folder, kms), WRITER)
    with pytest.raises(CommitConflictError, match="no longer the current version"):
        seal_table(live, WRITER)
    assert seal_table(open_table(folder, kms), WRITER, accept=True).sequence == 2


def test_a_removed_seal_does_not_start_again(folder: Path, kms: SampleKms) -> None:
    live = opened(folder, kms, seal_at_least=1)
    (folder / "metadata" / SEAL_NAME).unlink()
    moved = folder.parent / "moved"
    shutil.copytree(folder, moved)
    for table in (live, open_table(folder, kms), open_table(moved, kms)):
        with pytest.raises(IntegrityError, match="no seal, but number 1 was signed before"):
            seal_table(table, WRITER)
    with pytest.raises(IntegrityError, match="no seal, but number 1 was signed before"):
        seal_table(live, OTHER)  # which remembers nothing, but the reader does
    assert seal_table(open_table(folder, kms), WRITER, accept=True).sequence == 2


def test_a_lost_seal_goes_on_after_the_number_that_readers_know(
    folder: Path, kms: SampleKms
) -> None:
    (folder / "metadata" / SEAL_NAME).unlink()
    fresh = mc.SigningKey.generate()
    seal = seal_table(open_table(folder, kms), fresh, seal_at_least=7, accept=True)
    assert seal.sequence == 8
    assert seal_table(open_table(folder, kms), fresh).sequence == 9


def test_an_older_seal_with_its_table_is_not_continued(folder: Path, kms: SampleKms) -> None:
    shutil.copytree(folder, folder.parent / "old")
    seal_table(opened(folder, kms).append(rows(4)), WRITER)
    shutil.rmtree(folder)
    (folder.parent / "old").rename(folder)
    with pytest.raises(IntegrityError, match="has number 1, but number 2 was signed before"):
        seal_table(open_table(folder, kms), WRITER)
    assert seal_table(open_table(folder, kms), WRITER, accept=True).sequence == 3
    assert ids(opened(folder, kms, seal_at_least=3)) == [1, 2, 3]


def test_own_commits_are_sealed_at_once(folder: Path, kms: SampleKms) -> None:
    table = open_table(folder, kms).append(rows(4))
    table = rotate_table(table, "kek").table.append(rows(5))
    assert seal_table(table, WRITER).sequence == 2
    assert seal_table(table.append(rows(6)), WRITER).sequence == 3
    theirs = open_table(folder, kms)
    theirs.append(rows(7))
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        seal_table(theirs.append(rows(8)), WRITER)


def test_older_seals_belong_to_the_table(folder: Path, kms: SampleKms) -> None:
    for _ in range(2):
        seal_table(opened(folder, kms), WRITER)
    archived = sorted((folder / "metadata" / ARCHIVE).iterdir())
    assert [path.name for path in archived] == ["0000000001.json", "0000000002.json"]
    planted = folder / "metadata" / ARCHIVE / "part.parquet"
    planted.write_bytes(b"PAR1")
    (orphan,) = verify_table(opened(folder, kms)).orphans or ()
    assert Path(orphan.path) == planted
    remove_orphan_files(opened(folder, kms), older_than_days=0)
    expire_history(opened(folder, kms, signing_key=WRITER))
    assert set(archived) < set((folder / "metadata" / ARCHIVE).iterdir())
    assert not planted.exists()


def test_several_writers_sign_together(folder: Path, kms: SampleKms) -> None:
    seal = seal_table(open_table(folder, kms), [OTHER, WRITER])
    assert seal.signer == f"{OTHER.verifier.hex_id}, {WRITER.verifier.hex_id}"
    for key in (WRITER, OTHER):
        assert opened(folder, kms, signed_by=[key.verifier], seal_at_least=2)
    both: dict[str, Any] = {"signed_by": [*BY, OTHER.verifier], "seal_needed": 2}
    opened(folder, kms, **both, signing_key=[WRITER, OTHER]).append(rows(4))
    table = opened(folder, kms, **both, seal_at_least=3)
    with pytest.raises(ValueError, match=r"2 of the keys .* must sign"):
        seal_table(table, WRITER)
    with pytest.raises(ValueError, match=r"2 of the keys .* must sign"):
        opened(folder, kms, **both, signing_key=OTHER).append(rows(5))
    seal_table(open_table(folder, kms), WRITER)
    with pytest.raises(IntegrityError, match="needs 2 signatures"):
        opened(folder, kms, **both)
    with pytest.raises(ValueError, match="2 signatures are needed, but 1 keys are trusted"):
        opened(folder, kms, seal_needed=2)


def test_writers_are_replaced(folder: Path, kms: SampleKms) -> None:
    new, stranger = mc.SigningKey.generate(), mc.SigningKey.generate()
    by = [new.verifier]
    with pytest.raises(ValueError, match="must sign a change"):
        change_seal_writers(opened(folder, kms), new, by)
    with pytest.raises(IntegrityError, match="not signed by"):
        change_seal_writers(open_table(folder, kms), stranger, [stranger.verifier])
    assert change_seal_writers(opened(folder, kms), [WRITER, new], by).sequence == 2
    for trusted in (BY, by):
        assert ids(opened(folder, kms, signed_by=trusted, seal_at_least=2)) == [1, 2, 3]
    with pytest.raises(ValueError, match="has not been allowed to sign since seal number 2"):
        opened(folder, kms, signing_key=WRITER).append(rows(4))
    opened(folder, kms, signing_key=new).append(rows(4))
    two = [new.verifier, OTHER.verifier]
    change_seal_writers(opened(folder, kms), [new, OTHER], two, needed=2)
    with pytest.raises(ValueError, match=r"2 of the keys .* must sign"):
        seal_table(opened(folder, kms), new)
    opened(folder, kms, signing_key=[new, OTHER]).append(rows(5))
    assert ids(opened(folder, kms, seal_at_least=5)) == [1, 2, 3, 4, 5]


def test_a_change_of_writers_seals_nothing_else(folder: Path, kms: SampleKms) -> None:
    plant(folder, swap_columns)
    with pytest.raises(IntegrityError, match="differs from it in"):
        change_seal_writers(open_table(folder, kms), [WRITER, OTHER], [OTHER.verifier])
    (folder / "metadata" / SEAL_NAME).unlink()
    fresh = mc.SigningKey.generate()
    with pytest.raises(IntegrityError, match="seal the table first"):
        change_seal_writers(open_table(folder, kms), fresh, [fresh.verifier])


def test_an_expired_seal_is_refused_until_the_next_one(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_table(open_table(folder, kms), WRITER, valid_for=60)
    assert opened(folder, kms)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    with pytest.raises(IntegrityError, match="seal number 2 expired"):
        opened(folder, kms)
    seal_table(open_table(folder, kms), WRITER)  # valid as long as the one before
    assert opened(folder, kms)
    monkeypatch.setattr(time, "time", lambda: now + 122)
    with pytest.raises(IntegrityError, match="seal number 3 expired"):
        opened(folder, kms)
    seal_table(open_table(folder, kms), WRITER, valid_for=0)
    assert opened(folder, kms)


def write_first(folder: Path, members: dict[str, Any]) -> None:
    """Replace the seal by one of version 1."""
    statement = json.dumps(members).encode()
    message = b"modcrypt-seal\x00\x01" + hashlib.sha256(statement).digest()
    signature = base64.b64encode(WRITER.sign(message)).decode()
    path = folder / "metadata" / SEAL_NAME
    path.write_bytes(statement + b"\n" + json.dumps({"signature": signature}).encode())


def first_members(folder: Path) -> dict[str, Any]:
    """Return the members of the seal as version 1 has them."""
    members = json.loads((folder / "metadata" / SEAL_NAME).read_bytes().partition(b"\n")[0])
    own = {name: members[name] for name in TABLE.members}
    common = {"format": TABLE.name, "version": 1, "sequence": 1, "previous": None}
    return {**common, "signer": str(WRITER.verifier), **own}


def test_seals_of_version_1_are_read_and_followed(folder: Path, kms: SampleKms) -> None:
    write_first(folder, first_members(folder))
    assert ids(opened(folder, kms)) == [1, 2, 3]
    fresh = mc.SigningKey.generate()
    with pytest.raises(IntegrityError, match="not signed by"):
        seal_table(open_table(folder, kms), fresh)
    seal_table(opened(folder, kms), fresh)
    with pytest.raises(IntegrityError, match="not signed by"):
        opened(folder, kms)
    assert opened(folder, kms, signed_by=[fresh.verifier], seal_at_least=2)


@each_case("change", [
    {"table_uuid": 1}, {"sha256": "A" * 64}, {"last_sequence_number": True},
    {"current_snapshot_id": "1"}, {"metadata": None}, {"files": []},
], ids=str)  # fmt: skip
def test_malformed_seals_are_refused(change: dict[str, Any], folder: Path, kms: SampleKms) -> None:
    write_first(folder, {**first_members(folder), **change})
    with pytest.raises(FormatError):
        opened(folder, kms)


def test_the_independent_verifier_agrees(folder: Path) -> None:
    line = str(WRITER.verifier)
    assert verify_seal.verify_table(folder / "metadata", newest(folder).name, line)
    edit(folder, rename_column)
    assert not verify_seal.verify_table(folder / "metadata", newest(folder).name, line)


def test_key_tools_whose_policy_names_writers_require_the_seal(tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("keyA")
    table = make_table(tmp_path / "t", rows(1).schema, ring)
    table = table.append(rows(1))
    policy = mc.Policy(footer_key="keyA", signed_by=[str(WRITER.verifier)])
    tools = mc.KeyTools.from_policy(policy, kms=ring)
    with pytest.raises(IntegrityError, match="the table is not sealed"):
        open_table(tmp_path / "t", tools)
    seal_table(table, WRITER)
    assert ids(open_table(tmp_path / "t", tools)) == [1]
    with pytest.raises(IntegrityError, match="not signed by"):
        open_table(tmp_path / "t", tools, signed_by=[OTHER.verifier])
    later = mc.KeyTools.from_policy(replace(policy, seal_at_least=2), kms=ring)
    for named in ((), BY):  # naming writers does not lower the policy's number
        with pytest.raises(IntegrityError, match="but 2 was seen before"):
            open_table(tmp_path / "t", later, signed_by=named)
