#!/bin/sh
# parquet-go writes bounds of long decimals in the order of unsigned bytes: filters lose all rows around zero.
#
# Versions: Go module github.com/parquet-go/parquet-go 0.32.0; PyArrow 26.0.1 and Polars 2.1.0 as readers.
# Behaviour: decimals of more than 18 digits are bytes, which sort by their sign first. parquet-go takes the
# bounds as of binaries, where -3.10 begins with FF and is the greatest: with both signs, the minimum of a
# chunk is above its maximum, and filters skip the row group. Decimals in integers are right.
# parquet-go/parquet-go#595 mended this in August 2026, after 0.32.0.
# Seen: bounds 0.05 and -3.10 of 1.25, -3.10 and 0.05; filters of both readers find none of these numbers, and
# each of them in integers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cd "$folder"
cat > go.mod <<'GO'
module finding

go 1.24

require github.com/parquet-go/parquet-go v0.32.0
GO
cat > main.go <<'GO'
package main

import (
	"encoding/binary"
	"log"

	"github.com/parquet-go/parquet-go"
)

type row struct {
	Integer int64    `parquet:"integer,decimal(2:18)"`
	Bytes   [16]byte `parquet:"bytes,decimal(2:38)"`
}

func main() {
	rows := []row{}
	for _, cents := range []int64{125, -310, 5} {
		var bytes [16]byte
		binary.BigEndian.PutUint64(bytes[:8], uint64(cents>>63))
		binary.BigEndian.PutUint64(bytes[8:], uint64(cents))
		rows = append(rows, row{cents, bytes})
	}
	if err := parquet.WriteFile("rows.parquet", rows); err != nil {
		log.Fatal(err)
	}
}
GO
export GOFLAGS=-mod=mod
go run . 2> go.log || { cat go.log; exit 1; }
new/bin/python - <<'PYTHON'
from decimal import Decimal

import polars as pl
import pyarrow.parquet as pq

NUMBERS = [Decimal("1.25"), Decimal("-3.10"), Decimal("0.05")]
chunks = pq.read_metadata("rows.parquet").row_group(0)
found = {}
for index, name in enumerate(("integer", "bytes")):
    assert pq.read_table("rows.parquet")[name].to_pylist() == NUMBERS
    bounds = chunks.column(index).statistics
    rows = [
        (
            pq.read_table("rows.parquet", filters=[(name, "=", number)]).num_rows,
            pl.scan_parquet("rows.parquet").filter(pl.col(name) == number).collect().height,
        )
        for number in NUMBERS
    ]
    found[name] = str(bounds.min), str(bounds.max), rows
    print(name, *found[name])
assert found == {
    "integer": ("-3.10", "1.25", [(1, 1)] * 3),
    "bytes": ("0.05", "-3.10", [(0, 0)] * 3),
}, "the behaviour has changed"
PYTHON
