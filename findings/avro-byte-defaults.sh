#!/bin/sh
# Avro for Python reads the default of a field of bytes as UTF-8: other bytes, and more of them.
#
# Versions: avro 1.12.2 for Python; avsc 5.7.9 on Node.js as another implementation.
# Behaviour: in a schema, the default of bytes and fixed is a text whose characters U+0000 to U+00FF are the
# bytes 00 to FF. A reader gives it to rows that were written without the field. avro encodes the text in
# UTF-8, which is the same up to 7F only: a decimal of -1 as default, FF, is read as C3 BF, which is -15425.
# Java 1.12.1 agrees with avsc.
# Seen: the default FF 01 is C3 BF 01 in Python, also in a fixed of two bytes, and in an array; FF 01 in avsc.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check avro==1.12.2
cd "$folder"
npm install --silent --no-audit --no-fund avsc@5.7.9

cat > schemas.json <<'JSON'
{
  "writer": {"type": "record", "name": "row", "fields": [{"name": "id", "type": "int"}]},
  "reader": {"type": "record", "name": "row", "fields": [
    {"name": "id", "type": "int"},
    {"name": "bytes", "type": "bytes", "default": "\u00ff\u0001"},
    {"name": "fixed", "type": {"type": "fixed", "name": "pair", "size": 2}, "default": "\u00ff\u0001"},
    {"name": "array", "type": {"type": "array", "items": "bytes"}, "default": ["\u00ff\u0001"]},
    {"name": "plain", "type": "bytes", "default": "Ulm"}
  ]}
}
JSON
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from 'fs'
import avsc from 'avsc'

const { writer, reader } = JSON.parse(readFileSync('schemas.json'))
const [from, to] = [avsc.Type.forSchema(writer), avsc.Type.forSchema(reader)]
const row = to.fromBuffer(from.toBuffer({ id: 1 }), to.createResolver(from))
const hex = value => Buffer.from([value].flat()[0]).toString('hex')
const found = Object.entries(row).slice(1).map(([name, value]) => [name, hex(value)])
writeFileSync('avsc.json', JSON.stringify(Object.fromEntries(found)))
JAVASCRIPT
node read.mjs

new/bin/python - <<'PYTHON'
import io
import json

import avro.io
import avro.schema

schemas = json.load(open("schemas.json"))
writer, reader = (avro.schema.parse(json.dumps(schemas[name])) for name in ("writer", "reader"))
decoder = avro.io.BinaryDecoder(io.BytesIO(b"\x02"))
row = avro.io.DatumReader(writer, reader).read(decoder)
found = {name: (value[0] if name == "array" else value).hex() for name, value in row.items() if name != "id"}
right = json.load(open("avsc.json"))
print("Python", *found.items(), sep="\t")
print("avsc", *right.items(), sep="\t")
plain = {"plain": b"Ulm".hex()}
assert right == dict.fromkeys(("bytes", "fixed", "array"), "ff01") | plain, "the behaviour has changed"
assert found == dict.fromkeys(("bytes", "fixed", "array"), "c3bf01") | plain, "the behaviour has changed"
PYTHON
