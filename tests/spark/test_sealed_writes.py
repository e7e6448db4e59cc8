"""What Spark's jobs and writes change is in the next seal of the dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.kms.signing.ledger import SEAL_NAME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a footer key, a writer's key and three plaintext files."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "lake").mkdir()
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), tmp_path / "plain" / f"{number}.parquet")
    (tmp_path / "key").write_bytes(os.urandom(16))
    (tmp_path / "key").chmod(0o600)
    key = mc.SigningKey.generate()
    key.save(tmp_path / "writer.key")
    (tmp_path / "writer.pub").write_text(f"{key.verifier}\n")
    return tmp_path


def writer(folder: Path) -> mc.SigningKey:
    return mc.SigningKey.load(folder / "writer.key")


def check(folder: Path, number: int, files: int) -> None:
    result = mc.jobs.verify_seal(folder / "lake", [writer(folder).verifier], at_least=number)
    assert (result.findings, result.sequence, result.files) == ((), number, files)


def test_executors_report_what_they_wrote(spark: Any, folder: Path) -> None:
    from modcrypt.spark import encrypt_table

    lake, settings = str(folder / "lake"), mc.Settings(footer_key=f"file:{folder}/key")
    with mc.jobs.sealing(lake, writer(folder)):
        rows = encrypt_table(spark, str(folder / "plain"), lake, settings, files_per_task=1)
    assert "_written" not in rows.columns
    assert {row.result for row in rows.collect()} == {"encrypted"}
    check(folder, 1, 3)


def write(spark: Any, folder: Path, mode: str, **more: str) -> None:
    options = {
        "footerKey": f"file:{folder}/key", "signingKey": f"file:{folder}/writer.key",
        "signedBy": str(folder / "writer.pub"), "sealAtLeast": "1", **more,
    }  # fmt: skip
    rows = spark.range(4).repartition(2)
    rows.write.format("modcrypt").mode(mode).options(**options).save(str(folder / "lake"))


def test_writes_of_the_data_source_sign_the_next_seal(spark: Any, folder: Path) -> None:
    lake = folder / "lake"
    write(spark, folder, "append")  # there is no seal yet
    assert not (lake / SEAL_NAME).exists()
    mc.jobs.seal_dataset(lake, writer(folder))
    before = len(list(lake.glob("*.parquet")))
    write(spark, folder, "append")
    check(folder, 2, 2 * before)
    read = {"footerKey": f"file:{folder}/key", "signedBy": str(folder / "writer.pub")}
    rows = spark.read.format("modcrypt").options(**read, sealAtLeast="2").load(str(lake))
    assert rows.count() == 8
    write(spark, folder, "overwrite")
    check(folder, 3, before)
    with pytest.raises(Exception, match="4 was seen before"):
        spark.read.format("modcrypt").options(**read, sealAtLeast="4").load(str(lake)).count()
    (lake / SEAL_NAME).unlink()
    with pytest.raises(Exception, match="number 3 was signed before"):
        write(spark, folder, "append")
