#!/bin/sh
# pyiceberg finds and deletes other rows for numbers beyond a column's type, and rounds 2.5 for an int.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: a literal beyond the range of an int, long or float stands for the last value of the type.
# In a set it is compared with rows: `n in (5, 3000000000)` finds 2147483647, and `delete` removes it.
# Alone it makes a comparison true for each row: `n < 3000000000` finds nulls, which `n < 2000000000`
# does not. An infinity is beyond the range of a float, so that `f = inf` finds none. A decimal literal
# is rounded for an int or long: `n >= 2.5` finds 2.
# Seen: the rows below, of a scan and of `delete`.
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
from pyiceberg.expressions import EqualTo

catalog, numbers = InMemoryCatalog("shop", warehouse="."), count()
catalog.create_namespace("shop")
names = ["null", "two", "five", "last"]
rows = pa.table(
    {
        "row": names,
        "n": pa.array([None, 2, 5, 2**31 - 1], pa.int32()),
        "f": pa.array([None, 2, float("inf"), 5], pa.float32()),
    }
)


def find(condition):
    table = catalog.create_table(f"shop.t{next(numbers)}", rows.schema)
    table.append(rows)
    scanned = table.scan(condition).to_arrow()["row"].to_pylist()
    table.delete(condition)
    left = table.scan().to_arrow()["row"].to_pylist()
    return scanned, [name for name in names if name not in left]


conditions = {
    "n in (5, 3000000000)": ["five", "last"],
    "n not in (5, 3000000000)": ["null", "two"],
    "n < 2000000000": ["two", "five"],
    "n < 3000000000": ["null", "two", "five", "last"],
    "n >= 2.5": ["two", "five", "last"],
    EqualTo("f", float("inf")): [],
}
for condition, expected in conditions.items():
    scanned, deleted = find(condition)
    print(f"{condition}: a scan returns {scanned}, delete removes {deleted}")
    assert scanned == expected, "the behaviour has changed"
    assert deleted == [name for name in expected if name != "null" or "not" not in str(condition)]
PYTHON
