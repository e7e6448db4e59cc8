"""Iceberg's Java reads what modcrypt has written, encrypted and rotated, and writes on top of it.

Forms of key metadata that are modcrypt's own must be refused by Java, not read as anything.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform

from modcrypt.iceberg import FileKeyStore, IcebergTable, KeyPolicy, encrypt_table, open_table
from modcrypt.iceberg.rotate.expiry import expire_history
from modcrypt.iceberg.rotate.key_pruning import prune_keys
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from tests.support.iceberg.java_judge import JavaError, Judge, plain_rows
from tests.support.iceberg.java_tables import PEOPLE, append, delete, ids, partition_spec, people
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import small_table

Change: TypeAlias = Callable[[IcebergTable], IcebergTable]


# --- the shared table ----------------------------------------------------------------------------


def test_java_reads_the_shared_table_as_modcrypt_does(java: Judge, table: IcebergTable) -> None:
    folder = Path(table.place.path).parents[1]
    for snapshot in (1001, 1002):
        rows = java.read(table.place.path, both(folder), snapshot=snapshot)
        assert rows == plain_rows(table.scan(snapshot))
    # Its deletion vector spells the data file's location in another way than the data file does.
    # Java compares them as text, so that it deletes nothing; modcrypt knows them for the same.
    rows = java.read(table.place.path, both(folder), snapshot=1003)
    ours = plain_rows(table.scan(1003))
    assert ids([row for row in rows if row not in ours]) == [103, 105, 149]
    assert len(rows) == len(ours) + 3


def test_java_reads_the_shared_table_as_was_recorded(java: Judge, table: IcebergTable) -> None:
    """The record has key metadata in the clear; here it is compared by its SHA-256."""
    folder = Path(table.place.path).parents[1]
    recorded = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    snapshots = re.split(r"^snapshot (\d+) .*$", recorded, flags=re.MULTILINE)[1:]
    assert len(snapshots) == 6
    for snapshot, text in zip(snapshots[::2], snapshots[1::2], strict=True):
        reported = java.files(table.place.path, both(folder), int(snapshot))
        (of_list,) = re.findall(r"key_metadata \(plain\) (\w+)", text)
        assert reported["key"]["sha256"] == _digest(of_list)
        manifests = re.findall(r"manifest (/\S+) len (\d+) km (\w+)", text)
        assert {
            (manifest["path"], manifest["length"], manifest["key"]["sha256"])
            for manifest in reported["manifests"]
        } == {(path, int(length), _digest(metadata)) for path, length, metadata in manifests}
        files = re.findall(r"(?:data|delete) (/\S+) (\w+) size (\d+) .* km (\w+)", text)
        assert {
            (file["path"], file["format"], file["size"], file["key"]["sha256"])
            for file in reported["files"]
        } == {(path, kind, int(size), _digest(metadata)) for path, kind, size, metadata in files}


def _digest(text: str) -> str:
    return hashlib.sha256(bytes.fromhex(text)).hexdigest()


# --- rotated tables ------------------------------------------------------------------------------


@pytest.fixture
def java_table(java: Judge, kms: SampleKms, tmp_path: Path) -> IcebergTable:
    """A table of Java's: partitions, Parquet and Avro, vectors, a tag, two KEKs, an unused key."""
    spec = partition_spec((1, "bucket[2]", "id_bucket"))
    metadata = java.create(tmp_path / "written", PEOPLE, spec=spec)
    first = [append(*range(10)), {"do": "tag", "name": "first"}]
    metadata = java.commit(metadata, *first, shift_ms=-800 * 24 * 60 * 60 * 1000)
    metadata = java.commit(
        metadata,
        append(*range(10, 20), format="avro"),
        delete(3, 4, 13),
        {"do": "expire"},
        append(*range(20, 25)),
        delete(5, 21),
    )
    return open_table(metadata, kms)


