#!/bin/sh
# Spark and DataFusion look for 0.0 in a bloom filter by its sign: rows with -0.0 are lost.
#
# Versions: Spark 4.3.0 (its parquet-hadoop), Java 17; DataFusion 55.0.0; DuckDB 2.0.0 as another reader.
# Behaviour: `d = 0.0` is true for -0.0 in SQL of all three. The bloom filter of a column of doubles has
# the bytes of -0.0 alone, and the row group is skipped for the bytes of 0.0, also with IN. DataFusion turns
# `d >= 0.0 AND d <= 0.0` into `d = 0.0`. Without bloom filter, all find the row. The format leaves the
# case open (apache/parquet-format#407); DuckDB had the fault until 2026 (duckdb/duckdb#23829).
# Seen: 0 rows with a bloom filter, 1 without, in Spark and DataFusion; DuckDB finds 1 in both files.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    pyspark==4.3.0 datafusion==55.0.0 duckdb==2.0.0 pyarrow==26.0.1

cd "$folder"
PYSPARK_PYTHON="$folder/new/bin/python" new/bin/python - <<'PYTHON'
import glob

import datafusion
import duckdb
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.createDataFrame([(-0.0,), (1.0,), (2.0,)], "d double").coalesce(1)
conditions = ("d = 0.0", "d = -0.0", "d IN (0.0, 7.0)", "d >= 0.0 AND d <= 0.0")
query = "SELECT d FROM {} WHERE {}".format
found = {}
for name, filtered in (("none", "false"), ("filter", "true")):
    # With a dictionary, parquet-hadoop would need no bloom filter.
    options = {"parquet.enable.dictionary": "false", "parquet.bloom.filter.enabled": filtered}
    rows.write.options(**options).parquet(name)
    [file] = glob.glob(f"{name}/*.parquet")
    other = datafusion.SessionContext()
    other.register_parquet("t", file)
    spark.read.parquet(name).createOrReplaceTempView("t")
    for condition in conditions:
        double = condition.replace(".0", ".0D")  # Spark's literal of a double
        if condition == "d = -0.0":
            double = "d = double('-0.0')"
        found[name, condition] = (
            spark.sql(query("t", double)).count(),
            len(other.sql(query("t", condition.replace("-0.0", "double '-0.0'"))).to_arrow_table()),
            len(duckdb.execute(query(f"'{file}'", condition)).fetchall()),
        )
        print(name, condition, *found[name, condition], sep="\t")
right = dict.fromkeys(found, (1, 1, 1))
assert found == right | {
    ("filter", "d = 0.0"): (0, 0, 1),
    ("filter", "d IN (0.0, 7.0)"): (0, 0, 1),
    ("filter", "d >= 0.0 AND d <= 0.0"): (1, 0, 1),
}, "the behaviour has changed"
PYTHON
