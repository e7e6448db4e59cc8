#!/bin/sh
# hyparquet reads binaries in shredded variants as if they were variants: it returns other values, or fails.
#
# Versions: hyparquet 1.31.5 on Node.js; files written by DuckDB 2.0.0, which shreds by default.
# Behaviour: a shredded variant has the value of a binary itself in `typed_value`; only `value` has the
# encoding of variants. hyparquet decodes each sequence of bytes in `typed_value` by that encoding. A
# binary that is not shredded is returned as its bytes, and so are other shredded types.
# Seen: the binary 0C 2A is the number 42, 04 is `true`, 01 02 FF is an empty text; an empty binary is
# "RangeError: Offset is outside the bounds of the DataView". A text and an unshredded binary are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check duckdb==2.0.0
cd "$folder"
npm install --silent --no-audit --no-fund hyparquet@1.31.5

new/bin/python - <<'PYTHON'
import duckdb

values = {"number": r"'\x0C\x2A'::blob", "true": r"'\x04'::blob", "text": r"'\x01\x02\xFF'::blob"}
values |= {"empty": "''::blob", "string": "'Ulm'"}
for name, value in values.items():
    duckdb.sql(f"copy (select {value}::variant as v) to '{name}.parquet' (format parquet)")
mixed = r"select unnest(['\x0C\x2A'::blob::variant, 1::variant, 2::variant]) as v"
duckdb.sql(f"copy ({mixed}) to 'unshredded.parquet' (format parquet, shredding {{v: 'integer'}})")
PYTHON

cat > read.mjs <<'JAVASCRIPT'
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet'

const found = {}
for (const name of ['number', 'true', 'text', 'empty', 'string', 'unshredded']) {
  try {
    const [{ v }] = await parquetReadObjects({ file: await asyncBufferFromFile(`${name}.parquet`) })
    found[name] = v instanceof Uint8Array ? `${v.length} bytes` : v
  } catch (error) {
    found[name] = error.constructor.name
  }
}
console.log(found)
const seen = { number: 42, true: true, text: '', empty: 'RangeError', string: 'Ulm', unshredded: '2 bytes' }
if (JSON.stringify(found) !== JSON.stringify(seen)) throw new Error('the behaviour has changed')
JAVASCRIPT
node read.mjs
