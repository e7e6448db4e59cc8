"""Columns without a key in Spark's own Parquet: always an error, as parquet-java has no nulls.

The data source can read such columns as nulls (`onMissingKey`), and so can modcrypt in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import Jvm, why_unavailable
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.spark.native import table, uri_of

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.spark.jvm.native_parquet import native

pytestmark = pytest.mark.slow

# --- parquet-java itself -------------------------------------------------------------------------

HARNESS = """
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.*;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.example.GroupReadSupport;

public class Harness {
  public String read(String file, final byte[] footerKey, final String lack, String schema)
      throws Exception {
    DecryptionKeyRetriever keys = new DecryptionKeyRetriever() {
      public byte[] getKey(byte[] metadata) {
        if (new String(metadata).equals("footer")) return footerKey;
        if (lack.equals("null")) return null;
        throw new KeyAccessDeniedException("no key for you");
      }
    };
    FileDecryptionProperties.Builder builder = FileDecryptionProperties.builder();
    if (lack.equals("not given")) builder.withFooterKey(footerKey);
    else builder.withKeyRetriever(keys);
    Configuration configuration = new Configuration();
    configuration.set("parquet.read.schema", schema);
    ParquetReader.Builder reader = ParquetReader.builder(new GroupReadSupport(), new Path(file));
    ParquetReader rows = reader.withConf(configuration).withDecryption(builder.build()).build();
    return String.valueOf(rows.read());
  }
}
"""

BOTH = "message m { optional int64 id; optional binary name (STRING); }"


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    jvm = Jvm(HARNESS, heap="256m")
    yield jvm.harness
    jvm.close()


@pytest.mark.parametrize("lack", ["null", "denied", "not given"])
def test_parquet_java_has_no_nulls_for_columns_without_a_key(
    harness: Any, tmp_path: Path, lack: str
) -> None:
    """Should this fail with a newer version, our factory could offer nulls."""
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, footer_key_metadata=b"footer",
        column_keys={"name": COLUMN_KEY}, column_key_metadata={"name": b"column"},
    )  # fmt: skip
    path = str(tmp_path / "t.parquet")
    mc.write_table(table().select(["id", "name"]), path, encryption)
    assert harness.read(path, FOOTER_KEY, lack, "message m { optional int64 id; }") == "id: 0\n"
    with pytest.raises(
        Exception, match=r"Column \[name\].*provided column key is NULL|no key for you"
    ):
        harness.read(path, FOOTER_KEY, lack, BOTH)


# --- Spark ---------------------------------------------------------------------------------------

READERS: dict[str, dict[str, str]] = {
    "batches": {},
    "rows": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "DataSource V2": {"spark.sql.sources.useV1SourceList": ""},
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_of_spark_returns_nulls(
    spark: Any, ring: Keyring, tmp_path: Path, name: str
) -> None:
    policy = mc.Policy(footer_key="kf", column_keys={"kc2": ["name"]}, kms=uri_of(ring))
    policy = replace(policy, double_wrapping=False)
    path = tmp_path / "t.parquet"
    mc.write_table(table(), path, mc.KeyTools(ring).encryption(policy))
    ring.disable_key("kc2")
    session = spark.newSession()
    native(session, policy=policy)
    for setting, value in READERS[name].items():
        session.conf.set(setting, value)
    frame = session.read.parquet(str(path))
    assert frame.agg({"id": "sum"}).first()[0] == sum(range(300))
    for query in (
        frame.select("name"),
        frame.where("name IS NULL").select("id"),
        frame.agg({"name": "count"}),
    ):
        with pytest.raises(Exception, match="master key kc2 is disabled"):
            query.collect()
    session.conf.set("spark.sql.files.ignoreCorruptFiles", "true")  # the guide warns of it
    assert session.read.schema("name STRING").parquet(str(path)).collect() == []

    nulls = session.read.format("modcrypt").options(
        kms=uri_of(ring), onMissingKey="null", requireEncrypted="true"
    )
    assert nulls.load(str(path)).where("name IS NULL").count() == 300
