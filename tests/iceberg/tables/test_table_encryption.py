"""Tables in plaintext, of pyiceberg and of Java, made into encrypted ones: the same rows again."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform
from pyiceberg.types import LongType

from modcrypt.errors import FormatError, TruncationError, UnsupportedFormatError
from modcrypt.iceberg import KeyPolicy, encrypt_table, open_table, verify_table
from modcrypt.iceberg.write.moved_deletes import move_deletes
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg import by_hand
from tests.support.iceberg.builder import Builder, field, struct
from tests.support.iceberg.built_tables import arrow_schema, ids, position_deletes
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.java_tables import schema
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.tables import small_table

ROWS = small_table(50)
SCHEMA = schema(("id", "long"), ("name", "string"))
IDS = struct(field(1, "id", "long"))
JAVAS = [{"id": n, "name": f"n{n}"} for n in range(20)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    folder = tmp_path_factory.mktemp("catalog")
    made = SqlCatalog(
        "test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    made.create_namespace("shop")
    yield made
    made.close()


@pytest.fixture(scope="module", params=["1", "2"])
def plain_table(request: pytest.FixtureRequest, catalog: SqlCatalog) -> Table:
    """A table of each version that is in plaintext; no test changes it."""
    return create_by_pyiceberg(catalog, request.param)


@pytest.fixture(scope="module")
def source(catalog: SqlCatalog) -> Table:
    return create_by_pyiceberg(catalog, "2")


def create_by_pyiceberg(catalog: SqlCatalog, version: str) -> Table:
    """Write snapshots, a partition spec that changes, a schema that does, and deletes."""
    name = f"shop.orders{version}"
    if catalog.table_exists(name):
        return catalog.load_table(name)
    table = catalog.create_table(name, ROWS.schema, properties={"format-version": version})
    table.append(ROWS)
    with table.update_spec() as spec:
        spec.add_field("day", MonthTransform(), "month")
        spec.add_field("id", BucketTransform(2), "id bucket")
        spec.add_identity("flag")
    table.append(ROWS.slice(0, 10))
    with table.update_schema() as schema:
        schema.add_column("extra", LongType())
        schema.rename_column("name", "called")
    table.delete("id < 5")
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "first").commit()
    return catalog.load_table(name)


def folder_of(source: Table) -> Path:
    return Path(source.location().removeprefix("file://"))


# --- tables of pyiceberg -------------------------------------------------------------------------


def test_each_snapshot_has_the_rows_that_pyiceberg_reads(
    java: Judge, plain_table: Table, kms: SampleKms, tmp_path: Path
) -> None:
    source = plain_table
    before = files(folder_of(source))
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    assert files(folder_of(source)) == before
    assert [snapshot.id for snapshot in table.metadata.snapshots] == [
        snapshot.snapshot_id for snapshot in source.metadata.snapshots
    ]
    for snapshot in source.metadata.snapshots:
        rows = plain_rows(source.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert java.read(table.place.path, snapshot=snapshot.snapshot_id) == rows
        assert plain_rows(table.scan(snapshot.snapshot_id)) == rows
    assert plain_rows(table.scan("first")) == plain_rows(ROWS)
    found = java.snapshots(table.place.path)
    assert found["refs"].keys() == {"main", "first"}
    assert found["current"] == source.metadata.current_snapshot_id
    document, old = table.metadata.document, json.loads(source.metadata.model_dump_json())
    assert document["format-version"] == 3
    assert document["table-uuid"] != old["table-uuid"]
    assert document["snapshot-log"] == old["snapshot-log"]
    assert [schema["fields"] for schema in document["schemas"]] == [
        schema["fields"] for schema in old["schemas"]
    ]
    assert document["metadata-log"] == []


def test_the_current_snapshot_alone(
    java: Judge, source: Table, kms: SampleKms, tmp_path: Path
) -> None:
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA")
    rows = plain_rows(source.scan().to_arrow())
    assert java.read(table.place.path) == plain_rows(table.scan()) == rows
    found = java.snapshots(table.place.path)
    assert [snapshot["id"] for snapshot in found["snapshots"]] == [
        source.metadata.current_snapshot_id
    ]
    assert found["refs"].keys() == {"main"}
    live = [Path(task.file.file_path).parent.name for task in source.scan().plan_files()]
    there = [path.parent.name for path in (tmp_path / "t" / "data").rglob("*.parquet")]
    assert sorted(there) == sorted(live)  # in the folders of their partitions


def test_the_last_second_of_a_day_before_1970_is_found(
    catalog: SqlCatalog, kms: SampleKms, tmp_path: Path
) -> None:
    """pyiceberg 0.12 puts it into the next day's partition, and does not find it itself."""
    last = datetime.datetime(1969, 12, 30, 23, 59, 59, 500_000)
    times = [last - datetime.timedelta(seconds=1), last, last + datetime.timedelta(days=40_000)]
    rows = pa.table({"at": times})
    plain = catalog.create_table("shop.days", rows.schema)
    with plain.update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    for number in range(3):  # a manifest each
        plain.append(rows.slice(number, 1))
    table = encrypt_table(plain, tmp_path / "t", kms, master_key_id="keyA")
    for time in times:
        assert table.scan(filters=f"at = '{time.isoformat()}'")["at"].to_pylist() == [time]
    assert table.delete("at < '1969-12-31T00:00:00'").scan().num_rows == 1


