"""A Hadoop distributed file system of one node, in a JVM of its own on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.java.central_jars import fetch_jars
from tests.support.java.jvm import Jvm, pyspark_jars

_CLUSTER = """
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class Harness {
    private MiniDFSCluster cluster;

    public int start(String folder) throws Exception {
        Configuration settings = new Configuration();
        settings.set("hdfs.minidfs.basedir", folder);
        settings.set("dfs.datanode.hostname", "127.0.0.1");
        cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        cluster.waitActive();
        return cluster.getNameNodePort();
    }

    public void stop() { cluster.shutdown(); }
}
"""


def hadoop_version() -> str:
    """Return the version of Hadoop's client among pyspark's jars."""
    prefix = "hadoop-client-api-"
    return next(pyspark_jars().glob(f"{prefix}*.jar")).stem.removeprefix(prefix)


@contextmanager
def hdfs_cluster(folder: Path) -> Iterator[str]:
    """Run a name node and a data node; yield the URL of the root folder, without a slash."""
    jars = fetch_jars(
        folder, f"org.apache.hadoop:hadoop-client-minicluster:{hadoop_version()}",
        without=[f"org.apache.hadoop:hadoop-client-{part}" for part in ("api", "runtime")],
    )  # fmt: skip
    running = Jvm(_CLUSTER, heap="512m", jars=jars)
    try:
        yield f"hdfs://127.0.0.1:{running.harness.start(str(folder / 'hdfs'))}"
        running.harness.stop()
    finally:
        running.close()
