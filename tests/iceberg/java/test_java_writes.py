"""modcrypt reads what Iceberg's Java writes: every shape of table, each of its snapshots.

The judge is Java, which reads the same table. What is asserted besides is that a table has the
shape that it is there for: without, both could agree on next to nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from modcrypt.errors import ModcryptError, PlaintextError
from modcrypt.iceberg import open_table
from tests.support.cases import each_case
from tests.support.iceberg.builder import field, struct
from tests.support.iceberg.java_judge import JavaError, plain_rows
from tests.support.iceberg.java_tables import (
    ALL_TYPES,
    FULL,
    PARTITIONED,
    PEOPLE,
    Both,
    append,
    both,
    delete,
    ids,
    partition_spec,
    people,
    schema,
)

__all__ = ["both"]  # a fixture

Steps: TypeAlias = Sequence[Mapping[str, Any]]

DAY_MS = 24 * 60 * 60 * 1000


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("key_length", [16, 24, 32])
def test_all_types(both: Both, file_format: str, key_length: int) -> None:
    both.create(ALL_TYPES, properties={"encryption.data-key-length": str(key_length)})
    rows = [FULL, {"id": 2}, {**FULL, "id": 3, "real": "NaN", "small_real": "-Infinity"}]
    both.commit({"do": "append", "rows": rows, "format": file_format})
    found = both.agree()
    assert found[0] == FULL
    assert ids(found) == [1, 2, 3]
    described = both.java.files(both.metadata)
    keys = [
        described["key"],
        *(file["key"] for file in described["manifests"] + described["files"]),
    ]
    assert {key["key_length"] for key in keys} == {key_length}


def nested_schema() -> dict[str, Any]:
    found = schema(("id", "long"))
    inner = struct(field(11, "zip", "string", required=True), field(12, "since", "date"))
    found["fields"] += [
        {"id": 2, "name": "home", "required": False, "type": inner},
        {
            "id": 3, "name": "tags", "required": False,
            "type": {"type": "list", "element-id": 13, "element": "string",
                     "element-required": False},
        },
        {
            "id": 4, "name": "scores", "required": False,
            "type": {"type": "map", "key-id": 14, "key": "string", "value-id": 15,
                     "value": "decimal(5, 1)", "value-required": False},
        },
    ]  # fmt: skip
    return found


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_nested_values(both: Both, file_format: str) -> None:
    rows = [
        {
            "id": 1,
            "home": {"zip": "89073", "since": "2026-01-31"},
            "tags": ["a", None],
            "scores": [],
        },
        {"id": 2, "home": None, "tags": [], "scores": [["x", "1.5"], ["y", None]]},
        {"id": 3, "home": {"zip": "", "since": None}, "tags": None, "scores": None},
    ]
    both.create(nested_schema()).commit({"do": "append", "rows": rows, "format": file_format})
    assert both.agree() == sorted(rows, key=json.dumps)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_files_of_several_blocks(both: Both, file_format: str) -> None:
    texts = [hashlib.shake_128(bytes((n,))).hexdigest(600_000) for n in range(4)]
    rows = [{"id": n, "name": text} for n, text in enumerate(texts)]
    both.create(PEOPLE).commit({"do": "append", "rows": rows, "format": file_format})
    assert [row["name"] for row in both.agree()] == texts
    (file,) = both.java.files(both.metadata)["files"]
    assert file["size"] > 2 << 20


def test_files_of_several_row_groups(both: Both) -> None:
    """Positions of deleted rows count from the file's first row, whichever groups are read."""
    small = {
        "write.parquet.row-group-size-bytes": "3000",
        "write.parquet.row-group-check-min-record-count": "50",
        "write.parquet.row-group-check-max-record-count": "60",
        "write.parquet.page-size-bytes": "500",
    }
    both.create(PEOPLE, properties=small)
    both.commit(append(*range(3000)), delete(*range(0, 3000, 3)))
    assert len(both.agree()) == 2000
    table = both.table()
    assert table.metadata.current is not None
    (data, _) = table.walk.manifests(table.metadata.current)
    (entry,) = table.walk.entries(data)
    assert len(entry.file["split_offsets"]) > 5
    for least in (0, 1000, 2990):
        expected = [n for n in range(least, least + 10) if n % 3]
        found = table.scan(filters=f"id >= {least} and id < {least + 10}")
        assert ids(plain_rows(found)) == expected


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_odd_names(both: Both, file_format: str) -> None:
    """Avro has no such names for fields, and paths no such ones for partitions."""
    odd = ["a b/c", "..", "\N{LATIN SMALL LETTER U WITH DIAERESIS}%=&?#", "", "x:y"]
    columns = ("my name", "1st", "a.b", "Stra\N{LATIN SMALL LETTER SHARP S}e-x")
    both.create(
        schema(("id", "long"), *((name, "string") for name in columns)),
        spec=partition_spec((2, "identity", "my name")),
    )
    rows = [{"id": n, **dict.fromkeys(columns, value)} for n, value in enumerate(odd)]
    both.commit({"do": "append", "rows": rows, "format": file_format})
    assert both.agree() == sorted(rows, key=json.dumps)
    both.commit(delete(1, 2))
    assert ids(both.agree()) == [0, 3, 4]


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns", "unknown"])
def test_types_of_version_3(both: Both, kind: str) -> None:
    moment = "2026-01-01T00:00:00.123456"
    value = {"timestamp_ns": moment, "timestamptz_ns": f"{moment}+00:00"}.get(kind)
    both.create(schema(("id", "int"), ("x", kind)))
    both.commit({"do": "append", "rows": [{"id": 1, "x": value}]})
    assert both.agree() == [{"id": 1, "x": value}]