def test_what_is_written_is_encrypted(source: Table, kms: SampleKms, tmp_path: Path) -> None:
    """By hand: manifests and lists are AGS1, data is PME, and no value is in any file."""
    encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    found = by_hand.open_table(tmp_path / "t")
    live = [
        entry["data_file"] for several in found.entries for entry in several if entry["status"] != 2
    ]
    assert sum(by_hand.pyarrow_rows(file).num_rows for file in live) == (
        source.scan().to_arrow().num_rows
    )
    secrets = [by_hand.parse_key_metadata(file["key_metadata"]).key for file in found.files]
    for name, data in files(tmp_path / "t").items():
        if name.startswith("data/"):
            assert data[:4] == data[-4:] == b"PARE"
        elif name.endswith(".avro"):
            assert data[:4] == b"AGS1"
        assert b"name-" not in data
        assert not any(secret in data for secret in secrets)
    assert len(set(secrets)) == len(secrets)


def test_a_table_without_rows(catalog: SqlCatalog, kms: SampleKms, tmp_path: Path) -> None:
    source = catalog.create_table("shop.empty", ROWS.schema)
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    assert table.scan().num_rows == 0
    assert kms.calls == [("wrap", "keyA"), ("unwrap", "keyA")]  # on trial
    assert table.append(ROWS).scan().num_rows == 50


def test_into_the_catalog_under_another_name(
    catalog: SqlCatalog, source: Table, kms: SampleKms, tmp_path: Path
) -> None:
    table = encrypt_table(
        source, None, kms, master_key_id="keyA", catalog=catalog, identifier="shop.sealed",
        properties={"note": "yes"}, key_length=24,
    )  # fmt: skip
    assert table.metadata.location.endswith("/warehouse/shop/sealed")
    assert table.metadata.properties["note"] == "yes"
    assert table.metadata.key_length == 24
    rows = source.scan().to_arrow()
    assert plain_rows(table.scan()) == plain_rows(rows)
    done = table.append(rows.slice(0, 1))
    assert done.scan().num_rows == rows.num_rows + 1
    with pytest.raises(FileExistsError, match=r"already has a table shop\.sealed"):
        encrypt_table(
            source, tmp_path / "t", kms, master_key_id="keyA", catalog=catalog,
            identifier="shop.sealed",
        )  # fmt: skip
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("kek_per", ["partition", "files"])
def test_keys_as_the_policy_has_them(
    source: Table, kms: SampleKms, tmp_path: Path, kek_per: Any
) -> None:
    policy = KeyPolicy(kek_per=kek_per, files=3)
    table = encrypt_table(
        source, tmp_path / "t", kms, master_key_id="keyA", policy=policy, history=True
    )
    assert plain_rows(table.scan()) == plain_rows(source.scan().to_arrow())
    kinds = [key["kind"] for key in table.keys().to_pylist()]
    assert kinds.count("KEK") > 2
    assert kinds.count("manifest list") == len(table.metadata.snapshots)


# --- tables of Java ------------------------------------------------------------------------------


