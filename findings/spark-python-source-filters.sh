#!/bin/sh
# Spark 4.3.0 keeps a filter that a Python data source took over, and applies it to other queries of
# the same DataFrame.
#
# Versions: PySpark 4.3.0 on Java 17, with `spark.sql.python.filterPushdown.enabled` (off by default).
# Behaviour: the source takes `n = 1` over in `pushFilters`. The plan of a read belongs to what
# `load()` returned, and the filter stays in it: a query of the same DataFrame without a filter, or
# with another one, in the same plan or later, gets the rows of one filter.
# Seen: of five rows, the union of `n = 1` and all has two rows instead of six; the union of `n = 1`
# and `n = 2` has the row 2 twice; after two filtered queries, the whole DataFrame counts 1 row.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    pandas==2.3.3 pyarrow==22.0.0 pyspark==4.3.0

cd "$folder"
PYSPARK_PYTHON="$folder/new/bin/python" new/bin/python - 2>log <<'PYTHON' || { cat log; exit 1; }
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo


class Numbers(DataSourceReader):
    def __init__(self):
        self.only = range(5)

    def pushFilters(self, filters):
        for wanted in filters:
            if isinstance(wanted, EqualTo):
                self.only = [wanted.value]
            else:
                yield wanted

    def read(self, partition):
        return ((n,) for n in self.only)


class Five(DataSource):
    @classmethod
    def name(cls):
        return "five"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Numbers()


spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .getOrCreate()
)
spark.dataSource.register(Five)


def load():
    return spark.read.format("five").load()


def rows(frame):
    return sorted(row.n for row in frame.collect())


first, second, third = load(), load(), load()
found = {
    "all": rows(load()),
    "1, then all": rows(first.filter("n = 1").union(first)),
    "1, then 2": rows(second.filter("n = 1").union(second.filter("n = 2"))),
    "1; 2; all": [rows(third.filter("n = 1")), rows(third.filter("n = 2")), rows(third)],
}
print(*(f"{query}: {result}" for query, result in found.items()), sep="\n")
seen = [[0, 1, 2, 3, 4], [1, 1], [2, 2], [[1], [2], [2]]]
assert list(found.values()) == seen, "the behaviour has changed"
spark.stop()
PYTHON
