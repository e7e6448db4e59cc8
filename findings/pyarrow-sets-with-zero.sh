#!/bin/sh
# PyArrow's filter "in" returns no row of a row group whose floats are all zero, though the set has zero.
#
# Versions: PyArrow 26.0.1; Polars 2.1.0 and DuckDB 2.0.0 as comparison.
# Behaviour: as the specification asks, a chunk of zeros has the bounds -0.0 and 0.0. PyArrow's dataset
# takes them for equal, the column for -0.0 in all rows, and looks this up in the set, where -0.0
# is another value than 0.0. The same filter on a table in memory returns the rows, and so does "=".
# Seen: two rows for [0.0, 9.0] in memory, in Polars and DuckDB, none from the file; rows come back if
# the row group has one other number, or a null.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.0

cd "$folder"
new/bin/python - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

path, wanted = "zeros.parquet", [0.0, 9.0]


def count(*values):
    rows = pa.table({"v": pa.array(values, pa.float64())})
    pq.write_table(rows, path)
    chunk = pq.read_metadata(path).row_group(0).column(0).statistics
    condition = pc.field("v").isin(wanted)
    counts = {
        "in memory": rows.filter(condition).num_rows,
        "Polars": pl.scan_parquet(path).filter(pl.col("v").is_in(wanted)).collect().height,
        "DuckDB": len(duckdb.sql(f"select v from '{path}' where v in (0.0, 9.0)").fetchall()),
        "PyArrow, =": pq.read_table(path, filters=[("v", "=", 0.0)]).num_rows,
        "PyArrow, in": pq.read_table(path, filters=[("v", "in", wanted)]).num_rows,
        "dataset, isin": ds.dataset(path).to_table(filter=condition).num_rows,
    }
    print(values, f"with bounds {chunk.min} and {chunk.max}:", counts)
    return list(counts.values())


found = [count(0.0, 0.0), count(0.0, 0.0, 5.0), count(0.0, 0.0, None)]
assert found == [[2, 2, 2, 2, 0, 0], [2] * 6, [2] * 6], "the behaviour has changed"
PYTHON
