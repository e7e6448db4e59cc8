"""Tables of a Hive metastore as datasets, by its URI or a name of pyiceberg's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from modcrypt import Keyring
from modcrypt.iceberg import create_table
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.java.jvm import why_unavailable
from tests.support.spark.hive_metastore import hive_metastore
from tests.support.tables import small_table

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow  # a metastore takes seconds to start

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.sales]
kind = "iceberg"
catalog = "{catalog}"
table = "{table}"
master_key = "sales"
"""


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


def make_table(folder: Path, uri: str, database: str) -> HiveTable:
    """Make a keyring and an encrypted table of the metastore with a snapshot."""
    keyring = Keyring.create(folder / "lake.keyring", plaintext=True)
    keyring.create_key("sales")
    table = HiveTable(uri, f"{database}.sales")
    table.catalog.create_namespace(database)
    kms = f"file:{folder}/lake.keyring"
    made = create_table(
        folder / "sales", small_table().schema, kms, master_key_id="sales", catalog=table.catalog,
        identifier=table.name,
    )  # fmt: skip
    made.append(small_table())
    return table


@each_case("named", [False, True])
def test_a_table_of_a_metastore_is_a_dataset(
    named: bool, metastore: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = make_table(tmp_path, metastore, "named" if named else "by_uri")
    if named:
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", metastore)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when imported
    catalog = "shop" if named else metastore
    config = tmp_path / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog=catalog, table=table.name))
    lake = Lake.open(config)
    (status,) = lake.status()
    assert (status.error, status.is_declared) == ("", True)
    lake.table("sales").write(small_table())
    assert lake.table("sales").read().num_rows == 2 * small_table().num_rows
    before = table.entry().parameters["metadata_location"]
    config.write_text(config.read_text() + 'kek_per = "day"\n')
    (done,) = Lake.open(config).apply()
    assert (done.code, [file.result for file in done.files]) == (0, ["rekeyed"])
    assert table.entry().parameters["metadata_location"] != before
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).status()[0].is_declared
    assert table.locks() == []


def test_a_catalog_that_is_not_configured_is_named(tmp_path: Path) -> None:
    Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("sales")
    config = tmp_path / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog="nowhere", table="a.b"))
    (status,) = Lake.open(config).status()
    assert status.error.endswith("has no catalog nowhere")
    assert status.code == 2


def test_a_metastore_that_does_not_answer_is_an_error_of_the_dataset(tmp_path: Path) -> None:
    Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("sales")
    config = tmp_path / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog="thrift://127.0.0.1:1", table="a.b"))
    (status,) = Lake.open(config).status()
    assert "metastore" in status.error
    assert (status.code, Lake.open(config).verify()[0].code) == (74, 74)
