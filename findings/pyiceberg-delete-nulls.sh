#!/bin/sh
# pyiceberg deletes rows with nulls that a scan with the same filter does not return, depending on their files.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: `Table.delete(filter)` drops a file as a whole if its statistics prove that all rows match,
# and there null matches "not equal", "not in" and "not NaN". Other files are filtered by PyArrow, for
# which null matches none of these. A scan returns nulls for "not in" a set of two values or more,
# but not for "not equal", nor for "not in" a set of one; of a partitioned table, `count()` does.
# Seen: the rows below, once in one file and once in a file each; of a partition each, `count()` finds 2
# rows for "v != 1", where the scan returns one.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
from itertools import count

import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import NotEqualTo, NotIn, NotNaN

catalog, numbers = InMemoryCatalog("shop", warehouse="."), count()
catalog.create_namespace("shop")
rows = pa.table({"row": ["one", "two", "null"], "v": [1.0, 2.0, None]})


def find(files, condition):
    table = catalog.create_table(f"shop.t{next(numbers)}", rows.schema)
    for file in files:
        table.append(file)
    scanned = table.scan(condition).to_arrow()["row"].to_pylist()
    table.delete(condition)
    left = table.scan().to_arrow()["row"].to_pylist()
    return sorted(scanned), sorted(set(rows["row"].to_pylist()) - set(left))


apart = [rows.slice(n, 1) for n in range(3)]
conditions = {
    "v != 1": NotEqualTo("v", 1.0),
    "v not in (1)": NotIn("v", [1.0]),
    "v not in (1, 7)": NotIn("v", [1.0, 7.0]),
    "v is not NaN": NotNaN("v"),
}
found = {}
for text, condition in conditions.items():
    scanned, deleted = find([rows], condition)
    scanned_apart, deleted_apart = find(apart, condition)
    assert scanned == scanned_apart, "the behaviour has changed"
    found[text] = scanned, deleted, deleted_apart
    print(f"{text}: a scan returns {scanned}, delete removes {deleted}, or of a file each {deleted_apart}")
assert found == {
    "v != 1": (["two"], ["two"], ["null", "two"]),
    "v not in (1)": (["two"], ["two"], ["null", "two"]),
    "v not in (1, 7)": (["null", "two"], ["two"], ["null", "two"]),
    "v is not NaN": (["one", "two"], ["one", "two"], ["null", "one", "two"]),
}, "the behaviour has changed"

table = catalog.create_table("shop.partitioned", rows.schema)
with table.update_spec() as spec:
    spec.add_identity("v")
table.append(rows)
scan = table.scan(conditions["v != 1"])
counts = scan.to_arrow().num_rows, scan.count()
print("v != 1 in a partitioned table: rows and count", counts)
assert counts == (1, 2), "the behaviour has changed"
PYTHON
