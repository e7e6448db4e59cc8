#!/bin/sh
# DuckDB's Parquet V2 stores 32-bit integers with differences of up to 34 bits: PyArrow cannot read
# them, and fastparquet returns other numbers.
#
# Versions: written by DuckDB 2.0.0 with `parquet_version v2`; read by PyArrow 26.0.1, fastparquet
# 2026.9.0, Polars 2.1.0 and DuckDB 2.0.0.
# Behaviour: DELTA_BINARY_PACKED stores differences of neighbouring values. In a column of 32 bits they
# wrap around at 32 bits by the format; DuckDB computes them with 64. This holds for INTEGER as well as
# for UINTEGER, whose first value is then stored with more than 32 bits as well.
# Seen: two billion beside minus two billion, and 4000000000 beside 5, are an error in PyArrow.
# fastparquet returns a wrong fourth value of [5, 4000000000, 7, 9] and no error. Polars and DuckDB
# return what was written.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    duckdb==2.0.0 fastparquet==2026.9.0 numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import duckdb
import fastparquet
import polars as pl
import pyarrow.parquet as pq

written = {"INTEGER": [-2_000_000_000, 2_000_000_000, 3], "UINTEGER": [5, 4_000_000_000, 7, 9]}
readers = {
    "PyArrow": lambda path: pq.read_table(path)["n"].to_pylist(),
    "Polars": lambda path: pl.read_parquet(path)["n"].to_list(),
    "DuckDB": lambda path: [row[0] for row in duckdb.sql(f"select n from '{path}'").fetchall()],
    "fastparquet": lambda path: fastparquet.ParquetFile(path).to_pandas()["n"].tolist(),
}


def outcome(read, path, values):
    try:
        return "right" if read(path) == values else "wrong"
    except OSError as error:
        print(error)
        return "an error"


found = {}
for kind, values in written.items():
    path, rows = f"{kind}.parquet", f"select unnest({values})::{kind} as n"
    duckdb.sql(f"copy ({rows}) to '{path}' (format parquet, parquet_version v2)")
    for name, read in readers.items():
        if (kind, name) != ("INTEGER", "fastparquet"):
            found[kind, name] = outcome(read, path, values)
print(*(f"{kind}, {name}: {result}" for (kind, name), result in found.items()), sep="\n")
seen = ["an error", "right", "right", "an error", "right", "right", "wrong"]
assert list(found.values()) == seen, "the behaviour has changed"
PYTHON