def test_a_table_without_a_snapshot(both: Both) -> None:
    table = both.create(PEOPLE).table()
    assert both.agree() == []
    assert table.scan().column_names == ["id", "name", "joined"]


# --- partitions ----------------------------------------------------------------------------------


FILTERS = [
    ("id >= 12", {"type": "gt-eq", "term": "id", "value": 12}),
    ("name = 'name-3'", {"type": "eq", "term": "name", "value": "name-3"}),
    ("name is null", {"type": "is-null", "term": "name"}),
    (
        "joined < '2026-01-02T12:00:00.000005+00:00'",
        {"type": "lt", "term": "joined", "value": "2026-01-02T12:00:00.000005+00:00"},
    ),
]


@pytest.mark.parametrize("spec", PARTITIONED.values(), ids=PARTITIONED)
def test_partitions(both: Both, spec: Mapping[str, Any]) -> None:
    both.create(PEOPLE, spec=spec)
    both.commit(append(*range(10)), append(*range(10, 20), format="avro"), delete(3, 14, 7))
    assert ids(both.agree()) == [n for n in range(20) if n not in (3, 14, 7)]
    assert len(both.formats()) > 6
    table = both.table()
    for ours, theirs in FILTERS:
        found = plain_rows(table.scan(filters=ours))
        assert 0 < len(found) < 17
        assert found == both.java.read(both.metadata, filter=theirs)


def test_partitions_that_changed(both: Both) -> None:
    both.create(PEOPLE, spec=PARTITIONED["identity"])
    both.commit(
        append(*range(8)),
        {"do": "spec", "remove": ["name"], "add": [["joined", "day"]]},
        append(*range(8, 16)),
        {"do": "spec", "add": [["id", "bucket", 3]]},
        append(*range(16, 24)),
        delete(1, 9, 17),
    )
    assert len(both.agree()) == 21
    manifests = both.java.files(both.metadata)["manifests"]
    assert {manifest["spec"] for manifest in manifests} >= {0, 1, 2}
    table = both.table()
    for ours, theirs in FILTERS:
        assert plain_rows(table.scan(filters=ours)) == both.java.read(both.metadata, filter=theirs)