def create_by_java(java: Judge, folder: Path, version: str, file_format: str = "parquet") -> Path:
    """Write deletes: files of positions in version 2, vectors that share a file in version 3."""
    made = java.create(
        folder,
        SCHEMA,
        properties={"format-version": version, "encryption.key-id": None},
    )
    return java.commit(
        made,
        {"do": "append", "rows": JAVAS, "format": file_format},
        {"do": "append", "rows": JAVAS[:5]},
        {"do": "delete", "column": "id", "values": [3, 17]},
        {"do": "spec", "add": [["id", "bucket", 4]]},
        {"do": "append", "rows": JAVAS[:8]},
        {"do": "delete", "column": "id", "values": [1, 2]},
    )


@pytest.mark.parametrize(
    ("version", "form", "history"),
    [
        ("2", "parquet", True),
        ("3", "avro", True),
        pytest.param("2", "avro", False, marks=pytest.mark.slow),
        pytest.param("3", "parquet", False, marks=pytest.mark.slow),
    ],
)
def test_deletes_apply_to_the_files_that_have_moved(
    java: Judge, kms: SampleKms, tmp_path: Path, version: str, form: str, history: bool
) -> None:
    source = create_by_java(java, tmp_path / "java", version, form)
    lineage = version == "3"  # which version 2 has none of
    snapshots = java.snapshots(source)["snapshots"]
    expected = {
        snapshot["id"]: java.read(source, snapshot=snapshot["id"], lineage=lineage)
        for snapshot in snapshots
    }
    before = files(tmp_path / "java")
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=history)
    assert files(tmp_path / "java") == before
    shutil.rmtree(tmp_path / "java")  # nothing of the copy is there
    assert len(table.metadata.snapshots) == (len(snapshots) if history else 1)
    for snapshot in table.metadata.snapshots:
        assert (
            java.read(table.place.path, snapshot=snapshot.id, lineage=lineage)
            == expected[snapshot.id]
        )
    current = [dict(row) for row in expected[snapshots[-1]["id"]]]
    for row in current:
        row.pop("_row_id", None)
        row.pop("_last_updated_sequence_number", None)
    assert plain_rows(table.scan()) == sorted(current, key=json.dumps)
    # Java goes on from it.
    done = java.commit(
        table.place.path,
        {"do": "append", "rows": JAVAS[:2]},
        {"do": "delete", "column": "id", "values": [0]},
        {"do": "compact"},
    )
    assert len(java.read(done)) == len(current) - 2


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_deletes_that_outlast_their_data_file(kms: SampleKms, tmp_path: Path, form: str) -> None:
    """A compaction leaves such deletes."""
    builder = Builder(tmp_path / "source", IDS, encrypted=False, version=2)
    rows = builder.parquet("a.parquet", pa.table({"id": [1, 2, 3]}, arrow_schema(IDS)))
    gone = rows["file_path"].replace("a.parquet", "gone.parquet")
    deletes = position_deletes(builder, "d", [(rows["file_path"], 1), (gone, 0)], form)
    builder.snapshot([builder.manifest([rows]), builder.manifest([deletes], content=1)])
    table = encrypt_table(builder.write(), tmp_path / "t", kms, master_key_id="keyA")
    assert ids(table.scan()) == [1, 3]


def test_columns_that_no_one_reads_are_encrypted(kms: SampleKms, tmp_path: Path) -> None:
    columns = struct(*IDS["fields"], field(2, "v", struct(field(3, "x", "variant"))))
    builder = Builder(tmp_path / "source", columns, encrypted=False)
    rows = builder.parquet("a.parquet", pa.table({"id": [1, 2]}, arrow_schema(IDS)))
    builder.snapshot([builder.manifest([rows])])
    table = encrypt_table(builder.write(), tmp_path / "t", kms, master_key_id="keyA")
    assert ids(table.scan(columns=["id"])) == [1, 2]
    assert table.metadata.document["schemas"] == builder.document["schemas"]


def test_row_ids_of_an_upgraded_table_stay_in_all_snapshots(
    java: Judge, kms: SampleKms, tmp_path: Path
) -> None:
    """A row has one id, in whichever snapshot and manifest it is met."""
    source = create_by_java(java, tmp_path / "java", "2")
    source = java.commit(source, {"do": "rewrite-manifests"}, {"do": "append", "rows": JAVAS[:1]})
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    ids: dict[str, int] = {}
    for snapshot in table.metadata.snapshots:
        found = java.files(table.place.path, snapshot=snapshot.id)["files"]
        data = [file for file in found if file["content"] == 0]
        taken: set[int] = set()
        for file in data:
            first = file["first_row_id"]
            assert ids.setdefault(file["path"], first) == first
            taken |= set(range(first, first + file["records"]))
        assert len(taken) == sum(file["records"] for file in data)
        assert max(taken) < table.metadata.document["next-row-id"]


