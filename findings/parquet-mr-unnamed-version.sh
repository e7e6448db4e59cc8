#!/bin/sh
# Files of parquet-mr 1.2.8 name no version: PyArrow's workaround for them never applies.
#
# Versions: written by com.twitter:parquet-hadoop 1.2.8 with Hadoop 3.4.2 and Java 17; read by PyArrow
# 26.0.1, Polars 2.1.0 and DuckDB 2.0.0.
# Behaviour: parquet-mr up to 1.2.8 left the header of a dictionary page out of the size of its column
# chunk (PARQUET-816). PyArrow reads further than the chunk if `created_by` names such a version. The
# release from Maven Central writes `parquet-mr (build ...)`, for it does not find its own version.
# Seen: PyArrow and Polars refuse a file of two distinct strings with an error about Thrift, DuckDB reads
# it. With `parquet-mr version 1.2.8` as its writer, in as many bytes, PyArrow reads it, too; Polars does not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    duckdb==2.0.0 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
cat > pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.twitter</groupId><artifactId>parquet-hadoop</artifactId><version>1.2.8</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.2</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
XML
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory=jars

cat > Finding.java <<'JAVA'
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import parquet.example.data.Group;
import parquet.example.data.simple.SimpleGroup;
import parquet.hadoop.ParquetWriter;
import parquet.hadoop.example.GroupWriteSupport;
import parquet.hadoop.metadata.CompressionCodecName;
import parquet.schema.*;

public class Finding {
  static final MessageType SCHEMA = MessageTypeParser.parseMessageType("message rows { required binary name (UTF8); }");

  static class Support extends GroupWriteSupport {
    @Override
    public WriteContext init(Configuration conf) {
      GroupWriteSupport.setSchema(SCHEMA, conf);
      return super.init(conf);
    }
  }

  public static void main(String[] arguments) throws Exception {
    ParquetWriter<Group> writer = new ParquetWriter<>(
        new Path("rows.parquet"), new Support(), CompressionCodecName.UNCOMPRESSED, 1 << 20, 1 << 20, true, false);
    for (int row = 0; row < 4; row++) {
      Group group = new SimpleGroup(SCHEMA);
      group.add("name", "name" + row % 2);
      writer.write(group);
    }
    writer.close();
  }
}
JAVA
mkdir classes
javac -nowarn -cp 'jars/*' -d classes Finding.java
java -cp 'classes:jars/*' Finding >/dev/null 2>&1

new/bin/python - <<'PYTHON'
import re
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq

NAMES = [b"name0", b"name1", b"name0", b"name1"]
READERS = {
    "PyArrow": lambda path: pq.read_table(path)["name"].to_pylist(),
    "Polars": lambda path: pl.read_parquet(path)["name"].to_list(),
    "DuckDB": lambda path: [row[0] for row in duckdb.sql(f"select name from '{path}'").fetchall()],
}


def outcome(read, path):
    try:
        return "right" if read(path) == NAMES else "wrong"
    except (OSError, pl.exceptions.ComputeError) as error:
        return str(error).splitlines()[0]


written = Path("rows.parquet").read_bytes()
writer = re.search(rb"parquet-mr \(build [0-9a-f]{40}\)", written)[0]
named = b"parquet-mr version 1.2.8 (build 1)"
Path("named.parquet").write_bytes(written.replace(writer, named.ljust(len(writer))))

seen = {path: {name: outcome(read, path) for name, read in READERS.items()} for path in ("rows.parquet", "named.parquet")}
for path, outcomes in seen.items():
    print(path, outcomes)
unnamed, named = seen.values()
assert "thrift" in unnamed["PyArrow"] and "thrift" in unnamed["Polars"] and unnamed["DuckDB"] == "right"
assert named == {"PyArrow": "right", "Polars": unnamed["Polars"], "DuckDB": "right"}
PYTHON
