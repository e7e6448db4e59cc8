"""Tables in catalogs of pyiceberg: found by name, changed by compare-and-swap."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    encrypt_table,
    expire_history,
    load_table,
    open_table,
    prune_keys,
    rotate_table,
    set_policy,
)
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
from modcrypt.iceberg.tables.pointers import Pointed
from modcrypt.iceberg.tables.sql_pointer import SqlPointer
from modcrypt.iceberg.write.commit import commit
from modcrypt.io import stores
from tests.support.iceberg.catalog_tables import append_in_processes
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.made_tables import SCHEMA, make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows


def sqlite(folder: Path) -> SqlCatalog:
    return SqlCatalog(
        "test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = sqlite(tmp_path)
    made.create_namespace("shop")
    yield made
    made.close()


@pytest.fixture
def table(catalog: SqlCatalog) -> IcebergTable:
    return make_table(None, catalog=catalog, identifier="shop.orders")


def catalog_rows(folder: Path) -> list[tuple[str, str, str | None]]:
    """Read the catalog's rows without SQLAlchemy."""
    with sqlite3.connect(folder / "catalog.db") as connection:
        return connection.execute(
            "select table_name, metadata_location, previous_metadata_location from iceberg_tables"
        ).fetchall()


def test_rows_through_a_catalog(
    java: Judge, catalog: SqlCatalog, table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    first = table.place
    done = table.append(rows(1, 2))
    done = load_table(catalog, ("shop", "orders"), kms).append(rows(3))
    assert done.scan().sort_by("id").to_pydict() == {"id": [1, 2, 3]}
    assert [row["id"] for row in java.read(done.place.path)] == [1, 2, 3]
    ((name, location, previous),) = catalog_rows(tmp_path)
    assert name == "orders"
    assert location == f"file://{done.place.path}"
    assert previous is not None
    log = [entry["metadata-file"] for entry in done.metadata.document["metadata-log"]]
    assert log == [f"file://{first.path}", previous]
    names = sorted(path.name[:6] for path in Path(done.place.path).parent.glob("*.json"))
    assert names == ["00000-", "00001-", "00002-"]
    assert catalog.load_table("shop.orders").metadata.current_snapshot() is not None


def test_a_catalog_in_memory_is_a_sql_catalog(tmp_path: Path) -> None:
    memory = InMemoryCatalog("memory", warehouse=f"file://{tmp_path}/w")
    memory.create_namespace("shop")
    table = make_table(None, catalog=memory, identifier="shop.orders")
    assert table.append(rows(1)).scan().num_rows == 1
    memory.close()


def test_expectations(catalog: SqlCatalog, table: IcebergTable, kms: SampleKms) -> None:
    with pytest.raises(ValueError, match=r"the catalog has no table shop\.nothing"):
        load_table(catalog, "shop.nothing", kms)
    other = SqlCatalog("other", uri=str(catalog.engine.url))
    with pytest.raises(
        ValueError, match=rf"shop\.orders, but .* in the catalog {catalog.name}, not"
    ):
        load_table(other, "shop.orders", kms)
    other.close()
    with pytest.raises(IntegrityError, match="an older state"):
        load_table(catalog, "shop.orders", kms, at_least=1)
    with pytest.raises(IntegrityError, match="none of those expected"):
        load_table(catalog, "shop.orders", kms, master_key_ids=["keyB"])
    catalog.create_table("shop.plain", SCHEMA).append(rows(4))
    with pytest.raises(PlaintextError, match=r"no encryption\.key-id"):
        load_table(catalog, "shop.plain", kms)
    plain = load_table(catalog, "shop.plain", kms, require_encrypted=False)
    assert plain.scan().to_pydict() == {"id": [4]}


@pytest.mark.parametrize(
    "location",
    [
        "hdfs://nowhere.invalid:8020/t/metadata/1.metadata.json", "viewfs://a/1.metadata.json",
        "http://nowhere.invalid/t/metadata/1.metadata.json", "simplecache::file:///etc/passwd",
        "dbfs:/t/1.metadata.json", "unknown://a/1.metadata.json", "s3://", "file:x", "/t/\0",
    ],
)  # fmt: skip
def test_no_other_address_is_contacted_because_a_catalog_names_it(
    location: str, table: IcebergTable, catalog: SqlCatalog, kms: SampleKms, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute("update iceberg_tables set metadata_location = ?", (location,))

    def contact(url: str) -> None:
        raise AssertionError(url)

    monkeypatch.setattr(stores, "_locate_url", contact)
    with pytest.raises(FormatError, match=r"shop\.orders: the catalog names"):
        load_table(catalog, "shop.orders", kms)
    with pytest.raises(FormatError, match=r"shop\.orders: the catalog names"):
        table.append(rows(1))


def test_a_location_map_applies_to_any_address(
    table: IcebergTable, catalog: SqlCatalog, kms: SampleKms, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute(
            "update iceberg_tables set metadata_location = "
            "replace(metadata_location, 'file://', 'hdfs://nowhere.invalid')"
        )
    found = load_table(
        catalog, "shop.orders", kms, location_map={"hdfs://nowhere.invalid": "file:///"}
    )
    assert found.append(rows(1)).scan().num_rows == 1


@pytest.mark.parametrize("parameters", [None, {}, {"table_type": None}, {"table_type": "VIEW"}])
def test_another_table_of_a_metastore(
    parameters: dict[str, Any] | None, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hive_metastore.ttypes import Table
    from pyiceberg.catalog.hive import HiveCatalog

    from modcrypt.iceberg.tables.hive_pointer import HivePointer

    metastore = Mock()
    metastore.get_table.return_value = Table(parameters=parameters)
    monkeypatch.setattr(HivePointer, "_connect", lambda _: nullcontext(metastore))
    catalog = HiveCatalog("hive", uri="thrift://nowhere.invalid:9083")
    with pytest.raises(ValueError, match=r"shop\.orders is not an Iceberg table"):
        load_table(catalog, "shop.orders", kms)


def test_a_conflict_is_not_overwritten(table: IcebergTable, tmp_path: Path) -> None:
    other = table.append(rows(1))
    with pytest.raises(CommitConflictError, match="names another version now"):
        table.versions.commit(table.place, table.metadata)
    assert catalog_rows(tmp_path)[0][1].endswith(other.place.name)
    assert len(list(Path(table.place.path).parent.glob("*.json"))) == 2


def test_of_two_that_look_at_once_one_succeeds(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is looked at, and changed by somebody else before we change it."""
    real, seen = SqlPointer.find, Pointed(f"file://{table.place.path}")
    other = table.append(rows(1))

    def find(self: SqlPointer) -> Pointed | None:
        monkeypatch.setattr(SqlPointer, "find", real)
        return seen

    monkeypatch.setattr(SqlPointer, "find", find)
    before = set(Path(table.place.path).parent.iterdir())
    with pytest.raises(CommitConflictError):
        table.versions.commit(table.place, table.metadata)
    assert table.refreshed().place == other.place
    assert set(Path(table.place.path).parent.iterdir()) == before


def test_a_commit_after_somebody_elses_has_both(table: IcebergTable) -> None:
    done = with_rival_commits(table, lambda: table.append(rows(1)), 1).append(rows(2))
    assert done.scan().sort_by("id").to_pydict() == {"id": [1, 2]}


def test_two_processes_append_at_once(table: IcebergTable, kms: SampleKms, tmp_path: Path) -> None:
    append_in_processes(lambda rows: load_table(sqlite(tmp_path), "shop.orders", kms).append(rows))
    done = table.refreshed()
    assert sorted(done.scan().column(0).to_pylist()) == [*range(5), *range(100, 105)]
    assert len(done.metadata.snapshots) == 10
    assert len(list(Path(done.place.path).parent.glob("*.json"))) == 11  # no lost one is left


def test_a_database_that_is_locked_is_an_error_of_the_file_system(
    table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    done = table.append(rows(1))
    impatient = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/catalog.db?timeout=0.05",
        warehouse=f"file://{tmp_path}/warehouse",
    )  # fmt: skip
    busy = load_table(impatient, "shop.orders", kms)
    with sqlite3.connect(tmp_path / "catalog.db", isolation_level=None) as connection:
        connection.execute("begin immediate")
        with pytest.raises(OSError, match="the catalog's database failed: OperationalError"):
            busy.append(rows(2))
        connection.execute("rollback")
    assert table.refreshed().place == done.place
    assert table.refreshed().scan().num_rows == 1
    assert busy.append(rows(2)).scan().num_rows == 2
    impatient.close()


def test_nothing_is_imported_that_the_table_names(
    catalog: SqlCatalog, table: IcebergTable, kms: SampleKms
) -> None:
    """pyiceberg's own load_table does that."""
    commit(
        table,
        lambda latest: latest.metadata.with_members(
            properties={**latest.metadata.properties, "py-io-impl": "antigravity.FileIO"}
        ),
    )
    assert load_table(catalog, "shop.orders", kms).append(rows(1)).scan().num_rows == 1
    assert "antigravity" not in sys.modules


class OtherCatalog:
    """A catalog of another kind, which says where metadata is."""

    name = "other"

    def __init__(self, location: str) -> None:
        self.location = location

    def load_table(self, identifier: Any) -> Any:
        if identifier != "shop.orders":
            raise NoSuchTableError
        return type("Loaded", (), {"metadata_location": self.location})()


def test_other_catalogs_are_read_but_not_changed(table: IcebergTable, kms: SampleKms) -> None:
    done = table.append(rows(1))
    assert not issubclass(OtherCatalog, MetastoreCatalog)
    other = OtherCatalog(done.place.path)
    found = load_table(other, "shop.orders", kms)
    assert found.scan().num_rows == 1
    with pytest.raises(UnsupportedFormatError, match="tables of a OtherCatalog cannot be changed"):
        found.append(rows(2))
    with pytest.raises(ValueError, match=r"no table shop\.other"):
        load_table(other, "shop.other", kms)
    assert table.refreshed().scan().num_rows == 1


def test_a_table_that_was_moved(
    catalog: SqlCatalog, table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    table.append(rows(1))
    moved = tmp_path / "moved"
    os.rename(tmp_path / "warehouse" / "shop" / "orders", moved)
    found = load_table(catalog, "shop.orders", kms, location_map={table.metadata.location: moved})
    done = found.append(rows(2))
    assert done.scan().num_rows == 2
    assert done.place.path.startswith(str(moved))
    assert catalog_rows(tmp_path)[0][1].startswith(f"{table.metadata.location}/metadata/00002-")


def test_a_dropped_table_is_not_written_to(catalog: SqlCatalog, table: IcebergTable) -> None:
    catalog.drop_table("shop.orders")
    with pytest.raises(ValueError, match=r"no table shop\.orders"):
        table.append(rows(1))
    catalog.create_table("shop.orders", SCHEMA)
    with pytest.raises(IntegrityError, match="this is the metadata of another table"):
        table.append(rows(1))


# --- a table of a folder that a catalog takes over -----------------------------------------------


@pytest.fixture
def registered_table(catalog: SqlCatalog, tmp_path: Path) -> IcebergTable:
    """Make a table in a folder, and register it in a catalog as it is then."""
    made = make_table(tmp_path / "t").append(rows(1))
    catalog.register_table("shop.taken", made.place.path)
    return made


def test_a_table_that_a_catalog_has_gone_on_with_is_refused_in_its_folder(
    catalog: SqlCatalog, registered_table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    """A rotation and an expiry there would delete the files of the catalog's table."""
    here = open_table(registered_table.place.path, kms)
    load_table(catalog, "shop.taken", kms).append(rows(2))
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    uses: list[Callable[[], object]] = [
        lambda: open_table(tmp_path / "t", kms),
        lambda: encrypt_table(tmp_path / "t", tmp_path / "u", kms, master_key_id="keyA"),
    ]
    for old in (registered_table, here, open_table(registered_table.place.path, kms)):
        assert old.scan().num_rows == 1
        uses += [
            old.refreshed,
            partial(old.append, rows(3)),
            partial(rotate_table, old, "mek"),
            partial(rotate_table, old, "kek"),
            partial(rotate_table, old, "dek"),
            partial(prune_keys, old),
            partial(set_policy, old, KeyPolicy(kek_per="day")),
            partial(expire_history, old),
        ]
    for use in uses:
        with pytest.raises(FormatError, match=r"a catalog has continued .* load_table"):
            use()
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == before
    table = load_table(catalog, "shop.taken", kms)
    table = expire_history(rotate_table(table, "dek").table).table
    assert ids(table) == [1, 2]


@pytest.mark.parametrize("key", ["mek", "kek"])
def test_a_catalogs_version_without_a_new_snapshot_counts_too(
    catalog: SqlCatalog, registered_table: IcebergTable, kms: SampleKms, tmp_path: Path, key: Any
) -> None:
    rotate_table(load_table(catalog, "shop.taken", kms), key)
    for use in (registered_table.refreshed, partial(rotate_table, registered_table, "dek")):
        with pytest.raises(FormatError, match="a catalog has continued"):
            use()
    assert load_table(catalog, "shop.taken", kms).scan().num_rows == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fork_of_the_folder_and_the_catalog_is_refused_in_the_folder(
    catalog: SqlCatalog,
    registered_table: IcebergTable,
    kms: SampleKms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    """Engines that don't look at the folder let the catalog go on from a version before its newest.

    An expiry in the folder would delete what both versions share. Both may be of one millisecond.
    """
    if at_once:
        monkeypatch.setattr(time, "time", Mock(return_value=time.time() + 1))
    registered_table.append(rows(2))
    newest = (tmp_path / "t/metadata/v3.metadata.json").rename(tmp_path / "v3.metadata.json")
    load_table(catalog, "shop.taken", kms).append(rows(3))
    newest.rename(tmp_path / "t/metadata/v3.metadata.json")
    with pytest.raises(FormatError, match="a catalog has continued"):
        open_table(tmp_path / "t", kms)


def test_other_metadata_files_in_a_folder_are_no_catalogs_versions_of_its_table(
    registered_table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    """A copy of an older version, that of another table, and what is damaged."""
    other = make_table(tmp_path / "u")
    other = other.append(rows(1)).append(rows(2))
    data = Path(registered_table.place.path).read_bytes()
    for number, planted in enumerate((data, Path(other.place.path).read_bytes(), b"{}", b"")):
        (tmp_path / f"t/metadata/{number + 7:05}-{uuid.uuid4()}.metadata.json").write_bytes(planted)
    table = open_table(tmp_path / "t", kms).append(rows(2))
    assert expire_history(table).table.scan().num_rows == 2


def test_a_table_that_has_gone_on_in_its_folder_is_not_forked_by_the_catalog(
    catalog: SqlCatalog, registered_table: IcebergTable, kms: SampleKms
) -> None:
    table = load_table(catalog, "shop.taken", kms)
    newer = registered_table.append(rows(2))
    for use in (partial(table.append, rows(3)), partial(load_table, catalog, "shop.taken", kms)):
        with pytest.raises(FormatError, match=r"newer ones up to v3\.metadata\.json"):
            use()
    catalog.drop_table("shop.taken")
    catalog.register_table("shop.taken", newer.place.path)
    assert load_table(catalog, "shop.taken", kms).append(rows(3)).scan().num_rows == 3


def test_a_catalog_whose_version_the_folder_has_expired_names_the_newest_one(
    catalog: SqlCatalog, registered_table: IcebergTable, kms: SampleKms
) -> None:
    """Nothing on disk shows a registration, so this expiry deletes what the catalog's row names."""
    newest = expire_history(rotate_table(registered_table, "dek").table).table
    with pytest.raises(FormatError, match=f"newer ones up to {newest.place.name}: register that"):
        load_table(catalog, "shop.taken", kms)
    catalog.drop_table("shop.taken")
    catalog.register_table("shop.taken", newest.place.path)
    assert load_table(catalog, "shop.taken", kms).scan().num_rows == 1


def test_maintenance_by_the_catalog_deletes_nothing_that_the_folder_has_continued(
    catalog: SqlCatalog, registered_table: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    table = load_table(catalog, "shop.taken", kms)
    registered_table.append(rows(2))
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    uses: list[Callable[[], object]] = [
        partial(rotate_table, table, "dek"),
        partial(prune_keys, table),
        partial(expire_history, table),
    ]
    for use in uses:
        with pytest.raises(FormatError, match="newer ones up to"):
            use()
    after = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert before <= after
    assert open_table(tmp_path / "t", kms).scan().num_rows == 2


def test_a_table_that_is_dropped_during_a_commit_gets_no_files(
    table: IcebergTable, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CatalogVersions.commit

    def commit_late(*arguments: Any) -> Any:
        monkeypatch.setattr(CatalogVersions, "commit", real)
        catalog.drop_table("shop.orders")
        return real(*arguments)

    monkeypatch.setattr(CatalogVersions, "commit", commit_late)
    with pytest.raises(ValueError, match=r"the catalog has no table shop\.orders"):
        table.append(rows(1))
    folder = Path(table.place.path).parents[1]
    assert [path for path in folder.rglob("*") if path.is_file()] == [Path(table.place.path)]
