#!/bin/sh
# Polars 1.28 to 2.0 leave every value of a page with one NaN out of a chunk's bounds, and filters of
# readers lose rows.
#
# Versions: written by Polars 2.0.0 with its defaults (1.27 and 2.1 are right); read by PyArrow 26.0.1,
# Polars 2.1.0 and DuckDB 2.0.0.
# Behaviour: a page in which a NaN is has no bounds, so that the column index marks it as a page of
# nulls with a null count of 0. The chunk's bounds are those of the other pages alone.
# Seen: 999 of 400,000 floats are less than 1000; all three readers find none of them by a filter.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
install() { "$python" -m pip install --quiet --disable-pip-version-check --target "$@"; }
install "$folder/old" polars==2.0.0
install "$folder/new" polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.0

cd "$folder"
PYTHONPATH="$folder/old" "$python" - <<'PYTHON'
import polars as pl

values = [float("nan") if i == 5 else float(i) for i in range(400_000)]
pl.DataFrame({"f": values}).write_parquet("floats.parquet")
PYTHON
PYTHONPATH="$folder/new" "$python" - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

path = "floats.parquet"
found = {
    "minimum in the statistics": pq.read_metadata(path).row_group(0).column(0).statistics.min,
    "rows": pq.read_table(path).filter(pc.field("f") < 1000).num_rows,
    "PyArrow, filtered": pq.read_table(path, filters=[("f", "<", 1000.0)]).num_rows,
    "Polars, filtered": pl.scan_parquet(path).filter(pl.col("f") < 1000).collect().height,
    "DuckDB, filtered": len(duckdb.sql(f"select f from '{path}' where f < 1000").fetchall()),
}
print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
assert list(found.values()) == [116508.0, 999, 0, 0, 0], "the behaviour has changed"
PYTHON
