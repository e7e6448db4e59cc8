#!/bin/sh
# parquet-go's GenericWriter writes other UUIDs than those of strings that are tagged as such.
#
# Versions: Go module github.com/parquet-go/parquet-go 0.32.0; PyArrow 26.0.1 as another reader.
# Behaviour: `uuid` is a documented tag of strings, whose text is parsed to the 16 bytes of the column.
# GenericWriter takes a shortcut for columns of fixed length and copies 16 bytes of the struct instead,
# which are Go's description of the string; parquet-go/parquet-go#509 mended the same for decimals of
# `[]byte`. There is no error, and GenericReader returns the other UUIDs as well. The untyped Writer is
# right, and so is GenericWriter for fields of type `[16]byte`.
# Seen: 0 of 2 UUIDs in the file of GenericWriter with strings, also if the column is optional.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
cat > go.mod <<'GO'
module finding

go 1.24

require github.com/parquet-go/parquet-go v0.32.0
GO
cat > main.go <<'GO'
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/parquet-go/parquet-go"
)

type text struct {
	ID    string `parquet:"id,uuid"`
	Maybe string `parquet:"maybe,optional,uuid"`
}

type bytes struct {
	ID    [16]byte `parquet:"id,uuid"`
	Maybe [16]byte `parquet:"maybe,optional,uuid"`
}

var texts, binaries = []text{}, []bytes{}

func write(name string, rows func(*os.File) error) {
	file, err := os.Create(name)
	if err == nil {
		err = rows(file)
	}
	if err != nil {
		log.Fatal(err)
	}
	file.Close()
}

func main() {
	for i := byte(1); i <= 2; i++ {
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
		texts = append(texts, text{id, id})
		binary := [16]byte{6: 0x40, 8: 0x80, 15: i}
		binaries = append(binaries, bytes{binary, binary})
	}
	write("strings.parquet", func(file *os.File) error { return parquet.Write(file, texts) })
	write("bytes.parquet", func(file *os.File) error { return parquet.Write(file, binaries) })
	write("untyped.parquet", func(file *os.File) error {
		writer := parquet.NewWriter(file)
		for _, row := range texts {
			if err := writer.Write(row); err != nil {
				return err
			}
		}
		return writer.Close()
	})
}
GO
export GOFLAGS=-mod=mod
go run . 2> go.log || { cat go.log; exit 1; }
new/bin/python - <<'PYTHON'
import pyarrow.parquet as pq

found = {}
for name in ("strings", "bytes", "untyped"):
    for column in pq.read_table(f"{name}.parquet").itercolumns():
        right = {f"00000000-0000-4000-8000-{number:012}" for number in (1, 2)}
        found.setdefault(name, []).append(len(right & {str(value) for value in column.to_pylist()}))
print(found)
assert found == {"strings": [0, 0], "bytes": [2, 2], "untyped": [2, 2]}, "the behaviour has changed"
PYTHON
