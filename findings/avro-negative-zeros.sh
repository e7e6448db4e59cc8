#!/bin/sh
# avro and fastavro write a negative zero as another number: what was rounded to -0.00 is -0.02.
#
# Versions: avro 1.12.2, fastavro 1.13.1.
# Behaviour: Python's Decimal keeps the sign of what it rounds to zero, and -0.00 equals 0. Both packages
# compute the two's complement of a negative decimal with one bit more than its digits need, which is one
# bit for zero: the sum is -2 units of the last digit. avro does so for bytes and fixed, fastavro for
# fixed; it mended bytes in 2019 (fastavro/fastavro#361).
# Seen: -0.004 rounded to cents is read as -0.02, and rounded to whole numbers as -2; 0.004 and -1 are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check avro==1.12.2 fastavro==1.13.1

cd "$folder"
new/bin/python - <<'PYTHON'
import io
import json
from decimal import Decimal

import avro.io
import avro.schema
import fastavro


def write_with_avro(schema, row):
    data = io.BytesIO()
    writer = avro.io.DatumWriter(avro.schema.parse(json.dumps(schema)))
    writer.write(row, avro.io.BinaryEncoder(data))
    return data.getvalue()


def write_with_fastavro(schema, row):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, row)
    return data.getvalue()


found = {}
for scale in (2, 0):
    decimal = {"logicalType": "decimal", "precision": 9, "scale": scale}
    fixed = {"type": "fixed", "name": "amount", "size": 16, **decimal}
    for kind in ({"type": "bytes", **decimal}, fixed):
        schema = {"type": "record", "name": "sale", "fields": [{"name": "amount", "type": kind}]}
        for write in (write_with_avro, write_with_fastavro):
            for text in ("-0.004", "0.004", "-1"):
                amount = round(Decimal(text), scale)
                data = io.BytesIO(write(schema, {"amount": amount}))
                seen = fastavro.schemaless_reader(data, schema)["amount"]
                if seen != amount:
                    found[write.__name__, kind["type"], str(amount)] = str(seen)
print(*found.items(), sep="\n")
others = [("write_with_avro", "bytes"), ("write_with_avro", "fixed"), ("write_with_fastavro", "fixed")]
seen = {(*other, "-0.00"): "-0.02" for other in others} | {(*other, "-0"): "-2" for other in others}
assert found == seen, "the behaviour has changed"
PYTHON
