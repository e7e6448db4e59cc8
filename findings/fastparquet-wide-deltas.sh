#!/bin/sh
# fastparquet reads other integers from delta-packed columns whose differences need 28 bits or more.
#
# Versions: fastparquet 2026.9.0; written by PyArrow 26.0.1; Polars 2.1.0 and DuckDB 2.0.0 as other readers.
# Behaviour: DELTA_BINARY_PACKED stores differences with as many bits as the widest of a block needs. Up to 27
# bits fastparquet is right; from 28 bits on, bits of one number end up in its neighbours. There is no error.
# The encoding is the usual one of integers and timestamps in files of version 2 by parquet-java and DuckDB.
# Seen: none of 400 numbers is wrong below 2**27, more than 390 are below 2**28; the others read all of them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    duckdb==2.0.0 fastparquet==2026.9.0 numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import random

import duckdb
import fastparquet
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

PATH = "numbers.parquet"
READERS = {
    "fastparquet": lambda: fastparquet.ParquetFile(PATH).to_pandas()["n"].tolist(),
    "PyArrow": lambda: pq.read_table(PATH)["n"].to_pylist(),
    "Polars": lambda: pl.read_parquet(PATH)["n"].to_list(),
    "DuckDB": lambda: [row[0] for row in duckdb.sql(f"select n from '{PATH}'").fetchall()],
}
found = {}
for kind in (pa.int32(), pa.int64()):
    for bits in (27, 28):
        choose = random.Random(bits)
        numbers = [choose.randrange(1 << bits) for _ in range(400)]
        table = pa.table({"n": pa.array(numbers, kind)})
        encoding = {"n": "DELTA_BINARY_PACKED"}
        pq.write_table(table, PATH, use_dictionary=False, column_encoding=encoding)
        for name, read in READERS.items():
            pairs = zip(numbers, read(), strict=True)
            found[str(kind), bits, name] = sum(wanted != seen for wanted, seen in pairs)
print(*found.items(), sep="\n")
for (_, bits, name), wrong in found.items():
    expected = bits == 28 and name == "fastparquet"
    assert wrong > 390 if expected else not wrong, "the behaviour has changed"
PYTHON
