"""Files that are exchanged or overwritten while parquet-java opens them.

Each test takes the steps of Spark's reader one by one, so that the exchange is at a known moment.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.pkmt1.material import KeyMaterial, decode_metadata
from modcrypt.spark.jvm.native_parquet import native_options
from tests.support.forging import encrypt_bytes, plain_file
from tests.support.java.jvm import JavaError, java_errors
from tests.support.spark.native import uri_of


class Lake(NamedTuple):
    """A file of a policy, and one that a holder of the footer key forged under the same keys."""

    policy: mc.Policy
    honest: Path
    forged: Path
    file: Path  # that is read


@pytest.fixture
def lake(ring: mc.Keyring, tmp_path: Path) -> Lake:
    policy = mc.Policy(
        footer_key="kf", column_keys={"kc1": ["iban"]}, kms=uri_of(ring), aad_prefix="lake"
    )
    honest, forged = tmp_path / "honest", tmp_path / "forged"
    tools = mc.KeyTools(ring)
    mc.write_table(pa.table({"iban": ["DE1"] * 3}), honest, tools.encryption(policy))
    with open_source(honest) as source:
        metadata = list_key_metadata(source)[0][0].metadata
    material = decode_metadata(metadata)
    assert isinstance(material, KeyMaterial)
    key = tools.wrapper.unwrap(material)
    properties = mc.FileEncryptionProperties(
        footer_key=key, footer_key_metadata=metadata, aad_prefix=b"lake"
    )
    forged.write_bytes(encrypt_bytes(plain_file(pa.table({"iban": ["EVIL"] * 3})), properties))
    return Lake(policy, honest, forged, tmp_path / "t.parquet")


def make_configuration(jvm: Any, lake: Lake, **settings: str) -> Any:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in {**native_options(lake.policy), **settings}.items():
        configuration.set(name, value)
    return configuration


class Reader:
    """Spark's reader of one file: the factory is asked, then the file is opened and parsed."""

    def __init__(self, jvm: Any, lake: Lake) -> None:
        self._parquet = jvm.org.apache.parquet
        configuration = make_configuration(jvm, lake)
        path = jvm.org.apache.hadoop.fs.Path(str(lake.file))
        self._options = self._parquet.HadoopReadOptions.builder(configuration, path).build()
        self._file = self._parquet.hadoop.util.HadoopInputFile.fromPath(path, configuration)
        self.stream = self._file.newStream()

    def parse(self) -> str:
        """Return the schema; raise JavaError if the file is refused."""
        with java_errors(JavaError):
            reader = self._parquet.hadoop.ParquetFileReader.open(
                self._file, self._options, self.stream
            )
            try:
                return str(reader.getFooter().getFileMetaData().getSchema())
            finally:
                reader.close()


EXCHANGING = """
public class Exchanging extends org.apache.hadoop.fs.LocalFileSystem {
  public org.apache.hadoop.fs.FSDataInputStream open(org.apache.hadoop.fs.Path path, int size)
      throws java.io.IOException {
    org.apache.hadoop.fs.FSDataInputStream opened = super.open(path, size);
    java.io.File next = new java.io.File(path.toUri().getPath() + ".next");
    if (next.exists()) next.renameTo(new java.io.File(path.toUri().getPath()));
    return opened;
  }
}
"""
"""A file system that puts another file in a file's place as soon as that is opened."""


def put(source: Path, file: Path) -> None:
    """Let a copy take a file's place."""
    shutil.copy(source, file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)


def test_the_footer_that_is_checked_is_the_one_that_is_parsed(jvm: Any, lake: Lake) -> None:
    put(lake.forged, lake.file)
    reader = Reader(jvm, lake)
    put(lake.honest, lake.file)  # for whoever opens the path again
    with pytest.raises(JavaError, match="column iban is encrypted with the footer key"):
        reader.parse()


def test_an_exchange_after_the_opening_changes_nothing(jvm: Any, lake: Lake) -> None:
    put(lake.honest, lake.file)
    reader = Reader(jvm, lake)
    lake.forged.write_bytes(bytes(lake.honest.stat().st_size))  # Hadoop looks the length up again
    put(lake.forged, lake.file)
    assert "iban" in reader.parse()


def test_a_footer_that_is_overwritten_in_place_is_parsed_as_it_was(jvm: Any, lake: Lake) -> None:
    put(lake.honest, lake.file)
    reader = Reader(jvm, lake)
    size = lake.file.stat().st_size
    reader.stream.seek(size - 8)
    length = int.from_bytes(bytes(reader.stream.read() for _ in range(4)), "little")
    with lake.file.open("r+b") as file:
        file.seek(-8 - length, os.SEEK_END)
        file.write(b"\xff" * length)
    assert "iban" in reader.parse()


def test_a_file_of_another_length_than_was_announced_is_refused(jvm: Any, lake: Lake) -> None:
    put(lake.honest, lake.file)
    reader = Reader(jvm, lake)
    reader.stream.seek(0)
    assert reader.stream.read() == ord("P")
    with pytest.raises(JavaError, match="the file changed while it was opened"):
        reader.parse()


def test_reading_up_to_the_end_yields_the_bytes_of_the_file(jvm: Any, lake: Lake) -> None:
    put(lake.honest, lake.file)
    stream, data = Reader(jvm, lake).stream, lake.honest.read_bytes()
    stream.seek(len(data) - 8)
    assert bytes([stream.read()]) == data[-8:-7]
    stream.seek(0)
    assert bytes(stream.readNBytes(len(data) + 1)) == data  # across the border of the footer
    buffer = jvm.java.nio.ByteBuffer.allocate(len(data))
    stream.seek(0)
    stream.readFully(buffer)
    assert bytes(buffer.array()) == data
    assert stream.read() == -1


@pytest.mark.parametrize("keeps_open", [True, False])
def test_the_reader_of_spark_asks_the_factory_before_it_opens_the_file(
    jvm: Any, lake: Lake, keeps_open: bool
) -> None:
    """With vectors it keeps the stream open, with rows it does not."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(EXCHANGING)
    settings = {"fs.file.impl": "Exchanging", "fs.file.impl.disable.cache": "true"}
    configuration = make_configuration(jvm, lake, **settings)
    configuration.setClassLoader(compiler.getClassLoader())
    put(lake.forged, lake.file)
    shutil.copy(lake.honest, f"{lake.file}.next")
    with pytest.raises(JavaError, match="column iban is encrypted with the footer key"):
        open_by_spark(jvm, configuration, lake.file, keeps_open)
    assert lake.file.read_bytes() == lake.honest.read_bytes()  # the exchange took place
    open_by_spark(jvm, configuration, lake.file, keeps_open)


def open_by_spark(jvm: Any, configuration: Any, file: Path, keeps_open: bool) -> None:
    spark = jvm.org.apache.spark
    path = spark.paths.SparkPath.fromPathString(str(file))
    whole = spark.sql.execution.datasources.PartitionedFile(
        spark.sql.catalyst.InternalRow.empty(), path, 0, file.stat().st_size, None, 0,
        file.stat().st_size, jvm.scala.collection.immutable.HashMap(),
    )  # fmt: skip
    reader = spark.sql.execution.datasources.parquet.ParquetFooterReader
    with java_errors(JavaError):
        opened = reader.openFileAndReadFooter(configuration, whole, keeps_open)
        if keeps_open:
            opened.inputStream().close()
