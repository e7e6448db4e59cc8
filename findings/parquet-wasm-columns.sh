#!/bin/sh
# parquet-wasm 0.8.0 ignores `columns` in `readParquet`: a plaintext column beside encrypted ones is
# not read.
#
# Versions: parquet-wasm 0.8.0 and apache-arrow 21.1.0 on Node.js; files written by PyArrow 26.0.1.
# Behaviour: `readParquet(file, {columns: ["city"]})` decodes all columns, and returns them. Of a file
# with a plaintext footer, it therefore reads encrypted pages as if they were plaintext, which is an
# error about a missing field. `ParquetFile.read({columns: ["city"]})` of the same package obeys.
# Seen: id and city of the plaintext file; "Required field type_ is missing" for the other one;
# ParquetFile returns 3 rows of city.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
npm install --silent --no-audit --no-fund parquet-wasm@0.8.0 apache-arrow@21.1.0

new/bin/python - <<'PYTHON'
import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class Kms(pe.KmsClient):
    """A stand-in for a key service, which only has to return what it was given."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key, master_key):
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, master_key):
        return base64.b64decode(wrapped)


rows = pa.table({"id": [1, 2, 3], "city": ["Ulm", "Bonn", "Kiel"]})
how = pe.EncryptionConfiguration("footer", plaintext_footer=True, column_keys={"key": ["id"]})
properties = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), how)
pq.write_table(rows, "encrypted.parquet", encryption_properties=properties)
pq.write_table(rows, "plaintext.parquet")
PYTHON

cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from 'fs'
import { tableFromIPC } from 'apache-arrow'
import { ParquetFile, readParquet } from 'parquet-wasm/node'

const names = wasm => tableFromIPC(wasm.intoIPCStream()).schema.fields.map(field => field.name).join()
const read = file => {
  try {
    return names(readParquet(new Uint8Array(readFileSync(file)), { columns: ['city'] }))
  } catch (error) {
    return String(error.message ?? error)
  }
}
const file = await ParquetFile.fromFile(new Blob([readFileSync('encrypted.parquet')]))
const found = [read('plaintext.parquet'), read('encrypted.parquet'), names(await file.read({ columns: ['city'] }))]
console.log(found)
const seen = ['id,city', 'Required field type_ is missing', 'city']
if (!found.every((text, at) => text.endsWith(seen[at]))) throw new Error('the behaviour has changed')
JAVASCRIPT
node read.mjs