def test_a_table_that_was_moved(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    source = create_by_java(java, tmp_path / "java", "2")
    rows = java.read(source)
    (tmp_path / "java").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "metadata" / source.name
    table = encrypt_table(moved, tmp_path / "t", kms, master_key_id="keyA")
    assert java.read(table.place.path) == rows
    other = {str(tmp_path / "java"): str(tmp_path / "moved")}
    by_map = encrypt_table(
        tmp_path / "moved", tmp_path / "u", kms, master_key_id="keyA", location_map=other
    )
    assert java.read(by_map.place.path) == rows


# --- what is refused -----------------------------------------------------------------------------


def test_a_table_that_is_encrypted_already(t16: Path, kms: SampleKms, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="already encrypted"):
        encrypt_table(t16, tmp_path / "t", kms, master_key_id="keyA")
    assert not (tmp_path / "t").exists()


def test_a_folder_with_a_table(source: Table, kms: SampleKms) -> None:
    before = files(folder_of(source))
    with pytest.raises(FileExistsError, match="this folder already has a table"):
        encrypt_table(source, folder_of(source), kms, master_key_id="keyA")
    assert files(folder_of(source)) == before


def test_files_in_orc(catalog: SqlCatalog, kms: SampleKms, tmp_path: Path) -> None:
    """Reported before anything is written."""
    source = catalog.create_table("shop.orc", pa.schema([("id", pa.int64())]))
    source.append(pa.table({"id": [1]}))
    (manifest,) = source.current_snapshot().manifests(source.io)  # type: ignore[union-attr]
    path = Path(manifest.manifest_path.removeprefix("file://"))
    header, rows = by_hand.avro(path.read_bytes())
    rows[0]["data_file"]["file_format"] = "ORC"
    rewrite(path, header, rows)
    fix_length(source, path)
    with pytest.raises(UnsupportedFormatError, match="does not encrypt files in ORC"):
        encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA")
    assert not (tmp_path / "t").exists()


def rewrite(path: Path, header: dict[str, str], rows: list[dict[str, Any]]) -> None:
    import fastavro

    reported = {k: v for k, v in header.items() if not k.startswith("avro.")}
    schema = fastavro.parse_schema(json.loads(header["avro.schema"]))
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, metadata=reported)


def fix_length(source: Table, manifest: Path) -> None:
    snapshot = source.current_snapshot()
    assert snapshot is not None
    path = Path(snapshot.manifest_list.removeprefix("file://"))
    header, rows = by_hand.avro(path.read_bytes())
    rows[0]["manifest_length"] = manifest.stat().st_size
    rewrite(path, header, rows)


def test_a_source_that_is_cut_short(catalog: SqlCatalog, kms: SampleKms, tmp_path: Path) -> None:
    source = catalog.create_table("shop.cut", pa.schema([("id", pa.int64())]))
    source.append(pa.table({"id": [1]}))
    path = next(folder_of(source).rglob("*.parquet"))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(TruncationError):
        encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    assert files(tmp_path / "t") == {}


def test_arguments(source: Table, kms: SampleKms, tmp_path: Path) -> None:
    for arguments, message in (
        ({"master_key_id": ""}, "master_key_id is empty"),
        ({"master_key_id": "keyA", "key_length": 7}, "key_length must be 16"),
        ({"master_key_id": "keyA", "identifier": "a.b"}, "catalog and identifier"),
    ):
        with pytest.raises(ValueError, match=message):
            encrypt_table(source, tmp_path / "t", kms, **arguments)
    assert not (tmp_path / "t").exists()


