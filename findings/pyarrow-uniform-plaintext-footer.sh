#!/bin/sh
# PyArrow ignores `plaintext_footer=True` beside `uniform_encryption=True`, without a word.
#
# Version: PyArrow 26.0.1.
# Behaviour: a plaintext footer lets readers without keys see the schema and the number of rows. Asked
# for together with uniform encryption, PyArrow encrypts the footer: the file begins with PARE, and a
# reader without keys cannot open it at all. With the same footer key and a column key per column, the
# option is obeyed, and the file begins with PAR1.
# Seen: PARE for uniform encryption, PAR1 for column keys; no warning and no error.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyarrow==26.0.1

cd "$folder"
new/bin/python -W error - <<'PYTHON'
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


factory, connection = pe.CryptoFactory(Kms), pe.KmsConnectionConfig()
rows = pa.table({"n": [1, 2, 3]})
seen = {}
for name, columns in {"uniform": {"uniform_encryption": True}, "columns": {"column_keys": {"key": ["n"]}}}.items():
    how = pe.EncryptionConfiguration("footer", plaintext_footer=True, **columns)
    encryption = factory.file_encryption_properties(connection, how)
    pq.write_table(rows, f"{name}.parquet", encryption_properties=encryption)
    with open(f"{name}.parquet", "rb") as file:
        seen[name] = file.read(4)
print(seen)
assert pq.read_metadata("columns.parquet").num_rows == 3
assert seen == {"uniform": b"PARE", "columns": b"PAR1"}, "the behaviour has changed"
PYTHON
