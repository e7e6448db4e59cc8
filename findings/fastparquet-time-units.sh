#!/bin/sh
# fastparquet takes seconds for milliseconds, and in INT96 microseconds for nanoseconds: times move by years.
#
# Versions: fastparquet 2026.9.0 with pandas 3.1.1; PyArrow 26.0.1 as another reader.
# Behaviour: `times="int96"` stores the numbers of the column as nanoseconds, whatever its unit; pandas 3
# parses text to microseconds. Without it, datetime64[s] is stored as milliseconds after a division by
# 1000 in place of a multiplication (since the mend of dask/fastparquet#960), and timedelta64[s] as
# microseconds. Writing is no error.
# Seen: 1 December 2026 comes back as 21 January 1970 (int96), or in PyArrow as 1 January 1970 (seconds), a
# file that fastparquet refuses to read; 90 seconds are 90 microseconds. ms, us and ns are right without
# int96, and ns is right with it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    fastparquet==2026.9.0 numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import fastparquet
import numpy as np
import pandas as pd
import pyarrow.parquet as pq

PARSED = pd.Series(pd.to_datetime(["2026-12-01 10:20:30"]))


def read_back(values, **options):
    """Return what PyArrow and fastparquet find in a file with the values, as text."""
    fastparquet.write("times.parquet", pd.DataFrame({"t": values}), **options)
    try:
        own = fastparquet.ParquetFile("times.parquet").to_pandas()["t"][0]
    except ValueError as error:
        own = error
    return str(pq.read_table("times.parquet")["t"][0].as_py()), str(own)


found = {"int96, parsed": read_back(PARSED, times="int96")}
for unit in ("s", "ms", "us", "ns"):
    found[unit] = read_back(PARSED.astype(f"datetime64[{unit}]"))
found["int96, ns"] = read_back(PARSED.astype("datetime64[ns]"), times="int96")
found["90 s"] = read_back(pd.Series(np.array([90], "timedelta64[s]")))
for name, seen in found.items():
    print(name, *seen, sep="\t")
right = ("2026-12-01 10:20:30",) * 2
same = {name for name, seen in found.items() if seen == right}
assert same == {"ms", "us", "ns", "int96, ns"}, "the behaviour has changed"
assert found["int96, parsed"] == ("1970-01-21 18:55:20.430000",) * 2, "the behaviour has changed"
cannot = "Cannot losslessly cast '1796120 ms' to s"
assert found["s"] == ("1970-01-01 00:29:56.120000", cannot), "the behaviour has changed"
assert found["90 s"][0] == "00:00:00.000090", "the behaviour has changed"
PYTHON
