"""Where a table's files may be: what locations stand for, and what they can't lead to."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg.catalog.sql import SqlCatalog

from modcrypt.errors import FormatError
from modcrypt.iceberg import IcebergTable, expire_history, load_table, open_table, rotate_table
from modcrypt.iceberg.format.locations import Locations
from modcrypt.io.places import Place
from tests.support.cases import each_case
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

HERE = Place(None, "/tables/t")


def places(location: str, **mapped: str) -> Locations:
    return Locations.of(
        {name.replace("__", "://"): to for name, to in mapped.items()}, location, HERE
    )


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("wh://b/t/data/x.parquet", "/tables/t/data/x.parquet"),
        ("wh://b/t/x", "/tables/t/x"),
        ("wh://b/t/..x/a..b/.x", "/tables/t/..x/a..b/.x"),
        ("wh://b/t/a%2F..%2Fb", "/tables/t/a%2F..%2Fb"),  # nothing decodes it
        ("wh://b/t/a\\..\\b", "/tables/t/a\\..\\b"),
    ],
)
def test_a_location_of_the_table(location: str, path: str) -> None:
    for own in ("wh://b/t", "wh://b/t/", "wh://b/t//"):
        assert places(own).place(location).path == path


@each_case(
    "location",
    [
        "", "/", "wh://b/t", "wh://b/t/", "wh://b/t2/x", "wh://b/x", "/tables/t/x", "x",
        "wh://b/t/../x", "wh://b/t/a/../../x", "wh://b/t/./x", "wh://b/t/a//x", "wh://b/t//x",
        "wh://b/t/x/", "wh://b/t/x/..", "wh://b/t/a\x00b", "wh://b/t/..",
    ],
)  # fmt: skip
def test_a_location_that_leads_elsewhere(location: str) -> None:
    with pytest.raises(FormatError):
        places("wh://b/t").place(location)


def test_the_longest_prefix_counts() -> None:
    found = Locations.of({"wh://b": "/all", "wh://b/t/data": "/fast"}, "wh://b/t", HERE)
    assert found.place("wh://b/t/data/x").path == "/fast/x"
    assert found.place("wh://b/t/datax").path == "/tables/t/datax"
    assert found.place("wh://b/u/x").path == "/all/u/x"


def test_a_bare_scheme_may_be_mapped() -> None:
    found = Locations.of({"s3://": "/buckets"}, "wh://b/t", HERE)
    assert found.place("s3://bucket/x").path == "/buckets/bucket/x"
    assert found.location(Place(None, "/buckets/bucket/x")) == "s3://bucket/x"
    with pytest.raises(FormatError):
        found.place("s3:///etc/passwd")


@pytest.mark.parametrize("prefix", ["", "/", "//"])
def test_an_empty_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        Locations.of({prefix: "/x"}, "wh://b/t", HERE)
    with pytest.raises(FormatError, match="empty"):
        Locations.of({}, prefix, HERE)


def test_places_have_locations() -> None:
    found = places("wh://b/t")
    assert found.location(Place(None, "/tables/t/data/x")) == "wh://b/t/data/x"
    assert found.location(Place(None, "/tables/t2/data/x")) is None
    assert found.location(Place(LocalFileSystem(), "/tables/t/data/x")) is None


def test_two_spellings_of_a_location_have_one_key() -> None:
    found = Locations.of({"s3://b/t": "/tables/t", "x://": "/other"}, "s3a://b/t", HERE)
    assert found.key("s3://b/t/x") == found.key("s3a://b/t/x") != found.key("x://b/t/x")


# --- tables --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    builder = Builder(tmp_path / "t", struct(field(1, "id", "long")))
    rows = pa.table([[1, 2]], schema=arrow([(1, "id", pa.int64())]))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    builder.write()
    return builder.folder


def test_keys_of_files_in_known_folders_are_those_of_others() -> None:
    """Some are known by their folder, after another file in it."""
    mapped = {"s3://b/t": "/m", "s3://b/t/data/x": "/x", "file:/l": "/l", "s3://b/": "/b"}
    names = (
        "",
        ".",
        "..",
        "a",
        "x",
        "x/y",
        "a/b",
        "a/../b",
        "a\0",
        "a.parquet",
        "data/x",
        "data/y",
    )
    folders = ("s3://b", "s3://b/t", "s3://b/t/data", "file:/l", "file:///l", "/l", "file:", "/o")
    every = [f"{folder}/{name}" for folder in folders for name in names]
    shared = Locations({prefix: Place(None, path) for prefix, path in mapped.items()})
    for location in (*every, *reversed(every)):
        assert find_key(shared, location) == find_key(Locations(shared.folders), location), location


def find_key(locations: Locations, location: str) -> str:
    """Return the key of a location, or the text of the error."""
    try:
        return locations.key(location)
    except FormatError as error:
        return str(error)


def test_a_table_in_another_place_than_it_says(folder: Path, tmp_path: Path) -> None:
    moved = shutil.move(folder, tmp_path / "elsewhere")
    assert open_table(moved, SampleKms()).scan().num_rows == 2
    assert open_table(f"{moved}/metadata/v1.metadata.json", SampleKms()).scan().num_rows == 2


def test_an_altered_location_moves_no_file_that_the_caller_has_mapped(tmp_path: Path) -> None:
    """A delete file names its data file by another prefix; copies lie where they would be."""
    builder = Builder(tmp_path, struct(field(1, "id", "long")))
    data = builder.parquet("a.parquet", pa.table([[1, 2]], schema=arrow([(1, "id", pa.int64())])))
    named = arrow([(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())])
    positions = pa.table([["/old/data/a.parquet"], [1]], schema=named)
    deletes = builder.parquet("d.parquet", positions, content=1)
    builder.snapshot([builder.manifest([data]), builder.manifest([deletes], content=1)])
    location = builder.document["location"]
    builder.document["location"] = f"{location}/data"
    builder.write()
    for name in ("a.parquet", "d.parquet"):
        shutil.copy(tmp_path / "data" / name, tmp_path / name)
    folders = {location: str(tmp_path), "/old": str(tmp_path)}
    table = open_table(tmp_path, SampleKms(), location_map=folders)
    assert table.scan()["id"].to_pylist() == [1]


def test_a_metadata_json_away_from_its_table(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "away" / "x").mkdir(parents=True)
    path = shutil.move(folder / "metadata" / "v1.metadata.json", tmp_path / "away" / "x" / "m.json")
    with pytest.raises(FileNotFoundError):
        open_table(path, SampleKms()).scan().to_arrow()
    found = open_table(path, SampleKms(), location_map={"wh://bucket/orders": folder})
    assert found.scan().num_rows == 2


def test_a_metadata_json_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    made = make_table(tmp_path / "t", rows.schema).append(rows)
    monkeypatch.chdir(tmp_path / "t" / "metadata")
    assert open_table(made.place.name, SampleKms()).append(rows).scan().num_rows == 2


def test_tables_of_other_file_systems(folder: Path) -> None:
    import fsspec

    inside = SubTreeFileSystem(str(folder), LocalFileSystem())
    table = open_table("metadata/v1.metadata.json", SampleKms(), filesystem=inside)
    assert table.scan().num_rows == 2
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/warehouse/t", recursive=True)
    assert open_table("/warehouse/t", SampleKms(), filesystem=memory).scan().num_rows == 2
    assert open_table("memory://warehouse/t", SampleKms()).scan().num_rows == 2
    memory.rm("/warehouse", recursive=True)


def test_symbolic_links_are_the_owners_business(folder: Path, tmp_path: Path) -> None:
    moved = shutil.move(folder / "data", tmp_path / "disk2")
    os.symlink(moved, folder / "data")
    os.symlink(folder, tmp_path / "link")
    assert open_table(tmp_path / "link", SampleKms()).scan().num_rows == 2


# --- links below the table's folder --------------------------------------------------------------

ROWS = pa.table({"id": [1]})


@pytest.fixture
def linked_table(tmp_path: Path) -> Path:
    """A table, reached by the caller's own link, whose `data` was moved and linked to."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "mounted").symlink_to("disk")
    table = tmp_path / "mounted" / "t"
    make_table(table, ROWS.schema).append(ROWS).append(ROWS)
    shutil.move(table / "data", tmp_path / "data")
    (table / "data").symlink_to(tmp_path / "data")
    return table


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


