"""Tables of Hive, AWS Glue and a REST catalog as datasets, by its URI or a configured name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import pytest
from pyiceberg.utils.config import Config

from modcrypt import Keyring
from modcrypt.iceberg import KeyPolicy, create_table, load_table, rotate_table
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.iceberg.erasable_table import BY_PART, POLICY, ROWS
from tests.support.iceberg.glue_catalog import GlueTable, configure, glue_server
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.iceberg.java_judge import why_unavailable
from tests.support.iceberg.rest_catalog import RestTable, rest_server
from tests.support.spark.hive_metastore import hive_metastore
from tests.support.tables import small_table

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow  # a server takes seconds to start

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.sales]
kind = "iceberg"
catalog = "{catalog}"
{table}
master_key = "sales"
"""
Named: TypeAlias = HiveTable | GlueTable | RestTable
SERVERS: dict[str, tuple[Callable[[Path], AbstractContextManager[str]], type[Named]]] = {
    "hive": (hive_metastore, HiveTable),
    "glue": (glue_server, GlueTable),
    "rest": (rest_server, RestTable),
}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Named]:
    """Run a server; yield a name in it that no table has."""
    start, kind = SERVERS[request.param]
    with start(tmp_path_factory.mktemp(request.param)) as uri:
        yield kind(uri, "nowhere.sales")


def make_table(folder: Path, server: Named, namespace: str) -> Named:
    """Make a keyring and an encrypted table with a snapshot."""
    make_keyring(folder)
    named = type(server)(server.uri, f"{namespace}.sales")
    named.catalog.create_namespace(namespace)
    kms = f"file:{folder}/lake.keyring"
    table = create_table(
        None, small_table().schema, kms, master_key_id="sales", catalog=named.catalog,
        identifier=named.name,
    )  # fmt: skip
    table.append(small_table())
    return named


def find_catalog(server: Named, configured: bool, patch: pytest.MonkeyPatch) -> str:
    """Return the URI of the catalog, or a name in pyiceberg's configuration; Glue has no URI."""
    if isinstance(server, GlueTable):
        configure(patch, "shop", server.uri)
        return "shop"
    if not configured:
        return server.uri
    patch.setenv("PYICEBERG_CATALOG__SHOP__URI", server.uri)
    patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when imported
    return "shop"


def make_keyring(folder: Path) -> Keyring:
    keyring = Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("sales", "other"):
        keyring.create_key(name)
    return keyring


def declare(folder: Path, catalog: str, table: str) -> Path:
    config = folder / "modcrypt.toml"
    config.write_text(DECLARATION.format(catalog=catalog, table=table))
    return config


@each_case("configured", [False, True])
def test_a_table_of_a_catalog_is_a_dataset(
    configured: bool, server: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    named = make_table(tmp_path, server, "by_name" if configured else "by_uri")
    catalog = find_catalog(server, configured, monkeypatch)
    config = declare(tmp_path, catalog, f'table = "{named.name}"')
    lake = Lake.open(config)
    (status,) = lake.status()
    assert (status.error, status.is_declared) == ("", True)
    lake.table("sales").write(small_table())
    assert lake.table("sales").read().num_rows == 2 * small_table().num_rows
    config.write_text(config.read_text() + 'kek_per = "day"\n')
    (done,) = Lake.open(config).apply()
    assert (done.code, [file.result for file in done.files]) == (0, ["rekeyed"])
    assert Lake.open(config).verify()[0].code == 0
    config.write_text(
        config.read_text().replace('"sales"\nkek', '"other"\nkek')
        + '[dataset.sales.previous.master_keys]\nsales = "other"\n'
    )
    assert Lake.open(config).apply()[0].code == 0
    table = load_table(named.catalog, named.name, f"file:{tmp_path}/lake.keyring")
    assert table.metadata.master_key_id == "other"
    assert Lake.open(config).status()[0].is_declared
    (impact,) = Lake.open(config).impact("other")
    assert impact.files
    assert rotate_table(table, "dek").committed
    assert named.locks() == []


def test_a_namespace_is_a_dataset(
    server: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_table(tmp_path, server, "whole")
    catalog = find_catalog(server, False, monkeypatch)
    lake = Lake.open(declare(tmp_path, catalog, 'namespace = "whole"'))
    assert [status.dataset.name for status in lake.status()] == [f"sales/{named.name}"]
    assert lake.apply()[0].code == lake.verify()[0].code == 0


def test_a_namespace_that_does_not_exist_is_an_error(
    server: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keyring(tmp_path)
    catalog = find_catalog(server, False, monkeypatch)
    (status,) = Lake.open(declare(tmp_path, catalog, 'namespace = "nowhere"')).status()
    assert status.error
    assert status.code


def test_a_catalog_that_is_not_configured_is_named(tmp_path: Path) -> None:
    make_keyring(tmp_path)
    (status,) = Lake.open(declare(tmp_path, "nowhere", 'table = "a.b"')).status()
    assert status.error.endswith("has no catalog nowhere")
    assert status.code == 2


@each_case(
    "uri, member, message",
    [
        ("thrift://127.0.0.1:1", 'table = "a.b"', "the Hive metastore failed"),
        ("thrift://127.0.0.1:1", 'namespace = "a"', "cannot be listed: TTransportException"),
        ("http://127.0.0.1:1/", 'table = "a.b"', "cannot be reached: ConnectionError"),
        ("http://127.0.0.1:1/", 'namespace = "a"', "cannot be reached: ConnectionError"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error_of_the_dataset(
    uri: str, member: str, message: str, tmp_path: Path
) -> None:
    make_keyring(tmp_path)
    config = declare(tmp_path, uri, member)
    (status,) = Lake.open(config).status()
    assert message in status.error
    assert (status.code, Lake.open(config).verify()[0].code) == (74, 74)


def test_a_partition_is_shredded(
    server: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the versions of the table that its catalog, or its server, no longer names."""
    make_keyring(tmp_path)
    named = type(server)(server.uri, "shredded.sales")
    named.catalog.create_namespace("shredded")
    create_table(
        None, ROWS.schema, f"file:{tmp_path}/lake.keyring", master_key_id="sales",
        catalog=named.catalog, identifier=named.name, partition_spec=BY_PART,
        policy=KeyPolicy(**POLICY),
    ).append(ROWS).append(ROWS)  # fmt: skip
    catalog = find_catalog(server, False, monkeypatch)
    config = declare(tmp_path, catalog, f'table = "{named.name}"')
    done = Lake.open(config).shred_partition("sales", {"part": "x"})
    assert (done.files, len(done.keks), done.left) == (2, 1, ())
    (status,), (verified,) = Lake.open(config).status(), Lake.open(config).verify()
    assert (status.is_declared, status.counts["erased"]) == (True, 2)
    assert (verified.code, verified.totals.erased) == (0, 2)
    assert Lake.open(config).table("sales").read()["id"].to_pylist() == [3, 3]