ROTATIONS: dict[str, Change] = {
    "mek": lambda table: rotate_table(table, "mek", new_master_key_id="keyB").table,
    "mek again": lambda table: rotate_table(table, "mek").table,
    "kek": lambda table: rotate_table(table, "kek").table,
    "kek and mek": lambda table: rotate_table(table, "kek", new_master_key_id="keyB").table,
    "dek": lambda table: rotate_table(table, "dek").table,
    "prune": lambda table: prune_keys(table).table,
}
QUICK = ("kek and mek", "dek")  # Java reads and writes each table several times
SOME_ROTATIONS = pytest.mark.parametrize(
    "rotate",
    [
        pytest.param(rotate, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, rotate in ROTATIONS.items()
    ],
)


def read_everything(java: Judge, table: IcebergTable) -> dict[str, Any]:
    """Return rows, with row ids, of all snapshots, branches and tags as Java reads them."""
    path, reported = table.place.path, java.snapshots(table.place.path)
    found: dict[str, Any] = {
        str(snapshot["id"]): java.read(path, snapshot=snapshot["id"], lineage=True)
        for snapshot in reported["snapshots"]
    }
    return found | {ref: java.read(path, ref=ref) for ref in reported["refs"]}


@SOME_ROTATIONS
def test_java_reads_a_rotated_table(java: Judge, java_table: IcebergTable, rotate: Change) -> None:
    before = read_everything(java, java_table)
    assert ids(before["main"]) == [n for n in range(25) if n not in (3, 4, 13, 5, 21)]
    rotated = rotate(java_table)
    assert rotated.place != java_table.place
    after = read_everything(java, rotated)
    assert {name: after[name] for name in before} == before
    assert plain_rows(rotated.scan()) == after["main"]
    keks = [key for key in java.keys(rotated.place.path) if "sha256" in key]
    assert {kek["by"] for kek in keks} == {rotated.metadata.master_key_id}


@SOME_ROTATIONS
def test_java_commits_to_a_rotated_table(
    java: Judge, kms: SampleKms, java_table: IcebergTable, rotate: Change
) -> None:
    rotated = rotate(java_table)
    metadata = java.commit(rotated.place.path, append(30, 31), delete(0, 10, 30))
    table = open_table(metadata, kms)
    left = [n for n in (*range(25), 31) if n not in (3, 4, 13, 5, 21, 0, 10)]
    assert ids(plain_rows(table.scan())) == left == ids(java.read(metadata))
    again = rotate(table)
    assert ids(java.read(again.place.path)) == left


def test_each_key_that_a_rotation_is_to_replace_is_another(
    java: Judge, java_table: IcebergTable
) -> None:
    def keys(table: IcebergTable) -> dict[str, set[str]]:
        reported = java.files(table.place.path)
        table_keys = java.keys(table.place.path)
        return {
            "kek": {key["sha256"] for key in table_keys if "sha256" in key},
            "wrapped": {key.encrypted.hex() for key in table.metadata.keys.values()},
            "data": {file["key"]["key_sha256"] for file in reported["files"]},
        }

    before = keys(java_table)
    table = ROTATIONS["mek"](java_table)
    mek = keys(table)
    assert mek["kek"] == before["kek"]
    assert mek["data"] == before["data"]
    assert len(mek["wrapped"] - before["wrapped"]) == len(before["kek"]) == 2
    table = ROTATIONS["kek"](table)
    kek = keys(table)
    assert not kek["kek"] & before["kek"]
    assert not kek["wrapped"] & before["wrapped"]
    assert kek["data"] == before["data"]
    dek = keys(ROTATIONS["dek"](table))
    assert not dek["data"] & before["data"]
    assert len(dek["data"]) == len(before["data"])


def test_a_catalog_that_was_not_given_another_master_key_opens_nothing(
    java: Judge, java_table: IcebergTable
) -> None:
    """Iceberg's Hive catalog takes the key id from its own table properties, not from the file."""
    rotated = ROTATIONS["mek"](java_table)
    with pytest.raises(JavaError, match="not wrapped by the master key keyA"):
        java.read(rotated.place.path, key_id="keyA")
    assert java.read(rotated.place.path, key_id="keyB") == java.read(java_table.place.path)


def test_java_reads_what_is_left_of_a_history(
    java: Judge, kms: SampleKms, java_table: IcebergTable
) -> None:
    before = read_everything(java, java_table)
    expired = expire_history(java_table)
    after = read_everything(java, expired.table)
    assert after["main"] == before["main"]
    assert after["first"] == before["first"]
    assert len(after) < len(before)
    forced = expire_history(expired.table, force=True)
    current = java_table.metadata.current
    assert current is not None
    assert read_everything(java, forced.table).keys() == {"main", str(current.id)}
    metadata = java.commit(forced.table.place.path, append(40), delete(0))
    assert plain_rows(open_table(metadata, kms).scan()) == java.read(metadata)


# --- tables that modcrypt made -------------------------------------------------------------------

SPECS = {
    "unpartitioned": PartitionSpec(),
    "identity": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name")),
    "bucket": PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket")),
    "day": PartitionSpec(PartitionField(3, 1000, DayTransform(), "joined_day")),
}
COLUMNS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("joined", pa.timestamp("us", "UTC"))]
)


def arrow(*of: int) -> pa.Table:
    rows = [
        {**row, "joined": datetime.datetime.fromisoformat(row["joined"])} for row in people(*of)
    ]
    return pa.Table.from_pylist(rows, COLUMNS)


