#!/bin/sh
# Avro for Python writes decimals without the zeros that their scale asks for: 1.5 becomes 0.15.
#
# Versions: avro 1.12.2; fastavro 1.13.1 as another reader and writer.
# Behaviour: for a decimal with scale 2, the unscaled number of 1.5 is 150. avro writes the digits that the
# Decimal of Python happens to have, 15, and refuses only more digits than the scale has. 100 becomes 1 if
# it was computed as 1E+2. The file is valid, and other readers agree with it.
# Seen: 1.5 is read as 0.15, 3 as 0.03 and 1E+2 as 0.01, as bytes and as fixed; 1.50 is right. What fastavro
# writes is right.
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

import avro.datafile
import avro.io
import avro.schema
import fastavro

SCALE = {"logicalType": "decimal", "precision": 9, "scale": 2}
TYPES = {
    "bytes": {"type": "bytes", **SCALE},
    "fixed": {"type": "fixed", "name": "price", "size": 4, **SCALE},
}
NUMBERS = [Decimal(text) for text in ("1.50", "1.5", "3", "1E+2", "-0.5")]
ROWS = [{"price": number} for number in NUMBERS]


def write_with_avro(schema):
    file, parsed = io.BytesIO(), avro.schema.parse(json.dumps(schema))
    with avro.datafile.DataFileWriter(file, avro.io.DatumWriter(), parsed) as writer:
        for row in ROWS:
            writer.append(row)
        writer.flush()
        return file.getvalue()


def write_with_fastavro(schema):
    file = io.BytesIO()
    fastavro.writer(file, schema, ROWS)
    return file.getvalue()


def read(data):
    """Return the prices of a file as text, from fastavro, with which avro agrees."""
    prices = [row["price"] for row in fastavro.reader(io.BytesIO(data))]
    own = avro.datafile.DataFileReader(io.BytesIO(data), avro.io.DatumReader())
    assert [row["price"] for row in own] == prices
    return [str(price) for price in prices]


for name, kind in TYPES.items():
    schema = {"type": "record", "name": "sale", "fields": [{"name": "price", "type": kind}]}
    found = read(write_with_avro(schema)), read(write_with_fastavro(schema))
    print(name, *found, sep="\t")
    right = ["1.50", "1.50", "3.00", "100.00", "-0.50"]
    assert found == (["1.50", "0.15", "0.03", "0.01", "-0.05"], right), "the behaviour has changed"
PYTHON
