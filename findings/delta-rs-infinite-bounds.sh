#!/bin/sh
# PyArrow datasets of a delta-rs table lose whole files with an infinite number.
#
# Versions: deltalake 1.6.6, PyArrow 26.0.1.
# Behaviour: JSON has no infinity, so delta-rs records the bound as null. Its `to_pyarrow_dataset`, and so
# `to_pandas` and `to_pyarrow_table` with filters, skip the file for a comparison with the column that the
# other bound does not decide, also for its finite numbers. SQL of delta-rs finds all rows.
# delta-io/delta-rs#1411 (closed) is about the error that such tables once gave.
# Seen: no row with f < 2, and none with f > 2, of a file with 1.0 and infinity; SQL finds one each.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    deltalake==1.6.6 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

found = {}
for name, great in (("finite", 9.0), ("infinite", float("inf"))):
    write_deltalake(name, pa.table({"f": [1.0, great]}))
    table = DeltaTable(name)
    sql = QueryBuilder().register("t", table)
    for condition, wanted in (("f < 2", pc.field("f") < 2), ("f > 2", pc.field("f") > 2)):
        column, operator, number = condition.split()
        found[name, condition] = (
            table.to_pyarrow_dataset().to_table(filter=wanted).num_rows,
            table.to_pyarrow_table(filters=[(column, operator, float(number))]).num_rows,
            pa.table(sql.execute(f"SELECT * FROM t WHERE {condition}").read_all()).num_rows,
        )
        print(name, condition, *found[name, condition], sep="\t")
assert found == {
    ("finite", "f < 2"): (1, 1, 1),
    ("finite", "f > 2"): (1, 1, 1),
    ("infinite", "f < 2"): (0, 0, 1),
    ("infinite", "f > 2"): (0, 0, 1),
}, "the behaviour has changed"
PYTHON
