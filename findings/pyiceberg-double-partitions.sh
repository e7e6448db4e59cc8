#!/bin/sh
# pyiceberg reads doubles in manifests as floats: filters lose the rows of partitions by doubles.
#
# Versions: pyiceberg 0.12.0 (wheel with the compiled Avro decoder) with PyArrow 26.0.1.
# Behaviour: the compiled decoder returns each double rounded to a float, the one in Python does
# not. So an identity partition of 2.222 is read as 2.2219998836517334, and a filter for 2.222 skips
# its files. A later `delete` writes the rounded value into a new manifest, for all readers.
# Seen: the scan for 2.222 finds none of the rows that a scan for everything returns; after a delete
# of other rows, the manifest has 2.2219998836517334.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1 fastavro==1.13.1

cd "$folder"
new/bin/python - <<'PYTHON'
import struct

import fastavro
import pyarrow as pa
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField

catalog = InMemoryCatalog("shop", warehouse=".")
catalog.create_namespace("shop")
schema = Schema(NestedField(1, "price", DoubleType(), required=False))
by_price = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "price"))
table = catalog.create_table("shop.orders", schema, partition_spec=by_price)
table.append(pa.table({"price": [2.222, 0.5]}))


def stored():
    """Return the partitions of live files, read by another library."""
    values = set()
    for manifest in table.current_snapshot().manifests(table.io):
        with open(manifest.manifest_path.removeprefix("file://"), "rb") as file:
            rows = fastavro.reader(file)
            values |= {r["data_file"]["partition"]["price"] for r in rows if r["status"] != 2}
    return values


rows = table.scan().to_arrow()["price"].to_pylist()
found = table.scan("price = 2.222").to_arrow()["price"].to_pylist()
data = struct.pack("<d", 2.222)
decoded = new_decoder(data).read_double(), StreamingBinaryDecoder(data).read_double()
before = stored()
table.delete("price = 0.5")
after = stored()
print("rows:", rows, "where price = 2.222:", found)
print("compiled decoder:", decoded[0], "decoder in Python:", decoded[1])
print("in manifests:", before, "after a delete of other rows:", after)
assert sorted(rows) == [0.5, 2.222] and found == [], "the behaviour has changed"
assert decoded == (2.2219998836517334, 2.222), "the behaviour has changed"
assert before == {0.5, 2.222}, "the behaviour has changed"
assert after == {2.2219998836517334}, "the behaviour has changed"
PYTHON
