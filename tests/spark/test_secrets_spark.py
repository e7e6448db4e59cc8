"""No key and no passphrase is in what Spark logs, shows, pickles or leaves on disks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StringType, StructField, StructType

import modcrypt as mc
from modcrypt.jobs.verbs.key_verbs import ROTATE
from modcrypt.kms.settings import Settings
from modcrypt.spark import rotate_keys
from modcrypt.spark.jobs.driver import plan_verb
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.source.data_source import ModcryptDataSource
from modcrypt.spark.source.options import read_options
from tests.support.secret_watch import spellings
from tests.support.spark.lake import COLUMN, FOOTER, SECRETS, Lake
from tests.support.tables import small_table


def find_secrets(data: bytes) -> list[bytes]:
    """Return the secrets that bytes contain, in any spelling."""
    return [secret for secret in SECRETS for spelling in spellings(secret) if spelling in data]


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_search_finds_each_spelling() -> None:
    for text in (COLUMN, COLUMN.hex().encode(), b"x" + COLUMN, repr(COLUMN).encode()):
        assert find_secrets(b"..." + text + b"...") == [COLUMN] * len(find_secrets(text))
        assert find_secrets(text)
    assert not find_secrets(b"file:/etc/footer.key")


def test_nothing_of_a_key_is_in_the_event_log_the_plans_or_sparks_files(
    spark: Any, spark_folder: Path, lake: Lake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(small_table(100), tmp_path / "plain.parquet")
    plain = spark.read.parquet(str(tmp_path / "plain.parquet"))
    texts = []
    for name, options in (("policy", lake.by_policy), ("keys", lake.by_keys)):
        folder = str(tmp_path / name)
        plain.repartition(2).write.format("modcrypt").mode("overwrite").options(**options).save(
            folder
        )
        frame = spark.read.format("modcrypt").options(**options).load(folder)
        frame.groupBy("flag").count().collect()
        frame.explain(True)
        texts.append(frame._jdf.queryExecution().toString())
        said = ", ".join(f"{key} '{value}'" for key, value in {**options, "path": folder}.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING modcrypt OPTIONS ({said})")
        spark.sql("SELECT max(name) FROM v").collect()
        texts.append(str(spark.sql("EXPLAIN EXTENDED SELECT * FROM v").collect()))
        spark.sql(f"CREATE TABLE t USING modcrypt OPTIONS ({said})")
        texts += [
            str(spark.sql(f"{verb} t").collect())
            for verb in ("DESCRIBE EXTENDED", "SHOW CREATE TABLE")
        ]
        spark.sql("DROP TABLE t")
        (next(iter(Path(folder).glob("part-*")))).write_bytes(b"PAR1 no file PARE")
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        texts.append(str(caught.value))
    out = capfd.readouterr()
    log = everything_in(spark_folder / "events")
    assert log.count(b"SparkListenerSQLExecutionStart") >= 8  # it was on, and is written out
    assert b"lake.toml" in log  # what SQL says is logged: references alone
    assert not find_secrets(log)
    assert not find_secrets(everything_in(spark_folder))
    assert not find_secrets("\n".join([out.out, out.err, *texts]).encode())


def test_nothing_of_a_key_is_in_what_is_sent_to_executors(lake: Lake, tmp_path: Path) -> None:
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]  # pyspark types few
    schema = StructType([StructField("name", StringType()), StructField("address", LongType())])
    for options in (lake.by_policy, lake.by_keys):
        settings = read_options({**options, "path": "t"})[0]
        assert isinstance(settings, Settings)
        settings.encryption()  # which opens the key service, and remembers it
        settings.decryption()
        source = ModcryptDataSource({**options, "path": str(tmp_path)})
        sent = [settings, source, source.reader(schema), source.writer(schema, overwrite=True)]
        for value in sent:
            pickled: bytes = serializer.dumps(value)
            assert not find_secrets(pickled)
            assert not find_secrets(repr(value).encode())


def test_nothing_of_a_signing_key_is_in_what_a_rotation_sends_or_logs(
    spark: Any, spark_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Executors read the key by its reference."""
    writer = mc.SigningKey.generate()
    writer.save(tmp_path / "writer.key")
    mc.Keyring.create(tmp_path / "ring", plaintext=True).create_key("k")
    settings = Settings(
        kms=f"file:{tmp_path}/ring",
        master_key_ids=("k",),
        signing_key=f"file:{tmp_path}/writer.key",
    )
    policy = mc.Policy(footer_key="k", kms=settings.kms)
    (tmp_path / "t").mkdir()
    signing = Settings(policy=policy, signing_key=settings.signing_key)
    mc.write_table(small_table(10), tmp_path / "t/a.parquet", signing.encryption())
    settings.writer_key  # noqa: B018  # which is remembered
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    job, _ = plan_verb(ROTATE, str(tmp_path / "t"), settings, what="dek")
    assert isinstance(job, VerbJob)
    sent = serializer.dumps(job) + serializer.dumps(settings) + repr([job, settings]).encode()
    rows = rotate_keys(spark, str(tmp_path / "t"), settings, what="dek").collect()
    assert [(row.result, row.lost_signature) for row in rows] == [("rotated", False)]
    required = Settings(policy=policy, signed_by=(writer.verifier,))
    assert mc.read_table(tmp_path / "t", required.decryption()).num_rows == 10
    out = capfd.readouterr()
    everything = sent + everything_in(spark_folder) + f"{out.out}{out.err}{rows}".encode()
    assert b"writer.key" in sent
    assert writer._secret is not None
    assert not [word for word in spellings(writer._secret()) if word in everything]


