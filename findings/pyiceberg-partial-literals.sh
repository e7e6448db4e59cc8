#!/bin/sh
# pyiceberg takes only a part of some literals, and finds and deletes the rows of another value.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: for a decimal column a float is rounded to the column's scale, where a Decimal or a text
# is refused. For a date column a datetime loses its time, and for a time column a text loses what
# follows microseconds, and its zone. With `case_sensitive=False`, of two columns whose names differ
# only by case the last one is compared, even if the filter has the exact name of the other. For a
# column of 32-bit floats PyArrow rounds a literal, but bounds are compared with it unrounded: whether
# a row is found depends on the other rows of its file.
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
from datetime import date, datetime, time
from decimal import Decimal
from itertools import count

import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import EqualTo, LessThan

catalog, numbers = InMemoryCatalog("shop", warehouse="."), count()
catalog.create_namespace("shop")
columns = [("price", pa.decimal128(5, 2)), ("day", pa.date32()), ("at", pa.time64("us"))]
schema = pa.schema([("row", pa.int64()), *columns, ("Key", pa.int64()), ("key", pa.int64())])
values = [
    [1, 2], [Decimal("1.50"), Decimal("1.51")], [date(2026, 2, 27), date(2026, 2, 28)],
    [time(12), time(13)], [7, 8], [8, 7],
]
rows = pa.table(values, schema=schema)


def find(condition, **options):
    table = catalog.create_table(f"shop.t{next(numbers)}", rows.schema)
    table.append(rows)
    scanned = table.scan(condition, **options).to_arrow()["row"].to_pylist()
    table.delete(condition, **options)
    return scanned, table.scan().to_arrow()["row"].to_pylist()


found = {
    "price = 1.505": find(EqualTo("price", 1.505)),
    "day < 2026-02-28 12:00": find(LessThan("day", datetime(2026, 2, 28, 12))),
    "at = 12:00:00.0000009": find("at = '12:00:00.0000009'"),
    "at = 12:00:00+02:00": find("at = '12:00:00+02:00'"),
    "Key = 7": find("Key = 7", case_sensitive=False),
}
for text, (scanned, left) in found.items():
    print(f"{text}: a scan returns {scanned}, delete leaves {left}")
assert found == {
    "price = 1.505": ([1], [2]),
    "day < 2026-02-28 12:00": ([1], [2]),
    "at = 12:00:00.0000009": ([1], [2]),
    "at = 12:00:00+02:00": ([1], [2]),
    "Key = 7": ([2], [1]),
}, "the behaviour has changed"

floats = []
for number, values in enumerate(([0.1], [0.1, 0.05])):
    table = pa.table({"f": pa.array(values, pa.float32())})
    stored = catalog.create_table(f"shop.floats{number}", table.schema)
    stored.append(table)
    floats.append(stored.scan("f = 0.1").to_arrow().num_rows)
print("rows with f = 0.1: found alone and beside a smaller one", floats)
assert floats == [0, 1], "the behaviour has changed"
PYTHON
