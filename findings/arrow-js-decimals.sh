#!/bin/sh
# apache-arrow for JavaScript shows wide decimals as their last digit, negative short ones as huge.
#
# Versions: apache-arrow 21.2.0 on Node.js; the data from PyArrow 26.0.1.
# Behaviour: `toString` of a value, and JSON, divide by ten until the upper four words of the number are zero.
# In a number of eight words these hold nothing below 2^128, so that the loop ends with the first digit.
# Numbers of two words have no sign there, unlike those of one and of four. `valueOf` is right for both.
# Readers of Parquet make 256 bits of decimals with more than 38 digits; PyArrow has types of 32 and 64 bits.
# Seen: of 1.25 and -3.10, unscaled 125 and -310, "5" and "-0" with 256 bits, "125" and
# "18446744073709551306" with 64 bits; "125" and "-310" with 32 and 128 bits.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
npm install --silent --no-audit --no-fund apache-arrow@21.2.0

new/bin/python - <<'PYTHON'
from decimal import Decimal

import pyarrow as pa

numbers = [Decimal("1.25"), Decimal("-3.10")]
kinds = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
table = pa.table({str(bits): pa.array(numbers, kind(9, 2)) for bits, kind in kinds.items()})
with pa.ipc.new_stream("decimals.arrows", table.schema) as stream:
    stream.write_table(table)
PYTHON

cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from 'fs'
import { tableFromIPC } from 'apache-arrow'

const table = tableFromIPC(readFileSync('decimals.arrows'))
const found = {}
for (const bits of [32, 64, 128, 256]) found[bits] = Array.from(table.getChild(`${bits}`), String)
const numbers = [64, 128, 256].map(bits => Array.from(table.getChild(`${bits}`), Number).join())
console.log(found, numbers)
const right = ['125', '-310']
const seen = { 32: right, 64: ['125', '18446744073709551306'], 128: right, 256: ['5', '-0'] }
const changed = JSON.stringify(found) !== JSON.stringify(seen) || numbers.some(text => text !== '125,-310')
if (changed) throw new Error('the behaviour has changed')
JAVASCRIPT
node read.mjs
