"""Stock Spark and Iceberg with master keys in OpenBao and in a keyring, by modcrypt's jar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, create_table, load_table, rotate_table, verify_table
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.references import open_kms
from modcrypt.spark.jvm.native_jar import ICEBERG_CLIENT, spark_jar
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.kms.key_servers import Bao
from tests.support.spark.iceberg_spark import IcebergSpark, why_unavailable

pytestmark = pytest.mark.slow

PASSPHRASE = "Zx9!kQ2vLw8@mN4p"
ROWS = pa.schema([("id", pa.int64()), ("country", pa.string())])


@pytest.fixture(scope="module")
def services(
    bao_running: Bao, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Yield the URIs of both services, by the name of a catalog of Spark's."""
    folder = tmp_path_factory.mktemp("keys")
    secret = folder / "passphrase"
    secret.write_text(PASSPHRASE)
    secret.chmod(0o600)
    keyring = f"file:{folder / 'lake.keyring'}?passphrase=file:{secret}"
    Keyring.create(folder / "lake.keyring", passphrase=PASSPHRASE)
    vault = bao_running.uri(bao_running.mount())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VAULT_TOKEN", bao_running.root_token)
        for uri in (vault, keyring):
            for name in ("lake", "pond"):
                open_kms(uri).create_key(name)  # type: ignore[attr-defined]
        yield {"vault": vault, "keyring": keyring}


@pytest.fixture(scope="module")
def spark(
    metastore: str, services: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IcebergSpark]:
    if reason := why_unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("spark")
    spark_jar(folder / "modcrypt.jar")
    catalogs = {
        name: {"encryption.kms-impl": ICEBERG_CLIENT, "modcrypt.kms.uri": uri}
        for name, uri in services.items()
    }
    running = IcebergSpark(folder, metastore, catalogs, jars=[folder / "modcrypt.jar"])
    with closing(running):
        running.sql("CREATE NAMESPACE IF NOT EXISTS vault.shop")
        yield running


def ids_of(table: IcebergTable) -> list[int]:
    ids: list[int] = table.scan().sort_by("id")["id"].to_pylist()
    return ids


def ids_in_spark(spark: IcebergSpark, name: str) -> list[Any]:
    return [row["id"] for row in spark.sql(f"SELECT id FROM {name} ORDER BY id")]


@pytest.mark.parametrize("catalog", ["vault", "keyring"])
def test_spark_and_modcrypt_share_master_keys(
    spark: IcebergSpark, metastore: str, services: dict[str, str], catalog: str
) -> None:
    kms = services[catalog]
    hive = HiveTable(metastore, f"shop.made_{catalog}")
    name = f"{catalog}.{hive.name}"
    table = create_table(
        None, ROWS, kms, master_key_id="lake", catalog=hive.catalog, identifier=hive.name
    )
    table.append(pa.table({"id": [1, 2], "country": ["NO", "SE"]}, ROWS))
    assert ids_in_spark(spark, name) == [1, 2]
    spark.sql(f"INSERT INTO {name} VALUES (3, 'DK')", f"DELETE FROM {name} WHERE id = 1")

    def load() -> IcebergTable:
        return load_table(hive.catalog, hive.name, kms, master_key_ids=["lake", "pond"])

    assert ids_of(load()) == [2, 3]
    open_kms(kms).rotate_key("lake")  # type: ignore[attr-defined]
    rotate_table(load(), "mek")
    assert ids_in_spark(spark, name) == [2, 3]
    rotate_table(load(), "kek")
    rotate_table(load(), "mek", new_master_key_id="pond")
    spark.sql(f"INSERT INTO {name} VALUES (4, 'DK')")
    assert ids_in_spark(spark, name) == ids_of(load()) == [2, 3, 4]
    assert verify_table(load()).ok


@pytest.mark.parametrize("catalog", ["vault", "keyring"])
def test_modcrypt_rotates_what_spark_made(
    spark: IcebergSpark, metastore: str, services: dict[str, str], catalog: str
) -> None:
    """Spark itself has the service wrap KEKs, which it does for tables of its own."""
    hive = HiveTable(metastore, f"shop.own_{catalog}")
    name = f"{catalog}.{hive.name}"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, country string) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'encryption.key-id'='lake')",
        f"INSERT INTO {name} SELECT id, 'NO' FROM range(0, 3)",
    )

    def load() -> IcebergTable:
        return load_table(hive.catalog, hive.name, services[catalog])

    for what in ("mek", "kek", "dek"):
        rotate_table(load(), what)
    load().append(pa.table({"id": [7], "country": ["NO"]}, ROWS))
    assert ids_in_spark(spark, name) == ids_of(load()) == [0, 1, 2, 7]


def test_a_folder_is_registered_in_spark(
    spark: IcebergSpark, metastore: str, services: dict[str, str], tmp_path: Path
) -> None:
    kms = services["keyring"]
    folder = create_table(tmp_path / "lake", ROWS, kms, master_key_id="lake")
    folder = folder.append(pa.table({"id": [1, 2], "country": ["NO", "SE"]}, ROWS))
    newest = folder.place.path
    spark.sql(
        f"CALL keyring.system.register_table('shop.registered', '{newest}')",
        "INSERT INTO keyring.shop.registered VALUES (3, 'DK')",
    )
    hive = HiveTable(metastore, "shop.registered")
    table = rotate_table(load_table(hive.catalog, hive.name, kms), "kek").table
    assert ids_in_spark(spark, "keyring.shop.registered") == ids_of(table) == [1, 2, 3]