@pytest.mark.parametrize(
    ("spec", "key_length"), [*zip(SPECS.values(), (16, 24, 32, 16), strict=True)], ids=SPECS
)
def test_java_reads_what_was_appended(
    java: Judge, tmp_path: Path, spec: PartitionSpec, key_length: int
) -> None:
    table = make_table(tmp_path / "t", COLUMNS, partition_spec=spec, key_length=key_length)
    assert java.read(table.place.path) == []
    table = table.append(arrow(*range(10)))
    first = java.read(table.place.path, lineage=True)
    assert ids(first) == list(range(10))
    assert sorted(row["_row_id"] for row in first) == list(range(10))
    table = table.append(arrow(*range(10, 30)))
    rows = java.read(table.place.path, lineage=True)
    assert sorted(row["_row_id"] for row in rows) == list(range(30))
    assert [row for row in rows if row["id"] < 10] == first
    assert {row["_last_updated_sequence_number"] for row in rows} == {1, 2}
    assert java.read(table.place.path) == plain_rows(table.scan()) == sorted(
        people(*range(30)), key=json.dumps
    )  # fmt: skip
    reported = java.files(table.place.path)
    assert {file["key"]["key_length"] for file in reported["files"] + reported["manifests"]} == {
        key_length
    }
    assert {key["length"] for key in java.keys(table.place.path) if "length" in key} == {key_length}
    for file in reported["files"]:
        assert file["key"]["file_length"] in (file["size"], None)
    # Filters find what they should by partitions and statistics that modcrypt has written.
    for term, value in (("id", 12), ("name", "name-3")):
        found = java.read(table.place.path, filter={"type": "eq", "term": term, "value": value})
        assert found == [row for row in plain_rows(table.scan()) if row[term] == value] != []


def test_java_reads_nested_and_many_types_that_were_appended(java: Judge, tmp_path: Path) -> None:
    data = small_table()
    table = make_table(tmp_path / "t", data.schema).append(data)
    assert java.read(table.place.path) == plain_rows(data)


def test_both_append_to_one_table_by_turns(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", COLUMNS)
    table = table.append(arrow(0, 1, 2))
    java.commit(table.place.path, append(3, 4, format="avro"), delete(1))
    table = table.append(arrow(5, 6))  # made of the version of Java's
    metadata = java.commit(table.place.path, delete(5), append(7), {"do": "rewrite-manifests"})
    table = open_table(metadata, kms).append(arrow(8))
    rows = java.read(table.place.path, lineage=True)
    assert ids(rows) == [0, 2, 3, 4, 6, 7, 8]
    assert len({row["_row_id"] for row in rows}) == 7
    assert java.read(table.place.path) == plain_rows(table.scan())
    # Each took the other's KEK for its own.
    assert len([key for key in java.keys(table.place.path) if key["by"] == "keyA"]) == 1
    snapshots = java.snapshots(table.place.path)["snapshots"]
    assert [snapshot["sequence_number"] for snapshot in snapshots] == list(range(1, 9))
    totals = [int(snapshot["summary"]["total-records"]) for snapshot in snapshots]
    assert totals == [3, 5, 5, 7, 7, 8, 8, 9]


def test_java_compacts_and_expires_what_modcrypt_wrote(
    java: Judge, kms: SampleKms, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "t", COLUMNS, partition_spec=SPECS["bucket"])
    table = table.append(arrow(*range(6))).append(arrow(*range(6, 9)))
    metadata = java.commit(
        table.place.path,
        delete(2),
        {"do": "compact"},
        {"do": "expire"},
        {"do": "rewrite-manifests"},
    )
    table = open_table(metadata, kms)
    assert ids(plain_rows(table.scan())) == [0, 1, 3, 4, 5, 6, 7, 8] == ids(java.read(metadata))


def test_java_reads_a_table_of_a_sql_catalog(java: Judge, tmp_path: Path) -> None:
    with SqlCatalog(
        "shop", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path)
    ) as shop:
        shop.create_namespace("shop")
        table = make_table(tmp_path / "orders", COLUMNS, catalog=shop, identifier="shop.orders")
        table = table.append(arrow(1, 2)).append(arrow(3))
        moved = rotate_table(table, "mek", new_master_key_id="keyB").table
        assert java.read(moved.place.path) == plain_rows(moved.scan())
        assert ids(java.read(moved.place.path)) == [1, 2, 3]


# --- tables that modcrypt encrypted --------------------------------------------------------------

PLAIN = {"encryption.key-id": None}


