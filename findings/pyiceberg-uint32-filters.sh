#!/bin/sh
# pyiceberg adds files with a column of uint32 to a table of longs, and filters lose their greater values.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: `add_files` takes a uint32 column for a long, and stores the right bounds. A scan then
# converts its filter to the type of the file's column, for which it takes a signed int: a number
# beyond 2**31 - 1 fits no such column, so that "greater" is always false and "less" always true.
# Scans without a filter are right, and so are the rows that `append` wrote, which are longs.
# Seen: of 1 and 4,000,000,000, no row equals the latter, and 2 are less.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog

catalog = InMemoryCatalog("shop", warehouse="warehouse")
catalog.create_namespace("shop")
rows = pa.table({"v": pa.array([1, 4_000_000_000], pa.uint32())})
pq.write_table(rows, "unsigned.parquet")
added, appended = (
    catalog.create_table(f"shop.{name}", pa.schema({"v": pa.int64()})) for name in ("a", "b")
)
added.add_files(["unsigned.parquet"])
appended.append(rows)
bounds = added.inspect.files()["readable_metrics"][0].as_py()["v"]
assert (bounds["lower_bound"], bounds["upper_bound"]) == (1, 4_000_000_000), bounds
right = {
    "v >= 1": 2,
    "v == 4000000000": 1,
    "v > 3000000000": 1,
    "v in (1, 4000000000)": 2,
    "v < 4000000000": 1,
}
found = {
    name: [table.scan(condition).to_arrow().num_rows for condition in right]
    for name, table in {"added": added, "appended": appended}.items()
}
print(*right, sep=", ")
print(found)
assert found == {"added": [2, 0, 0, 1, 2], "appended": list(right.values())}, (
    "the behaviour has changed"
)
PYTHON
