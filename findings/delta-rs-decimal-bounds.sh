#!/bin/sh
# delta-rs records the bounds of decimals as floats: filters lose rows, and `delete` leaves them.
#
# Versions: deltalake 1.6.6, PyArrow 26.0.1; Polars 2.1.0 as a reader.
# Behaviour: the log has 90071992547409.92 as the maximum of a file with 90071992547409.93. SQL of delta-rs,
# PyArrow and Polars skip the file for this value, and so does delta-rs' own `delete`. Where the float is
# rounded beyond what the column's type can hold, the bound is taken for null, and PyArrow datasets of the
# table lose the whole file, also for small values.
# delta-io/delta-rs#4757 mended decimals without digits after the point, in September 2026.
# Seen: no row for 90071992547409.93 in any reader, and 0 rows deleted; no row for 1.25 beside
# 9999999999999999.99 in PyArrow, which finds both in the same Parquet files.
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
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder, write_deltalake


def matches(path, number, kind):
    """Return how many rows with the number are in the files, and how many each reader finds."""
    table, wanted = DeltaTable(path), pc.field("d") == pa.scalar(number, kind)
    sql = f"SELECT d FROM t WHERE d = arrow_cast('{number}', 'Decimal128({kind.precision}, {kind.scale})')"
    return (
        ds.dataset(table.file_uris()).to_table(filter=wanted).num_rows,
        table.to_pyarrow_dataset().to_table(filter=wanted).num_rows,
        pa.table(QueryBuilder().register("t", table).execute(sql).read_all()).num_rows,
        pl.scan_delta(path).filter(pl.col("d") == number).collect().height,
    )


found = {}
for case, kind, numbers in (
    ("rounded", pa.decimal128(16, 2), ["0.01", "90071992547409.93"]),
    ("great", pa.decimal128(18, 2), ["1.25", "9999999999999999.99"]),
):
    numbers = [Decimal(number) for number in numbers]
    write_deltalake(case, pa.table({"d": pa.array(numbers, kind)}))
    with open(f"{case}/_delta_log/{0:020}.json") as log:
        [add] = [json.loads(line)["add"] for line in log if '"add"' in line]
    found[case] = [matches(case, number, kind) for number in numbers]
    print(case, found[case], add["stats"], sep="\t")
deleted = DeltaTable("rounded").delete("d = 90071992547409.93")["num_deleted_rows"]
print("deleted", deleted, sep="\t")
assert deleted == 0, "the behaviour has changed"
assert found == {
    "rounded": [(1, 1, 1, 1), (1, 0, 0, 0)],
    "great": [(1, 0, 1, 1), (1, 0, 1, 1)],
}, "the behaviour has changed"
PYTHON
