#!/bin/sh
# Polars reads no column of a file in which some column is a VARIANT.
#
# Versions: Polars 2.1.0; DuckDB 2.0.1 as the writer, PyArrow 26.0.1 as the judge.
# Behaviour: a member of the union LogicalType that Polars does not know is an error for the whole
# footer, also if other columns are selected; PyArrow leaves such an annotation out.
# Seen: "parquet: File out of specification: LogicalType union has no variant set", for reading,
# for a lazy scan of `id` alone, and for the schema.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow.parquet as pq

duckdb.sql("copy (select 1 as id, {'a': 1}::variant as v) to 'v.parquet' (format parquet)")
duckdb.sql("copy (select 1 as id, {'a': 1} as v) to 'struct.parquet' (format parquet)")
ways = {
    "read": lambda name: pl.read_parquet(name, columns=["id"])["id"].to_list(),
    "scan": lambda name: pl.scan_parquet(name).select("id").collect()["id"].to_list(),
    "schema": lambda name: [column for column in pl.read_parquet_schema(name) if column == "id"],
}
seen = {}
for way, read in ways.items():
    assert read("struct.parquet") in ([1], ["id"])
    try:
        seen[way] = str(read("v.parquet"))
    except pl.exceptions.ComputeError as error:
        seen[way] = str(error)
    print(f"{way}: {seen[way]}")
print("PyArrow:", pq.read_table("v.parquet", columns=["id"])["id"].to_pylist())
assert pq.read_table("v.parquet", columns=["id"])["id"].to_pylist() == [1]
assert all("LogicalType union has no variant set" in text for text in seen.values()), (
    "the behaviour has changed"
)
PYTHON
