"""An expiry of a table whose current metadata.json was altered loses nothing that is newer.

Whoever alters it has no key. The honest file, put back, opens all rows again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.errors import IntegrityError, KeyNotFoundError, KeyRetrievalError
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    expire_history,
    open_table,
    rotate_table,
)
from modcrypt.iceberg.write.commit import commit
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows

Document = dict[str, Any]
FAR = str(10**17)


def create(folder: Path, snapshots: int = 3, **given: Any) -> IcebergTable:
    table = make_table(folder, **given)
    for number in range(snapshots):
        table = table.append(rows(number))
    return table


def stored_ids(folder: Path, **given: Any) -> list[int]:
    return ids(open_table(folder, SampleKms(), **given))


def alter(table: IcebergTable, change: Callable[[Document], object], how: str = "same") -> None:
    """Alter the current metadata.json, or plant one that claims to follow it."""
    path = Path(table.place.path)
    document = json.loads(path.read_text())
    if how == "newer":
        logged = {"timestamp-ms": document["last-updated-ms"], "metadata-file": str(path)}
        document["metadata-log"].append(logged)
        path = path.with_name(f"v{int(path.name[1:].partition('.')[0]) + 1}.metadata.json")
    change(document)
    path.write_text(json.dumps(document))


# --- the current snapshot ------------------------------------------------------------------------


def empty(document: Document) -> None:
    document |= {"current-snapshot-id": -1, "snapshots": [], "refs": {}}


def empty_as_if_never_written(document: Document) -> None:
    empty(document)
    document |= {"last-sequence-number": 0, "encryption-keys": []}


def unset_current(document: Document) -> None:
    document |= {"current-snapshot-id": None, "refs": {}}


def make_first_current(document: Document) -> None:
    first = document["snapshots"][0]["snapshot-id"]
    document |= {"current-snapshot-id": first, "refs": {}}


def cut_history(document: Document) -> None:
    make_first_current(document)
    document["snapshots"] = document["snapshots"][:1]


def cut_history_and_count_again(document: Document) -> None:
    cut_history(document)
    document["last-sequence-number"] = 1


def renumber(document: Document) -> None:
    """Claim that newer snapshots are older; their sealed manifest lists say otherwise."""
    make_first_current(document)
    for snapshot in document["snapshots"]:
        snapshot["sequence-number"] = 1


CHANGES = [empty, empty_as_if_never_written, unset_current, make_first_current, cut_history,
           cut_history_and_count_again, renumber]  # fmt: skip


@each_case("how", ["same", "newer"])
@each_case("change", CHANGES)
@each_case("force", [False, True])
def test_no_snapshot_goes_that_is_newer_than_all_that_stay(
    tmp_path: Path, change: Any, how: str, force: bool
) -> None:
    table = create(tmp_path)
    alter(table, change, how)
    before = files(tmp_path)
    fresh = open_table(tmp_path, SampleKms(), master_key_ids=["keyA"])
    for dry_run in (True, False):
        with pytest.raises(IntegrityError, match=r"metadata\.json was (replaced or )?altered"):
            expire_history(fresh, force=force, dry_run=dry_run)
    assert files(tmp_path) == before


def test_a_table_that_was_rolled_back_on_purpose_is_expired_by_naming_its_snapshot(
    tmp_path: Path,
) -> None:
    table = create(tmp_path)
    first = table.metadata.snapshots[0].id
    main = {"main": {"snapshot-id": first, "type": "branch"}}
    commit(table, lambda latest: latest.metadata.with_members(current_snapshot_id=first, refs=main))
    table = open_table(tmp_path, SampleKms())
    with pytest.raises(IntegrityError, match=rf"keep=\[{first}\]"):
        expire_history(table)
    done = expire_history(table, keep=[first])
    assert len(done.snapshots) == 2
    assert stored_ids(tmp_path) == [0]


def test_a_branch_that_is_newer_than_the_current_snapshot_goes_if_that_is_named(
    tmp_path: Path,
) -> None:
    table = create(tmp_path)
    second, third = (snapshot.id for snapshot in table.metadata.snapshots[1:])
    refs = {
        "main": {"snapshot-id": second, "type": "branch"},
        "next": {"snapshot-id": third, "type": "branch"},
    }
    table = commit(
        table, lambda latest: latest.metadata.with_members(current_snapshot_id=second, refs=refs)
    )
    assert len(expire_history(table, dry_run=True).kept) == 2
    with pytest.raises(IntegrityError, match="newer than all"):
        expire_history(table, force=True)
    assert expire_history(table, force=True, keep=[second]).refs == ("next",)


# --- other tables --------------------------------------------------------------------------------

NAMES = [
    "v1.metadata.json", "v1.gz.metadata.json", "v3.metadata.json.gz", "current.metadata.json",
    "00002-8b19a876-2225-48ad-a5f4-1c191de63807.metadata.json",
]  # fmt: skip


@each_case("name", NAMES)
@each_case("inside", ["b", "a/data/b"])
def test_no_file_goes_that_lies_in_the_folder_of_another_table(
    tmp_path: Path, name: str, inside: str
) -> None:
    """Its snapshots are put into the current version; both are under one master key."""
    table, other = create(tmp_path / "a"), create(tmp_path / inside)
    theirs = other.metadata.document

    def add_their_snapshots(document: Document) -> None:
        document["snapshots"] = [*theirs["snapshots"][:2], *document["snapshots"]]
        document["encryption-keys"] += theirs["encryption-keys"]

    alter(table, add_their_snapshots)
    for path in (tmp_path / inside / "metadata").glob("*.json"):
        path.rename(path.with_name(name))
    before = files(tmp_path / inside)
    mapped = {str(tmp_path): str(tmp_path)}
    done = expire_history(open_table(tmp_path / "a", SampleKms(), location_map=mapped))
    assert files(tmp_path / inside) == before
    assert {snapshot.manifest_list for snapshot in other.metadata.snapshots[:2]} <= set(
        done.unreadable
    )
    assert len(done.manifest_lists) == 2
    assert stored_ids(tmp_path / "a") == [0, 1, 2]


@each_case("inside", ["b", "a/data/b"])
@each_case("location", ["a", "b"])
@each_case("force", [False, True])
def test_a_table_that_is_given_the_state_of_another_table_loses_nothing(
    tmp_path: Path, inside: str, location: str, force: bool
) -> None:
    """The other table has more snapshots; its files decrypt, as both are under one master key."""
    table, other = create(tmp_path / "a"), create(tmp_path / inside, 5)

    def become_the_other(document: Document) -> None:
        own = {name: document[name] for name in ("table-uuid", "location", "metadata-log")}
        document |= {**other.metadata.document, **own}
        document["location"] = {"a": str(tmp_path / "a"), "b": str(tmp_path / inside)}[location]

    alter(table, become_the_other, "newer")
    before = files(tmp_path)
    fresh = open_table(
        tmp_path / "a",
        SampleKms(),
        location_map={str(tmp_path): str(tmp_path)},
        table_uuid=table.metadata.uuid,
        at_least=3,
    )
    for dry_run in (True, False):
        with pytest.raises(IntegrityError, match="another table"):
            expire_history(fresh, force=force, dry_run=dry_run)
    assert files(tmp_path) == before


def test_another_tables_list_does_not_vouch_even_if_its_metadata_is_gone(tmp_path: Path) -> None:
    table, other = create(tmp_path / "a"), create(tmp_path / "b", 5)
    own = ("table-uuid", "location", "metadata-log")

    def become_the_other(document: Document) -> None:
        document |= {**other.metadata.document, **{name: document[name] for name in own}}

    alter(table, become_the_other, "newer")
    for path in (tmp_path / "b/metadata").glob("*.json"):
        path.unlink()
    before = files(tmp_path)
    mapped = {str(tmp_path): str(tmp_path)}
    with pytest.raises(IntegrityError, match="another table"):
        expire_history(open_table(tmp_path / "a", SampleKms(), location_map=mapped))
    assert files(tmp_path) == before


# --- the location --------------------------------------------------------------------------------


@each_case("mapped", ["", "a", "."])
@each_case("copied", [False, True])
def test_no_metadata_goes_that_was_written_for_another_location(
    tmp_path: Path, mapped: str, copied: bool
) -> None:
    """Either the table claims to be empty, or copies of another table's files are its newest."""
    table, other = create(tmp_path / "a"), create(tmp_path / "b", 5)
    honest = files(tmp_path / "a")

    def move_and_empty(document: Document) -> None:
        empty_as_if_never_written(document)
        document["location"] = "/elsewhere"

    def become_a_copy(document: Document) -> None:
        own = {name: document[name] for name in ("table-uuid", "metadata-log")}
        document |= {**other.metadata.document, **own}
        for path in (tmp_path / "b").rglob("*.*"):
            if path.suffix in (".avro", ".parquet"):
                shutil.copy(path, tmp_path / "a" / path.relative_to(tmp_path / "b"))

    alter(table, become_a_copy if copied else move_and_empty, "newer")
    where = {str(tmp_path / mapped): str(tmp_path / mapped)} if mapped else None
    with contextlib.suppress(IntegrityError):
        expire_history(open_table(tmp_path / "a", SampleKms(), location_map=where))
    after = files(tmp_path / "a")
    assert not [name for name in honest if not name.endswith(".text") and name not in after]


