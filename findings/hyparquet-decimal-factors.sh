#!/bin/sh
# hyparquet multiplies decimals by an inexact factor: one price in eight is not found by its own value.
#
# Versions: hyparquet 1.31.5 on Node.js; the file written by PyArrow 26.0.1.
# Behaviour: 0.35 as a decimal with two digits is 35 in the file. hyparquet returns 35 * 10 ** -2, which is
# 0.35000000000000003, where 35 / 100 would be the number that JavaScript has for 0.35. Bounds of row
# groups are computed likewise. A filter with `$eq: 0.35` or `$lte: 0.35` then leaves the row out, and
# sums and groups of rows from hyparquet differ from those of other readers.
# Seen: of 0.00 to 99.99, 1327 numbers are others, and `$eq` finds none of them; `$lte: 0.35` finds 35
# rows instead of 36.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
npm install --silent --no-audit --no-fund hyparquet@1.31.5

new/bin/python - <<'PYTHON'
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

prices = pa.array([Decimal(cents) / 100 for cents in range(10_000)], pa.decimal128(9, 2))
pq.write_table(pa.table({"price": prices}), "prices.parquet")
PYTHON

cat > read.mjs <<'JAVASCRIPT'
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet'

const file = await asyncBufferFromFile('prices.parquet')
const count = async filter => (await parquetReadObjects({ file, filter })).length
const rows = await parquetReadObjects({ file })
const others = rows.flatMap(({ price }, cents) => price === cents / 100 ? [] : [cents / 100])
let matches = 0
for (const price of others.slice(0, 50)) matches += await count({ price: { $eq: price } })
const [below, other] = [await count({ price: { $lte: 0.35 } }), await count({ price: { $eq: 0.25 } })]
const found = [rows.length, others.length, matches, below, other]
console.log(others.slice(0, 5), rows[35], found)
if (found.join() !== '10000,1327,0,35,1') throw new Error('the behaviour has changed')
JAVASCRIPT
node read.mjs