CHANGES: dict[str, Callable[[IcebergTable], object]] = {
    "append": lambda table: table.append(ROWS),
    "dek": lambda table: rotate_table(table, "dek"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_file_is_written_through_a_link(
    linked_table: Path, tmp_path: Path, change: Callable[[IcebergTable], object]
) -> None:
    before = names(tmp_path / "data"), names(linked_table / "metadata")
    with pytest.raises(OSError, match="symbolic link below"):
        change(open_table(linked_table, SampleKms()))
    assert (names(tmp_path / "data"), names(linked_table / "metadata")) == before
    assert open_table(linked_table, SampleKms()).scan().num_rows == 2


def test_who_moved_a_folder_says_where_it_is(linked_table: Path, tmp_path: Path) -> None:
    table = open_table(linked_table, SampleKms())
    where = {f"{table.metadata.location}/data": tmp_path / "data"}
    table = open_table(linked_table, SampleKms(), location_map=where)
    table = rotate_table(table.append(ROWS), "dek").table
    assert len(names(tmp_path / "data")) == 6
    assert expire_history(table).left == ()
    assert len(names(tmp_path / "data")) == 3
    assert open_table(linked_table, SampleKms()).scan().num_rows == 3


@pytest.mark.parametrize("folder", ["data", "metadata"])
def test_no_file_is_deleted_through_a_link(tmp_path: Path, folder: str) -> None:
    table = make_table(tmp_path / "t", ROWS.schema)
    table = rotate_table(table.append(ROWS), "dek").table
    planned = expire_history(table, dry_run=True)
    shutil.move(tmp_path / "t" / folder, tmp_path / folder)
    (tmp_path / "t" / folder).symlink_to(tmp_path / folder)
    before = names(tmp_path / folder)
    table = open_table(tmp_path / "t", SampleKms())
    if folder == "data":
        assert set(planned.data_files) < set(expire_history(table).left)
    else:
        with pytest.raises(OSError, match="symbolic link below"):
            expire_history(table)
    assert names(tmp_path / folder) == before


def test_a_catalogs_table_is_not_continued_through_a_link(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    make_table(tmp_path / "t", ROWS.schema, catalog=catalog, identifier="n.t").append(ROWS)
    shutil.move(tmp_path / "t" / "metadata", tmp_path / "metadata")
    (tmp_path / "t" / "metadata").symlink_to(tmp_path / "metadata")
    before, table = names(tmp_path / "metadata"), load_table(catalog, "n.t", SampleKms())
    for change in (lambda: table.append(ROWS), lambda: rotate_table(table, "mek")):
        with pytest.raises(OSError, match="symbolic link below"):
            change()
    assert names(tmp_path / "metadata") == before
    assert load_table(catalog, "n.t", SampleKms()).scan().num_rows == 1


# --- locations of local files --------------------------------------------------------------------


@each_case("own", ["/wh/t", "file:/wh/t", "file:///wh/t", "file:///wh/t/"])
@each_case("location", ["/wh/t/data/x", "file:/wh/t/data/x", "file:///wh/t/data/x"])
def test_a_local_folder_has_three_spellings(own: str, location: str) -> None:
    """Hadoop, Hive and Spark write `file:/x`, Python `file:///x`."""
    assert places(own).place(location).path == "/tables/t/data/x"
    assert places("wh://b/t", **{own: "/here"}).place(location).path == "/here/data/x"
    assert places(own).location(Place(None, "/tables/t/data/x")) == f"{own.rstrip('/')}/data/x"


@each_case(
    "location",
    ["file:/wh/t/../x", "file:/wh/t2/x", "file://wh/t/x", "file:////wh/t/x", "file:wh/t/x",
     "file:/wh/t//x", "file:/wh/t", "wh/t/x"],
)  # fmt: skip
def test_a_local_location_that_leads_elsewhere(location: str) -> None:
    for own in ("/wh/t", "file:/wh/t", "file:///wh/t"):
        with pytest.raises(FormatError):
            places(own).place(location)


@pytest.mark.parametrize("start", ["", "file:", "file://"])
def test_tables_are_created_and_opened_by_each_spelling(tmp_path: Path, start: str) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    where, kms = f"{start}{tmp_path}/t", SampleKms()
    make_table(where, rows.schema, location=where).append(rows)
    for other in ("", "file:", "file://"):
        assert open_table(f"{other}{tmp_path}/t", kms).scan().num_rows == 3
    moved = shutil.move(tmp_path / "t", tmp_path / "moved")
    for other in ("", "file:", "file://"):
        for to in ("", "file:", "file://"):
            given = {f"{other}{tmp_path}/t": f"{to}{moved}"}
            assert open_table(moved, kms, location_map=given).scan().num_rows == 3


@pytest.mark.parametrize("start", ["file:", "file://"])
@pytest.mark.parametrize("filesystem", [None, LocalFileSystem()])
def test_a_catalog_names_local_files_by_each_spelling(
    tmp_path: Path, start: str, filesystem: object
) -> None:
    rows, kms = pa.table({"id": [1, 2, 3]}), SampleKms()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("test", uri=uri, warehouse=f"{start}{tmp_path}/warehouse")
    catalog.create_namespace("n")
    make_table(None, rows.schema, catalog=catalog, identifier="n.t").append(rows)
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        ((location,),) = connection.execute("select metadata_location from iceberg_tables")
        assert location.startswith(f"{start}{tmp_path}/warehouse/n/t/metadata/")
    table = load_table(catalog, "n.t", kms, filesystem=filesystem)
    assert table.append(rows).scan().num_rows == 6
    catalog.close()