# --- keys ----------------------------------------------------------------------------------------


def drop_keks(keys: list[Document]) -> list[Document]:
    return []


def spoil_keks(keys: list[Document]) -> list[Document]:
    return [{**key, "encrypted-key-metadata": "A" * 60} for key in keys]


def exchange_keks(keys: list[Document]) -> list[Document]:
    values = [key["encrypted-key-metadata"] for key in keys]
    return [
        {**key, "encrypted-key-metadata": value}
        for key, value in zip(keys, values[1:] + values[:1], strict=True)
    ]


@each_case("kek_per", ["files", "partition"])
@each_case("change", [drop_keks, spoil_keks, exchange_keks])
@each_case("how", ["same", "newer"])
def test_no_metadata_goes_that_alone_has_the_keks_of_files(
    tmp_path: Path, kek_per: Any, change: Any, how: str
) -> None:
    policy = KeyPolicy(kek_per=kek_per, files=1)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    given = None if kek_per == "files" else spec
    table = create(tmp_path, policy=policy, partition_spec=given)
    alter(table, lambda document: None, "newer")

    def change_keks(document: Document) -> None:
        keys = document["encryption-keys"]
        keks = [key for key in keys if "modcrypt.scope" in key.get("properties", {})]
        assert len(keks) == 3
        others = [key for key in keys if key not in keks]
        document["encryption-keys"] = others + change(keks)

    alter(open_table(tmp_path, SampleKms()), change_keks, how)
    before = files(tmp_path)
    with pytest.raises(KeyRetrievalError):
        expire_history(open_table(tmp_path, SampleKms()))
    assert files(tmp_path) == before


