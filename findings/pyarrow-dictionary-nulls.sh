#!/bin/sh
# PyArrow does not count the nulls of a struct around a dictionary column: filters for nulls lose rows.
#
# Versions: PyArrow 26.0.1, Polars 2.1.0, DuckDB 2.0.0.
# Behaviour: the field of a null struct is null. For a field with dictionary encoding, the statistics of
# the column chunk count the dictionary's own nulls alone, and readers skip the row group when they look
# for nulls. For the same values without a dictionary the number is right. PyArrow finds the row in its
# own file by the Arrow schema there, of which other readers know nothing.
# Seen: a null count of 0 instead of 1, and no row where the field is null.
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

plain = pa.array(["red", "blue"])
seen = {}
for name, values in (("plain", plain), ("dictionary", plain.dictionary_encode())):
    paint = pa.StructArray.from_arrays([values], ["colour"], mask=pa.array([False, True]))
    path = f"{name}.parquet"
    pq.write_table(pa.table({"paint": paint}), path, store_schema=False)
    nulls = pq.read_metadata(path).row_group(0).column(0).statistics.null_count
    missing = pc.field("paint", "colour").is_null()
    colour = pl.col("paint").struct.field("colour")
    rows = {
        "PyArrow": ds.dataset(path).to_table(filter=missing).num_rows,
        "Polars": pl.scan_parquet(path).filter(colour.is_null()).collect().height,
        "DuckDB": len(duckdb.sql(f"FROM '{path}' WHERE paint.colour IS NULL").fetchall()),
    }
    print(name, "null count", nulls, "rows found", rows)
    seen[name] = nulls, rows
found = {"PyArrow": 0, "Polars": 0, "DuckDB": 0}
assert seen == {
    "plain": (1, dict.fromkeys(found, 1)),
    "dictionary": (0, found),
}, "the behaviour has changed"
PYTHON
