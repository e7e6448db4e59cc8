"""Which clusters of Hadoop this machine is configured for."""

from __future__ import annotations

from pathlib import Path

import pytest

from modcrypt.io.hadoop import is_configured
from tests.support.cases import each_case

CORE = """<?xml version="1.0"?>
<configuration>
  <property><name>fs.defaultFS</name><value> hdfs://Lake:8020 </value></property>
  <property><name>fs.viewfs.mounttable.views.linkFallback</name><value>hdfs://lake/</value></property>
</configuration>
"""
HDFS = """<configuration>
  <property><name>dfs.nameservices</name><value>east, west</value></property>
  <property><name>dfs.namenode.rpc-address.east.nn1</name><value>n1.example:8020</value></property>
  <property><name>dfs.datanode.http.address</name><value>other.example:8020</value></property>
</configuration>
"""


@pytest.fixture(params=["HADOOP_CONF_DIR", "HADOOP_HOME"])
def configured(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    folder = tmp_path if request.param == "HADOOP_CONF_DIR" else tmp_path / "etc" / "hadoop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core-site.xml").write_text(CORE)
    (folder / "hdfs-site.xml").write_text(HDFS)
    monkeypatch.setenv(request.param, str(tmp_path))
    return folder


@each_case(
    "url",
    [
        "hdfs://lake:8020/t", "hdfs:///t", "HDFS://EAST/t", "hdfs://west/t", "viewfs://views/t",
        "hdfs://n1.example:8020/t",
    ],
)  # fmt: skip
def test_clusters_of_the_configuration(url: str, configured: Path) -> None:
    assert is_configured(url)


@each_case(
    "url",
    [
        "hdfs://lake/t", "hdfs://lake:9000/t", "hdfs://other.example:8020/t", "hdfs://north/t",
        "hdfs://east@north/t", "webhdfs://east/t", "https://east/t", "viewfs://other/t", "/t",
    ],
)  # fmt: skip
def test_other_addresses(url: str, configured: Path) -> None:
    assert not is_configured(url)


def test_without_a_configuration_there_are_none(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configured / "core-site.xml").write_text("<configuration><property>")
    (configured / "hdfs-site.xml").unlink()
    assert not is_configured("hdfs:///t")
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert not is_configured("hdfs:///t")
