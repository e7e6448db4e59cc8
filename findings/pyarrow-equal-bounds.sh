#!/bin/sh
# PyArrow takes a row group with equal bounds for a constant column: filters lose its zeros and NaN.
#
# Versions: PyArrow 26.0.1; Polars 2.1.0 as comparison.
# Behaviour: bounds leave out NaN, and a chunk of zeros has the bounds -0.0 and 0.0, as the
# specification asks. Of equal bounds, PyArrow's datasets conclude that each value is the lower one.
# So a chunk of 7.0 and NaN has no NaN for them, and zeros are -0.0, which a set with 0.0 does not
# contain, although "=" takes both for equal. The same filters work on a table in memory.
# Seen: no row for `is_nan`, nor for a set with 0.0; with one more number, or for the set with one more
# null in the row group, all rows.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    pyarrow==26.0.1 polars==2.1.0

cd "$folder"
new/bin/python - <<'PYTHON'
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAN, path, field = float("nan"), "rows.parquet", pc.field("v")
in_set = "in [0.0, 9.0]", field.isin([0.0, 9.0]), pl.col("v").is_in([0.0, 9.0])
is_nan = "is NaN", field.is_nan(), pl.col("v").is_nan()
not_seven = "!= 7.0", field != 7.0, pl.col("v") != 7.0
found = []
for values, (text, condition, in_polars) in [
    ([0.0, 0.0], in_set),
    ([0.0, 0.0, 5.0], in_set),
    ([0.0, 0.0, None], in_set),
    ([7.0, NAN], is_nan),
    ([7.0, NAN, 8.0], is_nan),
    ([7.0, NAN], not_seven),
    ([7.0, NAN, 8.0], not_seven),
]:
    rows = pa.table({"v": pa.array(values, pa.float64())})
    pq.write_table(rows, path)
    chunk = pq.read_metadata(path).row_group(0).column(0).statistics
    counts = (
        rows.filter(condition).num_rows,
        pl.scan_parquet(path).filter(in_polars).collect().height,
        pq.read_table(path, filters=condition).num_rows,
    )
    found.append(counts)
    print(values, f"bounds {chunk.min} and {chunk.max}", text, *counts, sep="\t")
print("each with the rows of PyArrow in memory, Polars, and PyArrow from the file")
assert found == [
    (2, 2, 0),
    (2, 2, 2),
    (2, 2, 2),
    (1, 1, 0),
    (1, 1, 1),
    (1, 1, 0),
    (2, 2, 2),
], "the behaviour has changed"
PYTHON
