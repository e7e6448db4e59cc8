#!/bin/sh
# DuckDB takes the base64 of a 128-bit or 192-bit key for another key: the letters themselves.
#
# Versions: DuckDB 2.0.0, with files of PyArrow 26.0.1.
# Behaviour: `add_parquet_key` takes keys as text, plain or in base64. Base64 of 16 bytes has 24 letters,
# and base64 of 24 bytes has 32; both are lengths of keys, so DuckDB uses the letters as the key. Only a
# key of 32 bytes, whose base64 has 44 letters, is decoded. A random 128-bit key, such as one from a key
# service, therefore cannot be written in base64, and most cannot be written as text either.
# Seen: "are you using the right key?" for the right key, and all rows of files under the letters.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1

cd "$folder"
new/bin/python - <<'PYTHON'
import base64

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

database = duckdb.connect()


def write(path, key):
    encryption = pe.create_encryption_properties(footer_key=key)
    pq.write_table(pa.table({"n": range(10)}), path, encryption_properties=encryption)


def read(path):
    try:
        source = f"read_parquet('{path}', encryption_config={{footer_key: 'k'}})"
        return database.sql(f"SELECT sum(n) FROM {source}").fetchall()[0][0]
    except duckdb.InvalidInputException as error:
        assert "are you using the right key?" in str(error), error
        return "refused"


found = []
for size in (16, 24, 32):
    key = bytes(range(200, 200 + size))  # no text: it can only be given in base64
    letters = base64.b64encode(key)
    database.execute(f"PRAGMA add_parquet_key('k', '{letters.decode()}')")
    write("key.parquet", key)
    found.append((8 * size, "key", read("key.parquet")))
    if size < 32:
        write("letters.parquet", letters)
        found.append((8 * size, "letters", read("letters.parquet")))
print(*found, sep="\n")
assert found == [
    (128, "key", "refused"), (128, "letters", 45),
    (192, "key", "refused"), (192, "letters", 45),
    (256, "key", 45),
], "the behaviour has changed"
PYTHON
