"""Rotations of the master keys of all tables of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from modcrypt.errors import KeyAccessDeniedError, PlaintextError
from modcrypt.iceberg import KeyPolicy, load_table, rotate_catalog, rotate_table
from modcrypt.iceberg.rotate import catalog_rotation
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.references import open_kms
from tests.support.iceberg.cli_runs import Run, error_line, lines, run
from tests.support.iceberg.made_tables import SCHEMA, make_table
from tests.support.iceberg.sample_kms import SampleKms

__all__ = ["run"]  # a fixture

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
NAMES = ("crm.people", "shop.orders", "shop.eu.orders")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    for namespace in ("crm", "shop", "shop.eu"):
        made.create_namespace(namespace)
    yield made
    made.close()


def fill(catalog: SqlCatalog, kms: Any, master_key_id: str) -> None:
    for name in NAMES:
        make_table(
            None, SCHEMA, kms, master_key_id=master_key_id, catalog=catalog, identifier=name
        ).append(ROWS)


def results(catalog: SqlCatalog, kms: Any, **options: Any) -> dict[str, str]:
    return {done.table: done.result for done in rotate_catalog(catalog, kms, **options)}


def test_all_tables_move_to_another_master_key(catalog: SqlCatalog, kms: SampleKms) -> None:
    fill(catalog, kms, "keyA")
    catalog.create_table("crm.plain", SCHEMA)
    dry = results(catalog, kms, new_master_key_id="keyB", dry_run=True)
    assert dry == {"crm.plain": "plaintext", **dict.fromkeys(NAMES, "rotated")}
    assert results(catalog, kms, new_master_key_id="keyB") == dry
    for name in NAMES:
        table = load_table(catalog, name, SampleKms())
        assert table.metadata.master_key_id == "keyB"
        assert table.scan().num_rows == 2
    again = results(catalog, kms, new_master_key_id="keyB")
    assert again == {"crm.plain": "plaintext", **dict.fromkeys(NAMES, "current")}


def test_one_namespace_with_those_in_it(catalog: SqlCatalog, kms: SampleKms) -> None:
    fill(catalog, kms, "keyA")
    done = results(catalog, kms, new_master_key_id="keyB", namespace="shop")
    assert done == {"shop.orders": "rotated", "shop.eu.orders": "rotated"}


def test_a_catalog_that_always_lists_all_namespaces(
    catalog: SqlCatalog, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, kms, "keyA")
    every = [("crm",), ("shop",), ("shop", "eu")]
    monkeypatch.setattr(catalog, "list_namespaces", lambda parent: every)
    assert list(results(catalog, kms, namespace="crm", dry_run=True)) == ["crm.people"]
    assert sorted(results(catalog, kms, dry_run=True)) == sorted(NAMES)


def test_a_new_version_of_the_master_key_resumes(catalog: SqlCatalog, tmp_path: Path) -> None:
    ring = Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    ring.create_key("lake")
    kms = open_kms(f"file:{tmp_path}/lake.keyring")
    fill(catalog, kms, "lake")
    ring.rotate_key("lake")
    kms = open_kms(f"file:{tmp_path}/lake.keyring")
    interrupted = rotate_catalog(catalog, kms)
    assert next(interrupted).result == "rotated"
    interrupted.close()  # type: ignore[attr-defined]  # it is a generator
    done = list(rotate_catalog(catalog, kms))
    assert [(table.table, table.result, table.versions) for table in done] == [
        ("crm.people", "current", ["2"]),
        ("shop.orders", "rotated", ["2"]),
        ("shop.eu.orders", "rotated", ["2"]),
    ]


def test_an_error_of_one_table_does_not_stop_the_others(
    catalog: SqlCatalog, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, kms, "keyA")
    real = rotate_table

    def refuse(table: Any, *arguments: Any, **options: Any) -> Any:
        if "/orders" in table.place.path:
            raise KeyAccessDeniedError("the key service refuses keyA")
        return real(table, *arguments, **options)

    monkeypatch.setattr(catalog_rotation, "rotate_table", refuse)
    done = {table.table: table for table in rotate_catalog(catalog, kms)}
    assert [name for name, table in done.items() if table.failed] == list(NAMES[1:])
    assert done["shop.orders"].result == KeyAccessDeniedError.word
    assert done["shop.orders"].message == "the key service refuses keyA"
    assert done["crm.people"].result == "rotated"


def test_a_table_whose_master_key_was_removed_is_no_plaintext_table(
    catalog: SqlCatalog, kms: SampleKms
) -> None:
    fill(catalog, kms, "keyA")
    table = load_table(catalog, NAMES[0], kms)
    properties = {**table.metadata.properties}
    del properties["encryption.key-id"]
    table.versions.commit(table.place, table.metadata.with_members(properties=properties))
    done = {table.table: table for table in rotate_catalog(catalog, kms)}
    assert [name for name, table in done.items() if table.failed] == [NAMES[0]]
    assert "no encryption.key-id" in done[NAMES[0]].message


def test_keys_under_the_master_key_itself_are_not_passed_over(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    ring = Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    ring.create_key("lake")
    where = f"file:{tmp_path}/lake.keyring"
    policy = KeyPolicy(wrapping="single")
    make_table(
        None, SCHEMA, where, master_key_id="lake", catalog=catalog, identifier=("crm", "a.b"),
        policy=policy,
    ).append(ROWS)  # fmt: skip
    assert results(catalog, where) == {"crm.`a.b`": "current"}
    ring.rotate_key("lake")
    (done,) = rotate_catalog(catalog, where)
    assert 'rotate "kek"' in done.message
    rotate_table(load_table(catalog, ("crm", "a.b"), where), "kek")
    assert results(catalog, where) == {"crm.`a.b`": "current"}


def test_plaintext_within_an_encrypted_table_is_an_error(
    catalog: SqlCatalog, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, kms, "keyA")

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PlaintextError("a manifest is in plaintext")

    monkeypatch.setattr(catalog_rotation, "rotate_table", refuse)
    for done in rotate_catalog(catalog, kms):
        assert done.failed
        assert done.message == "a manifest is in plaintext"


def test_a_catalog_that_cannot_be_listed(
    catalog: SqlCatalog, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ForbiddenError("https://user:password@host/")

    monkeypatch.setattr(catalog, "list_namespaces", fail)
    with pytest.raises(OSError, match="cannot be listed: ForbiddenError"):
        list(rotate_catalog(catalog, kms))


def test_a_namespace_that_cannot_be_listed_does_not_stop_the_others(
    catalog: SqlCatalog, kms: SampleKms, monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    fill(catalog, kms, "keyA")
    real = SqlCatalog.list_tables

    def fail(self: SqlCatalog, namespace: Any) -> Any:
        if namespace == ("crm",):
            raise ForbiddenError("https://user:password@host/")
        return real(self, namespace)

    monkeypatch.setattr(SqlCatalog, "list_tables", fail)
    done = {each.table: each for each in rotate_catalog(catalog, kms)}
    assert {name for name, each in done.items() if not each.failed} == set(NAMES[1:])
    assert done["crm"].message == ("the catalog's tables in crm cannot be listed: ForbiddenError")
    with pytest.raises(OSError, match="cannot be listed"):
        list(rotate_catalog(catalog, kms, namespace="crm"))
    where = ("--kms", "sample:", "--catalog", f"sqlite:///{tmp_path}/c.db")
    said = run("rotate", "mek", *where, "--new-master-key", "keyB", code=1).stdout
    assert "crm: the catalog's tables in crm cannot be listed" in said
    assert "shop.orders: rotated, under the master key keyB" in said


def test_the_command_reports_each_table(
    catalog: SqlCatalog, kms: SampleKms, run: Run, tmp_path: Path
) -> None:
    fill(catalog, kms, "keyA")
    where = ("--kms", "sample:", "--catalog", f"sqlite:///{tmp_path}/c.db")
    said = run("rotate", "mek", *where, "--new-master-key", "keyB", "--namespace", "crm").stdout
    assert said == "crm.people: rotated, under the master key keyB\n"
    found = lines(run("rotate", "mek", *where, "--new-master-key", "keyB", "--json"))
    assert {each["table"]: each["result"] for each in found} == {
        "crm.people": "current", "shop.orders": "rotated", "shop.eu.orders": "rotated",
    }  # fmt: skip
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    create = ("create", *where, "--master-key", "keyA", "--like", tmp_path / "rows.parquet")
    run(*create, "--folder", tmp_path / "of", "crm.`of.2026`")
    run("append", *where, "crm.`of.2026`", tmp_path / "rows.parquet")
    said = run("rotate", "mek", *where, "--new-master-key", "keyB", "--namespace", "`crm`").stdout
    assert "crm.`of.2026`: rotated" in said
    denied = run("rotate", "mek", *where, "--master-key", "keyC", code=1).stdout
    assert "crm.people: " in denied
    assert "none of those expected" in denied
    for arguments in (("dek", *where), ("mek", "--kms", "sample:")):
        assert "TABLE" in error_line(run("rotate", *arguments, code=2))
    nowhere = error_line(run("rotate", "mek", *where, "--namespace", "nowhere", code=2))
    assert "the catalog has no namespace nowhere" in nowhere
    assert "leave out TABLE" in error_line(
        run("rotate", "mek", *where, "--namespace", "crm", "crm.people", code=2)
    )
