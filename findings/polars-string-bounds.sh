#!/bin/sh
# Polars 0.20.31 to 1.36.1 write a chunk's largest string too small, and filters of readers lose rows.
#
# Versions: written by Polars 1.36.1 with its defaults (Polars 2.0.0 is right); read by PyArrow 26.0.1,
# Polars 2.1.0 and DuckDB 2.0.0.
# Behaviour: if a column of strings takes several pages without a dictionary, Polars merges the pages'
# bounds by their common prefix alone. "user-9999" then stays the maximum, although "user-99999" is
# in the next page, whose own bounds in the column index are right. The same holds for minima, binary
# columns and members of structs.
# Seen: 10 of 262,144 strings are greater than "user-9999"; PyArrow and Polars find none of them by a
# filter, and DuckDB finds them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
install() { "$python" -m pip install --quiet --disable-pip-version-check --target "$@"; }
install "$folder/old" polars==1.36.1
install "$folder/new" polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.0

cd "$folder"
PYTHONPATH="$folder/old" "$python" - <<'PYTHON'
import polars as pl

pl.DataFrame({"s": [f"user-{i}" for i in range(262_144)]}).write_parquet("strings.parquet")
PYTHON
PYTHONPATH="$folder/new" "$python" - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

path, last = "strings.parquet", "user-9999"
first = pq.ParquetFile(path).read_row_group(0)["s"]
found = {
    "maximum in the statistics": pq.read_metadata(path).row_group(0).column(0).statistics.max,
    "maximum of the values": pc.max(first).as_py(),
    "rows": pq.read_table(path).filter(pc.field("s") > last).num_rows,
    "PyArrow, filtered": pq.read_table(path, filters=[("s", ">", last)]).num_rows,
    "Polars, filtered": pl.scan_parquet(path).filter(pl.col("s") > last).collect().height,
    "DuckDB, filtered": duckdb.sql(f"select s from '{path}' where s > '{last}'").fetchall(),
}
found["DuckDB, filtered"] = len(found["DuckDB, filtered"])
print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
assert list(found.values()) == ["user-9999", "user-99999", 10, 0, 0, 10], "the behaviour has changed"
PYTHON