OPTIONS_WITH_KEYS = [
    {"footerKey": FOOTER.hex()},
    {"kms": "file:ring?passphrase=Zx9!kQ2vLw8@mN4p"},
    {"footerKey": FOOTER.decode()},
    {"footerKey": "env:K", "columnKeys": json.dumps({"name": COLUMN.hex()})},
    {"footerKey": "env:K", "columnKeys": '{"name": "' + COLUMN.hex()},
    {"kms": "pkcs11:token=lake?pin-value=Zx9!kQ2vLw8@mN4p"},
    {"kms": "hcvault://user:Zx9!kQ2vLw8@host/transit"},
    {"footerKey": "env:K", "requireEncrypted": FOOTER.hex(), "key": FOOTER.hex()},
]
REFUSED = "never the key itself|contains a password|is not valid JSON|unknown option key"


@pytest.mark.parametrize("options", OPTIONS_WITH_KEYS)
def test_a_key_given_as_an_option_is_refused_at_once_and_not_repeated(
    spark: Any, spark_folder: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    frame = spark.range(5)
    with pytest.raises(AnalysisException) as reading:
        spark.read.format("modcrypt").options(**options).load(str(tmp_path))
    with pytest.raises(AnalysisException) as writing:
        frame.write.format("modcrypt").mode("append").options(**options).save(str(tmp_path / "t"))
    for error in (reading, writing):
        assert re.search(REFUSED, str(error.value))
    reported = f"{reading.value}\n{writing.value}".encode()
    assert not find_secrets(reported)
    assert b"Zx9!kQ2vLw8" not in reported
    assert not find_secrets(everything_in(spark_folder / "events"))
    assert not (tmp_path / "t").exists()


def test_a_wrong_key_does_not_show_what_it_opened(spark: Any, lake: Lake, tmp_path: Path) -> None:
    table = pa.table({"name": ["the plaintext of a column"] * 50, "address": ["x"] * 50})
    pq.write_table(table, tmp_path / "plain.parquet")
    frame = spark.read.parquet(str(tmp_path / "plain.parquet"))
    frame.write.format("modcrypt").mode("append").options(**lake.by_keys).save(str(tmp_path / "t"))
    columns = dict.fromkeys(("name", "address"), lake.by_keys["footerKey"])
    wrong = lake.by_keys | {"columnKeys": json.dumps(columns)}
    with pytest.raises(PySparkException, match="TagMismatchError") as caught:
        spark.read.format("modcrypt").options(**wrong).load(str(tmp_path / "t")).collect()
    assert "the plaintext" not in str(caught.value)
    assert not find_secrets(str(caught.value).encode())