# --- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_schemas_that_changed(both: Both, file_format: str) -> None:
    both.create(schema(("id", "int"), ("name", "string"), ("score", "float"), ("gone", "string")))
    row = {"id": 1, "name": "a", "score": 0.1, "gone": "once"}
    both.commit({"do": "append", "rows": [row], "format": file_format})
    both.commit(
        {
            "do": "schema", "rename": [["name", "title"]], "drop": ["gone"],
            "promote": [["id", "long"], ["score", "double"]], "add": [["day", "date"]],
            "first": ["score"],
        },
        {"do": "schema", "add": [["gone", "int"], ["name", "string"]]},
    )  # fmt: skip
    row = {"id": 2**40, "title": "b", "score": 0.1, "day": "2026-01-01", "gone": 5, "name": "new"}
    both.commit({"do": "append", "rows": [row], "format": file_format})
    rows = both.agree()
    assert list(rows[0]) == ["score", "id", "title", "day", "gone", "name"]
    assert sorted((record["id"], record["title"], record["gone"]) for record in rows) == [
        (1, "a", None),
        (2**40, "b", 5),
    ]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_columns_that_came_with_a_default(both: Both, file_format: str) -> None:
    new = {"id": 3, "country": None, "n": 8}
    both.create(PEOPLE).commit(
        append(1, 2, format=file_format),
        {"do": "schema", "add": [["country", "string", "DE"], ["n", "int", 7]]},
        {"do": "append", "rows": [new], "format": file_format},
    )
    found = [(row["id"], row["country"], row["n"]) for row in both.agree()]
    assert sorted(found) == [(1, "DE", 7), (2, "DE", 7), (3, None, 8)]
    assert ids(plain_rows(both.table().scan(filters="country = 'DE'"))) == [1, 2]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_nested_columns_that_changed(both: Both, file_format: str) -> None:
    old = {"id": 1, "home": {"zip": "89073", "since": "2026-01-31"}, "scores": [["x", "1.5"]]}
    both.create(nested_schema()).commit({"do": "append", "rows": [old], "format": file_format})
    both.commit(
        {
            "do": "schema", "add": [["home.city", "string"]], "rename": [["home.zip", "code"]],
            "drop": ["home.since"], "promote": [["scores.value", "decimal(9, 1)"]],
        }
    )  # fmt: skip
    new = {"id": 2, "home": {"code": "1", "city": "Ulm"}, "scores": [["x", "99999999.5"]]}
    both.commit({"do": "append", "rows": [new], "format": file_format})
    assert [row["home"] for row in both.agree()] == [{"code": "89073", "city": None}, new["home"]]


def test_a_schema_that_changed_without_a_snapshot(both: Both) -> None:
    """Reading by snapshot id shows its schema; the table and its branches show the newest."""
    both.create(PEOPLE).commit(append(1), {"do": "branch", "name": "b"}, {"do": "tag", "name": "t"})
    both.commit({"do": "schema", "rename": [["name", "title"]]})
    assert list(both.agree()[0]) == ["id", "title", "joined"]


# --- deletes -------------------------------------------------------------------------------------


def test_deletion_vectors(both: Both) -> None:
    both.create(PEOPLE)
    both.commit(append(*range(30)), append(*range(30, 60), format="avro"))
    both.commit(delete(0, 29, 30, 59), delete(1, 31), delete(*range(40, 60)))
    assert ids(both.agree()) == [*range(2, 29), *range(32, 40)]
    assert both.formats() == [
        "data AVRO",
        "data PARQUET",
        "position deletes PUFFIN",
        "position deletes PUFFIN",
    ]


def test_a_file_all_of_whose_rows_are_deleted(both: Both) -> None:
    both.create(PEOPLE).commit(append(1, 2), append(3), delete(1, 2))
    assert ids(both.agree()) == [3]


@pytest.mark.parametrize("spec", [None, PARTITIONED["bucket"]])
def test_position_deletes(both: Both, spec: Mapping[str, Any] | None) -> None:
    """A table of version 2, whose catalog alone said that it is encrypted, and then of version 3.

    It is the only way to have Java write position delete files into an encrypted table.
    """
    plain = {"format-version": "2", "encryption.key-id": None}
    both.create(PEOPLE, spec=spec, properties=plain, key_id="keyA")
    both.commit(
        append(*range(20)),
        append(*range(20, 40), format="avro"),
        delete(3, 24),
        delete(5, 26, format="avro"),
        {"do": "set", "properties": {"format-version": "3", "encryption.key-id": "keyA"}},
        key_id="keyA",
    )
    gone = {3, 24, 5, 26}
    assert ids(both.agree()) == [n for n in range(40) if n not in gone]
    assert {"position deletes AVRO", "position deletes PARQUET"} < set(both.formats())
    # A vector takes the place of position deletes, which are still there, and apply to others.
    both.commit(delete(7))
    assert ids(both.agree()) == [n for n in range(40) if n not in gone | {7}]
    assert "position deletes PUFFIN" in both.formats()


