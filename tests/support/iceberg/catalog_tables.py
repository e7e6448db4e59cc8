"""Tables of a catalog, named so that other processes find them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from modcrypt.errors import CommitConflictError
from modcrypt.iceberg import (
    IcebergTable,
    encrypt_table,
    expire_history,
    load_table,
    open_table,
    purge_table,
    remove_orphan_files,
    rotate_catalog,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.rotate.expiry import Expiry
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
from modcrypt.jobs import find_leaks
from tests.support.iceberg.concurrent_commits import (
    check_commits_between,
    check_orphans_of_a_commit,
)
from tests.support.iceberg.made_tables import SCHEMA, make_table
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.table_changes import ids, rows


@dataclass(frozen=True)
class CatalogTable:
    """A table of the catalog at a URI."""

    uri: str
    name: str

    @classmethod
    def make(cls, uri: str, schema: pa.Schema = SCHEMA, **options: Any) -> Self:
        """Make an encrypted table in a namespace of its own."""
        namespace = f"n{uuid.uuid4().hex}"
        made = cls(uri, f"{namespace}.orders")
        made.catalog.create_namespace(namespace)
        make_table(None, schema, catalog=made.catalog, identifier=made.name, **options)
        return made

    @property
    def catalog(self) -> Any:
        raise NotImplementedError

    def load(self, kms: Any = None, **options: Any) -> IcebergTable:
        return load_table(self.catalog, self.name, kms or SampleKms(), **options)

    def version(self) -> int:
        """The number of the current version."""
        return int(self.load(master_key_ids=list(MASTERS)).place.name[:5])

    def locks(self) -> list[Any]:
        return []


def check_purge(named: CatalogTable) -> None:
    """Purge a table with history; nothing of it stays in the catalog or its folder."""
    table = named.load().append(rows(1))
    table = rotate_table(table.append(rows(2)), "dek").table
    older, folder = table.place.name, Path(urlsplit(table.metadata.location).path)
    table = rotate_table(table, "kek").table
    planned = purge_table(table, dry_run=True)
    assert len(planned.deleted.data_files) == 4
    assert named.load().scan().num_rows == 2
    done = purge_table(named.load())
    assert (done.left, done.deleted.unreadable) == ((), ())
    assert done.deleted.data_files
    assert older not in {path.name for path in folder.rglob("*")}
    assert not [path for path in folder.rglob("*") if path.is_file()]
    with pytest.raises(ValueError, match="has no table"):
        named.load()
    make_table(None, catalog=named.catalog, identifier=named.name)
    assert named.load().scan().num_rows == 0
    assert named.locks() == []


def check_interrupted_purge(named: CatalogTable) -> None:
    """Interrupt a purge after the table was dropped, and resume it with its metadata.json."""
    table = named.load().append(rows(1))
    folder = Path(urlsplit(table.metadata.location).path)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expiry, "delete", stop)
        with pytest.raises(KeyboardInterrupt):
            purge_table(table)
    with pytest.raises(CommitConflictError):
        table.versions.commit(table.place, table.metadata)
    assert [path for path in folder.rglob("*.parquet") if path.is_file()]
    purge_table(open_table(table.place.path, SampleKms()), unregistered=True)
    assert not [path for path in folder.rglob("*") if path.is_file()]


def check_purge_before_the_drop(named: CatalogTable) -> None:
    """Interrupt a purge between its marker and the drop: the table is whole, the marker stale."""
    table = named.load().append(rows(1))
    folder = Path(urlsplit(table.metadata.location).path)
    _mark_only(table)
    (marker,) = folder.rglob("*.purge")
    assert find_leaks(folder).leaks == ()
    found = verify_table(named.load())
    assert [finding.word for finding in found.findings] == ["orphan"]
    assert "interrupted purge" in found.findings[0].message
    assert remove_orphan_files(named.load()).young == 1
    done = remove_orphan_files(named.load(), older_than_days=0)
    assert ([file.path for file in done.files], marker.exists()) == ([str(marker)], False)

    _mark_only(table)
    later = named.load().append(rows(1))
    assert later.scan().num_rows == 2
    with pytest.raises(ValueError, match="newer version"):
        purge_table(open_table(table.place.path, SampleKms()), unregistered=True)
    assert expire_history(named.load()).unreadable == ()
    _mark_only(named.load())
    assert named.load().scan().num_rows == 2
    assert len(list(folder.rglob("*.purge"))) == 2
    assert purge_table(named.load()).left == ()
    assert not [path for path in folder.rglob("*") if path.is_file()]


def _mark_only(table: IcebergTable) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CatalogVersions, "drop", stop)
        with pytest.raises(KeyboardInterrupt):
            purge_table(table)


def check_encryption(named: CatalogTable, folder: Path) -> None:
    """Encrypt a plaintext table of another catalog into the catalog of a table."""
    from pyiceberg.catalog.sql import SqlCatalog

    plain = SqlCatalog("plain", uri=f"sqlite:///{folder}/c.db", warehouse=str(folder))
    plain.create_namespace("n")
    source = plain.create_table("n.t", SCHEMA)
    source.append(rows(1, 2))
    copy = type(named)(named.uri, named.name.replace("orders", "copy"))
    encrypt_table(
        source, None, SampleKms(), master_key_id="keyA", catalog=named.catalog,
        identifier=copy.name,
    )  # fmt: skip
    added = copy.load().append(rows(3))
    assert ids(added) == [1, 2, 3]
    plain.close()


def check_rotation_of_namespace(table: CatalogTable) -> None:
    """Move all tables of a namespace to another master key; it has only the given table."""
    table.load().append(rows(1))
    namespace = table.name.split(".")[0]
    for result in ("rotated", "current"):
        (done,) = rotate_catalog(
            table.catalog, SampleKms(), namespace=namespace, new_master_key_id="keyB"
        )
        assert (done.table, done.result, done.master_key_id) == (table.name, result, "keyB")
    assert table.load().scan().equals(rows(1))


def append_often(append: Callable[[pa.Table], object], number: int) -> None:
    """Append five rows one by one, each as often as another commit comes first."""
    for step in range(5):
        while True:
            try:
                append(rows(number * 100 + step))
                break
            except CommitConflictError:
                continue


def append_in_processes(append: Callable[[pa.Table], object]) -> None:
    """Append at once in two forks: numbers from 0 and from 100."""
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            status = 1
            try:
                append_often(append, number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


CATALOG_CHECKS = (
    check_purge, check_interrupted_purge, check_purge_before_the_drop, check_rotation_of_namespace,
    check_orphans_of_a_commit, check_commits_between,
)  # fmt: skip
"""Checks of any table of a catalog that has just been made."""