# --- the key store -------------------------------------------------------------------------------


@each_case("properties", [{"modcrypt.keks-since": FAR}, {"modcrypt.encryption.store": "table"}])
@each_case("kek_per", ["table", "partition", "files", "day"])
def test_no_kek_goes_that_is_newer_than_those_that_are_needed(
    tmp_path: Path, kek_per: Any, properties: dict[str, str]
) -> None:
    """A state of before is put back, without a log, and with properties by which all KEKs go."""
    store = FileKeyStore.create(tmp_path / "keks.json")
    policy = KeyPolicy(kek_per=kek_per, files=1, store="key-store")
    first = create(tmp_path / "t", 1, key_store=store, policy=policy)
    table = rotate_table(first, "kek").table.append(rows(1))
    honest, old = Path(table.place.path).read_bytes(), first.metadata.document

    def put_back(document: Document) -> None:
        document |= {**old, "metadata-log": [], "properties": {**old["properties"], **properties}}

    alter(table, put_back)
    expire_history(open_table(tmp_path / "t", SampleKms(), key_store=store))
    (tmp_path / "t/metadata/v5.metadata.json").unlink(missing_ok=True)
    Path(table.place.path).write_bytes(honest)
    assert stored_ids(tmp_path / "t", key_store=store) == [0, 1]


def empty_with_old_keys(document: Document) -> None:
    empty_as_if_never_written(document)
    document["properties"]["modcrypt.keks-since"] = FAR


def restore_old_keys(document: Document) -> None:
    document["properties"]["modcrypt.keks-since"] = FAR


@pytest.mark.parametrize("change", [empty_with_old_keys, restore_old_keys])
@pytest.mark.parametrize("where", ["table", "key-store"])
def test_no_kek_of_another_table_goes_from_a_key_store_that_they_share(
    tmp_path: Path, change: Any, where: Any
) -> None:
    """One table is given the other's table-uuid."""
    store = FileKeyStore.create(tmp_path / "keks.json")
    other = create(tmp_path / "b", key_store=store, policy=KeyPolicy(store="key-store"))
    table = create(tmp_path / "a", key_store=store, policy=KeyPolicy(store=where))

    def rename_table(document: Document) -> None:
        change(document)
        document["table-uuid"] = other.metadata.uuid

    alter(table, rename_table)
    before = store.keys()
    with contextlib.suppress(IntegrityError, KeyNotFoundError):
        expire_history(open_table(tmp_path / "a", SampleKms(), key_store=store))
    assert store.keys() == before
    assert stored_ids(tmp_path / "b", key_store=store) == [0, 1, 2]
