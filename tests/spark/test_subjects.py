"""Values under keys of subjects, written and read by Spark's data source and Spark SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import SubjectVault, create_vault
from tests.support.sample_vault import make_rows

pytestmark = pytest.mark.slow  # they start Spark

POLICY = """
kms = "file:{0}/lake.keyring"
footer_key = "people"
subjects = "{0}/subjects.db"
subject_key = "customer_id"
subject_columns = ["name", "address.*", "tags"]
"""
SCHEMA = """customer_id long, name string,
    address struct<street: string, city: string, floor: short>,
    tags array<string>, amount double"""


@pytest.fixture
def vault(tmp_path: Path) -> SubjectVault:
    """A vault, beside `people.toml`, a policy with its columns."""
    mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("people")
    (tmp_path / "people.toml").write_text(POLICY.format(tmp_path))
    tools = KeyTools(f"file:{tmp_path}/lake.keyring#people")
    return create_vault(str(tmp_path / "subjects.db"), tools, "people")


def test_spark_writes_and_reads_values(spark: Any, vault: SubjectVault, tmp_path: Path) -> None:
    rows, policy = make_rows().drop(["born"]), str(tmp_path / "people.toml")
    frame = spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], SCHEMA)
    written = str(tmp_path / "written")
    frame.write.format("modcrypt").option("policy", policy).mode("append").save(written)
    ours = mc.read_table(written, mc.Policy.load(policy)).sort_by("amount")
    assert ours.column("name").to_pylist() == ["Ada", "Bob", "Ada", None]
    assert ours.column("tags").to_pylist() == rows.column("tags").to_pylist()
    only_keys = {"kms": f"file:{tmp_path}/lake.keyring#people"}
    cells = spark.read.format("modcrypt").options(**only_keys).load(written)
    assert dict(cells.dtypes)["name"] == "binary"
    read = (
        spark.read.format("modcrypt")
        .options(subjects=f"{tmp_path}/subjects.db", **only_keys)
        .load(written)
    )
    read.createOrReplaceTempView("people_with_subjects")
    query = "SELECT name, address.city FROM people_with_subjects WHERE name = 'Ada'"
    assert [tuple(row) for row in spark.sql(query).collect()] == [("Ada", "Oslo")] * 2
    vault.erase(vault.references([b"1"]), "GDPR-17")
    assert spark.sql(query).collect() == []
    left = spark.sql("SELECT name, amount FROM people_with_subjects ORDER BY amount").collect()
    assert [row["name"] for row in left] == [None, "Bob", None, None]
    tags = spark.sql("SELECT tags FROM people_with_subjects ORDER BY amount").collect()
    assert [row["tags"] for row in tags] == [None, [], None, ["b"]]
    nameless = frame.drop("tags").write.format("modcrypt").option("policy", policy).mode("append")
    with pytest.raises(Exception, match="does not have these columns: tags"):
        nameless.save(str(tmp_path / "nameless"))
    assert not (tmp_path / "nameless").exists()
