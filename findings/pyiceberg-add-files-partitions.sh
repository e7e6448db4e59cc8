#!/bin/sh
# pyiceberg's add_files puts nulls into the partition of the file's other value: filters lose them.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: `add_files` reads the value of a partition from the bounds of its column, and refuses files
# in which they differ. Bounds leave out nulls, so that a file of 7 and null is taken for one of 7
# alone, also where statistics count its nulls. Scans for null then skip the file, and its row
# appears only without a filter. Transforms such as day and truncate have the same effect.
# Seen: two rows without a filter, none for "is null"; one in a table without partitions.
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
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

catalog = InMemoryCatalog("shop", warehouse="warehouse")
catalog.create_namespace("shop")


def count(name, spec, kind, values):
    schema = Schema(NestedField(1, "v", kind, required=False))
    table = catalog.create_table(f"shop.{name}", schema, partition_spec=spec)
    pq.write_table(pa.table({"v": values}), f"{name}.parquet")
    table.add_files([f"{name}.parquet"])
    return table.scan().count(), table.scan(IsNull("v")).to_arrow().num_rows


cases = {
    "identity": (IdentityTransform(), LongType(), pa.array([7, None])),
    "day": (DayTransform(), TimestampType(), pa.array([datetime(2026, 11, 30, 12), None])),
    "truncate": (TruncateTransform(1), StringType(), pa.array(["Ada", None])),
}
for name, (transform, kind, values) in cases.items():
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    within = count(name, spec, kind, values)
    flat = count(f"{name}_flat", PartitionSpec(), kind, values)
    print(f"{name}: rows, and rows with null: {within} partitioned, {flat} not")
    assert (within, flat) == ((2, 0), (2, 1)), "the behaviour has changed"
PYTHON
