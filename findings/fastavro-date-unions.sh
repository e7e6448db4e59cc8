#!/bin/sh
# fastavro writes a timestamp as a date where a union has both, and the time of day is gone.
#
# Versions: fastavro 1.13.1; avro 1.12.2 as another writer.
# Behaviour: of the branches of a union, fastavro takes the first that accepts the value. Its check of `date`
# accepts what is an instance of Python's `date`, which each `datetime` is as well. With the timestamp before
# the date in the union, the row is right, so that the order of the branches decides what is stored.
# Seen: 10:20 of a day is read as that day alone for ["null", date, timestamp-micros], and also for a date
# beside local-timestamp-micros; right with the date last. avro writes the timestamp.
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
from datetime import UTC, date, datetime

import avro.io
import avro.schema
import fastavro

DATE = {"type": "int", "logicalType": "date"}
INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
WHEN = datetime(2026, 12, 1, 10, 20, tzinfo=UTC)


def with_fastavro(schema, row):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, row)
    return data.getvalue()


def with_avro(schema, row):
    data = io.BytesIO()
    writer = avro.io.DatumWriter(avro.schema.parse(json.dumps(schema)))
    writer.write(row, avro.io.BinaryEncoder(data))
    return data.getvalue()


def outcome(write, when, *branches):
    fields = [{"name": "when", "type": ["null", *branches]}]
    schema = {"type": "record", "name": "visit", "fields": fields}
    data = io.BytesIO(write(schema, {"when": when}))
    return fastavro.schemaless_reader(data, schema)["when"]


found = {
    "date first": outcome(with_fastavro, WHEN, DATE, INSTANT),
    "date first, local": outcome(with_fastavro, WHEN.replace(tzinfo=None), DATE, LOCAL),
    "date last": outcome(with_fastavro, WHEN, INSTANT, DATE),
    "avro, date first": outcome(with_avro, WHEN, DATE, INSTANT),
}
print(*found.items(), sep="\n")
day = date(2026, 12, 1)
assert list(found.values()) == [day, day, WHEN, WHEN], "the behaviour has changed"
PYTHON
