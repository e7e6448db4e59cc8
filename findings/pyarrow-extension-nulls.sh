#!/bin/sh
# PyArrow cannot filter a file by "is null" on columns of UUID, JSON and other extension types.
#
# Version: PyArrow 26.0.1.
# Behaviour: before it tests for nulls, a dataset turns the bounds of a chunk into a condition on the
# column, and types with a logical type of their own have no comparisons. On a table in memory the
# same filter works, and so it does on a file without statistics, or with nulls alone. A condition
# on another column works, unless it is joined with such a test by "or".
# Seen: "Function 'greater_equal' has no kernel matching input types (extension<arrow.uuid>, ...)".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def count(read, *arguments, **options):
    try:
        return read(*arguments, **options).num_rows
    except pa.ArrowNotImplementedError as error:
        assert "has no kernel matching input types (extension<arrow." in str(error), error
        return "refused"


ids = pa.array([bytes(16), None, b"\xff" * 16], pa.binary(16))
columns = {
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), ids),
    "json": pa.array(["{}", None, "[]"], pa.json_()),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, None, 1], pa.int8())),
    "bytes": ids,
}
found = {}
for name, column in columns.items():
    rows = pa.table({"v": column, "n": range(3)})
    condition = pc.field("v").is_null()
    pq.write_table(rows, "bounds.parquet")
    pq.write_table(rows, "none.parquet", write_statistics=False)
    found[name] = [
        count(rows.filter, condition),
        count(pq.read_table, "none.parquet", filters=condition),
        count(pq.read_table, "bounds.parquet", filters=pc.field("n") > 1),
        count(pq.read_table, "bounds.parquet", filters=condition),
    ]
    print(name, *found[name], sep="\t")
refused = dict.fromkeys(("uuid", "json", "bool8"), [1, 1, 1, "refused"])
assert found == refused | {"bytes": [1, 1, 1, 1]}, "the behaviour has changed"
PYTHON
