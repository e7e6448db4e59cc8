#!/bin/sh
# pyiceberg writes rows twice into a table that is partitioned by floats with both zeros, and refuses NaN.
#
# Versions: pyiceberg 0.12.0 with PyArrow 26.0.1.
# Behaviour: in a table with an identity partition on a float, `append` finds -0.0 and 0.0 to be two
# values, and then the rows of each by "equal", which both zeros meet: each partition gets the rows
# of both. By "equal", the partition of NaN has no rows, at which `append` fails.
# Seen: of 3 rows, -0.0, 0.0 and 1.0, the table has 5; with a NaN "ZeroDivisionError: division by
# zero".
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
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField

catalog = InMemoryCatalog("shop", warehouse=".")
catalog.create_namespace("shop")
schema = Schema(NestedField(1, "v", DoubleType(), required=False))
partitioned = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "v"))


def append(name, values, spec):
    table = catalog.create_table(name, schema, partition_spec=spec)
    table.append(pa.table({"v": pa.array(values, pa.float64())}))
    files = table.inspect.files().num_rows
    rows = table.scan().to_arrow().num_rows
    added = int(table.current_snapshot().summary["added-records"])
    return files, rows, added


zeros = append("shop.zeros", [-0.0, 0.0, 1.0], partitioned)
flat = append("shop.flat", [-0.0, 0.0, 1.0], PartitionSpec())
nan_flat = append("shop.nan_flat", [float("nan"), 1.0], PartitionSpec())
try:
    nan = append("shop.nan", [float("nan"), 1.0], partitioned)
except ZeroDivisionError as error:
    nan = str(error)
print("files, rows, rows of the summary")
print("zeros:", zeros, "partitioned,", flat, "not")
print("NaN:", nan, "partitioned,", nan_flat, "not")
assert (zeros, flat) == ((3, 5, 5), (1, 3, 3)), "the behaviour has changed"
assert (nan, nan_flat) == ("division by zero", (1, 2, 2)), "the behaviour has changed"
PYTHON
