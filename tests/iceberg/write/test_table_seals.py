"""Seals of tables: readers with the writer's verifying key detect every other metadata.json."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import CommitConflictError, FormatError, IntegrityError
from modcrypt.iceberg import (
    IcebergTable,
    create_table,
    expire_history,
    load_table,
    open_table,
    remove_orphan_files,
    rotate_table,
    seal_table,
    verify_table,
)
from modcrypt.iceberg.read.table_seals import encode_table_seal
from modcrypt.iceberg.write import table_sealing
from modcrypt.kms.signing.ledger import SEAL_NAME
from tests.support.cases import each_case
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows
from tools import verify_seal

WRITER, OTHER = mc.SigningKey.generate(), mc.SigningKey.generate("mldsa65")
BY = [WRITER.verifier]


@pytest.fixture
def folder(tmp_path: Path, kms: SampleKms) -> Path:
    """A sealed table with three snapshots."""
    table = create_table(tmp_path / "orders", rows(1).schema, kms, master_key_id="keyA")
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
    assert ids(open_table(folder, kms)) == [1, 2]  # nothing else tells
    with pytest.raises(IntegrityError, match="rolled back"):
        opened(folder, kms)


def test_an_older_seal_is_refused_by_its_number(folder: Path, kms: SampleKms) -> None:
    shutil.copytree(folder, folder.parent / "old")
    seal = seal_table(opened(folder, kms).append(rows(4)), WRITER)
    assert (seal.sequence, seal.last_sequence_number) == (2, 4)
    assert ids(opened(folder, kms, seal_at_least=2)) == [1, 2, 3, 4]
    shutil.rmtree(folder)
    (folder.parent / "old").rename(folder)
    assert ids(opened(folder, kms)) == [1, 2, 3]  # without a number, nobody can tell
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
    mc.seal_dataset(folder.parent / "orders" / "data", WRITER)
    shutil.copy(folder / "data" / SEAL_NAME, folder / "metadata" / SEAL_NAME)
    with pytest.raises(FormatError):
        opened(folder, kms)
    with pytest.raises(FormatError):
        seal_table(open_table(folder, kms), WRITER)


def test_a_seal_of_another_table_is_refused(folder: Path, kms: SampleKms, tmp_path: Path) -> None:
    other = create_table(tmp_path / "other", rows(1).schema, kms, master_key_id="keyA")
    shutil.copy(folder / "metadata" / SEAL_NAME, tmp_path / "other/metadata" / SEAL_NAME)
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        opened(tmp_path / "other", kms)
    with pytest.raises(IntegrityError, match="that of another table"):
        seal_table(other, WRITER)


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
    with pytest.raises(CommitConflictError, match="not the current version"):
        seal_table(old, WRITER)
    seal_table(new, WRITER)
    newest(folder).unlink()
    with pytest.raises(IntegrityError, match="older state"):
        seal_table(open_table(folder, kms), WRITER)


def test_two_writers_conflict(
    folder: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:

    def seal_meanwhile(*arguments: Any) -> bytes:
        monkeypatch.undo()
        seal_table(open_table(folder, kms), WRITER)
        return encode_table_seal(*arguments)

    monkeypatch.setattr(f"{table_sealing.__name__}.encode_table_seal", seal_meanwhile)
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
    table = create_table(
        None, rows(1).schema, kms, master_key_id="keyA", catalog=catalog, identifier="shop.orders"
    )
    table = table.append(rows(1))
    seal_table(table, WRITER)
    options: dict[str, Any] = {"signed_by": BY}
    assert ids(load_table(catalog, "shop.orders", kms, **options)) == [1]
    table.append(rows(2))
    with pytest.raises(IntegrityError, match="not the version that was sealed"):
        load_table(catalog, "shop.orders", kms, **options)


@each_case("change", [
    {"table_uuid": 1}, {"sha256": "A" * 64}, {"last_sequence_number": True},
    {"current_snapshot_id": "1"}, {"metadata": None}, {"files": []},
], ids=str)  # fmt: skip
def test_malformed_seals_are_refused(change: dict[str, Any], folder: Path, kms: SampleKms) -> None:
    path = folder / "metadata" / SEAL_NAME
    document = {**json.loads(path.read_bytes().partition(b"\n")[0]), **change}
    statement = json.dumps(document).encode()
    message = b"modcrypt-seal\x00\x01" + hashlib.sha256(statement).digest()
    signature = base64.b64encode(WRITER.sign(message)).decode()
    path.write_bytes(statement + b"\n" + json.dumps({"signature": signature}).encode())
    with pytest.raises(FormatError):
        opened(folder, kms)


def test_the_independent_verifier_agrees(folder: Path, kms: SampleKms) -> None:
    line = str(WRITER.verifier)
    assert verify_seal.verify_table(folder / "metadata", newest(folder).name, line)
    edit(folder, rename_column)
    assert not verify_seal.verify_table(folder / "metadata", newest(folder).name, line)


def test_key_tools_whose_policy_names_writers_require_the_seal(tmp_path: Path) -> None:
    ring = mc.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("keyA")
    table = create_table(tmp_path / "t", rows(1).schema, ring, master_key_id="keyA")
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