@pytest.mark.parametrize(
    ("version", "history"),
    [(1, True), (2, False), (3, True)]
    + [pytest.param(n, n == 2, marks=pytest.mark.slow) for n in (1, 2, 3)],
)
def test_java_reads_an_encrypted_copy(
    java: Judge, kms: SampleKms, tmp_path: Path, version: int, history: bool
) -> None:
    """Of tables that Java wrote in plaintext, with what deletes each version has."""
    spec = partition_spec((1, "bucket[2]", "id_bucket"))
    properties = {**PLAIN, "format-version": str(version)}
    source = java.create(tmp_path / "plain", PEOPLE, spec=spec, properties=properties)
    steps = [append(*range(8)), append(*range(8, 12), format="avro"), {"do": "tag", "name": "old"}]
    steps += [delete(2, 9), append(12)] if version > 1 else [append(12)]
    source = java.commit(source, *steps)
    rows = java.read(source)
    assert len(rows) == (13 if version == 1 else 11)
    table = encrypt_table(
        source, tmp_path / "sealed", kms, master_key_id="keyA", history=history, key_length=32
    )
    assert java.read(table.place.path) == rows == plain_rows(table.scan())
    if history:
        assert java.read(table.place.path, ref="old") == java.read(source, ref="old")
    reported = java.files(table.place.path)
    assert {file["key"]["key_length"] for file in reported["files"] + reported["manifests"]} == {32}
    metadata = java.commit(table.place.path, append(20), delete(0))
    assert len(java.read(metadata)) == len(rows) == open_table(metadata, kms).scan().num_rows
    if version == 3:
        before, after = (java.read(path, lineage=True) for path in (source, table.place.path))
        assert [row["_row_id"] for row in after] == [row["_row_id"] for row in before]


# --- forms that are modcrypt's own ---------------------------------------------------------------

SINGLE: Mapping[str, KeyPolicy] = {
    "of manifest lists": KeyPolicy(wrapping="single"),
    "of all files": KeyPolicy(wrapping="single", kek_per="files"),
}
IN_MANIFESTS: Mapping[str, KeyPolicy] = {
    "a KEK for each partition": KeyPolicy(kek_per="partition"),
    "a KEK for some files": KeyPolicy(kek_per="files", files=2),
}


def create_bucketed(folder: Path, policy: KeyPolicy) -> IcebergTable:
    return make_table(folder, COLUMNS, partition_spec=SPECS["bucket"], policy=policy)


@pytest.mark.parametrize("policy", SINGLE.values(), ids=SINGLE)
def test_java_refuses_single_wrapping(
    java: Judge, kms: SampleKms, tmp_path: Path, policy: KeyPolicy
) -> None:
    """To Java, what is under the master key is a KEK."""
    table = create_bucketed(tmp_path / "t", policy).append(arrow(*range(6)))
    for act in (
        lambda: java.read(table.place.path),
        lambda: java.commit(table.place.path, append(6)),
    ):
        with pytest.raises(JavaError, match="is a key encryption key, not manifest list key"):
            act()
    assert open_table(tmp_path / "t", kms).place == table.place  # nothing was committed
    assert ids(plain_rows(table.scan())) == list(range(6))


@pytest.mark.parametrize("policy", IN_MANIFESTS.values(), ids=IN_MANIFESTS)
def test_java_refuses_keys_that_are_sealed_in_manifests(
    java: Judge, kms: SampleKms, tmp_path: Path, policy: KeyPolicy
) -> None:
    """It refuses their first byte; what it need not open, it keeps as it is."""
    table = create_bucketed(tmp_path / "t", policy).append(arrow(*range(6)))
    with pytest.raises(JavaError, match="Version byte"):
        java.read(table.place.path)
    metadata = java.commit(table.place.path, append(6, 7), {"do": "rewrite-manifests"})
    with pytest.raises(JavaError, match="Version byte"):
        java.read(metadata)
    table = open_table(metadata, kms).append(arrow(8))
    assert ids(plain_rows(table.scan())) == list(range(9))
    found = table.files().to_pylist()
    sealed = [file["sealed_by"] is not None for file in found if file["kind"] == "data"]
    assert sealed.count(False) == 2  # Java's


def test_java_refuses_keks_of_a_key_store(java: Judge, tmp_path: Path) -> None:
    table = make_table(
        tmp_path / "t", COLUMNS, policy=KeyPolicy(store="key-store"),
        key_store=FileKeyStore.create(tmp_path / "keks.json"),
    ).append(arrow(1))  # fmt: skip
    assert ids(plain_rows(table.scan())) == [1]
    for act in (
        lambda: java.read(table.place.path),
        lambda: java.commit(table.place.path, append(2)),
    ):
        with pytest.raises(JavaError, match="NullPointerException"):  # it looks for none elsewhere
            act()


@pytest.mark.parametrize("policy", [KeyPolicy(), KeyPolicy(kek_per="day")])
def test_java_reads_the_other_forms(
    java: Judge, kms: SampleKms, tmp_path: Path, policy: KeyPolicy
) -> None:
    table = make_table(tmp_path / "t", COLUMNS, policy=policy)
    table = table.append(arrow(*range(6))).append(arrow(6))
    assert java.read(table.place.path) == plain_rows(table.scan())
    metadata = java.commit(table.place.path, append(7), delete(1))
    assert ids(plain_rows(open_table(metadata, kms).scan())) == [0, 2, 3, 4, 5, 6, 7]
