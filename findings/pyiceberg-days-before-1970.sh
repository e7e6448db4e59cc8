#!/bin/sh
# pyiceberg writes times before 1970 into partitions in which filters do not look for them.
#
# Versions: pyiceberg 0.12.0 with pyiceberg-core 0.10.1 and PyArrow 26.0.1.
# Behaviour: the day transform of Arrow arrays, which pyiceberg-core does in Rust, rounds the fraction
# of a second up before it finds the day: the last second of each day before 1970-01-01 becomes the
# next day. Filters compute the day in Python, which is right, and skip the file. Buckets of
# nanoseconds are of microseconds that are rounded up, too, where Java rounds them down.
# Seen: of the rows below, a scan for the exact time finds the one in whole seconds only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "pyiceberg[sql-sqlite]==0.12.0" pyiceberg-core==0.10.1 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import TimestampNanoType, TimestampType

catalog = InMemoryCatalog("shop", warehouse=".")
catalog.create_namespace("shop")
times = [datetime(1969, 12, 30, 23, 59, 59), datetime(1969, 12, 30, 23, 59, 59, 500_000)]
rows = pa.table({"at": times})
table = catalog.create_table("shop.days", rows.schema)
with table.update_spec() as spec:
    spec.add_field("at", DayTransform(), "day")
table.append(rows)
found = [table.scan(EqualTo("at", time)).to_arrow().num_rows for time in times]
partitions = sorted(file.file.partition[0] for file in table.scan().plan_files())
print("rows found of each time", found, "in the partitions", partitions)
assert (found, partitions) == ([1, 0], [-2, -1]), "the behaviour has changed"

micros = pa.array([-2], pa.int64()).cast(pa.timestamp("us"))
nanos = pa.array([-1500], pa.int64()).cast(pa.timestamp("ns"))
bucket = BucketTransform(1000)
of_micros = bucket.pyarrow_transform(TimestampType())(micros)[0].as_py()
of_nanos = bucket.pyarrow_transform(TimestampNanoType())(nanos)[0].as_py()
print("buckets of -2 microseconds and of -1500 nanoseconds, which are in it:", of_micros, of_nanos)
assert of_micros != of_nanos, "the behaviour has changed"
PYTHON