STEPS = {
    "a data file": ("write.new_files", "write_parquet", 3),
    "a manifest": ("write.manifest_writing", "write_ags1", 2),
    "the last list": ("write.manifest_writing", "write_ags1", 7),
    "the version": ("format.table_versions", "_create", 1),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_any_step_leaves_nothing(
    source: Table, kms: SampleKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    room, name, wanted = STEPS[step]
    module = import_module(f"modcrypt.iceberg.{room}")
    real, calls = getattr(module, name), []

    def write(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == wanted:
            raise OSError("the disk is full")
        return real(*arguments)

    monkeypatch.setattr(module, name, write)
    with pytest.raises(OSError, match="the disk is full"):
        encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    assert files(tmp_path / "t") == {}
    monkeypatch.undo()
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA", history=True)
    assert plain_rows(open_table(tmp_path / "t", kms).scan()) == plain_rows(table.scan())


def test_what_a_killed_copy_left_is_in_no_ones_way(
    source: Table, kms: SampleKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("modcrypt.iceberg.format.table_versions._create", die)
        patch.setattr("modcrypt.iceberg.write.new_files.NewFiles._remove", lambda *_: None)
        with pytest.raises(OSError, match="killed"):
            encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA")
    left = set(files(tmp_path / "t"))
    assert left
    table = encrypt_table(source, tmp_path / "t", kms, master_key_id="keyA")
    assert plain_rows(table.scan()) == plain_rows(source.scan().to_arrow())
    report = verify_table(table)
    assert {
        str(Path(orphan.path).relative_to(tmp_path / "t")) for orphan in report.orphans or ()
    } == left


# --- delete files --------------------------------------------------------------------------------


def test_position_deletes_are_renamed_and_sorted_again() -> None:
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "9"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "8"}),
    ]
    table = pa.table({"file_path": ["a", "a", "b", "c"], "pos": [1, 7, 0, 5]}, pa.schema(fields))
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    names = {"a": "z/a", "b": "k/b"}
    moved, bounds = move_deletes(
        out.getvalue().to_pybytes(), "PARQUET", lambda path: names.get(path, path), "x"
    )
    assert bounds == ("c", "z/a")
    with pq.ParquetFile(pa.BufferReader(moved)) as file:
        assert file.read().to_pydict() == {
            "file_path": ["c", "k/b", "z/a", "z/a"], "pos": [5, 0, 1, 7],
        }  # fmt: skip
        assert [field.metadata[b"PARQUET:field_id"] for field in file.schema_arrow] == [b"9", b"8"]


@each_case("file_format", ["PARQUET", "AVRO", "PUFFIN"])
@each_case("data", [b"", b"PFA1", b"PAR1" * 9, b"Obj\x01", b"PFA1" + bytes(40)])
def test_what_is_no_delete_file(file_format: str, data: bytes) -> None:
    with pytest.raises(FormatError):
        move_deletes(data, file_format, str, "x")


def puffin(footer: bytes, flags: bytes = bytes(4), blob: bytes = b"blob") -> bytes:
    start = b"PFA1" + blob + b"PFA1" + footer
    return start + len(footer).to_bytes(4, "little") + flags + b"PFA1"


def test_the_footer_of_a_puffin_file_is_rewritten_and_nothing_else() -> None:
    blobs = [
        {"type": "deletion-vector-v1", "offset": 4, "length": 4, "properties": {
            "referenced-data-file": "old", "cardinality": "2",
        }},
        {"type": "other", "offset": 4, "length": 0},
    ]  # fmt: skip
    data = puffin(json.dumps({"blobs": blobs, "properties": {"a": "b"}}).encode())
    moved, _ = move_deletes(data, "PUFFIN", lambda path: "a/longer/" + path, "x")
    assert moved[:12] == data[:12]
    assert moved[-8:] == data[-8:]
    size = int.from_bytes(moved[-12:-8], "little")
    footer = json.loads(moved[12:-12])
    assert len(moved) == 12 + size + 12
    blobs[0]["properties"]["referenced-data-file"] = "a/longer/old"  # type: ignore[index]
    assert footer == {"blobs": blobs, "properties": {"a": "b"}}


def test_footers_of_puffin_files_that_cannot_be_rewritten() -> None:
    with pytest.raises(UnsupportedFormatError, match="compressed footer"):
        move_deletes(puffin(b"{}", b"\1\0\0\0"), "PUFFIN", str, "x")
    for footer in (b"{}", b"[]", b'{"blobs": [1]}', b"{", b"[" * 100_000):
        with pytest.raises(FormatError, match="no blobs"):
            move_deletes(puffin(footer), "PUFFIN", str, "x")
    with pytest.raises(UnsupportedFormatError, match="delete files in ORC"):
        move_deletes(b"", "ORC", str, "x")
