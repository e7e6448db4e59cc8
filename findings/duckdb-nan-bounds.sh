#!/bin/sh
# DuckDB takes the bounds of floats to include NaN: filters, and max(), do not find the NaN of other writers.
#
# Versions: DuckDB 2.0.0, with files of PyArrow 26.0.1 and of DuckDB.
# Behaviour: bounds leave out NaN, and the specification asks readers that look for NaN to ignore them.
# DuckDB, for which NaN is greater than all numbers, skips row groups by them, and answers max() from
# them. A comparison that a query computes is replaced by a constant. DuckDB writes no bounds for
# floats with NaN, so its own files are read right, and so is a table that was made from the same file.
# Seen: of 7.0, NaN and 8.0, max() is 8.0 and no value is greater than 9; in a table NaN is both.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import math

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

pq.write_table(pa.table({"v": [7.0, math.nan, 8.0]}), "pyarrow.parquet")
database = duckdb.connect()
database.execute("CREATE TABLE rows AS FROM 'pyarrow.parquet'")
database.execute("COPY rows TO 'duckdb.parquet'")
queries = {
    "count(*) FROM {} WHERE isnan(v)": (1, 0),
    "count(*) FROM {} WHERE v = 'nan'": (1, 0),
    "count(*) FROM {} WHERE v > 9": (1, 0),
    "count(*) FROM {} WHERE NOT v < 9": (1, 0),
    "sum(CASE WHEN v > 9 THEN 1 ELSE 0 END) FROM {}": (1, 0),
    "CAST(max(v) AS VARCHAR) FROM {}": ("nan", "8.0"),
}
found = {}
for query in queries:
    table, own, other = (
        database.sql("SELECT " + query.format(source)).fetchall()[0][0]
        for source in ("rows", "'duckdb.parquet'", "'pyarrow.parquet'")
    )
    print(query.format("x"), f"table {table}", f"DuckDB's file {own}", f"PyArrow's {other}", sep="\t")
    assert table == own, "the behaviour has changed"
    found[query] = (table, other)
assert found == queries, "the behaviour has changed"
PYTHON
