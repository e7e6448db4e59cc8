"""Tables of a REST catalog as datasets, by its URI or a name of pyiceberg's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config

from modcrypt import Keyring
from modcrypt.iceberg import create_table, load_table, rotate_table
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.iceberg.java_judge import why_unavailable
from tests.support.iceberg.rest_catalog import rest_server
from tests.support.tables import small_table

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow  # a server takes seconds to start

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.sales]
kind = "iceberg"
catalog = "{catalog}"
table = "{table}"
master_key = "sales"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_server(tmp_path_factory.mktemp("rest")) as uri:
        yield uri


@each_case("named", [False, True])
def test_a_table_of_a_rest_catalog_is_a_dataset(
    named: bool, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keyring = Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    keyring.create_key("sales")
    kms, space = f"file:{tmp_path}/lake.keyring", "named" if named else "by_uri"
    catalog = RestCatalog("rest", uri=server)
    catalog.create_namespace(space)
    name = f"{space}.sales"
    table = create_table(
        None, small_table().schema, kms, master_key_id="sales", catalog=catalog, identifier=name
    )
    table.append(small_table())
    if named:
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", server)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when imported
    config = tmp_path / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog="shop" if named else server, table=name))
    lake = Lake.open(config)
    (status,) = lake.status()
    assert (status.error, status.is_declared) == ("", True)
    lake.table("sales").write(small_table())
    assert lake.table("sales").read().num_rows == 2 * small_table().num_rows
    config.write_text(config.read_text() + 'kek_per = "day"\n')
    (done,) = Lake.open(config).apply()
    assert (done.code, [file.result for file in done.files]) == (0, ["rekeyed"])
    assert Lake.open(config).verify()[0].code == 0
    keyring.create_key("other")
    config.write_text(
        config.read_text().replace('"sales"\nkek', '"other"\nkek')
        + '[dataset.sales.previous.master_keys]\nsales = "other"\n'
    )
    assert Lake.open(config).apply()[0].code == 0
    assert load_table(catalog, name, kms).metadata.master_key_id == "other"
    assert Lake.open(config).status()[0].is_declared
    (impact,) = Lake.open(config).impact("other")
    assert impact.files
    assert rotate_table(load_table(catalog, name, kms), "dek").committed


def test_a_server_that_does_not_answer_is_an_error_of_the_dataset(tmp_path: Path) -> None:
    Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("sales")
    config = tmp_path / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog="http://127.0.0.1:1/", table="a.b"))
    (status,) = Lake.open(config).status()
    assert "ConnectionError" in status.error
    assert (status.code, Lake.open(config).verify()[0].code) == (74, 74)
