#!/bin/sh
# PyArrow 26.0.1 returns no row of a row group whose only row is a list in several data pages.
#
# Versions: written by PyArrow 26.0.1; read by PyArrow 26.0.1, Polars 2.1.0 and DuckDB 2.0.0.
# Behaviour: with pages smaller than an empty encoder, PyArrow writes a data page without values before
# the first list of a row group. Its reader takes such a page for the end of the column chunk.
# Seen: the footer counts 1 row, PyArrow returns 0 rows and no error, Polars and DuckDB return 1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m pip install --quiet --disable-pip-version-check --target "$folder/new" \
    polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.0

cd "$folder"
PYTHONPATH="$folder/new" "$python" - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

path = "lists.parquet"
table = pa.table({"c": [[{"n": 1}]]})
pq.write_table(table, path, data_page_size=1, write_batch_size=1)
found = {
    "rows in the footer": pq.read_metadata(path).num_rows,
    "PyArrow": pq.read_table(path).num_rows,
    "Polars": pl.read_parquet(path).height,
    "DuckDB": len(duckdb.sql(f"select c from '{path}'").fetchall()),
}
print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
assert list(found.values()) == [1, 0, 1, 1], "the behaviour has changed"
PYTHON