def test_vectors_whose_keys_are_lost_are_refused(both: Both) -> None:
    """Iceberg 1.11.0 seals deletion vectors, and keeps no key of them: nobody can read on."""
    both.create(PEOPLE).commit(append(1, 2, 3))
    before = both.table()
    both.commit(delete(2, keyless=True))
    (vector,) = [file for file in both.java.files(both.metadata)["files"] if file["content"] == 1]
    assert vector["key"] is None
    assert Path(vector["path"]).read_bytes()[:4] == b"AGS1"
    with pytest.raises(JavaError):
        both.java.read(both.metadata)
    with pytest.raises(ModcryptError):
        both.table().scan().to_arrow()
    assert ids(plain_rows(both.table().scan(before.metadata.document["current-snapshot-id"]))) == [
        1, 2, 3,
    ]  # fmt: skip


# --- commits of other kinds ----------------------------------------------------------------------

KINDS: dict[str, tuple[Steps, list[int]]] = {
    "overwrite": ([append(1, 2), {"do": "overwrite", "rows": people(3)}], [3]),
    "files deleted": ([append(1), append(2), append(7), *[
        {"do": "delete-files", "column": "id", "value": 2}]], [1, 7]),
    "compaction": ([append(1, 2), append(3, 4, format="avro"), delete(2), {"do": "compact"}],
                   [1, 3, 4]),
    "manifests rewritten": ([append(1), append(2), append(3), delete(2),
                             {"do": "rewrite-manifests"}, append(4)], [1, 3, 4]),
    "rollback and on": ([append(1), {"do": "tag", "name": "first"}, append(2),
                         {"do": "rollback-to", "tag": "first"}, append(3)], [1, 3]),
    "history expired": ([append(1), append(2), delete(1), {"do": "expire"}], [2]),
    "merged manifests": ([{"do": "set", "properties": {
        "commit.manifest.min-count-to-merge": "2"}}, append(1), append(2), append(3)], [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "left"), KINDS.values(), ids=KINDS)
def test_kinds_of_commits(both: Both, steps: Steps, left: list[int]) -> None:
    both.create(PEOPLE)
    for step in steps:
        if step["do"] == "rollback-to":
            to = both.java.snapshots(both.metadata)["refs"][step["tag"]]
            both.commit({"do": "rollback", "snapshot": to})
        else:
            both.commit(step)
    assert ids(both.agree()) == left


def test_branches_and_tags(both: Both) -> None:
    both.create(PEOPLE).commit(append(1), {"do": "tag", "name": "t"}, {"do": "branch", "name": "b"})
    both.commit(append(2), append(3, branch="b"), append(4, branch="b", format="avro"))
    assert ids(both.agree()) == [1, 2]
    assert ids(plain_rows(both.table().scan("b"))) == [1, 3, 4]
    assert ids(plain_rows(both.table().scan("t"))) == [1]


# --- keys ----------------------------------------------------------------------------------------


def test_a_second_kek_after_730_days(both: Both) -> None:
    both.create(PEOPLE)
    both.commit(append(1), shift_ms=-731 * DAY_MS)
    both.commit(append(2))
    both.commit(append(3))
    keks = [key for key in both.java.keys(both.metadata) if key["by"] == "keyA"]
    assert len(keks) == 2
    assert ids(both.agree()) == [1, 2, 3]
    assert both.kms.calls == [("unwrap", "keyA")] * 2
    kinds = both.table().keys().column("kind").to_pylist()
    assert (kinds.count("KEK"), kinds.count("manifest list")) == (2, 3)


def test_all_keys_are_those_that_java_has(both: Both) -> None:
    """By the SHA-256 of the key metadata of every file, from the manifest list on."""
    both.create(PEOPLE).commit(append(*range(9)), append(9, format="avro"), delete(4))
    table, reported = both.table(), both.java.files(both.metadata)
    snapshot = table.metadata.current
    assert snapshot is not None
    entries = [
        entry
        for manifest in table.walk.manifests(snapshot)
        for entry in table.walk.entries(manifest)
    ]
    found = {live.location: _sha256(live.key_metadata) for live in entries}
    assert found == {file["path"]: file["key"]["sha256"] for file in reported["files"]}
    manifests = {
        manifest.location: _sha256(manifest.key_metadata)
        for manifest in table.walk.manifests(snapshot)
    }
    assert manifests == {
        manifest["path"]: manifest["key"]["sha256"] for manifest in reported["manifests"]
    }
    of_list = table.walk.list_keys(snapshot)
    assert of_list is not None
    assert _sha256(of_list.encode()) == reported["key"]["sha256"]
    # Java gives the length in all of them, those of Parquet files included.
    for file in reported["files"]:
        assert file["key"]["file_length"] == file["size"]
    for manifest in reported["manifests"]:
        assert manifest["key"]["file_length"] == manifest["length"]


def _sha256(data: bytes | None) -> str:
    assert data is not None
    return hashlib.sha256(data).hexdigest()


def test_the_files_are_those_that_java_lists(both: Both) -> None:
    both.create(PEOPLE, spec=PARTITIONED["identity"])
    both.commit(append(*range(9)), append(9, format="avro"), delete(4))
    rows = both.table().files().to_pylist()
    reported = both.java.files(both.metadata)
    ours = {row["location"]: row for row in rows}
    assert len(ours) == len(rows) == 1 + len(reported["manifests"]) + len(reported["files"])
    for file in reported["files"]:
        row = ours[file["path"]]
        assert (row["bytes"], row["records"]) == (file["size"], file["records"])
        assert (row["file_format"], row["manifest"]) == (file["format"], file["manifest"])
        assert row["sequence_number"] == file["sequence_number"]
    assert all(row["encrypted"] for row in rows)


def test_another_master_key_does_not_open_it(both: Both) -> None:
    """Java says that the tag is wrong, so do we; nothing is guessed."""
    both.create(PEOPLE).commit(append(1))
    document = json.loads(both.metadata.read_text())
    document["properties"]["encryption.key-id"] = "keyB"
    for key in document["encryption-keys"]:
        if key["encrypted-by-id"] == "keyA":
            key["encrypted-by-id"] = "keyB"
    both.metadata.write_text(json.dumps(document))
    with pytest.raises(JavaError, match="not wrapped by the master key keyB"):
        both.java.read(both.metadata)
    with pytest.raises(ModcryptError):
        both.table().scan().to_arrow()


def test_plaintext_from_before_a_table_was_encrypted(both: Both) -> None:
    """Java lets a key id be set later, and reads on; modcrypt has to be asked to."""
    both.create(PEOPLE, properties={"encryption.key-id": None}).commit(append(1, 2))
    both.commit({"do": "set", "properties": {"encryption.key-id": "keyA"}}, append(3), delete(2))
    rows = both.java.read(both.metadata)
    assert ids(rows) == [1, 3]
    with pytest.raises(PlaintextError, match="no key metadata"):
        both.table().scan().to_arrow()
    lenient = open_table(both.metadata, both.kms, require_encrypted=False)
    assert plain_rows(lenient.scan()) == rows


Damage: TypeAlias = Callable[[bytes], bytes]


@each_case("kind", ["manifest list", "manifest", "data", "deletion vector"])
@each_case(
    "damage", [lambda data: data[:-1], lambda data: data[:20] + bytes((data[20] ^ 1,)) + data[21:]]
)
def test_damage_that_java_refuses(both: Both, kind: str, damage: Damage) -> None:
    both.create(PEOPLE).commit(append(1, 2, format="avro"), delete(2))
    files = both.table().files().to_pylist()
    path = Path(next(row["location"] for row in files if row["kind"] == kind))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(JavaError):
        both.java.read(both.metadata)
    with pytest.raises(ModcryptError):
        both.table().scan().to_arrow()
