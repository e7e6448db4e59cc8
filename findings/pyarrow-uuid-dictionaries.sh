#!/bin/sh
# PyArrow writes a table with a dictionary of UUIDs as a file without rows, or one that it cannot open.
#
# Versions: PyArrow 26.0.1.
# Behaviour: a table with a dictionary of UUIDs is written without an error, but the file has no values,
# and states that it has no rows. The Arrow schema in the file names an extension type whose storage is
# the dictionary: when the file is opened, the type refuses that. Without the Arrow schema
# (`store_schema=False`) the file opens, and is empty.
# Seen: of 3 rows, ArrowInvalid from the file with the schema, and no row from the one without.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

ids = pa.array([bytes(16), bytes(range(16))], pa.uuid())
dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), ids)
columns = {"plain": ids.take(dictionary.indices), "dictionary": dictionary}
seen = {}
for name, column in columns.items():
    for store_schema in (True, False):
        pq.write_table(pa.table({"id": column}), "file.parquet", store_schema=store_schema)
        try:
            rows = pq.read_table("file.parquet").num_rows
        except pa.ArrowInvalid as error:
            rows = str(error)[:37]
        seen[name, store_schema] = rows
        print(name, "with the Arrow schema" if store_schema else "without it", "->", rows)
metadata = pq.read_metadata("file.parquet")
counts = metadata.num_rows, metadata.row_group(0).column(0).num_values
print("rows and values that the last footer states:", counts)
assert counts == (0, 0), "the behaviour has changed"
assert seen == {
    ("plain", True): 3,
    ("plain", False): 3,
    ("dictionary", True): "Invalid storage type for UuidType: di",
    ("dictionary", False): 0,
}, "the behaviour has changed"
PYTHON
