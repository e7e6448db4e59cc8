#!/bin/sh
# delta-rs commits a negative decimal as the partition "-1.-25", and can then not read any row of the table.
#
# Versions: deltalake 1.6.6, PyArrow 26.0.1; Polars 2.1.0 as a reader.
# Behaviour: the digits after the point are written as a signed number of their own: -1.25 as "-1.-25",
# -0.05 as "0.-5", -1.00 as it should be. The append raises an error, after it has committed the version.
# Rows that were in the table before can only be read at an older version, by delta-rs and Polars.
# Seen: "Failed to parse value '-1.-25' as 'decimal(9,2)'"; version 1 in the log; 1 row at version 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    deltalake==1.6.6 pyarrow==26.0.1 polars==2.1.0

cd "$folder"
new/bin/python - <<'PYTHON'
import json
from decimal import Decimal

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake


def rows(number):
    return pa.table({"d": pa.array([Decimal(number)], pa.decimal128(9, 2)), "n": [1]})


def attempt(function):
    try:
        return function()
    except Exception as error:
        return str(error).split("\n")[0]


def committed(table, version):
    with open(f"{table}/_delta_log/{version:020}.json") as log:
        adds = [json.loads(line)["add"] for line in log if '"add"' in line]
    return adds[0]["partitionValues"]["d"]


found = {}
for number in ("-1.00", "-1.25", "-0.05"):
    write_deltalake(number, rows("2.00"), partition_by=["d"])
    error = attempt(lambda: write_deltalake(number, rows(number), mode="append"))
    found[number] = (
        error,
        committed(number, 1),
        attempt(lambda: DeltaTable(number).to_pyarrow_table().num_rows),
        attempt(lambda: pl.scan_delta(number).collect().height),
        attempt(lambda: DeltaTable(number, version=0).to_pyarrow_table().num_rows),
    )
    print(number, *found[number], sep="\t")
failed = "Kernel error: Failed to parse value '{}' as 'decimal(9,2)'".format
assert found == {
    "-1.00": (None, "-1.00", 2, 2, 1),
    "-1.25": (failed("-1.-25"), "-1.-25", failed("-1.-25"), failed("-1.-25"), 1),
    "-0.05": (failed("0.-5"), "0.-5", failed("0.-5"), failed("0.-5"), 1),
}, "the behaviour has changed"
PYTHON
